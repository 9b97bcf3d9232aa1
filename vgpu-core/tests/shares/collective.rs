//! Ranks of one collective on two devices, and kernels that get longer where no event marker follows them.

use crate::measure;
use crate::profile::A100;
use crate::program::{MS, SECOND, US, Work};
use crate::table::{ceiling, weight};
use crate::world::World;
use vgpu_core::time::arbiter::{GangId, Gate, TenantId};

/// Runs two ranks of one tenant, each on its own device with its own account, or under the daemon. Returns each
/// device's busy percentage until both ranks ended, and the time that took.
fn ranks(daemon: bool, limit: u32, kernels: [u64; 2], rounds: u32, seed: u64) -> ([f64; 2], u64) {
    let mut world = World::new(A100, 2, daemon, seed);
    for (device, kernel) in kernels.into_iter().enumerate() {
        world.member(0, device, ceiling(limit), Work::Rank { kernel, rounds, in_order: false });
    }
    (world.members[0].partner, world.members[1].partner) = (Some(1), Some(0));
    while world.now < 600 * SECOND && world.members.iter().any(|member| member.program.rounds() < rounds) {
        let next = world.now + 100 * MS;
        world.run(next);
    }
    let ended = world.members.iter().map(|member| member.program.rounds()).min().unwrap();
    assert_eq!(ended, rounds, "{limit} %, daemon {daemon}, seed {seed}: all end");
    ([0, 1].map(|device| measure::share(&world, device, 0)), world.now)
}

/// The rank that comes first occupies its device until the other comes, and pays for that time. The payment must not
/// make either rank come later and later.
#[test]
fn ranks_of_a_collective_keep_near_their_ceilings_and_all_end() {
    for (limit, kernels, most) in [
        (10, [MS; 2], 20.0),
        (20, [MS; 2], 30.0),
        (30, [MS; 2], 36.0),
        (50, [MS; 2], 54.0),
        (20, [MS, 2 * MS], 32.0),
        (30, [MS, 2 * MS], 36.0),
        (50, [MS, 2 * MS], 54.0),
    ] {
        for seed in 1..=2 {
            let rounds = 2_000;
            let (got, wall) = ranks(false, limit, kernels, rounds, seed);
            let due = kernels[0].max(kernels[1]) * 100 / u64::from(limit) * u64::from(rounds);
            println!("| {limit} %, {kernels:?} | {:.1} {:.1} | {} of {} ms |", got[0], got[1], wall / MS, due / MS);
            assert!(got.iter().all(|got| *got <= most), "{limit} %, {kernels:?}: {got:?}");
        }
    }
}

/// As above, where the daemon keeps the ceiling and nobody else waits for the devices. Three quarters of the work that
/// is due is done; the rest of the time paid for is that of kernels that wait.
#[test]
fn ranks_under_the_daemon_do_most_of_the_work_that_their_ceiling_allows() {
    for (limit, kernels) in [(30, [MS; 2]), (30, [MS, 2 * MS]), (50, [MS; 2]), (50, [200 * US, 5 * MS]), (80, [MS; 2])]
    {
        for seed in 1..=2 {
            let rounds = 2_000;
            let (got, wall) = ranks(true, limit, kernels, rounds, seed);
            let due = kernels[1] * 100 / u64::from(limit) * u64::from(rounds);
            println!("| {limit} %, {kernels:?} | {:.1} {:.1} | {} of {} ms |", got[0], got[1], wall / MS, due / MS);
            assert!(wall * 3 / 4 <= due, "{limit} %, {kernels:?}: {} of {} ms", wall / MS, due / MS);
            assert!(got.iter().all(|got| *got <= f64::from(limit) + 3.0), "{limit} %, {kernels:?}: {got:?}");
        }
    }
}

/// Ranks of very different length, or with almost no work, wait most of the time. One of them may use up to four fifths
/// of a device, for less than a second, but all rounds end.
#[test]
fn ranks_that_are_far_apart_all_end() {
    for limit in [10, 30, 50] {
        for kernels in [[200 * US, 5 * MS], [60 * US, 60 * US]] {
            for seed in 1..=8 {
                let (got, wall) = ranks(false, limit, kernels, 1_000, seed);
                println!("| {limit} %, {kernels:?}, {seed} | {:.1} {:.1} | {} ms |", got[0], got[1], wall / MS);
                assert!(got.iter().all(|got| *got <= 80.0), "{limit} %, {kernels:?}, {seed}: {got:?}");
            }
        }
    }
}

