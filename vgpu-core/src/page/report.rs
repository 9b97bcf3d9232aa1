//! What a member says of itself on a device: the page that the tenant writes and nobody believes.
//!
//! Here: where the words are, and the member's side. What the daemon makes of them is `witness`.
//!
//! A slot has one writer: the thread that holds its process's governor. Words are written so that a reader that sees
//! "nothing in flight" sees all that was measured of it.

use super::{Header, PageError, SLOTS, zero, zeros};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// First word of a report: `vgpurept`, little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"vgpurept");

/// In flight: it takes longer than was expected.
pub(super) const LONGER: u64 = u64::MAX;
/// In flight: not known at all.
pub(super) const UNKNOWN: u64 = u64::MAX - 1;

/// One member's words about one device.
#[repr(C, align(128))]
pub struct ReportSlot {
    pub(super) wants: AtomicU32,
    pad: AtomicU32,
    pub(super) in_flight: AtomicU64,
    pub(super) busy: AtomicU64,
    pub(super) finished: AtomicU64,
    pub(super) submitted: AtomicU64,
    pub(super) last_launch: AtomicU64,
    pub(super) since: AtomicU64,
    pub(super) launched: AtomicU64,
    pub(super) known: AtomicU64,
    room: [AtomicU64; 7],
}

/// The page as it is mapped: 132 KiB, of which only what is touched takes memory.
#[repr(C)]
pub struct ReportPage {
    header: Header,
    room: [AtomicU64; ROOM],
    /// Those of the board, under the same numbers.
    pub slots: [ReportSlot; SLOTS],
}

#[cfg(not(loom))]
const ROOM: usize = (super::HEADER_SIZE - size_of::<Header>()) / 8;
#[cfg(loom)]
const ROOM: usize = 0;

#[cfg(not(loom))]
const _: () = {
    use super::{HEADER_SIZE, SLOT_SIZE};
    assert!(size_of::<ReportSlot>() == SLOT_SIZE);
    assert!(core::mem::offset_of!(ReportPage, slots) == HEADER_SIZE);
    assert!(core::mem::offset_of!(ReportSlot, known) <= 64);
};

/// What is said at once. Durations and moments in nanoseconds of the host's monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Device time measured by events since the slot was taken: the union over streams. Only grows.
    pub busy: u64,
    /// Estimates of the launches seen complete since then. Only grows.
    pub finished: u64,
    /// Estimates of all launches since then. Only grows.
    pub submitted: u64,
    /// Estimated work before the device: 0 only if all was seen complete, `u64::MAX` if it takes longer than expected
    /// ([`crate::gate::Keeper::left`]); `None`: not known at all, as after a gate that was open.
    pub in_flight: Option<u64>,
    /// When it launched last.
    pub last_launch: u64,
    /// Since when something has been wanted or in flight without a pause; the time, if nothing is.
    pub since: u64,
    /// Launches since the slot was taken, as far as they were counted. Only grows.
    pub launched: u64,
    /// As `finished`, at what the same launches take when nobody slows them
    /// ([`crate::account::cost::CostTable::learn_least`]). Only grows.
    pub known: u64,
}

impl ReportSlot {
    /// Nothing said, as in a fresh memory file.
    #[must_use]
    pub fn zeroed() -> Self {
        Self {
            wants: AtomicU32::new(0),
            pad: AtomicU32::new(0),
            in_flight: zero(),
            busy: zero(),
            finished: zero(),
            submitted: zero(),
            last_launch: zero(),
            since: zero(),
            launched: zero(),
            known: zero(),
            room: zeros(),
        }
    }

    /// Forgets what a former member said: the daemon, before it gives the slot away.
    pub fn clear(&self) {
        self.wants.store(0, Ordering::SeqCst);
        self.say(&Said { in_flight: Some(0), ..Said::default() });
    }

    /// Whoever gets the slot next may have work before the device: that is so until it says something itself. The daemon,
    /// after [`Self::clear`].
    pub fn presume(&self) {
        self.in_flight.store(UNKNOWN, Ordering::SeqCst);
    }

    /// A thread stands at the gate. True: nobody stood there before, so the tenant's bell must be rung now.
    ///
    /// # Cost
    /// One exchange. Only who cannot launch comes here.
    #[must_use = "the daemon looks only when the bell rings"]
    pub fn wish(&self) -> bool {
        self.wants.swap(1, Ordering::SeqCst) == 0
    }

    /// Nobody stands at the gate any more.
    pub fn content(&self) {
        self.wants.store(0, Ordering::SeqCst);
    }

    /// A launch is about to go to the driver: with it `in_flight` ns are before the device by estimate, not 0, and
    /// `submitted` were submitted in all. `since` is what [`Said::since`] says.
    ///
    /// The launch may go if [`BoardSlot::stands`](super::BoardSlot::stands) is true afterwards; otherwise its gate has
    /// changed, and what was announced is to be taken back by [`Self::say`].
    ///
    /// # Cost
    /// One load and four stores of one cache line; a fence if nothing was in flight.
    #[inline]
    pub fn launches(&self, in_flight: u64, submitted: u64, since: u64, now: u64) {
        self.submitted.store(submitted, Ordering::Relaxed);
        self.last_launch.store(now, Ordering::Relaxed);
        self.since.store(since, Ordering::Relaxed);
        let word = encode(Some(in_flight.max(1)));
        // Otherwise whoever looks already sees that something is there.
        let first = self.in_flight.load(Ordering::Relaxed) == 0;
        self.in_flight.store(word, Ordering::Release);
        if first {
            fence(Ordering::SeqCst);
        }
    }

    /// Says it all anew: after completions were seen, after a launch that did not take place.
    ///
    /// If nothing is in flight any more and [`BoardSlot::stands`](super::BoardSlot::stands) is false afterwards, somebody
    /// may wait for just this: ring the tenant's bell.
    ///
    /// # Cost
    /// Eight stores and a fence.
    pub fn say(&self, said: &Said) {
        self.submitted.store(said.submitted, Ordering::Relaxed);
        self.last_launch.store(said.last_launch, Ordering::Relaxed);
        self.since.store(said.since, Ordering::Relaxed);
        self.finished.store(said.finished, Ordering::Relaxed);
        self.busy.store(said.busy, Ordering::Relaxed);
        self.launched.store(said.launched, Ordering::Relaxed);
        self.known.store(said.known, Ordering::Relaxed);
        // Last, so that nothing in flight means that the sums are there.
        self.in_flight.store(encode(said.in_flight), Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

fn encode(in_flight: Option<u64>) -> u64 {
    match in_flight {
        None => UNKNOWN,
        Some(LONGER) => LONGER,
        Some(ns) => ns.min(UNKNOWN - 1),
    }
}

impl ReportPage {
    /// In ordinary memory, as a fresh memory file is: for tests.
    #[must_use]
    pub fn zeroed() -> Box<Self> {
        let slots = core::array::from_fn(|_| ReportSlot::zeroed());
        Box::new(Self { header: Header::zeroed(), room: zeros(), slots })
    }

    /// Makes a fresh memory file a report. For the members' sake: the daemon never reads the header again.
    pub fn format(&self, epoch: u64) {
        self.header.format(MAGIC, epoch);
    }

    /// Is this a report of this version and of this epoch?
    ///
    /// # Errors
    /// [`PageError`].
    pub fn check(&self, epoch: u64) -> Result<(), PageError> {
        self.header.check(MAGIC, epoch)
    }
}
