//! Shares a page of atomics between processes through a file.
//!
//! All blocks of the file are allocated when it is created, so that a full file system is an error here and not a
//! SIGBUS later. It is opened without following links, and is close-on-exec. A file that this user did not make is
//! refused. The page's type defines its contents.

use crate::lock;
use core::sync::atomic::{AtomicI32, Ordering};
use std::ffi::{CStr, CString};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A type that may be mapped onto shared memory.
///
/// # Safety
/// All fields are atomics (or never-read padding), every bit pattern is valid, and the type has no `Drop`.
pub unsafe trait Page: Sync {}

/// A [`Page`] mapped from a file, shared with every process that maps the same file, and locks on the file's bytes.
///
/// The program may close any descriptor, including ours, and open another file under its number. Three rules follow:
/// - The page is mapped through a separate open file description, which holds no locks.
/// - A second mapping, which a forked child does not inherit, keeps the open file description with the locks alive.
///   So the locks end with the process or with [`SharedFile::drop`], not with a descriptor.
/// - A descriptor is checked before it is used. One that no longer refers to our file is never locked or closed, but
///   replaced.
pub struct SharedFile<T: Page + 'static> {
    path: CString,
    access: FileAccess,
    identity: SharedFileIdentity,
    /// A descriptor of the open file description that holds the locks, or its replacement.
    file: AtomicI32,
    anchor: *mut libc::c_void,
    page: &'static T,
}

// SAFETY: the anchor is an address that is only ever unmapped, once; everything else is Sync by itself.
unsafe impl<T: Page> Sync for SharedFile<T> {}
// SAFETY: as above.
unsafe impl<T: Page> Send for SharedFile<T> {}

/// Identity of a file, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SharedFileIdentity {
    device: libc::dev_t,
    inode: libc::ino_t,
}

/// Users that may open the file, apart from the one that creates it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileAccess {
    /// Mode 0600: this user only.
    Owner,
    /// Mode 0666: every user of the container.
    Everybody,
    /// Opened by its name, and any user may own it. A trusted process made the file completely, in a directory that
    /// only its user writes. This process never creates or enlarges it.
    Given,
    /// As `Given`, but the path is a descriptor's in /proc/self/fd, and the file's names do not matter.
    HandedOver,
}

impl FileAccess {
    /// True if this process creates the file when it does not exist.
    fn may_make(self) -> bool {
        matches!(self, Self::Owner | Self::Everybody)
    }
}

/// Lowest number for our descriptors: low numbers belong to the program, and some of them have a meaning.
const LOWEST_DESCRIPTOR: libc::c_int = 256;

/// Moves a new descriptor to a high number, as far as the process's limit allows, and never below 3.
///
/// # Errors
/// The kernel's error; the descriptor is then closed.
pub fn out_of_the_way(fresh: OwnedFd) -> std::io::Result<OwnedFd> {
    for lowest in [LOWEST_DESCRIPTOR, 3] {
        // SAFETY: the descriptor is open; the copy is owned by nobody else.
        let raw = unsafe { libc::fcntl(fresh.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) };
        if raw >= 0 {
            // SAFETY: just made, owned by nobody else.
            return Ok(unsafe { OwnedFd::from_raw_fd(raw) });
        }
    }
    Err(Error::last_os_error())
}

const OPEN: libc::c_int = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;

/// As [`open`], but follows the link that is the path of a file passed on.
fn open_again(path: &CStr, access: FileAccess) -> std::io::Result<OwnedFd> {
    open_by(path, if access == FileAccess::HandedOver { OPEN & !libc::O_NOFOLLOW } else { OPEN }, 0)
}

fn open(path: &CStr, flags: libc::c_int, mode: libc::c_uint) -> std::io::Result<OwnedFd> {
    open_by(path, OPEN | flags, mode)
}

fn open_by(path: &CStr, flags: libc::c_int, mode: libc::c_uint) -> std::io::Result<OwnedFd> {
    // SAFETY: a C string.
    match unsafe { libc::open(path.as_ptr(), flags, mode) } {
        raw if raw >= 0 => {
            // SAFETY: just opened, owned by nobody else.
            out_of_the_way(unsafe { OwnedFd::from_raw_fd(raw) })
        }
        _ => Err(Error::last_os_error()),
    }
}

