//! Ranks of one collective on two devices, and kernels that get longer where no event marker follows them.

use crate::measure;
use crate::profile::A100;
use crate::program::{MS, SECOND, US, Work};
use crate::table::ceiling;
use crate::world::World;

/// Runs two ranks of one tenant, each on its own device with its own account, or under the daemon. Returns each device's
/// busy percentage until both ranks ended, and the time that took.
fn ranks(daemon: bool, limit: u32, kernels: [u64; 2], rounds: u32, seed: u64) -> ([f64; 2], u64) {
    let mut world = World::new(A100, 2, daemon, seed);
    for (device, kernel) in kernels.into_iter().enumerate() {
        world.member(0, device, ceiling(limit), Work::Rank { kernel, rounds });
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
