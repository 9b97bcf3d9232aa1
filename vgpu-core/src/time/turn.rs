//! Lets the members of one tenant take turns on a device, so that each member's events measure only its own work.
//!
//! Contexts of different processes never run at the same time (without MPS), and an interval between two events of
//! one contains the slices of the others. Members that share one ceiling would pay for such an interval twice. So,
//! while several members want the device, one at a time *holds* it, for a *lease* of `BASE.quantum`. Then it stops
//! launching, drains, and passes the turn on. The arbiter does the same between tenants; here the members coordinate
//! without a daemon, through words in the ledger's page. (This turn is for the device. The ledger's own turn is a
//! lock on the slow path of a request.)
//!
//! | word | meaning | written by |
//! |---|---|---|
//! | `turn` | the holder and the end of its lease; or that nobody holds it, and since when | the member that takes,
//! renews or passes on: compare-exchange |
//! | `turn_contended` | until when the turn counts as contended | waiting members, repeatedly: it expires by itself |
//! | `turn_clock` | the largest virtual time at which a member took the turn | the member that takes |
//! | `turn_bell` | counts the events that others may wait for; the futex word | the member that passes on, or begins to
//! wait |
//! | slot: `turn_wants` | until when this member's request counts, 0: none | its member |
//! | slot: `turn_shift` | virtual time = device time measured (`busy`) + this | its member |
//! | slot: `turn_taken`, `turn_drained` | its last possession; the last one whose work it saw complete, all of it | its
//! member |
//! | slot: `turn_due` | when the work it has queued should be over, 0: soon | its member, while the turn is contended |
//!
//! *Alone*, a member keeps the turn for ever, at the price of two relaxed loads per launch and no store at all.
//!
//! *Exclusive.* A possession is exclusive while no other slot has work of an earlier possession queued: `turn_taken
//! == turn_drained` in all of them (or the work has been there for `BASE.stuck`). A member that takes the turn
//! writes `turn_taken` before it checks that it still holds. A member that preempts it checks `turn_taken` after it
//! took. So one of the two sees the other.
//!
//! *A lease* ends after `BASE.quantum` if another member waits. It goes on, up to
//! [`BURST_NS`](crate::time::config::BURST_NS), for a holder that used little of the device (`BASE.in_flight`). Under a
//! low ceiling a quantum is only a launch or two, and a context switch costs the device more.
//!
//! *Next holder.* The waiting member with the least virtual time (`order`) is next, as between tenants in the
//! arbiter. Were it the longest wait, members would get device time in proportion to the length of their launches. No
//! member starves: taking the turn costs virtual time even where nothing is measured, and a new member starts at most
//! a quantum behind the others. So each waits for a bounded part of the others' work. A next member that does not
//! take the turn is passed over after `BASE.in_flight`, and ignored when its request expires.
//!
//! *Death and silence.* The lock of its slot reveals a holder that died ([`TurnStep::suspect`], `Member::bury`);
//! settling the slot frees the turn. A holder that does not drain within `BASE.drain` beyond its announced end
//! ([`patience`]) is preempted: it may be stopped, or its launches may wait for something. An announced end counts up
//! to `BASE.stuck`, so that every wait ends. No possession is then exclusive until the preempted member has
//! seen its work complete, but for at most `BASE.stuck`, because it may be idle and make no call. Every member
//! looks again each `BASE.heartbeat`, so a lost wake-up costs at most that.
//!
//! In reading order: this file (words, the launch's path), `step` (the slow path), `order` (virtual time), `patience`
//! (how long a holder asks the others to wait), `watch` (a check without the lock). Not here: locks, clocks, futexes,
//! and seeing completions; the caller's lock around [`TurnState`] serialises a process's threads.

#[cfg(all(test, loom))]
mod loom_tests;
mod order;
pub mod patience;
mod step;
#[cfg(all(test, not(loom)))]
mod tests;
mod watch;
#[cfg(all(test, not(loom)))]
mod world_tests;

pub use watch::TurnWatch;

use crate::memory::ledger::{Ledger, LedgerSlot, Member};
use crate::sync::{AtomicU32, Ordering};
use crate::time::arbiter::Gate;
use crate::time::config::BASE;

