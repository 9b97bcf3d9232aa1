//! A minimal member for tests: says hello, maps pages, joins, requests, rings, and sleeps on its slot.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use shim_sys::memfd::{MappedPage, receive_page, receive_read_only};
use shim_sys::{descriptors, futex};
use vgpu_core::protocol::page::{
    AllowedUse, BeatPage, BoardPage, BoardSlot, LaunchGrant, MemberReport, ReportPage, ReportSlot, UnreadSlot,
};
use vgpu_core::protocol::wire::{Descriptor, Hello, JoinDevice, Reply, Welcome};
use vgpu_core::time::arbiter::Gate;

use crate::support::LONG_TIMEOUT;

/// Returns the monotonic clock in nanoseconds.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

/// A member that the daemon has welcomed.
pub struct Member {
    pub lines: BufReader<UnixStream>,
    pub welcome: Welcome,
    pub beat: MappedPage<BeatPage>,
    pub board: MappedPage<BoardPage>,
    pub report: MappedPage<ReportPage>,
    pub bell: OwnedFd,
}

impl Member {
    /// Says hello and maps the pages that the daemon sends.
    pub fn hello(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
        let hello = Hello { pid: std::process::id(), version: "test".into(), clock: now() };
        stream.write_all(hello.encode().unwrap().as_bytes()).unwrap();
        let (mut bytes, mut files) = (vec![0; 4096], Vec::new());
        let length = descriptors::receive_descriptors(stream.as_fd(), &mut bytes, &mut files).unwrap();
        let line = String::from_utf8_lossy(&bytes[..length]).into_owned();
        let reply = Reply::decode(line.trim_end().as_bytes()).unwrap();
        let Reply::Welcome(welcome) = reply else { panic!("{line}") };
        let take = |which| {
            let place = welcome.find_descriptor(which, files.len()).unwrap().unwrap();
            files[place].try_clone().unwrap()
        };
        let (beat, board) = (take(Descriptor::Beat), take(Descriptor::Board));
        let (report, bell) = (take(Descriptor::Report), take(Descriptor::Bell));
        // SAFETY: only the member's side is called on these, which makes relaxed loads.
        let (beat, board) =
            unsafe { (receive_read_only(beat.as_fd()).unwrap(), receive_read_only(board.as_fd()).unwrap()) };
        let (beat, board): (MappedPage<BeatPage>, MappedPage<BoardPage>) = (beat, board);
        let report: MappedPage<ReportPage> = receive_page(report.as_fd()).unwrap();
        beat.check(welcome.epoch).unwrap();
        board.check(welcome.epoch).unwrap();
        report.check(welcome.epoch).unwrap();
        Self { lines: BufReader::new(stream), welcome, beat, board, report, bell }
    }

    /// Sends a line and returns the answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.lines.get_mut().write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        self.lines.read_line(&mut answer).unwrap();
        answer
    }

    /// Joins a device; returns the slot, or the message of the refusal.
    pub fn try_join(&mut self, uuid: &str) -> Result<usize, String> {
        let answer = self.ask(&JoinDevice { device: uuid.into(), busy: 0 }.encode().unwrap());
        match Reply::decode(answer.trim_end().as_bytes()).unwrap() {
            Reply::Slot { device, slot } if device == uuid => Ok(slot),
            Reply::Refused(words) => Err(words),
            other => panic!("{other:?}"),
        }
    }

    /// Joins the device, and panics if the daemon refuses.
    pub fn join(mut self, uuid: &str) -> On {
        let slot = self.try_join(uuid).unwrap();
        On { member: self, slot, said: MemberReport::default() }
    }

    /// Rings the tenant's bell, which wakes the daemon to read the tenant's report.
    pub fn ring(&self) {
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).unwrap();
    }
}

/// Repeats a read until the daemon is not writing at the same time.
fn settled<T>(mut read: impl FnMut() -> Result<T, UnreadSlot>) -> Result<T, UnreadSlot> {
    let start = Instant::now();
    loop {
        match read() {
            Err(UnreadSlot::Busy { .. }) if start.elapsed() < LONG_TIMEOUT => std::thread::yield_now(),
            other => return other,
        }
    }
}

/// A member (process connected to the daemon) of the tests that joined one device.
pub struct On {
    pub member: Member,
    pub slot: usize,
    said: MemberReport,
}

impl On {
    pub fn board(&self) -> &BoardSlot {
        &self.member.board.slots[self.slot]
    }

    pub fn report(&self) -> &ReportSlot {
        &self.member.report.slots[self.slot]
    }

    pub fn grant(&self) -> Result<LaunchGrant, UnreadSlot> {
        self.board().read_grant(self.member.welcome.epoch)
    }

    pub fn gate(&self) -> Gate {
        settled(|| self.grant()).unwrap().gate
    }

    pub fn allowed(&self) -> AllowedUse {
        settled(|| self.board().read_allowed(self.member.welcome.epoch)).unwrap().1
    }

    /// Reports that a launch waits, and rings the bell if that was not reported yet.
    pub fn wish(&self) {
        if self.report().begin_waiting() {
            self.member.ring();
        }
    }

    /// Sleeps until the member's gate satisfies `is`.
    pub fn until(&self, what: &str, mut is: impl FnMut(&Gate) -> bool) -> Gate {
        self.until_all(what, |grant| is(&grant.gate)).gate
    }

    /// Sleeps until the slot's grant satisfies `is`.
    pub fn until_all(&self, what: &str, mut is: impl FnMut(&LaunchGrant) -> bool) -> LaunchGrant {
        let start = Instant::now();
        loop {
            let sequence = match self.grant() {
                Ok(grant) if is(&grant) => return grant,
                Ok(grant) => grant.sequence,
                Err(UnreadSlot::Busy { sequence }) => sequence,
                Err(other) => panic!("{what}: {other}"),
            };
            assert!(start.elapsed() < LONG_TIMEOUT, "still not: {what}: {:?}", self.grant());
            futex::wait(self.board().futex_word(), sequence, now() + 100_000_000, u32::MAX);
        }
    }

    /// Waits for a lease, then reports `ns` of work in flight.
    pub fn runs(&mut self, ns: u64) -> Gate {
        self.wish();
        let gate = self.until("a lease", |gate| matches!(gate, Gate::Run { .. } | Gate::Open));
        self.said.submitted += ns;
        self.said.launched += 1;
        let moment = now();
        self.said.since = moment;
        self.said.last_launch = moment;
        self.said.in_flight = Some(ns);
        self.report().report_launch(ns, self.said.submitted, moment, moment);
        self.report().stop_waiting();
        gate
    }

    /// Reports that the work in flight is complete, and rings unless the gate is open to all.
    pub fn done(&mut self, busy: u64) {
        self.said.busy += busy;
        self.said.finished = self.said.submitted;
        self.said.in_flight = Some(0);
        self.report().report_all(&self.said);
        if !matches!(self.gate(), Gate::Open) {
            self.member.ring();
        }
    }
}
