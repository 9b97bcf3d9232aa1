//! Launches that take far longer than their member expects: one function with launches of many lengths.

use super::*;

/// The member's estimate for each launch.
const EXPECTED: u64 = 50_000;

/// `a` is admitted alone and `b` wants the device at once. The lease of `a` ends at the returned time, with work in
/// flight that it has no estimate for.
fn outlasts_its_lease(desk: &mut Desk, a: SlotId, b: SlotId) -> u64 {
    desk.wants(a);
    desk.tick();
    desk.runs(a, u64::MAX);
    desk.wants(b);
    while !desk.tick().contains(&(a, Gate::Wait)) {
        desk.now += MS;
    }
    desk.now
}

/// The member reports that its work completed after `took` ns, and that it wants nothing more.
fn report_done(desk: &mut Desk, slot: SlotId, took: u64) {
    let usage = desk.book.of(slot);
    (usage.busy, usage.finished) = (usage.busy + took, usage.finished + EXPECTED);
    (usage.wants, usage.in_flight) = (false, Some(0));
    let usage = *usage;
    desk.arbiter.apply_report(slot, usage, desk.now);
}

#[test]
fn a_drain_waits_as_long_as_launches_took_before_whatever_is_expected_of_the_next() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    let ended = outlasts_its_lease(&mut desk, a, b);
    assert_eq!(desk.at(ended + 10 * MS - 1), []);
    assert_eq!(runs(&desk.at(ended + 10 * MS)), [b], "nobody knows it yet");
    // The work of `a` ran next to that of `b` for all but its first part.
    desk.now = ended + 300 * MS;
    report_done(&mut desk, b, 150 * MS);
    report_done(&mut desk, a, 300 * MS);
    desk.tick();
    let ended = outlasts_its_lease(&mut desk, a, b);
    assert_eq!(desk.at(ended + 190 * MS), [], "another one may take as long");
    desk.now = ended + 196 * MS;
    report_done(&mut desk, a, 200 * MS);
    let gates = desk.tick();
    assert!(matches!(gates[..], [(slot, Gate::Run { exclusive: true, .. })] if slot == b), "{gates:?}");
}

#[test]
fn what_a_launch_took_once_is_forgotten_and_a_latency_tenant_never_waits_for_it() {
    let after = |shorter: u32, class: Class| {
        let mut desk = Desk::new(1);
        let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms { class, ..Terms::default() }));
        desk.arbiter.slot_at_mut(a).learn_stretch(200 * MS, EXPECTED);
        for _ in 0..shorter {
            desk.arbiter.slot_at_mut(a).learn_stretch(EXPECTED, EXPECTED);
        }
        desk.wants(a);
        desk.tick();
        desk.runs(a, u64::MAX);
        desk.wants(b);
        let begin = desk.now;
        while !runs(&desk.tick()).contains(&b) {
            desk.now = desk.arbiter.next_deadline().unwrap().max(desk.now + 1);
        }
        desk.now - begin
    };
    assert!(after(0, Class::Normal) > 200 * MS);
    assert!(after(1_000, Class::Normal) < 30 * MS, "a thousand that were short");
    assert!(after(0, Class::Latency) < 15 * MS);
}

#[test]
fn no_drain_is_allowed_an_hour_for_what_was_learned() {
    let mut desk = Desk::new(1);
    let a = desk.join(1, Terms::default());
    let slot = desk.arbiter.slot_at_mut(a);
    slot.learn_stretch(3_600_000 * MS, EXPECTED);
    assert_eq!(slot.work_lasts(0), 2_000 * MS);
}

/// The kernel of a member runs until another member of the same tenant has run. The drain is given up after two
/// seconds, so that the other can run.
#[test]
fn of_what_waited_for_its_own_tenant_nothing_is_learned() {
    let mut desk = Desk::new(1);
    let (a, sibling) = (desk.join(1, Terms::default()), desk.join(1, Terms::default()));
    let begin = outlasts_its_lease(&mut desk, a, sibling);
    for _ in 0..3_000 {
        if runs(&desk.tick()).contains(&sibling) {
            break;
        }
        desk.now += MS;
    }
    let waited = desk.now - begin;
    assert!((2_000 * MS..2_050 * MS).contains(&waited), "{waited}");
    report_done(&mut desk, a, waited);
    assert_eq!(desk.arbiter.slot_at(a).longest.get(), 0);
}

