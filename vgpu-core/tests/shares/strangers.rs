//! Floors next to processes that the arbiter takes for workers past the library: they cost all tenants in proportion.

use crate::measure;
use crate::profile::A100;
use crate::program::{MS, SECOND, US, Work};
use crate::table::floor;
use crate::world::World;
use vgpu_core::time::arbiter::DeviceId;

/// Shares of two tenants with floors of 30 and 70 %, and of processes past the library, in percent of 6 s.
///
/// `named`: the number of such processes of which the arbiter was told. `work`: so many of them work. `known`: the
/// members' undisturbed cost of their kernel, in thousandths of the true one. It is small for a kernel that was short
/// before.
fn shares_beside(named: u64, work: u64, kernel: u64, known: u64) -> [f64; 3] {
    const TENANTS: [u32; 3] = [0, 1, 9];
    let mut world = World::new(A100, 1, true, 3);
    let members = [(0, 30), (1, 70)].map(|(tenant, part)| world.member(tenant, 0, floor(part), Work::Queue { kernel }));
    world.run(2 * SECOND);
    for m in members {
        let least = &world.members[m].guest.least;
        let cost = least.guess_cost(1).as_ns() * known / 1_000;
        (0..100).for_each(|_| least.learn_cost(1, cost));
    }
    for _ in 0..work {
        world.unregistered(TENANTS[2], Work::Queue { kernel });
    }
    let now = world.now;
    world.arbiter.iter_mut().for_each(|arbiter| arbiter.works_unseen(DeviceId(0), named, &[], now));
    world.tick();
    let before = TENANTS.map(|tenant| measure::used(&world, 0, tenant));
    world.run(now + 6 * SECOND);
    let after = TENANTS.map(|tenant| measure::used(&world, 0, tenant));
    std::array::from_fn(|at| (after[at] - before[at]) as f64 * 100.0 / (6 * SECOND) as f64)
}

#[test]
fn a_process_past_the_library_takes_from_all_floors_in_proportion_and_one_that_does_nothing_takes_nothing() {
    for (named, work) in [(1, 0), (1, 1), (2, 0), (2, 2)] {
        for kernel in [50 * US, 500 * US, 5 * MS] {
            for known in [1_000, 500, 50, 1] {
                let [small, big, others] = shares_beside(named, work, kernel, known);
                let part = small * 100.0 / (small + big);
                println!(
                    "{work} of {named} work, {} us, known {known}: {small:.1} {big:.1} {others:.1}, {part:.1} %",
                    kernel / US
                );
                // Where costs are not known, a slice of a process past the library looks like a part of a kernel. The
                // device's slices fall into step with the leases of one tenant or the other, by chance of the seed:
                // with two such processes the smaller tenant has 28 to 38 %.
                let due = match (work, known) {
                    (0 | 1, 1_000) => 29.0..32.0,
                    (0 | 1, _) => 27.0..36.0,
                    (_, 1_000) => 27.0..40.0,
                    _ => continue,
                };
                assert!(due.contains(&part), "of floors of 30 and 70 %: {small:.1} and {big:.1}");
                assert!(work > 0 || small + big > 98.5, "{small:.1} and {big:.1} of a device that nobody else uses");
            }
        }
    }
}
