//! No tenant is left out for long, whatever the others used, and no tenant gets anything for free.

use super::*;

/// All members work without a pause for this many seconds, in kernels of 1 ms, or hold the device and launch nothing.
/// Returns how many milliseconds each had the device.
fn busy<const N: usize>(desk: &mut Desk, members: [(SlotId, bool); N], seconds: u64) -> [u64; N] {
    let (mut held, mut holder) = ([0u64; N], None);
    for _ in 0..seconds * 1_000 {
        desk.now += MS;
        for (at, (slot, works)) in members.into_iter().enumerate() {
            if holder == Some(slot) {
                held[at] += 1;
                let usage = desk.book.of(slot);
                (usage.busy, usage.finished) =
                    if works { (usage.busy + MS, usage.finished + MS) } else { (usage.busy, usage.finished) };
            }
            desk.wants(slot);
        }
        for (slot, gate) in desk.tick() {
            match gate {
                Gate::Run { .. } | Gate::Open => holder = Some(slot),
                _ if holder == Some(slot) => holder = None,
                _ => {}
            }
        }
    }
    held
}

/// Virtual times of different classes are not comparable: the usage of a class that waits is no measure for a class
/// that goes before it.
#[test]
fn two_of_class_latency_share_the_device_beside_a_program_that_waits() {
    for (weights, least) in [([1, 1], [450, 450]), ([7, 1], [820, 90]), ([1, 16], [45, 850])] {
        let mut desk = Desk::new(1);
        let of = |weight| Terms { weight, ..class(Class::Latency) };
        let (a, b) = (desk.join(1, of(weights[0])), desk.join(2, of(weights[1])));
        let c = desk.join(3, Terms::default());
        busy(&mut desk, [(a, true), (b, true), (c, true)], 60);
        let held = busy(&mut desk, [(a, true), (b, true), (c, true)], 30);
        assert!(held[0] >= 30 * least[0] && held[1] >= 30 * least[1], "{weights:?}: {held:?}");
        assert!(held[2] > 0, "and the program gets on: {held:?}");
    }
}

/// A tenant that was far behind and holds the device until it is not has used all of that time, even if it is charged
/// at once.
#[test]
fn what_is_paid_at_once_is_paid_in_full() {
    let mut desk = Desk::new(1);
    let (a, b) = (desk.join(1, Terms { weight: 16, ..Terms::default() }), desk.join(2, Terms::default()));
    busy(&mut desk, [(a, true), (b, true)], 1);
    let seat = desk.arbiter.slot_at(b).seat;
    desk.arbiter.pay_for_seat(seat, 5_000 * MS);
    let held = busy(&mut desk, [(a, false), (b, true)], 100);
    assert!(held[1] >= 500, "5 s of weight 1 are 80 s of weight 16: {held:?}");
}

/// In a new class a tenant starts where that class's tenants are, and its lead over others counts for less under a
/// larger weight.
#[test]
fn who_is_given_another_class_or_weight_is_neither_left_out_nor_preferred() {
    let terms = |class, weight| Terms { class, weight, ..Terms::default() };
    for (first, then) in [
        (terms(Class::Latency, 1), terms(Class::Normal, 1)),
        (terms(Class::Normal, 1), terms(Class::Latency, 1)),
        (terms(Class::Normal, 1), terms(Class::Normal, 100)),
    ] {
        let mut desk = Desk::new(1);
        let (a, b) = (desk.join(1, first), desk.join(2, Terms { weight: then.weight, ..terms(then.class, 1) }));
        busy(&mut desk, [(a, true), (b, true)], 30);
        let seat = desk.arbiter.slot_at(a).seat;
        desk.arbiter.pay_for_seat(seat, 9_000 * MS);
        desk.arbiter.set(TenantId(1), D0, then, desk.now);
        busy(&mut desk, [(a, true), (b, true)], 1 + 9);
        let held = busy(&mut desk, [(a, true), (b, true)], 10);
        assert!(held.iter().all(|&ms| ms >= 4_500), "{first:?}, {then:?}: {held:?}");
    }
}
