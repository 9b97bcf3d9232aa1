//! Creates and keeps tenants' ledgers, and opens them for members.
//!
//! A tenant may have several containers, and each container has a /dev/shm of its own. If members made the ledger
//! there, each container would have the whole memory limit. So the daemon keeps one ledger for each tenant and device,
//! in a directory next to the tenant's socket. A member gets a descriptor of the ledger when it joins the device. A
//! member that starts while no daemon runs opens the ledger by its name, if the directory is mounted writable in its
//! container.
//!
//! Only the daemon's user may write the directory. Every user may write the ledger, because members may be any user. A
//! ledger stays as long as its tenant, so the next daemon finds it. Not here: which member gets it (`reactor`), and its
//! content (libvgpu's `ledger`).

use std::ffi::{CString, OsString};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use shim_sys::shared_file::remove_unused;
use tracing::warn;
use vgpu_core::limits::tenant::{ProcessFacts, TenantKey, hash64};
use vgpu_core::memory::ledger::{LEDGER_BYTES, LedgerIdentity, formatted, is_formatted};
use vgpu_core::protocol::wire::terms_file::LEDGERS_SUFFIX;
use vgpu_core::units::uuid;

/// Permissions of a ledger: every user may write it.
const LEDGER_MODE: Mode = Mode::from_raw_mode(0o666);
/// Permissions of the directory: every user may open a ledger by its name, only the daemon's user may add a file.
const DIRECTORY_MODE: u32 = 0o755;
/// Permissions that the directory must not have: write access for the group or others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A tenant's ledger of one device, as the daemon keeps it.
pub struct KeptLedger {
    dir: PathBuf,
    name: String,
    identity: LedgerIdentity,
}

/// The ledger opened twice: read-write for one member, and read-only for the daemon.
pub type Opened = (OwnedFd, OwnedFd);

impl KeptLedger {
    /// Returns the ledger of the tenant with this socket on this device. `None`: the name cannot be a tenant's.
    #[must_use]
    pub fn of(socket: &Path, tenant: &str, device: &str) -> Option<Self> {
        let name = Some(tenant.as_bytes());
        let facts = ProcessFacts { name, mount_namespace: 0, pid_namespace: 0, host: true, uid: 0 };
        let key = TenantKey::from_facts(&facts).ok()?;
        // Spelled as the library spells it, so that another spelling of the UUID does not make a second file.
        let device = format!("GPU-{}", uuid::uuid_key(device));
        let identity = LedgerIdentity { tenant: key.hash(), device: hash64(device.as_bytes()) };
        Some(Self { dir: directory(socket), name: key.ledger_file(&device), identity })
    }

    /// Opens the ledger, and creates it first if it does not exist. A file that a member overwrote or truncated is
    /// replaced when no process holds it.
    ///
    /// # Errors
    /// The kernel's error; or others may write the directory; or a process still holds an overwritten ledger.
    pub fn open_or_make(&self) -> io::Result<Opened> {
        match self.open() {
            Err(why) if why.kind() == io::ErrorKind::NotFound => self.make(),
            Ok((_, to_read)) if !self.is_whole(&to_read) => {
                let path = CString::new(self.dir.join(&self.name).into_os_string().into_vec())?;
                if !remove_unused(&path, |_, _| true)? {
                    return Err(io::Error::other(OVERWRITTEN));
                }
                self.make()
            }
            opened => opened,
        }
    }

    fn is_whole(&self, file: &OwnedFd) -> bool {
        let mut begin = [0; BEGIN];
        rustix::fs::fstat(file).is_ok_and(|stat| usize::try_from(stat.st_size) == Ok(LEDGER_BYTES))
            && rustix::io::pread(file, &mut begin, 0) == Ok(BEGIN)
            && is_formatted(&begin, self.identity)
    }

    fn open(&self) -> io::Result<Opened> {
        let dir = open_directory(&self.dir)?;
        let open = |access| rustix::fs::openat(&dir, &self.name, access | READ_SAFELY, Mode::empty());
        Ok((open(OFlags::RDWR)?, open(OFlags::RDONLY)?))
    }

