//! The position of a tenant on a device that it does not hold: waiting, used up, or neither.
//!
//! The order's search trees hold keys. Code that changes a key takes the seat out before and puts it back afterwards.
//! Not here: the trees ([`super::order`]).

use super::device::DevicePhase;
use super::seat::{SeatIx, SeatPlace};
use super::{Arbiter, index};
use crate::limits::Class;

impl Arbiter {
    /// Sets the position of a seat that neither holds nor drains.
    pub(super) fn place_seat(&mut self, seat: SeatIx, now: u64) {
        if self.seat_at(seat).place == SeatPlace::Current {
            return;
        }
        let before = self.take_out(seat);
        let place = if self.holds_up(seat, now) {
            SeatPlace::Overdue
        } else if self.seat_at(seat).queue.is_empty() {
            let this = self.seat_at_mut(seat);
            // The rest of a paused tenant began with its pause, or before.
            this.slept = this.slept.filter(|_| this.paused).or(Some(now));
            SeatPlace::Idle
        } else if self.seat_at(seat).used_up(now) {
            SeatPlace::Capped(self.seat_at(seat).refill_time(&self.config).max(now + 1))
        } else {
            SeatPlace::Ready
        };
        let (d, class) = (self.seat_at(seat).device, self.seat_at(seat).terms.class);
        if place == SeatPlace::Ready {
            self.devices[index(d)].order.note_waiting(class, now);
            if let DevicePhase::Held { seat: holder, .. } = self.devices[index(d)].phase {
                self.devices[index(d)].revoke |=
                    class == Class::Latency && self.seat_at(holder).terms.class != Class::Latency;
            }
        }
        self.put_back(seat, place);
        self.note_wait(seat, now);
        if before == SeatPlace::Ready && place != SeatPlace::Ready {
            self.runs_without(seat);
        }
    }

    /// True if a member has work on the device that must end before the tenant gets another lease.
    pub(super) fn holds_up(&self, seat: SeatIx, now: u64) -> bool {
        self.seat_at(seat).members.iter().any(|&slot| self.slot_at(slot).holds_up(now, &self.config).is_some())
    }

    pub(super) fn take_out(&mut self, seat: SeatIx) -> SeatPlace {
        let (place, key, d) = (self.seat_at(seat).place, self.seat_at(seat).order_key(), self.seat_at(seat).device);
        let order = &mut self.devices[index(d)].order;
        match place {
            SeatPlace::Ready => order.remove(seat, key),
            SeatPlace::Capped(refill) => order.uncap_seat(seat, refill),
            SeatPlace::Idle | SeatPlace::Current | SeatPlace::Overdue => {}
        }
        if matches!(place, SeatPlace::Ready | SeatPlace::Capped(_)) {
            self.seat_at_mut(seat).place = SeatPlace::Idle;
        }
        place
    }

    pub(super) fn put_back(&mut self, seat: SeatIx, place: SeatPlace) {
        let (key, d) = (self.seat_at(seat).order_key(), self.seat_at(seat).device);
        let device = &mut self.devices[index(d)];
        match place {
            SeatPlace::Ready => device.order.insert(seat, key),
            SeatPlace::Capped(refill) => device.order.cap_seat(seat, refill),
            SeatPlace::Idle | SeatPlace::Current | SeatPlace::Overdue => {}
        }
        self.seat_at_mut(seat).place = place;
    }
}
