//! The life of a lease on one device: grant, renew, revoke, drain, expire.
//!
//! ```text
//! Free ──pick──► Held ──over, yielded, used up, revoked──► Drain ──nothing in flight──► Free
//!   └──alone, no ceiling──► Open ──somebody else wants──────┘  └──longer than R──► overdue, Free
//! ```
//!
//! Not here: what drains and what it costs ([`super::drain`]), who is next ([`super::order`]), leases on several devices at
//! once ([`super::gang`]).

use super::audit::Doubt;
use super::decision::{Decision, Gate, Pages};
use super::order::Order;
use super::seat::{Place, SeatIx};
use super::terms::{Class, DeviceId, SlotId, Tenant};
use super::{Arbiter, index};

/// Whose the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    /// Everybody's: no leases.
    Common,
    Open {
        seat: SeatIx,
    },
    Held {
        seat: SeatIx,
        slot: SlotId,
        since: u64,
        until: u64,
    },
    /// `until`: when its allowance is used up.
    Drain {
        seat: SeatIx,
        since: u64,
        until: u64,
    },
}

impl Phase {
    pub fn seat(self) -> Option<SeatIx> {
        match self {
            Self::Free | Self::Common => None,
            Self::Open { seat } | Self::Held { seat, .. } | Self::Drain { seat, .. } => Some(seat),
        }
    }
}

#[derive(Debug)]
pub(super) struct Device {
    pub phase: Phase,
    pub order: Order,
    /// Slots whose work the drain waits for.
    pub draining: Vec<SlotId>,
    pub overdue: Vec<SlotId>,
    /// Whether their work is really there.
    pub doubt: Doubt,
    pub lease: u64,
    pub deadline: u64,
    pub dirty: bool,
    /// A tenant that gets several devices at once is collecting this one.
    pub reserved: Option<Tenant>,
    /// When the last of its devices is expected to be free.
    pub expected: u64,
    pub lent_again: bool,
    /// An arrival is owed the device: the lease ends now.
    pub revoke: bool,
    /// What the holder had been charged when it was let in.
    pub charged_before: u64,
    /// When that was.
    pub granted: u64,
    /// And up to when its floor had been served.
    pub floor_before: u64,
    /// Since when others have waited for the holder, and what it had been charged then.
    pub contended: Option<(u64, u64)>,
    /// No arrival ends the lease.
    pub firm: bool,
    /// Nobody who may use it says anything about time: it is to be everybody's.
    pub common: bool,
    /// Somebody came, or was held or let go, since gates were last told in common.
    pub fresh: bool,
    /// When it last went from one tenant to another, or another wanted it.
    pub shared_at: u64,
    pub last: Option<SeatIx>,
    /// Time that each of those before the device lost to the others, since the beginning.
    pub lost: u64,
    pub counted_to: u64,
}

impl Device {
    pub fn new(now: u64) -> Self {
        Self {
            phase: Phase::Free,
            order: Order::default(),
            draining: Vec::new(),
            overdue: Vec::new(),
            doubt: Doubt::default(),
            lease: 0,
            deadline: u64::MAX,
            dirty: false,
            reserved: None,
            expected: 0,
            lent_again: false,
            revoke: false,
            shared_at: now,
            charged_before: 0,
            granted: now,
            floor_before: 0,
            contended: None,
            firm: false,
            common: false,
            fresh: false,
            last: None,
            lost: 0,
            counted_to: now,
        }
    }

    /// Whether something is believed to run beside whoever has it.
    pub fn is_shared(&self, now: u64) -> bool {
        !self.overdue.is_empty() && !self.doubt.holds(now)
    }

    /// Its work goes on beside others from now on.
    pub fn is_overdue(&mut self, slot: SlotId, now: u64) {
        self.doubt.claimed(now);
        self.overdue.push(slot);
    }

    /// Brings the lost time up to `now`; before every change of who is before the device.
    pub fn count(&mut self, now: u64) {
        let overdue = if self.is_shared(now) { self.overdue.len() as u64 } else { 0 };
        let sharing = overdue + u64::from(self.phase != Phase::Free);
        let span = now.saturating_sub(self.counted_to);
        self.lost = self.lost.saturating_add(span - span / sharing.max(1));
        self.counted_to = now;
    }
}

