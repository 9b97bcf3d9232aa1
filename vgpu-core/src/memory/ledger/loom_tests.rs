//! The ledger under a model checker: interleavings of two or three members with at most two or three preemptions.
//!
//! This is a strong search, not a proof. Loom keeps one past access per atomic when it looks for accesses to reorder.
//! So a member that reads its own slot can hide another thread's read from it. `tests/ledger_threads.rs` adds the
//! behaviour of real processors.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vgpu-core --release --lib loom_`
//!
//! The device of a [`World`] counts the bytes it really holds. That counter, not the ledger, decides if a limit was
//! exceeded. It is relaxed, so it orders nothing for the code under test. The clock does not advance: a waiting
//! member waits until the others are done, and no refusal comes from a timeout.
//!
//! Each test failed once with a faulty change to the code. "Red when ..." at the test names that change.

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

pub(super) const LIMIT: u64 = 10;

pub(super) struct World {
    header: LedgerHeader,
    slots: Vec<LedgerSlot>,
    shares: Vec<SharedCharge>,
    /// Lock holders of each share: one bit per process, and one that marks a write lock.
    pub(super) share_locks: Vec<AtomicU32>,
    /// Lock holders of each share's second byte, in the same form.
    pub(super) kept_locks: Vec<AtomicU32>,
    /// Process number that holds the lock of each slot; 0: nobody.
    pub(super) locks: Vec<AtomicU32>,
    /// The turn lock. It blocks instead of spinning: two spinning threads keep the model checker from the third.
    turn: Mutex<bool>,
    turn_free: Condvar,
    pub(super) device: AtomicU64,
}

/// A descriptor through which the simulated kernel sees that none is open any more.
pub(super) const CLOSED: Watched = Watched { descriptor: 301, node: (1, 2) };
/// A descriptor through which it sees nothing.
pub(super) const UNSEEN: Watched = Watched { descriptor: 302, node: (1, 2) };

/// Bit in [`World::share_locks`]: the only holder has a write lock.
const WRITES: u32 = 1 << 31;

impl World {
    pub(super) fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self::bare(slots))
    }

    fn bare(slots: usize) -> Self {
        Self::with_shares(slots, 0)
    }

    pub(super) fn with_shares(slots: usize, shares: usize) -> Self {
        Self {
            header: LedgerHeader::zeroed(),
            slots: (0..slots).map(|_| LedgerSlot::zeroed()).collect(),
            shares: (0..shares).map(|_| SharedCharge::zeroed()).collect(),
            share_locks: (0..shares).map(|_| AtomicU32::new(0)).collect(),
            kept_locks: (0..shares).map(|_| AtomicU32::new(0)).collect(),
            locks: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            turn: Mutex::new(false),
            turn_free: Condvar::new(),
            device: AtomicU64::new(0),
        }
    }

    pub(super) fn ledger(&self) -> Ledger<'_> {
        Ledger::new(&self.header, &self.slots, &self.shares)
    }

    /// Number of shares that every sum reads.
    pub(super) fn mark(&self) -> u32 {
        self.header.high_share.load(Ordering::SeqCst)
    }

    /// Allocates on the device. It panics if the device then really holds more than the limit.
    pub(super) fn take(&self, bytes: u64) {
        let held = self.device.fetch_add(bytes, Ordering::Relaxed) + bytes;
        assert!(held <= LIMIT, "over the limit: the device holds {held}");
    }

    pub(super) fn give(&self, bytes: u64) {
        self.device.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The kernel as one process sees it. The threads of a process share its locks, as on a real system.
pub(super) struct Process<'w>(pub(super) &'w World, pub(super) u32);

