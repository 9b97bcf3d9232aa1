//! The ledger on real processors: members run in threads, each with its own slot, for a few thousand rounds.
//!
//! The model checker (`src/ledger/loom_tests.rs`) searches all interleavings of a few steps; these tests run many steps
//! on the real machine. Locks that end with a process are tested in shim-sys.
#![allow(clippy::disallowed_methods, reason = "the test stands in for the kernel: it brings clock and waiting")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use vgpu_core::memory::ledger::{Kernel, LEDGER_SLOTS, LedgerPage, Member, Release, Totals, Watched};

struct Threads {
    start: Instant,
    slots: Mutex<Vec<bool>>,
    turn: Mutex<bool>,
    /// Holders of each share's lock, and whether they hold it for writing. A thread here stands for a process.
    shares: Mutex<BTreeMap<usize, (Vec<ThreadId>, bool)>>,
}

impl Threads {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            slots: Mutex::new(vec![false; LEDGER_SLOTS]),
            turn: Mutex::new(false),
            shares: Mutex::default(),
        }
    }

    fn lock_share(&self, index: usize, write: bool) -> bool {
        let mut shares = self.shares.lock().unwrap();
        let (holders, writes) = shares.entry(index).or_default();
        let me = std::thread::current().id();
        if (write || *writes) && holders.iter().any(|holder| *holder != me) {
            return false;
        }
        if !holders.contains(&me) {
            holders.push(me);
        }
        *writes = write;
        true
    }
}

const WATCHED: Watched = Watched { descriptor: 300, node: (1, 2) };

/// Offset in [`Threads::shares`] of the locks that the ledger takes on each share's second byte.
const KEPT: usize = 1 << 20;

impl Kernel for Threads {
    fn try_lock_slot(&self, index: usize) -> bool {
        !std::mem::replace(&mut self.slots.lock().unwrap()[index], true)
    }
    fn unlock_slot(&self, index: usize) {
        self.slots.lock().unwrap()[index] = false;
    }
    fn try_lock_share(&self, index: usize) -> bool {
        self.lock_share(index, true)
    }
    fn try_hold_share(&self, index: usize) -> bool {
        self.lock_share(index, false)
    }
    fn unlock_share(&self, index: usize) {
        let me = std::thread::current().id();
        self.shares.lock().unwrap().get_mut(&index).unwrap().0.retain(|holder| *holder != me);
    }
    fn try_lock_kept(&self, index: usize) -> bool {
        self.lock_share(KEPT + index, true)
    }
    fn try_keep_share(&self, index: usize) -> bool {
        self.lock_share(KEPT + index, false)
    }
    fn unlock_kept(&self, index: usize) {
        self.unlock_share(KEPT + index);
    }
    fn is_closed(&self, _keeper: u32, _watched: Watched, _identity: u64) -> bool {
        false
    }
    fn lock_turn(&self, deadline: u64) -> bool {
        while std::mem::replace(&mut *self.turn.lock().unwrap(), true) {
            if self.now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        true
    }
    fn unlock_turn(&self) {
        *self.turn.lock().unwrap() = false;
    }
    /// Time slowed down by a factor of 100, so that a descheduled thread does not look like a driver call that hangs.
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos() / 100).unwrap()
    }
    fn wait(&self, round: u32) {
        if round < 10 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(50)) }
    }
}

const PART: u64 = 1 << 20;
const LIMIT: u64 = 8 * PART;

/// Bytes that the device was asked to hold.
#[derive(Default)]
struct Device(AtomicU64);

impl Device {
    fn take(&self, bytes: u64) {
        let held = self.0.fetch_add(bytes, Ordering::SeqCst) + bytes;
        assert!(held <= LIMIT, "over the limit: {held}");
    }
    fn give(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::SeqCst);
    }
}