/// How long a request counts, and the turn counts as contended.
pub const REQUEST_LIFETIME_NS: u64 = 2 * BASE.heartbeat;

/// Bits of the word that name the holder: slot + 1, 0: nobody.
const HOLDER_BITS: u32 = 11;
/// The unit of the time in the bits above, as a power of two of nanoseconds.
const UNIT_BITS: u32 = 10;

const _: () = assert!(crate::memory::ledger::LEDGER_SLOTS < 1 << HOLDER_BITS);

/// The `turn` word, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TurnWord(u64);

impl TurnWord {
    /// Held by `slot` until `end`.
    fn held_until(slot: usize, end: u64) -> Self {
        Self((end >> UNIT_BITS) << HOLDER_BITS | (slot as u64 + 1))
    }

    /// Held by nobody, since `now`.
    fn free(now: u64) -> Self {
        Self((now >> UNIT_BITS) << HOLDER_BITS)
    }

    fn holder_slot(self) -> Option<usize> {
        let holder = self.0 & ((1 << HOLDER_BITS) - 1);
        usize::try_from(holder).ok()?.checked_sub(1)
    }

    /// The lease's end, or since when nobody holds.
    fn turn_moment(self) -> u64 {
        (self.0 >> HOLDER_BITS) << UNIT_BITS
    }
}

/// The turn for a device, as one member sees it.
#[derive(Clone, Copy)]
pub struct Turn<'p> {
    ledger: Ledger<'p>,
    slot: &'p LedgerSlot,
    me: usize,
}

/// A process's memory of the turn between two looks (calls of [`Turn::step_turn`]), under the caller's lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnState {
    /// The `turn` word that it took; 0: none, or another member preempted it.
    possession: u64,
    exclusive: bool,
    /// True while work of its last possession was not yet seen complete.
    owes: bool,
    wishing: bool,
    /// When to check again whether the possession is exclusive (no other member's work is queued).
    rescan: u64,
    /// Identifies the other members' possessions that have work queued.
    debts: u64,
    /// Since when `debts` has had this value.
    indebted: u64,
    /// The `turn` word of the holder that this process waits for; 0: none.
    seen: u64,
    /// Since when this process waits for that holder.
    since: u64,
    /// When this process may again suspect that holder of being dead.
    suspected: u64,
    /// When this process last looked at the turn while it waited.
    looked: u64,
    /// Since when the turn has been available, but another member was next.
    passed: Option<u64>,
    /// When this process took the turn.
    taken: u64,
    /// This member's virtual time when it took the turn.
    began: u64,
    /// Since when this process has held the turn without work or request.
    idle: Option<u64>,
}

impl TurnState {
    /// The possession, 0: none. A different number is a different possession.
    #[must_use]
    pub const fn possession_number(&self) -> u64 {
        self.possession
    }

    /// True while the turn is held, or work of a preempted possession was not yet seen complete.
    #[must_use]
    pub const fn has_unfinished_work(&self) -> bool {
        self.owes
    }
}

/// This process's queued work and request, at one look at the turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalWork {
    /// The current time.
    pub now: u64,
    /// True if a thread waits at the gate.
    pub wants: bool,
    /// The account admits a launch only from this time on; taking the turn earlier is useless.
    pub admitted: u64,
    /// Estimated work that was not seen complete: 0 only if all was.
    pub in_flight: u64,
    /// The latest time at which it should be over, by estimate.
    pub due: u64,
}

/// The outcome of a look at the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct TurnStep {
    /// Whether the member may launch now: the input to [`crate::time::gate::LaunchGate::ask_gate`].
    pub gate: Gate,
    /// When to look at the turn again, unless the bell or a completion comes first.
    pub look: u64,
    /// Members to wake at the bell: [`bell_bit`] of each; 0: none.
    pub wake: u32,
    /// A slot whose member may be dead: the caller checks and reaps it.
    pub suspect: Option<usize>,
}

/// The bit on which the member in `slot` waits at the bell (`FUTEX_WAIT_BITSET`).
#[must_use]
pub const fn bell_bit(slot: usize) -> u32 {
    1 << (slot % 32)
}

