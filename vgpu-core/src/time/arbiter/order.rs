//! The order of tenants on a device: class, then the largest deficit against a floor, then the least virtual time.
//!
//! A deficit is kept as a time, like the account: when the floor was last served in full. The tenant with the
//! earliest time is proportionally the furthest behind, and comes first. The order does not change while nothing is
//! charged, so a search tree holds it. A charge first repays the floor's deficit. Only the rest raises virtual time, so
//! weights divide the remaining time.
//!
//! If the floors cannot all be met (work was lost, or they exceed the device), the floors' clock slips behind for all
//! of them alike, so that they stay in proportion. A tenant is at most [`ageing`](TimeConfig::ageing) behind its floor,
//! or ahead of it; time beyond that is lost.
//!
//! Two rules keep a class from starving. While a tenant is [`BURST_NS`] behind its floor, all tenants behind a floor go
//! before those that are not. A class that was passed over for [`ageing`](TimeConfig::ageing) gets one lease, for its
//! tenant without a floor that has the least virtual time.
//!
//! Not here: leases ([`super::device`]); the division of a charge, and the conditions for a seat to be ready
//! ([`super::seat`]).

use super::seat::SeatIx;
use crate::limits::Class;
use crate::time::config::{BASE, BURST_NS, TimeConfig};
use crate::time::virtual_time::advance_clock;
use std::collections::BTreeSet;

/// The tenants that want a device: those that may have it, and those whose ceiling is used up.
#[derive(Clone, Debug, Default)]
pub(super) struct SeatOrder {
    /// Seats that may have the device, of each class, by virtual time.
    ready: [BTreeSet<(u64, SeatIx)>; Class::COUNT],
    /// Seats of `ready` that have a floor, by the time their floor was last served in full.
    floors: [BTreeSet<(u64, SeatIx)>; Class::COUNT],
    /// Seats whose ceiling is used up, by the time of their refill.
    capped: BTreeSet<(u64, SeatIx)>,
    /// When each class was last served outside floors: its last such lease, or when no tenant of it waited.
    served: [u64; Class::COUNT],
    /// How far the floors' clock is behind, because the floors could not all be met.
    slip: u64,
    /// The least virtual time in each class among the tenants that want the device; never decreases. Virtual times of
    /// different classes are not comparable: a class that is served first runs ahead for ever.
    least: [u64; Class::COUNT],
}

/// The part of a seat that the order needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeatKey {
    pub class: Class,
    pub virtual_time: u64,
    /// When the floor was last served in full; `None` without a floor.
    pub floor: Option<u64>,
}

impl SeatOrder {
    pub fn insert(&mut self, seat: SeatIx, key: SeatKey) {
        let class = key.class.rank();
        self.ready[class].insert((key.virtual_time, seat));
        if let Some(zero) = key.floor {
            self.floors[class].insert((zero, seat));
        }
    }

    pub fn remove(&mut self, seat: SeatIx, key: SeatKey) {
        let class = key.class.rank();
        self.ready[class].remove(&(key.virtual_time, seat));
        if let Some(zero) = key.floor {
            self.floors[class].remove(&(zero, seat));
        }
    }

    pub fn cap_seat(&mut self, seat: SeatIx, refill: u64) {
        self.capped.insert((refill, seat));
    }

    pub fn uncap_seat(&mut self, seat: SeatIx, refill: u64) {
        self.capped.remove(&(refill, seat));
    }

    /// The next refill: when a balance will be sufficient again, and whose.
    pub fn next_refill(&self) -> Option<(u64, SeatIx)> {
        self.capped.first().copied()
    }

    pub fn any_ready(&self) -> bool {
        self.ready.iter().any(|class| !class.is_empty())
    }

    pub fn any(&self) -> bool {
        self.any_ready() || !self.capped.is_empty()
    }

    pub fn latency_waits(&self) -> bool {
        !self.ready[Class::Latency.rank()].is_empty()
    }

    /// A tenant of this class begins to wait. If it is the only one, its class was not passed over until now.
    pub fn note_waiting(&mut self, class: Class, now: u64) {
        if self.ready[class.rank()].is_empty() {
            self.note_served(class, now);
        }
    }

    pub fn note_served(&mut self, class: Class, now: u64) {
        self.served[class.rank()] = now;
    }

    /// The floors' clock: `now`, less the time by which it was set back because the floors could not all be met.
    pub fn floor_clock(&self, now: u64) -> u64 {
        now.saturating_sub(self.slip)
    }

    /// True if the seat is behind its floor.
    pub fn is_behind_floor(&self, key: SeatKey, now: u64) -> bool {
        key.floor.is_some_and(|zero| zero < self.floor_clock(now))
    }