impl Process<'_> {
    /// Changes a lock in one atomic step, as a kernel does. `change` gets the current holders and this process's bit,
    /// and returns the new holders or `None` to refuse.
    fn change(&self, lock: &AtomicU32, change: impl Fn(u32, u32) -> Option<u32>) -> bool {
        let own = 1 << self.1;
        lock.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| change(held, own)).is_ok()
    }

    fn to_write(&self, lock: &AtomicU32) -> bool {
        self.change(lock, |held, own| (held & !WRITES & !own == 0).then_some(own | WRITES))
    }

    fn to_read(&self, lock: &AtomicU32) -> bool {
        self.change(lock, |held, own| (held & WRITES == 0 || held & own != 0).then_some((held & !WRITES) | own))
    }

    fn unlock(&self, lock: &AtomicU32) {
        self.change(lock, |held, own| Some(held & !own & !(if held & own != 0 { WRITES } else { 0 })));
    }
}

impl Kernel for Process<'_> {
    fn try_lock_share(&self, index: usize) -> bool {
        self.to_write(&self.0.share_locks[index])
    }
    fn try_hold_share(&self, index: usize) -> bool {
        self.to_read(&self.0.share_locks[index])
    }
    fn unlock_share(&self, index: usize) {
        self.unlock(&self.0.share_locks[index]);
    }
    fn try_lock_kept(&self, index: usize) -> bool {
        self.to_write(&self.0.kept_locks[index])
    }
    fn try_keep_share(&self, index: usize) -> bool {
        self.to_read(&self.0.kept_locks[index])
    }
    fn unlock_kept(&self, index: usize) {
        self.unlock(&self.0.kept_locks[index]);
    }
    fn is_closed(&self, _keeper: u32, watched: Watched, identity: u64) -> bool {
        (watched, identity) == (CLOSED, 77)
    }
    fn try_lock_slot(&self, index: usize) -> bool {
        let lock = &self.0.locks[index];
        match lock.compare_exchange(0, self.1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(holder) => holder == self.1,
        }
    }
    fn unlock_slot(&self, index: usize) {
        self.0.locks[index].store(0, Ordering::Release);
    }
    fn lock_turn(&self, _deadline: u64) -> bool {
        let mut taken = self.0.turn.lock().unwrap();
        while *taken {
            taken = self.0.turn_free.wait(taken).unwrap();
        }
        *taken = true;
        true
    }
    fn unlock_turn(&self) {
        *self.0.turn.lock().unwrap() = false;
        self.0.turn_free.notify_one();
    }
    fn now(&self) -> u64 {
        0
    }
    fn wait(&self, _round: u32) {
        thread::yield_now();
    }
}

pub(super) fn check(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 20_000;
    model.check(body);
}

/// Reserves, allocates on the device and commits. Returns true if the request was granted.
pub(super) fn allocate(world: &World, member: &Member<'_>, process: &Process<'_>, bytes: u64) -> bool {
    match member.reserve(bytes, LIMIT, process) {
        Ok(reservation) => {
            world.take(bytes);
            reservation.commit();
            true
        }
        Err(_) => false,
    }
}

pub(super) fn free(world: &World, member: &Member<'_>, bytes: u64) {
    world.give(bytes);
    member.release(bytes);
}

/// Joins as process `id` and runs `act` in a thread of its own.
pub(super) fn process<T: 'static>(
    world: &Arc<World>,
    id: u32,
    act: impl FnOnce(&World, &Member<'_>, &Process<'_>) -> T + 'static,
) -> thread::JoinHandle<T> {
    let world = Arc::clone(world);
    thread::spawn(move || {
        let kernel = Process(&world, id);
        let member = world.ledger().join(id, 0, &kernel).expect("a slot for everybody");
        act(&world, &member, &kernel)
    })
}

/// As [`process`], for a member that has joined already and holds `bytes`.
pub(super) fn joined<T: 'static>(
    world: &Arc<World>,
    id: u32,
    bytes: u64,
    act: impl FnOnce(&World, &Member<'_>, &Process<'_>) -> T + 'static,
) -> impl FnOnce() -> thread::JoinHandle<T> {
    let kernel = Process(world, id);
    let member = world.ledger().join(id, 0, &kernel).expect("a slot for everybody");
    assert!(bytes == 0 || allocate(world, &member, &kernel, bytes));
    let (index, world) = (member.index(), Arc::clone(world));
    move || {
        thread::spawn(move || {
            let kernel = Process(&world, id);
            let member = Member::second_handle(world.ledger(), index);
            act(&world, &member, &kernel)
        })
    }
}

