//! The slow way of a request that did not fit at first sight: in turn, the dead reclaimed, on stable readings.
//!
//! The turn is for progress, not for safety: two claims that each saw the other and both withdrew
//! would do so for ever. Whoever has the turn claims against fast paths only, and each of those makes
//! one attempt and then queues here. If the turn cannot be had in time (its holder is stopped), the
//! request goes on without it: still never over, only less sure of its luck.
//!
//! Slot locks are probed in turn only: a dead slot that somebody has locked and not yet settled cannot be
//! told from a living one, and a refusal must not rest on it.

use super::{Kernel, Member, Refusal, Reservation};
use crate::bytes::Bytes;

/// How long a request waits for the driver calls of others (nanoseconds).
pub const OUTCOME_WAIT_NS: u64 = 10_000_000;
/// How long it waits for a claim whose owner does not run, or for a still moment.
pub const STUCK_WAIT_NS: u64 = 1_000_000_000;
/// How long it waits for the turn.
pub const TURN_WAIT_NS: u64 = 200_000_000;

/// Readings in a row before a stable one is given up for this round.
const STABLE_TRIES: u32 = if cfg!(loom) { 1 } else { 16 };
/// Rounds between two looks for dead members while waiting.
const ROUNDS_PER_RECLAIM: u32 = if cfg!(loom) { 1 } else { 16 };

/// The turn, given back when dropped; or the permission to go on without.
pub(super) struct Turn<'k, K: Kernel> {
    kernel: &'k K,
    held: bool,
}

impl<'k, K: Kernel> Turn<'k, K> {
    pub(super) fn take(kernel: &'k K) -> Self {
        let held = kernel.lock_turn(kernel.now().saturating_add(TURN_WAIT_NS));
        Self { kernel, held }
    }
}

impl<K: Kernel> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        if self.held {
            self.kernel.unlock_turn();
        }
    }
}

/// What a stable reading says about a request.
enum Verdict {
    /// Nothing stands in its way.
    Fits,
    /// Settled charges do.
    Never,
    /// Reservations do, whose driver calls are under way.
    Pending,
    /// Claims do, which their owners are about to decide.
    Tentative,
}

impl<'p> Member<'p> {
    #[cold]
    pub(super) fn reserve_contended<K: Kernel>(
        &self,
        bytes: u64,
        limit: u64,
        kernel: &K,
    ) -> Result<Reservation<'p>, Refusal> {
        let _turn = Turn::take(kernel);
        self.reclaim_in_turn(kernel);
        let since = kernel.now();
        let mut asked_the_dead = false;
        let (requested, limit_bytes) = (Bytes(bytes), Bytes(limit));
        let mut round: u32 = 0;
        loop {
            let waited = kernel.now().saturating_sub(since);
            let totals = self.ledger.stable(STABLE_TRIES);
            let verdict = totals.map(|totals| {
                let beside = |held: u64| held.saturating_add(bytes) <= limit;
                match totals {
                    _ if beside(totals.used) => Verdict::Fits,
                    _ if !beside(totals.settled) => Verdict::Never,
                    _ if !beside(totals.settled.saturating_add(totals.pending)) => Verdict::Pending,
                    _ => Verdict::Tentative,
                }
            });
            let patience = match verdict {
                Some(Verdict::Fits) => match self.claim(bytes, limit) {
                    Some(reservation) => return Ok(reservation),
                    None => STUCK_WAIT_NS,
                },
                Some(Verdict::Never) => {
                    let used = Bytes(totals.map_or(0, |totals| totals.settled));
                    return Err(Refusal::OverLimit { used, requested, limit: limit_bytes });
                }
                Some(Verdict::Pending) => OUTCOME_WAIT_NS,
                Some(Verdict::Tentative) | None => STUCK_WAIT_NS,
            };
            if waited >= patience {
                if asked_the_dead {
                    let used = Bytes(totals.map_or(0, |totals| totals.used));
                    return Err(Refusal::Pending { used, requested, limit: limit_bytes });
                }
                // Who we wait for may be dead by now: one more look, one more test.
                asked_the_dead = true;
                self.reclaim_in_turn(kernel);
                continue;
            }
            if round % ROUNDS_PER_RECLAIM == ROUNDS_PER_RECLAIM - 1 {
                self.reclaim_in_turn(kernel);
            }
            kernel.wait(round);
            round = round.wrapping_add(1);
        }
    }
}
