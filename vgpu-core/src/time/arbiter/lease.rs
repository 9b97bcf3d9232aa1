//! The life of a lease: granted, renewed, ended.
//!
//! Not here: the drain after its end ([`super::drain`]), the choice of the next ([`super::order`]), leases on several
//! devices at once ([`super::gang`]).

use super::decision::{Decision, Gate};
use super::device::Phase;
use super::seat::{Place, SeatIx};
use super::terms::{DeviceId, SlotId};
use super::{Arbiter, index};

impl Arbiter {
    /// True if the lease ends now; renews it if not.
    pub(super) fn ends(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) -> bool {
        let Phase::Held { seat, slot, since, until } = self.devices[index(d)].phase else { return false };
        let terms = self.seat(seat).terms;
        let others = self.contended(d, seat);
        let charged = self.seat(seat).charged;
        let before = self.devices[index(d)].contended;
        self.devices[index(d)].contended = others.then(|| before.unwrap_or((now, charged)));
        // If work is in flight, it counts towards the tenant's floor later, when it is measured.
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
            // The holder had the device to itself; from now on it has one quantum, counted from the grant.
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
        // Another member's or tenant's turn may be due. Work in flight counts as charged: the unpaid time since the
        // grant, and the time it is expected to take.
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

    /// Grants the free device to the next tenant; false when there is none.
    pub(super) fn grant(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) -> bool {
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

    /// Grants the device, at most until `limit`.
    pub(super) fn give(&mut self, d: DeviceId, seat: SeatIx, limit: u64, now: u64, out: &mut Vec<Decision>) {
        let (key, charged, served) = (self.seat(seat).key(), self.seat(seat).charged, self.seat(seat).floor_zero);
        let quantum = self.config.quantum_of(&self.seat(seat).terms);
        let device = &mut self.devices[index(d)];
        device.order.remove(seat, key);
        device.order.granted(key.class, now);
        device.lease += 1;
        device.charged_before = charged;
        (device.granted, device.floor_before, device.lost_before) = (now, served, device.lost);
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
        // The new holder is assumed to want the device until its page shows otherwise.
        self.slot_mut(slot).usage.wants = true;
        self.slot_mut(slot).lost_to = self.devices[index(d)].lost;
        self.slot_mut(slot).lost = 0;
        let contended = self.contended(d, seat);
        self.devices[index(d)].contended = contended.then_some((now, charged));
        let until = if contended { now.saturating_add(quantum).min(limit) } else { limit };
        self.devices[index(d)].phase = Phase::Held { seat, slot, since: now, until };
        self.run(d, seat, slot, until, now, out);
    }

    pub(super) fn run(
        &mut self,
        d: DeviceId,
        seat: SeatIx,
        slot: SlotId,
        until: u64,
        now: u64,
        out: &mut Vec<Decision>,
    ) {
        let device = &self.devices[index(d)];
        let ceiling = self.seat(seat).terms.limit().map(|limit| (limit, self.seat(seat).account));
        let wide = until == u64::MAX && self.config.measures_all && self.is_alone(d, seat, now);
        let gate = Gate::Run { lease: device.lease, until, exclusive: !device.is_shared_by(slot, now), ceiling, wide };
        self.tell(slot, gate, out);
    }

    /// True if another member than the holder may run.
    fn contended(&self, d: DeviceId, seat: SeatIx) -> bool {
        self.devices[index(d)].order.any_ready() || !self.seat(seat).queue.is_empty()
    }
}
