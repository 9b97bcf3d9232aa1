//! Several tenants on one device: weights, floors, strict shares, mixed lengths.

use crate::measure;
use crate::profile::{self, A100, H200};
use crate::program::{MS, SECOND, US, Work};
use crate::table::{KERNELS, Row, ceiling, floor, name, strict, weight};
use crate::world::World;
use vgpu_core::time::arbiter::Terms;

/// Kernel lengths that differ by a factor of four thousand.
const LENGTHS: &[u64] = &[50 * US, MS, 5 * MS, 20 * MS, 200 * MS];

fn queue(kernel: u64) -> Work {
    Work::Queue { kernel }
}

#[test]
fn table_of_pairs_by_weight() {
    for kernel in KERNELS {
        for (a, b) in [(1, 1), (30, 70), (10, 90)] {
            let due = f64::from(a) * 100.0 / f64::from(a + b);
            Row::new(format!("{a}:{b} by weight, both {}", name(kernel)))
                .party(weight(a), queue(kernel), due)
                .party(weight(b), queue(kernel), 100.0 - due)
                .keep();
        }
    }
}

#[test]
fn table_of_pairs_with_different_kernels() {
    for (short, long) in [(50 * US, 5 * MS), (MS, 20 * MS), (50 * US, 100 * MS), (MS, 200 * MS), (5 * MS, SECOND)] {
        for (a, b) in [(1, 1), (30, 70), (70, 30), (10, 90), (90, 10)] {
            let due = f64::from(a) * 100.0 / f64::from(a + b);
            Row::new(format!("{a}:{b} by weight, {} and {}", name(short), name(long)))
                .party(weight(a), queue(short), due)
                .party(weight(b), queue(long), 100.0 - due)
                .keep();
        }
    }
}

#[test]
fn table_of_floors_and_of_strict_shares() {
    for kernel in [50 * US, MS, 20 * MS, 200 * MS] {
        for (a, b) in [(30, 70), (10, 90)] {
            let (da, db) = (f64::from(a), f64::from(b));
            Row::new(format!("floors {a} + {b}, both {}", name(kernel)))
                .party(floor(a), queue(kernel), da)
                .party(floor(b), queue(kernel), db)
                .keep();
        }
        let mut row = Row::new(format!("strict 30 + 40, both {}", name(kernel)));
        row.backlog = false;
        row.party(strict(30), queue(kernel), 30.0).party(strict(40), queue(kernel), 40.0).keep();
        Row::new(format!("ceiling 30 beside one without, both {}", name(kernel)))
            .party(ceiling(30), queue(kernel), 30.0)
            .party(Terms::default(), queue(kernel), 70.0)
            .keep();
        Row::new(format!("floor 60 beside two, weights 2 : 1 : 1, all {}", name(kernel)))
            .party(Terms { weight: 2, ..floor(60) }, queue(kernel), 80.0)
            .party(weight(1), queue(kernel), 10.0)
            .party(weight(1), queue(kernel), 10.0)
            .keep();
        Row::new(format!("floors 40 + 30, weights 1 : 1, both {}", name(kernel)))
            .party(floor(40), queue(kernel), 55.0)
            .party(floor(30), queue(kernel), 45.0)
            .keep();
    }
}

#[test]
fn a_ceiling_is_used_in_full_beside_a_neighbour_with_long_kernels() {
    for (limit, mine, theirs) in [(30, 5 * MS, 200 * MS), (10, MS, 200 * MS), (30, MS, SECOND), (40, 20 * MS, 200 * MS)]
    {
        Row::new(format!("ceiling {limit} with {} beside {}", name(mine), name(theirs)))
            .party(ceiling(limit), queue(mine), f64::from(limit))
            .party(Terms::default(), queue(theirs), 100.0 - f64::from(limit))
            .keep();
    }
}

#[test]
fn table_of_many_tenants() {
    for profile in profile::ALL {
        for kernel in [50 * US, MS, 20 * MS, 200 * MS] {
            let mut row = Row::new(format!("4 x 25, all {}, {}", name(kernel), profile.name));
            row.profile = profile;
            for _ in 0..4 {
                row = row.party(strict(25), queue(kernel), 25.0);
            }
            // Ceilings that add up to the whole device leave no time for handovers.
            row.backlog = false;
            row.keep();
        }
    }
    let works =
        [queue(50 * US), queue(MS), queue(5 * MS), queue(20 * MS), queue(200 * US), queue(2 * MS), queue(10 * MS)];
    for profile in [A100, H200] {
        let mut row = Row::new(format!("seven, weights 1..7, 50 us to 20 ms, {}", profile.name));
        row.profile = profile;
        for (at, work) in (1u32..).zip(works.clone()) {
            row = row.party(weight(at), work, f64::from(at) * 100.0 / 28.0);
        }
        row.keep();
    }
}

