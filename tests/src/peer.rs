//! A member by protocol 2 alone: a connection, the pages, a wish, a lease. No library, no driver.
//!
//! What libvgpu does inside a process, as far as the daemon can see it; one process can be thousands of such members. Not
//! here: devices, kernels, and what a member does when the daemon is gone (libvgpu itself, in `tests/`).

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shim_sys::memfd::{Mapped, receive, receive_read_only};
use shim_sys::{descriptors, futex};
use vgpu_core::arbiter::Gate;
use vgpu_core::page::{BeatPage, BoardPage, BoardSlot, Grant, ReportPage, ReportSlot, Said, Unread};
use vgpu_core::wire::MAX_LINE;
use vgpu_core::wire::two::{Descriptor, Hello, Join, Reply, Welcome};

/// What came with a welcome; members of one tenant in one process may share it.
pub struct Pages {
    /// The host's.
    pub beat: Mapped<BeatPage>,
    /// What the daemon says.
    pub board: Mapped<BoardPage>,
    /// What members say.
    pub report: Mapped<ReportPage>,
    /// Rung when a thread begins to stand at a gate.
    pub bell: File,
}

/// A registered member.
pub struct Peer {
    stream: UnixStream,
    input: Vec<u8>,
    files: Vec<OwnedFd>,
    /// What it was told.
    pub welcome: Welcome,
}

/// The host's monotonic clock, in nanoseconds.
#[must_use]
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a timespec of ours is filled.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

fn odd(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, what.into())
}

impl Peer {
    /// Connects and says hello; waits at most 30 s for each answer.
    ///
    /// # Errors
    /// What the kernel says; a refusal, and an answer that is no welcome, in words.
    pub fn connect(socket: &Path) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let hello = Hello { pid: std::process::id(), version: "peer".into(), clock: now() };
        stream.write_all(hello.encode().map_err(|why| odd(why.to_string()))?.as_bytes())?;
        let (mut input, mut files) = (Vec::new(), Vec::new());
        match reply(&stream, &mut input, &mut files)? {
            Reply::Welcome(welcome) => Ok(Self { stream, input, files, welcome }),
            other => Err(odd(format!("no welcome: {other:?}"))),
        }
    }

    /// Begins to work on a device, of whose time it has measured `busy` ns before; the slot in board and report.
    ///
    /// # Errors
    /// As [`Peer::connect`].
    pub fn join(&mut self, device: &str, busy: u64) -> Result<usize> {
        let join = Join { device: device.into(), busy };
        self.stream.write_all(join.encode().map_err(|why| odd(why.to_string()))?.as_bytes())?;
        match reply(&self.stream, &mut self.input, &mut self.files)? {
            Reply::Slot { slot, .. } => Ok(slot),
            other => Err(odd(format!("no slot: {other:?}"))),
        }
    }

    /// Maps what came with the welcome, and gives the descriptors up.
    ///
    /// # Errors
    /// Something is missing, or is not what it should be, in words.
    pub fn pages(&mut self) -> Result<Arc<Pages>> {
        let mut files: Vec<Option<OwnedFd>> = self.files.drain(..).map(Some).collect();
        let came = files.len();
        let mut file = |descriptor| {
            let place = self.welcome.place(descriptor, came).map_err(|why| odd(why.to_string()))?;
            place.and_then(|place| files[place].take()).ok_or_else(|| odd(format!("no {descriptor:?}")))
        };
        let (beat, board) = (file(Descriptor::Beat)?, file(Descriptor::Board)?);
        let (report, bell) = (file(Descriptor::Report)?, File::from(file(Descriptor::Bell)?));
        // SAFETY: nothing here writes to either.
        let (beat, board) =
            unsafe { (receive_read_only::<BeatPage>(beat.as_fd())?, receive_read_only::<BoardPage>(board.as_fd())?) };
        let report = receive::<ReportPage>(report.as_fd())?;
        let epoch = self.welcome.epoch;
        for checked in [beat.check(epoch), board.check(epoch), report.check(epoch)] {
            checked.map_err(|why| odd(why.to_string()))?;
        }
        Ok(Arc::new(Pages { beat, board, report, bell }))
    }

    /// Closes the descriptors that came with the welcome: another member's pages serve this one too.
    pub fn without_pages(&mut self) {
        self.files.clear();
    }
}

/// The next line as a reply; descriptors that come along are appended.
fn reply(stream: &UnixStream, input: &mut Vec<u8>, files: &mut Vec<OwnedFd>) -> Result<Reply> {
    loop {
        if let Some(end) = input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = input.drain(..=end).collect();
            return Reply::decode(&line).map_err(|why| odd(why.to_string()));
        }
        let mut buffer = [0; MAX_LINE];
        match descriptors::receive(stream.as_fd(), &mut buffer, files)? {
            0 => return Err(Error::new(ErrorKind::UnexpectedEof, "the daemon hung up")),
            length => input.extend_from_slice(&buffer[..length]),
        }
    }
}

impl Pages {
    /// What the daemon says to this slot.
    #[must_use]
    pub fn board(&self, slot: usize) -> &BoardSlot {
        &self.board.slots[slot]
    }

    /// What this slot says.
    #[must_use]
    pub fn said(&self, slot: usize) -> &ReportSlot {
        &self.report.slots[slot]
    }

    /// Rings the tenant's bell.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn ring(&self) -> Result<()> {
        (&self.bell).write_all(&1u64.to_ne_bytes())
    }

    /// Stands at the gate until it opens: the grant, and how long it took from the ring. With `spin` the word is watched
    /// without sleeping, which leaves out how long the host takes to wake a thread.
    ///
    /// # Errors
    /// `TimedOut`: not within `patience`. `ConnectionAborted`: the epoch ended. Others: what the kernel says.
    pub fn enter(&self, slot: usize, epoch: u64, patience: Duration, spin: bool) -> Result<(Grant, Duration)> {
        let begin = Instant::now();
        if self.said(slot).wish() {
            self.ring()?;
        }
        loop {
            let sequence = match self.board(slot).grant(epoch) {
                Ok(grant) if matches!(grant.gate, Gate::Run { .. } | Gate::Open) => {
                    let took = begin.elapsed();
                    self.said(slot).content();
                    return Ok((grant, took));
                }
                Ok(grant) => grant.sequence,
                Err(Unread::Busy { sequence } | Unread::Nobody { sequence } | Unread::Unknown { sequence }) => sequence,
                Err(why @ Unread::Ended { .. }) => {
                    return Err(Error::new(ErrorKind::ConnectionAborted, why.to_string()));
                }
            };
            if begin.elapsed() > patience {
                return Err(Error::new(ErrorKind::TimedOut, format!("no lease within {patience:?}")));
            }
            if spin {
                std::hint::spin_loop();
            } else {
                futex::wait(self.board(slot).futex(), sequence, now() + 50_000_000, u32::MAX);
            }
        }
    }

    /// Has done `busy` ns of work in all and wants nothing more; rings if somebody may wait for just this.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn rest(&self, slot: usize, grant: &Grant, busy: u64) -> Result<()> {
        let time = now();
        let said = Said {
            busy,
            finished: busy,
            submitted: busy,
            in_flight: Some(0),
            last_launch: time,
            since: time,
            launched: 1,
            known: busy,
        };
        self.said(slot).say(&said);
        if self.board(slot).stands(grant.sequence) { Ok(()) } else { self.ring() }
    }
}
