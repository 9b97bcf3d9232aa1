//! The end of a lease: what drains, what is overdue, and what both cost.
//!
//! What is overdue shares the device with whoever is next, and the events of both see the other's slices. That time is
//! shared out ([`Arbiter::absorb`]): of what was measured meanwhile a slot pays its equal part, or what its launches
//! are known to cost if that is more.
//!
//! How long a drain may take is what the member expects of what is in flight, or what was measured of it before if
//! that is more: one function of many lengths is not expected right, and who is let in beside it every time keeps it from
//! ever being measured alone.
//!
//! What is overdue holds up its own tenant, which would have the device twice otherwise, but not for ever
//! ([`Config::stuck`](super::Config::stuck)): a member that was stopped never says that its work is done, and one that waits
//! for another member of its tenant never has done it.
//!
//! A lease costs its turn also if nothing runs in it: whoever was measured less than an eighth of the time in which others
//! waited moves back in the order by all of it ([`Arbiter::owed`]), and is charged what it used. Otherwise whoever asks for
//! the device and launches nothing, or next to nothing, would keep it from the others for as long as it likes.
//!
//! Not here: how leases begin and are renewed ([`super::device`]).

use super::device::Phase;
use super::seat::{Claim, Place, SeatIx};
use super::terms::{Class, DeviceId, SlotId};
use super::{Arbiter, index};

impl Arbiter {
    pub(super) fn settle_overdue(&mut self, d: DeviceId, now: u64) {
        let mut at = 0;
        while let Some(&slot) = self.devices[index(d)].overdue.get(at) {
            if self.slot(slot).usage.in_flight == Some(0) {
                self.devices[index(d)].overdue.remove(at);
                self.slot_mut(slot).overdue = None;
                self.settle_claim(slot, now);
                self.back(slot, now);
            } else {
                at += 1;
                let seat = self.slot(slot).seat;
                if self.seat(seat).place == Place::Overdue && !self.holds_up(seat, now) {
                    self.back(slot, now);
                }
            }
        }
    }

    /// A tenant may have the device again although, or since, this member was overdue.
    fn back(&mut self, slot: SlotId, now: u64) {
        if self.slot(slot).usage.wants {
            // It may have wished while its gate was open to all, and will not ring again.
            self.enqueue(slot);
        }
        self.place(self.slot(slot).seat, now);
    }

    /// Begins a drain. A launch that is known to be long has its own time before the allowance begins.
    pub(super) fn drain(&mut self, d: DeviceId, seat: SeatIx, now: u64) {
        let draining = &self.devices[index(d)].draining;
        let allowed = |ns: Option<u64>| {
            let ns = ns.unwrap_or(0).min(self.config.longest);
            // Half of it more: launches of one function differ.
            now.saturating_add(ns + ns / 2).saturating_add(self.config.drain_of(&self.seat(seat).terms))
        };
        let until = allowed(draining.iter().map(|&slot| self.slot(slot).lasts(now)).max());
        let said = allowed(draining.iter().map(|&slot| self.slot(slot).says(now)).max());
        self.devices[index(d)].phase = Phase::Drain { seat, since: now, until, said };
        let charged = self.seat(seat).charged;
        for at in 0..self.devices[index(d)].draining.len() {
            let slot = self.devices[index(d)].draining[at];
            if self.slot(slot).overdue.is_some() {
                continue; // Let in beside its own work: paid for in advance.
            }
            self.slot_mut(slot).claim = Some(Claim { from: now, to: None, charged });
        }
    }

    /// Whoever kept the device for longer than a drain's allowance by saying that it had work there, and has measured less
    /// than half of that time when it is over, pays for the time: otherwise keeping it would cost nothing.
    pub(super) fn settle_claim(&mut self, slot: SlotId, now: u64) {
        let Some(claim) = self.slot_mut(slot).claim.take() else { return };
        let seat = self.slot(slot).seat;
        let kept = claim.to.unwrap_or(now).saturating_sub(claim.from);
        let paid = self.seat(seat).charged.saturating_sub(claim.charged);
        if kept > self.config.drain_of(&self.seat(seat).terms) && paid < kept / 2 {
            self.pay(seat, kept - paid);
        }
    }

