//! The members of one tenant take turns at a device, so that what the events of one measure is its own work.
//!
//! Contexts of different processes never run at the same time (without MPS), and an interval between two events of one
//! contains the slices of the others. Members that share one ceiling would pay for such an interval twice. So, while
//! several of them want the device, one at a time *holds* it, for a *lease* of [`QUANTUM`]; then it launches nothing,
//! drains, and passes on. The arbiter does the same between tenants; here nobody presides, the members agree by words in
//! the ledger's page. (This turn is at the device; the ledger's own turn is a lock on the slow way of a request.)
//!
//! | word | says | written by |
//! |---|---|---|
//! | `turn` | who holds, and when the lease ends; or that nobody does, and since when | whoever takes, renews, passes on: compare-exchange |
//! | `turn_contended` | until when it counts that somebody waits | those who wait, again and again: it expires by itself |
//! | `turn_clock` | the virtual time of whoever took it last, the largest | whoever takes |
//! | `turn_bell` | counts what others may wait for; the futex word | whoever passes on, or begins to wait |
//! | slot: `turn_wants` | until when this member's wish counts, 0: none | its member |
//! | slot: `turn_shift` | virtual time = device time measured (`busy`) + this | its member |
//! | slot: `turn_taken`, `turn_drained` | its last possession; the last one whose work it saw complete, all of it | its member |
//! | slot: `turn_due` | when the work it has before the device should be over, 0: soon | its member, where it is contended |
//!
//! *Alone* a member keeps the turn for ever, at the price of two relaxed loads for each launch and no store at all.
//!
//! *Exclusive.* A possession is exclusive if, after it was taken, no other slot has work of an earlier one before the
//! device: `turn_taken == turn_drained` in all of them (or has had it for [`LONGEST`]). Whoever takes writes `turn_taken` before it looks whether it
//! still holds, and whoever takes from it looks at `turn_taken` after it took: one of the two sees the other.
//!
//! *A lease* is over after [`QUANTUM`] where somebody waits, but goes on for whoever had next to nothing of the device
//! ([`USE`], up to [`LEASE`]): under a low ceiling a quantum is a launch or two, and a change costs the device more.
//!
//! *Who is next.* The waiting member that used the least (virtual time: `order`), as the arbiter does between tenants,
//! and not who waits longest: members whose launches differ in length would get the device in proportion to these.
//! Nobody starves: taking costs virtual time even where nothing is measured, whoever comes is at most a quantum behind
//! those that are there, so that each waits for a bounded part of the others' work. Whoever is next and does not come
//! is passed over after [`PASS`], and ignored when its wish expires.
//!
//! *Death and silence.* A holder that died is found by its slot's lock ([`Step::suspect`], `Member::bury`); settling a
//! slot frees the turn. One that does not drain within [`DRAIN`] beyond what it said ([`patience`]; it is stopped, or its
//! launches wait for something) is robbed: exclusivity is lifted until it has seen its work complete, but for [`LONGEST`]
//! at most, as it may be idle and make no call; nobody waits longer. Everybody looks again every [`HEARTBEAT`], so that a wake
//! that was lost costs so much and no more.
//!
//! In reading order: this file (words, the launch's path), `step` (what a member does when that is not enough), `order`
//! (virtual time), `patience` (how long a holder asks for), `watch` (a look without the lock). Not here:
//! locks and clocks, futexes, who reaps completions; a process's threads are told apart by the caller's lock around [`Hand`].

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

pub use watch::Watch;

use crate::arbiter::Gate;
use crate::ledger::{Ledger, Member, Slot};
use crate::sync::{AtomicU32, Ordering};