    /// The earliest floor time among those that wait.
    pub fn first_floor(&self) -> Option<u64> {
        self.floors.iter().filter_map(|class| class.first()).map(|first| first.0).min()
    }

    /// Raises the least virtual times to those of the waiting tenants and the holder.
    pub fn advance_clocks(&mut self, holder: Option<SeatKey>) {
        for (class, least) in self.least.iter_mut().enumerate() {
            let waiting = self.ready[class].first().map(|first| first.0);
            let holder = holder.filter(|key| key.class.rank() == class).map(|key| key.virtual_time);
            *least = advance_clock(*least, waiting.into_iter().chain(holder));
        }
    }

    /// The least virtual time of a class, from when a tenant of it last wanted the device.
    pub fn least_time(&self, class: Class) -> u64 {
        self.least[class.rank()]
    }

    /// The least virtual time of a class, or the least among its waiting tenants if that is more: the base for how
    /// far a tenant outside the queue is ahead.
    pub fn least_waiting(&self, class: Class) -> u64 {
        let waiting = self.ready[class.rank()].first().map_or(0, |first| first.0);
        waiting.max(self.least_time(class))
    }

    /// Sets the floors' clock back if the floors could not all be met.
    pub fn bound_lag(&mut self, now: u64) {
        if let Some(first) = self.first_floor() {
            let lag = self.floor_clock(now).saturating_sub(first);
            self.slip += lag.saturating_sub(BASE.ageing);
        }
    }

    /// The seat to run now, among those for which `may` is true. Call [`Self::bound_lag`] before.
    pub fn pick_next(&self, now: u64, config: &TimeConfig, may: impl Fn(SeatIx) -> bool) -> Option<SeatIx> {
        let clock = self.floor_clock(now);
        let first = |set: &BTreeSet<(u64, SeatIx)>| set.iter().copied().find(|&(_, seat)| may(seat));
        let patient = clock.saturating_sub(BURST_NS);
        for class in (1..Class::COUNT).filter(|&class| now.saturating_sub(self.served[class]) >= config.ageing) {
            let floors = &self.floors[class];
            let mut without = self.ready[class].iter().map(|&(_, seat)| seat);
            let has_floor = |seat: SeatIx| floors.iter().any(|&(_, other)| other == seat);
            if let Some(seat) = without.find(|&seat| may(seat) && !has_floor(seat)) {
                return Some(seat);
            }
        }
        if self.floors.iter().filter_map(first).any(|(zero, _)| zero < patient) {
            return self.floors.iter().filter_map(first).find(|&(zero, _)| zero < clock).map(|(_, seat)| seat);
        }
        let choose = |class: usize| match first(&self.floors[class]) {
            Some((zero, seat)) if zero < clock => Some(seat),
            _ => first(&self.ready[class]).map(|(_, seat)| seat),
        };
        (0..Class::COUNT).find_map(choose)
    }

    /// True if this seat would be picked among those for which `count` is true.
    pub fn would_lead(
        &self,
        seat: SeatIx,
        key: SeatKey,
        now: u64,
        config: &TimeConfig,
        count: impl Fn(SeatIx) -> bool,
    ) -> bool {
        let first = |set: &BTreeSet<(u64, SeatIx)>| {
            set.iter().copied().find(|&(_, other)| other == seat || count(other)).map(|(at, other)| (other, at))
        };
        let aged = now.saturating_sub(self.served[key.class.rank()]) >= config.ageing;
        if !aged && self.ready[..key.class.rank()].iter().any(|class| first(class).is_some()) {
            return false;
        }
        let clock = self.floor_clock(now);
        match first(&self.floors[key.class.rank()]) {
            Some((other, zero)) if zero < clock => other == seat,
            _ => first(&self.ready[key.class.rank()]).is_some_and(|(other, _)| other == seat),
        }
    }

    /// True if a holder with key `holder` keeps the device against `next`, which [`Self::pick_next`] chose.
    pub fn keeps_device(&self, holder: SeatKey, next: SeatKey, now: u64, config: &TimeConfig) -> bool {
        if holder.class != next.class {
            return holder.class < next.class
                && now.saturating_sub(self.served[next.class.rank()]) < config.ageing
                && next.floor.is_none_or(|zero| zero >= self.floor_clock(now).saturating_sub(BURST_NS));
        }
        let behind = |key: SeatKey| key.floor.filter(|_| self.is_behind_floor(key, now));
        match (behind(holder), behind(next)) {
            (Some(holder), Some(next)) => holder <= next,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => holder.virtual_time <= next.virtual_time,
        }
    }
}
