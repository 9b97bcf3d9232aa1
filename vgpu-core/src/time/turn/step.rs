//! One look at the turn: keep it, renew it, pass it on, request it, take it.
//!
//! Each action is one atomic operation on this member's own word, or one compare-exchange on the turn. Other members
//! can handle every state between two actions: see the head of `turn.rs`.

use super::order::virtual_time;
use super::{LocalWork, REQUEST_LIFETIME_NS, Turn, TurnState, TurnStep, TurnWord, bell_bit};
use crate::sync::{Ordering, total_order};
use crate::time::arbiter::Gate;
use crate::time::config::{BASE, BURST_NS, SHORT_NS};

/// Lost compare-exchanges in one look before the caller must look again.
const MAX_EXCHANGE_TRIES: u32 = if cfg!(loom) { 2 } else { 4 };

impl TurnStep {
    fn wait(look: u64) -> Self {
        Self { gate: Gate::Wait, look, wake: 0, suspect: None }
    }
}

impl Turn<'_> {
    /// Looks at the turn and acts. For a thread at the gate when [`Turn::keep_turn`] returns `None`, and for the thread
    /// that watches completions while the turn is contended.
    ///
    /// # Cost
    /// A few atomic operations; a scan of the slots ever used where another member waits or the turn changes holder.
    pub fn step_turn(&self, hand: &mut TurnState, here: &LocalWork) -> TurnStep {
        let mut wake = 0;
        let mut step = TurnStep::wait(here.now);
        for _ in 0..MAX_EXCHANGE_TRIES {
            let word = self.load_word();
            let done = if hand.possession != 0 && word.holder_slot() == Some(self.me) {
                self.hold_turn(hand, here, word, &mut wake)
            } else {
                self.seek_turn(hand, here, word, &mut wake)
            };
            if let Some(done) = done {
                step = done;
                break;
            }
        }
        // A caller that looks again at once, over and over, would take the processor from the thread that must act.
        step.look = step.look.max(here.now + 1).min(here.now.saturating_add(BASE.heartbeat));
        step.wake = wake;
        step
    }

    /// The look of a member that holds the turn. `None`: the word changed meanwhile; look again.
    fn hold_turn(&self, hand: &mut TurnState, here: &LocalWork, word: TurnWord, wake: &mut u32) -> Option<TurnStep> {
        let now = here.now;
        let suspect = if hand.exclusive || now < hand.rescan { None } else { self.survey_members(hand, now) };
        let idle = here.in_flight == 0 && !here.wants;
        let contended = self.is_contended(now);
        let run = |hand: &TurnState, word: TurnWord, look| {
            Some(TurnStep { gate: self.run(hand, word, contended), look, wake: 0, suspect })
        };
        if !contended {
            hand.idle = None;
            return run(hand, word, u64::MAX);
        }
        self.slot.turn_due.store(here.due, Ordering::Relaxed);
        if now < word.turn_moment() {
            if !idle {
                hand.idle = None;
                return run(hand, word, word.turn_moment());
            }
            let ends = hand.idle.get_or_insert(now).saturating_add(SHORT_NS).min(word.turn_moment());
            if now < ends {
                return run(hand, word, ends);
            }
        } else if here.wants && (self.has_just_begun(hand, here) || self.is_first(here.in_flight, now)) {
            let renewed = TurnWord::held_until(self.me, now + BASE.quantum);
            return self.exchange_word(word, renewed).then(|| run(hand, renewed, renewed.turn_moment())).flatten();
        } else if here.in_flight > 0 {
            return Some(TurnStep { suspect, ..TurnStep::wait(u64::MAX) });
        }
        self.pass_on(hand, word, now, wake);
        // Go on as a member that does not hold, whether this one still wants the turn or not.
        None
    }

    /// True if this member keeps the turn whoever is next, because it has used little of the device.
    fn has_just_begun(&self, hand: &TurnState, here: &LocalWork) -> bool {
        let had = virtual_time(self.slot).wrapping_sub(hand.began).saturating_add(here.in_flight);
        had < BASE.in_flight && here.now < hand.taken.saturating_add(BURST_NS)
    }

    /// All launched work is complete: passes the turn on.
    fn pass_on(&self, hand: &mut TurnState, word: TurnWord, now: u64, wake: &mut u32) {
        self.settle_debt(hand);
        hand.possession = 0;
        hand.idle = None;
        if self.exchange_word(word, TurnWord::free(now)) {
            self.ring_bell(wake, self.first_waiting(now).map_or(u32::MAX, |(_, index)| bell_bit(index)));
        }
    }

    fn settle_debt(&self, hand: &mut TurnState) {
        if hand.owes {
            hand.owes = false;
            let taken = self.slot.turn_taken.load(Ordering::Relaxed);
            self.slot.turn_drained.store(taken, Ordering::SeqCst);
        }
    }

    fn ring_bell(&self, wake: &mut u32, whom: u32) {
        self.bell_word().fetch_add(1, Ordering::SeqCst);
        *wake |= whom;
    }

    /// A look by a member that does not hold the turn, or not any more.
    fn seek_turn(&self, hand: &mut TurnState, here: &LocalWork, word: TurnWord, wake: &mut u32) -> Option<TurnStep> {
        hand.possession = 0;
        hand.idle = None;
        if here.in_flight == 0 {
            self.settle_debt(hand);
        }
        if !here.wants {
            if core::mem::take(&mut hand.wishing) {
                self.slot.turn_wants.store(0, Ordering::SeqCst);
            }
            (hand.seen, hand.passed) = (0, None);
            return Some(TurnStep::wait(u64::MAX));
        }
        // A word that names this slot although this process did not take it is left over from the slot's previous
        // owner, which is gone.
        let holder = word.holder_slot().filter(|holder| *holder != self.me);
        // No member holds the turn or waits for it: there is no contention, and this look causes none.
        let quiet = holder.is_none() && (!self.is_contended(here.now) || self.first_waiting(here.now).is_none());
        if quiet && here.now >= here.admitted {
            if !hand.wishing {
                self.join(here.now);
            }
            return self.take_turn(hand, here, word);
        }
        self.post_request(hand, here.now, holder, quiet, wake);
        match holder {
            None => self.claim_turn(hand, here, word),
            Some(holder) => self.await_holder(hand, here, word, holder),
        }
    }

    fn post_request(&self, hand: &mut TurnState, now: u64, holder: Option<usize>, quiet: bool, wake: &mut u32) {
        // A member that was stopped while it waited lets its request expire, so it joins again.
        if !core::mem::replace(&mut hand.wishing, true) || now >= self.slot.turn_wants.load(Ordering::Relaxed) {
            self.join(now);
        }
        let until = now.saturating_add(REQUEST_LIFETIME_NS);
        self.slot.turn_wants.store(until, Ordering::SeqCst);
        if quiet {
            return;
        }
        let contended = &self.ledger.header.turn_contended;
        let before = contended.load(Ordering::Relaxed);
        if before <= now.saturating_add(REQUEST_LIFETIME_NS / 2)
            || before > now.saturating_add(REQUEST_LIFETIME_NS + BASE.heartbeat)
        {
            contended.store(until, Ordering::SeqCst);
            if before <= now {
                self.ring_bell(wake, holder.map_or(0, bell_bit));
            }
        }
    }

    /// There is no holder, or its time is over: takes the turn, if this member is next.
    fn claim_turn(&self, hand: &mut TurnState, here: &LocalWork, word: TurnWord) -> Option<TurnStep> {
        if here.now < here.admitted {
            hand.passed = None;
            return Some(TurnStep::wait(here.admitted));
        }
        if !self.is_first(0, here.now) {
            let due = hand.passed.get_or_insert(here.now).saturating_add(BASE.in_flight);
            if here.now < due {
                return Some(TurnStep::wait(due));
            }
        }
        self.take_turn(hand, here, word)
    }

    fn await_holder(&self, hand: &mut TurnState, here: &LocalWork, word: TurnWord, holder: usize) -> Option<TurnStep> {
        let now = here.now;
        // Time passes for a stopped process, too. A member has waited only if it looked again and again.
        let paused = now.saturating_sub(core::mem::replace(&mut hand.looked, now)) > REQUEST_LIFETIME_NS;
        if hand.seen != word.0 || paused {
            (hand.seen, hand.since, hand.suspected, hand.passed) = (word.0, now, 0, None);
        }
        let end = word.turn_moment().min(hand.since.saturating_add(BASE.quantum)).max(hand.since);
        let due = self.ledger.in_use().get(holder).map_or(0, |slot| slot.turn_due.load(Ordering::Relaxed));
        let due = due.min(hand.since.saturating_add(BASE.stuck)).max(end);
        let patience = due.saturating_add(BASE.drain);
        let mut suspect = None;
        if now >= end.saturating_add(BASE.in_flight) && now >= hand.suspected {
            hand.suspected = now.saturating_add(BASE.heartbeat);
            suspect = Some(holder);
        }
        if now < patience {
            let look = patience.min(end.saturating_add(BASE.in_flight).max(hand.suspected));
            return Some(TurnStep { suspect, ..TurnStep::wait(look) });
        }
        let step = self.claim_turn(hand, here, word)?;
        Some(TurnStep { suspect: suspect.or(step.suspect), ..step })
    }

    fn take_turn(&self, hand: &mut TurnState, here: &LocalWork, word: TurnWord) -> Option<TurnStep> {
        let now = here.now;
        // No two possessions of a member use the same word.
        let before = self.slot.turn_taken.load(Ordering::Relaxed);
        let mut new = TurnWord::held_until(self.me, now + BASE.quantum);
        if new.0 == before || new == word {
            new = TurnWord(new.0 + (1 << super::HOLDER_BITS));
        }
        if !self.exchange_word(word, new) {
            return None;
        }
        self.slot.turn_taken.store(new.0, Ordering::SeqCst);
        total_order();
        hand.owes = true;
        if self.load_word() != new {
            // Another member preempted us meanwhile, and may not have seen that we took the turn.
            return None;
        }
        hand.possession = new.0;
        (hand.seen, hand.passed) = (0, None);
        if core::mem::take(&mut hand.wishing) {
            self.slot.turn_wants.store(0, Ordering::SeqCst);
        }
        self.slot.turn_due.store(here.due, Ordering::Relaxed);
        self.pay_taking();
        (hand.taken, hand.began) = (now, virtual_time(self.slot));
        let suspect = self.survey_members(hand, now);
        let contended = self.is_contended(now);
        let look = if contended { new.turn_moment() } else { u64::MAX };
        Some(TurnStep { gate: self.run(hand, new, contended), look, wake: 0, suspect })
    }

    /// This member's virtual time: for tests and reports.
    #[must_use]
    pub fn own_virtual_time(&self) -> u64 {
        virtual_time(self.slot)
    }
}
