//! Other processes that use the library, each with a socket to the test for numbers, names and descriptors.

use super::{library, open, quiet_children, set};
use libloading::os::unix::Library;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Serialises the tests of the file. A child that another test forks at the same time would inherit this test's
/// descriptors, and so keep its memory.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection between two processes.
pub struct Line(UnixStream);

impl Line {
    /// A connection without a peer, to replace one that was taken out.
    pub fn closed() -> Line {
        Line(UnixStream::pair().unwrap().0)
    }

    /// File descriptor of this end of the connection.
    pub fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Sends a number to the other process.
    pub fn tell(&mut self, number: u64) {
        self.0.write_all(&number.to_ne_bytes()).unwrap();
    }

    /// Waits for a number from the other process.
    pub fn number(&mut self) -> u64 {
        let mut b = [0; 8];
        self.0.read_exact(&mut b).expect("the other process ended");
        u64::from_ne_bytes(b)
    }

    /// Sends 64 bytes to the other process.
    pub fn tell_name(&mut self, name: &[u8; 64]) {
        self.0.write_all(name).unwrap();
    }

    /// Waits for 64 bytes from the other process.
    pub fn name(&mut self) -> [u8; 64] {
        let mut b = [0; 64];
        self.0.read_exact(&mut b).expect("the other process ended");
        b
    }

    /// Waits until the other end sends a byte, or is gone.
    pub fn listen(&mut self) {
        let _ = self.0.read_exact(&mut [0]);
    }

    /// Sends a file descriptor to the other process.
    pub fn tell_fd(&mut self, fd: i32) {
        let (mut byte, mut room) = ([1u8], Ancillary([0; 24]));
        let mut io = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let m = message(&mut io, &mut room);
        // SAFETY: the header points to live buffers of the stated sizes.
        unsafe {
            let c = libc::CMSG_FIRSTHDR(&raw const m);
            (*c).cmsg_level = libc::SOL_SOCKET;
            (*c).cmsg_type = libc::SCM_RIGHTS;
            (*c).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(c).cast::<i32>().write_unaligned(fd);
            assert_eq!(libc::sendmsg(self.0.as_raw_fd(), &raw const m, 0), 1);
        }
    }

    /// Waits for a file descriptor.
    pub fn fd(&mut self) -> OwnedFd {
        let (mut byte, mut room) = ([0u8], Ancillary([0; 24]));
        let mut io = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut m = message(&mut io, &mut room);
        // SAFETY: the header points to live buffers of the stated sizes; the received descriptor is ours.
        unsafe {
            assert_eq!(libc::recvmsg(self.0.as_raw_fd(), &raw mut m, libc::MSG_CMSG_CLOEXEC), 1);
            let c = libc::CMSG_FIRSTHDR(&raw const m);
            assert!(!c.is_null(), "no descriptor came");
            OwnedFd::from_raw_fd(libc::CMSG_DATA(c).cast::<i32>().read_unaligned())
        }
    }
}

/// Room for one descriptor, aligned as the kernel requires.
#[repr(align(8))]
struct Ancillary([u8; 24]);

fn message(bytes: &mut libc::iovec, room: &mut Ancillary) -> libc::msghdr {
    // SAFETY: an all-zero header is a valid value of this plain structure.
    let mut m: libc::msghdr = unsafe { std::mem::zeroed() };
    m.msg_iov = bytes;
    m.msg_iovlen = 1;
    m.msg_control = room.0.as_mut_ptr().cast();
    m.msg_controllen = 24;
    m
}

/// A process that uses the library on the machine in a directory.
pub struct Peer {
    pub pid: i32,
    pub line: Line,
    file: tempfile::NamedTempFile,
    over: bool,
}

impl Peer {
    /// Runs `f` in a child with the library loaded. [`Peer::end`] reports a panic in it.
    pub fn start(dir: &Path, f: impl FnOnce(&Library, &mut Line)) -> Peer {
        let path = library();
        let file = tempfile::NamedTempFile::new().unwrap();
        quiet_children();
        let (mine, theirs) = UnixStream::pair().unwrap();
        // SAFETY: the child uses its own copies only and leaves by _exit.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            drop(mine);
            let run = std::panic::AssertUnwindSafe(|| {
                // SAFETY: numbers only. The child is killed when the test's thread ends.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                set("VGPU_SIM_DIR", dir.to_str().unwrap());
                f(&open(path), &mut Line(theirs));
            });
            let code = match std::panic::catch_unwind(run) {
                Ok(()) => 0,
                Err(p) => {
                    let words = p.downcast_ref::<String>().cloned();
                    let words = words.or(p.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default();
                    let _ = std::fs::write(file.path(), words);
                    101
                }
            };
            // SAFETY: ends the child without the harness's handlers.
            unsafe { libc::_exit(code) }
        }
        Peer { pid, line: Line(mine), file, over: false }
    }

    /// Lets the process continue, waits for its end, and fails if it failed.
    pub fn end(mut self) {
        let _ = self.line.0.write_all(b".");
        let status = self.wait();
        assert_eq!(status, 0, "{}", std::fs::read_to_string(self.file.path()).unwrap());
    }

    /// Kills the other process.
    pub fn kill(mut self) {
        // SAFETY: our own child, not yet waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        self.wait();
    }

    fn wait(&mut self) -> i32 {
        let mut status = 0;
        self.over = true;
        // SAFETY: our own child, a live integer.
        unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        status
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if !self.over {
            // SAFETY: our own child, not yet waited for. The failing test prints the child's panic.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            self.wait();
            eprintln!("{}", std::fs::read_to_string(self.file.path()).unwrap_or_default());
        }
    }
}
