//! A gang on several devices gets all its leases in one tick, with the devices in order, and no tenant blocks. A gang
//! is one tenant, or several with the same number.

use proptest::prelude::*;

use crate::measure;
use crate::profile::A100;
use crate::program::{MS, SECOND, Work};
use crate::table::weight;
use crate::world::World;
use vgpu_core::time::arbiter::{GangId, Gate, TenantId};

fn queue() -> Work {
    Work::Queue { kernel: MS }
}

fn join_gang(world: &mut World, gang: u32, tenants: impl IntoIterator<Item = u32>) {
    let arbiter = world.arbiter.as_mut().unwrap();
    tenants.into_iter().for_each(|tenant| arbiter.set_gang(TenantId(tenant), Some(GangId(gang))));
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

/// Four tenants, one on each of four devices, each next to a neighbour. Returns the tenants' mean share, the
/// neighbours' mean share, and the least busy device.
fn four_ranks(is_gang: bool, kernels: [u64; 4]) -> [f64; 3] {
    let mut world = World::new(A100, 4, true, 1);
    for (device, kernel) in kernels.into_iter().enumerate() {
        let rank = u32::try_from(device).unwrap();
        world.member(rank, device, weight(1), queue());
        world.member(10 + rank, device, weight(1), Work::Queue { kernel });
    }
    if is_gang {
        join_gang(&mut world, 7, 0..4);
    }
    world.run(20 * SECOND);
    let mean = |first: u32| (0..4).map(|at| measure::share(&world, at as usize, first + at)).sum::<f64>() / 4.0;
    let least = (0..4).map(|device| measure::busy(&world, device, 0)).fold(100.0, f64::min);
    [mean(0), mean(10), least]
}

#[test]
fn the_cost_of_a_gang_to_its_neighbours_is_bounded_and_printed() {
    for (name, kernels, least_neighbour, least_busy) in [
        ("neighbours with kernels of 1 ms", [MS; 4], 44.0, 92.0),
        ("one neighbour with kernels of 20 ms", [MS, MS, MS, 20 * MS], 38.0, 70.0),
    ] {
        let (alone, gang) = (four_ranks(false, kernels), four_ranks(true, kernels));
        println!(
            "| {name} | {:.1} / {:.1} / {:.1} | {:.1} / {:.1} / {:.1} |",
            alone[0], alone[1], alone[2], gang[0], gang[1], gang[2]
        );
        assert!(gang[1] >= least_neighbour && gang[2] >= least_busy, "{name}: {gang:.1?}");
    }
}

#[test]
fn ranks_in_several_containers_of_one_gang_run_at_the_same_time() {
    let together = |is_gang: bool| {
        let mut world = World::new(A100, 2, true, 1);
        world.log = Some(Vec::new());
        for rank in 0..2u32 {
            world.member(rank, rank as usize, weight(1), queue());
            world.member(10 + rank, rank as usize, weight(1), queue());
        }
        if is_gang {
            join_gang(&mut world, 7, 0..2);
        }
        world.run(20 * SECOND);
        let [one, other] = [grants(&world, 0), grants(&world, 1)];
        let late = one.iter().filter(|grant| grant.0 > SECOND);
        let both = late.clone().filter(|grant| other.iter().any(|with| with.0 == grant.0)).count();
        both * 100 / late.count()
    };
    let (alone, gang) = (together(false), together(true));
    println!("| both ranks get the device in one tick: {alone} % of leases, as a gang {gang} % |");
    assert!(gang >= 90 && alone <= 50, "{alone} %, as a gang {gang} %");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Up to six tenants on random devices, in random gangs: each gets time on each of its devices.
    #[test]
    fn for_any_overlap_of_gangs_each_tenant_goes_on(
        tenants in prop::collection::vec((1..16_usize, prop::option::of(0..3_u32)), 1..7),
        seed: u64,
    ) {
        let mut world = World::new(A100, 4, true, seed % 1_000);
        let mut seats = Vec::new();
        for (tenant, (devices, gang)) in (0..).zip(&tenants) {
            for device in (0..4).filter(|device| devices >> device & 1 == 1) {
                world.member(tenant, device, weight(1), queue());
                seats.push((tenant, device));
            }
            gang.iter().for_each(|gang| join_gang(&mut world, *gang, [tenant]));
        }
        world.run(6 * SECOND);
        for (tenant, device) in seats {
            let got = measure::share(&world, device, tenant);
            prop_assert!(got >= 2.0, "tenant {tenant} on device {device}: {got:.1} of {tenants:?}");
        }
    }
}
