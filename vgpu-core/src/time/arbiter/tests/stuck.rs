//! Members that never report that their work is done: stopped, waiting or lying ones. Their tenant waits for a
//! bounded time, and other tenants for the allowance only.

use super::*;

/// Allowance of a drain after a lease of 4 ms.
const DRAIN: u64 = 10 * MS;

fn stuck() -> u64 {
    TimeConfig::default().stuck
}

/// Ticks at each deadline until this member runs; returns when.
fn until_runs(desk: &mut Desk, slot: SlotId) -> u64 {
    for _ in 0..100 {
        if runs(&desk.tick()).contains(&slot) {
            return desk.now;
        }
        desk.now = desk.arbiter.next_deadline().expect("somebody waits").max(desk.now + 1);
    }
    panic!("never: {:?}", desk.arbiter);
}

#[test]
fn a_stopped_member_holds_up_its_own_tenant_for_a_bounded_time() {
    for claim in [Some(MS), Some(u64::MAX), None] {
        let mut desk = Desk::new(1);
        let (a, sibling) = (desk.join(1, Terms::default()), desk.join(1, Terms::default()));
        desk.wants(a);
        desk.tick();
        desk.book.of(a).wants = false;
        desk.book.of(a).in_flight = claim;
        desk.wants(sibling);
        let at = until_runs(&mut desk, sibling);
        assert!(at >= 4 * MS + DRAIN + stuck(), "its tenant has the device twice: {at}, {claim:?}");
        assert!(at <= 4 * MS + DRAIN + stuck() + 2 * MS, "{at}, {claim:?}");
    }
}

#[test]
fn beside_another_tenant_too_and_that_one_waits_for_the_allowance_only() {
    let mut desk = Desk::new(1);
    let (a, sibling) = (desk.join(1, Terms::default()), desk.join(1, Terms::default()));
    let other = desk.join(2, Terms::default());
    desk.wants(a);
    desk.tick();
    desk.runs(a, u64::MAX);
    desk.wants(sibling);
    desk.wants(other);
    assert_eq!(until_runs(&mut desk, other), 4 * MS + DRAIN);
    // The other tenant keeps working and reports it; the tenant with the stopped member gets the device again in
    // time.
    let mut at = desk.now;
    while at < 4 * MS + DRAIN + stuck() {
        desk.now = at;
        desk.book.of(other).wants = true;
        assert!(!runs(&desk.tick()).contains(&sibling), "before its time: {at}");
        at += MS;
    }
    desk.now = at;
    desk.runs(other, 0);
    desk.book.of(other).wants = true;
    let back = until_runs(&mut desk, sibling);
    assert!(back <= at + 10 * MS, "{back}");
}

/// Work that waits for another launch of its own process never ends before that launch.
#[test]
fn a_member_that_waits_for_its_own_next_launch_gets_there() {
    for beside in [false, true] {
        let mut desk = Desk::new(1);
        desk.now = 100 * MS;
        let limit = Terms { ceiling: Share::from_percent(50), ..Terms::default() };
        let (a, b) = (desk.join(1, limit), desk.join(2, Terms::default()));
        desk.wants(a);
        desk.tick();
        desk.runs(a, u64::MAX);
        desk.now += MS;
        desk.arbiter.set(TenantId(1), D0, Terms { weight: 2, ..limit }, desk.now); // ends the lease
        assert_eq!(desk.tick(), [(a, Gate::Wait)]);
        desk.wants(a);
        if beside {
            desk.wants(b);
            desk.runs(b, 0);
        }
        let at = until_runs(&mut desk, a);
        assert!(at <= 101 * MS + DRAIN + stuck() + 5 * MS, "beside another: {beside}: {at}");
    }
}

/// The member wants the device, and launches nothing, or next to nothing.
#[test]
fn who_holds_the_device_and_does_not_use_it_pays_for_it() {
    for used in [0, 10_000, MS / 10] {
        let mut desk = Desk::new(1);
        let (idler, worker) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
        let mut held = [0u64; 2];
        let mut holder = None;
        for ms in 0..2_000 {
            desk.now = ms * MS;
            for (slot, each) in [(idler, used), (worker, MS)] {
                desk.wants(slot);
                let usage = desk.book.of(slot);
                if holder == Some(slot) {
                    (usage.busy, usage.finished) = (usage.busy + each, usage.finished + each);
                }
            }
            if let Some(slot) = runs(&desk.tick()).last() {
                holder = Some(*slot);
            }
            held[usize::from(holder == Some(worker))] += 1;
        }
        assert!(held[1] >= 900, "{used} ns in each ms: {held:?}");
    }
}

