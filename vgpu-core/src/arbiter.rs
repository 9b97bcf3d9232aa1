//! Who holds a device: soft-exclusive leases with weighted virtual time, as pure policy.
//!
//! A lease makes an interval belong to one member of one tenant, so that what events measure in it is that member's own
//! device time; this is what makes shares exact. In reading order: what is asked for ([`terms`](Terms)), what goes in
//! and comes out ([`Decision`], [`Usage`]), who is next (`order`), what is charged (`seat`), the life of a lease
//! (`device`, `drain`), several devices at once (`gang`), and whether it is true ([`audit`]).
//!
//! Driven by events: the caller tells what happens ([`Arbiter::wants`], [`Arbiter::reports`], [`Arbiter::leaves`],
//! [`Arbiter::set`]), then calls [`Arbiter::tick`], which returns the gates that changed, and calls it again at
//! [`Arbiter::next_deadline`]. Time is an argument; the members' pages are read through [`Pages`].
//!
//! Where this says more than "class, deficit, virtual time": a class is not passed over for ever ([`Config::ageing`]),
//! a floor far behind goes before classes ([`Config::patience`]); an arrival that is more than half a lease behind in
//! virtual time ends a lease early, so that a program that synchronises gets its part beside one that queues; the gate
//! is open only where nobody else was seen for [`Config::alone`] and no tenant of class latency is registered, since
//! what is queued through an open gate cannot be taken back; and a ceiling forgets unused time only while its tenant
//! wants nothing and has nothing in flight: waiting for a neighbour's long kernel is not idleness.
//!
//! # Cost
//! A decision is a handful of operations on search trees of the device's waiting tenants; members count only in their
//! tenant's own queue. Not here: sockets, pages, doorbells and clocks are the daemon's.

pub mod audit;
mod common;
mod decision;
mod device;
mod drain;
mod gang;
mod order;
mod seat;
mod standing;
mod terms;
#[cfg(all(test, not(loom)))]
mod tests;

pub use decision::{Decision, Gate, Pages, Usage};
pub use standing::{Standing, State};
pub use terms::{Class, Config, DeviceId, QUANTUM, SlotId, Tenant, Terms};

use device::{Device, Phase};
use seat::{Place, Seat, SeatIx, Slot};
use std::collections::BTreeMap;

/// The devices of a host and who waits for them.
#[derive(Debug)]
pub struct Arbiter {
    config: Config,
    devices: Vec<Device>,
    /// Tenants of class latency per device.
    latency: Vec<u32>,
    seats: Vec<Option<Seat>>,
    slots: Vec<Option<Slot>>,
    free_seats: Vec<SeatIx>,
    free_slots: Vec<SlotId>,
    tenants: BTreeMap<Tenant, Vec<SeatIx>>,
    watched: Vec<SlotId>,
}

fn index(d: DeviceId) -> usize {
    usize::from(d.0)
}

impl Arbiter {
    /// For `devices` devices, on a clock that says `now`.
    #[must_use]
    pub fn new(config: Config, devices: u16, now: u64) -> Self {
        Self {
            config,
            devices: (0..devices).map(|_| Device::new(now)).collect(),
            latency: vec![0; usize::from(devices)],
            seats: Vec::new(),
            slots: Vec::new(),
            free_seats: Vec::new(),
            free_slots: Vec::new(),
            tenants: BTreeMap::new(),
            watched: Vec::new(),
        }
    }

    /// One device more, under the next number.
    ///
    /// # Panics
    /// With the 65536th.
    pub fn add_device(&mut self, now: u64) -> DeviceId {
        let device = DeviceId(u16::try_from(self.devices.len()).expect("fewer than 2^16 devices"));
        self.devices.push(Device::new(now));
        self.latency.push(0);
        device
    }

    /// Has no tenant been there that was not forgotten? The number may then stand for another device.
    ///
    /// # Cost
    /// A look at every tenant on every device.
    #[must_use]
    pub fn is_unused(&self, device: DeviceId) -> bool {
        self.seats.iter().flatten().all(|seat| seat.device != device)
    }

