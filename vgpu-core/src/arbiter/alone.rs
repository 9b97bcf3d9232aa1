//! Who has a device to itself: it needs no lease, until somebody else is there, and has an open gate; or, where all that is
//! used is to be measured, it keeps its lease, without an end and with a wider bound of what may be in flight.
//!
//! Not here: devices of which nobody asks anything about time ([`super::common`]).

use super::decision::{Decision, Gate};
use super::device::Phase;
use super::seat::SeatIx;
use super::terms::{Class, DeviceId};
use super::{Arbiter, index};

impl Arbiter {
    pub(super) fn wanted_by_others(&self, d: DeviceId, now: u64) -> bool {
        let device = &self.devices[index(d)];
        device.order.any() || device.has_overdue(now) || device.reserved.is_some()
    }

    pub(super) fn may_open(&self, d: DeviceId, seat: SeatIx, now: u64) -> bool {
        // Beside somebody unseen all is measured, to be paid at its undisturbed cost.
        !self.config.measures_all && self.devices[index(d)].unseen() == 0 && self.is_alone(d, seat, now)
    }

    /// Has it had the device to itself for so long that it is not expected to be anybody else's soon, and has it no ceiling?
    pub(super) fn is_alone(&self, d: DeviceId, seat: SeatIx, now: u64) -> bool {
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

    pub(super) fn open(&mut self, d: DeviceId, seat: SeatIx, out: &mut Vec<Decision>) {
        (self.devices[index(d)].phase, self.devices[index(d)].contended) = (Phase::Open { seat }, None);
        self.seat_mut(seat).queue.clear();
        for at in 0..self.seat(seat).members.len() {
            let slot = self.seat(seat).members[at];
            self.slot_mut(slot).queued = false;
            self.tell(slot, Gate::Open, out);
        }
    }

    /// Whoever had the device to itself up to now fell no further behind its floor, whatever it did with it.
    pub(super) fn was_alone(&mut self, d: DeviceId, seat: SeatIx, now: u64) {
        let device = &self.devices[index(d)];
        let had = device.floor_before.saturating_add(now.saturating_sub(device.granted));
        let served = device.order.floor_clock(now).min(had);
        let zero = &mut self.seat_mut(seat).floor_zero;
        *zero = served.max(*zero);
    }

    pub(super) fn close(&mut self, d: DeviceId, seat: SeatIx, now: u64, out: &mut Vec<Decision>) {
        self.was_alone(d, seat, now);
        // What went through the open gate before nobody waited for.
        let charged = self.seat(seat).charged;
        let device = &mut self.devices[index(d)];
        (device.granted, device.charged_before, device.lost_before) = (now, charged, device.lost);
        device.draining.clear();
        for at in 0..self.seat(seat).members.len() {
            let slot = self.seat(seat).members[at];
            self.tell(slot, Gate::Wait, out);
            self.slot_mut(slot).usage.in_flight = None;
            self.devices[index(d)].draining.push(slot);
        }
        self.drain(d, seat, now);
    }
}