/// Length of a lease, in nanoseconds.
pub const QUANTUM: u64 = 4_000_000;
/// How long a drain may take beyond what the holder expects.
pub const DRAIN: u64 = 10_000_000;
/// A lease goes on for its holder until it used so much of the device ...
pub const USE: u64 = 2_000_000;
/// ... but so long at most: under a low ceiling a quantum is but a few launches, and each change costs the device a switch.
pub const LEASE: u64 = 20_000_000;
/// What the holder expects is believed up to here.
pub const LONGEST: u64 = 2_000_000_000;
/// How long a wish counts, and that there is one.
pub const WISH: u64 = 20_000_000;
/// Nobody waits longer without looking again.
pub const HEARTBEAT: u64 = 10_000_000;
/// Whoever is next and does not come within this is passed over.
pub const PASS: u64 = 2_000_000;
/// A holder without work and wish passes on before its lease ends, after this.
pub const IDLE: u64 = 100_000;
/// A holder that is so late is suspected to be dead.
pub const SUSPECT: u64 = 1_000_000;

/// Who holds, in the low bits of the word: slot + 1, 0: nobody.
const HOLDER_BITS: u32 = 11;
/// The unit of time in the bits above, as a power of two.
const UNIT_BITS: u32 = 10;

const _: () = assert!(crate::ledger::SLOTS < 1 << HOLDER_BITS);

/// The word of the turn, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Word(u64);

impl Word {
    /// Held by `slot` until `end`.
    fn held(slot: usize, end: u64) -> Self {
        Self((end >> UNIT_BITS) << HOLDER_BITS | (slot as u64 + 1))
    }

    /// Nobody's, since `now`.
    fn free(now: u64) -> Self {
        Self((now >> UNIT_BITS) << HOLDER_BITS)
    }

    fn holder(self) -> Option<usize> {
        let holder = self.0 & ((1 << HOLDER_BITS) - 1);
        usize::try_from(holder).ok()?.checked_sub(1)
    }

    /// The lease's end, or since when nobody holds.
    fn moment(self) -> u64 {
        (self.0 >> HOLDER_BITS) << UNIT_BITS
    }
}

/// The turn at a device, as one member sees it.
#[derive(Clone, Copy)]
pub struct Turn<'p> {
    ledger: Ledger<'p>,
    slot: &'p Slot,
    me: usize,
}

/// What a process remembers of the turn between two looks, under the caller's lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hand {
    /// What it took; 0: nothing, or it was taken from it.
    possession: u64,
    exclusive: bool,
    /// Its last possession has work that was not seen complete.
    owes: bool,
    wishing: bool,
    /// When to look again whether it is exclusive.
    rescan: u64,
    /// Which possessions of others have work before the device, and since when it is these.
    debts: u64,
    indebted: u64,
    /// Whose possession it waits for, since when, and when it last suspected it.
    seen: u64,
    since: u64,
    suspected: u64,
    looked: u64,
    /// Since when the turn could be had, had not somebody else been next.
    passed: Option<u64>,
    /// When it took the turn, and its virtual time then.
    taken: u64,
    began: u64,
    /// Since when it holds without work and wish.
    idle: Option<u64>,
    /// When it last wanted the device or had work before it.
    wanted: u64,
}

impl Hand {
    /// What was taken, 0: nothing. Another number is another possession.
    #[must_use]
    pub const fn possession(&self) -> u64 {
        self.possession
    }

    /// Whether work of a possession that was taken away was not seen complete yet, or the turn is held.
    #[must_use]
    pub const fn owes(&self) -> bool {
        self.owes
    }
}

/// What a process has before the device and wants, when it looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// The time.
    pub now: u64,
    /// A thread stands at the gate.
    pub wants: bool,
    /// The account admits it only from this moment on: no use in taking the turn before.
    pub admitted: u64,
    /// Estimated work that was not seen complete: 0 only if all was.
    pub in_flight: u64,
    /// When it should be over at the latest, by estimate.
    pub due: u64,
}

/// What comes of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Step {
    /// For [`crate::gate::Keeper::ask`].
    pub gate: Gate,
    /// When to look again, if neither bell nor completion comes before.
    pub look: u64,
    /// Whom to wake at the bell: [`bell_bit`] of each; 0: nobody.
    pub wake: u32,
    /// A slot whose member may be dead: to be buried.
    pub suspect: Option<usize>,
}

/// By which bit the member in `slot` waits at the bell (`FUTEX_WAIT_BITSET`).
#[must_use]
pub const fn bell_bit(slot: usize) -> u32 {
    1 << (slot % 32)
}

