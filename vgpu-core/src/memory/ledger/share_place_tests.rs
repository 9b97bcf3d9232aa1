//! Positions of shares: the mark after the last one, places that a process still keeps, shares that importers
//! created. One process with a simulated kernel; interleavings are in `loom_share_tests.rs`.

use core::sync::atomic::Ordering::SeqCst;

use super::fake_kernel::Eventful;
use super::share_tests::{LIMIT, Tenant, WATCHED};
use super::*;

/// Number of shares that every sum reads.
fn mark(page: &LedgerPage) -> u32 {
    page.header.high_share.load(SeqCst)
}

#[test]
fn what_was_exported_and_freed_costs_sums_nothing_in_whatever_order_it_went() {
    let page = LedgerPage::zeroed();
    let tenant = Tenant::of(&page, 2);
    for forwards in [true, false] {
        let mut shares: Vec<SharedChargeId> = (0..20).map(|i| tenant.share(0, 70 + i, 100)).collect();
        assert_eq!(mark(&page), 20);
        if !forwards {
            shares.reverse();
        }
        let last = shares.pop().unwrap();
        assert!(shares.into_iter().all(|share| tenant.let_go(0, share)));
        assert_eq!(mark(&page), if forwards { 20 } else { 1 }, "one is left, the last or the first");
        assert!(tenant.let_go(0, last));
        assert_eq!((mark(&page), tenant.used()), (0, 0));
    }
}

#[test]
fn what_the_dead_exported_costs_sums_nothing_once_it_is_reclaimed() {
    let page = LedgerPage::zeroed();
    let mut tenant = Tenant::of(&page, 2);
    for identity in 70..90 {
        tenant.share(0, identity, 100);
    }
    let held = tenant.hold(1, 75).unwrap();
    tenant.kill(0);
    assert_eq!((tenant.used(), mark(&page)), (100, 6));
    assert!(tenant.let_go(1, held));
    assert_eq!((tenant.used(), mark(&page)), (0, 0));
}

#[test]
fn a_share_that_is_empty_and_somebodys_stays_below_the_mark() {
    let page = LedgerPage::zeroed();
    let tenant = Tenant::of(&page, 2);
    let empty = tenant.as_member(0, |member, kernel| member.begin_shared(77, 0, kernel)).unwrap();
    tenant.used();
    assert_eq!(mark(&page), 1);
    tenant.charge(0, 500);
    tenant.as_member(0, |member, _| member.hand_over(member.held_charge(empty), 500));
    assert_eq!(page.as_ledger().used(), 500);
    assert!(tenant.let_go(0, empty));
    assert_eq!(mark(&page), 0);
}

/// The counters of a share that drops out leave the sums. If other counters grow by the same amount, two different
/// readings could look equal.
#[test]
fn a_reading_is_not_taken_for_stable_when_the_mark_moved() {
    let page = LedgerPage::zeroed();
    let tenant = Tenant::of(&page, 2);
    tenant.share(0, 77, 500);
    let gone = tenant.share(0, 78, 300);
    let (_, before) = page.as_ledger().read();
    // The share ends, which adds 300 to `lost`, and drops out, which takes 300 from both sums; then the pool grows.
    assert!(tenant.let_go(0, gone));
    page.shares[0].gained.fetch_add(300, SeqCst);
    let (totals, after) = page.as_ledger().read();
    assert_eq!(totals.used, 800);
    assert_ne!(before, after);
}

/// An idle keeper has not seen that its descriptor is closed. The next share in that place must still be reclaimed
/// when its exporter dies.
#[test]
fn a_place_that_somebody_still_keeps_is_not_taken() {
    let page = LedgerPage::zeroed();
    let mut tenant = Tenant::of(&page, 2);
    let share = tenant.share(0, 77, 1_000);
    assert_eq!(tenant.let_go_while_open(0, share), Release::Kept);
    tenant.kernel.closed.borrow_mut().push((1, WATCHED, 77));
    assert_eq!(tenant.used(), 0, "somebody saw that it is closed");
    let second = tenant.share(1, 78, 2_000);
    assert_ne!(second, share);
    tenant.kill(1);
    assert_eq!(tenant.used(), 0, "the dead hold nothing");
    assert_eq!(tenant.keep_no_longer(0, share, 77), Release::ToOthers);
    assert_eq!(tenant.share(0, 79, 1_000), share, "its place is free again");
}

#[test]
fn a_share_that_an_importer_founds_is_the_same_for_all_and_is_paid_once() {
    let page = LedgerPage::zeroed();
    let mut tenant = Tenant::of(&page, 3);
    let found =
        |tenant: &Tenant<'_>, who| tenant.as_member(who, |member, kernel| member.hold_or_begin(77, kernel)).unwrap();
    let pay = |tenant: &Tenant<'_>, who, share, bytes, whole| {
        tenant.as_member(who, |member, kernel| {
            member.reserve(bytes, LIMIT, kernel).unwrap().commit_up_to(member.held_charge(share), whole);
        });
    };
    let share = found(&tenant, 0);
    assert_eq!(found(&tenant, 1), share);
    assert_eq!(tenant.used(), 0, "how large it is nobody knows yet");
    pay(&tenant, 0, share, 6_000, 6_000);
    assert_eq!(tenant.used(), 6_000);
    pay(&tenant, 1, share, 4_000, 6_000);
    assert_eq!(tenant.used(), 6_000, "it was paid");
    pay(&tenant, 1, share, 1_000, 7_000);
    assert_eq!((tenant.used(), page.as_ledger().stable(1).unwrap().pending), (7_000, 0), "it is larger than was seen");
    tenant.kill(0);
    assert_eq!(tenant.used(), 7_000);
    assert!(tenant.let_go(1, share));
    assert_eq!(tenant.used(), 0);
}

/// A suspended job or a frozen container: another thread of the process was reclaiming the dead.
#[test]
fn who_was_stopped_while_it_waited_lets_go_all_the_same() {
    let page = LedgerPage::zeroed();
    let tenant = Tenant::of(&page, 1);
    let share = tenant.share(0, 77, 1_000);
    tenant.as_member(0, |member, kernel| {
        member.probing.store(1, SeqCst);
        let stopped = Eventful(kernel, |round| match round {
            0 => kernel.now.set(kernel.now.get() + 10 * STUCK_WAIT_NS),
            3 => member.probing.store(0, SeqCst),
            _ => {}
        });
        assert_eq!(member.let_go(share, None, &stopped), Release::Ended);
    });
    assert_eq!(tenant.used(), 0);
}

/// A process that releases a share has the write lock for a moment, and may lose the CPU just then.
#[test]
fn an_importer_waits_for_a_holder_that_does_not_run() {
    let page = LedgerPage::zeroed();
    let tenant = Tenant::of(&page, 2);
    let share = tenant.share(0, 77, 1_000);
    tenant.as_member(0, |_, kernel| assert!(kernel.try_lock_share(0)));
    tenant.as_member(1, |member, kernel| {
        let late = Eventful(kernel, |round| {
            if round == 0 {
                kernel.now.set(kernel.now.get() + 3 * OUTCOME_WAIT_NS);
            }
            if round == 500 {
                kernel.process.set(1);
                assert!(kernel.try_hold_share(0));
                kernel.process.set(2);
            }
        });
        assert_eq!(member.hold_again(77, &late), Some(share));
    });
}
