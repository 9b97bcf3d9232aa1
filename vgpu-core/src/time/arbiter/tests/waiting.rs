//! Tenants that wait for a device: for how long, and in which order.

use super::*;

/// Three tenants: `a` has the device from 0 on, `b` asks at 1 ms, `c` at 2 ms.
fn three(desk: &mut Desk, terms: [Terms; 3]) -> [SlotId; 3] {
    let slots = [(1, terms[0]), (2, terms[1]), (3, terms[2])].map(|(tenant, terms)| desk.join(tenant, terms));
    for (slot, now) in slots.into_iter().zip([0, MS, 2 * MS]) {
        desk.at(now);
        desk.wants(slot);
        desk.tick();
        if now == 0 {
            desk.runs(slot, 4 * MS);
        }
    }
    slots
}

#[test]
fn a_tenant_waits_from_its_request_to_its_lease_and_not_while_its_own_work_drains() {
    let mut desk = Desk::new(1);
    let [a, b, _] = three(&mut desk, [Terms::default(); 3]);
    desk.at(4 * MS);
    let waited = |desk: &Desk, tenant, now| desk.arbiter.waited_ns(TenantId(tenant), D0, now);
    assert_eq!([1, 2, 3].map(|tenant| waited(&desk, tenant, 4 * MS)), [0, 3 * MS, 2 * MS]);
    // The lease of `a` is over and its work drains. It asks again, which is no waiting before the drain's end.
    desk.wants(a);
    desk.book.of(a).in_flight = Some(MS);
    desk.at(5 * MS);
    assert_eq!(waited(&desk, 1, 5 * MS), 0);
    desk.done(a, 5 * MS);
    desk.book.of(a).wants = true;
    let usage = *desk.book.of(a);
    desk.arbiter.apply_report(a, usage, desk.now);
    let granted = desk.at(6 * MS);
    assert_eq!(runs(&granted), [b]);
    desk.runs(b, MS);
    assert_eq!([1, 2, 3].map(|tenant| waited(&desk, tenant, 8 * MS)), [2 * MS, 5 * MS, 6 * MS]);
    // A tenant that never was there waited for nothing.
    assert_eq!(desk.arbiter.waited_ns(TenantId(9), D0, 8 * MS), 0);
}

#[test]
fn the_queue_is_the_order_in_which_leases_are_then_granted() {
    let mut desk = Desk::new(1);
    let weak = Terms { weight: 1, ..Terms::default() };
    let slots = three(&mut desk, [weak, class(Class::Batch), class(Class::Normal)]);
    let queue = desk.arbiter.device_queue(D0, desk.now);
    let order: Vec<u32> = queue.waiting.iter().map(|waiting| waiting.tenant.0).collect();
    assert_eq!((queue.holder, &order[..]), (Some(TenantId(1)), &[3, 2][..]), "the class comes before the request");
    assert_eq!([queue.waiting[1].since, queue.waiting[0].since], [MS, 2 * MS]);
    let lease = quantum_of(&TimeConfig::default(), &Terms::default());
    assert!(queue.left > 0 && queue.left <= lease + 4 * MS, "{queue:?}");
    let mut granted = Vec::new();
    desk.done(slots[0], 4 * MS);
    for now in 3..60 {
        for slot in runs(&desk.at(now * MS)) {
            granted.push(desk.arbiter.seat_at(desk.arbiter.slot_at(slot).seat).tenant.0);
            desk.runs(slot, 0);
            desk.done(slot, MS);
        }
    }
    assert_eq!(granted, order);
    assert_eq!(desk.arbiter.device_queue(D0, desk.now).waiting, []);
}

#[test]
fn a_tenant_that_is_paused_is_last_in_the_queue_and_nobody_knows_until_when() {
    let mut desk = Desk::new(1);
    three(&mut desk, [Terms::default(); 3]);
    desk.arbiter.pause_tenant(TenantId(2), D0, true, desk.now);
    desk.tick();
    let waiting = desk.arbiter.device_queue(D0, desk.now).waiting;
    let seen: Vec<_> = waiting.iter().map(|one| (one.tenant.0, one.earliest.is_some(), one.queued)).collect();
    assert_eq!(seen, [(3, true, 1), (2, false, 1)]);
}
