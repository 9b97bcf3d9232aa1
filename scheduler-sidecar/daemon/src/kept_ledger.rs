//! Ledgers that the daemon keeps for tenants, and hands to their members.
//!
//! A member makes its tenant's ledger in a directory that every user of its container can write, such as /dev/shm. A
//! user that the tenant does not list may have put a file under the ledger's name there first. Then the daemon makes a
//! ledger in a directory of its own, and hands it to every member of the tenant from then on: members in two ledgers
//! would have two limits. It stays as long as the tenant, so that the next daemon finds it.
//!
//! The directory lies beside the tenant's socket and is shut to all other users; the file is open to whoever was handed
//! it. Not here: who is handed it (`reactor`), and what stands in it (libvgpu's `ledger`).

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use vgpu_core::ledger::{Identity, LEDGER_SIZE, formatted};
use vgpu_core::tenant::{Facts, TenantKey, hash64, uid_in_parent};
use vgpu_core::uuid;

/// Permissions of a ledger: its members may be any user.
const LEDGER_MODE: Mode = Mode::from_raw_mode(0o666);
/// Permissions of the directory: the daemon's user alone finds a ledger by its name.
const DIRECTORY_MODE: u32 = 0o700;

/// A tenant's ledger of one device, as the daemon keeps it.
pub struct KeptLedger {
    dir: PathBuf,
    name: String,
    identity: Identity,
}

/// The ledger, opened anew for one member, and once more to read.
pub type Opened = (OwnedFd, OwnedFd);

impl KeptLedger {
    /// The ledger of the tenant with this socket on this device. `None`: no ledger has such a tenant's name.
    #[must_use]
    pub fn of(socket: &Path, tenant: &str, device: &str) -> Option<Self> {
        let name = Some(tenant.as_bytes());
        let facts = Facts { name, mount_namespace: 0, pid_namespace: 0, host: true, uid: 0 };
        let key = TenantKey::of(&facts).ok()?;
        // As the library writes it, so that another spelling makes no second file.
        let device = format!("GPU-{}", uuid::key(device));
        let identity = Identity { tenant: key.hash(), device: hash64(device.as_bytes()) };
        Some(Self { dir: directory(socket), name: key.ledger_file(&device), identity })
    }

    /// Opens it.
    ///
    /// # Errors
    /// `NotFound`: the daemon keeps none. Others: what the kernel says, or the directory is not the daemon's alone.
    pub fn open(&self) -> io::Result<Opened> {
        let dir = open_directory(&self.dir)?;
        let open = |access| rustix::fs::openat(&dir, &self.name, access | READ_SAFELY, Mode::empty());
        Ok((open(OFlags::RDWR)?, open(OFlags::RDONLY)?))
    }

    /// Makes it, whole or not at all, and opens it.
    ///
    /// # Errors
    /// As [`KeptLedger::open`].
    pub fn make(&self) -> io::Result<Opened> {
        match DirBuilder::new().mode(DIRECTORY_MODE).create(&self.dir) {
            Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
            _ => {}
        }
        let dir = open_directory(&self.dir)?;
        let temporary = format!(".{}", self.name);
        // Left by a daemon that was killed here.
        let _ = rustix::fs::unlinkat(&dir, &temporary, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | READ_SAFELY;
        let mut file = File::from(rustix::fs::openat(&dir, &temporary, flags, LEDGER_MODE)?);
        rustix::fs::fchmod(&file, LEDGER_MODE)?;
        // All its blocks: a member of a full file system would end by SIGBUS.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, LEDGER_SIZE as u64)?;
        file.write_all(&formatted(self.identity))?;
        rustix::fs::renameat(&dir, &temporary, &dir, &self.name)?;
        self.open()
    }
}

const READ_SAFELY: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Where the ledgers of the tenant with this socket lie: two sockets may share a directory.
fn directory(socket: &Path) -> PathBuf {
    let mut name: OsString = socket.file_name().unwrap_or_default().to_owned();
    name.push(".ledgers");
    socket.with_file_name(name)
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let dir = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | READ_SAFELY, Mode::empty())?;
    let stat = rustix::fs::fstat(&dir)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
        let why = format!("{} is not a directory of the daemon's user alone (mode 0700)", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(dir)
}

/// True if the daemon keeps ledgers for the tenant with this socket.
#[must_use]
pub fn keeps_any(socket: &Path) -> bool {
    open_directory(&directory(socket)).is_ok()
}

/// Removes the ledgers of the tenant with this socket, which has no members any more.
pub fn remove_all(socket: &Path) {
    let dir = directory(socket);
    if open_directory(&dir).is_ok() {
        // A file that cannot be removed keeps the directory, and harms nobody.
        let _ = fs::remove_dir_all(&dir);
    }
}

/// The number here of a user that process `pid` calls `uid`: the two may live in different user namespaces.
#[must_use]
pub fn user_here(pid: Option<u32>, uid: u32) -> u32 {
    let map = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/uid_map")).ok());
    map.and_then(|map| uid_in_parent(&map, uid)).unwrap_or(uid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use vgpu_core::ledger::copied;

    use super::*;

    fn kept(dir: &Path) -> KeptLedger {
        KeptLedger::of(&dir.join("vgpud.sock"), "a", "gpu-00AA").unwrap()
    }

    #[test]
    fn a_ledger_is_made_once_and_found_by_every_spelling_of_its_device() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("vgpud.sock");
        assert!(!keeps_any(&socket));
        assert_eq!(kept(dir.path()).open().unwrap_err().kind(), io::ErrorKind::NotFound);
        let (made, _) = kept(dir.path()).make().unwrap();
        let (found, read) = KeptLedger::of(&socket, "a", "GPU-00aa").unwrap().open().unwrap();
        let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
        assert_eq!((inode(&made), inode(&made)), (inode(&found), inode(&read)));
        let bytes = fs::read(directory(&socket).join("vgpu-t-a-GPU-00aa.ledger")).unwrap();
        assert_eq!(bytes.len(), LEDGER_SIZE);
        assert!(copied(&bytes).is_some(), "a ledger of this version");
        assert!(rustix::io::write(&read, b"x").is_err(), "only to read");
        assert_eq!(fs::read_dir(directory(&socket)).unwrap().count(), 1, "nothing is left under another name");
        assert!(keeps_any(&socket));
        remove_all(&socket);
        assert!(!keeps_any(&socket) && !directory(&socket).exists());
    }

    #[test]
    fn a_directory_that_others_may_enter_holds_no_ledger() {
        let dir = tempfile::tempdir().unwrap();
        let made = directory(&dir.path().join("vgpud.sock"));
        fs::create_dir(&made).unwrap();
        fs::set_permissions(&made, fs::Permissions::from_mode(0o755)).unwrap();
        let why = kept(dir.path()).make().unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::PermissionDenied);
        assert!(why.to_string().contains("0700"), "{why}");
        fs::remove_dir(&made).unwrap();
        std::os::unix::fs::symlink(dir.path(), &made).unwrap();
        assert!(kept(dir.path()).make().is_err(), "no link is followed");
        remove_all(&dir.path().join("vgpud.sock"));
        assert!(dir.path().exists() && made.symlink_metadata().is_ok());
    }

    #[test]
    fn every_member_opens_the_ledger_by_the_descriptor_whatever_its_user() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = kept(dir.path()).make().unwrap();
        let stat = File::from(file).metadata().unwrap();
        assert_eq!(stat.mode() & 0o777, 0o666, "whatever the umask");
        let shut = fs::metadata(directory(&dir.path().join("vgpud.sock"))).unwrap();
        assert_eq!(shut.mode() & 0o777, 0o700);
    }
}
