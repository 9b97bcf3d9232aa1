//! A tenant that has a device to itself. It needs no lease until another tenant arrives, and gets an open gate. Where
//! all usage must be measured it keeps its lease instead, without an end and with a wider bound of work in flight.
//!
//! Not here: devices for which no tenant has terms about time ([`super::common`]).

use super::decision::{Decision, Gate};
use super::device::DevicePhase;
use super::seat::SeatIx;
use super::terms::DeviceId;
use super::{Arbiter, index};
use crate::limits::Class;

impl Arbiter {
    pub(super) fn wanted_by_others(&self, d: DeviceId, now: u64) -> bool {
        let device = &self.devices[index(d)];
        device.order.any() || device.has_overdue(now) || device.reserved.is_some()
    }

    pub(super) fn may_open(&self, d: DeviceId, seat: SeatIx, now: u64) -> bool {
        // While an unseen process runs, all work is measured, to be charged at its undisturbed cost.
        !self.measures_all && self.devices[index(d)].unseen_processes() == 0 && self.is_alone(d, seat, now)
    }

    /// True if the tenant has had the device to itself for so long that no other is expected soon, and it has no
    /// ceiling.
    pub(super) fn is_alone(&self, d: DeviceId, seat: SeatIx, now: u64) -> bool {
        let device = &self.devices[index(d)];
        !self.wanted_by_others(d, now)
            && self.seat_at(seat).may_be_alone()
            && now.saturating_sub(device.shared_at) >= self.config.alone
            && !self.latency_beside(d, seat)
    }

    /// True if another tenant of class latency is registered, active or not: next to it no tenant gets the device
    /// without bounds.
    fn latency_beside(&self, d: DeviceId, seat: SeatIx) -> bool {
        self.latency[index(d)] > u32::from(self.seat_at(seat).terms.class == Class::Latency)
    }

    pub(super) fn open(&mut self, d: DeviceId, seat: SeatIx, out: &mut Vec<Decision>) {
        (self.devices[index(d)].phase, self.devices[index(d)].contended) = (DevicePhase::Open { seat }, None);
        self.seat_at_mut(seat).queue.clear();
        for at in 0..self.seat_at(seat).members.len() {
            let slot = self.seat_at(seat).members[at];
            self.slot_at_mut(slot).queued = false;
            self.tell_gate(slot, Gate::Open, out);
        }
    }

    /// A tenant that had the device to itself until now fell no further behind its floor, however much it used.
    fn was_alone(&mut self, d: DeviceId, seat: SeatIx, now: u64) {
        let device = &self.devices[index(d)];
        let had = device.floor_before.saturating_add(now.saturating_sub(device.granted));
        let served = device.order.floor_clock(now).min(had);
        let zero = &mut self.seat_at_mut(seat).floor_zero;
        *zero = served.max(*zero);
    }

    pub(super) fn close(&mut self, d: DeviceId, seat: SeatIx, now: u64, out: &mut Vec<Decision>) {
        self.was_alone(d, seat, now);
        // Work that went through the open gate before this delayed no other tenant.
        let charged = self.seat_at(seat).charged;
        let device = &mut self.devices[index(d)];
        (device.granted, device.charged_before, device.lost_before) = (now, charged, device.lost);
        device.draining.clear();
        for at in 0..self.seat_at(seat).members.len() {
            let slot = self.seat_at(seat).members[at];
            self.tell_gate(slot, Gate::Wait, out);
            self.slot_at_mut(slot).usage.in_flight = None;
            self.devices[index(d)].draining.push(slot);
        }
        self.begin_drain(d, seat, now);
    }
}
