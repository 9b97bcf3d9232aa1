//! The end of a lease: drains, overdue work, and their charges.
//!
//! Overdue work shares the device with the next member, and the events of both see the other's slices. That time is
//! divided ([`Arbiter::absorb_usage`]): of the time measured meanwhile a slot pays its equal part, or the known cost
//! of its launches if that is more.
//!
//! A drain may take the time that the member expects for its work in flight, or a longer time that was measured of it
//! before. One function with launches of many lengths is never estimated correctly; if the next member were always
//! admitted next to it, it would never be measured alone.
//!
//! Overdue work holds up its own tenant, which would otherwise have the device twice, but not for ever
//! ([`TimeConfig::stuck`](crate::time::config::TimeConfig::stuck)). A stopped member never reports that its work is
//! done, and a member that waits for another member of its tenant never finishes.
//!
//! A lease costs its turn even if nothing runs in it. If a member measured less than an eighth of the time in which
//! others waited, it moves back in the order by all of that time ([`Arbiter::owed_ns`]). It is charged its measured
//! use. Otherwise a member that takes the device and launches little or nothing would keep it from the others for as
//! long as it likes.
//!
//! Not here: how leases begin and are renewed ([`super::device`]).

use super::device::DevicePhase;
use super::seat::{LateClaim, SeatIx, SeatPlace};
use super::terms::{DeviceId, SlotId};
use super::{Arbiter, index};
use crate::limits::Class;

impl Arbiter {
    pub(super) fn settle_overdue(&mut self, d: DeviceId, now: u64) {
        let mut at = 0;
        while let Some(&slot) = self.devices[index(d)].overdue.get(at) {
            if self.slot_at(slot).usage.in_flight == Some(0) {
                self.devices[index(d)].overdue.remove(at);
                self.slot_at_mut(slot).overdue = None;
                self.settle_claim(slot, now);
                self.readmit_member(slot, now);
            } else {
                at += 1;
                let seat = self.slot_at(slot).seat;
                if self.seat_at(seat).place == SeatPlace::Overdue && !self.holds_up(seat, now) {
                    self.readmit_member(slot, now);
                }
            }
        }
    }

    /// Makes a tenant eligible again, either in spite of this member's overdue work or because that work is done.
    fn readmit_member(&mut self, slot: SlotId, now: u64) {
        if self.slot_at(slot).usage.wants {
            // The member may have asked while its gate was open, and will not ring again.
            self.enqueue_member(slot);
        }
        self.place_seat(self.slot_at(slot).seat, now);
    }

    /// Begins a drain. A launch that is known to be long gets its own time before the allowance begins.
    pub(super) fn begin_drain(&mut self, d: DeviceId, seat: SeatIx, now: u64) {
        let draining = &self.devices[index(d)].draining;
        let allowed = |ns: Option<u64>| self.config.allow_drain(now, ns.unwrap_or(0));
        let until = allowed(draining.iter().map(|&slot| self.slot_at(slot).work_lasts(now)).max());
        let said = allowed(draining.iter().map(|&slot| self.slot_at(slot).reported_remaining(now)).max());
        self.devices[index(d)].phase = DevicePhase::Drain { seat, since: now, until, said };
        let accounted = self.seat_at(seat).accounted_ns();
        for at in 0..self.devices[index(d)].draining.len() {
            let slot = self.devices[index(d)].draining[at];
            if self.slot_at(slot).overdue.is_some() {
                continue; // This slot runs again next to its own overdue work, paid in advance.
            }
            self.slot_at_mut(slot).claim = Some(LateClaim { from: now, to: None, accounted });
        }
    }

    /// Charges a member that kept the device for longer than a drain's allowance by reporting unfinished work. If less
    /// than half of that time was measured when the claim ends, the member pays for all of it. Otherwise keeping the
    /// device would cost nothing.
    pub(super) fn settle_claim(&mut self, slot: SlotId, now: u64) {
        let Some(claim) = self.slot_at_mut(slot).claim.take() else { return };
        let seat = self.slot_at(slot).seat;
        let kept = claim.to.unwrap_or(now).saturating_sub(claim.from);
        let used = self.seat_at(seat).accounted_ns().saturating_sub(claim.accounted);
        if kept > self.config.drain && used < kept / 2 {
            self.pay_for_seat(seat, kept - used);
        }
    }

