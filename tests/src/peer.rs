//! A member that speaks only the protocol: it connects, maps the pages, requests a launch and gets a lease. It uses
//! neither library nor driver.
//!
//! To the daemon it looks like libvgpu in a process, and one process can hold thousands of such members. Not here:
//! devices, kernels, and the member's behaviour without a daemon (libvgpu itself, tested in `tests/`).

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shim_sys::memfd::{MappedPage, receive_page, receive_read_only};
use shim_sys::{descriptors, futex};
use vgpu_core::protocol::page::{
    BeatPage, BoardPage, BoardSlot, LaunchGrant, MemberReport, ReportPage, ReportSlot, UnreadSlot,
};
use vgpu_core::protocol::wire::{Descriptor, Hello, JoinDevice, MAX_LINE, Reply, Welcome};
use vgpu_core::time::arbiter::Gate;

/// Pages that arrived with a welcome. Members of one tenant in one process may share them.
pub struct Pages {
    /// Page with the heartbeat of the host's daemon.
    pub beat: MappedPage<BeatPage>,
    /// Page that the daemon writes for the members.
    pub board: MappedPage<BoardPage>,
    /// Page that the members write for the daemon.
    pub report: MappedPage<ReportPage>,
    /// Event descriptor that wakes the daemon when a thread starts to wait for a lease.
    pub bell: File,
}

/// A member (client of the daemon) that the daemon registered, without library and driver.
pub struct Peer {
    stream: UnixStream,
    input: Vec<u8>,
    files: Vec<OwnedFd>,
    /// Welcome message that the daemon sent.
    pub welcome: Welcome,
}

/// Time of the host's monotonic clock, in nanoseconds.
#[must_use]
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills a timespec on this stack frame.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

fn odd(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, what.into())
}

impl Peer {
    /// Connects to the daemon and sends hello. Waits at most 30 s for each answer.
    ///
    /// # Errors
    /// The kernel's error; a refusal, or an answer other than a welcome, as text.
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

    /// Joins a device with `busy` ns of device time already measured. Returns the index of the member's slot in both
    /// pages.
    ///
    /// # Errors
    /// As [`Peer::connect`].
    pub fn join(&mut self, device: &str, busy: u64) -> Result<usize> {
        let join = JoinDevice { device: device.into(), busy };
        self.stream.write_all(join.encode().map_err(|why| odd(why.to_string()))?.as_bytes())?;
        // The tenant's ledger comes with the answer; this member charges nothing.
        match reply(&self.stream, &mut self.input, &mut Vec::new())? {
            Reply::Slot { slot, .. } => Ok(slot),
            other => Err(odd(format!("no slot: {other:?}"))),
        }
    }

    /// Maps the pages that arrived with the welcome and closes their descriptors.
    ///
    /// # Errors
    /// A page is missing or malformed; the text names it.
    pub fn pages(&mut self) -> Result<Arc<Pages>> {
        let mut files: Vec<Option<OwnedFd>> = self.files.drain(..).map(Some).collect();
        let came = files.len();
        let mut file = |descriptor| {
            let place = self.welcome.find_descriptor(descriptor, came).map_err(|why| odd(why.to_string()))?;
            place.and_then(|place| files[place].take()).ok_or_else(|| odd(format!("no {descriptor:?}")))
        };
        let (beat, board) = (file(Descriptor::Beat)?, file(Descriptor::Board)?);
        let (report, bell) = (file(Descriptor::Report)?, File::from(file(Descriptor::Bell)?));
        // SAFETY: no code of this process writes to either page.
        let (beat, board) =
            unsafe { (receive_read_only::<BeatPage>(beat.as_fd())?, receive_read_only::<BoardPage>(board.as_fd())?) };
        let report = receive_page::<ReportPage>(report.as_fd())?;
        let epoch = self.welcome.epoch;
        for checked in [beat.check(epoch), board.check(epoch), report.check(epoch)] {
            checked.map_err(|why| odd(why.to_string()))?;
        }
        Ok(Arc::new(Pages { beat, board, report, bell }))
    }

    /// Closes the descriptors that arrived with the welcome, for a member that uses another member's pages.
    pub fn without_pages(&mut self) {
        self.files.clear();
    }
}

/// Reads the next line as a reply. Descriptors that arrive with it are appended to `files`.
fn reply(stream: &UnixStream, input: &mut Vec<u8>, files: &mut Vec<OwnedFd>) -> Result<Reply> {
    loop {
        if let Some(end) = input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = input.drain(..=end).collect();
            return Reply::decode(&line).map_err(|why| odd(why.to_string()));
        }
        let mut buffer = [0; MAX_LINE];
        match descriptors::receive_descriptors(stream.as_fd(), &mut buffer, files)? {
            0 => return Err(Error::new(ErrorKind::UnexpectedEof, "the daemon hung up")),
            length => input.extend_from_slice(&buffer[..length]),
        }
    }
}

impl Pages {
    /// The daemon's record for this slot: the grant of device time to the member.
    #[must_use]
    pub fn board(&self, slot: usize) -> &BoardSlot {
        &self.board.slots[slot]
    }

    /// The member's record in this slot: work done and requests for device time.
    #[must_use]
    pub fn said(&self, slot: usize) -> &ReportSlot {
        &self.report.slots[slot]
    }

    /// Writes to the tenant's event descriptor, which wakes the daemon.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ring(&self) -> Result<()> {
        (&self.bell).write_all(&1u64.to_ne_bytes())
    }

    /// Requests a launch and waits for the lease. Returns the grant and the time from the request to it.
    ///
    /// With `spin` the thread polls without sleeping, so the time excludes the host's delay in waking a thread.
    ///
    /// # Errors
    /// `TimedOut`: no lease within `patience`. `ConnectionAborted`: the epoch ended. Otherwise the kernel's error.
    pub fn enter(&self, slot: usize, epoch: u64, patience: Duration, spin: bool) -> Result<(LaunchGrant, Duration)> {
        let begin = Instant::now();
        if self.said(slot).begin_waiting() {
            self.ring()?;
        }
        loop {
            let sequence = match self.board(slot).read_grant(epoch) {
                Ok(grant) if matches!(grant.gate, Gate::Run { .. } | Gate::Open) => {
                    let took = begin.elapsed();
                    self.said(slot).stop_waiting();
                    return Ok((grant, took));
                }
                Ok(grant) => grant.sequence,
                Err(
                    UnreadSlot::Busy { sequence } | UnreadSlot::Nobody { sequence } | UnreadSlot::Unknown { sequence },
                ) => sequence,
                Err(why @ UnreadSlot::Ended { .. }) => {
                    return Err(Error::new(ErrorKind::ConnectionAborted, why.to_string()));
                }
            };
            if begin.elapsed() > patience {
                return Err(Error::new(ErrorKind::TimedOut, format!("no lease within {patience:?}")));
            }
            if spin {
                std::hint::spin_loop();
            } else {
                futex::wait(self.board(slot).futex_word(), sequence, now() + 50_000_000, u32::MAX);
            }
        }
    }

    /// Reports `busy` ns of finished work in total and no further launches. Wakes the daemon if the grant changed
    /// meanwhile, since another member may be waiting.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn rest(&self, slot: usize, grant: &LaunchGrant, busy: u64) -> Result<()> {
        let time = now();
        let said = MemberReport {
            busy,
            finished: busy,
            submitted: busy,
            in_flight: Some(0),
            last_launch: time,
            since: time,
            launched: 1,
            known: busy,
        };
        self.said(slot).report_all(&said);
        if self.board(slot).is_unchanged(grant.sequence) { Ok(()) } else { self.ring() }
    }
}
