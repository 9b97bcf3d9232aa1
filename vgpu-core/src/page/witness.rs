//! What the daemon makes of a report: whatever bytes stand there, only what is possible.
//!
//! A sum is a tenant's word against the clock. It never shrinks, and device time cannot exceed the time since the member
//! came, since a member is on one device here; an estimate is held to the same bound, so that estimates are never worth
//! more than time. What it says too little of is the audit's ([`crate::arbiter::audit`]): nothing here can know it.

use core::ops::Deref;

use super::report::{LONGER, ReportPage, ReportSlot, UNKNOWN};
use crate::arbiter::{Pages, SlotId, Usage};
use crate::sync::Ordering;

/// Nothing that is in flight is expected to take longer: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// How often a member said what cannot be. For the daemon's metrics; nothing is decided on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A sum was smaller than before.
    pub shrank: u64,
    /// Device time ran ahead of the clock.
    pub outran: u64,
    /// A moment lay in the future or before the member came.
    pub misdated: u64,
}

/// One slot's history, in the daemon.
#[derive(Clone, Copy, Debug)]
pub struct Witness {
    joined: u64,
    busy: u64,
    finished: u64,
    known: u64,
    launched: u64,
    last_launch: u64,
    faults: Faults,
}

impl Witness {
    /// For a slot that is given away at `now`, after [`ReportSlot::clear`].
    #[must_use]
    pub const fn new(now: u64) -> Self {
        let faults = Faults { shrank: 0, outran: 0, misdated: 0 };
        Self { joined: now, busy: 0, finished: 0, known: 0, launched: 0, last_launch: now, faults }
    }

    /// Reads what the member says at `now`, which never goes back.
    ///
    /// Afterwards: sums are not less than before and not more than the time since the slot was taken; `since` lies
    /// between then and now; what is in flight is unknown, [`u64::MAX`] or at most an hour.
    ///
    /// # Cost
    /// Eight loads. No word is read twice, nothing is waited for.
    pub fn look(&mut self, slot: &ReportSlot, now: u64) -> Usage {
        // First of all: nothing in flight means that the sums are there.
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
        let since = self.dated(slot.since.load(Ordering::Relaxed), now);
        self.last_launch = self.dated(slot.last_launch.load(Ordering::Relaxed), now).max(self.last_launch);
        let in_flight = match in_flight {
            UNKNOWN => None,
            LONGER => Some(LONGER),
            ns => Some(ns.min(LONGEST)),
        };
        let idle = !wants && in_flight == Some(0);
        Usage { busy, finished, known, in_flight, wants, since: if idle { now } else { since } }
    }

    /// A moment between when the slot was taken and now. 0: nothing was said yet.
    fn dated(&mut self, moment: u64, now: u64) -> u64 {
        let possible = moment.min(now).max(self.joined.min(now));
        self.faults.misdated += u64::from(moment != possible && moment != 0);
        possible
    }

    /// How many launches it counted, as it says itself. Only grows; never decided on.
    #[must_use]
    pub const fn launched(&self) -> u64 {
        self.launched
    }

    /// When it launched last, as it says itself; when it came, if it has not.
    #[must_use]
    pub const fn last_launch(&self) -> u64 {
        self.last_launch
    }

    /// What it said that cannot be.
    #[must_use]
    pub const fn faults(&self) -> Faults {
        self.faults
    }
}

/// All reports of a host, by the arbiter's slots. `P` is a mapping of a tenant's page, shared by its slots.
#[derive(Debug)]
pub struct Reports<P> {
    now: u64,
    places: Vec<Option<Place<P>>>,
}

#[derive(Debug)]
struct Place<P> {
    page: P,
    index: usize,
    witness: Witness,
}

impl<P: Deref<Target = ReportPage>> Reports<P> {
    /// Of nobody yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { now: 0, places: Vec::new() }
    }

    /// The time of the readings that follow; one that lies before the last one counts as the last one.
    pub fn at(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// The arbiter's `slot` says what it says in slot `index` of `page`, which is cleared. False, and nothing is done: the
    /// page has no such slot.
    pub fn join(&mut self, slot: SlotId, page: P, index: usize) -> bool {
        let Some(place) = page.slots.get(index) else { return false };
        place.clear();
        if self.places.len() <= slot.index() {
            self.places.resize_with(slot.index() + 1, || None);
        }
        self.places[slot.index()] = Some(Place { page, index, witness: Witness::new(self.now) });
        true
    }

    /// The member of that slot, which has just joined and has not been told so, may have work before the device.
    pub fn presume(&self, slot: SlotId) {
        let place = self.places.get(slot.index()).and_then(Option::as_ref);
        if let Some(report) = place.and_then(|place| place.page.slots.get(place.index)) {
            report.presume();
        }
    }

    /// A member is gone. Says what it had said that cannot be.
    pub fn leave(&mut self, slot: SlotId) -> Option<Faults> {
        self.places.get_mut(slot.index()).and_then(Option::take).map(|place| place.witness.faults)
    }

    /// Somebody's history; `None`: no such slot.
    #[must_use]
    pub fn witness(&self, slot: SlotId) -> Option<&Witness> {
        self.places.get(slot.index())?.as_ref().map(|place| &place.witness)
    }
}

impl<P: Deref<Target = ReportPage>> Default for Reports<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// Whoever is not here has nothing in flight and wants nothing.
impl<P: Deref<Target = ReportPage>> Pages for Reports<P> {
    fn usage(&mut self, slot: SlotId) -> Usage {
        let now = self.now;
        let place = self.places.get_mut(slot.index()).and_then(Option::as_mut);
        match place.and_then(|place| Some((place.page.slots.get(place.index)?, &mut place.witness))) {
            Some((report, witness)) => witness.look(report, now),
            None => Usage { in_flight: Some(0), since: now, ..Usage::default() },
        }
    }
}