/// One kernel is followed by another that never ends; the end of the first counts as progress.
#[test]
fn what_never_ends_is_waited_for_again_only_for_a_while_after_it_moved_on() {
    let mut desk = Desk::new(1);
    let a = desk.join(1, Terms::default());
    let slot = desk.arbiter.slot_at_mut(a);
    slot.learn_stretch(200 * MS, EXPECTED);
    slot.overdue = Some(MS);
    slot.moved = 1_000 * MS;
    assert_eq!(slot.work_lasts(1_000 * MS), 200 * MS);
    assert_eq!(slot.work_lasts(1_399 * MS), 200 * MS);
    assert_eq!(slot.work_lasts(1_400 * MS), 0);
}

/// Under a wide lease a quarter of a second is measured at once, of launches of 50 us.
#[test]
fn a_thousand_launches_that_took_what_was_expected_are_not_one_long_one() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.wants(a);
    desk.tick();
    desk.runs(a, MS);
    desk.now += 250 * MS;
    desk.done(a, 250 * MS);
    let ended = outlasts_its_lease(&mut desk, a, b);
    assert_eq!(runs(&desk.at(ended + 10 * MS)), [b], "the allowance is what it was");
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.wants(a);
    desk.tick();
    desk.runs(a, MS);
    desk.now += 250 * MS;
    desk.done(a, 250 * MS);
    outlasts_its_lease(&mut desk, a, b);
    desk.says(a, 30_000);
    assert_eq!(runs(&desk.tick()), [b], "its end can be foretold");
}

#[test]
fn who_is_let_in_beside_nothing_but_its_own_work_has_the_device_to_itself() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    let ended = outlasts_its_lease(&mut desk, a, b);
    desk.at(ended + 10 * MS);
    desk.now = ended + 11 * MS;
    desk.wants(a);
    report_done(&mut desk, b, MS);
    let mut gate = None;
    while gate.is_none() {
        let is = |one: &(SlotId, Gate)| one.0 == a && matches!(one.1, Gate::Run { .. });
        gate = desk.tick().into_iter().find(is);
        desk.now = desk.arbiter.next_deadline().unwrap_or(0).max(desk.now + 1);
    }
    assert!(matches!(gate, Some((_, Gate::Run { exclusive: true, .. }))), "{gate:?}");
}

/// Both members have work on the device that outlasted their leases, and one is admitted again next to it: it gets
/// half of the time.
#[test]
fn who_is_let_in_beside_its_own_work_and_anothers_pays_its_part_of_the_time() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    let ended = outlasts_its_lease(&mut desk, a, b);
    assert_eq!(runs(&desk.at(ended + 10 * MS)), [b]);
    let begin = desk.now;
    for slot in [a, b] {
        desk.runs(slot, u64::MAX);
    }
    // Neither is ever done, or measured.
    while desk.now < begin + 10_000 * MS {
        for slot in [a, b] {
            desk.wants(slot);
            desk.book.of(slot).in_flight = Some(u64::MAX);
        }
        desk.tick();
        desk.now += MS;
    }
    let charged = [1, 2].map(|tenant| desk.arbiter.charged_ns(TenantId(tenant), D0));
    assert!(charged.iter().sum::<u64>() <= desk.now + 10 * MS, "more than there was: {charged:?} of {}", desk.now);
}

/// No launch is expected to take as long, but a graph may.
#[test]
fn a_launch_of_five_seconds_is_paid_back_in_full() {
    let mut seat = super::seat::Seat::new(TenantId(1), D0, Terms::default(), 0);
    let before = seat.virtual_time;
    seat.spend_time(5_000 * MS, 5_000 * MS, before, 0);
    assert_eq!(seat.virtual_time - before, 5_000 * MS * crate::time::account::TICKS_PER_NS);
}
