//! Reservations and limits in one process with a simulated kernel. Deaths: `death_tests.rs`; interleavings:
//! `loom_tests.rs`.

use std::cell::RefCell;

use super::fake_kernel::{Eventful, FakeKernel, LIMIT, over};
use super::*;
use crate::units::bytes::Bytes;

#[test]
fn the_last_byte_can_be_reserved_and_no_byte_more() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let member = page.as_ledger().join(7, 0, &kernel).unwrap();
    member.reserve(LIMIT - 1, LIMIT, &kernel).unwrap().commit();
    member.reserve(1, LIMIT, &kernel).unwrap().commit();
    assert_eq!(member.used_bytes(), LIMIT);
    assert_eq!(member.reserve(1, LIMIT, &kernel).unwrap_err(), over(LIMIT, 1));
    assert_eq!(page.as_ledger().used(), LIMIT);
    assert!(!kernel.turn.get(), "the turn was given back");
}

#[test]
fn two_members_share_one_limit_and_each_has_its_own_slot() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let (a, b) = (page.as_ledger().join(7, 1, &kernel).unwrap(), page.as_ledger().join(8, 2, &kernel).unwrap());
    assert_eq!((a.index(), b.index()), (0, 1));
    a.reserve(6_000, LIMIT, &kernel).unwrap().commit();
    assert_eq!(b.reserve(4_001, LIMIT, &kernel).unwrap_err(), over(6_000, 4_001));
    b.reserve(4_000, LIMIT, &kernel).unwrap().commit();
    assert_eq!((a.used_bytes(), b.used_bytes(), page.as_ledger().used()), (6_000, 4_000, LIMIT));
    a.release(6_000);
    assert_eq!((a.used_bytes(), page.as_ledger().used()), (0, 4_000));
}

#[test]
fn a_dropped_reservation_leaves_no_trace() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let member = page.as_ledger().join(7, 0, &kernel).unwrap();
    drop(member.reserve(LIMIT, LIMIT, &kernel).unwrap());
    member.reserve(LIMIT, LIMIT, &kernel).unwrap().roll_back();
    let totals = page.as_ledger().stable(1).unwrap();
    assert_eq!(totals, Totals::default());
    member.reserve(LIMIT, LIMIT, &kernel).unwrap().commit();
    assert_eq!(page.as_ledger().stable(1).unwrap(), Totals { used: LIMIT, settled: LIMIT, ..Totals::default() });
}

#[test]
fn a_refusal_leaves_no_trace() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let member = page.as_ledger().join(7, 0, &kernel).unwrap();
    member.reserve(9_000, LIMIT, &kernel).unwrap().commit();
    for request in [1_001, LIMIT, LIMIT + 1, u64::MAX] {
        assert_eq!(member.reserve(request, LIMIT, &kernel).unwrap_err(), over(9_000, request), "{request}");
    }
    assert_eq!(page.as_ledger().stable(1).unwrap(), Totals { used: 9_000, settled: 9_000, ..Totals::default() });
}

#[test]
fn a_reservation_counts_as_pending_until_the_driver_answers() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let member = page.as_ledger().join(7, 0, &kernel).unwrap();
    let reservation = member.reserve(100, LIMIT, &kernel).unwrap();
    assert_eq!(reservation.reserved_bytes(), 100);
    assert_eq!(page.as_ledger().stable(1).unwrap(), Totals { used: 100, pending: 100, ..Totals::default() });
    reservation.commit();
    assert_eq!(page.as_ledger().stable(1).unwrap(), Totals { used: 100, settled: 100, ..Totals::default() });
}