    /// Creates the ledger under another name and renames it, so that no process sees an incomplete one.
    fn make(&self) -> io::Result<Opened> {
        make_directory(&self.dir)?;
        let dir = open_directory(&self.dir)?;
        let temporary = format!(".{}", self.name);
        // A daemon that was killed at this place may have left the file.
        let _ = rustix::fs::unlinkat(&dir, &temporary, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | READ_SAFELY;
        let mut file = File::from(rustix::fs::openat(&dir, &temporary, flags, LEDGER_MODE)?);
        rustix::fs::fchmod(&file, LEDGER_MODE)?;
        // The first member allocates the other blocks, so an unused ledger takes one block.
        file.set_len(LEDGER_BYTES as u64)?;
        file.write_all(&formatted(self.identity))?;
        rustix::fs::renameat(&dir, &temporary, &dir, &self.name)?;
        self.open()
    }
}

/// Reason for refusing a member whose tenant destroyed its own ledger.
const OVERWRITTEN: &str =
    "it was overwritten by a process of the tenant; end all processes of the tenant and start them again";

/// Bytes at the start of a file by which a ledger is recognized.
const BEGIN: usize = 64;

/// Open flags that follow no link and never block on a pipe.
const READ_SAFELY: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Returns the directory of the ledgers of the tenant with this socket. Its name contains the socket's name, because
/// several sockets may be in one directory.
fn directory(socket: &Path) -> PathBuf {
    let mut name: OsString = socket.file_name().unwrap_or_default().to_owned();
    name.push(LEDGERS_SUFFIX);
    socket.with_file_name(name)
}

fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE)), // whatever the umask
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(why) => Err(why),
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let dir = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | READ_SAFELY, Mode::empty())?;
    let stat = rustix::fs::fstat(&dir)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & WRITABLE_BY_OTHERS != 0 {
        let why = format!("{} is not a directory that the daemon's user alone may write (mode 0755)", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(dir)
}

/// Creates the tenant's ledgers of these devices, and their directory.
///
/// So a container engine can mount the directory before the first member joins, and a member that starts while no
/// daemon runs finds its ledger. A failure is logged here, and later joins are refused.
pub fn prepare<'a>(tenant: &str, socket: &Path, devices: impl Iterator<Item = &'a str>) {
    let mut ledgers = devices.filter_map(|device| KeptLedger::of(socket, tenant, device));
    let made = make_directory(&directory(socket))
        .and_then(|()| ledgers.try_for_each(|ledger| ledger.open_or_make().map(drop)));
    if let Err(why) = made {
        let dir = directory(socket);
        warn!(tenant, dir = %dir.display(), %why, "the ledgers of a tenant cannot be kept; its members are refused while that lasts");
    }
}

/// Removes the ledgers of the tenant with this socket. The tenant must have no members.
pub fn remove_all(socket: &Path) {
    let dir = directory(socket);
    if open_directory(&dir).is_ok() {
        // A file that cannot be removed also keeps the directory, which does no harm.
        let _ = fs::remove_dir_all(&dir);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use shim_sys::lock;
    use std::os::fd::AsFd as _;
    use vgpu_core::memory::ledger::parse_ledger;

    use super::*;

    fn kept(dir: &Path) -> KeptLedger {
        KeptLedger::of(&dir.join("vgpud.sock"), "a", "gpu-00AA").unwrap()
    }

    #[test]
    fn a_ledger_is_made_once_and_found_by_every_spelling_of_its_device() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("vgpud.sock");
        prepare("a", &socket, std::iter::once("gpu-00AA"));
        let (made, _) = kept(dir.path()).open().unwrap();
        let (found, read) = KeptLedger::of(&socket, "a", "GPU-00aa").unwrap().open_or_make().unwrap();
        let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
        assert_eq!((inode(&made), inode(&made)), (inode(&found), inode(&read)));
        let bytes = fs::read(directory(&socket).join("vgpu-t-a-GPU-00aa.ledger")).unwrap();
        assert_eq!(bytes.len(), LEDGER_BYTES);
        assert!(parse_ledger(&bytes).is_some(), "a ledger of this version");
        assert!(rustix::io::write(&read, b"x").is_err(), "only to read");
        assert_eq!(fs::read_dir(directory(&socket)).unwrap().count(), 1, "nothing is left under another name");
        remove_all(&socket);
        assert!(!directory(&socket).exists());
    }

    #[test]
    fn a_directory_that_others_may_write_holds_no_ledger() {
        let dir = tempfile::tempdir().unwrap();
        let made = directory(&dir.path().join("vgpud.sock"));
        fs::create_dir(&made).unwrap();
        fs::set_permissions(&made, Permissions::from_mode(0o775)).unwrap();
        let why = kept(dir.path()).open_or_make().unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::PermissionDenied);
        assert!(why.to_string().contains("0755"), "{why}");
        fs::remove_dir(&made).unwrap();
        std::os::unix::fs::symlink(dir.path(), &made).unwrap();
        assert!(kept(dir.path()).open_or_make().is_err(), "no link is followed");
        remove_all(&dir.path().join("vgpud.sock"));
        assert!(dir.path().exists() && made.symlink_metadata().is_ok());
    }

    #[test]
    fn a_file_that_is_no_ledger_any_more_is_replaced_when_no_process_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let destroy: [fn(&File); 3] = [
            |file| file.set_len(4096).unwrap(),
            |file| file.set_len(0).unwrap(),
            |mut file| file.write_all(&[0; 64]).unwrap(),
        ];
        for destroy in destroy {
            let (member, _) = kept(dir.path()).open_or_make().unwrap();
            assert!(lock::try_lock(member.as_fd(), 4096).unwrap());
            destroy(&File::from(kept(dir.path()).open().unwrap().0));
            let refused = kept(dir.path()).open_or_make().unwrap_err();
            assert!(refused.to_string().contains("overwritten"), "{refused}");
            drop(member);
            let (fresh, to_read) = kept(dir.path()).open_or_make().unwrap();
            assert!(kept(dir.path()).is_whole(&to_read));
            let again = kept(dir.path()).open_or_make().unwrap().0;
            let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
            assert_eq!(inode(&fresh), inode(&again), "one that is whole stays");
        }
    }

    #[test]
    fn every_user_may_open_the_ledger_whatever_the_umask() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = kept(dir.path()).open_or_make().unwrap();
        assert_eq!(File::from(file).metadata().unwrap().mode() & 0o777, 0o666);
        let there = fs::metadata(directory(&dir.path().join("vgpud.sock"))).unwrap();
        assert_eq!(there.mode() & 0o777, 0o755);
    }
}
