//! The ledger page: how it is recognised, the header's fields, and the effect of corrupted contents.

use super::fake_kernel::{FakeKernel, LIMIT};
use super::*;

#[test]
fn a_corrupted_page_never_panics_and_never_wraps() {
    use crate::sync::Ordering::SeqCst;
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let (a, b) = (page.as_ledger().join(7, 0, &kernel).unwrap(), page.as_ledger().join(8, 0, &kernel).unwrap());
    b.reserve(600, LIMIT, &kernel).unwrap().commit();
    for (claimed, granted, committed, dropped) in [
        (0, 0, 0, 1),
        (0, u64::MAX, 5, u64::MAX),
        (u64::MAX, 0, 0, u64::MAX / 3),
        (1 << 63, 0, 0, 0),
        (5, 9, 2, 7),
        (u64::MAX, u64::MAX, 0, 0),
    ] {
        a.slot.claimed.store(claimed, SeqCst);
        a.slot.granted.store(granted, SeqCst);
        a.slot.committed.store(committed, SeqCst);
        a.slot.dropped.store(dropped, SeqCst);
        let totals = page.as_ledger().stable(1).unwrap();
        assert!(totals.used >= 600, "one slot's nonsense must not hide another's charges");
        if dropped == claimed.wrapping_add(1) {
            assert_eq!(totals.used, 600, "less than nothing is nothing");
        }
        assert_eq!(totals.used, totals.settled.saturating_add(totals.pending).saturating_add(totals.tentative));
        if let Ok(reservation) = b.reserve(LIMIT - 600, LIMIT, &kernel) {
            reservation.roll_back();
        }
    }
    page.header.high_slot.store(u32::MAX, SeqCst);
    assert!(page.as_ledger().used() >= 600, "a corrupted mark is not an index");
    kernel.kill(0);
    b.reclaim_dead(&kernel);
    assert_eq!(page.as_ledger().used(), 600, "reclaiming heals the slot");
}

#[test]
fn a_member_counts_its_own_charges_whatever_the_header_says_and_sees_that_the_page_was_written_over() {
    use crate::sync::Ordering::SeqCst;
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    page.header.format_header(LedgerIdentity { tenant: 1, device: 2 });
    let member = page.as_ledger().join(7, 0, &kernel).unwrap();
    member.reserve(LIMIT, LIMIT, &kernel).unwrap().commit();
    assert!(member.is_intact());
    page.header.high_slot.store(0, SeqCst);
    assert!(member.reserve(1, LIMIT, &kernel).is_err(), "the mark of used slots lifts no limit");
    page.header.zero_magic();
    assert!(!member.is_intact(), "zeros over the header");
    page.header.format_header(LedgerIdentity { tenant: 1, device: 2 });
    assert!(member.is_intact());
    member.slot.pid.store(0, SeqCst);
    assert!(!member.is_intact(), "zeros over the slot");
}

#[test]
fn counters_may_pass_two_to_the_64() {
    let (page, kernel) = (LedgerPage::zeroed(), FakeKernel::default());
    let member = page.as_ledger().join(7, 0, &kernel).unwrap();
    let huge = u64::MAX / 3;
    for _ in 0..20 {
        member.reserve(huge, huge, &kernel).unwrap().commit();
        assert!(member.reserve(1, huge, &kernel).is_err());
        member.release(huge);
    }
    assert_eq!(page.as_ledger().stable(1).unwrap(), Totals::default());
}

#[test]
fn a_ledger_is_recognised_and_a_stranger_is_not() {
    let page = LedgerPage::zeroed();
    let identity = LedgerIdentity { tenant: 1, device: 2 };
    let header = &page.header;
    assert_eq!(header.check(identity), Err(LayoutError::NotFormatted));
    header.format_header(identity);
    header.format_header(identity);
    assert_eq!(header.check(identity), Ok(()));
    assert_eq!(header.check(LedgerIdentity { tenant: 9, ..identity }), Err(LayoutError::OtherOwner));
    assert_eq!(header.check(LedgerIdentity { device: 9, ..identity }), Err(LayoutError::OtherOwner));
    assert_eq!(slot_lock_offset(0), 4096);
    assert_eq!(slot_lock_offset(LEDGER_SLOTS - 1) + 128, share_lock_offset(0));
    assert_eq!(share_lock_offset(SHARED_CHARGES - 1) + 64, u64::try_from(LEDGER_BYTES).unwrap());
    assert_eq!(
        LayoutError::Version { found: 7 }.to_string(),
        "the ledger has version 7, this library writes version 3"
    );
}

#[test]
fn the_first_open_door_is_named_and_all_are_counted() {
    let header = LedgerHeader::zeroed();
    assert_eq!(header.open_doors(), (0, String::new()));
    assert!(header.note_open_door("cuMemAlloc_v3"));
    assert!(!header.note_open_door("another"));
    assert_eq!(header.open_doors(), (2, "cuMemAlloc_v3".to_owned()));
    let long = LedgerHeader::zeroed();
    long.note_open_door(&"x".repeat(100));
    assert_eq!(long.open_doors(), (1, "x".repeat(64)));
}

#[test]
fn what_contexts_take_is_told_to_those_who_come_later() {
    let header = LedgerHeader::zeroed();
    assert_eq!(header.context_figures(), (0, 0));
    header.note_context_first(300 << 20);
    header.note_context_more(20 << 20);
    assert_eq!(header.context_figures(), (300 << 20, 20 << 20));
    assert_eq!(header.first_code(), None);
    header.note_first_code(0);
    assert_eq!(header.first_code(), Some(0), "nothing is a figure, too");
}
