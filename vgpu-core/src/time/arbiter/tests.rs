//! The arbiter's promises, one decision at a time. Shares in virtual time: tests/shares.

use super::device::DevicePhase;
use super::*;
use crate::units::share::Share;

mod budgets;
mod claims;
mod crosswise;
mod fair;
mod gangs;
mod histories;
mod lengths;
mod stuck;
mod unseen;
mod waiting;

const MS: u64 = 1_000_000;
const D0: DeviceId = DeviceId(0);

/// Pages that the test writes.
#[derive(Default)]
struct Book(Vec<MemberUsage>);

impl Book {
    fn of(&mut self, slot: SlotId) -> &mut MemberUsage {
        if self.0.len() <= slot.index() {
            self.0.resize(slot.index() + 1, MemberUsage { in_flight: Some(0), ..MemberUsage::default() });
        }
        &mut self.0[slot.index()]
    }
}

impl MemberPages for Book {
    fn read_usage(&mut self, slot: SlotId) -> MemberUsage {
        *self.of(slot)
    }
}

struct Desk {
    arbiter: Arbiter,
    book: Book,
    now: u64,
}

impl Desk {
    fn new(devices: u16) -> Self {
        Self { arbiter: Arbiter::new(TimeConfig::default(), devices, 0), book: Book::default(), now: 0 }
    }

    fn join(&mut self, tenant: u32, terms: Terms) -> SlotId {
        self.arbiter.join(TenantId(tenant), D0, terms, self.now)
    }

    /// Rings, and has one kernel of `ns` in flight as soon as it is admitted.
    fn wants(&mut self, slot: SlotId) {
        let now = self.now;
        *self.book.of(slot) = MemberUsage { wants: true, since: now, ..*self.book.of(slot) };
        self.arbiter.request_launch(slot, now);
    }

    fn runs(&mut self, slot: SlotId, in_flight: u64) {
        let usage = self.book.of(slot);
        (usage.wants, usage.in_flight) = (false, Some(in_flight));
    }

    fn says(&mut self, slot: SlotId, in_flight: u64) {
        self.runs(slot, in_flight);
        let usage = *self.book.of(slot);
        self.arbiter.apply_report(slot, usage, self.now);
    }

    fn done(&mut self, slot: SlotId, busy: u64) {
        let usage = self.book.of(slot);
        usage.in_flight = Some(0);
        usage.busy += busy;
        usage.finished += busy;
        let usage = *usage;
        self.arbiter.apply_report(slot, usage, self.now);
    }

    fn tick(&mut self) -> Vec<(SlotId, Gate)> {
        let mut out = Vec::new();
        self.arbiter.tick(self.now, &mut self.book, &mut out);
        out.into_iter().map(|decision| (decision.slot, decision.gate)).collect()
    }

    fn at(&mut self, now: u64) -> Vec<(SlotId, Gate)> {
        self.now = now;
        self.tick()
    }
}

fn runs(decisions: &[(SlotId, Gate)]) -> Vec<SlotId> {
    decisions.iter().filter(|(_, gate)| matches!(gate, Gate::Run { .. })).map(|(slot, _)| *slot).collect()
}

fn class(class: Class) -> Terms {
    Terms { class, ..Terms::default() }
}

#[test]
fn alone_it_gets_a_lease_without_an_end_and_later_an_open_gate() {
    let mut desk = Desk::new(1);
    let a = desk.join(1, Terms::default());
    desk.wants(a);
    let first = desk.tick();
    assert!(matches!(first[..], [(slot, Gate::Run { until: u64::MAX, .. })] if slot == a));
    desk.runs(a, MS);
    assert_eq!(desk.arbiter.next_deadline(), Some(1_000 * MS));
    assert_eq!(desk.at(1_000 * MS), [(a, Gate::Open)]);
    assert_eq!(desk.arbiter.next_deadline(), None, "nothing to do for a tenant alone");
}

#[test]
fn a_latency_tenant_beside_keeps_the_gate_from_opening() {
    let mut desk = Desk::new(1);
    let a = desk.join(1, Terms::default());
    desk.join(2, class(Class::Latency));
    desk.wants(a);
    desk.tick();
    desk.runs(a, MS);
    assert!(desk.at(5_000 * MS).is_empty());
}

