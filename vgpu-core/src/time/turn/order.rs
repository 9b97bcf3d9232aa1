//! Virtual time: how much of the device each member used, for the choice of the next holder.
//!
//! A member's virtual time is its measured device time plus a shift. A member that begins to wait is moved to at most a
//! quantum behind the least of those that want or hold the device now, and of those that took it, by the rules that the
//! arbiter uses too ([`crate::time::virtual_time`]). Debts stay: a member that ran a long kernel waits until the others
//! have had as much. Each taking costs a handover, so that every member's turn comes even where nothing is
//! measured.

use super::{Turn, TurnState};
use crate::memory::ledger::LedgerSlot;
use crate::sync::Ordering;
use crate::time::config::BASE;
use crate::time::virtual_time::{advance_clock, rejoin_time};

/// A member's virtual time: the member with the least is next.
pub(super) fn virtual_time(slot: &LedgerSlot) -> u64 {
    slot.busy.load(Ordering::Relaxed).wrapping_add(slot.turn_shift.load(Ordering::Relaxed))
}

fn is_waiting(slot: &LedgerSlot, now: u64) -> bool {
    let until = slot.turn_wants.load(Ordering::SeqCst);
    // As in `Turn::contended`.
    until.wrapping_sub(now).wrapping_sub(1) < super::REQUEST_LIFETIME_NS + BASE.heartbeat
}

impl Turn<'_> {
    fn other_members(&self) -> impl Iterator<Item = (usize, &LedgerSlot)> {
        self.ledger.in_use().iter().enumerate().filter(|(index, _)| *index != self.me)
    }

    /// The least virtual time among the other waiting members, and its slot; of two equal ones the lower slot.
    pub(super) fn first_waiting(&self, now: u64) -> Option<(u64, usize)> {
        self.other_members()
            .filter(|(_, slot)| is_waiting(slot, now))
            .map(|(index, slot)| (virtual_time(slot), index))
            .min()
    }

    /// True if this member would be next, counting `more` in flight that was not measured yet.
    pub(super) fn is_first(&self, more: u64, now: u64) -> bool {
        let mine = (virtual_time(self.slot).saturating_add(more), self.me);
        self.first_waiting(now).is_none_or(|first| mine < first)
    }

    /// Begins to wait.
    pub(super) fn join(&self, now: u64) {
        let holder = self.load_word().holder_slot().filter(|holder| *holder != self.me);
        let holding = holder.and_then(|index| self.ledger.in_use().get(index)).map(virtual_time);
        let waiting = self.first_waiting(now).map(|(used, _)| used);
        let clock = self.ledger.header.turn_clock.load(Ordering::Relaxed);
        let (clock, own) = (advance_clock(clock, holding.into_iter().chain(waiting)), virtual_time(self.slot));
        self.advance_time(rejoin_time(own, clock, BASE.quantum, u64::MAX) - own);
    }

    /// Adds to this member's virtual time.
    fn advance_time(&self, ns: u64) {
        if ns > 0 {
            let shift = self.slot.turn_shift.load(Ordering::Relaxed);
            self.slot.turn_shift.store(shift.wrapping_add(ns), Ordering::Relaxed);
        }
    }

    /// Charges this member for taking the turn: a handover.
    pub(super) fn pay_taking(&self) {
        self.ledger.header.turn_clock.fetch_max(virtual_time(self.slot), Ordering::Relaxed);
        self.advance_time(BASE.handover);
    }

    /// Another member that apparently has work of an earlier possession queued, and a number that identifies all such
    /// possessions.
    pub(super) fn overdue_member(&self) -> (Option<usize>, u64) {
        let mut found = (None, 0u64);
        for (index, slot) in self.other_members() {
            // `turn_drained` is read first, because a member stores it after `turn_taken`.
            let drained = slot.turn_drained.load(Ordering::SeqCst);
            let taken = slot.turn_taken.load(Ordering::SeqCst);
            if taken != drained {
                found = (found.0.or(Some(index)), crate::mix::spread_key(found.1).wrapping_add(taken));
            }
        }
        found
    }

    /// Checks whether the possession is exclusive now, and returns a slot to suspect if not. Work of the same
    /// possessions counts as over after `BASE.stuck`: a program that has waited for its work and makes
    /// no call reports nothing.
    pub(super) fn survey_members(&self, hand: &mut TurnState, now: u64) -> Option<usize> {
        let (overdue, debts) = self.overdue_member();
        if debts != hand.debts {
            (hand.debts, hand.indebted) = (debts, now);
        }
        let overdue = overdue.filter(|_| now.saturating_sub(hand.indebted) < BASE.stuck);
        hand.exclusive = overdue.is_none();
        hand.rescan = now.saturating_add(BASE.in_flight);
        overdue
    }
}
