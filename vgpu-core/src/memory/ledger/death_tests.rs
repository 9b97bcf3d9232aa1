//! Members that die, stop or leave, and their slots; one process with a simulated kernel.

use super::fake_kernel::{Eventful, FakeKernel, LIMIT, over};
use super::*;

#[test]
fn a_dead_members_charges_come_back_before_anybody_is_refused() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let (a, b) = (page.as_ledger().join(7, 0, &kernel).unwrap(), page.as_ledger().join(8, 0, &kernel).unwrap());
    a.reserve(6_000, LIMIT, &kernel).unwrap().commit();
    core::mem::forget(a.reserve(4_000, LIMIT, &kernel).unwrap());
    kernel.kill(a.index());
    b.reserve(LIMIT, LIMIT, &kernel).expect("the dead hold nothing").commit();
    assert_eq!(page.as_ledger().members().map(|member| member.pid).collect::<Vec<_>>(), [8]);
    assert_eq!(page.as_ledger().stable(1).unwrap(), Totals { used: LIMIT, settled: LIMIT, ..Totals::default() });
}

#[test]
fn a_member_that_dies_while_it_is_waited_for_is_reclaimed_too() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let (a, b) = (page.as_ledger().join(7, 0, &kernel).unwrap(), page.as_ledger().join(8, 0, &kernel).unwrap());
    // A claim whose owner never decides: killed between its first and its second instruction.
    a.slot.claimed.fetch_add(6_000, crate::sync::Ordering::SeqCst);
    let dying = Eventful(&kernel, |round| {
        if round == 5 {
            kernel.kill(a.index());
        }
    });
    b.reserve(6_000, LIMIT, &dying).expect("its owner died").commit();
    assert_eq!(page.as_ledger().used(), 6_000);
}

#[test]
fn a_claim_nobody_decides_is_waited_for_a_second_and_no_longer() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let (a, b) = (page.as_ledger().join(7, 0, &kernel).unwrap(), page.as_ledger().join(8, 0, &kernel).unwrap());
    a.slot.claimed.fetch_add(6_000, crate::sync::Ordering::SeqCst);
    assert!(matches!(b.reserve(6_000, LIMIT, &kernel).unwrap_err(), Refusal::Pending { .. }));
    assert!((STUCK_WAIT_NS..2 * STUCK_WAIT_NS).contains(&kernel.now.get()), "{}", kernel.now.get());
    // The undecided request of `a` blocks only requests that do not fit next to it.
    b.reserve(4_000, LIMIT, &kernel).unwrap().commit();
}

#[test]
fn a_stopped_holder_of_the_turn_stops_nobody() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let (a, b) = (page.as_ledger().join(7, 0, &kernel).unwrap(), page.as_ledger().join(8, 0, &kernel).unwrap());
    a.reserve(LIMIT, LIMIT, &kernel).unwrap().commit();
    kernel.turn_blocked.set(true);
    assert_eq!(b.reserve(1, LIMIT, &kernel).unwrap_err(), over(LIMIT, 1));
    kernel.kill(a.index());
    b.reserve(LIMIT, LIMIT, &kernel).expect("the dead are reclaimed without the turn as well").commit();
}

#[test]
fn slots_never_move_and_the_first_free_one_is_taken() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let members: Vec<_> = (1..=3).map(|pid| page.as_ledger().join(pid, 0, &kernel).unwrap()).collect();
    for member in &members {
        member.reserve(100, LIMIT, &kernel).unwrap().commit();
    }
    let mut members = members.into_iter();
    let (first, second, third) = (members.next().unwrap(), members.next().unwrap(), members.next().unwrap());
    second.leave_ledger(&kernel);
    assert_eq!(
        page.as_ledger().members().map(|member| (member.index, member.pid)).collect::<Vec<_>>(),
        [(0, 1), (2, 3)]
    );
    assert_eq!((first.used_bytes(), third.used_bytes(), page.as_ledger().used()), (100, 100, 200));
    let fourth = page.as_ledger().join(4, 0, &kernel).unwrap();
    assert_eq!((fourth.index(), fourth.used_bytes()), (1, 0));
}

#[test]
fn a_dead_slot_starts_from_nothing_for_the_next_one() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let dead = page.as_ledger().join(7, 1, &kernel).unwrap();
    dead.reserve(5_000, LIMIT, &kernel).unwrap().commit_overhead();
    dead.add_busy(77);
    kernel.kill(dead.index());
    let next = page.as_ledger().join(8, 2, &kernel).unwrap();
    let view = page.as_ledger().members().next().unwrap();
    assert_eq!((next.index(), view.pid, view.birth), (0, 8, 2));
    assert_eq!((view.used, view.overhead, view.high, view.busy_ns), (0, 0, 0, 0));
}

#[test]
fn a_full_table_is_told_and_a_death_makes_room() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    for index in 0..LEDGER_SLOTS {
        kernel.locked.borrow_mut().push(index);
    }
    assert_eq!(page.as_ledger().join(7, 0, &kernel).err(), Some(JoinError::Full { slots: LEDGER_SLOTS }));
    kernel.kill(LEDGER_SLOTS - 1);
    let last = page.as_ledger().join(7, 0, &kernel).unwrap();
    assert_eq!(last.index(), LEDGER_SLOTS - 1);
    last.reserve(LIMIT, LIMIT, &kernel).unwrap().commit();
    assert_eq!(page.as_ledger().used(), LIMIT, "the last slot is part of the sum");
}

#[test]
fn an_observer_reclaims_without_being_a_member() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let (a, b) = (page.as_ledger().join(7, 0, &kernel).unwrap(), page.as_ledger().join(8, 0, &kernel).unwrap());
    a.reserve(100, LIMIT, &kernel).unwrap().commit();
    b.reserve(200, LIMIT, &kernel).unwrap().commit();
    kernel.kill(b.index());
    assert_eq!(page.as_ledger().reclaim_dead(&kernel), 200);
    assert_eq!(page.as_ledger().reclaim_dead(&kernel), 0);
    assert_eq!(page.as_ledger().used(), 100);
    assert_eq!(*kernel.locked.borrow(), [0], "the probe keeps no lock");
}
