//! What the daemon allows: one question over its socket, at the first call, with a deadline.
//!
//! The connection stays open for the life of the process: its end is how the daemon sees a member's death. What was
//! answered stays in force whatever becomes of the daemon.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use shim_sys::shared_file::out_of_the_way;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use vgpu_core::wire::{Hello, MAX_LINE, Reply, Terms};

/// How long the daemon may take to answer.
const DEADLINE: Duration = Duration::from_secs(2);

/// The connection that tells the daemon we live; -1: none.
static CONNECTION: AtomicI32 = AtomicI32::new(-1);
/// The socket's inode, by which a descriptor that the program made its own is told from ours.
static INODE: AtomicU64 = AtomicU64::new(0);

fn inode(descriptor: i32) -> Option<u64> {
    // SAFETY: all zeroes is a valid stat, which fstat fills; a number that is not open is an error.
    unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        (libc::fstat(descriptor, &raw mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK)
            .then_some(stat.st_ino)
    }
}

/// Asks the daemon at `socket` for this process's terms.
///
/// # Errors
/// One line that names the socket and what went wrong: no daemon, no answer in time, its own refusal, or an answer that
/// is not understood.
pub fn ask(socket: &Path) -> Result<Terms, String> {
    let name = socket.display();
    let wrong = |what: String| format!("VGPU_SOCKET=\"{name}\": {what}");
    let deadline = Instant::now() + DEADLINE;
    let mut stream = connect(socket).map_err(|e| wrong(format!("the daemon cannot be reached: {e}")))?;
    let hello = Hello { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let line = hello.encode().map_err(|e| wrong(e.to_string()))?;
    stream
        .set_write_timeout(Some(DEADLINE))
        .and_then(|()| send(&stream, line.as_bytes()))
        .map_err(|e| wrong(format!("the daemon does not listen: {e}")))?;
    let mut answer = Vec::new();
    let mut buffer = [0; 512];
    while !answer.contains(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(wrong("the daemon did not answer within 2 s".to_owned()));
        }
        if answer.len() > MAX_LINE {
            return Err(wrong(format!("the daemon's answer is longer than {MAX_LINE} bytes")));
        }
        match stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut buffer)) {
            Ok(0) => return Err(wrong("the daemon hung up".to_owned())),
            Ok(n) => answer.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(e) => return Err(wrong(format!("the daemon's answer cannot be read: {e}"))),
        }
    }
    let line = answer.split(|&b| b == b'\n').next().unwrap_or_default();
    match Reply::decode(line) {
        Ok(Reply::Terms(terms)) => {
            let fd = out_of_the_way(stream.into()).map_err(|e| wrong(format!("no descriptor can be kept: {e}")))?;
            INODE.store(inode(fd.as_raw_fd()).unwrap_or(0), Relaxed);
            CONNECTION.store(fd.into_raw_fd(), Relaxed);
            Ok(terms)
        }
        Ok(Reply::Error(words)) => Err(wrong(format!("the daemon refused this process: {words}"))),
        Err(e) => Err(wrong(format!("the daemon's answer is not understood: {e}"))),
    }
}

/// Connects within the deadline: a daemon that hangs with a full queue would hold a plain `connect` for good.
#[allow(clippy::cast_possible_truncation)] // AF_UNIX is 1
fn connect(socket: &Path) -> std::io::Result<UnixStream> {
    // SAFETY: all zeroes is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = socket.as_os_str().as_bytes();
    if path.len() >= address.sun_path.len() || path.contains(&0) {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = from.cast_signed();
    }
    // SAFETY: no preconditions.
    let raw = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: just opened, owned by nobody else.
    let stream = unsafe { UnixStream::from_raw_fd(raw) };
    stream.set_write_timeout(Some(DEADLINE))?; // a unix socket's connect obeys it too
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_un>()).unwrap_or(0);
    // SAFETY: an open socket and a valid address of that length.
    while unsafe { libc::connect(raw, (&raw const address).cast(), length) } != 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(stream)
}

/// Sends a line without the signal that a plain write to a closed socket raises in the program.
fn send(stream: &UnixStream, line: &[u8]) -> std::io::Result<()> {
    // SAFETY: an open socket and a buffer of the given length.
    match unsafe { libc::send(stream.as_raw_fd(), line.as_ptr().cast(), line.len(), libc::MSG_NOSIGNAL) } {
        n if usize::try_from(n) == Ok(line.len()) => Ok(()),
        n if n < 0 => Err(std::io::Error::last_os_error()),
        _ => Err(std::io::ErrorKind::WriteZero.into()),
    }
}

/// Registers a forked child anew. The terms are the parent's already; a daemon that is gone changes nothing.
pub fn renew() {
    let inherited = CONNECTION.swap(-1, Relaxed);
    if inherited >= 0 {
        if inode(inherited) == Some(INODE.load(Relaxed)) {
            // SAFETY: our own descriptor, of which nobody else knows.
            unsafe { libc::close(inherited) };
        }
        if let Some(socket) = crate::environment::variable("VGPU_SOCKET") {
            let _ = ask(Path::new(&socket));
        }
    }
}
