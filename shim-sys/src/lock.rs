//! Locks on bytes of a file, which the kernel releases when their last holder ends, by any cause.
//!
//! They are open-file-description locks. They belong to the open file description: all threads of a process share
//! them, and a forked child keeps them only while it keeps the descriptor. A second open file description in the same
//! process counts as another holder. Nothing depends on a pid.

use std::os::fd::{AsRawFd, BorrowedFd};

#[allow(clippy::cast_possible_truncation)] // constants of one digit
fn lock_request(kind: libc::c_int, byte: u64, length: libc::off_t) -> libc::flock {
    // SAFETY: flock is a plain C struct for which all zeroes is a valid value (and l_pid must be zero).
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte as libc::off_t;
    lock.l_len = length;
    lock
}

fn control_lock(file: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> std::io::Result<()> {
    // SAFETY: the descriptor is open for the borrow and `lock` is a valid flock.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, core::ptr::from_mut(lock)) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Takes the lock on `byte` if nobody else has it; `Ok(false)`: somebody has.
///
/// # Errors
/// The kernel's error for the descriptor; never "somebody has it".
pub fn try_lock(file: BorrowedFd<'_>, byte: u64) -> std::io::Result<bool> {
    try_lock_range(file, byte, 1)
}

/// Takes the locks on all bytes of the file at once, if nobody has any. Success shows that the file is unused.
///
/// # Errors
/// The kernel's error for the descriptor; never "somebody has one".
pub fn try_lock_all(file: BorrowedFd<'_>) -> std::io::Result<bool> {
    try_lock_range(file, 0, 0) // a length of 0 means up to the end, at any size
}

fn try_lock_range(file: BorrowedFd<'_>, byte: u64, length: libc::off_t) -> std::io::Result<bool> {
    try_range(file, libc::F_WRLCK as libc::c_int, byte, length)
}

fn try_range(file: BorrowedFd<'_>, kind: libc::c_int, byte: u64, length: libc::off_t) -> std::io::Result<bool> {
    loop {
        match control_lock(file, libc::F_OFD_SETLK, &mut lock_request(kind, byte, length)) {
            Ok(()) => return Ok(true),
            Err(e) => match e.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN | libc::EACCES) => return Ok(false),
                _ => return Err(e),
            },
        }
    }
}

/// Takes a read lock on `byte` if nobody else has a write lock. Several open file descriptions may hold it. Our own
/// write lock is converted to a read lock atomically.
///
/// # Errors
/// The kernel's error for the descriptor; never "somebody has it".
pub fn try_hold(file: BorrowedFd<'_>, byte: u64) -> std::io::Result<bool> {
    try_range(file, libc::F_RDLCK as libc::c_int, byte, 1)
}

/// Releases the lock on `byte`.
///
/// # Errors
/// The kernel's error for the descriptor.
pub fn unlock(file: BorrowedFd<'_>, byte: u64) -> std::io::Result<()> {
    control_lock(file, libc::F_OFD_SETLK, &mut lock_request(libc::F_UNLCK as libc::c_int, byte, 1))
}

/// True if another open file description holds a lock on `byte`. Our own does not count.
///
/// # Errors
/// The kernel's error for the descriptor.
pub fn held_by_another(file: BorrowedFd<'_>, byte: u64) -> std::io::Result<bool> {
    held_in(file, byte, 1)
}

/// True if another open file description holds any lock on the file.
///
/// # Errors
/// The kernel's error for the descriptor.
pub fn any_held_by_another(file: BorrowedFd<'_>) -> std::io::Result<bool> {
    held_in(file, 0, 0)
}

fn held_in(file: BorrowedFd<'_>, byte: u64, length: libc::off_t) -> std::io::Result<bool> {
    let mut lock = lock_request(libc::F_WRLCK as libc::c_int, byte, length);
    control_lock(file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK as libc::c_int)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn readers_share_a_byte_and_the_last_of_them_may_write() {
        let path = std::env::temp_dir().join(format!("vgpu-read-lock-{}", std::process::id()));
        let open = || std::fs::File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let (first, second, third) = (open(), open(), open());
        assert!(try_lock(first.as_fd(), 7).unwrap());
        assert!(!try_hold(second.as_fd(), 7).unwrap(), "somebody writes");
        assert!(try_hold(first.as_fd(), 7).unwrap(), "the writer becomes a reader");
        assert!(try_hold(second.as_fd(), 7).unwrap());
        assert!(!try_lock(first.as_fd(), 7).unwrap() && !try_lock(third.as_fd(), 7).unwrap());
        drop(second);
        assert!(!try_lock(third.as_fd(), 7).unwrap(), "a refused writer is a reader still");
        assert!(try_lock(first.as_fd(), 7).unwrap(), "the last reader");
        assert!(!try_hold(third.as_fd(), 7).unwrap());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn one_holder_at_a_time_and_death_of_the_file_frees_it() {
        let path = std::env::temp_dir().join(format!("vgpu-lock-{}", std::process::id()));
        let open = || std::fs::File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let (first, second) = (open(), open());
        assert!(try_lock(first.as_fd(), 7).unwrap());
        assert!(!try_lock(second.as_fd(), 7).unwrap());
        assert!(try_lock(second.as_fd(), 8).unwrap(), "another byte is another lock");
        assert!(held_by_another(second.as_fd(), 7).unwrap());
        assert!(!held_by_another(first.as_fd(), 7).unwrap());
        drop(first);
        assert!(!held_by_another(second.as_fd(), 7).unwrap());
        assert!(try_lock(second.as_fd(), 7).unwrap());
        assert!(!try_lock_all(open().as_fd()).unwrap(), "somebody has a byte of it");
        assert!(any_held_by_another(open().as_fd()).unwrap() && !any_held_by_another(second.as_fd()).unwrap());
        drop(second);
        assert!(!any_held_by_another(open().as_fd()).unwrap());
        assert!(try_lock_all(open().as_fd()).unwrap());
        std::fs::remove_file(path).unwrap();
    }
}
