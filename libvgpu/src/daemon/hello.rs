//! Talks to the daemon over its socket: hello, welcome and device joins.
//!
//! Each exchange has a deadline, and none runs under a lock of the governor. A daemon with another protocol or page
//! version counts as a refusal: a starting process reports it and fails, a running process keeps its last terms. Not
//! here: the meaning of the pages ([`super::session`]).

use super::session::{self, Session};
use crate::ffi::clock;
use crate::ffi::lock::Lock;
use crate::ledger::file::Ledger;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use shim_sys::descriptors;
use shim_sys::shared_file::out_of_the_way;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use vgpu_core::protocol::wire::{self, Hello, JoinDevice, MAX_LINE};

/// Time limit for the daemon's answer when the process starts.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Descriptor of the connection that shows the daemon that this process is alive; -1: none.
static CONNECTION: AtomicI32 = AtomicI32::new(-1);
/// Inode of the connection's socket. The program may close our descriptor and reuse its number; then the inode differs.
static SOCKET_INODE: AtomicU64 = AtomicU64::new(0);
/// Number of connections kept so far, which is the number of the current one.
static CONVERSATION_NUMBER: AtomicU64 = AtomicU64::new(0);
/// Allows one exchange with the daemon at a time.
static CONVERSING: Lock<()> = Lock::new(());

/// Reason why the daemon gave no usable answer.
pub enum HelloError {
    /// No daemon can be reached, or it does not answer in time or to this question.
    Absent(String),
    /// The daemon refused, or its answer is invalid.
    Refused(String),
}

use HelloError::{Absent, Refused};