#[test]
fn the_second_waits_for_the_lease_and_the_drain_and_no_longer() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.wants(a);
    desk.tick();
    desk.runs(a, 2 * MS);
    desk.now = MS;
    desk.wants(b);
    // From now on the first tenant's lease has an end.
    assert!(matches!(desk.tick()[..], [(slot, Gate::Run { until, .. })] if slot == a && until == 4 * MS));
    desk.book.of(a).busy = 4 * MS;
    assert_eq!(desk.at(4 * MS), [(a, Gate::Wait)]);
    desk.now = 4 * MS + 100_000;
    desk.says(a, 50_000);
    assert!(desk.tick().is_empty());
    desk.says(a, 30_000);
    assert_eq!(runs(&desk.tick()), [b], "with less than the overlap in flight the next one is let in");
}

#[test]
fn a_drain_longer_than_its_allowance_lets_the_next_one_in_beside_it() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.wants(a);
    desk.tick();
    desk.runs(a, u64::MAX); // longer than expected: nobody knows how much longer
    desk.wants(b);
    desk.tick();
    assert_eq!(desk.at(4 * MS), [(a, Gate::Wait)]);
    assert_eq!(desk.arbiter.next_deadline(), Some(14 * MS));
    assert!(desk.at(14 * MS - 1).is_empty());
    let next = desk.at(14 * MS);
    assert!(matches!(next[..], [(slot, Gate::Run { exclusive: false, .. })] if slot == b), "{next:?}");
    // Both members worked for 20 ms in slices of the device; the measurement of each contains the other's slices.
    desk.now = 34 * MS;
    desk.runs(b, MS);
    desk.done(a, 34 * MS);
    desk.book.of(b).busy = 20 * MS;
    desk.tick();
    let charged = |tenant| desk.arbiter.charged_ns(TenantId(tenant), D0);
    assert!(charged(1).abs_diff(34 * MS) < MS, "what it is known to have cost: {}", charged(1));
    assert!(charged(2).abs_diff(10 * MS) < MS, "half of the time beside another: {}", charged(2));
}

#[test]
fn a_launch_known_to_be_long_drains_in_its_own_time() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.wants(a);
    desk.tick();
    desk.runs(a, 200 * MS);
    desk.wants(b);
    desk.tick();
    desk.runs(a, 196 * MS);
    assert_eq!(desk.at(4 * MS), [(a, Gate::Wait)]);
    assert_eq!(desk.arbiter.next_deadline(), Some((4 + 196 + 98 + 10) * MS));
    desk.now = 199 * MS;
    desk.done(a, 199 * MS);
    assert_eq!(runs(&desk.tick()), [b]);
}

#[test]
fn a_latency_arrival_ends_other_leases_at_once() {
    for (holder, ends) in [(Class::Normal, true), (Class::Batch, true), (Class::Latency, false)] {
        let mut desk = Desk::new(1);
        let (a, b) = (desk.join(1, class(holder)), desk.join(2, class(Class::Latency)));
        let c = desk.join(3, class(holder));
        desk.wants(a);
        desk.wants(c);
        desk.tick();
        desk.runs(a, 500_000);
        desk.now = 200_000;
        desk.wants(b);
        let said = desk.tick();
        assert_eq!(said == [(a, Gate::Wait)], ends, "{holder:?}: {said:?}");
        if ends {
            desk.now = 700_000;
            desk.done(a, 700_000);
            assert_eq!(runs(&desk.tick()), [b], "and it is next, before {holder:?}");
        }
    }
}

#[test]
fn a_holder_with_nothing_wanted_and_nothing_in_flight_yields() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.wants(a);
    desk.wants(b);
    desk.tick();
    desk.runs(a, MS);
    desk.now = MS;
    desk.done(a, MS);
    let said = desk.tick();
    assert_eq!(said[0], (a, Gate::Wait));
    assert_eq!(runs(&said), [b]);
}

#[test]
fn a_used_up_ceiling_is_told_with_the_time_of_its_refill() {
    let mut desk = Desk::new(1);
    let ceiling = Terms { ceiling: Share::from_percent(10), ..Terms::default() };
    desk.now = 1_000 * MS;
    let a = desk.join(1, ceiling);
    desk.wants(a);
    desk.tick();
    desk.runs(a, 0);
    desk.now += 400 * MS;
    desk.book.of(a).wants = true;
    desk.done(a, 400 * MS);
    // 400 ms at 10 % take 4 s, less the 400 ms that passed and the burst of 50; plus half of the burst.
    assert!(
        matches!(desk.tick()[..], [(slot, Gate::Cap { until })] if slot == a && until.abs_diff(4_975 * MS) <= 10),
        "{:?}",
        desk.arbiter
    );
    assert!(desk.at(4_974 * MS).is_empty());
    assert_eq!(runs(&desk.at(4_976 * MS)), [a]);
}

