//! A turn that is held and that nobody waits for, told again for the price of two loads.

use super::{HEARTBEAT, Hand, Turn, WISH, Word};
use crate::sync::{AtomicU64, Ordering};

/// The words of the turn as they were when it was held, exclusively, and nobody waited for it.
#[derive(Clone, Copy)]
pub struct Watch<'p> {
    turn: &'p AtomicU64,
    contended: &'p AtomicU64,
    seen: (u64, u64),
}

impl Watch<'_> {
    /// Whether it is still so. Somebody who comes to wait, takes the turn or passes it on writes one of the two words; what
    /// is there unchanged means what it meant, as a wish only expires with time.
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
    /// To see by [`Watch::stands`] whether the turn is kept, between two looks at it by [`Turn::keeps`]. `None`: it is not
    /// held exclusively, or somebody waits for it.
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
