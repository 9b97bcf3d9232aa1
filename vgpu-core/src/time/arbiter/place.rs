//! The position of a tenant on a device that it does not hold: waiting, used up, or neither.
//!
//! The order's search trees hold keys. Code that changes a key takes the seat out before and puts it back afterwards.
//! Not here: the trees ([`super::order`]).

use super::device::Phase;
use super::seat::{Place, SeatIx};
use super::{Arbiter, index};
use crate::limits::Class;

impl Arbiter {
    /// Sets the position of a seat that neither holds nor drains.
    pub(super) fn place(&mut self, seat: SeatIx, now: u64) {
        if self.seat(seat).place == Place::Current {
            return;
        }
        let before = self.take_out(seat);
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
        if before == Place::Ready && place != Place::Ready {
            self.runs_without(seat);
        }
    }

    /// True if a member has work on the device that must end before the tenant gets another lease.
    pub(super) fn holds_up(&self, seat: SeatIx, now: u64) -> bool {
        self.seat(seat).members.iter().any(|&slot| self.slot(slot).holds_up(now, &self.config).is_some())
    }

    pub(super) fn take_out(&mut self, seat: SeatIx) -> Place {
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

    pub(super) fn put_back(&mut self, seat: SeatIx, place: Place) {
        let (key, d) = (self.seat(seat).key(), self.seat(seat).device);
        let device = &mut self.devices[index(d)];
        match place {
            Place::Ready => device.order.insert(seat, key),
            Place::Capped(refill) => device.order.cap(seat, refill),
            Place::Idle | Place::Current | Place::Overdue => {}
        }
        self.seat_mut(seat).place = place;
    }
}
