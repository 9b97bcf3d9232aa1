//! Kernels about as short as the calls that launch them.

use crate::measure;
use crate::profile::{A100, Profile};
use crate::program::{MS, SECOND, US, Work};
use crate::table::{Row, ceiling, name, weight};
use crate::world::World;
use vgpu_core::time::arbiter::Terms;

const KERNELS: [u64; 4] = [2 * US, 5 * US, 10 * US, 20 * US];
const CEILINGS: [u32; 4] = [10, 30, 50, 80];

fn profile(launch: u64) -> Profile {
    Profile { launch, record: 700, ..A100 }
}

/// Percent of the device that a tenant alone gets, over `seconds` after the first.
fn share_of(profile: Profile, terms: Terms, work: &Work, seed: u64, seconds: u64) -> f64 {
    let mut world = World::new(profile, 1, false, seed);
    world.member(0, 0, terms, work.clone());
    world.run(SECOND);
    let before = measure::used(&world, 0, 0);
    world.run((1 + seconds) * SECOND);
    (measure::used(&world, 0, 0) - before) as f64 * 100.0 / (seconds * SECOND) as f64
}

/// Device time of a lone tenant under each ceiling, in percent of its due (the ceiling, or its use without one if that
/// is less). Each ceiling uses another random moment at which the device sees a call's work.
fn of_due(profile: Profile, work: &Work) -> [f64; 4] {
    CEILINGS.map(|percent| {
        let seed = profile.launch ^ u64::from(percent);
        let alone = share_of(profile, Terms::default(), work, seed, 1);
        let got = share_of(profile, ceiling(percent), work, seed, 5);
        got * 100.0 / alone.min(f64::from(percent))
    })
}

/// The tolerances allow for an error of about a tenth of a call in the learned lead.
fn keep_table(launch: u64) {
    for kernel in KERNELS {
        let works = [
            ("queued", Work::Queue { kernel }),
            ("graphs of 20", Work::Graph { nodes: 20, kernel }),
            ("synchronous", Work::Sync { kernel, gap: 3 * US }),
            ("four streams", Work::Streams { streams: 4, kernel, each: 64 }),
        ];
        for (style, work) in works {
            let all = of_due(profile(launch), &work);
            println!("| {style}, {}, launch {} | {all:.1?} |", name(kernel), name(launch));
            let is_kept = |got: f64| match style {
                "graphs of 20" => (98.0..=102.0).contains(&got),
                // The kernel may end before its end marker is recorded.
                _ if kernel * 2 <= launch => (95.0..=112.0).contains(&got),
                "four streams" => (95.0..=105.0).contains(&got),
                _ => (95.0..=if kernel >= 20 * US { 102.0 } else { 105.0 }).contains(&got),
            };
            assert!(all.into_iter().all(is_kept), "{style}, {}, launch {}: {all:.1?}", name(kernel), name(launch));
        }
    }
}

#[test]
fn table_of_short_kernels_with_launches_of_1_us() {
    keep_table(US);
}

#[test]
fn table_of_short_kernels_with_launches_of_2_us() {
    keep_table(2 * US);
}

#[test]
fn table_of_short_kernels_with_launches_of_4_us() {
    keep_table(4 * US);
}

#[test]
fn short_kernels_beside_long_ones() {
    for launch in [US, 2 * US, 4 * US] {
        let mut row = Row::new(format!("30:70, 10 us and 5 ms, launch {} us", launch / US));
        row.profile = profile(launch);
        row.party(weight(30), Work::Queue { kernel: 10 * US }, 30.0)
            .party(weight(70), Work::Queue { kernel: 5 * MS }, 70.0)
            .keep();
    }
}