impl<'p> Turn<'p> {
    /// Whether somebody waited for the turn a moment ago.
    ///
    /// # Cost
    /// One relaxed load.
    #[inline]
    #[must_use]
    pub fn contended(&self, now: u64) -> bool {
        let until = self.ledger.header.turn_contended.load(Ordering::Relaxed);
        // What lies further ahead was written before the clock was set back.
        until.wrapping_sub(now).wrapping_sub(1) < WISH + HEARTBEAT
    }

    /// The gate of a launch, if it goes without a [`Turn::step`]. The caller counts the launch as in flight before it
    /// gives its lock back.
    ///
    /// # Cost
    /// Two relaxed loads and a few comparisons.
    #[inline]
    pub fn keeps(&self, hand: &mut Hand, now: u64) -> Option<Gate> {
        let word = Word(self.ledger.header.turn.load(Ordering::Relaxed));
        if hand.possession == 0 || word.holder() != Some(self.me) {
            return None;
        }
        let contended = self.contended(now);
        if contended && now >= word.moment() || !hand.exclusive && now >= hand.rescan {
            return None;
        }
        (hand.idle, hand.wanted) = (None, now);
        Some(self.run(hand, word, contended))
    }

    fn run(&self, hand: &Hand, word: Word, contended: bool) -> Gate {
        let until = if contended { word.moment() } else { u64::MAX };
        Gate::Run { lease: hand.possession, until, exclusive: hand.exclusive, ceiling: None, wide: false }
    }

    /// What to remember with a measurement that begins now: it counts as this member's own time if [`Turn::lasts`] says
    /// so when its end was seen. 0: not exclusive.
    #[inline]
    #[must_use]
    pub fn stamp(&self, hand: &Hand) -> u64 {
        if hand.exclusive && self.lasts(hand, hand.possession) { hand.possession } else { 0 }
    }

    /// Whether nobody else has been before the device since `stamp`.
    ///
    /// # Cost
    /// One load.
    #[inline]
    #[must_use]
    pub fn lasts(&self, hand: &Hand, stamp: u64) -> bool {
        stamp != 0 && hand.possession == stamp && self.word().holder() == Some(self.me)
    }

    /// Whether this process holds the turn.
    #[inline]
    #[must_use]
    pub fn holds(&self, hand: &Hand) -> bool {
        hand.possession != 0 && self.word().holder() == Some(self.me)
    }

    /// The futex word: read it before a step, wait while it has that value. It counts; what it counts means nothing.
    #[must_use]
    pub fn bell(&self) -> &'p AtomicU32 {
        &self.ledger.header.turn_bell
    }

    /// This member's bit at the bell.
    #[must_use]
    pub const fn bit(&self) -> u32 {
        bell_bit(self.me)
    }

    fn word(&self) -> Word {
        Word(self.ledger.header.turn.load(Ordering::SeqCst))
    }

    fn exchange(&self, old: Word, new: Word) -> bool {
        self.ledger.header.turn.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl<'p> Member<'p> {
    /// The turn at the device, from this member's side.
    #[must_use]
    pub fn turn(&self) -> Turn<'p> {
        let ledger = self.ledger();
        Turn { ledger, slot: ledger.slot(self.index()), me: self.index() }
    }
}

impl Ledger<'_> {
    /// Nobody holds the turn if slot `index` did. Only for the holder of the slot's lock.
    pub(crate) fn free_turn_of(&self, index: usize) {
        let turn = &self.header.turn;
        let word = Word(turn.load(Ordering::SeqCst));
        if word.holder() == Some(index) {
            // Lost to somebody who took it: as good.
            let _ = turn.compare_exchange(word.0, Word::free(word.moment()).0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

impl Slot {
    /// A member without past. Only for the holder of the slot's lock.
    pub(crate) fn settle_turn(&self) {
        for word in [&self.turn_wants, &self.turn_shift, &self.turn_due] {
            word.store(0, Ordering::SeqCst);
        }
        // What its death left before the device is gone.
        let taken = self.turn_taken.load(Ordering::SeqCst);
        self.turn_drained.store(taken, Ordering::SeqCst);
    }
}