impl Arbiter {
    /// Brings one device up to `now`.
    pub(super) fn decide(&mut self, d: DeviceId, now: u64, pages: &mut impl Pages, out: &mut Vec<Decision>) {
        self.devices[index(d)].dirty = false;
        self.devices[index(d)].count(now);
        let mut told = out.len();
        self.look(d, now, pages);
        self.settle_overdue(d, now);
        self.refill(d, now);
        let holder = self.devices[index(d)].phase.seat();
        let virtual_time = holder.map(|seat| self.seat(seat).virtual_time);
        self.devices[index(d)].order.advance(virtual_time);
        while self.step(d, now, out) {
            // Gates first, then the pages: what a member announced before it saw its gate shut is seen here.
            pages.tell(&out[told..]);
            told = out.len();
            self.look(d, now, pages);
        }
        pages.tell(&out[told..]);
        self.devices[index(d)].revoke = false;
        self.devices[index(d)].deadline = self.deadline(d, now);
    }

    /// Reads the pages of those that are before the device.
    fn look(&mut self, d: DeviceId, now: u64, pages: &mut impl Pages) {
        let mut watched = core::mem::take(&mut self.watched);
        let device = &self.devices[index(d)];
        watched.extend(&device.overdue);
        watched.extend(&device.draining);
        if let Phase::Held { slot, .. } = device.phase {
            watched.push(slot);
        }
        for slot in watched.drain(..) {
            let usage = pages.usage(slot);
            self.absorb(slot, usage, now);
        }
        self.watched = watched;
    }

    /// Puts back those whose balance is enough again.
    fn refill(&mut self, d: DeviceId, now: u64) {
        while let Some((refill, seat)) = self.devices[index(d)].order.refill() {
            if refill > now {
                break;
            }
            self.devices[index(d)].order.uncap(seat, refill);
            self.seat_mut(seat).place = Place::Idle;
            self.seat_mut(seat).tired = false;
            self.place(seat, now);
        }
    }

    /// One change of phase; false when nothing is to be done before the deadline.
    fn step(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) -> bool {
        match self.devices[index(d)].phase {
            Phase::Common => self.in_common(d, now, out),
            _ if self.devices[index(d)].common => self.make_common(d),
            Phase::Free => self.grant(d, now, out),
            Phase::Open { seat } => {
                if !self.wanted_by_others(d, now) && self.seat(seat).may_be_alone() {
                    // A member that came since.
                    self.open(d, seat, out);
                    return false;
                }
                self.close(d, seat, now, out);
                true
            }
            Phase::Held { seat, slot, until, .. } => {
                if self.ends(d, now, out) {
                    let gate = match self.seat(seat).used_up(now) {
                        true => Gate::Cap { until: self.seat(seat).refill(&self.config) },
                        false => Gate::Wait,
                    };
                    self.tell(slot, gate, out);
                    let device = &mut self.devices[index(d)];
                    device.draining.clear();
                    device.draining.push(slot);
                    self.drain(d, seat, now);
                    return true;
                }
                // Nobody else for long: no lease is needed.
                if until == u64::MAX && self.may_open(d, seat, now) {
                    self.open(d, seat, out);
                }
                false
            }
            Phase::Drain { seat, .. } => {
                let overlap = self.config.overlap;
                let over = |flight: Option<u64>| flight.is_some_and(|ns| ns < overlap);
                let drained = {
                    let device = &self.devices[index(d)];
                    device.draining.iter().all(|&slot| over(self.slot(slot).usage.in_flight))
                };
                let end = self.allowance(d);
                let waited_for = self.devices[index(d)].order.any_ready() || self.devices[index(d)].reserved.is_some();
                let stuck = now >= self.stuck_at(d) && self.waits_for_itself(d, seat);
                if !(drained || now >= end && waited_for || stuck) {
                    return false;
                }
                self.drained(d, seat, now, (!drained).then_some(end));
                true
            }
        }
    }

