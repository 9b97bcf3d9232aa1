//! The members' requests and reports, between two ticks.
//!
//! Not here: their effect on the device, which is decided in a tick ([`super::device`]), and charges
//! ([`super::charge`]).

use super::decision::{Gate, MemberUsage};
use super::device::DevicePhase;
use super::seat::{SeatIx, SeatPlace};
use super::terms::{DeviceId, SlotId, quantum_of};
use super::{Arbiter, index};

impl Arbiter {
    /// Notes that a thread of this member waits at the gate (its doorbell rang).
    pub fn request_launch(&mut self, slot: SlotId, now: u64) {
        let seat = self.slot_at(slot).seat;
        let d = self.seat_at(seat).device;
        self.devices[index(d)].dirty = true;
        let holds = match self.devices[index(d)].phase {
            DevicePhase::Held { slot: holder, .. } => holder == slot,
            DevicePhase::Open { seat: holder } => holder == seat,
            // Handled when the drain is over.
            DevicePhase::Drain { .. } => self.devices[index(d)].draining.contains(&slot),
            DevicePhase::Free | DevicePhase::Common => false,
        };
        self.slot_at_mut(slot).usage.wants = true;
        // Its gate lets it launch, and nothing is in flight: only its own account can have stopped it.
        let may_run = match self.devices[index(d)].phase {
            DevicePhase::Held { until, .. } => holds && now < until,
            DevicePhase::Common => matches!(self.slot_at(slot).gate, Gate::Run { .. }),
            _ => false,
        };
        self.seat_at_mut(seat).tired |= may_run && self.slot_at(slot).usage.in_flight == Some(0);
        if self.devices[index(d)].phase == DevicePhase::Common {
            return;
        }
        if holds || self.slot_at(slot).queued {
            return;
        }
        if self.devices[index(d)].phase.holding_seat() != Some(seat) {
            self.devices[index(d)].shared_at = now;
        }
        self.enqueue_member(slot);
        if self.seat_at(seat).place == SeatPlace::Idle {
            self.end_rest(seat, now);
            self.place_seat(seat, now);
            self.preempt_holder(seat, d, now);
        }
        self.note_wait(seat, now);
    }

    /// Moves a tenant that rested, in virtual time and in that of its floor, to where it wants the device again.
    pub(super) fn end_rest(&mut self, seat: SeatIx, now: u64) {
        let order = &self.devices[index(self.seat_at(seat).device)].order;
        let clock = order.floor_clock(now);
        let least = order.least_time(self.seat_at(seat).terms.class);
        let floor = order.first_floor().map_or(clock, |first| first.min(clock));
        let config = self.config;
        self.seat_at_mut(seat).wake_seat(least, floor, now, &config);
        // A paused tenant may end its rest more than once; each part of it counts once.
        self.seat_at_mut(seat).slept = Some(now);
    }

    /// An arrival far behind the holder in virtual time ends the holder's lease, once a quarter of it has passed.
    fn preempt_holder(&mut self, seat: SeatIx, d: DeviceId, now: u64) {
        let DevicePhase::Held { seat: holder, slot, since, until } = self.devices[index(d)].phase else { return };
        let (held, quantum) = (self.seat_at(holder), quantum_of(&self.config, &self.seat_at(holder).terms));
        let clock = self.devices[index(d)].order.floor_clock(now);
        let here = self.seat_at(seat);
        let used = now.saturating_sub(since).min(quantum);
        let there = held.key_after(used, used, clock);
        if here.place == SeatPlace::Ready
            && here.terms.class == there.class
            && here.time_after(quantum / 2) < there.virtual_time
        {
            let quarter = since.saturating_add(quantum / 4);
            let until = until.min(quarter.max(now));
            self.devices[index(d)].phase = DevicePhase::Held { seat: holder, slot, since, until };
        }
    }

    /// A member's last report.
    ///
    /// # Panics
    /// If the slot has no member.
    #[must_use]
    pub fn last_report(&self, slot: SlotId) -> MemberUsage {
        self.slot_at(slot).usage
    }

    /// Takes a member's report outside of a tick: it yields, or its page was read for another reason.
    pub fn apply_report(&mut self, slot: SlotId, usage: MemberUsage, now: u64) {
        self.absorb_usage(slot, usage, now);
        let d = self.seat_at(self.slot_at(slot).seat).device;
        self.devices[index(d)].dirty = true;
    }

    pub(super) fn enqueue_member(&mut self, slot: SlotId) {
        if !self.slot_at(slot).queued {
            self.slot_at_mut(slot).queued = true;
            let seat = self.slot_at(slot).seat;
            self.seat_at_mut(seat).queue.push_back(slot);
        }
    }
}
