//! Shares under the model checker: a charge that moves while others reserve, and holders that join and release at
//! once.
//!
//! World, device, processes and the limits of the search are those of `loom_tests.rs`. Each test failed once with a
//! faulty change to the code. "Red when ..." at the test names that change.

use loom::thread;

use super::loom_tests::{CLOSED, LIMIT, Process, UNSEEN, World, allocate, check};
use super::*;
use crate::sync::Ordering;

/// Leaked, so that threads can share it and one of its members.
fn world(slots: usize, shares: usize) -> &'static World {
    Box::leak(Box::new(World::with_shares(slots, shares)))
}

fn join(world: &'static World, process: u32) -> (&'static Member<'static>, &'static Process<'static>) {
    let kernel: &'static Process<'static> = Box::leak(Box::new(Process(world, process)));
    (Box::leak(Box::new(world.ledger().join(process, u64::from(process), kernel).unwrap())), kernel)
}

/// Red when shares are summed before slots, or when the slot drops the bytes before the share has them: the other
/// member is granted memory that is still held. Red when the mark of the highest share is raised after the bytes were
/// added.
#[test]
fn loom_a_charge_that_moves_to_a_share_is_never_out_of_sight() {
    check(3, || {
        let world = world(2, 1);
        let (exporter, own) = join(world, 1);
        let (other, others) = join(world, 2);
        assert!(allocate(world, exporter, own, 6));
        let export = thread::spawn(move || exporter.begin_shared(77, 6, own).is_some());
        let granted = thread::spawn(move || allocate(world, other, others, 6));
        assert!(export.join().unwrap());
        assert!(!granted.join().unwrap(), "6 and 6 of 10");
        assert_eq!(world.ledger().used(), 6);
    });
}

/// Red when the share gains the bytes before those in the slot are a reservation: they look settled twice.
#[test]
fn loom_a_charge_that_moves_to_a_share_refuses_nobody() {
    check(3, || {
        let world = world(2, 1);
        let (exporter, own) = join(world, 1);
        let (other, others) = join(world, 2);
        assert!(allocate(world, exporter, own, 6));
        let export = thread::spawn(move || exporter.begin_shared(77, 6, own).is_some());
        let granted = thread::spawn(move || allocate(world, other, others, 4));
        assert!(export.join().unwrap());
        assert!(granted.join().unwrap(), "4 fit beside 6");
        assert_eq!(world.ledger().used(), LIMIT);
    });
}

/// Red without the second try after unlocking: each holder sees the other's lock, and nobody settles.
#[test]
fn loom_a_share_whose_holders_let_go_at_once_ends_once() {
    check(3, || {
        let world = world(2, 1);
        let (exporter, own) = join(world, 1);
        let (importer, theirs) = join(world, 2);
        exporter.reserve(6, LIMIT, own).unwrap().commit();
        let share = exporter.begin_shared(77, 6, own).unwrap();
        assert_eq!(importer.hold_again(77, theirs), Some(share));
        let both = [(exporter, own), (importer, theirs)].map(|(member, kernel)| {
            thread::spawn(move || u32::from(member.let_go(share, None, kernel) == Release::Ended))
        });
        assert_eq!(both.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>(), 1);
        assert_eq!(world.ledger().used(), 0);
        assert_eq!(world.share_locks[0].load(Ordering::Relaxed), 0);
    });
}

/// Red when an importer does not check the identity again under its lock, or when settling takes no lock: the
/// importer holds an ended share, and its bytes are not counted.
#[test]
fn loom_an_importer_beside_a_dying_exporter_holds_all_of_it_or_nothing() {
    check(3, || {
        let world = world(3, 1);
        let (exporter, own) = join(world, 1);
        let (importer, theirs) = join(world, 2);
        let (other, others) = join(world, 3);
        exporter.reserve(6, LIMIT, own).unwrap().commit();
        exporter.begin_shared(77, 6, own).unwrap();
        let dying = thread::spawn(move || {
            world.locks[exporter.index()].store(0, Ordering::Release);
            own.unlock_share(0);
        });
        let import = thread::spawn(move || importer.hold_again(77, theirs));
        let reclaim = thread::spawn(move || other.reclaim_dead(others));
        dying.join().unwrap();
        let held = import.join().unwrap();
        reclaim.join().unwrap();
        other.reclaim_dead(others);
        assert_eq!(world.ledger().used(), if held.is_some() { 6 } else { 0 });
        if let Some(share) = held {
            assert_eq!(importer.let_go(share, None, theirs), Release::Ended, "it was the last");
            assert_eq!(world.ledger().used(), 0);
        }
    });
}

