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

/// Two devices with a tenant of a gang on each, both at work, and a neighbour on each that waits. At 4 ms the leases
/// end. The kernel on device 0 waits for the gang's other member, which waits at its gate. Returns the slots of the
/// gang and of the neighbours when that gang is known to be coupled and holds both devices again.
fn coupled_gang() -> (Desk, [SlotId; 2], [SlotId; 2]) {
    let mut desk = Desk::new(2);
    let gang = [(1, 0), (2, 1)].map(|(tenant, device)| {
        let slot = join(&mut desk, tenant, device);
        desk.arbiter.set_gang(TenantId(tenant), GANG);
        slot
    });
    let neighbours = [(8, 0), (9, 1)].map(|(tenant, device)| join(&mut desk, tenant, device));
    // The arbiter does not know yet that the gang is coupled, so it gives the drained device to its neighbour.
    gang.iter().for_each(|slot| desk.wants(*slot));
    desk.tick();
    gang.iter().for_each(|slot| desk.runs(*slot, MS));
    neighbours.iter().for_each(|slot| desk.wants(*slot));
    desk.tick();
    desk.now = 4 * MS;
    desk.done(gang[1], MS);
    desk.wants(gang[1]);
    assert_eq!(runs(&desk.tick()), [neighbours[1]]);
    desk.runs(neighbours[1], MS);
    desk.at(16 * MS);
    // The neighbours' work ends, and so does the gang's.
    desk.done(neighbours[1], MS);
    desk.tick();
    desk.now = 17 * MS;
    for slot in [gang[0], gang[1], neighbours[0]] {
        desk.runs(slot, MS);
        desk.done(slot, MS);
    }
    desk.tick();
    desk.now = 18 * MS;
    gang.iter().for_each(|slot| desk.wants(*slot));
    desk.tick();
    for slot in gang {
        assert!(matches!(desk.arbiter.slot_at(slot).gate, Gate::Run { .. }), "{:?}", desk.arbiter);
        desk.runs(slot, MS);
    }
    neighbours.iter().for_each(|slot| desk.wants(*slot));
    desk.tick();
    (desk, gang, neighbours)
}

/// As [`coupled_gang`], when the work on device 0 is late again and the member on device 1 helps.
fn helped_gang() -> (Desk, [SlotId; 2], [SlotId; 2], u64) {
    let (mut desk, gang, neighbours) = coupled_gang();
    desk.now = 22 * MS;
    desk.done(gang[1], MS);
    desk.wants(gang[1]);
    assert_eq!(runs(&desk.tick()), [], "the devices are given up together");
    let mut helps = Vec::new();
    while helps.is_empty() && desk.now < 40 * MS {
        let now = desk.now + MS / 2;
        helps = desk.at(now);
    }
    let [(slot, Gate::Run { until, .. })] = helps[..] else { panic!("{helps:?}") };
    assert_eq!(slot, gang[1]);
    (desk, gang, neighbours, until)
}

#[test]
fn a_member_that_late_work_on_another_device_may_wait_for_launches_for_a_moment() {
    let (desk, _, _, until) = helped_gang();
    assert!(until - desk.now <= MS / 5, "{} ns", until - desk.now);
}

#[test]
fn the_devices_of_a_coupled_gang_are_given_up_together() {
    let (mut desk, gang, neighbours, _) = helped_gang();
    desk.now += 50_000;
    desk.runs(gang[1], 20_000);
    // The work on device 0 ends, since the other member launched. It waits at its gate again.
    desk.done(gang[0], 5 * MS);
    desk.wants(gang[0]);
    assert_eq!(runs(&desk.tick()), [], "device 1 drains");
    desk.now += 50_000;
    desk.done(gang[1], 20_000);
    desk.wants(gang[1]);
    let mut granted = runs(&desk.tick());
    granted.sort_unstable();
    assert_eq!(granted, neighbours);
}

#[test]
fn late_work_that_no_help_ends_keeps_the_devices_from_nobody() {
    let (mut desk, _, neighbours, _) = helped_gang();
    let mut granted = Vec::new();
    for _ in 0..200 {
        let now = desk.now + MS;
        granted.extend(runs(&desk.at(now)));
    }
    assert!(neighbours.iter().all(|slot| granted.contains(slot)), "{granted:?}");
}

#[test]
fn a_gang_whose_late_work_ends_by_itself_is_coupled_no_longer() {
    let (mut desk, gang, neighbours) = coupled_gang();
    desk.now = 22 * MS;
    // A long kernel: at 35 ms it is later than all that may be in flight and a drain's allowance, and not late by its
    // estimate.
    desk.runs(gang[0], 30 * MS);
    desk.done(gang[1], MS);
    desk.wants(gang[1]);
    desk.tick();
    assert_eq!(runs(&desk.at(35 * MS)), []);
    desk.done(gang[0], 13 * MS);
    desk.wants(gang[0]);
    let mut granted = runs(&desk.tick());
    granted.sort_unstable();
    assert_eq!(granted, neighbours);
    assert!(!desk.arbiter.is_coupled(desk.arbiter.slot_at(gang[0]).seat));
}
