//! Creates and keeps tenants' ledgers, and opens them for members.
//!
//! A tenant may have several containers, and each container has a /dev/shm of its own. If members made the ledger
//! there, each container would have the whole memory limit. So the daemon keeps one ledger for each tenant and device,
//! in a directory next to the tenant's socket. A member gets a descriptor of the ledger when it joins the device. A
//! member that starts while no daemon runs opens the ledger by its name, if the directory is mounted writable in its
//! container.
//!
//! Only the daemon's user may write the directory. Every user who may enter it may write the ledger, because members
//! may be any user. If the tenant lists its users (`uids`), only those may enter: the directory has an access control
//! list of them. A ledger stays as long as its tenant, so the next daemon finds it. Not here: which member gets it
//! (`reactor`), its content (libvgpu's `ledger`), and how the daemon reads it (vgpu-accounting's `record::ledgers`).

use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use shim_sys::shared_file::remove_unused;
use tracing::warn;
use vgpu_core::limits::tenant::{ProcessFacts, TenantKey, hash64};
use vgpu_core::memory::ledger::{
    LEDGER_BYTES, LEDGER_VERSION, LedgerIdentity, formatted, is_formatted, ledger_version,
};
use vgpu_core::protocol::wire::terms_file::LEDGERS_SUFFIX;
use vgpu_core::units::uuid;

use crate::config::TenantConfig;

/// Permissions of a ledger: every user may write it who may enter the directory.
const LEDGER_MODE: Mode = Mode::from_raw_mode(0o666);
/// Permissions of the directory if the tenant lists no users: every user may open a ledger by its name, only the
/// daemon's user may add a file.
const OPEN_DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);
/// Permissions of the directory before its access control list is set, or where the list cannot be set.
const CLOSED_DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o700);
/// Permissions that the directory must not have: write access for the group or others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A tenant's ledger of one device, as the daemon keeps it.
pub struct KeptLedger<'a> {
    tenant: &'a TenantConfig,
    name: String,
    identity: LedgerIdentity,
}

impl<'a> KeptLedger<'a> {
    /// Returns the tenant's ledger of this device. `None`: the name cannot be a tenant's.
    #[must_use]
    pub fn of(tenant: &'a TenantConfig, device: &str) -> Option<Self> {
        let name = Some(tenant.name.as_bytes());
        let facts = ProcessFacts { name, mount_namespace: 0, pid_namespace: 0, host: true, uid: 0 };
        let key = TenantKey::from_facts(&facts).ok()?;
        // Spelled as the library spells it, so that another spelling of the UUID does not make a second file.
        let device = format!("GPU-{}", uuid::uuid_key(device));
        let identity = LedgerIdentity { tenant: key.hash(), device: hash64(device.as_bytes()) };
        Some(Self { tenant, name: key.ledger_file(&device), identity })
    }

