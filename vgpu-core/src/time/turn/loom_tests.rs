//! The turn under a model checker: holders, waiters and members that preempt, with at most three preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vgpu-core --release --lib loom_`
//!
//! The device counts the members with queued work; its counters are relaxed, so that they order nothing for the code
//! under test. The promise is the one that the meter relies on: a measurement from a stamp to the end of the work, if
//! the possession lasted, contains no other member's work. Time stands still within a look: each thread has times of
//! its own.
//!
//! Each test was seen red once; the change that made it so is named at the test.

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::memory::ledger::LedgerHeader;
use crate::sync::AtomicU64;

const MS: u64 = 1_000_000;
const BEGIN: u64 = 1_000 * MS;

struct World {
    header: LedgerHeader,
    slots: Vec<LedgerSlot>,
    /// Members with queued work.
    active: AtomicU64,
    /// How often a member began to work.
    begun: AtomicU64,
}

impl World {
    fn new(members: usize) -> Self {
        let world = Self {
            header: LedgerHeader::zeroed(),
            slots: (0..members).map(|_| LedgerSlot::zeroed()).collect(),
            active: AtomicU64::new(0),
            begun: AtomicU64::new(0),
        };
        world.header.high_slot.store(u32::try_from(members).unwrap(), Ordering::SeqCst);
        world
    }

    fn turn(&self, me: usize) -> Turn<'_> {
        let ledger = Ledger::new(&self.header, &self.slots, &[]);
        Turn { ledger, slot: ledger.slot(me), me }
    }

    /// One launch that ends, made like the governor's. Returns whether the gate was open.
    fn launch(&self, turn: Turn<'_>, hand: &mut TurnState, gate: Gate) -> bool {
        let Gate::Run { .. } = gate else { return false };
        let stamp = turn.turn_stamp(hand);
        let beside = self.active.fetch_add(1, Ordering::Relaxed);
        let begun = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let after = self.begun.load(Ordering::Relaxed);
        self.active.fetch_sub(1, Ordering::Relaxed);
        if turn.is_still_own(hand, stamp) {
            assert_eq!((beside, after), (0, begun), "measured as its own, and somebody else was there");
        }
        true
    }
}

fn wants(now: u64) -> LocalWork {
    LocalWork { now, wants: true, ..LocalWork::default() }
}

fn done(now: u64) -> LocalWork {
    LocalWork { now, ..LocalWork::default() }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Red when `take` stores instead of exchanging.
#[test]
fn loom_of_two_that_take_at_once_one_holds() {
    check(|| {
        let world = Arc::new(World::new(2));
        let take = |me: usize, now: u64| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let (turn, mut hand) = (world.turn(me), TurnState::default());
                let step = turn.step_turn(&mut hand, &wants(now));
                world.launch(turn, &mut hand, step.gate);
                matches!(step.gate, Gate::Run { .. })
            })
        };
        let (one, other) = (take(0, BEGIN), take(1, BEGIN + 1));
        let both = [one.join().unwrap(), other.join().unwrap()];
        // The second one requests the turn, which ends the first one's possession only after its lease.
        assert_eq!(both.iter().filter(|took| **took).count(), 1, "{both:?}");
    });
}

/// The preempted member may be anywhere: before it wrote that it took the turn, before its launch, after the work was
/// done.
///
/// Red when `take` does not look again after it has written `turn_taken`, and when `settle_debt` is skipped where
/// nothing is in flight (for the last assertion).
#[test]
fn loom_a_robber_and_its_victim_are_not_both_exclusive() {
    // From the standard library: counts the executions that reached the tested situation, over all of them together.
    static ROBBED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    check(|| {
        let world = Arc::new(World::new(2));
        let victim = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let (turn, mut hand) = (world.turn(0), TurnState::default());
                let step = turn.step_turn(&mut hand, &wants(BEGIN));
                world.launch(turn, &mut hand, step.gate);
                if let Some(gate) = turn.keep_turn(&mut hand, BEGIN + MS) {
                    world.launch(turn, &mut hand, gate);
                }
                let _ = turn.step_turn(&mut hand, &done(BEGIN + MS));
                if !turn.holds_turn(&hand) {
                    let _ = turn.step_turn(&mut hand, &done(BEGIN + MS));
                    assert!(!hand.owes, "all is complete, and it says so");
                }
            })
        };
        let (turn, mut hand) = (world.turn(1), TurnState::default());
        let first = turn.step_turn(&mut hand, &wants(BEGIN + MS));
        if !world.launch(turn, &mut hand, first.gate) {
            let step = turn.step_turn(&mut hand, &wants(BEGIN + 16 * MS));
            if world.launch(turn, &mut hand, step.gate) {
                ROBBED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        victim.join().unwrap();
    });
    assert!(ROBBED.load(std::sync::atomic::Ordering::Relaxed) > 0, "nobody was robbed");
}