    /// Does the lease end now? Renews it if not.
    fn ends(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) -> bool {
        let Phase::Held { seat, slot, since, until } = self.devices[index(d)].phase else { return false };
        let terms = self.seat(seat).terms;
        let others = self.contended(d, seat);
        let charged = self.seat(seat).charged;
        let before = self.devices[index(d)].contended;
        self.devices[index(d)].contended = others.then(|| before.unwrap_or((now, charged)));
        // What is in flight serves it when it is measured.
        if others && before.is_none() && self.slot(slot).usage.in_flight == Some(0) {
            self.was_alone(d, seat, now);
        }
        if self.seat(seat).used_up(now) {
            return true;
        }
        if self.slot(slot).idle() && (others || self.devices[index(d)].order.any()) {
            return true;
        }
        let device = &self.devices[index(d)];
        if device.revoke {
            return true;
        }
        let quantum = self.config.quantum_of(&terms);
        if until == u64::MAX {
            if !others && device.reserved.is_none() {
                return false;
            }
            // It had the device to itself; from now on it has one quantum, counted from the grant.
            let until = since.saturating_add(quantum);
            if until <= now {
                return true;
            }
            self.renew(d, until, now, out);
            return false;
        }
        if now < until {
            return false;
        }
        if device.reserved.is_some() {
            return true;
        }
        if !others {
            self.renew(d, u64::MAX, now, out);
            return false;
        }
        // Another member's turn, or another tenant's. What is in flight counts as charged: the time since the grant that
        // was not paid for yet, and what is expected.
        let flies = self.slot(slot).usage.in_flight != Some(0);
        let unpaid = if flies { self.unpaid(seat, now) } else { self.owed(d, seat, now) };
        let key = self.seat(seat).key_after(unpaid.saturating_add(self.slot(slot).usage.expected()));
        let next = self.pick(d, now, None);
        let keeps = self.seat(seat).queue.is_empty()
            && next.is_none_or(|next| {
                let next = self.seat(next).key();
                self.devices[index(d)].order.keeps(key, next, now, &self.config)
            });
        if keeps {
            self.renew(d, now.saturating_add(quantum), now, out);
        }
        !keeps
    }

    fn renew(&mut self, d: DeviceId, until: u64, now: u64, out: &mut Vec<Decision>) {
        let device = &mut self.devices[index(d)];
        let Phase::Held { seat, slot, since, .. } = device.phase else { return };
        device.phase = Phase::Held { seat, slot, since, until };
        self.run(d, seat, slot, until, now, out);
    }

    /// Gives the free device to whoever is next; false when nobody is.
    fn grant(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) -> bool {
        if self.devices[index(d)].reserved.is_some() {
            return self.collect(d, now, out);
        }
        let Some(seat) = self.pick(d, now, None) else { return false };
        if self.is_gang(seat) {
            return self.assemble(d, seat, now, out);
        }
        self.give(d, seat, u64::MAX, now, out);
        true
    }

    /// Grants, at most until `limit`.
    pub(super) fn give(&mut self, d: DeviceId, seat: SeatIx, limit: u64, now: u64, out: &mut Vec<Decision>) {
        let (key, charged, served) = (self.seat(seat).key(), self.seat(seat).charged, self.seat(seat).floor_zero);
        let quantum = self.config.quantum_of(&self.seat(seat).terms);
        let device = &mut self.devices[index(d)];
        device.order.remove(seat, key);
        device.order.granted(key.class, now);
        device.lease += 1;
        device.charged_before = charged;
        (device.granted, device.floor_before) = (now, served);
        device.firm = device.order.overdue;
        if device.last != Some(seat) {
            (device.last, device.shared_at) = (Some(seat), now);
        }
        self.seat_mut(seat).place = Place::Current;
        if self.may_open(d, seat, now) {
            self.open(d, seat, out);
            return;
        }
        let Some(slot) = self.seat_mut(seat).queue.pop_front() else {
            self.seat_mut(seat).place = Place::Idle;
            return;
        };
        self.devices[index(d)].revoke = false;
        self.slot_mut(slot).queued = false;
        // Until its page says otherwise.
        self.slot_mut(slot).usage.wants = true;
        self.slot_mut(slot).lost_to = self.devices[index(d)].lost;
        self.slot_mut(slot).lost = 0;
        let contended = self.contended(d, seat);
        self.devices[index(d)].contended = contended.then_some((now, charged));
        let until = if contended { now.saturating_add(quantum).min(limit) } else { limit };
        self.devices[index(d)].phase = Phase::Held { seat, slot, since: now, until };
        self.run(d, seat, slot, until, now, out);
    }

    fn run(&mut self, d: DeviceId, seat: SeatIx, slot: SlotId, until: u64, now: u64, out: &mut Vec<Decision>) {
        let device = &self.devices[index(d)];
        let ceiling = self.seat(seat).terms.limit().map(|limit| (limit, self.seat(seat).account));
        let gate = Gate::Run { lease: device.lease, until, exclusive: !device.is_shared(now), ceiling };
        self.tell(slot, gate, out);
    }

