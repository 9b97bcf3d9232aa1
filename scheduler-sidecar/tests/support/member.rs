//! A member of protocol 2 without a library, a driver or a device: it says hello, joins, stands at gates, and reports whatever
//! a test wants to have measured.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};
use shim_sys::descriptors;
use shim_sys::memfd::{self, Mapped};
use vgpu_core::arbiter::Gate;
use vgpu_core::page::{Allowed, BeatPage, BoardPage, Grant, ReportPage, ReportSlot, Said, Unread};
use vgpu_core::wire::two::{Descriptor, Hello, Join, Reply, Welcome};

use super::LONG;

/// The host's clock in nanoseconds, as the pages have it.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// A member; gone when dropped.
pub struct Member {
    stream: UnixStream,
    pub welcome: Welcome,
    pub beat: Mapped<BeatPage>,
    pub board: Mapped<BoardPage>,
    pub report: Mapped<ReportPage>,
    bell: OwnedFd,
}

impl Member {
    /// Comes to a tenant's socket.
    pub fn hello(socket: &Path) -> Result<Self, String> {
        let stream = UnixStream::connect(socket).map_err(|why| why.to_string())?;
        stream.set_read_timeout(Some(LONG)).unwrap();
        let hello = Hello { pid: std::process::id(), version: "test".into(), clock: now() };
        let (reply, mut files) = exchange(&stream, &hello.encode().unwrap());
        let welcome = match reply {
            Reply::Welcome(welcome) => welcome,
            Reply::Refused { words, .. } => return Err(words),
            Reply::Slot { .. } => panic!("a slot for a hello"),
        };
        let came = files.len();
        let mut file = |which| {
            let place = welcome.place(which, came).unwrap().expect("it is announced");
            // In its place comes something that nobody asks for again.
            std::mem::replace(&mut files[place], OwnedFd::from(std::fs::File::open("/dev/null").unwrap()))
        };
        // SAFETY: only what vgpu-core's page calls the member's side is read through these: relaxed loads.
        let beat = unsafe { memfd::receive_read_only(file(Descriptor::Beat).as_fd()) }.unwrap();
        // SAFETY: as above.
        let board: Mapped<BoardPage> = unsafe { memfd::receive_read_only(file(Descriptor::Board).as_fd()) }.unwrap();
        let report: Mapped<ReportPage> = memfd::receive(file(Descriptor::Report).as_fd()).unwrap();
        let bell = file(Descriptor::Bell);
        board.check(welcome.epoch).unwrap();
        report.check(welcome.epoch).unwrap();
        Ok(Self { stream, welcome, beat, board, report, bell })
    }

    /// Begins to work on a device; the slot, or the words of the refusal.
    pub fn join(&self, device: &str) -> Result<usize, String> {
        self.join_with(device, 0)
    }

    /// The same, having measured `busy` ns there under a former daemon.
    pub fn join_with(&self, device: &str, busy: u64) -> Result<usize, String> {
        let join = Join { device: device.to_owned(), busy };
        match exchange(&self.stream, &join.encode().unwrap()).0 {
            Reply::Slot { slot, device: said } => {
                assert_eq!(said, device);
                Ok(slot)
            }
            Reply::Refused { words, .. } => Err(words),
            Reply::Welcome(_) => panic!("a welcome for a join"),
        }
    }

    pub fn grant(&self, slot: usize) -> Result<Grant, Unread> {
        self.board.slots[slot].grant(self.welcome.epoch)
    }

    /// The gate; shut while it cannot be read.
    pub fn gate(&self, slot: usize) -> Gate {
        self.grant(slot).map_or(Gate::Wait, |grant| grant.gate)
    }

    /// May it launch?
    pub fn may_launch(&self, slot: usize) -> bool {
        matches!(self.gate(slot), Gate::Open | Gate::Run { .. })
    }

    pub fn allowed(&self, slot: usize) -> Allowed {
        super::eventually("the slot can be read", || self.board.slots[slot].allowed(self.welcome.epoch).is_ok());
        self.board.slots[slot].allowed(self.welcome.epoch).unwrap().1
    }

    fn slot(&self, slot: usize) -> &ReportSlot {
        &self.report.slots[slot]
    }

    /// Rings the tenant's bell.
    pub fn ring(&self) {
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).unwrap();
    }

    /// A thread stands at the gate.
    pub fn wish(&self, slot: usize) {
        if self.slot(slot).wish() {
            self.ring();
        }
    }

    /// Nobody stands there any more.
    pub fn content(&self, slot: usize) {
        self.slot(slot).content();
    }

    /// Something was launched and is not seen complete: `in_flight` ns of it by estimate.
    pub fn launched(&self, slot: usize, in_flight: u64) {
        let now = now();
        self.slot(slot).launches(in_flight, in_flight, now, now);
    }

    /// Everything is complete, and `busy` ns were measured in all; rings, as who yields does.
    pub fn measured(&self, slot: usize, busy: u64) {
        let now = now();
        let said = Said { busy, finished: busy, submitted: busy, in_flight: Some(0), last_launch: now, since: now };
        self.slot(slot).say(&said);
        self.ring();
    }
}

/// A line there, a line back, with whatever came along.
fn exchange(stream: &UnixStream, line: &str) -> (Reply, Vec<OwnedFd>) {
    let mut files = Vec::new();
    descriptors::send(stream.as_fd(), line.as_bytes(), &[]).unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"\n") {
        let mut buffer = [0; 4096];
        let length = descriptors::receive(stream.as_fd(), &mut buffer, &mut files).unwrap();
        assert!(length > 0, "the daemon hung up: {}", String::from_utf8_lossy(&reply));
        reply.extend_from_slice(&buffer[..length]);
    }
    (Reply::decode(&reply).unwrap(), files)
}