/// Red when a hold does not exclude another thread of the same process that reclaims the dead. The kernel sees one
/// lock holder, and the importer's read lock becomes a write lock.
#[test]
fn loom_a_thread_that_reclaims_does_not_settle_what_another_thread_imports() {
    check(3, || {
        let world = world(2, 1);
        let (exporter, own) = join(world, 1);
        let (member, kernel) = join(world, 2);
        exporter.reserve(6, LIMIT, own).unwrap().commit();
        exporter.begin_shared(77, 6, own).unwrap();
        world.locks[exporter.index()].store(0, Ordering::Release);
        own.unlock_share(0);
        let import = thread::spawn(move || member.hold_again(77, kernel));
        let reclaim = thread::spawn(move || member.reclaim_dead(kernel));
        let held = import.join().unwrap();
        reclaim.join().unwrap();
        assert_eq!(world.ledger().used(), if held.is_some() { 6 } else { 0 });
    });
}

/// Red when a new share is begun without its write lock: two exporters take the same share.
#[test]
fn loom_two_that_export_at_once_have_a_share_each() {
    check(3, || {
        let world = world(2, 2);
        let both = [1, 2].map(|process| {
            let (member, kernel) = join(world, process);
            member.reserve(4, LIMIT, kernel).unwrap().commit();
            (member, kernel)
        });
        let threads = both.map(|(member, kernel)| {
            thread::spawn(move || member.begin_shared(70 + u64::try_from(member.index()).unwrap(), 4, kernel).unwrap())
        });
        let [first, second] = threads.map(|thread| thread.join().unwrap());
        assert_ne!(first, second);
        assert_eq!(world.ledger().used(), 8);
        both.iter().zip([first, second]).for_each(|((member, kernel), share)| _ = member.let_go(share, None, *kernel));
        assert_eq!(world.ledger().used(), 0);
    });
}

/// Red when the second byte is locked after the first is released: a third process finds the share unlocked. Red when
/// the keeper gives up at the first lock it does not get: another process is reclaiming the dead.
#[test]
fn loom_a_share_that_becomes_kept_is_never_taken_for_a_dead_ones() {
    check(3, || {
        let world = world(2, 1);
        let (exporter, own) = join(world, 1);
        let (other, others) = join(world, 2);
        exporter.reserve(6, LIMIT, own).unwrap().commit();
        let share = exporter.begin_shared(77, 6, own).unwrap();
        let keep = thread::spawn(move || exporter.let_go(share, Some(UNSEEN), own));
        let reclaim = thread::spawn(move || other.reclaim_dead(others));
        assert_eq!(keep.join().unwrap(), Release::Kept);
        assert_eq!(reclaim.join().unwrap(), 0);
        assert_eq!(world.ledger().used(), 6);
        assert_eq!(exporter.keep_no_longer(share, 77, own), Release::Ended);
        assert_eq!(world.ledger().used(), 0);
    });
}

/// Red when a reclaiming process takes the first byte before the second: it finds a kept share without holders.
#[test]
fn loom_what_is_kept_is_found_by_an_importer_and_ends_once() {
    check(2, || {
        let world = world(3, 1);
        let (exporter, own) = join(world, 1);
        let (importer, theirs) = join(world, 2);
        let (other, others) = join(world, 3);
        exporter.reserve(6, LIMIT, own).unwrap().commit();
        let share = exporter.begin_shared(77, 6, own).unwrap();
        assert_eq!(exporter.let_go(share, Some(UNSEEN), own), Release::Kept);
        let import = thread::spawn(move || {
            assert_eq!(importer.hold_again(77, theirs), Some(share), "it is kept");
            assert_eq!(world.ledger().used(), 6);
            importer.let_go(share, None, theirs)
        });
        let reclaim = thread::spawn(move || other.reclaim_dead(others));
        let imported = import.join().unwrap();
        let kept = exporter.keep_no_longer(share, 77, own);
        reclaim.join().unwrap();
        assert_eq!((imported, kept), (Release::Ended, Release::ToOthers));
        assert_eq!(world.ledger().used(), 0);
    });
}