/// A kernel after a measured one that takes ten times as long from some round on.
#[test]
fn what_grows_behind_a_measured_kernel_is_paid_for() {
    for limit in [10, 30, 50] {
        for (kernel, tail, longer) in
            [(MS, 100 * US, MS), (MS, 20 * US, 200 * US), (300 * US, 200 * US, 5 * MS), (MS, 20 * US, 20 * MS)]
        {
            let mut world = World::new(A100, 1, false, 1);
            world.member(0, 0, ceiling(limit), Work::Grows { kernel, tail, after: 500, longer });
            while world.members[0].program.rounds() < 500 {
                let next = world.now + 100 * US;
                world.run(next);
            }
            let (from, before) = (world.now, measure::used(&world, 0, 0));
            world.run(from + 3 * SECOND);
            let got = (measure::used(&world, 0, 0) - before) as f64 * 100.0 / (3 * SECOND) as f64;
            println!("| {limit} %, {} + {} us, then {} us | {got:.2} |", kernel / US, tail / US, longer / US);
            assert!(got <= f64::from(limit) + 2.0, "{limit} %, {tail} then {longer}: {got:.2}");
        }
    }
}

/// Kernels of one function, up to ten times different in length, each waited for, are paid in full.
#[test]
fn lengths_that_vary_tenfold_are_paid_for() {
    const LENGTHS: [&[u64]; 2] = [&[MS, 5 * MS], &[50 * US, 500 * US]];
    for limit in [10, 30, 50] {
        for kernels in LENGTHS {
            let mut world = World::new(A100, 1, false, 1);
            world.member(0, 0, ceiling(limit), Work::Varied { kernels });
            world.run(20 * SECOND);
            let got = measure::share(&world, 0, 0);
            println!("| {limit} %, varied {kernels:?} | {got:.2} |");
            assert!(got <= f64::from(limit) + 1.0, "{limit} %: {got:.2}");
        }
    }
}

/// Two jobs of two ranks each on the same two devices. Under a daemon each rank of a job is a tenant of the job's gang,
/// or both ranks are members of one tenant. In order: as in [`Work::Rank`].
fn crosswise(daemon: Option<bool>, in_order: bool, limit: u32, seed: u64) -> [(u32, u64, f64); 2] {
    let mut world = World::new(A100, 2, daemon.is_some(), seed);
    let is_gang = daemon == Some(true);
    let tenant = |job: usize, rank: usize| u32::try_from(if is_gang { 2 * job + rank } else { job }).unwrap();
    for job in 0..2 {
        for rank in 0..2 {
            world.member(
                tenant(job, rank),
                rank,
                ceiling(limit),
                Work::Rank { kernel: MS, rounds: u32::MAX, in_order },
            );
            world.members[2 * job + rank].partner = Some(2 * job + 1 - rank);
            if let Some(arbiter) = world.arbiter.as_mut().filter(|_| is_gang) {
                arbiter.set_gang(TenantId(tenant(job, rank)), Some(GangId(u32::try_from(job).unwrap())));
            }
        }
    }
    run_jobs(&mut world, tenant)
}

/// Runs two jobs for a minute. Returns of each the rounds done, the longest time without one, and its largest busy
/// percentage of a device.
fn run_jobs(world: &mut World, tenant: impl Fn(usize, usize) -> u32) -> [(u32, u64, f64); 2] {
    let mut last = [(0, 0); 2];
    let mut still = [0; 2];
    while world.now < 60 * SECOND {
        let next = world.now + 10 * MS;
        world.run(next);
        for job in 0..2 {
            let rounds = world.members[2 * job].program.rounds();
            if rounds != last[job].0 {
                last[job] = (rounds, world.now);
            }
            still[job] = still[job].max(world.now - last[job].1);
        }
    }
    [0, 1].map(|job| {
        let busy = [0, 1].map(|rank| measure::share(world, rank, tenant(job, rank)));
        (last[job].0, still[job], busy[0].max(busy[1]))
    })
}

/// Each kernel of a job waits for a launch on the other device, which the gate there holds back while the other job has
/// it. Both jobs get half of the rounds that their ceilings allow, and neither stands still. Their kernels' waits may
/// use more of a device than the ceiling, by a quarter and two points.
#[test]
fn jobs_that_wait_crosswise_on_two_devices_get_half_of_what_is_due() {
    const WITHOUT: [(Option<bool>, bool, &[u32]); 2] = [(None, true, &[30, 50]), (None, false, &[30, 50])];
    const TENANTS: [(Option<bool>, bool, &[u32]); 2] =
        [(Some(false), true, &[30, 50, 80, 100]), (Some(false), false, &[30, 50])];
    const GANGS: [(Option<bool>, bool, &[u32]); 1] = [(Some(true), true, &[30])];
    for (daemon, in_order, limits) in WITHOUT.into_iter().chain(TENANTS).chain(GANGS) {
        for (&limit, seed) in limits.iter().flat_map(|limit| (1..=4).map(move |seed| (limit, seed))) {
            let jobs = crosswise(daemon, in_order, limit, seed);
            // Two jobs without a ceiling have half of the time each.
            let due = 600 * limit.min(50);
            let of = format!("daemon {daemon:?}, in order {in_order}, {limit} %, {seed}");
            println!("| {of} | {jobs:.1?} of {due} |");
            for (rounds, still, busy) in jobs {
                assert!(2 * rounds >= due, "{of}: {rounds} of {due}");
                assert!(still <= 10 * SECOND, "{of}: still for {} ms", still / MS);
                assert!(busy <= f64::from(limit) * 1.25 + 2.0, "{of}: {busy:.1}");
            }
        }
    }
}

