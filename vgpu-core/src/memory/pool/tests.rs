//! A pool's charges, checked against a model of a driver's pool: every order of the steps of a few calls, and random
//! orders of many.

use super::*;
use crate::units::bytes::MIB;
use proptest::prelude::*;

/// A pool that grows by the missing bytes, at least 32 MiB, merges all free bytes, and trims whole steps. A pool that
/// cannot merge free bytes may grow by more than was pledged; that is a lack.
#[derive(Clone, Copy, Debug, Default)]
struct Driver {
    reserved: u64,
    used: u64,
}

const STEP: u64 = ASSUMED_GROWTH_BYTES;

impl Driver {
    /// Returns true if the pool grew.
    fn alloc(&mut self, bytes: u64) -> bool {
        let grows = self.reserved - self.used < bytes;
        if grows {
            self.reserved += growth(bytes - (self.reserved - self.used), None).expect("small");
        }
        self.used += bytes;
        grows
    }
    fn free(&mut self, bytes: u64) {
        self.used -= bytes;
    }
    fn trim(&mut self) {
        self.reserved = self.reserved.min(self.used.next_multiple_of(STEP));
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Alloc(u64),
    /// An allocation that the driver refuses.
    Fail(u64),
    Free(u64),
    Trim,
}

/// A thread that carries out one operation, step by step.
#[derive(Clone, Copy, Debug)]
struct Thread {
    act: Act,
    step: u32,
    call: Option<PoolRequest>,
    reading: Option<PoolReading>,
    grew: bool,
}

const STEPS: u32 = 5;

#[derive(Clone, Debug, Default)]
struct World {
    driver: Driver,
    pool: PoolAccount,
    /// The ledger's bytes: charges here, reservations in the next field.
    committed: u64,
    reservations: u64,
    /// Number of readings that were applied in another order than their tickets were drawn.
    stale: u32,
    lacks: u32,
    again: u32,
    /// No call can lose its room to a trim.
    strict: bool,
    /// Calls that made nothing grow know that, and read nothing.
    know: bool,
    unread: u32,
}

impl World {
    fn follow(&mut self, pledge: u64, change: ChargeChange) {
        self.reservations -= pledge;
        self.committed = (self.committed + change.keep + change.lack)
            .checked_sub(change.release)
            .expect("only what is charged is given back");
        self.lacks += u32::from(change.lack > 0);
        assert_eq!(self.pool.held(), self.committed + self.reservations, "the account and the ledger agree");
    }

    fn step(&mut self, thread: &mut Thread) {
        match (thread.step, thread.act) {
            (0, Act::Alloc(bytes) | Act::Fail(bytes)) => {
                thread.call = Some(self.pool.begin_inside(bytes).unwrap_or_else(|| {
                    let pledge = growth(bytes, None).expect("small").max(self.pool.least_pledge());
                    self.reservations += pledge;
                    self.pool.begin_pledged(bytes, pledge)
                }));
            }
            (1, Act::Alloc(bytes)) => thread.grew = self.driver.alloc(bytes),
            (1, Act::Free(bytes)) => {
                self.pool.note_freed(bytes);
                self.driver.free(bytes);
            }
            (1, Act::Trim) => self.driver.trim(),
            (2, Act::Alloc(_)) if self.know && !thread.grew => {
                let call = thread.call.expect("it has begun");
                let change = self.pool.end_inside(call);
                self.follow(call.pledge(), change);
                self.unread += 1;
                thread.step = STEPS - 1;
            }
            (2, _) => {
                let ticket = self.pool.ticket();
                thread.reading = Some(PoolReading { ticket, reserved: 0, used: None });
            }
            (3, act) => {
                let reading = thread.reading.as_mut().expect("a ticket was drawn");
                reading.reserved = self.driver.reserved;
                if !matches!(act, Act::Alloc(_) | Act::Fail(_)) {
                    reading.used = Some(self.driver.used);
                }
            }
            (4, act) => {
                let reading = thread.reading.expect("it was read");
                self.stale += u32::from(reading.ticket.number < self.pool.newest);
                let (pledge, change) = match thread.call {
                    Some(call) => {
                        (call.pledge(), self.pool.end_request(call, matches!(act, Act::Alloc(_)), Some(reading)))
                    }
                    None => (0, self.pool.apply_measurement(reading)),
                };
                match change {
                    Some(change) => self.follow(pledge, change),
                    None => {
                        self.again += 1;
                        thread.step = 1;
                    }
                }
            }
            _ => {}
        }
        thread.step += 1;
        let but = if self.strict { 0 } else { self.pool.may_grow() };
        assert!(self.pool.held() + but >= self.driver.reserved, "{self:?} after {thread:?}");
    }

