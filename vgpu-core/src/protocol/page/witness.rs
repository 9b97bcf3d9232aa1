//! The daemon's checks of a report: any bytes become possible values.
//!
//! Sums are a tenant's claims, and the clock limits them. A sum never shrinks. Device time cannot exceed the time
//! since the member joined, since each slot is one member on one device. Estimates have the same limit, so they are
//! never worth more than time. These checks cannot detect a report that is too low; that is the task of the audit
//! ([`crate::time::arbiter::audit`]).

use core::ops::Deref;

use super::report::{ContextSharing, IN_FLIGHT_LATE, IN_FLIGHT_UNKNOWN, ReportPage, ReportSlot};
use crate::sync::Ordering;
use crate::time::arbiter::{MemberPages, MemberUsage, SlotId};

/// Upper limit for reported work in flight: one hour, in nanoseconds.
const MAX_IN_FLIGHT_NS: u64 = 3_600_000_000_000;

/// Numbers of impossible reports by a member. For the daemon's metrics; they decide nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportFaults {
    /// A sum was smaller than before.
    pub shrank: u64,
    /// Device time exceeded the elapsed time.
    pub outran: u64,
    /// A time lay in the future, or before the member joined.
    pub misdated: u64,
}

/// History of one slot, kept by the daemon.
#[derive(Clone, Copy, Debug)]
pub struct ReportHistory {
    joined: u64,
    busy: u64,
    finished: u64,
    known: u64,
    launched: u64,
    last_launch: u64,
    faults: ReportFaults,
}

impl ReportHistory {
    /// For a slot that is given to a member at `now`, after [`ReportSlot::clear`].
    #[must_use]
    pub const fn new(now: u64) -> Self {
        let faults = ReportFaults { shrank: 0, outran: 0, misdated: 0 };
        Self { joined: now, busy: 0, finished: 0, known: 0, launched: 0, last_launch: now, faults }
    }

    /// Reads the member's report at `now`, which never decreases.
    ///
    /// Guarantees for the result: sums are not less than before and not more than the time since the slot was taken.
    /// `since` lies between that time and `now`. The work in flight is unknown, [`u64::MAX`] or at most one hour.
    ///
    /// # Cost
    /// Eight loads. No word is read twice, and the daemon never waits.
    pub fn read_report(&mut self, slot: &ReportSlot, now: u64) -> MemberUsage {
        // Read first: if it says that nothing is in flight, the sums read below are complete.
        let in_flight = slot.in_flight.load(Ordering::Acquire);
        let wants = slot.wants.load(Ordering::Acquire) != 0;
        let elapsed = now.saturating_sub(self.joined);
        let busy = slot.busy.load(Ordering::Relaxed);
        self.faults.outran += u64::from(busy > elapsed);
        let faults = &mut self.faults;
        let mut sum = |old: &mut u64, said: u64| {
            faults.shrank += u64::from(said < *old);
            *old = said.min(elapsed).max(*old);
            *old
        };
        let finished = sum(&mut self.finished, slot.finished.load(Ordering::Relaxed));
        let known = sum(&mut self.known, slot.known.load(Ordering::Relaxed));
        let busy = sum(&mut self.busy, busy);
        self.launched = self.launched.max(slot.launched.load(Ordering::Relaxed));
        let since = self.clamp_moment(slot.since.load(Ordering::Relaxed), now);
        self.last_launch = self.clamp_moment(slot.last_launch.load(Ordering::Relaxed), now).max(self.last_launch);
        let in_flight = match in_flight {
            IN_FLIGHT_UNKNOWN => None,
            IN_FLIGHT_LATE => Some(IN_FLIGHT_LATE),
            ns => Some(ns.min(MAX_IN_FLIGHT_NS)),
        };
        let idle = !wants && in_flight == Some(0);
        MemberUsage { busy, finished, known, in_flight, wants, since: if idle { now } else { since } }
    }