/// Red when a failed first attempt is a refusal. A sum may be too large while a slot changes: both members claim 5,
/// both see 10 + 5, and both are refused.
#[test]
fn loom_demands_that_fit_exactly_are_never_refused() {
    check(3, || {
        let world = World::new(2);
        let both = [1, 2].map(|id| {
            joined(&world, id, 0, |world, member, kernel| {
                for _ in 0..2 {
                    assert!(allocate(world, member, kernel, 5), "refused though it fits");
                    free(world, member, 5);
                }
                assert!(allocate(world, member, kernel, 5), "refused though it fits");
            })
        });
        both.map(|start| start()).into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(world.ledger().used(), 10);
    });
}

/// Red when the sum is taken before the claim, or when `total_order` does nothing: both are granted. Red when the
/// mark of the highest slot is raised after the claim: the scan misses the new slot.
#[test]
fn loom_of_two_that_do_not_fit_together_exactly_one_is_refused() {
    check(3, || {
        let world = World::new(2);
        let both = [1, 2].map(|id| process(&world, id, |world, member, kernel| allocate(world, member, kernel, 6)));
        let granted = both.into_iter().map(|thread| u32::from(thread.join().unwrap())).sum::<u32>();
        assert_eq!(granted, 1);
        assert_eq!(world.ledger().used(), 6);
    });
}

/// Red when a verdict counts pending reservations as settled: the second member is refused, then the first one's
/// driver call fails.
#[test]
fn loom_a_driver_failure_makes_room_for_the_one_who_waits() {
    check(3, || {
        let world = World::new(2);
        let failing = joined(&world, 1, 0, |_, member, kernel| {
            if let Ok(reservation) = member.reserve(6, LIMIT, kernel) {
                reservation.roll_back();
            }
        })();
        let other = joined(&world, 2, 0, |world, member, kernel| allocate(world, member, kernel, 6))();
        failing.join().unwrap();
        assert!(other.join().unwrap(), "refused beside a reservation that came to nothing");
        assert_eq!(world.ledger().used(), 6);
    });
}

/// Red like the two tests above. Threads of one process share a slot, so no code may rely on exclusive use of the
/// slot.
#[test]
fn loom_threads_of_one_process_are_as_exact_as_processes() {
    for (bytes, granted) in [(5, 2), (6, 1)] {
        check(3, move || {
            let world = World::new(1);
            let kernel = Process(&world, 1);
            world.ledger().join(1, 0, &kernel).unwrap();
            let threads = [(); 2].map(|()| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let member = Member::second_handle(world.ledger(), 0);
                    u32::from(allocate(&world, &member, &Process(&world, 1), bytes))
                })
            });
            assert_eq!(threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>(), granted);
        });
    }
}

fn three_members(bytes: u64, granted: u32) {
    check(2, move || {
        let world = World::new(3);
        let starts = [1, 2, 3].map(|id| {
            joined(&world, id, 0, move |world, member, kernel| u32::from(allocate(world, member, kernel, bytes)))
        });
        let threads = starts.map(|start| start());
        assert_eq!(threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>(), granted);
        assert_eq!(world.ledger().used(), u64::from(granted) * bytes);
    });
}

/// Three members: the slots of the other two are not read at one instant. Red like the first two tests.
#[test]
fn loom_three_that_fit_are_all_granted() {
    three_members(3, 3);
}

/// As in the test before, but of three requests only two fit.
#[test]
fn loom_of_three_of_which_two_fit_exactly_one_is_refused() {
    three_members(5, 2);
}

/// As in the tests above, but of three requests only one fits.
#[test]
fn loom_of_three_of_which_one_fits_exactly_two_are_refused() {
    three_members(6, 1);
}