fn file_status(descriptor: libc::c_int) -> std::io::Result<libc::stat> {
    // SAFETY: all zeroes is a valid stat, which fstat fills; a number that is not open is an error.
    unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        if libc::fstat(descriptor, &raw mut stat) == 0 { Ok(stat) } else { Err(Error::last_os_error()) }
    }
}

impl SharedFileIdentity {
    fn of_descriptor(descriptor: libc::c_int) -> Option<Self> {
        file_status(descriptor).ok().map(|stat| Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

fn map(file: &OwnedFd, size: usize, protection: libc::c_int) -> std::io::Result<*mut libc::c_void> {
    // SAFETY: a fresh shared mapping of an open file, at an address of the kernel's choice.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), size, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(at) }
}

/// True if this process can open `path` to read and write, and `file` is what it opens.
pub fn leads_to(path: &Path, file: BorrowedFd<'_>) -> bool {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let there = open(&name, 0, 0).ok().and_then(|there| SharedFileIdentity::of_descriptor(there.as_raw_fd()));
    there.is_some() && there == SharedFileIdentity::of_descriptor(file.as_raw_fd())
}

/// Removes a file on which nobody holds a lock, if `over` returns true. Returns true if it did. A process that joins
/// such a file takes its lock and then checks that the file still has its name. So no process continues to use a
/// removed file.
///
/// # Errors
/// The kernel's error.
pub fn remove_unused(name: &CStr, over: impl FnOnce(BorrowedFd<'_>, &libc::stat) -> bool) -> std::io::Result<bool> {
    let file = open(name, 0, 0)?;
    let stat = file_status(file.as_raw_fd())?;
    if !lock::try_lock_all(file.as_fd())? || !over(file.as_fd(), &stat) {
        return Ok(false);
    }
    // The name may refer to a new file by now: remove it only if it still names the locked file.
    let named = open(name, 0, 0)?;
    let is_same = SharedFileIdentity::of_descriptor(named.as_raw_fd())
        == Some(SharedFileIdentity { device: stat.st_dev, inode: stat.st_ino });
    // SAFETY: a C string.
    if is_same && unsafe { libc::unlink(name.as_ptr()) } != 0 {
        return Err(Error::last_os_error());
    }
    Ok(is_same)
}

/// Checks that this process may create a file of `size` bytes. Exceeding the limit would send it SIGXFSZ.
fn check_file_size_limit(size: u64) -> std::io::Result<()> {
    let limit = file_size_limit();
    if limit >= size {
        return Ok(());
    }
    Err(Error::other(format!("RLIMIT_FSIZE is {limit} bytes and {size} are needed; raise it (ulimit -f)")))
}

/// `RLIMIT_FSIZE`: the largest file, in bytes, that this process may write.
fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    // SAFETY: a local of the type that it fills.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// True if a write to this descriptor cannot cause SIGXFSZ: it is not a regular file, or the file may still grow.
pub fn may_write(descriptor: libc::c_int) -> bool {
    let Ok(stat) = file_status(descriptor) else { return true };
    // SAFETY: queries the position of the next write; a descriptor without a position is an error.
    let at = unsafe { libc::lseek(descriptor, 0, libc::SEEK_CUR) };
    stat.st_mode & libc::S_IFMT != libc::S_IFREG || stat.st_size.max(at).cast_unsigned() < file_size_limit()
}

impl<T: Page + 'static> SharedFile<T> {
    /// Maps the file at `path`; creates it with all zeroes if it does not exist.
    ///
    /// # Errors
    /// - `PermissionDenied`: it belongs to another user and is not open to us.
    /// - `InvalidData`: it is not a regular file, its owner is not allowed, or it has another size.
    /// - `Other`: it does not exist, and `RLIMIT_FSIZE` is too small to create it.
    /// - `StorageFull` and others: the kernel's error.
    pub fn open(path: &Path, access: FileAccess) -> std::io::Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::from(ErrorKind::InvalidInput))?;
        loop {
            if let Some(file) = Self::open_once(&name, access)? {
                return Ok(file);
            }
        }
    }

    /// `None`: the file was removed, or replaced by a new one, in the meantime.
    fn open_once(name: &CStr, access: FileAccess) -> std::io::Result<Option<Self>> {
        let size = size_of::<T>();
        let mode: libc::c_uint = if access == FileAccess::Everybody { 0o666 } else { 0o600 };
        // In a sticky world-writable directory (/dev/shm, /tmp) the kernel may refuse O_CREAT on another user's file
        // although opening is allowed (fs.protected_regular). So try without O_CREAT first.
        let file = match open_again(name, access) {
            Err(e) if e.kind() == ErrorKind::NotFound && access.may_make() => {
                check_file_size_limit(size as u64)?;
                open(name, libc::O_CREAT, mode)?
            }
            other => other?,
        };
        let stat = file_status(file.as_raw_fd())?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Error::new(ErrorKind::InvalidData, "is not a plain file"));
        }
        // SAFETY: no preconditions.
        let uid = unsafe { libc::geteuid() };
        if stat.st_uid != uid && stat.st_uid != 0 && access == FileAccess::Owner {
            return Err(Error::new(ErrorKind::InvalidData, "belongs to another user"));
        }
        if stat.st_uid == uid && access == FileAccess::Everybody && stat.st_mode & 0o666 != 0o666 {
            // The process's umask removed bits at creation; the umask belongs to the program and stays unchanged.
            // SAFETY: the descriptor is open.
            if unsafe { libc::fchmod(file.as_raw_fd(), mode) } != 0 {
                return Err(Error::last_os_error());
            }
        }
        let may_grow = stat.st_size == 0 && access.may_make();
        if !may_grow && usize::try_from(stat.st_size) != Ok(size) {
            return Err(Error::new(ErrorKind::InvalidData, "has another size: left by another version?"));
        }
        // An empty file gets its size here: its creator may have died before it set one.
        if may_grow {
            check_file_size_limit(size as u64)?;
        }
        // Two creators may both do this, since it only adds zeroes.
        // SAFETY: the descriptor is open.
        let code = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, size as libc::off_t) };
        if code != 0 {
            return Err(Error::from_raw_os_error(code));
        }
        let apart = match open_again(name, access) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let identity = SharedFileIdentity { device: stat.st_dev, inode: stat.st_ino };
        if SharedFileIdentity::of_descriptor(apart.as_raw_fd()) != Some(identity) {
            return Ok(None);
        }
        let page = map(&apart, size, libc::PROT_READ | libc::PROT_WRITE)?;
        let anchor = map(&file, ANCHOR_BYTES, libc::PROT_NONE)?;
        // SAFETY: the anchor is ours, just mapped.
        unsafe { libc::madvise(anchor, ANCHOR_BYTES, libc::MADV_DONTFORK) };
        Ok(Some(Self {
            path: name.to_owned(),
            access,
            identity,
            file: AtomicI32::new(file.into_raw_fd()),
            anchor,
            // SAFETY: the mapping has the size of T, is page-aligned, is never unmapped (hence 'static), and T is a
            // Page: all atomics, any bits valid.
            page: unsafe { &*page.cast::<T>() },
        }))
    }

    /// True if `other` is the same file, under any name or descriptor.
    pub fn is_same(&self, other: BorrowedFd<'_>) -> bool {
        SharedFileIdentity::of_descriptor(other.as_raw_fd()) == Some(self.identity)
    }

    /// The page. It stays mapped until the process ends, even after this value is dropped.
    pub fn shared_page(&self) -> &'static T {
        self.page
    }

    /// True if the file no longer has a name, so that other processes open another file at its path. Always false for
    /// a file that was passed on, since its names do not matter.
    ///
    /// # Cost
    /// One system call.
    pub fn is_unlinked(&self) -> bool {
        if self.access == FileAccess::HandedOver {
            return false;
        }
        let stat = self.lock_file().and_then(|file| file_status(file.as_raw_fd()).ok());
        stat.is_none_or(|stat| stat.st_nlink == 0)
    }

    /// The file, for locks on its bytes. `None`: the program closed our descriptor, and the file cannot be opened
    /// again.
    ///
    /// # Cost
    /// One system call.
    pub fn lock_file(&self) -> Option<BorrowedFd<'_>> {
        let mut descriptor = self.file.load(Ordering::Acquire);
        if SharedFileIdentity::of_descriptor(descriptor) != Some(self.identity) {
            let again = open_again(&self.path, self.access).ok()?;
            if SharedFileIdentity::of_descriptor(again.as_raw_fd()) != Some(self.identity) {
                return None;
            }
            let fresh = again.into_raw_fd();
            match self.file.compare_exchange(descriptor, fresh, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => descriptor = fresh,
                Err(theirs) => {
                    // SAFETY: our own fresh descriptor; another thread was faster.
                    unsafe { libc::close(fresh) };
                    descriptor = theirs;
                }
            }
        }
        // SAFETY: open, ours a moment ago, and never closed by us while this value lives.
        Some(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    fn close(&mut self) {
        let descriptor = self.file.swap(-1, Ordering::AcqRel);
        if SharedFileIdentity::of_descriptor(descriptor) == Some(self.identity) {
            // SAFETY: ours; if the program reused the number, it names another file and is left alone.
            unsafe { libc::close(descriptor) };
        }
    }

    /// In a forked child: closes the inherited descriptor. The anchor stays, since the child did not inherit it.
    pub fn give_up_inherited(mut self) {
        self.close();
        core::mem::forget(self);
    }
}