/// Two members replace each other just before their leases end, with or without leaving.
#[test]
fn who_gives_the_device_to_a_sibling_unused_pays_with_its_turn() {
    for hangs_up in [false, true] {
        let mut desk = Desk::new(1);
        let mut idlers = [0; 2].map(|_| desk.join(1, Terms::default()));
        let worker = desk.join(2, Terms::default());
        let (mut held, mut holder) = ([0u64; 2], None);
        for step in 0..20_000u64 {
            desk.now = step * MS / 10;
            let at = idlers.iter().position(|&slot| holder == Some(slot) && step % 39 == 38);
            if let Some(at) = at {
                let said = MemberUsage { wants: false, in_flight: Some(0), ..MemberUsage::default() };
                *desk.book.of(idlers[at]) = said;
                desk.arbiter.apply_report(idlers[at], said, desk.now);
                if hangs_up {
                    desk.arbiter.leave_device(idlers[at], desk.now);
                    idlers[at] = desk.join(1, Terms::default());
                    *desk.book.of(idlers[at]) = said;
                }
            }
            for slot in idlers {
                if at.is_none() {
                    desk.wants(slot);
                }
            }
            desk.wants(worker);
            if holder == Some(worker) {
                let usage = desk.book.of(worker);
                (usage.busy, usage.finished) = (usage.busy + MS / 10, usage.finished + MS / 10);
            }
            if let Some(slot) = runs(&desk.tick()).last() {
                holder = Some(*slot);
            }
            held[usize::from(holder == Some(worker))] += 1;
        }
        assert!(held[1] >= 8_000, "hanging up: {hangs_up}: {held:?}");
    }
}

/// A floor given to a tenant while it was away, which had none before, must not count as an hour's debt.
#[test]
fn terms_that_change_while_nobody_is_there_hold_nothing_against_anybody() {
    let floor = |percent| Terms { floor: Share::from_percent(percent), ..Terms::default() };
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, floor(50)));
    desk.wants(a);
    desk.tick();
    desk.now = 3_600_000 * MS;
    desk.done(a, 3_600_000 * MS);
    desk.arbiter.leave_device(a, desk.now);
    desk.tick();
    let a = desk.join(1, floor(30));
    let (mut held, mut holder) = ([0u64; 2], None);
    for _ in 0..1_000 {
        desk.now += MS;
        for slot in [a, b] {
            desk.wants(slot);
            if holder == Some(slot) {
                let usage = desk.book.of(slot);
                (usage.busy, usage.finished) = (usage.busy + MS, usage.finished + MS);
            }
        }
        if let Some(slot) = runs(&desk.tick()).last() {
            holder = Some(*slot);
        }
        held[usize::from(holder == Some(b))] += 1;
    }
    assert!(held[1] >= 450, "{held:?}");
}

/// Many members that report falsely cost their tenant a bounded time each, once.
#[test]
fn what_was_waited_for_once_is_not_waited_for_again() {
    let mut desk = Desk::new(1);
    let liars = [0; 5].map(|_| desk.join(1, Terms::default()));
    let honest = desk.join(1, Terms::default());
    let said = MemberUsage { wants: true, in_flight: Some(u64::MAX / 2), ..MemberUsage::default() };
    for liar in liars {
        *desk.book.of(liar) = said;
        desk.arbiter.request_launch(liar, 0);
    }
    desk.wants(honest);
    let first = until_runs(&mut desk, honest);
    let each = 3 * TimeConfig::default().stuck / 2 + DRAIN + stuck() + 5 * MS;
    assert!(first <= 5 * each, "{first}");
    for round in 0..10 {
        desk.runs(honest, 0);
        desk.now += 4 * MS;
        desk.tick();
        desk.wants(honest);
        let before = desk.now;
        let at = until_runs(&mut desk, honest);
        assert!(at - before <= 5 * (4 * MS + DRAIN) + 5 * MS, "round {round}: {}", at - before);
    }
}

/// A member that was admitted again next to its own work counts once, and does not hold up its tenant a second time.
#[test]
fn what_stays_stuck_is_overdue_once() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.wants(a);
    desk.tick();
    desk.runs(a, u64::MAX);
    desk.book.of(a).wants = true;
    let mut turns = [0u64; 2];
    for ms in 0..10_000 {
        desk.now = ms * MS;
        desk.wants(b);
        desk.wants(a);
        desk.runs(b, 0);
        *desk.book.of(b) = MemberUsage { wants: true, busy: ms * MS / 2, finished: ms * MS / 2, ..*desk.book.of(b) };
        for slot in runs(&desk.tick()) {
            turns[usize::from(slot == b)] += u64::from(ms > 6_000);
        }
    }
    assert!(turns[0] > 20 && turns[1] > 20, "both go on: {turns:?}");
    desk.done(a, 10_000 * MS);
    desk.tick();
    assert_eq!(
        desk.arbiter.tenant_standing(TenantId(1), D0, desk.now).map(|s| s.state == StandingState::Overdue),
        Some(false)
    );
    assert!(desk.arbiter.devices[0].overdue.is_empty(), "{:?}", desk.arbiter.devices[0]);
}