impl<'p> Turn<'p> {
    /// True if another member waited for the turn recently.
    ///
    /// # Cost
    /// One relaxed load.
    #[inline]
    #[must_use]
    pub fn is_contended(&self, now: u64) -> bool {
        let until = self.ledger.header.turn_contended.load(Ordering::Relaxed);
        // A time further ahead was written before the clock was set back.
        until.wrapping_sub(now).wrapping_sub(1) < REQUEST_LIFETIME_NS + BASE.heartbeat
    }

    /// The gate of a launch that needs no [`Turn::step_turn`]. The caller counts the launch as in flight before it
    /// releases its lock.
    ///
    /// # Cost
    /// Two relaxed loads and a few comparisons.
    #[inline]
    pub fn keep_turn(&self, hand: &mut TurnState, now: u64) -> Option<Gate> {
        let word = TurnWord(self.ledger.header.turn.load(Ordering::Relaxed));
        if hand.possession == 0 || word.holder_slot() != Some(self.me) {
            return None;
        }
        let contended = self.is_contended(now);
        if contended && now >= word.turn_moment() || !hand.exclusive && now >= hand.rescan {
            return None;
        }
        hand.idle = None;
        Some(self.run(hand, word, contended))
    }

    fn run(&self, hand: &TurnState, word: TurnWord, contended: bool) -> Gate {
        let until = if contended { word.turn_moment() } else { u64::MAX };
        Gate::Run { lease: hand.possession, until, exclusive: hand.exclusive, ceiling: None, wide: false }
    }

    /// A stamp for a measurement that begins now. The measurement is this member's own time if [`Turn::is_still_own`]
    /// holds for the stamp when its end is seen. 0: not exclusive.
    #[inline]
    #[must_use]
    pub fn turn_stamp(&self, hand: &TurnState) -> u64 {
        if hand.exclusive && self.is_still_own(hand, hand.possession) { hand.possession } else { 0 }
    }

    /// True if no other member has had the device since `stamp`.
    ///
    /// # Cost
    /// One load.
    #[inline]
    #[must_use]
    pub fn is_still_own(&self, hand: &TurnState, stamp: u64) -> bool {
        stamp != 0 && hand.possession == stamp && self.load_word().holder_slot() == Some(self.me)
    }

    /// True if this process holds the turn.
    #[inline]
    #[must_use]
    pub fn holds_turn(&self, hand: &TurnState) -> bool {
        hand.possession != 0 && self.load_word().holder_slot() == Some(self.me)
    }

    /// The futex word: read it before a step, wait while it has that value. Only changes matter, not the value.
    #[must_use]
    pub fn bell_word(&self) -> &'p AtomicU32 {
        &self.ledger.header.turn_bell
    }

    /// The `FUTEX_WAIT_BITSET` bit with which this member waits on `turn_bell`, so that few others wake with it.
    #[must_use]
    pub const fn bell_bit(&self) -> u32 {
        bell_bit(self.me)
    }

    fn load_word(&self) -> TurnWord {
        TurnWord(self.ledger.header.turn.load(Ordering::SeqCst))
    }

    fn exchange_word(&self, old: TurnWord, new: TurnWord) -> bool {
        self.ledger.header.turn.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl<'p> Member<'p> {
    /// The turn for the device, from this member's side.
    #[must_use]
    pub fn device_turn(&self) -> Turn<'p> {
        let ledger = self.member_ledger();
        Turn { ledger, slot: ledger.slot(self.index()), me: self.index() }
    }
}

impl Ledger<'_> {
    /// Frees the turn if slot `index` held it. Only for the holder of the slot's lock.
    pub(crate) fn free_turn_of(&self, index: usize) {
        let turn = &self.header.turn;
        let word = TurnWord(turn.load(Ordering::SeqCst));
        if word.holder_slot() == Some(index) {
            // If the exchange fails, another member took the turn first, which serves as well.
            let _ =
                turn.compare_exchange(word.0, TurnWord::free(word.turn_moment()).0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

impl LedgerSlot {
    /// Resets the slot to a member without history. Only for the holder of the slot's lock.
    pub(crate) fn settle_turn(&self) {
        for word in [&self.turn_wants, &self.turn_shift, &self.turn_due] {
            word.store(0, Ordering::SeqCst);
        }
        // The work that the dead member left on the device is gone.
        let taken = self.turn_taken.load(Ordering::SeqCst);
        self.turn_drained.store(taken, Ordering::SeqCst);
    }
}