#[test]
fn a_refusal_that_met_a_pending_reservation_waits_ten_milliseconds_and_no_longer() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let (a, b) = (page.as_ledger().join(7, 0, &kernel).unwrap(), page.as_ledger().join(8, 0, &kernel).unwrap());
    let pending = a.reserve(6_000, LIMIT, &kernel).unwrap();
    let refused = b.reserve(6_000, LIMIT, &kernel).unwrap_err();
    assert_eq!(refused, Refusal::Pending { used: Bytes(6_000), requested: Bytes(6_000), limit: Bytes(LIMIT) });
    assert!((OUTCOME_WAIT_NS..2 * OUTCOME_WAIT_NS).contains(&kernel.now.get()), "{}", kernel.now.get());
    // Next to settled charges the refusal is immediate.
    pending.commit();
    let before = kernel.now.get();
    assert_eq!(b.reserve(6_000, LIMIT, &kernel).unwrap_err(), over(6_000, 6_000));
    assert_eq!(kernel.now.get(), before);
}

#[test]
fn what_a_reservation_does_not_need_goes_back_and_the_rest_is_still_undecided() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let member = page.as_ledger().join(1, 0, &kernel).unwrap();
    let mut reservation = member.reserve(100, 100, &kernel).unwrap();
    reservation.shrink_to(40);
    reservation.shrink_to(70);
    let totals = page.as_ledger().stable(2).unwrap();
    assert_eq!((totals.used, totals.pending, totals.settled), (40, 40, 0));
    member.reserve(60, 100, &kernel).unwrap().roll_back();
    reservation.commit();
    assert_eq!(page.as_ledger().stable(2).unwrap().settled, 40);
}

#[test]
fn a_request_waits_for_a_rollback_and_then_fits() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let (a, b) = (page.as_ledger().join(7, 0, &kernel).unwrap(), page.as_ledger().join(8, 0, &kernel).unwrap());
    let pending = RefCell::new(Some(a.reserve(6_000, LIMIT, &kernel).unwrap()));
    let failing = Eventful(&kernel, |round| {
        if round == 3 {
            pending.take();
        }
    });
    b.reserve(6_000, LIMIT, &failing).expect("the first driver call failed, so there is room").commit();
    assert_eq!(kernel.rounds.get(), 4);
    assert_eq!(page.as_ledger().used(), 6_000);
}

#[test]
fn overhead_counts_against_the_limit_and_is_shown_apart() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let member = page.as_ledger().join(7, 0, &kernel).unwrap();
    member.reserve(3_000, LIMIT, &kernel).unwrap().commit_overhead();
    member.reserve(7_000, LIMIT, &kernel).unwrap().commit();
    assert_eq!((member.used_bytes(), member.overhead_bytes(), page.as_ledger().overhead()), (LIMIT, 3_000, 3_000));
    assert_eq!(member.reserve(1, LIMIT, &kernel).unwrap_err(), over(LIMIT, 1));
    member.release_overhead(3_000);
    assert_eq!((member.used_bytes(), member.overhead_bytes()), (7_000, 0));
    // Bytes that the driver has already taken are charged even above the limit, and then nothing fits.
    member.charge_spent_overhead(5_000);
    assert_eq!((member.used_bytes(), member.overhead_bytes()), (12_000, 5_000));
    assert_eq!(member.reserve(1, LIMIT, &kernel).unwrap_err(), over(12_000, 1));
}

#[test]
fn the_high_water_mark_stays() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let member = page.as_ledger().join(7, 0, &kernel).unwrap();
    for bytes in [2_000, 3_000] {
        member.reserve(bytes, LIMIT, &kernel).unwrap().commit();
    }
    member.release(5_000);
    member.reserve(1_000, LIMIT, &kernel).unwrap().commit();
    let view = page.as_ledger().members().next().unwrap();
    assert_eq!((view.used, view.high), (1_000, 5_000));
}

#[test]
fn members_may_have_different_limits() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let (a, b) = (page.as_ledger().join(7, 0, &kernel).unwrap(), page.as_ledger().join(8, 0, &kernel).unwrap());
    a.reserve(6_000, LIMIT, &kernel).unwrap().commit();
    assert!(b.reserve(1, 5_000, &kernel).is_err(), "each checks the common sum against its own limit");
    b.reserve(1, u64::MAX, &kernel).unwrap().commit();
}