    /// Moves a time into the range from taking the slot to now. 0 means that nothing was reported yet and is no
    /// fault.
    fn clamp_moment(&mut self, moment: u64, now: u64) -> u64 {
        let possible = moment.min(now).max(self.joined.min(now));
        self.faults.misdated += u64::from(moment != possible && moment != 0);
        possible
    }

    /// Launches the member says it counted. Only grows; nothing is decided by it.
    #[must_use]
    pub const fn reported_launches(&self) -> u64 {
        self.launched
    }

    /// Time of the last launch by the member's own report; the time it joined, if it has not launched.
    #[must_use]
    pub const fn last_launch(&self) -> u64 {
        self.last_launch
    }

    /// Impossible values it reported so far.
    #[must_use]
    pub const fn reported_faults(&self) -> ReportFaults {
        self.faults
    }
}

/// All reports of a host, by the arbiter's slots. `P` is a mapping of a tenant's page, shared by that tenant's slots.
#[derive(Debug)]
pub struct Reports<P> {
    now: u64,
    places: Vec<Option<MappedSlot<P>>>,
}

#[derive(Debug)]
struct MappedSlot<P> {
    page: P,
    index: usize,
    witness: ReportHistory,
}

impl<P: Deref<Target = ReportPage>> Reports<P> {
    /// A witness without reports.
    #[must_use]
    pub const fn new() -> Self {
        Self { now: 0, places: Vec::new() }
    }

    /// Sets the time of the readings that follow. A time before the last one counts as the last one.
    pub fn set_now(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// Reads the arbiter's `slot` from slot `index` of `page` from now on, and clears that slot. Returns false and
    /// does nothing if the page has no such slot.
    pub fn join(&mut self, slot: SlotId, page: P, index: usize) -> bool {
        let Some(place) = page.slots.get(index) else { return false };
        place.clear();
        if self.places.len() <= slot.index() {
            self.places.resize_with(slot.index() + 1, || None);
        }
        self.places[slot.index()] = Some(MappedSlot { page, index, witness: ReportHistory::new(self.now) });
        true
    }

    /// Reports unknown work in flight for a member that has just joined and does not know it yet: it may have queued
    /// work.
    pub fn presume_work(&self, slot: SlotId) {
        let place = self.places.get(slot.index()).and_then(Option::as_ref);
        if let Some(report) = place.and_then(|place| place.page.slots.get(place.index)) {
            report.presume_work();
        }
    }

    /// How the driver runs a member's contexts, by its own report; `None`: it reported nothing.
    #[must_use]
    pub fn reported_contexts(&self, slot: SlotId) -> Option<ContextSharing> {
        let place = self.places.get(slot.index())?.as_ref()?;
        place.page.slots.get(place.index)?.reported_contexts()
    }

    /// Removes a member. Returns the numbers of its impossible reports.
    pub fn leave_slot(&mut self, slot: SlotId) -> Option<ReportFaults> {
        self.places.get_mut(slot.index()).and_then(Option::take).map(|place| place.witness.faults)
    }

    /// History of a slot; `None`: no such slot.
    #[must_use]
    pub fn slot_history(&self, slot: SlotId) -> Option<&ReportHistory> {
        self.places.get(slot.index())?.as_ref().map(|place| &place.witness)
    }
}

impl<P: Deref<Target = ReportPage>> Default for Reports<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// A slot without a report has nothing in flight and wants nothing.
impl<P: Deref<Target = ReportPage>> MemberPages for Reports<P> {
    fn read_usage(&mut self, slot: SlotId) -> MemberUsage {
        let now = self.now;
        let place = self.places.get_mut(slot.index()).and_then(Option::as_mut);
        match place.and_then(|place| Some((place.page.slots.get(place.index)?, &mut place.witness))) {
            Some((report, witness)) => witness.read_report(report, now),
            None => MemberUsage { in_flight: Some(0), since: now, ..MemberUsage::default() },
        }
    }
}
