//! Processes that work on a device without holding it: the charges of the others meanwhile.

use super::*;

/// For a second, the only honest tenant measures 10 ms each time for launches that take `known` undisturbed, while
/// these processes run. Returns its charge.
fn charged_beside(strangers: u64, accused: &[u32], known: u64) -> u64 {
    let mut desk = measured();
    let a = desk.join(1, Terms::default());
    let slots: Vec<SlotId> = accused.iter().map(|tenant| desk.join(*tenant, Terms::default())).collect();
    desk.arbiter.works_unseen(D0, strangers, &slots, 0);
    desk.wants(a);
    desk.tick();
    for _ in 0..100 {
        desk.runs(a, MS);
        desk.tick();
        desk.now += 10 * MS;
        desk.book.of(a).known += known;
        desk.done(a, 10 * MS);
        desk.tick();
    }
    desk.arbiter.charged_ns(TenantId(1), D0)
}

#[test]
fn beside_somebody_unseen_launches_are_paid_at_their_undisturbed_cost() {
    for (strangers, accused) in [(1, &[][..]), (0, &[2]), (1, &[2, 3])] {
        assert_eq!(charged_beside(strangers, accused, 4 * MS), 400 * MS, "{strangers} and {accused:?}");
    }
}

#[test]
fn where_nobody_works_unseen_what_was_measured_is_paid_whatever_launches_are_said_to_cost() {
    assert_eq!(charged_beside(0, &[], 4 * MS), 1_000 * MS);
    assert_eq!(charged_beside(0, &[], 0), 1_000 * MS);
}

/// A pair of tenants: one works unseen, the other launches long kernels of functions that were short before.
#[test]
fn beside_one_unseen_process_a_fifth_of_what_was_measured_is_paid_whatever_launches_are_said_to_cost() {
    assert_eq!(charged_beside(0, &[2], 0), 200 * MS);
    assert_eq!(charged_beside(0, &[2, 3], 0).div_ceil(MS), 112);
}

/// As the pair above, but the launching member lets the device idle, or its begin marker waits for the other's slice.
#[test]
fn beside_one_unseen_process_pauses_of_a_member_lower_no_charge() {
    let mut desk = measured();
    let a = desk.join(1, Terms::default());
    desk.arbiter.works_unseen(D0, 1, &[], 0);
    desk.wants(a);
    desk.tick();
    for _ in 0..100 {
        desk.runs(a, MS);
        desk.tick();
        desk.now += 10 * MS;
        let usage = desk.book.of(a);
        (usage.busy, usage.in_flight) = (usage.busy + 5 * MS, Some(MS));
        desk.tick();
    }
    assert_eq!(desk.arbiter.charged_ns(TenantId(1), D0), 100 * MS, "a fifth of what was measured");
}

/// Two tenants that want the device, beside so many unseen processes. The first one has its lease.
fn two_beside(strangers: u64) -> (Desk, SlotId, SlotId) {
    let mut desk = measured();
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.arbiter.works_unseen(D0, strangers, &[], 0);
    desk.wants(a);
    desk.wants(b);
    desk.tick();
    (desk, a, b)
}

/// Next to eight processes a member pays a thirty-third of what it measures, and a lease that nothing runs in costs its
/// whole turn.
#[test]
fn beside_unseen_processes_a_lease_or_a_drain_that_was_used_is_not_taken_for_an_unused_one() {
    let (mut desk, a, b) = two_beside(8);
    desk.runs(a, 20 * MS);
    desk.at(4 * MS);
    // The drain takes longer than its allowance, because the kernel shares the device.
    desk.now = 33 * MS;
    desk.done(a, 33 * MS);
    assert_eq!(runs(&desk.tick()), [b]);
    assert_eq!(desk.arbiter.charged_ns(TenantId(1), D0).div_ceil(MS), 1);
    let seat = desk.arbiter.find(TenantId(1), D0).map(|seat| desk.arbiter.seat_at(seat)).unwrap();
    assert!(seat.virtual_time <= Seat::new(TenantId(1), D0, Terms::default(), 0).time_after(MS), "{seat:?}");
}

/// A member's last kernel ends next to a slice of the next member: its last marker comes late.
#[test]
fn beside_an_unseen_process_the_last_kernel_of_a_lease_is_paid_at_its_undisturbed_cost() {
    let (mut desk, a, b) = two_beside(1);
    desk.runs(a, 20_000);
    assert_eq!(runs(&desk.at(4 * MS)), [b], "the work of the first is about to end");
    desk.now = 8 * MS;
    desk.book.of(a).known += MS;
    desk.done(a, 4 * MS);
    assert_eq!(desk.arbiter.charged_ns(TenantId(1), D0), MS);
}