/// A tenant on one of the devices keeps its part: a third by weight, or what two ceilings leave. The jobs go on.
#[test]
fn jobs_that_wait_crosswise_leave_a_neighbour_its_part() {
    for (limit, part) in [(100, 33.3), (30, 40.0)] {
        for seed in 1..=4 {
            let mut world = World::new(A100, 2, true, seed);
            for (job, rank) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let at = world.member(
                    job,
                    rank,
                    ceiling(limit),
                    Work::Rank { kernel: MS, rounds: u32::MAX, in_order: true },
                );
                world.members[at].partner = Some(at ^ 1);
            }
            world.member(2, 0, weight(1), Work::Queue { kernel: MS });
            let jobs = run_jobs(&mut world, |job, _| u32::try_from(job).unwrap());
            let got = measure::share(&world, 0, 2);
            println!("| {limit} %, {seed} | {got:.1} of {part}, {jobs:.1?} |");
            assert!(got >= part - 2.0, "{limit} %, {seed}: {got:.1} of {part}");
            assert!(jobs.iter().all(|job| job.1 <= 10 * SECOND), "{limit} %, {seed}: {jobs:?}");
        }
    }
}

/// Two tenants with long kernels on the same two devices wait for nobody. Their weights hold.
#[test]
fn long_kernels_of_two_tenants_on_two_devices_keep_their_weights() {
    for kernel in [MS, 20 * MS, 50 * MS, 300 * MS] {
        for seed in 1..=2 {
            let mut world = World::new(A100, 2, true, seed);
            for (tenant, device) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                world.member(tenant, device, weight(1 + 2 * tenant), Work::Queue { kernel });
            }
            world.run(120 * SECOND);
            for device in 0..2 {
                let [light, heavy] = [0, 1].map(|tenant| measure::share(&world, device, tenant));
                println!("| {} ms, {seed} | {light:.1} : {heavy:.1} |", kernel / MS);
                assert!((heavy / light - 3.0).abs() <= 0.4, "{} ms, {seed}: {light:.1} : {heavy:.1}", kernel / MS);
            }
        }
    }
}

/// Long kernels of one tenant on two devices wait for nobody. Their devices are given up apart, and each neighbour has
/// its share without longer waits than for one of those kernels and a lease.
#[test]
fn long_kernels_on_two_devices_are_not_taken_for_ranks_of_a_collective() {
    for (name, work) in [
        ("20 ms", Work::Queue { kernel: 20 * MS }),
        ("50 ms", Work::Queue { kernel: 50 * MS }),
        ("graphs of 40 ms", Work::Graph { nodes: 20, kernel: 2 * MS }),
        ("20 ms, each waited for", Work::Sync { kernel: 20 * MS, gap: MS }),
        ("20 ms, a gap of 5 ms", Work::Sync { kernel: 20 * MS, gap: 5 * MS }),
        ("300 ms", Work::Queue { kernel: 300 * MS }),
        ("bursts", Work::Burst { count: 20, kernel: 2 * MS, host: 8 * MS }),
    ] {
        for seed in 1..=2 {
            let mut world = World::new(A100, 2, true, seed);
            for device in 0..2 {
                world.member(0, device, weight(1), work.clone());
                world.member(1 + u32::try_from(device).unwrap(), device, weight(1), Work::Queue { kernel: MS });
            }
            world.run(3 * SECOND);
            world.log = Some(Vec::new());
            world.run(20 * SECOND);
            let mut last = [u64::MAX; 2];
            let mut longest = [0; 2];
            for (at, decision) in world.log.iter().flatten() {
                if decision.tenant != TenantId(0) && matches!(decision.gate, Gate::Run { .. }) {
                    let device = usize::from(decision.device.0);
                    longest[device] = longest[device].max(at.saturating_sub(last[device]));
                    last[device] = *at;
                }
            }
            for (device, longest) in longest.into_iter().enumerate() {
                let own = measure::share(&world, device, 0);
                let neighbour = measure::share(&world, device, 1 + u32::try_from(device).unwrap());
                println!("| {name}, {seed} | {own:.1} : {neighbour:.1}, waits {} ms |", longest / MS);
                assert!((own - neighbour).abs() <= 3.0, "{name}, {seed}, device {device}: {own:.1} : {neighbour:.1}");
                assert!(longest <= 450 * MS, "{name}, {seed}, device {device}: {} ms", longest / MS);
            }
        }
    }
}