    fn run(&mut self, act: Act) {
        let mut thread = Thread::new(act);
        (0..STEPS).for_each(|_| self.step(&mut thread));
    }
}

impl Thread {
    fn new(act: Act) -> Self {
        Self { act, step: 0, call: None, reading: None, grew: false }
    }
}

/// Runs every order of the threads' steps; `end` gets each world when all threads are done.
fn every_order(world: &World, threads: &[Thread], end: &mut impl FnMut(&World)) {
    let mut over = true;
    for at in 0..threads.len() {
        if threads[at].step < STEPS {
            over = false;
            let (mut next, mut moved) = (world.clone(), threads.to_vec());
            next.step(&mut moved[at]);
            every_order(&next, &moved, end);
        }
    }
    if over {
        end(world);
    }
}

#[test]
fn in_every_order_of_two_calls_and_a_trim_the_charge_is_never_less_than_what_the_pool_holds() {
    let mut begun = World { strict: true, ..World::default() };
    begun.run(Act::Alloc(40 * MIB));
    let (mut orders, mut stale, mut again, mut unread) = (0, 0, 0, 0);
    for (acts, know) in [
        ([Act::Alloc(10 * MIB), Act::Alloc(40 * MIB), Act::Trim], false),
        ([Act::Alloc(70 * MIB), Act::Free(40 * MIB), Act::Trim], false),
        ([Act::Fail(70 * MIB), Act::Alloc(70 * MIB), Act::Free(40 * MIB)], false),
        ([Act::Alloc(10 * MIB), Act::Alloc(40 * MIB), Act::Trim], true),
        ([Act::Alloc(10 * MIB), Act::Alloc(20 * MIB), Act::Free(40 * MIB)], true),
    ] {
        begun.know = know;
        every_order(&begun, &acts.map(Thread::new), &mut |world| {
            orders += 1;
            stale += u32::from(world.stale > 0);
            again += u32::from(world.again > 0);
            unread += world.unread;
            assert_eq!(world.pool.held(), world.driver.reserved, "at rest it is what the pool holds: {world:?}");
            assert_eq!(world.committed, world.driver.reserved);
            assert_eq!(world.lacks, 0, "every growth was pledged: {world:?}");
        });
    }
    assert!(orders >= 3 * 756_756, "some read again, which makes more");
    assert!(stale > 100_000, "readings were applied late in many of them: {stale}");
    assert!(again > 100, "and some had to read again: {again}");
    assert!(unread > 10_000, "and some knew that they need no reading: {unread}");
}

#[test]
fn a_request_that_fits_inside_is_not_pledged_and_uses_what_it_found() {
    let mut world = World::default();
    world.run(Act::Alloc(MIB));
    assert_eq!((world.committed, world.pool.slack()), (32 * MIB, 31 * MIB));
    let first = world.pool.begin_inside(20 * MIB).unwrap();
    assert_eq!(world.pool.begin_inside(20 * MIB), None, "the first has it");
    assert_eq!(first.pledge(), 0);
    world.driver.alloc(20 * MIB);
    let change = world.pool.end_request(first, true, None);
    assert_eq!(change.unwrap(), ChargeChange::default());
    assert_eq!(world.pool.slack(), 11 * MIB);
}

#[test]
fn a_request_that_was_served_from_inside_gives_its_whole_pledge_back() {
    let mut world = World { know: true, ..World::default() };
    world.run(Act::Alloc(MIB));
    let call = world.pool.begin_pledged(MIB, 32 * MIB);
    assert_eq!(world.pool.held(), 64 * MIB);
    let change = world.pool.end_inside(call);
    assert_eq!(change, ChargeChange::default(), "nothing of it is kept");
    assert_eq!((world.pool.held(), world.pool.live(), world.pool.is_busy()), (32 * MIB, 2 * MIB, false));
}

#[test]
fn where_the_driver_does_not_answer_the_pledge_is_charged() {
    let mut pool = PoolAccount::default();
    let call = pool.begin_pledged(10, 32);
    assert_eq!(pool.end_request(call, true, None), Some(ChargeChange { keep: 32, ..ChargeChange::default() }));
    let call = pool.begin_pledged(10, 32);
    assert_eq!(pool.end_request(call, false, None), Some(ChargeChange::default()));
    assert_eq!((pool.held(), pool.slack()), (32, 22));
}

#[test]
fn a_request_that_the_driver_refused_leaves_nothing() {
    let mut world = World::default();
    world.run(Act::Alloc(MIB));
    let before = world.pool;
    world.run(Act::Fail(20 * MIB));
    world.run(Act::Fail(500 * MIB));
    assert_eq!(
        PoolAccount { drawn: 0, newest: 0, applied: 0, ..world.pool },
        PoolAccount { drawn: 0, newest: 0, applied: 0, ..before }
    );
    assert_eq!(world.committed, 32 * MIB);
}

#[test]
fn growth_that_nobody_pledged_is_a_lack_and_is_said_once() {
    let mut pool = PoolAccount::default();
    let call = pool.begin_pledged(40, 64); // any unit
    let ticket = pool.ticket();
    let change = pool.end_request(call, true, Some(PoolReading { ticket, reserved: 96, used: None })).unwrap();
    assert_eq!(change, ChargeChange { keep: 64, release: 0, lack: 32, grew: Some(96), shrank: false });
    let ticket = pool.ticket();
    assert_eq!(
        pool.apply_measurement(PoolReading { ticket, reserved: 96, used: Some(40) }),
        Some(ChargeChange::default())
    );
    assert_eq!((pool.held(), pool.slack()), (96, 56));
}

#[test]
fn a_reading_that_may_be_older_than_an_applied_one_charges_nothing_unless_it_insists() {
    let mut pool = PoolAccount::default();
    let (first, second) = (pool.ticket(), pool.ticket());
    assert_eq!(pool.apply_measurement(PoolReading { ticket: first, reserved: 32, used: None }).unwrap().lack, 32);
    let late = PoolReading { ticket: second, reserved: 64, used: None };
    assert_eq!(pool.apply_measurement(late), None, "it may have been read before the first");
    assert_eq!(pool.apply_measurement(PoolReading { ticket: second.insisting(), ..late }).unwrap().lack, 32);
    let (older, newer) = (pool.ticket(), pool.ticket());
    assert_eq!(pool.apply_measurement(PoolReading { ticket: newer, reserved: 32, used: None }).unwrap().release, 32);
    assert_eq!(
        pool.apply_measurement(PoolReading { ticket: older, reserved: 64, used: None }),
        Some(ChargeChange::default()),
        "stale"
    );
}

#[test]
fn what_was_given_back_and_is_still_in_use_is_no_slack_and_may_serve_again() {
    let mut world = World::default();
    world.run(Act::Alloc(32 * MIB));
    world.pool.note_freed(32 * MIB); // the stream has not executed the free yet
    assert!(world.pool.may_shrink());
    assert_eq!(world.pool.slack(), 0);
    let call = world.pool.begin_inside(32 * MIB).unwrap();
    assert_eq!(world.pool.begin_inside(1), None);
    let ticket = world.pool.ticket();
    let reading = PoolReading { ticket, reserved: 32 * MIB, used: None };
    assert_eq!(world.pool.end_request(call, true, Some(reading)).unwrap().lack, 0);
}

#[test]
fn the_step_that_was_seen_stands_for_the_usual_one() {
    assert_eq!(growth(1, None), Some(32 << 20));
    assert_eq!(growth(1, Some(2 << 20)), Some(2 << 20));
    assert_eq!(growth(33 << 20, Some(2 << 20)), Some(34 << 20));
    assert_eq!(least_growth(1), Some(2 << 20));
    assert_eq!(growth(u64::MAX, None), None);
}

#[test]
fn the_end_of_a_context_takes_what_was_live() {
    let mut world = World::default();
    world.run(Act::Alloc(32 * MIB));
    world.driver = Driver::default();
    let ticket = world.pool.ticket();
    assert_eq!(
        world.pool.apply_measurement(PoolReading { ticket, reserved: 0, used: Some(0) }).unwrap().release,
        32 * MIB
    );
    world.pool.forget_allocations();
    assert_eq!(world.pool.live(), 0);
}

proptest! {
    /// Many threads in random orders; each free follows its allocation. A trim may take part of the room that a call
    /// relied on, and the pool then grows by a whole step. Until that call ends, the charge may be below the pool's
    /// bytes, by the amount that such calls may add.
    #[test]
    fn in_any_order_of_many_calls_the_charge_covers_all_but_calls_that_lost_their_room(
        sizes in prop::collection::vec((1u64..100, any::<bool>()), 1..12),
        order in prop::collection::vec(any::<prop::sample::Index>(), 200),
        know in any::<bool>(),
    ) {
        let mut world = World { know, ..World::default() };
        let mut threads: Vec<Thread> = Vec::new();
        for &(size, ahead) in &sizes {
            let bytes = size * MIB;
            if ahead {
                world.run(Act::Alloc(bytes));
                threads.push(Thread::new(Act::Free(bytes)));
                threads.push(Thread::new(Act::Trim));
            } else {
                threads.push(Thread::new(Act::Alloc(bytes)));
                threads.push(Thread::new(Act::Fail(bytes)));
            }
        }
        let mut order = order.iter();
        while threads.iter().any(|thread| thread.step < STEPS) {
            let left: Vec<usize> = (0..threads.len()).filter(|at| threads[*at].step < STEPS).collect();
            let at = order.next().map_or(left[0], |index| left[index.index(left.len())]);
            let mut thread = threads[at];
            world.step(&mut thread);
            threads[at] = thread;
        }
        prop_assert_eq!(world.pool.held(), world.driver.reserved);
        prop_assert_eq!(world.committed, world.driver.reserved);
        // A thread that reads nothing does not know what others freed.
        prop_assert!(know || world.pool.slack() <= world.driver.reserved - world.driver.used);
        prop_assert_eq!(world.pool.live(), world.driver.used);
    }
}
