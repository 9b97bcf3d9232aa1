//! Confirms, for the price of two loads, that a turn is still held and that no member waits for it.

use super::{HEARTBEAT, Hand, Turn, WISH, Word};
use crate::sync::{AtomicU64, Ordering};

/// The words of the turn, read while it was held exclusively and no member waited for it.
#[derive(Clone, Copy)]
pub struct Watch<'p> {
    turn: &'p AtomicU64,
    contended: &'p AtomicU64,
    seen: (u64, u64),
}

impl Watch<'_> {
    /// True if both words are unchanged. A member that starts to wait, takes the turn or passes it on writes one of
    /// them. Unchanged words keep their meaning, because time can only expire a request.
    ///
    /// # Cost
    /// Two relaxed loads.
    #[inline(always)]
    #[must_use]
    pub fn stands(&self) -> bool {
        (self.turn.load(Ordering::Relaxed), self.contended.load(Ordering::Relaxed)) == self.seen
    }
}

impl<'p> Turn<'p> {
    /// Returns a [`Watch`] that shows, between two calls of [`Turn::keeps`], whether the turn is still kept. `None`:
    /// the turn is not held exclusively, or another member waits for it.
    #[must_use]
    pub fn watch(&self, hand: &Hand, now: u64) -> Option<Watch<'p>> {
        let (turn, contended) = (&self.ledger.header.turn, &self.ledger.header.turn_contended);
        let seen = (turn.load(Ordering::Relaxed), contended.load(Ordering::Relaxed));
        let is_held = hand.possession != 0 && hand.exclusive && Word(seen.0).holder() == Some(self.me);
        // As in `contended`.
        let is_wanted = seen.1.wrapping_sub(now).wrapping_sub(1) < WISH + HEARTBEAT;
        (is_held && !is_wanted).then_some(Watch { turn, contended, seen })
    }
}
