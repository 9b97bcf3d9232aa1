//! Launches that take far longer than their member expects: one function of many lengths.

use super::*;

/// What the member expects of each.
const EXPECTED: u64 = 50_000;

/// `a` is let in alone, `b` wants the device at once, and the lease of `a` ends at the moment that is returned, with work in
/// flight that it knows nothing of.
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

/// What was in flight is done, and took so long.
fn is_done(desk: &mut Desk, slot: SlotId, took: u64) {
    let usage = desk.book.of(slot);
    (usage.busy, usage.finished) = (usage.busy + took, usage.finished + EXPECTED);
    (usage.wants, usage.in_flight) = (false, Some(0));
    let usage = *usage;
    desk.arbiter.reports(slot, usage, desk.now);
}

#[test]
fn a_drain_waits_as_long_as_launches_took_before_whatever_is_expected_of_the_next() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    let ended = outlasts_its_lease(&mut desk, a, b);
    assert_eq!(desk.at(ended + 10 * MS - 1), []);
    assert_eq!(runs(&desk.at(ended + 10 * MS)), [b], "nobody knows it yet");
    for slot in [a, b] {
        is_done(&mut desk, slot, MS);
    }
    desk.wants(a);
    assert_eq!(runs(&desk.tick()), [a]);
    desk.now += 200 * MS;
    is_done(&mut desk, a, 200 * MS);
    let ended = outlasts_its_lease(&mut desk, a, b);
    assert_eq!(desk.at(ended + 190 * MS), [], "another one may take as long");
    desk.now = ended + 196 * MS;
    is_done(&mut desk, a, 200 * MS);
    let gates = desk.tick();
    assert!(matches!(gates[..], [(slot, Gate::Run { exclusive: true, .. })] if slot == b), "{gates:?}");
}

#[test]
fn what_a_launch_took_once_is_forgotten_and_a_latency_tenant_never_waits_for_it() {
    let after = |shorter: u32, class: Class| {
        let mut desk = Desk::new(1);
        let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms { class, ..Terms::default() }));
        desk.wants(a);
        desk.tick();
        for took in [200 * MS].into_iter().chain((0..shorter).map(|_| EXPECTED)) {
            desk.runs(a, EXPECTED);
            desk.now += took;
            is_done(&mut desk, a, took);
            desk.wants(a);
            desk.tick();
        }
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
fn who_is_let_in_beside_nothing_but_its_own_work_has_the_device_to_itself() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    let ended = outlasts_its_lease(&mut desk, a, b);
    desk.at(ended + 10 * MS);
    desk.now = ended + 11 * MS;
    desk.wants(a);
    is_done(&mut desk, b, MS);
    let mut gate = None;
    while gate.is_none() {
        let is = |one: &(SlotId, Gate)| one.0 == a && matches!(one.1, Gate::Run { .. });
        gate = desk.tick().into_iter().find(is);
        desk.now = desk.arbiter.next_deadline().unwrap_or(0).max(desk.now + 1);
    }
    assert!(matches!(gate, Some((_, Gate::Run { exclusive: true, .. }))), "{gate:?}");
}

/// Both have work before the device that outlasted their leases, and one is let in beside it: it has half of the time.
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
    // Neither is ever done, nor measured.
    while desk.now < begin + 10_000 * MS {
        for slot in [a, b] {
            desk.wants(slot);
            desk.book.of(slot).in_flight = Some(u64::MAX);
        }
        desk.tick();
        desk.now += MS;
    }
    let charged = [1, 2].map(|tenant| desk.arbiter.charged(Tenant(tenant), D0));
    assert!(charged.iter().sum::<u64>() <= desk.now + 10 * MS, "more than there was: {charged:?} of {}", desk.now);
}
