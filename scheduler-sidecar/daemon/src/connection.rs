//! The bytes of one peer: lines in and out. Never blocks, and buffers at most one line of input.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use nix::sys::socket::{getsockopt, sockopt};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;
use vgpu_core::protocol::wire::{Hello, MAX_LINE};

use crate::proof::image::Image;
use crate::proof::processes;
use vgpu_control::MAX_REQUEST_BYTES;
use vgpu_control::finding::ProcessId;
use vgpu_control::place::ProcessPlace;

/// Credentials of the peer when it connected, from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process ID; `None`: the process is outside the daemon's pid namespace.
    pub pid: Option<u32>,
    /// User ID of the peer.
    pub uid: u32,
    /// Group ID of the peer.
    pub gid: u32,
}

impl PeerCredentials {
    /// Asks the kernel.
    ///
    /// # Errors
    /// Any error of `getsockopt`.
    pub fn of_stream(stream: &OwnedFd) -> io::Result<Self> {
        let credentials = getsockopt(stream, sockopt::PeerCredentials)?;
        let pid = u32::try_from(credentials.pid()).ok().filter(|pid| *pid != 0);
        Ok(Self { pid, uid: credentials.uid(), gid: credentials.gid() })
    }
}

/// The listener by which the peer connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionSide {
    /// A tenant's listener, by the number of the tenant's room.
    Member(u64),
    /// The administrative listener.
    Admin,
}

/// State of the conversation with a peer.
#[derive(Debug)]
pub enum ConnectionState {
    /// The peer has sent no line that was understood.
    Silent,
    /// The peer said hello, at that time.
    Registered(Hello, Instant),
    /// The peer is an administrator that receives events from this number on. If true, it follows later ones too.
    Following(u64, bool),
    /// The connection is closed after the pending output is sent.
    Leaving,
    /// No member any more, but descriptors sent to it are still in flight.
    Over,
}

/// Result of reading from a peer.
#[derive(Debug, PartialEq, Eq)]
pub enum ConnectionInput {
    /// A line without its newline.
    Line(Vec<u8>),
    /// No complete line yet.
    Nothing,
    /// The peer sent as many bytes as a line may have, without a newline.
    TooLong,
    /// The peer closed the connection.
    End,
}