fn members<const N: usize>(page: &LedgerPage, kernel: &Threads, act: impl Fn(usize, &Member<'_>) + Sync) {
    std::thread::scope(|scope| {
        for number in 0..N {
            let act = &act;
            scope.spawn(move || {
                let pid = u32::try_from(number).unwrap() + 1;
                let member = page.as_ledger().join(pid, 0, kernel).expect("a slot");
                act(number, &member);
                member.leave_ledger(kernel);
            });
        }
    });
    assert_eq!(page.as_ledger().stable(1), Some(Totals::default()), "nothing is left");
}

#[test]
fn eight_members_whose_demands_fit_exactly_are_never_refused() {
    let (page, kernel, device) = (LedgerPage::zeroed(), Threads::new(), Device::default());
    members::<8>(&page, &kernel, |_, member| {
        for round in 0..10_000 {
            let reservation =
                member.reserve(PART, LIMIT, &kernel).unwrap_or_else(|refusal| panic!("{round}: {refusal}"));
            device.take(PART);
            reservation.commit();
            device.give(PART);
            member.release(PART);
        }
    });
}

#[test]
fn of_nine_exactly_one_is_refused_in_every_round_also_when_the_driver_fails() {
    let (page, kernel, device) = (LedgerPage::zeroed(), Threads::new(), Device::default());
    let (barrier, granted) = (Barrier::new(9), AtomicUsize::new(0));
    members::<9>(&page, &kernel, |number, member| {
        for round in 0..2_000 {
            barrier.wait();
            // In two of three rounds one member's driver call fails. Then all other members fit.
            let fails = (round % 3 != 0).then_some(round % 9);
            match member.reserve(PART, LIMIT, &kernel) {
                Ok(reservation) if fails == Some(number) => reservation.roll_back(),
                Ok(reservation) => {
                    device.take(PART);
                    reservation.commit();
                    granted.fetch_add(1, Ordering::SeqCst);
                }
                Err(_) => assert!(fails.is_none() || fails == Some(number), "{number} was refused in round {round}"),
            }
            barrier.wait();
            assert_eq!(granted.load(Ordering::SeqCst), 8, "round {round}");
            assert_eq!(page.as_ledger().used(), LIMIT);
            barrier.wait();
            if member.used_bytes() > 0 {
                device.give(PART);
                member.release(PART);
                granted.fetch_sub(1, Ordering::SeqCst);
            }
        }
    });
}

#[test]
fn requests_of_all_sizes_never_exceed_the_limit_and_leave_nothing() {
    let (page, kernel, device) = (LedgerPage::zeroed(), Threads::new(), Device::default());
    let refused = AtomicUsize::new(0);
    members::<4>(&page, &kernel, |number, member| {
        let mut held = Vec::new();
        let mut random = number as u64 + 1;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = ((random >> 40) % (LIMIT / 512 / 2) + 1) * 512;
            match random >> 62 {
                0 | 1 if held.len() < 6 => match member.reserve(bytes, LIMIT, &kernel) {
                    Ok(reservation) if random & 64 == 0 => reservation.roll_back(),
                    Ok(reservation) => {
                        device.take(bytes);
                        reservation.commit();
                        held.push(bytes);
                    }
                    Err(_) => _ = refused.fetch_add(1, Ordering::Relaxed),
                },
                _ => {
                    if let Some(bytes) = held.pop() {
                        device.give(bytes);
                        member.release(bytes);
                    }
                }
            }
            assert_eq!(member.used_bytes(), held.iter().sum::<u64>());
        }
        device.give(held.iter().sum());
    });
    assert!(refused.load(Ordering::Relaxed) > 100, "the test was about refusals");
}

#[test]
fn an_allocation_that_is_passed_on_is_charged_once_and_returned_once() {
    let (page, kernel, device) = (LedgerPage::zeroed(), Threads::new(), Device::default());
    // Identity of the allocation passed on last. Members export, import and release in any order.
    let (latest, ended) = (AtomicU64::new(0), AtomicUsize::new(0));
    let device_of = Mutex::new(BTreeMap::<u64, usize>::new());
    // The device counts holders and frees the memory with the last one, as a driver does.
    let close = |identity: u64| {
        let mut all = device_of.lock().unwrap();
        let holders = all.get_mut(&identity).unwrap();
        *holders -= 1;
        if *holders == 0 {
            all.remove(&identity);
            device.give(PART);
        }
    };
    // From time to time a descriptor stays open a moment longer, and its last holder keeps the share.
    let let_go = |member: &Member<'_>, share, identity: u64, round: u64| {
        let mut left = member.let_go(share, round.is_multiple_of(3).then_some(WATCHED), &kernel);
        if left == Release::Kept {
            std::thread::yield_now();
            left = member.keep_no_longer(share, identity, &kernel);
        }
        ended.fetch_add(usize::from(left == Release::Ended), Ordering::SeqCst);
    };
    members::<6>(&page, &kernel, |number, member| {
        for round in 0..3_000_u64 {
            if number < 3 {
                let Ok(reservation) = member.reserve(PART, LIMIT, &kernel) else { continue };
                device.take(PART);
                reservation.commit();
                let identity = round * 8 + number as u64 + 1;
                device_of.lock().unwrap().insert(identity, 1);
                let share = member.begin_shared(identity, PART, &kernel).expect("a share");
                latest.store(identity, Ordering::SeqCst);
                std::thread::yield_now();
                close(identity);
                let_go(member, share, identity, round);
            } else {
                let identity = latest.load(Ordering::SeqCst);
                // The member holds the share before it asks the device, so the memory that it gets is already charged.
                let Some(share) = member.hold_again(identity, &kernel) else { continue };
                let imported = device_of.lock().unwrap().get_mut(&identity).map(|holders| *holders += 1).is_some();
                if imported {
                    std::thread::yield_now();
                    close(identity);
                }
                let_go(member, share, identity, round);
            }
        }
    });
    assert!(ended.load(Ordering::SeqCst) > 1_000, "the test was about shares that end");
}
