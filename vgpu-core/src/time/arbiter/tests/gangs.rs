//! Tenants of one gang get their leases in one tick, or none of them gets one.

use super::*;

const GANG: Option<GangId> = Some(GangId(7));

/// Three devices. The gang's tenants 1, 2 and 3 have a member on devices 2, 1 and 0.
fn gang() -> (Desk, [SlotId; 3]) {
    let mut desk = Desk::new(3);
    let slots = [(1, 2), (2, 1), (3, 0)].map(|(tenant, device)| {
        let slot = join(&mut desk, tenant, device);
        desk.arbiter.set_gang(TenantId(tenant), GANG);
        slot
    });
    (desk, slots)
}

fn join(desk: &mut Desk, tenant: u32, device: u16) -> SlotId {
    desk.arbiter.join(TenantId(tenant), DeviceId(device), Terms::default(), desk.now)
}

#[test]
fn tenants_of_one_gang_get_all_their_devices_in_one_tick_in_order() {
    let (mut desk, slots) = gang();
    slots.iter().for_each(|slot| desk.wants(*slot));
    let [last, middle, first] = slots;
    assert_eq!(runs(&desk.tick()), [first, middle, last]);
}

#[test]
fn while_a_device_of_a_gang_is_held_none_of_its_tenants_runs_and_the_free_devices_are_lent() {
    let (mut desk, slots) = gang();
    let (holder, other) = (join(&mut desk, 8, 1), join(&mut desk, 9, 0));
    desk.wants(holder);
    desk.tick();
    desk.runs(holder, 3 * MS);
    slots.iter().for_each(|slot| desk.wants(*slot));
    assert_eq!(runs(&desk.tick()), [holder], "its lease gets an end; nobody of the gang runs");
    desk.wants(other);
    let lent = desk.tick();
    assert!(
        matches!(lent[..], [(slot, Gate::Run { until, .. })] if slot == other && until <= 4 * MS),
        "until the last device is expected: {lent:?}"
    );
    desk.runs(other, MS);
    desk.now = MS;
    desk.done(other, MS);
    assert_eq!(runs(&desk.tick()), []);
    desk.done(holder, 3 * MS);
    desk.now = 3 * MS;
    let granted = runs(&desk.tick());
    assert_eq!(granted, [slots[2], slots[1], slots[0]]);
}

#[test]
fn a_tenant_that_left_its_gang_waits_for_nobody() {
    let (mut desk, slots) = gang();
    let holder = join(&mut desk, 8, 1);
    desk.wants(holder);
    desk.tick();
    desk.runs(holder, 3 * MS);
    slots.iter().for_each(|slot| desk.wants(*slot));
    desk.tick();
    desk.arbiter.set_gang(TenantId(1), None);
    assert_eq!(runs(&desk.tick()), [slots[0]]);
    desk.arbiter.leave_device(slots[1], desk.now);
    assert_eq!(runs(&desk.tick()), [slots[2]], "the last of the gang wants one device");
}

#[test]
fn of_a_gangs_tenants_on_one_device_each_gets_its_turn() {
    let mut desk = Desk::new(2);
    let slots = [(1, 0), (2, 0), (3, 1)].map(|(tenant, device)| {
        let slot = join(&mut desk, tenant, device);
        desk.arbiter.set_gang(TenantId(tenant), GANG);
        slot
    });
    let neighbour = join(&mut desk, 9, 1);
    let mut turns = [0; 4];
    for _ in 0..200 {
        let all = [slots[0], slots[1], slots[2], neighbour];
        all.iter().for_each(|slot| desk.wants(*slot));
        for slot in runs(&desk.tick()) {
            turns[all.iter().position(|own| *own == slot).unwrap()] += 1;
            desk.runs(slot, MS);
            desk.now += MS;
            desk.done(slot, MS);
        }
        desk.now += MS;
    }
    assert!(turns.iter().all(|turns| *turns > 40), "{turns:?}");
}