/// Red when a process that sees all descriptors closed settles without the share's own lock, or does not check the
/// identity again. Bytes exported in the same place meanwhile are then not counted.
#[test]
fn loom_what_is_kept_for_a_closed_descriptor_ends_and_nothing_else_does() {
    check(3, || {
        let world = world(2, 1);
        let (exporter, own) = join(world, 1);
        let (other, others) = join(world, 2);
        exporter.reserve(6, LIMIT, own).unwrap().commit();
        let share = exporter.begin_shared(77, 6, own).unwrap();
        assert_eq!(exporter.let_go(share, Some(CLOSED), own), Release::Kept);
        let go_on = thread::spawn(move || {
            exporter.keep_no_longer(share, 77, own);
            exporter.reserve(2, LIMIT, own).unwrap().commit();
            let second = exporter.begin_shared(78, 2, own);
            second.map(|second| exporter.let_go(second, Some(UNSEEN), own))
        });
        let reclaim = thread::spawn(move || other.reclaim_dead(others));
        go_on.join().unwrap();
        reclaim.join().unwrap();
        assert_eq!(world.ledger().used(), 2, "the second export is there, wherever it is charged");
    });
}

/// Red when the mark is lowered without the lock of the share that drops out. Red when it is stored instead of
/// exchanged, or when the share is not checked again under its lock. Bytes exported at the same time are then not
/// counted.
#[test]
fn loom_a_mark_that_is_lowered_leaves_nothing_with_bytes_behind() {
    check(3, || {
        let world = world(2, 2);
        let (first, own) = join(world, 1);
        let (second, theirs) = join(world, 2);
        first.reserve(4, LIMIT, own).unwrap().commit();
        second.reserve(6, LIMIT, theirs).unwrap().commit();
        let share = first.begin_shared(77, 4, own).unwrap();
        let go = thread::spawn(move || first.let_go(share, None, own));
        let export = thread::spawn(move || second.begin_shared(78, 6, theirs).unwrap());
        assert_eq!(go.join().unwrap(), Release::Ended);
        let other = export.join().unwrap();
        assert_eq!(world.ledger().used(), 6, "it is in sight");
        assert_eq!(second.let_go(other, None, theirs), Release::Ended);
        first.reclaim_dead(own);
        assert_eq!((world.ledger().used(), world.mark()), (0, 0));
    });
}

/// Red without the second check of the share under its lock: its exporter died in between, and its bytes must count
/// until they are reclaimed.
#[test]
fn loom_a_mark_is_not_lowered_past_what_the_dead_left() {
    check(3, || {
        let world = world(2, 1);
        let (first, own) = join(world, 1);
        let (second, theirs) = join(world, 2);
        second.reserve(6, LIMIT, theirs).unwrap().commit();
        let share = first.begin_shared(77, 0, own).unwrap();
        let go = thread::spawn(move || first.let_go(share, None, own));
        let export = thread::spawn(move || {
            let exported = second.begin_shared(78, 6, theirs).is_some();
            if exported {
                theirs.unlock_share(0); // killed
            }
            exported
        });
        go.join().unwrap();
        export.join().unwrap();
        assert_eq!(world.ledger().used(), 6, "exported or not, it counts until it is reclaimed");
    });
}

/// Red without the turn lock: both importers search, both find none, and each creates a share.
#[test]
fn loom_two_that_found_a_share_at_once_have_the_same() {
    check(3, || {
        let world = world(2, 2);
        let both = [1, 2].map(|process| join(world, process));
        let threads = both.map(|(member, kernel)| thread::spawn(move || member.hold_or_begin(77, kernel).unwrap()));
        let [first, second] = threads.map(|thread| thread.join().unwrap());
        assert_eq!(first, second);
        let ends = both.map(|(member, kernel)| member.let_go(first, None, kernel));
        assert_eq!(ends, [Release::ToOthers, Release::Ended]);
    });
}

/// Red when the missing bytes are added without a compare-exchange: each importer adds the amount it saw missing.
#[test]
fn loom_what_two_pay_for_at_once_is_paid_once() {
    check(3, || {
        let world = world(2, 1);
        let both = [1, 2].map(|process| join(world, process));
        let share = both.map(|(member, kernel)| member.hold_or_begin(77, kernel).unwrap())[0];
        let threads = both.map(|(member, kernel)| {
            thread::spawn(move || {
                member.reserve(4, LIMIT, kernel).unwrap().commit_up_to(member.held_charge(share), 4);
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(world.ledger().used(), 4);
    });
}