/// Red when a refusal rests on one reading instead of a stable one: five bytes that move from one member to another
/// are counted in both slots.
#[test]
fn loom_an_amount_that_changes_hands_is_not_counted_twice() {
    check(3, || {
        let world = World::new(3);
        let flag = Arc::new(AtomicU32::new(0));
        let (give, get) = (Arc::clone(&flag), flag);
        let giver = joined(&world, 1, 5, move |world, member, _| {
            free(world, member, 5);
            give.store(1, Ordering::Release);
        });
        let taker = joined(&world, 2, 0, move |world, member, kernel| {
            if get.load(Ordering::Acquire) == 1 {
                assert!(allocate(world, member, kernel, 5), "the taker was refused");
            }
        });
        let third = joined(&world, 3, 0, |world, member, kernel| {
            // Take the slow path directly: a failed first attempt is not the subject of this test.
            let reservation = member.reserve_contended(5, LIMIT, kernel).expect("the third was refused");
            world.take(5);
            reservation.commit();
        });
        let (giver, taker, third) = (giver(), taker(), third());
        giver.join().unwrap();
        taker.join().unwrap();
        third.join().unwrap();
    });
}

/// Fails if a request that takes its claimed bytes back raises `committed` before `dropped`: for a moment those
/// bytes look like a final charge.
#[test]
fn loom_a_claim_being_withdrawn_refuses_nobody() {
    check(3, || {
        let world = World::new(2);
        let holder = joined(&world, 1, 5, |world, member, kernel| allocate(world, member, kernel, 3));
        let other = joined(&world, 2, 0, |world, member, kernel| allocate(world, member, kernel, 6));
        let (holder, other) = (holder(), other());
        assert!(holder.join().unwrap(), "8 of 10 were refused");
        assert!(!other.join().unwrap());
        assert_eq!(world.ledger().used(), 8);
    });
}

/// Red when `claimed` is read before `dropped`: a claim made and withdrawn between the two reads hides as many bytes
/// of its owner's charge.
///
/// The claim is written out step by step. Loom remembers one access of each atomic, so an owner that reads its own
/// slot in between hides that another thread had read it.
#[test]
fn loom_a_withdrawn_claim_hides_nothing() {
    check(3, || {
        let world = World::new(2);
        let holder = joined(&world, 1, 5, |_, member, _| {
            member.slot.claimed.fetch_add(3, Ordering::SeqCst);
            member.slot.dropped.fetch_add(3, Ordering::SeqCst);
            member.slot.granted.fetch_add(3, Ordering::SeqCst);
            member.slot.committed.fetch_add(3, Ordering::SeqCst);
        });
        let other = joined(&world, 2, 0, |world, member, kernel| allocate(world, member, kernel, 6));
        let (holder, other) = (holder(), other());
        holder.join().unwrap();
        assert!(!other.join().unwrap());
        assert_eq!(world.ledger().used(), 5);
    });
}

/// Steps of a member; it may be killed after each.
const STEPS: u32 = 7;

fn live_until(step: u32, world: &World, member: &Member<'_>) {
    let slot = member.slot;
    let acts: [&dyn Fn(); 7] = [
        &|| (),
        &|| _ = slot.claimed.fetch_add(6, Ordering::SeqCst),
        &|| _ = slot.granted.fetch_add(6, Ordering::SeqCst),
        &|| _ = slot.committed.fetch_add(6, Ordering::SeqCst),
        // A second claim and its withdrawal: first the bytes, then the two counters that balance it.
        &|| _ = slot.claimed.fetch_add(2, Ordering::SeqCst),
        &|| _ = slot.dropped.fetch_add(2, Ordering::SeqCst),
        &|| _ = slot.granted.fetch_add(2, Ordering::SeqCst),
    ];
    let _ = world;
    acts[..=usize::try_from(step).unwrap()].iter().for_each(|act| act());
}