fn socket_inode(descriptor: i32) -> Option<u64> {
    let stat = session::stat_descriptor(descriptor)?;
    (stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

/// A connection to the daemon during one exchange, before it is kept or dropped.
struct Conversation {
    stream: UnixStream,
    deadline: Instant,
    patience: Duration,
    came: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Conversation {
    fn open(socket: &Path, patience: Duration) -> Result<Self, HelloError> {
        let stream = connect(socket, patience).map_err(|e| Absent(format!("the daemon cannot be reached: {e}")))?;
        Ok(Self::over_stream(stream, patience))
    }

    fn over_stream(stream: UnixStream, patience: Duration) -> Self {
        Self { stream, deadline: Instant::now() + patience, patience, came: Vec::new(), files: Vec::new() }
    }

    /// Sends a line and returns the answer. A daemon that refuses the user answers and closes before it reads. Then
    /// the send fails, but the refusal can still be read.
    fn send_and_receive(&mut self, line: &str) -> Result<Vec<u8>, HelloError> {
        let sent = self.send(line);
        let answer = self.receive_line();
        if answer.is_err() {
            sent?;
        }
        answer
    }

    fn send(&self, line: &str) -> Result<(), HelloError> {
        let sent = self
            .stream
            .set_write_timeout(Some(self.patience))
            .and_then(|()| descriptors::send(self.stream.as_fd(), line.as_bytes(), &[]))
            .and_then(|sent| if sent == line.len() { Ok(()) } else { Err(std::io::ErrorKind::WriteZero.into()) });
        sent.map_err(|e| Absent(format!("the daemon does not listen: {e}")))
    }

    /// Receives the next line, without its newline. Descriptors received with it are added to `files`.
    fn receive_line(&mut self) -> Result<Vec<u8>, HelloError> {
        loop {
            if let Some(end) = self.came.iter().position(|&byte| byte == b'\n') {
                let mut line: Vec<u8> = self.came.drain(..=end).collect();
                line.pop();
                return Ok(line);
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Absent(format!("the daemon did not answer within {} s", self.patience.as_secs())));
            }
            if self.came.len() > MAX_LINE {
                return Err(Refused(format!("the daemon's answer is longer than {MAX_LINE} bytes")));
            }
            let mut buffer = [0; 512];
            let got = self
                .stream
                .set_read_timeout(Some(left))
                .and_then(|()| descriptors::receive_descriptors(self.stream.as_fd(), &mut buffer, &mut self.files));
            match got {
                Ok(0) => return Err(Absent("the daemon hung up".to_owned())),
                Ok(n) => self.came.extend_from_slice(buffer.get(..n).unwrap_or_default()),
                Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
                Err(e) => return Err(Absent(format!("the daemon's answer cannot be read: {e}"))),
            }
        }
    }

    /// Keeps the connection open for the life of the process, and ends the previous one.
    fn keep_connection(self) -> Result<(), HelloError> {
        let fd = out_of_the_way(self.stream.into()).map_err(|e| Refused(format!("no descriptor can be kept: {e}")))?;
        hang_up();
        CONVERSATION_NUMBER.fetch_add(1, Relaxed);
        SOCKET_INODE.store(socket_inode(fd.as_raw_fd()).unwrap_or(0), Relaxed);
        CONNECTION.store(fd.into_raw_fd(), Relaxed);
        Ok(())
    }
}

/// Sends the hello and keeps the connection. Dropping the returned session unmaps its pages; [`session::set_current`]
/// keeps them.
pub fn say_hello(socket: &Path, patience: Duration) -> Result<Box<Session>, HelloError> {
    let _talking = CONVERSING.lock();
    let sent = clock::now();
    let mut wire = Conversation::open(socket, patience)?;
    let hello = Hello { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_owned(), clock: sent };
    let line = wire.send_and_receive(&hello.encode().unwrap_or_default())?;
    let words = match wire::Reply::decode(&line) {
        Ok(wire::Reply::Welcome(welcome)) => {
            let offset = wire::clock_offset(sent, welcome.clock, clock::now());
            let files = core::mem::take(&mut wire.files);
            let next = CONVERSATION_NUMBER.load(Relaxed) + 1;
            let session = Session::from_welcome(welcome, offset, next, &files).map_err(Refused)?;
            wire.keep_connection()?;
            return Ok(Box::new(session));
        }
        Ok(wire::Reply::Refused(words)) => words,
        Ok(wire::Reply::Slot { .. }) => "a slot".to_owned(),
        Err(e) => return Err(Refused(format!("the daemon's answer is not understood: {e}"))),
    };
    Err(Refused(format!("the daemon refused this process: {words}")))
}

/// Joins a device over the session's connection and returns the member's slot. `busy` is the device time measured so
/// far, in ns.
///
/// An answer that is late or belongs to another question ends the connection, because later answers could not be
/// matched to their questions. The answer carries the tenant's ledger of the device, in which this process charges from
/// then on.
pub fn join(
    session: &Session,
    device: &str,
    busy: u64,
    ledger: &Ledger,
    patience: Duration,
) -> Result<usize, HelloError> {
    let talking = CONVERSING.lock();
    let connection = CONNECTION.load(Relaxed);
    let is_ours = connection >= 0 && socket_inode(connection) == Some(SOCKET_INODE.load(Relaxed));
    if !is_ours || session.conversation != CONVERSATION_NUMBER.load(Relaxed) {
        return Err(Absent("the connection to the daemon was closed".to_owned()));
    }
    // SAFETY: our own descriptor, as the inode says; it is not closed here.
    let stream = ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(connection) });
    let stream = stream.try_clone().map_err(|e| Absent(format!("the connection to the daemon cannot be used: {e}")))?;
    let joined = request_join(stream, device, busy, patience);
    if matches!(joined, Err(Absent(_))) {
        hang_up();
    }
    drop(talking);
    let (slot, file) = joined?;
    ledger.take_handed(file).map_err(|e| Refused(format!("the tenant's ledger cannot be used: {e}")))?;
    Ok(slot)
}

/// The slot, and the tenant's ledger.
type Joined = (usize, OwnedFd);