/// One member passes on and another takes the turn, one after the other without a gap.
///
/// Red when `pass_on` frees the turn before it writes that it has drained its work.
#[test]
fn loom_what_is_passed_on_is_exclusive_for_whoever_takes_it() {
    check(|| {
        let world = Arc::new(World::new(2));
        let (turn, mut hand) = (world.turn(0), TurnState::default());
        let step = turn.step_turn(&mut hand, &wants(BEGIN));
        assert!(matches!(step.gate, Gate::Run { exclusive: true, .. }));
        world.header.turn_contended.store(BEGIN + REQUEST_LIFETIME_NS, Ordering::SeqCst);
        let waiter = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let (turn, mut hand) = (world.turn(1), TurnState::default());
                let step = turn.step_turn(&mut hand, &wants(BEGIN + 6 * MS));
                assert!(!matches!(step.gate, Gate::Run { exclusive: false, .. }), "nobody was robbed");
                world.launch(turn, &mut hand, step.gate);
            })
        };
        world.launch(turn, &mut hand, step.gate);
        let _ = turn.step_turn(&mut hand, &done(BEGIN + 5 * MS));
        let step = turn.step_turn(&mut hand, &wants(BEGIN + 6 * MS));
        world.launch(turn, &mut hand, step.gate);
        waiter.join().unwrap();
    });
}

/// A waiter that would sleep now, because the bell did not ring since it looked, does not sleep while the turn is
/// free.
///
/// Red when `pass_on` rings before it frees the turn.
#[test]
fn loom_a_wake_is_not_lost() {
    check(|| {
        let world = Arc::new(World::new(2));
        let (turn, mut hand) = (world.turn(0), TurnState::default());
        let _ = turn.step_turn(&mut hand, &wants(BEGIN));
        world.header.turn_contended.store(BEGIN + REQUEST_LIFETIME_NS, Ordering::SeqCst);
        let waiter = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let (turn, mut hand) = (world.turn(1), TurnState::default());
                let heard = turn.bell_word().load(Ordering::SeqCst);
                let step = turn.step_turn(&mut hand, &wants(BEGIN + 5 * MS));
                (heard, matches!(step.gate, Gate::Wait))
            })
        };
        let _ = turn.step_turn(&mut hand, &done(BEGIN + 5 * MS));
        let (heard, waits) = waiter.join().unwrap();
        let rung = turn.bell_word().load(Ordering::SeqCst) > heard + u32::from(hand.possession != 0 && waits);
        assert!(!waits || rung || turn.load_word().holder_slot().is_some(), "it sleeps, and nobody holds");
    });
}

/// The holder is dead; one member settles its slot while two take the turn.
///
/// Red when `take` does not look again after it has written `turn_taken`.
#[test]
fn loom_a_dead_holder_is_followed_by_one() {
    check(|| {
        let world = Arc::new(World::new(3));
        let (turn, mut hand) = (world.turn(0), TurnState::default());
        let _ = turn.step_turn(&mut hand, &wants(BEGIN));
        let take = |me: usize| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let (turn, mut hand) = (world.turn(me), TurnState { since: BEGIN, ..TurnState::default() });
                (hand.seen, hand.looked) = (turn.load_word().0, BEGIN + 999 * MS);
                if me == 1 {
                    turn.ledger.settle(0);
                }
                let step = turn.step_turn(&mut hand, &wants(BEGIN + 1_000 * MS));
                world.launch(turn, &mut hand, step.gate);
                matches!(step.gate, Gate::Run { .. })
            })
        };
        let (one, other) = (take(1), take(2));
        let both = [one.join().unwrap(), other.join().unwrap()];
        assert!(both.contains(&true), "nobody took what a dead member held");
    });
}
