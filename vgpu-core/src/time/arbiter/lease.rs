//! The life of a lease: granted, renewed, ended.
//!
//! Not here: the drain after its end ([`super::drain`]), the choice of the next ([`super::order`]), leases on several
//! devices at once ([`super::gang`]).

use super::decision::{Decision, Gate};
use super::device::DevicePhase;
use super::seat::{SeatIx, SeatPlace};
use super::terms::{DeviceId, SlotId, quantum_of};
use super::{Arbiter, index};
use crate::time::config::ALONE_IN_FLIGHT_NS;

impl Arbiter {
    /// True if the lease ends now; renews it if not.
    pub(super) fn end_or_renew(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) -> bool {
        let DevicePhase::Held { seat, slot, since, until } = self.devices[index(d)].phase else { return false };
        let terms = self.seat_at(seat).terms;
        let others = self.is_contended(d, seat);
        let accounted = self.seat_at(seat).accounted_ns();
        let before = self.devices[index(d)].contended;
        self.devices[index(d)].contended = others.then(|| before.unwrap_or((now, accounted)));
        // Next to overdue work of others the device counts as shared while this tenant holds it.
        let is_shared = others || !self.devices[index(d)].overdue.is_empty();
        // A member may keep a lease that nobody waits for although the ceiling is used up. Its own account holds it
        // back until it may launch again. That account pays for a wait in parts, without which ranks of one collective
        // would hold each other up for longer in each round. It may owe as much as a tenant that is alone may have
        // queued: a member that owes more does not keep to its account.
        if self.seat_at(seat).used_up(now) && (is_shared || !self.seat_at(seat).may_owe(ALONE_IN_FLIGHT_NS, now)) {
            return true;
        }
        if self.slot_at(slot).is_idle() && (others || self.devices[index(d)].order.any()) {
            return true;
        }
        let device = &self.devices[index(d)];
        if device.revoke {
            return true;
        }
        let quantum = quantum_of(&self.config, &terms);
        if until == u64::MAX {
            if !others && device.reserved.is_none() {
                return false;
            }
            // The holder had the device to itself; from now on it has one quantum, counted from the grant.
            let until = since.saturating_add(quantum);
            if until <= now {
                return true;
            }
            self.renew_lease(d, until, now, out);
            return false;
        }
        if now < until {
            return false;
        }
        if device.reserved.is_some() {
            return true;
        }
        if !others {
            self.seat_at_mut(seat).for_floor = false;
            self.renew_lease(d, u64::MAX, now, out);
            return false;
        }
        // Another member's or tenant's turn may be due. Work in flight counts as charged: the unpaid time since the
        // grant, and the time it is expected to take.
        let flies = self.slot_at(slot).usage.in_flight != Some(0);
        let unpaid = if flies { self.unpaid_ns(seat, now) } else { self.owed_ns(d, seat, now) };
        let order = unpaid.saturating_add(self.slot_at(slot).usage.expected_ns());
        let clock = self.devices[index(d)].order.floor_clock(now);
        let key = self.seat_at(seat).key_after(order, if flies { order } else { 0 }, clock);
        let next = self.pick_seat(d, now, None);
        let keeps = self.seat_at(seat).queue.is_empty()
            && next.is_none_or(|next| {
                let next = self.seat_at(next).order_key();
                self.devices[index(d)].order.keeps_device(key, next, now, &self.config)
            });
        if keeps {
            let key = self.seat_at(seat).order_key();
            self.seat_at_mut(seat).for_floor = self.devices[index(d)].order.is_behind_floor(key, now);
            self.renew_lease(d, now.saturating_add(quantum), now, out);
        }
        !keeps
    }

    fn renew_lease(&mut self, d: DeviceId, until: u64, now: u64, out: &mut Vec<Decision>) {
        let device = &mut self.devices[index(d)];
        let DevicePhase::Held { seat, slot, since, .. } = device.phase else { return };
        device.phase = DevicePhase::Held { seat, slot, since, until };
        self.run(d, seat, slot, until, now, out);
    }

    /// Grants the free device to the next tenant; false when there is none.
    pub(super) fn grant_next(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) -> bool {
        if self.devices[index(d)].reserved.is_some() {
            return self.collect_gang(d, now, out);
        }
        let Some(seat) = self.pick_seat(d, now, None) else { return false };
        if self.is_gang(seat) {
            return self.assemble_gang(d, seat, now, out);
        }
        self.grant_lease(d, seat, u64::MAX, now, out);
        true
    }

    /// Grants the device, at most until `limit`.
    pub(super) fn grant_lease(&mut self, d: DeviceId, seat: SeatIx, limit: u64, now: u64, out: &mut Vec<Decision>) {
        let (key, charged, served) =
            (self.seat_at(seat).order_key(), self.seat_at(seat).charged, self.seat_at(seat).floor_zero);
        let quantum = quantum_of(&self.config, &self.seat_at(seat).terms);
        let device = &mut self.devices[index(d)];
        device.order.remove(seat, key);
        let for_floor = device.order.is_behind_floor(key, now);
        if !for_floor {
            device.order.note_served(key.class, now);
        }
        device.lease += 1;
        device.charged_before = charged;
        (device.granted, device.floor_before, device.lost_before) = (now, served, device.lost);
        if device.last != Some(seat) {
            (device.last, device.shared_at) = (Some(seat), now);
        }
        self.seat_at_mut(seat).place = SeatPlace::Current;
        self.note_wait(seat, now);
        if self.may_open(d, seat, now) {
            self.open(d, seat, out);
            return;
        }
        let Some(slot) = self.seat_at_mut(seat).queue.pop_front() else {
            self.seat_at_mut(seat).place = SeatPlace::Idle;
            return;
        };
        self.devices[index(d)].revoke = false;
        self.slot_at_mut(slot).queued = false;
        // The new holder is assumed to want the device until its page shows otherwise.
        self.slot_at_mut(slot).usage.wants = true;
        let lost = self.devices[index(d)].lost;
        let this = self.slot_at_mut(slot);
        (this.lost_to, this.lost, this.measured_to) = (lost, 0, (now, lost));
        let contended = self.is_contended(d, seat);
        self.seat_at_mut(seat).for_floor = for_floor && contended;
        self.devices[index(d)].contended = contended.then(|| (now, self.seat_at(seat).accounted_ns()));
        let until = if contended { now.saturating_add(quantum).min(limit) } else { limit };
        self.devices[index(d)].phase = DevicePhase::Held { seat, slot, since: now, until };
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
        let ceiling = self.seat_at(seat).terms.effective_ceiling().map(|limit| (limit, self.seat_at(seat).account));
        let wide = until == u64::MAX && self.measures_all && self.is_alone(d, seat, now);
        let gate = Gate::Run { lease: device.lease, until, exclusive: !device.is_shared_by(slot, now), ceiling, wide };
        self.tell_gate(slot, gate, out);
    }

    /// True if another member than the holder may run.
    fn is_contended(&self, d: DeviceId, seat: SeatIx) -> bool {
        self.devices[index(d)].order.any_ready() || !self.seat_at(seat).queue.is_empty()
    }
}