fn request_join(stream: UnixStream, device: &str, busy: u64, patience: Duration) -> Result<Joined, HelloError> {
    let mut wire = Conversation::over_stream(stream, patience);
    let line = JoinDevice { device: device.to_owned(), busy }.encode().map_err(|e| Refused(e.to_string()))?;
    match wire::Reply::decode(&wire.send_and_receive(&line)?) {
        Ok(wire::Reply::Slot { device: joined, slot }) if joined == device => {
            let file = wire.files.pop().ok_or_else(|| Refused("the daemon's answer brings no ledger".to_owned()))?;
            Ok((slot, file))
        }
        Ok(wire::Reply::Refused(words)) => {
            Err(Refused(format!("the daemon does not let this process use device {device}: {words}")))
        }
        Ok(_) => Err(Absent("the daemon's answer is not understood: it belongs to another question".to_owned())),
        Err(e) => Err(Absent(format!("the daemon's answer is not understood: {e}"))),
    }
}

/// True if the daemon closed its end of the connection, or the program closed ours.
///
/// # Cost
/// Two system calls.
pub fn is_over() -> bool {
    let connection = CONNECTION.load(Relaxed);
    if connection < 0 || socket_inode(connection) != Some(SOCKET_INODE.load(Relaxed)) {
        return true;
    }
    let mut look = libc::pollfd { fd: connection, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one structure of ours; nothing is waited for.
    unsafe { libc::poll(&raw mut look, 1, 0) != 0 }
}

/// Ends the connection. The daemon sees its end even if a forked child still has a copy of the descriptor.
fn hang_up() {
    close_connection(true);
}

/// Closes a forked child's copy of its parent's connection; the parent's stays open. Returns true if there was a copy.
pub fn close() -> bool {
    close_connection(false)
}

fn close_connection(for_all: bool) -> bool {
    let connection = CONNECTION.swap(-1, Relaxed);
    if connection >= 0 && socket_inode(connection) == Some(SOCKET_INODE.load(Relaxed)) {
        // SAFETY: our own descriptor, as the inode says; no other code uses it.
        unsafe {
            if for_all {
                libc::shutdown(connection, libc::SHUT_RDWR);
            }
            libc::close(connection);
        }
    }
    connection >= 0
}

/// Resets the lock in a forked child.
pub fn reset_after_fork() {
    // SAFETY: runs in the child's thread that resets it after the fork, before any other thread runs.
    unsafe { CONVERSING.reset(()) };
}

/// Connects within the deadline. A plain `connect` would block forever if the daemon hangs and its queue is full.
#[allow(clippy::cast_possible_truncation)] // AF_UNIX is 1
fn connect(socket: &Path, patience: Duration) -> std::io::Result<UnixStream> {
    // SAFETY: all zeroes is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = socket.as_os_str().as_bytes();
    if path.len() >= address.sun_path.len() || path.contains(&0) {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = core::ffi::c_char::from_ne_bytes([*from]);
    }
    // SAFETY: no preconditions.
    let raw = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: just opened, owned by nobody else.
    let stream = unsafe { UnixStream::from_raw_fd(raw) };
    stream.set_write_timeout(Some(patience))?; // a unix socket's connect obeys it too
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read};

    #[test]
    fn who_hangs_up_is_heard_beside_a_forked_childs_copy_and_a_child_that_closes_its_own_is_not() {
        let kept = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            let copy = ours.try_clone().unwrap();
            assert!(Conversation::over_stream(ours, ANSWER_TIMEOUT).keep_connection().is_ok());
            (theirs, copy)
        };
        let (mut first, _copy) = kept();
        assert!(close());
        assert_eq!(first.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let (mut second, _copy) = kept();
        // A new connection replaces the second.
        let (mut third, _copy) = kept();
        assert_eq!(second.read(&mut [0]).unwrap(), 0);
        hang_up();
        assert_eq!(third.read(&mut [0]).unwrap(), 0);
        assert!(!close());
    }
}