    /// Somebody besides the holding member may run.
    fn contended(&self, d: DeviceId, seat: SeatIx) -> bool {
        self.devices[index(d)].order.any_ready() || !self.seat(seat).queue.is_empty()
    }

    fn wanted_by_others(&self, d: DeviceId, now: u64) -> bool {
        let device = &self.devices[index(d)];
        device.order.any() || device.is_shared(now) || device.reserved.is_some()
    }

    fn may_open(&self, d: DeviceId, seat: SeatIx, now: u64) -> bool {
        let device = &self.devices[index(d)];
        !self.wanted_by_others(d, now)
            && self.seat(seat).may_be_alone()
            && now.saturating_sub(device.shared_at) >= self.config.alone
            && !self.latency_beside(d, seat)
    }

    /// A latency tenant that is here, wanting or not: nobody gets the device without bounds beside it.
    fn latency_beside(&self, d: DeviceId, seat: SeatIx) -> bool {
        self.latency[index(d)] > u32::from(self.seat(seat).terms.class == Class::Latency)
    }

    fn open(&mut self, d: DeviceId, seat: SeatIx, out: &mut Vec<Decision>) {
        (self.devices[index(d)].phase, self.devices[index(d)].contended) = (Phase::Open { seat }, None);
        self.seat_mut(seat).queue.clear();
        for at in 0..self.seat(seat).members.len() {
            let slot = self.seat(seat).members[at];
            self.slot_mut(slot).queued = false;
            self.tell(slot, Gate::Open, out);
        }
    }

    /// Whoever had the device to itself up to now fell no further behind its floor, whatever it did with it.
    fn was_alone(&mut self, d: DeviceId, seat: SeatIx, now: u64) {
        let device = &self.devices[index(d)];
        let had = device.floor_before.saturating_add(now.saturating_sub(device.granted));
        let served = device.order.floor_clock(now).min(had);
        let zero = &mut self.seat_mut(seat).floor_zero;
        *zero = served.max(*zero);
    }

    fn close(&mut self, d: DeviceId, seat: SeatIx, now: u64, out: &mut Vec<Decision>) {
        self.was_alone(d, seat, now);
        // What went through the open gate before nobody waited for.
        let charged = self.seat(seat).charged;
        let device = &mut self.devices[index(d)];
        (device.granted, device.charged_before) = (now, charged);
        device.draining.clear();
        for at in 0..self.seat(seat).members.len() {
            let slot = self.seat(seat).members[at];
            self.tell(slot, Gate::Wait, out);
            self.slot_mut(slot).usage.in_flight = None;
            self.devices[index(d)].draining.push(slot);
        }
        self.drain(d, seat, now);
    }

    /// When this device must be looked at again without an event.
    fn deadline(&self, d: DeviceId, now: u64) -> u64 {
        let device = &self.devices[index(d)];
        let refill = device.order.refill().map_or(u64::MAX, |(refill, _)| refill);
        let phase = match device.phase {
            Phase::Free | Phase::Common | Phase::Open { .. } => u64::MAX,
            Phase::Held { seat, slot, until: u64::MAX, .. } if self.slot(slot).idle() => {
                // It may work again without asking; its own account keeps it, a look now and then is enough.
                let limited = self.seat(seat).terms.limit().is_some();
                if limited { now.saturating_add(self.config.alone) } else { u64::MAX }
            }
            Phase::Held { seat, until, .. } => {
                let seat = self.seat(seat);
                let alone = seat.terms.limit().is_none() && until == u64::MAX && !device.order.any();
                let opens = if alone { device.shared_at.saturating_add(self.config.alone) } else { u64::MAX };
                let opens = if opens > now { opens } else { u64::MAX };
                until.min(now.saturating_add(seat.lasts(now, &self.config))).min(opens)
            }
            Phase::Drain { .. } => {
                // Afterwards it is the member's report, or somebody's wish, that matters.
                [self.allowance(d), self.stuck_at(d)].into_iter().find(|&moment| moment > now).unwrap_or(u64::MAX)
            }
        };
        let back = device.overdue.iter().filter_map(|&slot| self.slot(slot).holds_up(now, &self.config)).min();
        phase.min(refill).min(back.unwrap_or(u64::MAX))
    }
}