#[test]
fn a_used_up_ceiling_ends_a_lease_once_somebody_waits() {
    let mut desk = Desk::new(1);
    let ceiling = Terms { ceiling: Share::from_percent(10), ..Terms::default() };
    desk.now = 1_000 * MS;
    let (a, b) = (desk.join(1, ceiling), desk.join(2, Terms::default()));
    desk.wants(a);
    assert_eq!(runs(&desk.tick()), [a]);
    desk.runs(a, 0);
    desk.now += 100 * MS;
    desk.book.of(a).wants = true;
    desk.done(a, 100 * MS);
    assert!(desk.tick().is_empty(), "its own account holds it back");
    desk.wants(b);
    let told = desk.tick();
    assert!(matches!(told[..], [(one, Gate::Cap { .. }), ..] if one == a), "{told:?}");
    assert_eq!(runs(&told), [b]);
}

#[test]
fn what_was_used_under_another_ceiling_is_not_held_against_a_tenant() {
    let mut desk = Desk::new(1);
    let of = |percent| Terms { ceiling: Share::from_percent(percent), ..Terms::default() };
    desk.now = 1_000 * MS;
    let a = desk.join(1, of(5));
    desk.wants(a);
    desk.tick();
    desk.runs(a, 0);
    desk.now += 400 * MS;
    desk.book.of(a).wants = true;
    desk.done(a, 400 * MS);
    assert!(matches!(desk.tick()[..], [(slot, Gate::Cap { .. })] if slot == a), "{:?}", desk.arbiter);
    desk.arbiter.set(TenantId(1), D0, of(90), desk.now);
    assert_eq!(runs(&desk.tick()), [a], "at once, not when a lease's worth has refilled");
}

#[test]
fn members_of_a_tenant_take_turns() {
    let mut desk = Desk::new(1);
    let members = [0; 3].map(|_| desk.join(1, Terms::default()));
    for member in members {
        desk.wants(member);
    }
    let mut order = runs(&desk.tick());
    for turn in 1..6u64 {
        let holder = order[order.len() - 1];
        desk.runs(holder, 0);
        desk.book.of(holder).wants = true;
        order.extend(runs(&desk.at(turn * 4 * MS)));
    }
    assert_eq!(order[..3], members);
    assert_eq!(order[3..], members);
}

#[test]
fn a_floor_that_is_due_goes_before_virtual_time_and_weights_divide_the_rest() {
    let mut desk = Desk::new(1);
    let a = desk.join(1, Terms { floor: Share::from_percent(80), ..Terms::default() });
    let b = desk.join(2, Terms::default());
    let mut held = [0u64; 2];
    desk.wants(a);
    desk.wants(b);
    desk.tick();
    for _ in 0..1_000 {
        let DevicePhase::Held { slot, .. } = desk.arbiter.devices[0].phase else { panic!("{:?}", desk.arbiter) };
        held[usize::from(slot == b)] += 4;
        desk.now += 4 * MS;
        let usage = desk.book.of(slot);
        (usage.wants, usage.in_flight) = (true, Some(0));
        desk.done(slot, 4 * MS);
        desk.tick();
    }
    // The floor's 80 %, and half of the remaining 20 %: 90 % of 4,000 ms.
    assert!(held[0].abs_diff(3_600) <= 20, "{held:?}");
}

#[test]
fn a_pause_costs_its_own_length_and_a_long_one_leaves_one_quantum_of_credit() {
    let config = TimeConfig::default();
    let seat = |slept: u64| {
        let mut seat = Seat::new(TenantId(1), D0, Terms::default(), 0);
        (seat.virtual_time, seat.slept) = (16 * 100 * MS, Some(slept));
        // Others are 50 ms of device time ahead.
        seat.wake_seat(16 * 150 * MS, 0, 1_000 * MS, &config);
        seat.virtual_time / 16
    };
    assert_eq!(seat(1_000 * MS), 100 * MS, "nothing is lost by a moment");
    assert_eq!(seat(990 * MS), 110 * MS, "nor more than the pause");
    assert_eq!(seat(0), 146 * MS, "nor is credit saved up beyond a quantum");
}

