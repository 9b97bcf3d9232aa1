//! Virtual time: who used how much, as far as it counts for who is next.
//!
//! A member's virtual time is the device time measured for it plus a shift. Whoever comes back from a rest is brought up
//! to a quantum behind the least of those that want or hold the device now, and behind those that took it: rest is no
//! claim, but who comes back for a moment now and then comes first. A pause of less than [`WISH`], as between two
//! launches, is no rest: what a member was passed over for (it woke up late) stays its claim, up to [`CREDIT`]. Debts
//! stay: who ran a long kernel, and waits again, waits until the others had as much. Each taking costs [`TAKING`], so that
//! it ends also where nothing is measured.

use super::{Hand, QUANTUM, Turn, WISH};
use crate::ledger::Slot;
use crate::sync::Ordering;

/// What taking the turn costs in virtual time, in nanoseconds.
pub(super) const TAKING: u64 = 20_000;

/// How far behind the others a member can be that did not rest.
pub(super) const CREDIT: u64 = 100_000_000;

/// Virtual time.
pub(super) fn used(slot: &Slot) -> u64 {
    slot.busy.load(Ordering::Relaxed).wrapping_add(slot.turn_shift.load(Ordering::Relaxed))
}

fn wants(slot: &Slot, now: u64) -> bool {
    let until = slot.turn_wants.load(Ordering::SeqCst);
    // As in `Turn::contended`.
    until.wrapping_sub(now).wrapping_sub(1) < super::WISH + super::HEARTBEAT
}

impl Turn<'_> {
    fn others(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.ledger.in_use().iter().enumerate().filter(|(index, _)| *index != self.me)
    }

    /// The least virtual time of those that wait, and who it is; of two the lower slot.
    pub(super) fn first(&self, now: u64) -> Option<(u64, usize)> {
        self.others().filter(|(_, slot)| wants(slot, now)).map(|(index, slot)| (used(slot), index)).min()
    }

    /// Whether this member would be next, with `more` in flight that was not measured yet.
    pub(super) fn is_first(&self, more: u64, now: u64) -> bool {
        let mine = (used(self.slot).saturating_add(more), self.me);
        self.first(now).is_none_or(|first| mine < first)
    }

    /// Begins to wait, having wanted the device or worked on it until `wanted`.
    pub(super) fn join(&self, wanted: u64, now: u64) {
        let holder = self.word().holder().filter(|holder| *holder != self.me);
        let holding = holder.and_then(|index| self.ledger.in_use().get(index)).map(used);
        let waiting = self.first(now).map(|(used, _)| used);
        let here = holding.into_iter().chain(waiting).min().unwrap_or(0);
        let credit = if now.saturating_sub(wanted) <= WISH { CREDIT } else { QUANTUM };
        let least = here.max(self.ledger.header.turn_clock.load(Ordering::Relaxed)).saturating_sub(credit);
        self.advance(least.saturating_sub(used(self.slot)));
    }

    /// Adds to this member's virtual time.
    fn advance(&self, ns: u64) {
        if ns > 0 {
            let shift = self.slot.turn_shift.load(Ordering::Relaxed);
            self.slot.turn_shift.store(shift.wrapping_add(ns), Ordering::Relaxed);
        }
    }

    /// This member took the turn.
    pub(super) fn pay_taking(&self, now: u64) {
        // Who passes somebody over does not take his claim with it.
        let least = self.first(now).map_or(u64::MAX, |(used, _)| used).min(used(self.slot));
        self.ledger.header.turn_clock.fetch_max(least, Ordering::Relaxed);
        self.advance(TAKING);
    }

    /// Another member that has work of an earlier possession before the device, as far as anybody can tell, and a number
    /// that tells these possessions from others.
    pub(super) fn overdue(&self) -> (Option<usize>, u64) {
        let mut found = (None, 0u64);
        for (index, slot) in self.others() {
            // In this order: what was drained was taken before.
            let drained = slot.turn_drained.load(Ordering::SeqCst);
            let taken = slot.turn_taken.load(Ordering::SeqCst);
            if taken != drained {
                found = (found.0.or(Some(index)), crate::mix::spread(found.1).wrapping_add(taken));
            }
        }
        found
    }

    /// Looks whether the possession is exclusive now, and whom to suspect if not. Work of the same possessions for
    /// [`super::LONGEST`], and it counts as over: a program that has waited for its work and makes no call says nothing.
    pub(super) fn survey(&self, hand: &mut Hand, now: u64) -> Option<usize> {
        let (overdue, debts) = self.overdue();
        if debts != hand.debts {
            (hand.debts, hand.indebted) = (debts, now);
        }
        let overdue = overdue.filter(|_| now.saturating_sub(hand.indebted) < super::LONGEST);
        hand.exclusive = overdue.is_none();
        hand.rescan = now.saturating_add(super::SUSPECT);
        overdue
    }
}
