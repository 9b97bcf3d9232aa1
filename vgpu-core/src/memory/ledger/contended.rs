//! Slow path of a request that did not fit at the first attempt: under the turn lock, dead members reclaimed, on
//! stable readings.
//!
//! The turn lock is for progress, not for safety. Without it two requests that each see the other and both withdraw
//! could repeat that forever. The holder of the turn lock competes with fast paths only; each of those makes one
//! attempt and then queues here. If the lock is not obtained in time (its holder is stopped), the request proceeds
//! without it. The limit still holds; only progress is less certain.
//!
//! Slot locks are probed under the turn lock only. A dead slot that another process has locked and not yet freed looks
//! like a living one, and a refusal must not rest on it.

use super::{Kernel, Member, Refusal, Reservation};
use crate::units::bytes::Bytes;

/// Longest wait for driver calls of other members, in nanoseconds: 10 ms.
pub const OUTCOME_WAIT_NS: u64 = 10_000_000;
/// Longest wait for the decision of another member's request, while that member does not run, or for a stable
/// reading: 1 s.
pub const STUCK_WAIT_NS: u64 = 1_000_000_000;
/// Longest wait for the turn lock: 200 ms.
pub const TURN_WAIT_NS: u64 = 200_000_000;

/// Readings in a row before a round gives up on a stable one.
const STABLE_TRIES: u32 = if cfg!(loom) { 1 } else { 16 };
/// Rounds between two searches for dead members while waiting.
const ROUNDS_PER_RECLAIM: u32 = if cfg!(loom) { 1 } else { 16 };

/// The turn lock, released on drop; or, if it was not obtained in time, permission to proceed without it.
pub(super) struct SlowPathTurn<'k, K: Kernel> {
    kernel: &'k K,
    held: bool,
}

impl<'k, K: Kernel> SlowPathTurn<'k, K> {
    pub(super) fn take_turn(kernel: &'k K) -> Self {
        let held = kernel.lock_turn(kernel.now().saturating_add(TURN_WAIT_NS));
        Self { kernel, held }
    }
}

impl<K: Kernel> Drop for SlowPathTurn<'_, K> {
    fn drop(&mut self) {
        if self.held {
            self.kernel.unlock_turn();
        }
    }
}

/// Decision about a request, from one stable reading of the ledger.
enum Verdict {
    /// The request fits within the limit.
    Fits,
    /// The request does not fit next to the bytes that are already committed.
    Never,
    /// The request fits only if driver calls of other members, for which bytes are reserved, fail.
    Pending,
    /// The request fits only if claims (requests of other members that are not granted yet) are withdrawn.
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
        let _turn = SlowPathTurn::take_turn(kernel);
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
                Some(Verdict::Fits) => match self.try_claim(bytes, limit) {
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
                // The members waited for may have died by now: reclaim and judge once more.
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