/// The milliseconds of `ms` that each of two tenants has the device, both of which always want it.
fn divide(desk: &mut Desk, slots: [SlotId; 2], ms: u64) -> [u64; 2] {
    let mut held = [0; 2];
    for _ in 0..ms {
        let holds =
            |slot: &SlotId| matches!(desk.arbiter.devices[0].phase, DevicePhase::Held { slot: at, .. } if at == *slot);
        let holder = slots.iter().position(holds);
        desk.now += MS;
        if let Some(at) = holder {
            held[at] += 1;
            desk.book.of(slots[at]).wants = true;
            desk.done(slots[at], MS);
        }
        desk.tick();
    }
    held
}

#[test]
fn a_rest_that_ends_twice_in_a_pause_costs_its_own_length_once() {
    let mut desk = Desk::new(1);
    let (slot, other) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    let seat = desk.arbiter.slot_at(slot).seat;
    desk.wants(other);
    desk.tick();
    // The other tenant is 500 ms of device time ahead.
    desk.arbiter.seat_at_mut(desk.arbiter.slot_at(other).seat).virtual_time = 16 * 500 * MS;
    desk.arbiter.devices[0].dirty = true;
    desk.tick();
    desk.arbiter.pause_tenant(TenantId(1), D0, true, desk.now);
    desk.arbiter.seat_at_mut(seat).slept = Some(desk.now);
    for _ in 0..2 {
        desk.now += 10 * MS;
        desk.arbiter.end_rest(seat, desk.now);
    }
    let moved = desk.arbiter.seat_at(seat).virtual_time / 16;
    assert!(moved <= 20 * MS, "{} ms for a rest of 20 ms", moved / MS);
}

#[test]
fn a_pause_of_a_tenant_that_wants_the_device_is_not_made_up_for() {
    let floor = Terms { floor: Share::from_percent(50), ..Terms::default() };
    // Late: it wants nothing when it is paused. Ends: its member ends during the pause, and another one comes.
    for (terms, is_late, ends) in
        [(Terms::default(), false, false), (floor, false, false), (floor, true, false), (Terms::default(), false, true)]
    {
        let mut desk = Desk::new(1);
        let mut slots = [desk.join(1, terms), desk.join(2, Terms::default())];
        slots.iter().skip(usize::from(is_late)).for_each(|slot| desk.wants(*slot));
        desk.tick();
        divide(&mut desk, slots, 1_000);
        desk.arbiter.pause_tenant(TenantId(1), D0, true, desk.now);
        let paused = divide(&mut desk, slots, 3_900)[0];
        if ends {
            desk.arbiter.leave_device(slots[0], desk.now);
            *desk.book.of(slots[0]) = MemberUsage { in_flight: Some(0), ..MemberUsage::default() };
            slots[0] = desk.join(1, terms);
        }
        if ends || is_late {
            desk.wants(slots[0]);
        }
        let paused = paused + divide(&mut desk, slots, 100)[0];
        desk.arbiter.pause_tenant(TenantId(1), D0, false, desk.now);
        let after = divide(&mut desk, slots, 400);
        assert!(paused <= 8, "{paused} ms of its pause");
        // A floor of half and half of the rest, or half: and no more than a lease beyond.
        let due = if terms.floor.is_some() { 300 } else { 200 };
        assert!(after[0].abs_diff(due) <= 16, "{after:?} after its pause ({terms:?}, late: {is_late}, ends: {ends})");
    }
}

#[test]
fn a_member_that_leaves_takes_its_turn_and_its_work_with_it() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.wants(a);
    desk.wants(b);
    desk.tick();
    desk.runs(a, u64::MAX);
    desk.now = MS;
    desk.arbiter.leave_device(a, MS);
    assert_eq!(runs(&desk.tick()), [b]);
    let again = desk.join(3, Terms::default());
    assert_eq!(again, a, "the slot is free again");
}

/// A tenant that waits to be first on one device keeps another one free. Nothing happens there when the wait ends.
#[test]
fn who_no_longer_waits_for_several_devices_gets_the_free_one_at_once() {
    let begin = || {
        let mut desk = Desk::new(2);
        let (holder, first) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
        let here = desk.join(3, Terms::default());
        let there = desk.arbiter.join(TenantId(3), DeviceId(1), Terms::default(), 0);
        desk.wants(holder);
        desk.tick();
        desk.runs(holder, 50 * MS);
        desk.wants(first);
        desk.wants(here);
        desk.wants(there);
        assert!(!runs(&desk.tick()).contains(&there), "it is not first on the one device, and waits for both");
        (desk, here, there)
    };
    let (mut desk, here, there) = begin();
    desk.arbiter.leave_device(here, desk.now);
    assert_eq!(runs(&desk.tick()), [there]);

    let (mut desk, _, there) = begin();
    desk.arbiter.pause_tenant(TenantId(3), D0, true, desk.now);
    assert_eq!(runs(&desk.tick()), [there]);
}