/// Bytes of the mapping that keeps the locks.
const ANCHOR_BYTES: usize = 4096;

impl<T: Page + 'static> Drop for SharedFile<T> {
    fn drop(&mut self) {
        self.close();
        // SAFETY: mapped by `open_once` in this process, unmapped here only.
        unsafe { libc::munmap(self.anchor, ANCHOR_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::AtomicU64;

    #[repr(C)]
    struct Words([AtomicU64; 512]);
    // SAFETY: atomics only.
    unsafe impl Page for Words {}

    fn place(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("vgpu-shared-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn two_openers_see_one_page() {
        let path = place("two");
        let a = SharedFile::<Words>::open(&path, FileAccess::Owner).unwrap();
        let b = SharedFile::<Words>::open(&path, FileAccess::Owner).unwrap();
        a.shared_page().0[3].store(42, Ordering::SeqCst);
        assert_eq!(b.shared_page().0[3].load(Ordering::SeqCst), 42);
        assert!(!a.is_unlinked());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(path).unwrap();
        assert!(a.is_unlinked());
    }

    #[test]
    fn a_file_that_was_handed_over_is_joined_by_its_descriptor_and_never_enlarged() {
        let path = place("handed");
        let made = SharedFile::<Words>::open(&path, FileAccess::Everybody).unwrap();
        made.shared_page().0[7].store(42, Ordering::SeqCst);
        let handed = made.lock_file().unwrap().try_clone_to_owned().unwrap();
        let name = |file: &OwnedFd| std::path::PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let joined = SharedFile::<Words>::open(&name(&handed), FileAccess::HandedOver).unwrap();
        assert_eq!(joined.shared_page().0[7].load(Ordering::SeqCst), 42);
        assert!(joined.is_same(handed.as_fd()) && made.is_same(handed.as_fd()));
        assert!(crate::lock::try_lock(made.lock_file().unwrap(), 9).unwrap());
        assert!(!crate::lock::try_lock(joined.lock_file().unwrap(), 9).unwrap(), "an open file of its own");
        std::fs::remove_file(&path).unwrap();
        assert!(made.is_unlinked() && !joined.is_unlinked(), "its names do not matter");
        let other = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let refused = SharedFile::<Words>::open(&name(&other.into()), FileAccess::HandedOver).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "somebody else's file stays as it is");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_given_by_name_is_never_made_or_enlarged_and_another_in_its_place_is_noticed() {
        let path = place("given");
        let open = || SharedFile::<Words>::open(&path, FileAccess::Given);
        assert_eq!(open().err().unwrap().kind(), ErrorKind::NotFound);
        std::fs::File::create(&path).unwrap();
        assert_eq!(open().err().unwrap().kind(), ErrorKind::InvalidData);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        std::fs::remove_file(&path).unwrap();
        let made = SharedFile::<Words>::open(&path, FileAccess::Everybody).unwrap();
        let given = open().unwrap();
        assert!(given.is_same(made.lock_file().unwrap()) && !given.is_unlinked());
        assert!(
            leads_to(&path, made.lock_file().unwrap())
                && !leads_to(Path::new("/etc/passwd"), made.lock_file().unwrap())
        );
        std::fs::remove_file(&path).unwrap();
        assert!(given.is_unlinked());
        symlink("/etc/passwd", &path).unwrap();
        assert!(open().is_err(), "no link is followed");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_lock_outlives_its_descriptor_and_a_strangers_file_is_left_alone() {
        let (path, other) = (place("closed"), place("stranger"));
        let a = SharedFile::<Words>::open(&path, FileAccess::Owner).unwrap();
        let b = SharedFile::<Words>::open(&path, FileAccess::Owner).unwrap();
        assert!(crate::lock::try_lock(a.lock_file().unwrap(), 9).unwrap());
        let number = a.lock_file().unwrap().as_raw_fd();
        assert!(number >= 3, "0, 1 and 2 are the program's");
        // A program that closes all descriptors it does not know, and then opens its own files.
        let stranger = std::fs::File::create(&other).unwrap();
        // SAFETY: both numbers are open.
        assert_eq!(unsafe { libc::dup2(stranger.as_raw_fd(), number) }, number);
        assert!(!crate::lock::try_lock(b.lock_file().unwrap(), 9).unwrap(), "the lock is still held");
        let replaced = a.lock_file().unwrap().as_raw_fd();
        assert_ne!(replaced, number);
        assert!(crate::lock::try_lock(a.lock_file().unwrap(), 10).unwrap());
        assert!(!crate::lock::try_lock(b.lock_file().unwrap(), 10).unwrap(), "the replacement locks the same file");
        drop(a);
        assert!(crate::lock::try_lock(b.lock_file().unwrap(), 9).unwrap(), "the lock ends with its owner");
        // SAFETY: asks whether the number is open.
        assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0, "the stranger's descriptor is not ours to close");
        // SAFETY: the copy made above.
        unsafe { libc::close(number) };
        std::fs::remove_file(path).unwrap();
        std::fs::remove_file(other).unwrap();
    }

    #[test]
    fn a_lock_ends_with_its_owner_although_the_page_stays_mapped() {
        let path = place("lock");
        let (a, b) = (
            SharedFile::<Words>::open(&path, FileAccess::Owner).unwrap(),
            SharedFile::<Words>::open(&path, FileAccess::Owner).unwrap(),
        );
        let page = a.shared_page();
        assert!(crate::lock::try_lock(a.lock_file().unwrap(), 9).unwrap());
        assert!(!crate::lock::try_lock(b.lock_file().unwrap(), 9).unwrap());
        drop(a);
        assert!(crate::lock::try_lock(b.lock_file().unwrap(), 9).unwrap());
        page.0[0].store(1, Ordering::SeqCst);
        assert_eq!(b.shared_page().0[0].load(Ordering::SeqCst), 1);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_link_a_directory_and_another_size_are_refused() {
        let path = place("link");
        symlink("/etc/passwd", &path).unwrap();
        assert!(SharedFile::<Words>::open(&path, FileAccess::Owner).is_err());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(SharedFile::<Words>::open(&path, FileAccess::Owner).is_err());
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, b"something else").unwrap();
        let error = SharedFile::<Words>::open(&path, FileAccess::Owner).err().unwrap();
        assert!(error.to_string().contains("another size"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"something else", "nothing of a stranger's is lost");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_common_file_is_common_whatever_the_umask() {
        let path = place("common");
        SharedFile::<Words>::open(&path, FileAccess::Everybody).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        std::fs::remove_file(path).unwrap();
    }
}