/// One function whose launches differ by a factor of four thousand, so the length of the next one is not known in
/// advance.
#[test]
fn table_of_pairs_whose_one_function_takes_50_us_to_200_ms() {
    let mixed = || Work::Mixed { kernels: LENGTHS, one_function: true };
    for (a, b) in [(1, 1), (30, 70), (10, 90)] {
        let due = f64::from(a) * 100.0 / f64::from(a + b);
        Row::new(format!("{a}:{b} by weight, both 50 us to 200 ms in one function"))
            .party(weight(a), mixed(), due)
            .party(weight(b), mixed(), 100.0 - due)
            .keep();
    }
}

/// The shortest length comes first. Forty launches with that estimate would be seconds of work if they are long. Both
/// tenants' work would then run at the same time, neither length could be measured, and one tenant would pay for it
/// equally long. So the gate admits only as many launches as measurements permit, and the shares hold from the first
/// second on.
#[test]
fn lengths_in_turn_are_shared_exactly_from_the_beginning() {
    for (a, b) in [(1, 1), (30, 70), (10, 90)] {
        let mut world = World::new(A100, 1, true, 1);
        for (tenant, parts) in [(0, a), (1, b)] {
            world.member(tenant, 0, weight(parts), Work::InTurn { kernels: LENGTHS });
        }
        let share = |world: &World, tenant| measure::share(world, 0, tenant) / 100.0 * world.now as f64;
        let due = f64::from(a) * 100.0 / f64::from(a + b);
        // From the second half of the first second on, with a tolerance of one launch of 200 ms.
        let mut from = SECOND / 2;
        world.run(from);
        for (until, most) in [(10 * SECOND, 2.5), (50 * SECOND, 1.0)] {
            let before = [0, 1].map(|tenant| share(&world, tenant));
            world.run(until);
            let had = [share(&world, 0) - before[0], share(&world, 1) - before[1]];
            let had = had.map(|ns| ns / (until - from) as f64 * 100.0);
            let error = had[0] * 100.0 / (had[0] + had[1]) - due;
            println!("| {a}:{b}, lengths in turn from {from} | {:.2} of {due:.2} | {:.2} |", had[0], had[0] + had[1]);
            assert!(error.abs() <= most, "{a}:{b} from {from}: {had:?}");
            assert!(had[0] + had[1] >= 98.0, "{a}:{b} from {from}: {had:?}");
            from = until;
        }
    }
}

#[test]
fn table_of_synchronous_and_graph_tenants() {
    let sync = |kernel| Work::Sync { kernel, gap: 10 * US };
    for (what, work) in [
        ("synchronous 1 ms", sync(MS)),
        ("synchronous 20 ms", sync(20 * MS)),
        ("graphs of 5 ms", Work::Graph { nodes: 100, kernel: 50 * US }),
        ("graphs of 200 ms", Work::Graph { nodes: 40, kernel: 5 * MS }),
        ("four streams of 1 ms", Work::Streams { streams: 4, kernel: MS, each: 64 }),
    ] {
        for (a, b) in [(50, 50), (30, 70)] {
            Row::new(format!("{a}:{b}, {what} beside queued 1 ms"))
                .party(weight(a), work.clone(), f64::from(a))
                .party(weight(b), queue(MS), f64::from(b))
                .keep();
        }
    }
}

#[test]
fn equal_shares_are_equal() {
    for count in [2usize, 3, 5, 8] {
        for kernel in [50 * US, MS, 20 * MS] {
            let mut row = Row::new(format!("{count} equal, all {}", name(kernel)));
            for _ in 0..count {
                row = row.party(weight(1), queue(kernel), 100.0 / count as f64);
            }
            let (world, _) = row.run();
            let shares: Vec<f64> = (0..count).map(|at| measure::share(&world, 0, u32::try_from(at).unwrap())).collect();
            let jain = measure::jain(&shares);
            println!("| {count} equal, all {}: Jain {jain:.5} |", name(kernel));
            assert!(jain >= 0.999, "{shares:?}");
        }
    }
}

#[test]
fn each_run_is_the_same_and_another_seed_is_another_run() {
    let run = |seed| {
        let mut row = Row::new("").party(weight(30), queue(MS), 30.0).party(weight(70), queue(20 * MS), 70.0);
        row.seed = seed;
        let (world, _) = row.run();
        (measure::used(&world, 0, 0), measure::used(&world, 0, 1), world.ticks)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