    /// When a drain's allowance ends: from then on others may get the device although work is in flight. A waiting
    /// tenant of class latency does not wait for long launches of other classes.
    pub(super) fn drain_deadline(&self, d: DeviceId) -> u64 {
        let DevicePhase::Drain { seat, since, until, said } = self.devices[index(d)].phase else { return u64::MAX };
        let terms = &self.seat_at(seat).terms;
        if !self.devices[index(d)].order.latency_waits() {
            until
        } else if terms.class == Class::Latency {
            said
        } else {
            said.min(since.saturating_add(self.config.drain))
        }
    }

    /// When a drain is given up if only the drained tenant itself waits for the device. A learned length does not
    /// extend this, because the work may have been waiting for that very tenant.
    pub(super) fn stuck_at(&self, d: DeviceId) -> u64 {
        let DevicePhase::Drain { said, .. } = self.devices[index(d)].phase else { return u64::MAX };
        let again = self.devices[index(d)].draining.iter().all(|&slot| self.slot_at(slot).overdue.is_some());
        said.min(self.drain_deadline(d)).saturating_add(if again { 0 } else { self.config.stuck })
    }

    /// The device time by which a holder moves back in the order, in addition to its measured use, because others
    /// waited.
    pub(super) fn owed_ns(&self, d: DeviceId, seat: SeatIx, now: u64) -> u64 {
        let Some((since, before)) = self.devices[index(d)].contended else { return 0 };
        let (held, used) = (now.saturating_sub(since), self.seat_at(seat).accounted_ns().saturating_sub(before));
        if used < held / 8 { held - used } else { 0 }
    }

    /// True if a member of the draining tenant waits at the gate.
    pub(super) fn waits_for_itself(&self, d: DeviceId, seat: SeatIx) -> bool {
        let draining = &self.devices[index(d)].draining;
        !self.seat_at(seat).queue.is_empty() || draining.iter().any(|&slot| self.slot_at(slot).usage.wants)
    }

    /// Ends the drain: the work is over, or its allowance ended at `late`.
    pub(super) fn finish_drain(&mut self, d: DeviceId, seat: SeatIx, now: u64, late: Option<u64>) {
        // A member whose work never ends never measures the lease that it got next to that work either, so it pays
        // for that lease now.
        let unpaid = self.unpaid_ns(seat, now);
        let device = &mut self.devices[index(d)];
        device.phase = DevicePhase::Free;
        let mut draining = core::mem::take(&mut device.draining);
        let again = draining.iter().copied().find(|&slot| self.slot_at(slot).overdue.is_some());
        if let Some(slot) = again.filter(|_| late.is_some()) {
            self.slot_at_mut(slot).ahead += unpaid;
            self.pay_for_seat(seat, unpaid);
        }
        for slot in draining.drain(..) {
            let flies = self.slot_at(slot).usage.in_flight != Some(0);
            if !(late.is_some() && flies) {
                self.settle_claim(slot, now);
            } else if self.slot_at(slot).overdue.is_none() {
                self.devices[index(d)].add_overdue(slot, now);
                let this = self.slot_at_mut(slot);
                this.overdue = late;
                this.claim.iter_mut().for_each(|claim| claim.to = Some(now));
            }
            if late.is_none() {
                let owed = self.owed_ns(d, seat, now);
                self.yield_to_others(seat, owed);
            }
            if self.slot_at(slot).usage.wants {
                self.enqueue_member(slot);
            }
        }
        if late.is_none() {
            // While it waits for the next lease the tenant keeps its refill; time left unused before is cut here.
            self.seat_at_mut(seat).account.note_idle(now);
        }
        self.devices[index(d)].draining = draining;
        self.seat_at_mut(seat).place = SeatPlace::Idle;
        self.place_seat(seat, now);
    }
}
