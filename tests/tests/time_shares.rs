//! Ceilings hold for kernels of any length, and a launch that is held back uses no processor. These are a few points of
//! the table; `vgpu-core/tests/shares` covers all of it in virtual time.
//!
//! Shares are the device's busy time in percent of the wall clock. The payments tell a wrong usage meter from a machine
//! that was too busy to launch in time.

use std::thread;
use std::time::Duration;
use vgpu_tests::timed::{MS, Stretch, alone, ceiling, measured, timed};

/// Ceiling in percent, kernel in nanoseconds, kernels between two waits, length in milliseconds.
type Point = (u32, u64, u64, u64);
/// Points with frequent launches, which keep a processor busy.
const SHORT: [Point; 2] = [(80, 50_000, 64, 1500), (10, 50_000, 1, 1500)];
/// Points with rare launches, which wait while others run at the same time.
const LONG: [Point; 4] =
    [(10, 5 * MS, 1000, 2000), (50, 5 * MS, 1, 1500), (30, 200 * MS, 1000, 4000), (50, 1000 * MS, 1000, 6000)];

#[test]
fn ceilings_hold_for_kernels_of_any_length() {
    let _alone = alone();
    thread::scope(|scope| {
        for point in LONG {
            scope.spawn(move || measured(|| holds(point)));
        }
        SHORT.iter().for_each(|point| measured(|| holds(*point)));
    });
}

/// Checks one point: the share of a program with this ceiling, kernel length and batch, on a machine of its own.
fn holds((percent, ns, batch, ms): Point) {
    let lab = ceiling(percent);
    let mut m = timed(&lab);
    let stretch = Stretch::begin(&lab);
    m.ok(&format!("loop {ns} {ms} 0 {batch} 0 1 1"));
    let spent = stretch.end(&lab);
    let what = format!("{percent} %, kernels of {} us", ns / 1000);
    spent.is_paid_within(10.0, &what);
    // At the end one kernel may be owed, at the start a burst is spent, and the first launches are unmeasured.
    let over = (60 * MS + 2 * ns) as f64 / spent.wall as f64 * 100.0 + 2.0;
    assert!(spent.share() <= f64::from(percent) + over, "{what}: {spent:?}");
    assert!(spent.share() >= f64::from(percent) * 0.6, "{what}: {spent:?}");
}

/// A graph of 200 ms is one launch.
#[test]
fn one_long_graph_is_paid_for_as_a_whole() {
    measured(|| {
        let _alone = alone();
        let lab = ceiling(40);
        let mut m = timed(&lab);
        let stretch = Stretch::begin(&lab);
        let answer = m.ok("graph 4000000 50 3000");
        let spent = stretch.end(&lab);
        assert!(answer.number(0) >= 3, "{answer:?}");
        spent.is_paid_within(8.0, "graphs of 200 ms");
        assert!((20.0..=60.0).contains(&spent.share()), "{spent:?}");
    });
}

/// A thread that is held back nine tenths of the time sleeps and uses less than a hundredth of a processor. The bound
/// allows for a busy machine and a simulated driver, which costs more than a real one.
#[test]
fn who_is_held_back_sleeps() {
    measured(|| {
        let _alone = alone();
        let lab = ceiling(10);
        let mut m = timed(&lab);
        m.ok("loop 2000000 500 0 1000 0 1 1");
        let answer = m.ok("loop 2000000 2000 0 1000 0 1 1");
        let (launched, wall, cpu) = (answer.number(0), answer.number(1), answer.number(2));
        let permille = cpu * 1000 / wall;
        eprintln!("{launched} launches in {} ms: {permille} permille of a processor", wall / MS);
        assert!(launched > 40, "{answer:?}");
        assert!(permille < 30, "{permille} permille: {answer:?}");
    });
}

/// Threads wait for device time at a launch while their process is stopped for a second. The process may not use the
/// missed time afterwards.
#[test]
fn a_process_that_was_stopped_does_not_make_up_for_it() {
    let _alone = alone();
    thread::scope(|scope| {
        for limit in [30, 50] {
            scope.spawn(move || measured(|| makes_up_for_nothing(limit)));
        }
    });
}

fn makes_up_for_nothing(limit: u32) {
    let lab = ceiling(limit);
    let mut m = timed(&lab);
    m.tell("threads 4 5000000 3500 1000000 0 1 -1");
    thread::sleep(Duration::from_millis(1000));
    lab.stop(&m);
    thread::sleep(Duration::from_secs(1));
    let stretch = Stretch::begin(&lab);
    m.signal(libc::SIGCONT);
    thread::sleep(Duration::from_secs(1));
    let spent = stretch.end(&lab);
    let answer = m.answer();
    assert_eq!(answer.code, 0, "{answer:?}; {}", m.errors());
    // A burst of 50 ms, one kernel of each thread queued on the device, and the same again for a busy machine.
    let most = spent.wall * u64::from(limit) / 100 + 2 * (u64::from(limit) * 50 * MS / 100 + 4 * 5 * MS);
    eprintln!("after a stop, {limit} %: {:.1} %, at most {} us", spent.share(), most / 1000);
    assert!(spent.busy <= most, "{limit} %: {spent:?}, at most {most}");
    assert!(spent.share() > f64::from(limit) / 3.0, "it goes on: {spent:?}");
}
