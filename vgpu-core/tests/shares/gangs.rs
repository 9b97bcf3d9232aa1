//! A tenant on several devices gets all its leases in one tick, with the devices in order, and no tenant blocks.

use crate::measure;
use crate::profile::A100;
use crate::program::{MS, SECOND, Work};
use crate::table::weight;
use crate::world::World;
use vgpu_core::time::arbiter::{Gate, TenantId};

fn queue() -> Work {
    Work::Queue { kernel: MS }
}

/// Grants of a tenant: time and device of each.
fn grants(world: &World, tenant: u32) -> Vec<(u64, u16)> {
    let mut leases = Vec::new();
    let mut last = std::collections::BTreeMap::new();
    for (at, decision) in world.log.as_ref().unwrap() {
        if decision.tenant == TenantId(tenant)
            && let Gate::Run { lease, .. } = decision.gate
            && last.insert(decision.device, lease) != Some(lease)
        {
            leases.push((*at, decision.device.0));
        }
    }
    leases
}

#[test]
fn a_tenant_on_two_devices_gets_both_in_one_tick_in_order() {
    let mut world = World::new(A100, 2, true, 1);
    world.log = Some(Vec::new());
    world.member(0, 0, weight(1), queue());
    world.member(0, 1, weight(1), queue());
    world.member(1, 0, weight(1), queue());
    world.member(2, 1, weight(1), queue());
    world.run(20 * SECOND);
    let grants = grants(&world, 0);
    assert!(grants.len() > 1_000, "{}", grants.len());
    let late: Vec<_> = grants.iter().filter(|grant| grant.0 > SECOND).collect();
    let together = late.windows(2).filter(|pair| pair[0].0 == pair[1].0 && (pair[0].1, pair[1].1) == (0, 1)).count();
    // In the remaining cases one of its members was not waiting at the gate.
    assert!(together * 2 * 100 >= late.len() * 90, "{together} pairs of {} grants", late.len());
    for (device, tenant) in [(0, 1), (1, 2)] {
        let (gang, other) = (measure::share(&world, device, 0), measure::share(&world, device, tenant));
        println!(
            "| gang on device {device}: {gang:.1} beside {other:.1}, busy {:.1} |",
            measure::busy(&world, device, 0)
        );
        assert!((gang - other).abs() <= 6.0, "device {device}: {gang:.1} and {other:.1}");
        assert!(measure::busy(&world, device, 0) >= 90.0);
    }
}

#[test]
fn gangs_that_overlap_in_a_ring_all_go_on() {
    let mut world = World::new(A100, 3, true, 1);
    for tenant in 0..3u32 {
        let devices = [tenant as usize, (tenant as usize + 1) % 3];
        for device in devices {
            world.member(tenant, device, weight(1), queue());
        }
    }
    world.run(20 * SECOND);
    for tenant in 0..3 {
        for device in [tenant as usize, (tenant as usize + 1) % 3] {
            let got = measure::share(&world, device, tenant);
            assert!(got >= 20.0, "tenant {tenant} on device {device}: {got:.1}");
        }
    }
}

#[test]
fn a_gang_beside_a_crowd_is_not_starved() {
    let mut world = World::new(A100, 2, true, 1);
    world.member(0, 0, weight(1), queue());
    world.member(0, 1, weight(1), queue());
    for tenant in 1..8 {
        world.member(tenant, 0, weight(1), queue());
    }
    world.member(9, 1, weight(1), Work::Queue { kernel: 20 * MS });
    world.run(30 * SECOND);
    let got = measure::share(&world, 0, 0);
    assert!(got >= 8.0, "one of eight: {got:.1}");
    let busy = [0, 1].map(|device| measure::busy(&world, device, 0));
    println!("| gang among eight: {got:.1}, busy {busy:.1?} |");
    // Launches of 20 ms on one device make the other one wait from time to time.
    assert!(busy[0] >= 85.0 && busy[1] >= 98.0, "{busy:?}");
}
