//! The page that a tenant's members write about their device use. The daemon does not trust it.
//!
//! Here: the layout and the member's side. `witness` is the daemon's side.
//!
//! Each slot has one writer, the thread that holds its process's governor. The order of its writes guarantees that a
//! reader that sees nothing in flight also sees all the time measured for it.

use super::{PAGE_SLOTS, PageError, PageHeader, zeroed_word, zeroed_words};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// First word of a report: `vgpurept`, little-endian.
const REPORT_MAGIC: u64 = u64::from_le_bytes(*b"vgpurept");

/// Value of `in_flight`: the queued work takes longer than expected.
pub(super) const IN_FLIGHT_LATE: u64 = u64::MAX;
/// Value of `in_flight`: the work in flight is unknown.
pub(super) const IN_FLIGHT_UNKNOWN: u64 = u64::MAX - 1;

/// Whether the device runs the contexts of different processes at the same time, as a member's driver reports it. The
/// member writes this before its first launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ContextSharing {
    /// One process's context at a time, in time slices.
    TimeSliced = 1,
    /// All at the same time: MPS shares the member's contexts with other processes.
    Mps = 2,
}

/// Report of one member about one device.
#[repr(C, align(128))]
pub struct ReportSlot {
    pub(super) wants: AtomicU32,
    pub(super) contexts: AtomicU32,
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

/// The page as it is mapped: 132 KiB. Only touched parts take memory.
#[repr(C)]
pub struct ReportPage {
    header: PageHeader,
    room: [AtomicU64; REPORT_PADDING_WORDS],
    /// One slot for each member, at the index of its slot in the board.
    pub slots: [ReportSlot; PAGE_SLOTS],
}

#[cfg(not(loom))]
const REPORT_PADDING_WORDS: usize = (super::PAGE_HEADER_BYTES - size_of::<PageHeader>()) / 8;
#[cfg(loom)]
const REPORT_PADDING_WORDS: usize = 0;

#[cfg(not(loom))]
const _: () = {
    use super::{PAGE_HEADER_BYTES, PAGE_SLOT_BYTES};
    assert!(size_of::<ReportSlot>() == PAGE_SLOT_BYTES);
    assert!(core::mem::offset_of!(ReportPage, slots) == PAGE_HEADER_BYTES);
    assert!(core::mem::offset_of!(ReportSlot, known) <= 64);
};

/// Values that a member reports together. Durations and times are in nanoseconds of the host's monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberReport {
    /// Device time measured by events since the member took the slot: the union over its streams. Only grows.
    pub busy: u64,
    /// Sum of the estimates of launches that were seen complete since then. Only grows.
    pub finished: u64,
    /// Sum of the estimates of all launches since then. Only grows.
    pub submitted: u64,
    /// Estimated work queued on the device. 0 only if all launches were seen complete; `u64::MAX` if the work takes
    /// longer than expected ([`crate::time::gate::LaunchGate::reported_remaining`]). `None`: unknown, for example
    /// after an open gate.
    pub in_flight: Option<u64>,
    /// Time of the last launch.
    pub last_launch: u64,
    /// Begin of the current period in which something was continuously wanted or in flight; the current time if
    /// nothing is.
    pub since: u64,
    /// Launches counted since the member took the slot. Only grows.
    pub launched: u64,
    /// As `finished`, with estimates of the same launches when no other work slows them
    /// ([`crate::time::account::cost::CostTable::learn_least`]). Only grows.
    pub known: u64,
}

impl ReportSlot {
    /// A slot of zeros, as in a new memory file.
    #[must_use]
    pub fn zeroed() -> Self {
        Self {
            wants: AtomicU32::new(0),
            contexts: AtomicU32::new(0),
            in_flight: zeroed_word(),
            busy: zeroed_word(),
            finished: zeroed_word(),
            submitted: zeroed_word(),
            last_launch: zeroed_word(),
            since: zeroed_word(),
            launched: zeroed_word(),
            known: zeroed_word(),
            room: zeroed_words(),
        }
    }

    /// Erases the report of the previous member. The daemon calls this before it gives the slot away.
    pub fn clear(&self) {
        self.wants.store(0, Ordering::SeqCst);
        self.contexts.store(0, Ordering::Relaxed);
        self.report_all(&MemberReport { in_flight: Some(0), ..MemberReport::default() });
    }

    /// Reports unknown work in flight on behalf of the next member, which may have queued work, until it reports
    /// itself. The daemon calls this after [`Self::clear`].
    pub fn presume_work(&self) {
        self.in_flight.store(IN_FLIGHT_UNKNOWN, Ordering::SeqCst);
    }