    /// When a drain's allowance is used up. Whoever is of class latency does not wait for long launches of others.
    pub(super) fn allowance(&self, d: DeviceId) -> u64 {
        let Phase::Drain { seat, since, until, said } = self.devices[index(d)].phase else { return u64::MAX };
        let terms = &self.seat(seat).terms;
        if !self.devices[index(d)].order.latency_waits() {
            until
        } else if terms.class == Class::Latency {
            said
        } else {
            said.min(since.saturating_add(self.config.drain_of(terms)))
        }
    }

    /// When a drain that nobody but its own tenant waits for is given up. What was learned makes that no later: it may have
    /// been waiting for just them.
    pub(super) fn stuck_at(&self, d: DeviceId) -> u64 {
        let Phase::Drain { said, .. } = self.devices[index(d)].phase else { return u64::MAX };
        let again = self.devices[index(d)].draining.iter().all(|&slot| self.slot(slot).overdue.is_some());
        said.min(self.allowance(d)).saturating_add(if again { 0 } else { self.config.stuck })
    }

    /// What the holder of a device has to pay for having it while others waited, beside what it measured.
    pub(super) fn owed(&self, d: DeviceId, seat: SeatIx, now: u64) -> u64 {
        let Some((since, charged)) = self.devices[index(d)].contended else { return 0 };
        let (held, paid) = (now.saturating_sub(since), self.seat(seat).charged.saturating_sub(charged));
        if paid < held / 8 { held - paid } else { 0 }
    }

    /// A member of the tenant whose work drains stands at the gate.
    pub(super) fn waits_for_itself(&self, d: DeviceId, seat: SeatIx) -> bool {
        let draining = &self.devices[index(d)].draining;
        !self.seat(seat).queue.is_empty() || draining.iter().any(|&slot| self.slot(slot).usage.wants)
    }

    /// The drain is over, or its allowance, at `late`.
    pub(super) fn drained(&mut self, d: DeviceId, seat: SeatIx, now: u64, late: Option<u64>) {
        // Who never has done its work never measures what it was let in for beside it either.
        let unpaid = self.unpaid(seat, now);
        let device = &mut self.devices[index(d)];
        device.phase = Phase::Free;
        let mut draining = core::mem::take(&mut device.draining);
        let again = draining.iter().copied().find(|&slot| self.slot(slot).overdue.is_some());
        if let Some(slot) = again.filter(|_| late.is_some()) {
            self.slot_mut(slot).ahead += unpaid;
            self.pay(seat, unpaid);
        }
        for slot in draining.drain(..) {
            let flies = self.slot(slot).usage.in_flight != Some(0);
            if !(late.is_some() && flies) {
                self.settle_claim(slot, now);
            } else if self.slot(slot).overdue.is_none() {
                self.devices[index(d)].is_overdue(slot, now);
                let this = self.slot_mut(slot);
                this.overdue = late;
                this.claim.iter_mut().for_each(|claim| claim.to = Some(now));
            }
            let this = self.slot_mut(slot);
            this.trailing = late.is_none() && flies && this.overdue.is_none();
            if late.is_none() {
                let owed = self.owed(d, seat, now);
                self.yield_to_others(seat, owed);
                // Of what is about to end nothing was measured yet.
                self.slot_mut(slot).behind += if flies { owed } else { 0 };
            }
            if self.slot(slot).usage.wants {
                self.enqueue(slot);
            }
        }
        if late.is_none() {
            // Waiting for the next lease keeps what refills meanwhile; what was left before it is cut here.
            self.seat_mut(seat).account.rest(now);
        }
        self.devices[index(d)].draining = draining;
        self.seat_mut(seat).place = Place::Idle;
        self.place(seat, now);
    }
}
