//! Claims of work on the device: whether they are trusted, for how long, and the charge for them.

use super::*;

/// Lets `b` take the device next to `a`, whose drain is late. `b` then works for `ms` in kernels of 1 ms, known to
/// take 1 ms and measured at `measured`. Returns whether its last lease was exclusive.
fn beside_a_claim(desk: &mut Desk, a: SlotId, b: SlotId, ms: u64, measured: u64) -> bool {
    desk.wants(a);
    desk.tick();
    desk.runs(a, u64::MAX);
    desk.wants(b);
    desk.tick();
    desk.at(4 * MS);
    let mut alone = false;
    let end = desk.now + 10 * MS + ms * MS;
    desk.now += 10 * MS;
    while desk.now < end {
        for (slot, gate) in desk.tick() {
            if let (true, Gate::Run { exclusive, .. }) = (slot == b, gate) {
                alone = exclusive;
            }
        }
        desk.now += measured;
        let usage = desk.book.of(b);
        (usage.busy, usage.finished) = (usage.busy + measured, usage.finished + MS);
        (usage.wants, usage.in_flight) = (true, Some(0));
        let usage = *usage;
        desk.arbiter.apply_report(b, usage, desk.now);
        // With other terms its lease is granted again, and shows whether it is exclusive.
        let weight = 1 + u32::try_from(desk.now / MS % 2).unwrap();
        desk.arbiter.set(TenantId(2), D0, Terms { weight, ..Terms::default() }, desk.now);
        desk.arbiter.request_launch(b, desk.now);
    }
    alone
}

#[test]
fn work_that_is_claimed_and_not_felt_is_not_believed_for_long() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    assert!(beside_a_claim(&mut desk, a, b, 100, MS), "what it measures is its own again");
    let charged = desk.arbiter.charged_ns(TenantId(2), D0);
    assert!(charged.abs_diff(100 * MS) <= 4 * MS, "and is paid in full: {charged}");
}

/// A member that measures next to nothing of its claimed work is not trusted for ever. When several claim at the same
/// time each pays only a part; that must not make claims cheaper.
#[test]
fn claims_are_not_believed_for_time_that_nobody_pays_for() {
    let mut desk = Desk::new(1);
    let [a, c, b] = [1, 3, 2].map(|tenant| desk.join(tenant, Terms::default()));
    for liar in [a, c] {
        desk.wants(liar);
        desk.tick();
        desk.runs(liar, u64::MAX);
        desk.wants(b);
        desk.tick();
        desk.now += 100 * MS;
        desk.tick();
    }
    let from = desk.now;
    let charged = |desk: &Desk| [1, 2, 3].map(|tenant| desk.arbiter.charged_ns(TenantId(tenant), D0));
    let before = charged(&desk);
    while desk.now < from + 10_000 * MS {
        desk.now += 10 * MS;
        for liar in [a, c] {
            desk.book.of(liar).busy += 5 * MS;
        }
        // The work of `b` uses all of the device, and was never measured alone.
        let usage = desk.book.of(b);
        (usage.busy, usage.wants, usage.in_flight) = (usage.busy + 10 * MS, true, Some(0));
        let usage = *usage;
        desk.arbiter.apply_report(b, usage, desk.now);
        desk.arbiter.request_launch(b, desk.now);
        desk.tick();
    }
    let after = charged(&desk);
    let paid = [0, 1, 2].map(|at| (after[at] - before[at]) / MS);
    assert!(paid[1] >= 7_000 || paid[0] + paid[2] >= 5_000, "of ten seconds: {paid:?}");
}

#[test]
fn work_that_others_feel_is_believed_to_its_end() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    assert!(!beside_a_claim(&mut desk, a, b, 10_000, 2 * MS), "ten seconds of a kernel that takes longer");
    let charged = desk.arbiter.charged_ns(TenantId(2), D0);
    assert!(charged.abs_diff(5_000 * MS) <= 50 * MS, "half of the time: {charged}");
    desk.book.of(a).busy = 10_000 * MS;
    desk.done(a, 0);
    desk.tick();
    let charged = desk.arbiter.charged_ns(TenantId(1), D0);
    assert!(charged.abs_diff(5_000 * MS) <= 50 * MS, "and the other half is its: {charged}");
}

#[test]
fn who_keeps_the_device_by_saying_so_pays_for_the_time() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.wants(a);
    desk.tick();
    desk.runs(a, 2_000 * MS);
    desk.wants(b);
    desk.tick();
    desk.at(4 * MS);
    // Until just before its time ends, member `a` reports that its work still runs and that it measured nothing.
    desk.now = 2_900 * MS;
    desk.done(a, 0);
    assert_eq!(runs(&desk.tick()), [b]);
    let charged = desk.arbiter.charged_ns(TenantId(1), D0);
    assert!(charged >= 2_890 * MS, "{charged}");
}

#[test]
fn who_was_a_member_under_another_arbiter_has_work_until_it_says_otherwise() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.book.of(a).in_flight = None;
    desk.arbiter.comes_back(a, 0);
    desk.wants(b);
    let next = desk.tick();
    assert!(matches!(next[..], [(slot, Gate::Run { exclusive: false, .. })] if slot == b), "{next:?}");
    desk.wants(a);
    assert!(desk.at(MS).is_empty(), "its work is still there");
    desk.now = 2 * MS;
    desk.done(a, 0);
    desk.runs(b, 0);
    desk.done(b, 2 * MS);
    let next = desk.tick();
    assert!(matches!(next.last(), Some((slot, Gate::Run { exclusive: true, .. })) if *slot == a), "{next:?}");
}