#[test]
fn no_tenant_pays_less_for_a_process_of_its_own_that_works_unseen() {
    assert_eq!(charged_beside(0, &[1], 4 * MS), 1_000 * MS);
    assert_eq!(charged_beside(1, &[2, 1], 4 * MS), 1_000 * MS);
}

#[test]
fn beside_somebody_unseen_no_gate_is_open_and_no_lease_is_exclusive() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.wants(a);
    desk.tick();
    desk.runs(a, MS);
    assert_eq!(desk.at(1_000 * MS), [(a, Gate::Open)]);
    assert_eq!((desk.arbiter.held_time(a, desk.now).held, desk.arbiter.held_time(b, desk.now).held), (1_000 * MS, 0));
    desk.arbiter.works_unseen(D0, 0, &[b], desk.now);
    assert_eq!(desk.tick(), [(a, Gate::Wait)]);
    desk.done(a, MS);
    desk.wants(a);
    assert!(matches!(desk.tick()[..], [(slot, Gate::Run { exclusive: false, .. })] if slot == a));
    desk.runs(a, MS);
    assert_eq!(desk.at(9_000 * MS), []);
    // The process that was seen working without a lease ends.
    desk.arbiter.leave_device(b, desk.now);
    assert!(matches!(desk.tick()[..], [(slot, Gate::Open)] if slot == a), "{:?}", desk.arbiter);
}

#[test]
fn a_member_had_the_device_while_it_held_it_drained_or_was_overdue() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.wants(a);
    desk.tick();
    desk.runs(a, u64::MAX);
    desk.wants(b);
    desk.tick();
    desk.at(4 * MS);
    assert_eq!(runs(&desk.at(14 * MS)), [b], "beside what is overdue");
    desk.runs(b, MS);
    desk.now = 20 * MS;
    assert_eq!([a, b].map(|slot| desk.arbiter.held_time(slot, desk.now).held), [20 * MS, 6 * MS]);
    desk.done(a, 20 * MS);
    desk.tick();
    desk.now = 30 * MS;
    assert_eq!([a, b].map(|slot| desk.arbiter.held_time(slot, desk.now).held), [20 * MS, 16 * MS]);
}

#[test]
fn a_member_that_reports_too_little_pays_for_the_time_it_holds_and_for_what_it_hid() {
    let mut desk = measured();
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    let works = |desk: &mut Desk| {
        desk.wants(a);
        desk.tick();
        desk.runs(a, MS);
        desk.tick();
        desk.now += 8 * MS;
        desk.done(a, MS);
        desk.tick();
    };
    works(&mut desk);
    let charged = |desk: &Desk| desk.arbiter.charged_ns(TenantId(1), D0);
    assert_eq!(charged(&desk), MS);
    for _ in 0..2 {
        desk.arbiter.set_underreporting(D0, &[(a, 5 * MS)], desk.now);
        assert_eq!(charged(&desk), 6 * MS, "once");
    }
    desk.arbiter.set_underreporting(D0, &[(b, 0), (a, 5 * MS)], desk.now);
    works(&mut desk);
    assert_eq!(charged(&desk), 14 * MS);
    desk.arbiter.set_underreporting(D0, &[], desk.now);
    works(&mut desk);
    assert_eq!(charged(&desk), 15 * MS, "its reports are trusted again");
}

#[test]
fn time_paid_while_reports_were_missing_is_not_paid_again_when_they_come() {
    let mut desk = measured();
    let a = desk.join(1, Terms::default());
    desk.wants(a);
    desk.tick();
    desk.runs(a, 30 * MS);
    desk.arbiter.set_underreporting(D0, &[(a, 0)], desk.now);
    for _ in 0..2 {
        desk.now += 10 * MS;
        desk.arbiter.apply_report(a, *desk.book.of(a), desk.now);
    }
    assert_eq!(desk.arbiter.charged_ns(TenantId(1), D0), 20 * MS);
    desk.now += 10 * MS;
    desk.done(a, 30 * MS);
    desk.tick();
    assert_eq!(desk.arbiter.charged_ns(TenantId(1), D0), 30 * MS);
}
