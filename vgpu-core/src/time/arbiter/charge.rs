//! Turns the members' measurements into charges.
//!
//! Time measured while others shared the device contains their slices. Work paid in advance is not charged again. Not
//! here: the effect of a charge on a tenant's order, floor and ceiling ([`super::seat`]), and charges at the end of a
//! lease ([`super::drain`]).

use super::decision::MemberUsage;
use super::device::DevicePhase;
use super::seat::SeatIx;
use super::terms::SlotId;
use super::{Arbiter, index};

impl Arbiter {
    /// Charges the time that a member newly measured.
    pub(super) fn absorb_usage(&mut self, slot: SlotId, usage: MemberUsage, now: u64) {
        let (mut busy, finished, known) = self.slot_at_mut(slot).take_report(usage, now);
        let seat = self.slot_at(slot).seat;
        let d = self.seat_at(seat).device;
        self.count_device_time(d, now);
        let lost = self.devices[index(d)].lost;
        let held = self.slot_at_mut(slot).note_report((busy, finished), lost);
        let device = &self.devices[index(d)];
        let is_slowed = device.unseen_processes() > 0;
        // A tenant gets no compensation for a process of its own.
        let is_accused = device.accused.iter().any(|&accused| self.slot_at(accused).seat == seat);
        let drained = self.slot_at(slot).usage.in_flight == Some(0);
        let overdue = self.slot_at(slot).overdue.is_some();
        let mut excused = 0;
        if !overdue {
            self.devices[index(d)].doubt.note_slowdown(busy, finished, now);
        }
        let this = self.slot_at_mut(slot);
        this.lost = this.lost.saturating_add(lost - this.lost_to);
        if is_accused {
            this.lost = 0;
        }
        if this.lost > 0 {
            // The member's events include slices of others. Costs that were learned next to an unseen process include
            // its slices as well.
            let least = if is_slowed { known } else { finished };
            let paid = least.clamp(busy.saturating_sub(this.foreign_part(busy, lost, now)), busy);
            this.lost -= (busy - paid).min(this.lost);
            excused = busy - paid;
            busy = paid;
        }
        if busy > 0 {
            this.measured_to = (now, lost);
        }
        if finished > 0 {
            this.moved = now;
        }
        if busy > 0 && !core::mem::take(&mut this.is_let_go) {
            this.learn_stretch(busy, finished);
        }
        this.lost_to = lost;
        let before = busy.min(this.ahead);
        let unreported = if this.pays_held_time { held.saturating_sub(busy - before) } else { 0 };
        this.ahead = this.ahead - before + unreported;
        if drained {
            (this.lost, this.ahead) = (0, 0);
        }
        if overdue {
            let device = &mut self.devices[index(d)];
            let sharing = device.sharer_count(now);
            device.doubt.note_progress(busy, sharing, now);
        }
        self.seat_at_mut(seat).excused = self.seat_at(seat).excused.saturating_add(excused);
        self.pay_for_seat(seat, busy - before + unreported);
        // Another waiting member keeps the tenant from being idle.
        if self.seat_at(seat).queue.is_empty() {
            let since = self.seat_at(seat).members.iter().map(|&slot| self.slot_at(slot).active_since(now)).min();
            self.seat_at_mut(seat).account.note_idle(since.unwrap_or(now));
        }
    }

    pub(super) fn pay_for_seat(&mut self, seat: SeatIx, ns: u64) {
        self.pay_beside(seat, ns, ns);
    }

    /// Moves the tenant back in the order by `ns`; charges nothing.
    pub(super) fn yield_to_others(&mut self, seat: SeatIx, ns: u64) {
        self.pay_beside(seat, 0, ns);
    }

    /// Charges `ns`, of which `order` counts in the order.
    fn pay_beside(&mut self, seat: SeatIx, ns: u64, order: u64) {
        if ns == 0 && order == 0 {
            return;
        }
        // The search trees hold the seat's keys.
        let place = self.take_out(seat);
        let device = &self.devices[index(self.seat_at(seat).device)];
        let least = device.order.least_waiting(self.seat_at(seat).terms.class);
        let clock = device.order.floor_clock(device.counted_to);
        self.seat_at_mut(seat).spend_time(ns, order, least, clock);
        self.put_back(seat, place);
    }

    /// The time since the holder got the device that it was not charged yet, less the other tenants' part by the
    /// number of members that share the device now.
    pub(super) fn unpaid_ns(&self, seat: SeatIx, now: u64) -> u64 {
        let device = &self.devices[index(self.seat_at(seat).device)];
        let paid = self.seat_at(seat).charged.saturating_sub(device.charged_before);
        let elapsed = now.saturating_sub(device.granted);
        let each = elapsed.saturating_sub(device.lost.saturating_sub(device.lost_before));
        // The tenant's own overdue members use their part of the device for the tenant itself.
        let own = device.overdue.iter().filter(|&&slot| self.slot_at(slot).seat == seat).count() as u64;
        let holder = match device.phase {
            DevicePhase::Held { slot, .. } => Some(slot),
            _ => device.draining.first().copied(),
        };
        let beside = holder.is_none_or(|slot| !device.overdue.contains(&slot));
        each.saturating_mul((own + u64::from(beside)).max(1)).min(elapsed).saturating_sub(paid)
    }

    /// Charges a member that was killed with queued work for the unmeasured part of its lease. Otherwise a program
    /// that dies in time would pay nothing.
    pub(super) fn settle_death(&mut self, slot: SlotId, now: u64) {
        self.settle_claim(slot, now);
        let (seat, usage) = (self.slot_at(slot).seat, self.slot_at(slot).usage);
        let d = self.seat_at(seat).device;
        if self.has_budgets(d) {
            self.pay_for_seat(seat, usage.expected_ns().min(now.saturating_sub(usage.since)));
            return;
        }
        let device = &self.devices[index(d)];
        let holds = matches!(device.phase, DevicePhase::Held { slot: holder, .. } if holder == slot);
        if !(holds || device.draining.contains(&slot)) {
            return;
        }
        let owed = self.owed_ns(d, seat, now);
        if usage.in_flight != Some(0) {
            let unpaid = self.unpaid_ns(seat, now).min(now.saturating_sub(usage.since));
            self.pay_for_seat(seat, unpaid);
            self.yield_to_others(seat, owed.saturating_sub(unpaid));
        } else {
            self.yield_to_others(seat, owed);
        }
    }
}
