//! Ceilings hold for kernels of any length, and who is held back uses no processor. A few points of the table; all of it,
//! in virtual time, is in `vgpu-core/tests/shares`.
//!
//! Shares are of the wall clock, by the device's own clock of work done; what was paid tells a wrong meter from a machine
//! that was too busy to launch in time.

use vgpu_tests::timed::{MS, Stretch, alone, ceiling, timed};

/// A ceiling in percent, a kernel in nanoseconds, kernels between two waits, and for how many milliseconds.
const POINTS: [(u32, u64, u64, u64); 6] = [
    (80, 50_000, 64, 1500),
    (10, 50_000, 1, 1500),
    (10, 5 * MS, 1000, 2000),
    (50, 5 * MS, 1, 1500),
    (30, 200 * MS, 1000, 4000),
    (50, 1000 * MS, 1000, 6000),
];

#[test]
fn ceilings_hold_for_kernels_of_any_length() {
    let _alone = alone();
    for (percent, ns, batch, ms) in POINTS {
        let lab = ceiling(percent);
        let mut m = timed(&lab);
        let stretch = Stretch::begin(&lab);
        m.ok(&format!("loop {ns} {ms} 0 {batch} 0 1 1"));
        let spent = stretch.end(&lab);
        let what = format!("{percent} %, kernels of {} us", ns / 1000);
        spent.is_paid_within(10.0, &what);
        // At the end a kernel may be owed, at the beginning a burst is spent, and the first are launched unmeasured.
        let over = (60 * MS + 2 * ns) as f64 / spent.wall as f64 * 100.0 + 2.0;
        assert!(spent.share() <= f64::from(percent) + over, "{what}: {spent:?}");
        assert!(spent.share() >= f64::from(percent) * 0.6, "{what}: {spent:?}");
    }
}

/// A graph of 200 ms is one launch.
#[test]
fn one_long_graph_is_paid_for_as_a_whole() {
    let _alone = alone();
    let lab = ceiling(40);
    let mut m = timed(&lab);
    let stretch = Stretch::begin(&lab);
    let answer = m.ok("graph 4000000 50 3000");
    let spent = stretch.end(&lab);
    assert!(answer.number(0) >= 3, "{answer:?}");
    spent.is_paid_within(8.0, "graphs of 200 ms");
    assert!((20.0..=60.0).contains(&spent.share()), "{spent:?}");
}

/// Held back nine tenths of the time, a thread sleeps: it uses less than a hundredth of a processor for it. The bound is
/// for a busy machine in a simulator, whose driver costs more than a device's.
#[test]
fn who_is_held_back_sleeps() {
    let _alone = alone();
    let lab = ceiling(10);
    let mut m = timed(&lab);
    m.ok("loop 2000000 500 0 1000 0 1 1");
    let answer = m.ok("loop 2000000 3000 0 1000 0 1 1");
    let (launched, wall, cpu) = (answer.number(0), answer.number(1), answer.number(2));
    let permille = cpu * 1000 / wall;
    eprintln!("{launched} launches in {} ms: {permille} permille of a processor", wall / MS);
    assert!(launched > 50, "{answer:?}");
    assert!(permille < 30, "{permille} permille: {answer:?}");
}