    /// Reports how the driver runs this member's contexts: a [`ContextSharing`], or 0 if it is not known yet. The
    /// daemon keeps the first value that it reads.
    pub fn report_contexts(&self, contexts: u32) {
        self.contexts.store(contexts, Ordering::Relaxed);
    }

    /// How the driver runs this member's contexts; `None`: not reported, or not understood.
    #[must_use]
    pub fn reported_contexts(&self) -> Option<ContextSharing> {
        match self.contexts.load(Ordering::Relaxed) {
            1 => Some(ContextSharing::TimeSliced),
            2 => Some(ContextSharing::Mps),
            _ => None,
        }
    }

    /// Reports that a thread waits at the gate. True if none waited before: the caller must now ring the tenant's
    /// bell.
    ///
    /// # Cost
    /// One exchange, and only for a thread that cannot launch.
    #[must_use = "the daemon looks only when the bell rings"]
    pub fn begin_waiting(&self) -> bool {
        self.wants.swap(1, Ordering::SeqCst) == 0
    }

    /// Reports that no thread waits at the gate any more.
    pub fn stop_waiting(&self) {
        self.wants.store(0, Ordering::SeqCst);
    }

    /// Announces a launch before it is passed to the driver. With it, an estimated `in_flight` ns (not 0) are queued
    /// on the device and `submitted` ns were submitted in total. `since` is [`MemberReport::since`].
    ///
    /// The caller may launch if [`BoardSlot::is_unchanged`](super::BoardSlot::is_unchanged) is true afterwards.
    /// Otherwise its gate has changed, and the caller revokes the announcement with [`Self::report_all`].
    ///
    /// # Cost
    /// One load and four stores in one cache line; a fence if nothing was in flight.
    #[inline]
    pub fn report_launch(&self, in_flight: u64, submitted: u64, since: u64, now: u64) {
        self.submitted.store(submitted, Ordering::Relaxed);
        self.last_launch.store(now, Ordering::Relaxed);
        self.since.store(since, Ordering::Relaxed);
        let word = encode(Some(in_flight.max(1)));
        // Only the first launch needs the fence: otherwise a reader already sees work in flight.
        let first = self.in_flight.load(Ordering::Relaxed) == 0;
        self.in_flight.store(word, Ordering::Release);
        if first {
            fence(Ordering::SeqCst);
        }
    }

    /// Writes the whole report: after completions were seen, or after a launch that did not happen.
    ///
    /// If nothing is in flight any more and [`BoardSlot::is_unchanged`](super::BoardSlot::is_unchanged) is false
    /// afterwards, the daemon may be waiting for exactly this: the caller rings the tenant's bell.
    ///
    /// # Cost
    /// Eight stores and a fence.
    pub fn report_all(&self, said: &MemberReport) {
        self.submitted.store(said.submitted, Ordering::Relaxed);
        self.last_launch.store(said.last_launch, Ordering::Relaxed);
        self.since.store(said.since, Ordering::Relaxed);
        self.finished.store(said.finished, Ordering::Relaxed);
        self.busy.store(said.busy, Ordering::Relaxed);
        self.launched.store(said.launched, Ordering::Relaxed);
        self.known.store(said.known, Ordering::Relaxed);
        // Written last, so that a reader that sees nothing in flight also sees the sums.
        self.in_flight.store(encode(said.in_flight), Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

fn encode(in_flight: Option<u64>) -> u64 {
    match in_flight {
        None => IN_FLIGHT_UNKNOWN,
        Some(IN_FLIGHT_LATE) => IN_FLIGHT_LATE,
        Some(ns) => ns.min(IN_FLIGHT_UNKNOWN - 1),
    }
}

impl ReportPage {
    /// A zeroed page in ordinary memory, for tests.
    #[must_use]
    pub fn zeroed() -> Box<Self> {
        let slots = core::array::from_fn(|_| ReportSlot::zeroed());
        Box::new(Self { header: PageHeader::zeroed(), room: zeroed_words(), slots })
    }

    /// Turns a new memory file into a report. Only members check the header; the daemon never reads it again.
    pub fn format_page(&self, epoch: u64) {
        self.header.format_header(REPORT_MAGIC, epoch);
    }

    /// Checks that this is a report of this version and of this epoch.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn check(&self, epoch: u64) -> Result<(), PageError> {
        self.header.check(REPORT_MAGIC, epoch)
    }
}