/// Red when reclaiming ignores locks: living members lose their charges, and the limit is exceeded. Red when waiting
/// members do not search for the dead again: the wait never ends.
#[test]
fn loom_a_member_killed_after_any_step_leaves_nothing() {
    for step in 0..STEPS {
        check(2, move || {
            let world = World::new(2);
            // The dying member takes nothing from the model's device, because the driver frees a dying process's
            // memory.
            let dying = joined(&world, 1, 0, move |world, member, _| {
                live_until(step, world, member);
                world.locks[member.index()].store(0, Ordering::Release);
            });
            let other = joined(&world, 2, 0, |world, member, kernel| {
                if allocate(world, member, kernel, 10) {
                    free(world, member, 10);
                }
                world.device.load(Ordering::Relaxed)
            });
            let (dying, other) = (dying(), other());
            dying.join().unwrap();
            assert_eq!(other.join().unwrap(), 0);
            let (kernel, member) = (Process(&world, 2), Member::second_handle(world.ledger(), 1));
            assert!(allocate(&world, &member, &kernel, 10), "the dead still hold something after step {step}");
            assert_eq!(world.ledger().used(), 10);
        });
    }
}

/// Red when reclaiming does not take the slot's lock: it wipes the new member's claim. Red when joining does not take
/// the turn lock: the survivor is refused because of charges of the dead that nobody may settle yet.
#[test]
fn loom_reclaiming_a_dead_slot_spares_the_one_who_moves_in() {
    check(3, || {
        let world = World::new(2);
        let kernel = Process(&world, 9);
        let dead = world.ledger().join(9, 0, &kernel).unwrap();
        dead.reserve(7, LIMIT, &kernel).unwrap().commit();
        let survivor = joined(&world, 1, 0, |world, member, kernel| allocate(world, member, kernel, 5));
        kernel.unlock_slot(0);
        let newcomer = process(&world, 2, |world, member, kernel| allocate(world, member, kernel, 5));
        let survivor = survivor();
        assert!(newcomer.join().unwrap() & survivor.join().unwrap(), "refused though both fit");
        assert_eq!(world.ledger().used(), 10);
    });
}

/// The reclaimers run without the turn lock. Red when `probing` does not separate the threads of one process: the
/// kernel sees one lock holder, and the second thread settles a slot that the first has already released.
#[test]
fn loom_two_threads_that_reclaim_do_not_wipe_a_newcomer() {
    check(3, || {
        // Leaked, so that threads can share one member.
        let world: &'static World = Box::leak(Box::new(World::bare(2)));
        let own: &'static Process<'_> = Box::leak(Box::new(Process(world, 1)));
        let member: &'static Member<'_> = Box::leak(Box::new(world.ledger().join(1, 0, own).unwrap()));
        let ghost = Process(world, 9);
        world.ledger().join(9, 0, &ghost).unwrap().reserve(7, LIMIT, &ghost).unwrap().commit();
        ghost.unlock_slot(1);
        let reclaimers = [(); 2].map(|()| thread::spawn(move || member.reclaim_in_turn(own)));
        let newcomer = thread::spawn(move || {
            let kernel = Process(world, 2);
            let member = world.ledger().join(2, 0, &kernel);
            // All slots may look taken while the only free one is probed.
            member.is_ok_and(|member| allocate(world, &member, &kernel, 2))
        });
        reclaimers.into_iter().for_each(|thread| _ = thread.join().unwrap());
        let granted = newcomer.join().unwrap();
        assert_eq!(world.ledger().used(), if granted { 2 } else { 0 });
    });
}

/// Red when a charge is a load and a store instead of one atomic addition.
#[test]
fn loom_charges_of_device_time_are_not_lost() {
    use crate::time::account::Admission;
    use crate::units::share::Share;
    check(3, || {
        let world = World::new(1);
        let (share, now) = (Share::from_percent(50).unwrap(), 1_000_000_000);
        // The tenant is already in debt. Otherwise one order of the charges would keep the burst and the other would
        // not.
        world.ledger().time_account().charge(100_000_000, share, now);
        let threads = [1_000_000, 30_000_000].map(|ns| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.ledger().time_account().charge(ns, share, now))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // 262 ms of the ceiling's time, minus the 100 ms that the first charge ran and a burst of 50 ms.
        assert_eq!(world.ledger().time_account().admit_launch(now), Admission::WaitUntil(now + 112_000_001));
    });
}