    /// Returns the path of the ledger.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        directory(&self.tenant.socket).join(&self.name)
    }

    /// Opens the ledger read-write, and creates it first if it does not exist. A file that a member overwrote or
    /// truncated, or that has another version, is replaced when no process holds it.
    ///
    /// # Errors
    /// The kernel's error; or others may write the directory; or a process still holds such a file.
    pub fn open_or_make(&self) -> io::Result<OwnedFd> {
        match self.open() {
            Err(why) if why.kind() == io::ErrorKind::NotFound => self.make(),
            Ok(file) if !self.is_whole(&file) => {
                let path = CString::new(self.path().into_os_string().into_vec())?;
                if !remove_unused(&path, |_, _| true)? {
                    return Err(io::Error::other(explain_unusable(&file)));
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

    fn open(&self) -> io::Result<OwnedFd> {
        let dir = open_directory(&directory(&self.tenant.socket))?;
        Ok(rustix::fs::openat(&dir, &self.name, OFlags::RDWR | READ_SAFELY, Mode::empty())?)
    }

    /// Creates the ledger under another name and renames it, so that no process sees an incomplete one.
    fn make(&self) -> io::Result<OwnedFd> {
        let dir = make_directory(self.tenant)?;
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

/// Explains why a member is refused while processes of its tenant hold this file, which is no ledger of this version.
fn explain_unusable(file: &OwnedFd) -> String {
    let mut begin = [0; BEGIN];
    let _ = rustix::io::pread(file, &mut begin, 0); // a shorter file has no version
    let cause = match ledger_version(&begin).filter(|found| *found != LEDGER_VERSION) {
        Some(found) => format!("it has version {found}, this vgpud writes version {LEDGER_VERSION}"),
        None => "it was overwritten by a process of the tenant".to_owned(),
    };
    format!("{cause}; end all processes of the tenant and start them again")
}

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

/// Opens the directory of the tenant's ledgers, and creates it first if it does not exist. It then gives access to the
/// tenant's users as far as the file system can; a failure of that is logged and leaves it to the daemon's user alone.
fn make_directory(tenant: &TenantConfig) -> io::Result<OwnedFd> {
    let path = directory(&tenant.socket);
    match DirBuilder::new().mode(CLOSED_DIRECTORY_MODE.as_raw_mode()).create(&path) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
        _ => {}
    }
    let dir = open_directory(&path)?;
    if let Err(why) = admit_users(&dir, tenant) {
        rustix::fs::fchmod(&dir, CLOSED_DIRECTORY_MODE)?;
        warn!(tenant = %tenant.name, dir = %path.display(), %why, "the directory of a tenant's ledgers cannot be opened to the users that it lists; its programs do not start while no daemon runs");
    }
    Ok(dir)
}

/// Lets the tenant's users enter the directory, and nobody else: all users, or those that it lists.
fn admit_users(dir: &OwnedFd, tenant: &TenantConfig) -> io::Result<()> {
    let Some(uids) = &tenant.uids else {
        match rustix::fs::fremovexattr(dir, ACCESS_LIST) {
            // A file system without access control lists has none to remove.
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(why) => return Err(why.into()),
        }
        return Ok(rustix::fs::fchmod(dir, OPEN_DIRECTORY_MODE)?);
    };
    let mut most = MAX_LISTED_USERS;
    loop {
        let list = access_list(&listed_users(uids, most));
        match rustix::fs::fsetxattr(dir, ACCESS_LIST, &list, XattrFlags::empty()) {
            // ext4 has space for about 500 users, tmpfs for all.
            Err(Errno::NOSPC) if most > 1 => most /= 2,
            done => return Ok(done?),
        }
    }
}

/// Returns the users of these ranges in order, but at most `most`: of the longest ranges only the first ones. A range
/// of 65,536 users is usually a container's user namespace, and its first users are those in use.
fn listed_users(uids: &[RangeInclusive<u32>], most: usize) -> BTreeSet<u32> {
    let mut ranges = uids.to_vec();
    ranges.sort_by_key(|range| range.end().saturating_sub(*range.start()));
    let mut users = BTreeSet::new();
    for user in ranges.into_iter().flatten().filter(|user| *user != NO_USER) {
        users.insert(user);
        if users.len() == most {
            break;
        }
    }
    users
}

/// User of the list's entries that name none. The kernel takes it for no user.
const NO_USER: u32 = u32::MAX;
/// Name of the extended attribute with a file's access control list.
const ACCESS_LIST: &str = "system.posix_acl_access";
/// Most users in a list: the kernel bounds an extended attribute to 64 KiB, an entry has 8 bytes, and four entries and
/// the version are always there.
const MAX_LISTED_USERS: usize = 65_536 / 8 - 5;

/// Encodes the list of a directory that its owner may change and these users may enter. The format is Linux's
/// `posix_acl_xattr_header` and its entries, all in little endian: version 2, then tag, permissions and user of each.
fn access_list(users: &BTreeSet<u32>) -> Vec<u8> {
    const OWNER: u16 = 0x01;
    const USER: u16 = 0x02;
    const GROUP: u16 = 0x04;
    const MASK: u16 = 0x10;
    const OTHERS: u16 = 0x20;
    let users = users.iter().map(|user| (USER, 0o5, *user));
    let entries = std::iter::once((OWNER, 0o7, NO_USER)).chain(users);
    let entries = entries.chain([(GROUP, 0, NO_USER), (MASK, 0o5, NO_USER), (OTHERS, 0, NO_USER)]);
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, user) in entries {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(permissions));
        bytes.extend(user.to_le_bytes());
    }
    bytes
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let dir = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | READ_SAFELY, Mode::empty())?;
    let stat = rustix::fs::fstat(&dir)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & WRITABLE_BY_OTHERS != 0 {
        let why = format!("{} is not a directory that the daemon's user alone may write", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(dir)
}

/// Creates the tenant's ledgers of these devices, and their directory.
///
/// So a container engine can mount the directory before the first member joins, and a member that starts while no
/// daemon runs finds its ledger. A failure is logged here, and later joins are refused.
pub fn prepare<'a>(tenant: &TenantConfig, devices: impl Iterator<Item = &'a str>) {
    let mut ledgers = devices.filter_map(|device| KeptLedger::of(tenant, device));
    let made = make_directory(tenant).and_then(|_| ledgers.try_for_each(|ledger| ledger.open_or_make().map(drop)));
    if let Err(why) = made {
        let dir = directory(&tenant.socket);
        warn!(tenant = %tenant.name, dir = %dir.display(), %why, "the ledgers of a tenant cannot be kept; its members are refused while that lasts");
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
    use std::fs::Permissions;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use shim_sys::lock;
    use vgpu_core::memory::ledger::parse_ledger;

    use super::*;

    fn tenant(dir: &Path) -> TenantConfig {
        TenantConfig::on_all_devices("a", dir.join("vgpud.sock"), None, None)
    }

    fn kept(tenant: &TenantConfig) -> KeptLedger<'_> {
        KeptLedger::of(tenant, "gpu-00AA").unwrap()
    }

    fn inode(file: &OwnedFd) -> u64 {
        rustix::fs::fstat(file).unwrap().st_ino
    }

    #[test]
    fn a_ledger_is_made_once_and_found_by_every_spelling_of_its_device() {
        let dir = tempfile::tempdir().unwrap();
        let tenant = tenant(dir.path());
        prepare(&tenant, std::iter::once("gpu-00AA"));
        let made = kept(&tenant).open().unwrap();
        let again = KeptLedger::of(&tenant, "GPU-00aa").unwrap();
        assert_eq!(inode(&made), inode(&again.open_or_make().unwrap()));
        let bytes = fs::read(again.path()).unwrap();
        assert_eq!(bytes.len(), LEDGER_BYTES);
        assert!(parse_ledger(&bytes).is_some(), "a ledger of this version");
        assert_eq!(fs::read_dir(directory(&tenant.socket)).unwrap().count(), 1, "nothing is left under another name");
        remove_all(&tenant.socket);
        assert!(!directory(&tenant.socket).exists());
    }

    #[test]
    fn a_directory_that_others_may_write_holds_no_ledger() {
        let dir = tempfile::tempdir().unwrap();
        let tenant = tenant(dir.path());
        let made = directory(&tenant.socket);
        fs::create_dir(&made).unwrap();
        fs::set_permissions(&made, Permissions::from_mode(0o775)).unwrap();
        let why = kept(&tenant).open_or_make().unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::PermissionDenied);
        assert!(why.to_string().contains("alone may write"), "{why}");
        fs::remove_dir(&made).unwrap();
        std::os::unix::fs::symlink(dir.path(), &made).unwrap();
        assert!(kept(&tenant).open_or_make().is_err(), "no link is followed");
        remove_all(&tenant.socket);
        assert!(dir.path().exists() && made.symlink_metadata().is_ok());
    }

    fn begin_member(ledger: &OwnedFd) {
        assert!(lock::try_lock(ledger.as_fd(), 4096).unwrap());
    }

    /// Closing the file would not end the lock while a child that another test starts still has a copy of the
    /// descriptor.
    fn end_member(ledger: &OwnedFd) {
        lock::unlock(ledger.as_fd(), 4096).unwrap();
    }

    #[test]
    fn a_file_that_is_no_ledger_any_more_is_replaced_when_no_process_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let tenant = tenant(dir.path());
        let destroy: [fn(&File); 3] = [
            |file| file.set_len(4096).unwrap(),
            |file| file.set_len(0).unwrap(),
            |mut file| file.write_all(&[0; 64]).unwrap(),
        ];
        for destroy in destroy {
            let member = kept(&tenant).open_or_make().unwrap();
            begin_member(&member);
            destroy(&File::from(kept(&tenant).open().unwrap()));
            let refused = kept(&tenant).open_or_make().unwrap_err();
            assert!(refused.to_string().contains("overwritten"), "{refused}");
            end_member(&member);
            let fresh = kept(&tenant).open_or_make().unwrap();
            assert!(kept(&tenant).is_whole(&fresh));
            assert_eq!(inode(&fresh), inode(&kept(&tenant).open_or_make().unwrap()), "one that is whole stays");
        }
    }

    #[test]
    fn a_ledger_of_the_next_version_is_named_while_a_process_holds_it_and_replaced_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let tenant = tenant(dir.path());
        let member = kept(&tenant).open_or_make().unwrap();
        begin_member(&member);
        let next = LEDGER_VERSION + 1;
        assert_eq!(rustix::io::pwrite(&member, &next.to_le_bytes(), 8), Ok(4));
        let refused = kept(&tenant).open_or_make().unwrap_err();
        let words = format!("it has version {next}, this vgpud writes version {LEDGER_VERSION}; end all processes");
        assert!(refused.to_string().starts_with(&words), "{refused}");
        let mut begin = [0; BEGIN];
        rustix::io::pread(&member, &mut begin, 0).unwrap();
        assert_eq!(ledger_version(&begin), Some(next), "it is left as it is");
        end_member(&member);
        let fresh = kept(&tenant).open_or_make().unwrap();
        assert!(kept(&tenant).is_whole(&fresh));
    }

    #[test]
    fn every_user_may_open_the_ledger_whatever_the_umask() {
        let dir = tempfile::tempdir().unwrap();
        let tenant = tenant(dir.path());
        let file = kept(&tenant).open_or_make().unwrap();
        assert_eq!(File::from(file).metadata().unwrap().mode() & 0o777, 0o666);
        assert_eq!(mode(&tenant), 0o755);
    }

    fn mode(tenant: &TenantConfig) -> u32 {
        fs::metadata(directory(&tenant.socket)).unwrap().mode() & 0o777
    }

    /// The kernel shows the list's mask as the group's permissions, and refuses a list that it cannot read.
    #[test]
    fn the_directory_follows_the_users_that_the_tenant_lists() {
        let dir = tempfile::tempdir().unwrap();
        let mut tenant = tenant(dir.path());
        let mut mode_for = |uids: Option<Vec<RangeInclusive<u32>>>| {
            tenant.uids = uids;
            prepare(&tenant, std::iter::empty());
            mode(&tenant)
        };
        assert_eq!(mode_for(Some(vec![1000..=1003, 7..=7, 1003..=1004])), 0o750);
        assert_eq!(mode_for(None), 0o755);
        assert_eq!(mode_for(Some(Vec::new())), 0o750, "nobody is listed");
        assert_eq!(mode_for(Some(vec![100_000..=165_535])), 0o750, "more than a list can hold");
        assert_eq!(mode_for(Some(vec![0..=u32::MAX])), 0o750);
    }

    #[test]
    fn the_first_users_of_a_long_range_are_listed_and_all_of_a_short_one() {
        let users = listed_users(&[100_000..=165_535, 7..=7, u32::MAX - 1..=u32::MAX], MAX_LISTED_USERS);
        assert_eq!(users.len(), MAX_LISTED_USERS);
        assert!([7, 100_000, 101_000, u32::MAX - 1].iter().all(|user| users.contains(user)));
        assert!(![100_000 + 65_534, u32::MAX].iter().any(|user| users.contains(user)));
    }
}
