//! Confirms, for the price of two loads, that a turn is still held and that no member waits for it.

use super::{REQUEST_LIFETIME_NS, Turn, TurnState, TurnWord};
use crate::sync::{AtomicU64, Ordering};
use crate::time::config::BASE;

/// The words of the turn, read while it was held exclusively and no member waited for it.
#[derive(Clone, Copy)]
pub struct TurnWatch<'p> {
    turn: &'p AtomicU64,
    contended: &'p AtomicU64,
    seen: (u64, u64),
}

impl TurnWatch<'_> {
    /// True if both words are unchanged. A member that starts to wait, takes the turn or passes it on writes one of
    /// them. Unchanged words keep their meaning, because time can only expire a request.
    ///
    /// # Cost
    /// Two relaxed loads.
    #[inline(always)]
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        (self.turn.load(Ordering::Relaxed), self.contended.load(Ordering::Relaxed)) == self.seen
    }
}

impl<'p> Turn<'p> {
    /// Returns a [`TurnWatch`] that shows, between two calls of [`Turn::keep_turn`], whether the turn is still kept.
    /// `None`: the turn is not held exclusively, or another member waits for it.
    #[must_use]
    pub fn watch_turn(&self, hand: &TurnState, now: u64) -> Option<TurnWatch<'p>> {
        let (turn, contended) = (&self.ledger.header.turn, &self.ledger.header.turn_contended);
        let seen = (turn.load(Ordering::Relaxed), contended.load(Ordering::Relaxed));
        let is_held = hand.possession != 0 && hand.exclusive && TurnWord(seen.0).holder_slot() == Some(self.me);
        // As in `contended`.
        let is_wanted = seen.1.wrapping_sub(now).wrapping_sub(1) < REQUEST_LIFETIME_NS + BASE.heartbeat;
        (is_held && !is_wanted).then_some(TurnWatch { turn, contended, seen })
    }
}