#[test]
fn where_all_is_measured_who_is_alone_keeps_its_lease_and_one_that_was_open_is_one_again() {
    let mut desk = Desk::new(1);
    let a = desk.join(1, Terms::default());
    desk.wants(a);
    desk.tick();
    desk.runs(a, MS);
    assert_eq!(desk.at(1_000 * MS), [(a, Gate::Open)]);
    desk.arbiter.set_measures_all(true);
    desk.now = 1_001 * MS;
    assert_eq!(desk.tick(), [(a, Gate::Wait)], "what went through the open gate drains first");
    desk.done(a, MS);
    desk.wants(a);
    assert!(matches!(desk.tick()[..], [(slot, Gate::Run { until: u64::MAX, wide: true, .. })] if slot == a));
    desk.runs(a, MS);
    assert_eq!(desk.at(9_000 * MS), []);
    assert_eq!(desk.arbiter.next_deadline(), None, "and nothing is to be done for it");
}

/// The gates of one slot: whether its lease has no end, and whether it is a wide one.
fn leases(decisions: &[(SlotId, Gate)], of: SlotId) -> Vec<(bool, bool)> {
    let lease = |(slot, gate): &(SlotId, Gate)| match gate {
        Gate::Run { until, wide, .. } if *slot == of => Some((*until == u64::MAX, *wide)),
        _ => None,
    };
    decisions.iter().filter_map(lease).collect()
}

fn measured() -> Desk {
    let mut desk = Desk::new(1);
    desk.arbiter.set_measures_all(true);
    desk
}

#[test]
fn where_all_is_measured_the_lease_of_who_is_alone_is_wide_until_somebody_else_wants_the_device() {
    let mut desk = measured();
    let (a, b) = (desk.join(1, Terms::default()), desk.join(2, Terms::default()));
    desk.wants(a);
    assert_eq!(leases(&desk.tick(), a), [(true, false)], "who has just come");
    // The member is idle when a wide lease is due, and makes no new request.
    desk.done(a, 0);
    desk.runs(a, 0);
    desk.tick();
    assert_eq!(desk.arbiter.next_deadline(), Some(1_000 * MS));
    assert_eq!(leases(&desk.at(1_000 * MS), a), [(true, true)], "who was alone for a second");
    desk.runs(a, 100 * MS);
    desk.now = 1_500 * MS;
    desk.wants(b);
    assert_eq!(desk.tick(), [(a, Gate::Wait)], "its quantum is long over");
    desk.now = 1_600 * MS;
    desk.done(a, 100 * MS);
    assert_eq!(leases(&desk.tick(), b), [(true, false)], "the one that came");
    desk.runs(b, MS);
    desk.wants(a);
    desk.tick();
    desk.done(b, MS);
    let now = desk.now + 10 * MS;
    assert_eq!(leases(&desk.at(now), a), [(true, false)], "and who was alone before is not");
}

#[test]
fn a_wide_lease_is_narrow_again_as_soon_as_a_latency_tenant_is_there_whether_it_wants_anything_or_not() {
    let mut desk = measured();
    let a = desk.join(1, Terms::default());
    desk.wants(a);
    desk.tick();
    desk.runs(a, MS);
    assert_eq!(leases(&desk.at(1_000 * MS), a), [(true, true)]);
    let b = desk.join(2, class(Class::Latency));
    assert_eq!(leases(&desk.tick(), a), [(true, false)]);
    desk.arbiter.leave_device(b, desk.now);
    assert_eq!(leases(&desk.tick(), a), [(true, true)]);
}

#[test]
fn under_a_ceiling_no_lease_is_wide() {
    let mut desk = measured();
    let a = desk.join(1, Terms { ceiling: Share::from_permille(900), ..Terms::default() });
    desk.wants(a);
    let mut all = leases(&desk.tick(), a);
    for at in 1..50 {
        desk.runs(a, 0);
        all.extend(leases(&desk.at(at * 100 * MS), a));
    }
    assert!(all.iter().all(|(_, wide)| !wide), "{all:?}");
}