/// The connection of one peer.
#[derive(Debug)]
pub struct Connection {
    stream: OwnedFd,
    /// The peer's credentials.
    pub peer: PeerCredentials,
    /// The process that connected to a tenant's socket, as it was when it was accepted. A process that passes the
    /// connection on and ends may leave its ID to a stranger.
    pub process: Option<ProcessId>,
    /// The listener by which the peer connected.
    pub side: ConnectionSide,
    /// State of the conversation.
    pub state: ConnectionState,
    /// The program that said hello; `None`: no hello yet, the enforcement check is off, or the process could not be
    /// read.
    pub image: Option<Image>,
    /// Container and pod of the process at its hello; `None`: no hello yet, or neither is known.
    pub place: Option<Box<ProcessPlace>>,
    /// Number of the member; `None`: no hello yet.
    pub member: Option<u64>,
    /// When the connection is closed, unless the peer sends or takes what is due before.
    pub deadline: Option<Instant>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Connection {
    /// A peer that has just connected.
    #[must_use]
    pub fn new(stream: OwnedFd, peer: PeerCredentials, side: ConnectionSide, deadline: Instant) -> Self {
        let (input, output) = (Vec::new(), Vec::new());
        let (state, deadline) = (ConnectionState::Silent, Some(deadline));
        let process = match side {
            ConnectionSide::Member(_) => peer.pid.and_then(processes::read_process),
            ConnectionSide::Admin => None,
        };
        Self { stream, peer, process, side, state, image: None, place: None, member: None, deadline, input, output }
    }

    /// The numbers of the room and of the member; `None`: it has said no hello, or is no member any longer.
    #[must_use]
    pub fn membership(&self) -> Option<(u64, u64)> {
        match (self.side, &self.state) {
            (ConnectionSide::Member(room), ConnectionState::Registered(..)) => Some((room, self.member?)),
            _ => None,
        }
    }

    /// Process ID of a member in its own pid namespace, as it says; `None`: it has said no hello.
    #[must_use]
    pub fn pid_inside(&self) -> Option<u32> {
        match &self.state {
            ConnectionState::Registered(hello, _) => Some(hello.pid),
            _ => None,
        }
    }

    /// Reads the program of the process that connected; `None`: it cannot be read, or another process has the ID now.
    ///
    /// # Cost
    /// As [`processes::read_image`].
    #[must_use]
    pub fn read_image(&self) -> Option<Image> {
        let process = self.process?;
        processes::read_image(process.pid).filter(|image| image.process == process)
    }

    /// The next line, after at most one read. The kernel drops descriptors that came with it.
    pub fn read(&mut self) -> ConnectionInput {
        if let Some(line) = self.take_line() {
            return ConnectionInput::Line(line);
        }
        let mut buffer = [0; MAX_LINE];
        let most = self.max_line_bytes();
        let room = buffer.len().min(most - self.input.len());
        match rustix::io::read(&self.stream, &mut buffer[..room]) {
            Ok(0) => ConnectionInput::End,
            Ok(length) => {
                self.input.extend_from_slice(&buffer[..length]);
                match self.take_line() {
                    Some(line) => ConnectionInput::Line(line),
                    None if self.input.len() >= most => ConnectionInput::TooLong,
                    None => ConnectionInput::Nothing,
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => ConnectionInput::Nothing,
            Err(_) => ConnectionInput::End,
        }
    }

    /// Longest line that the peer may send, in bytes.
    #[must_use]
    pub fn max_line_bytes(&self) -> usize {
        match self.side {
            ConnectionSide::Member(_) => MAX_LINE,
            ConnectionSide::Admin => MAX_REQUEST_BYTES,
        }
    }

    /// True if a complete line is buffered. No epoll event will announce it.
    #[must_use]
    pub fn holds_line(&self) -> bool {
        self.input.contains(&b'\n')
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let end = self.input.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.input.drain(..=end).collect();
        line.pop();
        if self.input.is_empty() {
            // A member is idle for hours after its hello, so its buffer is freed.
            self.input = Vec::new();
        }
        Some(line)
    }

    /// Appends to the output and sends as much as the kernel takes.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.extend_from_slice(bytes);
        self.send_pending()
    }

    /// Sends a line with descriptors, while no other output is pending.
    ///
    /// # Errors
    /// The peer is gone, or the kernel takes nothing because the peer has not read earlier output. Descriptors are
    /// not queued here.
    pub fn send_with(&mut self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let sent = shim_sys::descriptors::send(self.stream.as_fd(), bytes, files)?;
        self.send(bytes.get(sent..).unwrap_or_default())
    }

    /// Sends as much output as the kernel takes.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn send_pending(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match rustix::net::send(&self.stream, &self.output, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(why) => return Err(why.into()),
            }
        }
        self.output = Vec::new();
        Ok(())
    }

    /// True if the peer has not received everything that was sent.
    ///
    /// # Cost
    /// A system call.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        shim_sys::descriptors::is_unread(self.stream.as_fd())
    }

    /// True if descriptors were sent to the peer.
    #[must_use]
    pub fn was_welcomed(&self) -> bool {
        self.member.is_some() || matches!(self.state, ConnectionState::Over)
    }

    /// True if no output is pending.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }

    /// The events to wait for. While output is pending, nothing is read.
    #[must_use]
    pub fn epoll_interest(&self) -> EventFlags {
        if self.is_flushed() { EventFlags::IN | EventFlags::RDHUP } else { EventFlags::OUT }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    const ROOM: u64 = 7;
    const MEMBER: u64 = 3;

    /// A connection of this process that said hello. Both ends, so that it stays open.
    fn registered() -> (Connection, OwnedFd) {
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let peer = PeerCredentials::of_stream(&here).unwrap();
        let mut connection = Connection::new(here, peer, ConnectionSide::Member(ROOM), Instant::now());
        let hello = Hello { pid: 1, version: String::new(), clock: 0 };
        (connection.state, connection.member) = (ConnectionState::Registered(hello, Instant::now()), Some(MEMBER));
        (connection, there)
    }

    #[test]
    fn a_later_process_with_the_same_id_is_never_taken_for_the_member() {
        let (mut connection, _there) = registered();
        let own = processes::read_process(std::process::id()).unwrap();
        assert_eq!(connection.read_image().map(|image| image.process), Some(own));
        // The process that connected has ended, and its ID went to this one.
        let ended = ProcessId { began: own.began - 1, ..own };
        connection.process = Some(ended);
        assert_eq!(connection.read_image(), None);
        // Also if that process was not known.
        connection.process = None;
        assert_eq!(connection.read_image(), None);
    }

    #[test]
    fn a_member_is_known_without_the_enforcement_check_and_only_after_its_hello() {
        let (mut connection, _there) = registered();
        let own = processes::read_process(std::process::id());
        assert!(connection.image.is_none() && own.is_some());
        assert_eq!((connection.membership(), connection.process), (Some((ROOM, MEMBER)), own));
        connection.state = ConnectionState::Silent;
        assert_eq!(connection.membership(), None);
    }
}
