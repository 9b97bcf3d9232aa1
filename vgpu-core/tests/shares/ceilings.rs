//! A ceiling is never exceeded, even alone on the device, for any kernel length and any way of launching.

use crate::profile::{self, A100, Profile};
use crate::program::{MS, US, Work};
use crate::table::{KERNELS, Outcome, Row, alone, ceiling, name, worst};

fn styles(kernel: u64) -> Vec<(&'static str, Work)> {
    vec![
        ("queued", Work::Queue { kernel }),
        ("synchronous", Work::Sync { kernel, gap: 10 * US }),
        ("four streams", Work::Streams { streams: 4, kernel, each: 16 }),
    ]
}

fn row(profile: Profile, percent: u32, style: &str, kernel: u64, work: &Work, daemon: bool) -> Outcome {
    let due = f64::from(percent).min(alone(profile, work));
    let by = if daemon { "daemon" } else { "own account" };
    let mut row = Row::new(format!("{percent} % alone, {style} {}, {}, {by}", name(kernel), profile.name));
    (row.profile, row.daemon, row.backlog) = (profile, daemon, false);
    row.party(ceiling(percent), work.clone(), due).keep()
}

#[test]
fn table_of_ceilings_without_the_daemon() {
    for kernel in KERNELS {
        for (style, work) in styles(kernel) {
            let all: Vec<Outcome> =
                [10, 30, 50, 80].map(|percent| row(A100, percent, style, kernel, &work, false)).to_vec();
            println!("worst: {:?}", worst(&all));
        }
    }
}

#[test]
fn table_of_ceilings_with_the_daemon() {
    for kernel in KERNELS {
        for (style, work) in styles(kernel) {
            for percent in [10, 30, 50, 80] {
                row(A100, percent, style, kernel, &work, true);
            }
        }
    }
}

#[test]
fn table_of_ceilings_on_every_profile() {
    for profile in profile::ALL {
        for kernel in KERNELS {
            for percent in [10, 80] {
                row(profile, percent, "queued", kernel, &Work::Queue { kernel }, true);
            }
        }
    }
}

#[test]
fn table_of_ceilings_over_graphs_bursts_and_mixed_lengths() {
    const LENGTHS: &[u64] = &[50 * US, MS, 5 * MS, 20 * MS];
    let works = [
        ("graphs of 100 x", 50 * US, Work::Graph { nodes: 100, kernel: 50 * US }),
        ("graphs of 40 x", 5 * MS, Work::Graph { nodes: 40, kernel: 5 * MS }),
        ("bursts of 3 x", 200 * US, Work::Burst { count: 3, kernel: 200 * US, host: 400 * US }),
        ("mixed to", 20 * MS, Work::Mixed { kernels: LENGTHS, one_function: false }),
        ("one function, mixed to", 20 * MS, Work::Mixed { kernels: LENGTHS, one_function: true }),
    ];
    for (style, kernel, work) in works {
        for percent in [10, 30, 50, 80] {
            for daemon in [false, true] {
                row(A100, percent, style, kernel, &work, daemon);
            }
        }
    }
}

/// No launch has an estimate, and while one runs, the next one waits at the gate.
#[test]
fn functions_that_are_never_launched_twice_keep_their_ceiling() {
    for streams in [1, 2, 4] {
        for kernel in [200 * US, 10 * MS, 30 * MS, 200 * MS] {
            // Several long launches may be forced, one after the other, before the first one is over and paid for.
            let is_short = kernel < 100 * MS;
            for (percent, daemon) in [(10, false), (50, false), (10, true)] {
                let by = if daemon { "daemon" } else { "own account" };
                let mut row =
                    Row::new(format!("{percent} % alone, new functions of {}, {streams} streams, {by}", name(kernel)));
                (row.daemon, row.backlog) = (daemon, false);
                let row = row.party(ceiling(percent), Work::New { streams, kernel }, f64::from(percent));
                let whole = if is_short { row.keep().whole } else { row.run().1.whole };
                assert!(whole <= 1.5, "{}: {whole}", row.name);
            }
        }
    }
}
