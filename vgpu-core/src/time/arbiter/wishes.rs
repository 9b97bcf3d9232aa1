//! The members' requests and reports, between two ticks.
//!
//! Not here: their effect on the device, which is decided in a tick ([`super::device`]), and charges
//! ([`super::charge`]).

use super::decision::Usage;
use super::device::Phase;
use super::seat::{Place, SeatIx};
use super::terms::{DeviceId, SlotId};
use super::{Arbiter, index};

impl Arbiter {
    /// Notes that a thread of this member waits at the gate (its doorbell rang).
    pub fn wants(&mut self, slot: SlotId, now: u64) {
        let seat = self.slot(slot).seat;
        let d = self.seat(seat).device;
        self.devices[index(d)].dirty = true;
        let holds = match self.devices[index(d)].phase {
            Phase::Held { slot: holder, .. } => holder == slot,
            Phase::Open { seat: holder } => holder == seat,
            // Handled when the drain is over.
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
            let least = order.least(self.seat(seat).terms.class);
            let (least, floor) = (least, order.first_floor().map_or(clock, |first| first.min(clock)));
            let config = self.config;
            self.seat_mut(seat).wake(least, floor, now, &config);
            self.place(seat, now);
            self.preempt(seat, d, now);
        }
    }

    /// An arrival far behind the holder in virtual time ends the holder's lease, once a quarter of it has passed.
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

    /// A member's last report.
    ///
    /// # Panics
    /// If the slot has no member.
    #[must_use]
    pub fn said(&self, slot: SlotId) -> Usage {
        self.slot(slot).usage
    }

    /// Takes a member's report outside of a tick: it yields, or its page was read for another reason.
    pub fn reports(&mut self, slot: SlotId, usage: Usage, now: u64) {
        self.absorb(slot, usage, now);
        let d = self.seat(self.slot(slot).seat).device;
        self.devices[index(d)].dirty = true;
    }

    pub(super) fn enqueue(&mut self, slot: SlotId) {
        if !self.slot(slot).queued {
            self.slot_mut(slot).queued = true;
            let seat = self.slot(slot).seat;
            self.seat_mut(seat).queue.push_back(slot);
        }
    }
}