    /// Other constants from now on; leases that run keep their end.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
        self.devices.iter_mut().for_each(|device| device.dirty = true);
    }

    /// A member comes to a device, with a gate that says [`Gate::Wait`]. `terms` count for the first member; a tenant that
    /// was there before comes back with the account and the virtual time that it left.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn join(&mut self, tenant: Tenant, device: DeviceId, terms: Terms, now: u64) -> SlotId {
        let known = self.find(tenant, device);
        let seat = known.unwrap_or_else(|| self.sit(tenant, device, now));
        if self.seat(seat).members.is_empty() {
            match known {
                Some(_) => self.other_terms(seat, terms, now),
                None => self.seat_mut(seat).terms = terms,
            }
            self.devices[index(device)].dirty = true;
            self.latency[index(device)] += u32::from(terms.class == Class::Latency);
        }
        self.devices[index(device)].fresh = true;
        self.devices[index(device)].dirty |= self.devices[index(device)].common;
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                SlotId(u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 members"))
            }
        };
        self.slots[slot.index()] = Some(Slot::new(seat, now));
        self.seat_mut(seat).members.push(slot);
        slot
    }

    /// A member that has just joined was here under another arbiter, and may have work before the device: until it says that it
    /// has none, it is overdue, and nobody has the device to itself.
    pub fn comes_back(&mut self, slot: SlotId, now: u64) {
        let seat = self.slot(slot).seat;
        let d = self.seat(seat).device;
        if self.devices[index(d)].phase == Phase::Common || self.slot(slot).overdue.is_some() {
            return;
        }
        self.devices[index(d)].count(now);
        let lost = self.devices[index(d)].lost;
        let this = self.slot_mut(slot);
        (this.overdue, this.usage.in_flight, this.lost_to) = (Some(now), None, lost);
        let device = &mut self.devices[index(d)];
        device.is_overdue(slot, now);
        device.dirty = true;
        self.place(seat, now);
    }

    fn find(&self, tenant: Tenant, device: DeviceId) -> Option<SeatIx> {
        self.tenants.get(&tenant)?.iter().copied().find(|&seat| self.seat(seat).device == device)
    }

    fn sit(&mut self, tenant: Tenant, device: DeviceId, now: u64) -> SeatIx {
        let seat = self.free_seats.pop().unwrap_or_else(|| {
            self.seats.push(None);
            u32::try_from(self.seats.len() - 1).expect("fewer than 2^32 tenants")
        });
        self.seats[seat as usize] = Some(Seat::new(tenant, device, Terms::default(), now));
        self.tenants.entry(tenant).or_default().push(seat);
        seat
    }

    /// A member is gone, with whatever it had in flight. Its slot may be given to another.
    pub fn leaves(&mut self, slot: SlotId, now: u64) {
        let seat = self.slot(slot).seat;
        let d = self.seat(seat).device;
        self.devices[index(d)].count(now);
        self.settle_death(slot, now);
        self.devices[index(d)].overdue.retain(|&member| member != slot);
        self.slot_mut(slot).overdue = None;
        self.seat_mut(seat).members.retain(|&member| member != slot);
        self.seat_mut(seat).queue.retain(|&member| member != slot);
        let device = &mut self.devices[index(d)];
        device.dirty = true;
        device.draining.retain(|&member| member != slot);
        if matches!(device.phase, Phase::Held { slot: holder, .. } if holder == slot) {
            self.drain(d, seat, now);
        }
        self.slots[slot.index()] = None;
        self.free_slots.push(slot);
        let last = self.seat(seat).members.is_empty();
        if last && self.devices[index(d)].phase.seat() == Some(seat) {
            self.devices[index(d)].phase = Phase::Free;
            self.seat_mut(seat).place = Place::Idle;
        }
        if self.seat(seat).queue.is_empty() || self.seat(seat).place == Place::Overdue {
            self.place(seat, now);
        }
        if last {
            // What it owes and is owed stays: a program that is started again and again is one tenant.
            self.release(self.seat(seat).tenant);
            self.latency[index(d)] -= u32::from(self.seat(seat).terms.class == Class::Latency);
        }
    }

    /// Who is killed with work before the device pays for the part of its lease that it had not measured: otherwise a
    /// program that dies in time would pay for nothing.
    fn settle_death(&mut self, slot: SlotId, now: u64) {
        self.settle_claim(slot, now);
        let (seat, usage) = (self.slot(slot).seat, self.slot(slot).usage);
        let d = self.seat(seat).device;
        let device = &self.devices[index(d)];
        let holds = matches!(device.phase, Phase::Held { slot: holder, .. } if holder == slot);
        if !(holds || device.draining.contains(&slot)) {
            return;
        }
        let owed = self.owed(d, seat, now);
        if usage.in_flight != Some(0) {
            let unpaid = self.unpaid(seat, now).min(now.saturating_sub(usage.since));
            self.pay(seat, unpaid);
            self.yield_to_others(seat, owed.saturating_sub(unpaid));
        } else {
            self.yield_to_others(seat, owed);
        }
    }

    /// The time since a holder was let in that was not charged to it yet.
    fn unpaid(&self, seat: SeatIx, now: u64) -> u64 {
        let device = &self.devices[index(self.seat(seat).device)];
        let paid = self.seat(seat).charged.saturating_sub(device.charged_before);
        now.saturating_sub(device.granted).saturating_sub(paid)
    }

    /// The tenant is gone for good, and what it owes with it. One that has members stays.
    pub fn forget(&mut self, tenant: Tenant) {
        let Some(seats) = self.tenants.get_mut(&tenant) else { return };
        let table = &mut self.seats;
        let free_seats = &mut self.free_seats;
        seats.retain(|&seat| {
            let place = &mut table[seat as usize];
            let stays = place.as_ref().is_some_and(|seat| !seat.members.is_empty());
            if !stays {
                *place = None;
                free_seats.push(seat);
            }
            stays
        });
        if seats.is_empty() {
            self.tenants.remove(&tenant);
        }
    }

    /// Changes what a tenant may have; in force with the next [`Self::tick`].
    pub fn set(&mut self, tenant: Tenant, device: DeviceId, terms: Terms, now: u64) {
        let Some(seat) = self.find(tenant, device).filter(|&seat| !self.seat(seat).members.is_empty()) else { return };
        let place = self.seat(seat).place;
        self.take_out(seat);
        let class = self.seat(seat).terms.class;
        self.latency[index(device)] += u32::from(terms.class == Class::Latency);
        self.latency[index(device)] -= u32::from(class == Class::Latency);
        self.other_terms(seat, terms, now);
        if matches!(place, Place::Ready | Place::Capped(_)) {
            self.place(seat, now);
        }
        self.devices[index(device)].dirty = true;
        self.devices[index(device)].revoke |= place == Place::Current;
    }

    /// What a tenant did under other terms is neither held against it nor a claim: a debt of 100 ms at 5 % would be two seconds
    /// without a lease at 90, and an hour without a floor an hour for which all other floors wait.
    fn other_terms(&mut self, seat: SeatIx, terms: Terms, now: u64) {
        let (config, clock) = (self.config, self.devices[index(self.seat(seat).device)].order.floor_clock(now));
        let seat = self.seat_mut(seat);
        if seat.terms.floor.is_none() {
            seat.floor_zero = clock;
        }
        if core::mem::replace(&mut seat.terms, terms).ceiling != terms.ceiling {
            seat.begin_anew(now, &config);
        }
    }

    /// A thread of this member stands at the gate (its doorbell rang).
    pub fn wants(&mut self, slot: SlotId, now: u64) {
        let seat = self.slot(slot).seat;
        let d = self.seat(seat).device;
        self.devices[index(d)].dirty = true;
        let holds = match self.devices[index(d)].phase {
            Phase::Held { slot: holder, .. } => holder == slot,
            Phase::Open { seat: holder } => holder == seat,
            // Asked for again when the drain is over.
            Phase::Drain { .. } => self.devices[index(d)].draining.contains(&slot),
            Phase::Free | Phase::Common => false,
        };
        self.slot_mut(slot).usage.wants = true;
        if self.devices[index(d)].phase == Phase::Common {
            return;
        }
        if holds {
            // Inside its lease, with nothing in flight: only its own account can have stopped it.
            let inside = matches!(self.devices[index(d)].phase, Phase::Held { until, .. } if now < until);
            self.seat_mut(seat).tired |= inside && self.slot(slot).usage.in_flight == Some(0);
        }
        if holds || self.slot(slot).queued {
            return;
        }
        if self.devices[index(d)].phase.seat() != Some(seat) {
            self.devices[index(d)].shared_at = now;
        }
        self.enqueue(slot);
        if self.seat(seat).place == Place::Idle {
            let order = &self.devices[index(d)].order;
            let clock = order.floor_clock(now);
            let (least, floor) = (order.least, order.first_floor().map_or(clock, |first| first.min(clock)));
            let config = self.config;
            self.seat_mut(seat).wake(least, floor, now, &config);
            self.place(seat, now);
            self.preempt(seat, d, now);
        }
    }

    /// An arrival far behind the holder in virtual time ends its lease, once that lasted a quarter.
    fn preempt(&mut self, seat: SeatIx, d: DeviceId, now: u64) {
        let Phase::Held { seat: holder, slot, since, until } = self.devices[index(d)].phase else { return };
        let (held, quantum) = (self.seat(holder), self.config.quantum_of(&self.seat(holder).terms));
        let (here, there) =
            (self.seat(seat).key_after(quantum / 2), held.key_after(now.saturating_sub(since).min(quantum)));
        if self.seat(seat).place == Place::Ready && here.class == there.class && here.virtual_time < there.virtual_time
        {
            let quarter = since.saturating_add(quantum / 4);
            let until = until.min(quarter.max(now));
            self.devices[index(d)].phase = Phase::Held { seat: holder, slot, since, until };
        }
    }

    /// What a member said last.
    ///
    /// # Panics
    /// If the slot is nobody's.
    #[must_use]
    pub fn said(&self, slot: SlotId) -> Usage {
        self.slot(slot).usage
    }

    /// What a member says of itself, outside of a tick: it yields, or its page was read for another reason.
    pub fn reports(&mut self, slot: SlotId, usage: Usage, now: u64) {
        self.absorb(slot, usage, now);
        let d = self.seat(self.slot(slot).seat).device;
        self.devices[index(d)].dirty = true;
    }

    /// Decides what is due at `now` and appends the gates that changed to `out`.
    pub fn tick(&mut self, now: u64, pages: &mut impl Pages, out: &mut Vec<Decision>) {
        // A device's decision may free or take another one: the second round is rare, a third rarer.
        for _ in 0..4 {
            let mut quiet = true;
            for at in 0..self.devices.len() {
                if self.devices[at].dirty || self.devices[at].deadline <= now {
                    quiet = false;
                    let d = DeviceId(u16::try_from(at).unwrap_or(u16::MAX));
                    self.decide(d, now, pages, out);
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// When [`Self::tick`] must be called although nothing happens; `None`: never.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let due = self.devices.iter().map(|device| if device.dirty { 0 } else { device.deadline }).min();
        due.filter(|&due| due != u64::MAX)
    }

    /// All device time charged to a tenant on a device.
    #[must_use]
    pub fn charged(&self, tenant: Tenant, device: DeviceId) -> u64 {
        self.find(tenant, device).map_or(0, |seat| self.seat(seat).charged)
    }

    fn enqueue(&mut self, slot: SlotId) {
        if !self.slot(slot).queued {
            self.slot_mut(slot).queued = true;
            let seat = self.slot(slot).seat;
            self.seat_mut(seat).queue.push_back(slot);
        }
    }

    /// Charges what a member newly measured.
    fn absorb(&mut self, slot: SlotId, usage: Usage, now: u64) {
        let (mut busy, finished) = self.slot_mut(slot).take(usage, now);
        let seat = self.slot(slot).seat;
        let d = self.seat(seat).device;
        self.devices[index(d)].count(now);
        let lost = self.devices[index(d)].lost;
        let drained = self.slot(slot).usage.in_flight == Some(0);
        let overdue = self.slot(slot).overdue.is_some();
        let doubt = &mut self.devices[index(d)].doubt;
        if !overdue {
            doubt.felt(busy, finished, now);
        } else if busy > 0 {
            doubt.progress(now);
        }
        let this = self.slot_mut(slot);
        if this.trailing && busy > 0 {
            // If the device turned to the next one before this was quite over, its last marker came a slice later.
            this.trailing = false;
            if busy > finished.saturating_add(finished / 4) {
                busy = finished.max(busy / 2);
            }
        } else {
            this.lost = this.lost.saturating_add(lost - this.lost_to);
            if this.lost > 0 {
                // Its events saw the slices of others too.
                let paid = finished.clamp(busy.saturating_sub(this.lost), busy);
                this.lost -= (busy - paid).min(this.lost);
                busy = paid;
            }
        }
        this.lost_to = lost;
        let before = busy.min(this.ahead);
        this.ahead -= before;
        let behind = (busy - before).min(this.behind);
        this.behind -= behind;
        if drained {
            (this.lost, this.ahead, this.behind) = (0, 0, 0);
        }
        self.pay_beside(seat, busy - before, busy - before - behind);
        // Another member that waits keeps the tenant from being idle.
        if self.seat(seat).queue.is_empty() {
            let since = if self.slot(slot).idle() { now } else { self.slot(slot).usage.since };
            self.seat_mut(seat).account.rest(since);
        }
    }

    fn pay(&mut self, seat: SeatIx, ns: u64) {
        self.pay_beside(seat, ns, ns);
    }

    /// Others come so much sooner; nothing is charged.
    fn yield_to_others(&mut self, seat: SeatIx, ns: u64) {
        self.pay_beside(seat, 0, ns);
    }

    /// Charges `ns`, of which `order` counts against others.
    fn pay_beside(&mut self, seat: SeatIx, ns: u64, order: u64) {
        if ns == 0 && order == 0 {
            return;
        }
        // The trees hold its keys.
        let place = self.take_out(seat);
        let device = &self.devices[index(self.seat(seat).device)];
        let (least, clock) = (device.order.least, device.order.floor_clock(device.counted_to));
        self.seat_mut(seat).spend(ns, order, least, clock);
        self.put_back(seat, place);
    }

    /// Where a seat belongs that is neither holder nor draining.
    fn place(&mut self, seat: SeatIx, now: u64) {
        if self.seat(seat).place == Place::Current {
            return;
        }
        self.take_out(seat);
        let place = if self.holds_up(seat, now) {
            Place::Overdue
        } else if self.seat(seat).queue.is_empty() {
            self.seat_mut(seat).slept = Some(now);
            Place::Idle
        } else if self.seat(seat).used_up(now) {
            Place::Capped(self.seat(seat).refill(&self.config).max(now + 1))
        } else {
            Place::Ready
        };
        let (d, class) = (self.seat(seat).device, self.seat(seat).terms.class);
        if place == Place::Ready {
            self.devices[index(d)].order.enters(class, now);
            if let Phase::Held { seat: holder, .. } = self.devices[index(d)].phase {
                self.devices[index(d)].revoke |= class == Class::Latency
                    && self.seat(holder).terms.class != Class::Latency
                    && !self.devices[index(d)].firm;
            }
        }
        self.put_back(seat, place);
    }

    /// Has one of its members work before the device that must be done before the tenant gets anything?
    fn holds_up(&self, seat: SeatIx, now: u64) -> bool {
        self.seat(seat).members.iter().any(|&slot| self.slot(slot).holds_up(now, &self.config).is_some())
    }

    fn take_out(&mut self, seat: SeatIx) -> Place {
        let (place, key, d) = (self.seat(seat).place, self.seat(seat).key(), self.seat(seat).device);
        let order = &mut self.devices[index(d)].order;
        match place {
            Place::Ready => order.remove(seat, key),
            Place::Capped(refill) => order.uncap(seat, refill),
            Place::Idle | Place::Current | Place::Overdue => {}
        }
        if matches!(place, Place::Ready | Place::Capped(_)) {
            self.seat_mut(seat).place = Place::Idle;
        }
        place
    }

    fn put_back(&mut self, seat: SeatIx, place: Place) {
        let (key, d) = (self.seat(seat).key(), self.seat(seat).device);
        let device = &mut self.devices[index(d)];
        match place {
            Place::Ready => device.order.insert(seat, key),
            Place::Capped(refill) => device.order.cap(seat, refill),
            Place::Idle | Place::Current | Place::Overdue => {}
        }
        self.seat_mut(seat).place = place;
    }

    fn tell(&mut self, slot: SlotId, gate: Gate, out: &mut Vec<Decision>) {
        let seat = self.slot(slot).seat;
        if self.slot(slot).gate != gate {
            self.slot_mut(slot).gate = gate;
            let (tenant, device) = (self.seat(seat).tenant, self.seat(seat).device);
            out.push(Decision { slot, tenant, device, gate });
        }
    }

    fn seat(&self, seat: SeatIx) -> &Seat {
        self.seats[seat as usize].as_ref().expect("a seat that is taken")
    }

    fn seat_mut(&mut self, seat: SeatIx) -> &mut Seat {
        self.seats[seat as usize].as_mut().expect("a seat that is taken")
    }

    fn slot(&self, slot: SlotId) -> &Slot {
        self.slots[slot.index()].as_ref().expect("a slot that is taken")
    }

    fn slot_mut(&mut self, slot: SlotId) -> &mut Slot {
        self.slots[slot.index()].as_mut().expect("a slot that is taken")
    }
}
