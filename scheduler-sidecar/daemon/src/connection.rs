//! The bytes of one peer: lines in, lines out, never blocking, never more than a line of memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use nix::sys::socket::{getsockopt, sockopt};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;
use vgpu_core::bytes::Bytes;
use vgpu_core::share::Share;
use vgpu_core::wire::{Hello, MAX_LINE};

use crate::proof::image::Image;

/// Who is at the other end, by the kernel's word at the time of the connect.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Its process; `None` if that is outside the daemon's pid namespace.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Peer {
    /// Asks the kernel.
    ///
    /// # Errors
    /// Whatever `getsockopt` says.
    pub fn of(stream: &OwnedFd) -> io::Result<Self> {
        let credentials = getsockopt(stream, sockopt::PeerCredentials)?;
        let pid = u32::try_from(credentials.pid()).ok().filter(|pid| *pid != 0);
        Ok(Self { pid, uid: credentials.uid(), gid: credentials.gid() })
    }
}

/// Whose door the peer came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// A tenant's; the number of its room.
    Member(u64),
    /// The administrative one.
    Admin,
}

/// What a peer has been so far.
#[derive(Debug)]
pub enum State {
    /// It has said nothing that was understood.
    Silent,
    /// It said hello, at that time.
    Registered(Hello, Instant),
    /// An administrator that is told events, from this number on; for ever, or until there are no more.
    Following(u64, bool),
    /// It is told why and then closed.
    Leaving,
    /// It is a member no more, and has not taken the descriptors that it was sent.
    Over,
}

/// What reading brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// A line without its newline.
    Line(Vec<u8>),
    /// Nothing whole yet.
    Nothing,
    /// More than a line may hold, and no newline.
    TooLong,
    /// The peer is gone.
    End,
}

/// One peer.
#[derive(Debug)]
pub struct Connection {
    stream: OwnedFd,
    /// Who it is.
    pub peer: Peer,
    /// Where it came in.
    pub side: Side,
    /// What it has been.
    pub state: State,
    /// The program that said hello, where processes are looked at; `None`: it could not be looked at, or did not say hello.
    pub image: Option<Image>,
    /// Its number, if it speaks protocol 2: it has its tenant's pages.
    pub member: Option<u64>,
    /// The limits it was told, if it speaks protocol 1: memory and ceiling.
    pub told: Option<(Option<Bytes>, Option<Share>)>,
    /// When it is closed unless it did what is due.
    pub deadline: Option<Instant>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Connection {
    /// A peer that has just come in.
    #[must_use]
    pub fn new(stream: OwnedFd, peer: Peer, side: Side, deadline: Instant) -> Self {
        let (input, output) = (Vec::new(), Vec::new());
        let (state, deadline) = (State::Silent, Some(deadline));
        Self { stream, peer, side, state, image: None, member: None, told: None, deadline, input, output }
    }

    /// The next line, after at most one read. The kernel drops descriptors that came with it.
    pub fn read(&mut self) -> Input {
        if let Some(line) = self.take_line() {
            return Input::Line(line);
        }
        let mut buffer = [0; MAX_LINE];
        let room = MAX_LINE - self.input.len();
        match rustix::io::read(&self.stream, &mut buffer[..room]) {
            Ok(0) => Input::End,
            Ok(length) => {
                self.input.extend_from_slice(&buffer[..length]);
                match self.take_line() {
                    Some(line) => Input::Line(line),
                    None if self.input.len() >= MAX_LINE => Input::TooLong,
                    None => Input::Nothing,
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => Input::Nothing,
            Err(_) => Input::End,
        }
    }

    /// Is a whole line waiting, so that no event will announce it?
    #[must_use]
    pub fn holds_line(&self) -> bool {
        self.input.contains(&b'\n')
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let end = self.input.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.input.drain(..=end).collect();
        line.pop();
        if self.input.is_empty() {
            // A member that said hello is idle for hours; its buffer need not wait with it.
            self.input = Vec::new();
        }
        Some(line)
    }

    /// Appends to what is to be sent and sends what the kernel takes.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.extend_from_slice(bytes);
        self.flush()
    }

    /// Sends a line with descriptors, when nothing else is to be sent.
    ///
    /// # Errors
    /// The peer is gone, or has not taken what it was sent before: descriptors do not wait.
    pub fn send_with(&mut self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let sent = shim_sys::descriptors::send(self.stream.as_fd(), bytes, files)?;
        self.send(bytes.get(sent..).unwrap_or_default())
    }

    /// Sends what the kernel takes.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn flush(&mut self) -> io::Result<()> {
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

    /// Has the peer not taken something yet that was sent?
    ///
    /// # Cost
    /// A system call.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        shim_sys::descriptors::is_unread(self.stream.as_fd())
    }

    /// Was it sent descriptors?
    #[must_use]
    pub fn was_welcomed(&self) -> bool {
        self.member.is_some() || matches!(self.state, State::Over)
    }

    /// Has everything been sent?
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }

    /// What to wait for: while something is to be sent, nothing more is read.
    #[must_use]
    pub fn interest(&self) -> EventFlags {
        if self.is_flushed() { EventFlags::IN | EventFlags::RDHUP } else { EventFlags::OUT }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
