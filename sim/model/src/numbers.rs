//! Numbers of processes in other pid namespaces. The model tells a process by its number in the caller's namespace, as
//! the driver's kernel module does.
//!
//! A process in a container does not know its number on the host, so it cannot write that number down. But the kernel
//! translates the owner of a record lock for each process that asks about the lock. So each process holds a record lock
//! on a file of its own, `process.SLOT` next to the state.
//!
//! A record lock ends when its process closes any descriptor of the file. So no process opens its own file twice. The
//! state file would not do: the simulated CUDA and NVML of one process open and close it independently.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Begin of the files' names.
pub(crate) const MARK_PREFIX: &str = "process.";

/// The pid namespace of this process: the inode of its file; 0 without /proc.
pub(crate) fn own_namespace() -> u32 {
    let inode = std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino());
    u32::try_from(inode).unwrap_or(0)
}

/// The file whose lock shows the process in `slot`.
pub(crate) fn mark_path(dir: &Path, slot: usize) -> PathBuf {
    dir.join(format!("{MARK_PREFIX}{slot}"))
}

/// Opens the file of `slot`, to be locked.
pub(crate) fn open_mark(dir: &Path, slot: usize) -> Result<File, Error> {
    let (path, mut options) = (mark_path(dir, slot), OpenOptions::new());
    match options.read(true).write(true).open(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let file = options.create_new(true).open(&path)?;
            // The slot's next process may be another user's.
            file.set_permissions(Permissions::from_mode(0o666))?;
            Ok(file)
        }
        opened => opened,
    }
}

/// A record lock on the whole file.
fn whole_file() -> libc::flock {
    // SAFETY: an all-zero flock is a valid value of this plain structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::c_short::try_from(libc::F_WRLCK).unwrap_or(0);
    lock
}

/// Locks the slot's file for this process. The lock ends with the first descriptor of the file that it closes.
pub(crate) fn lock_mark(mark: &File) -> Result<(), Error> {
    let lock = whole_file();
    // SAFETY: an open descriptor and a live structure.
    let rc = unsafe { libc::fcntl(mark.as_raw_fd(), libc::F_SETLK, &raw const lock) };
    if rc == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// The number of the process that locked the file of `slot`, in this process's namespace. `None`: it has none there.
pub(crate) fn number_of_holder(dir: &Path, slot: usize) -> Option<u32> {
    let file = File::open(mark_path(dir, slot)).ok()?;
    let mut lock = whole_file();
    // SAFETY: an open descriptor and a live structure for the kernel to fill.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    let is_held = rc == 0 && i32::from(lock.l_type) != libc::F_UNLCK;
    u32::try_from(lock.l_pid).ok().filter(|pid| is_held && *pid > 0)
}
