//! Device time is paid as it was used, however a program launches and waits. The ledger's sum is compared with the
//! simulated device's busy time.
//!
//! Bounds are a few points wide, for a busy machine. A usage meter that counts a pause, counts a stream twice or misses
//! a launch is off by far more. Not here: the resulting shares (`time.rs`, `time_shares.rs`).

use vgpu_tests::program::{Kind, compile};
use vgpu_tests::timed::{MS, Stretch, alone, ceiling, measured, timed};
use vgpu_tests::{Lab, Member};

/// Ways in which a loop chooses its stream.
const STREAMS: [(&str, u32); 5] =
    [("legacy", 0), ("created", 1), ("per thread", 2), ("blocking", 3), ("cooperative", 4)];
/// Ways in which a loop waits.
const WAITS: [(&str, u32); 4] = [("for the context", 0), ("for the stream", 1), ("for an event", 2), ("by asking", 3)];

/// Result of a command, after an identical command taught the library the costs of its kernels.
fn spent(lab: &Lab, m: &mut Member, command: &str) -> vgpu_tests::timed::Spent {
    m.ok(command);
    let stretch = Stretch::begin(lab);
    m.ok(command);
    stretch.end(lab)
}

#[test]
fn bursts_of_three_short_kernels_and_long_pauses_are_paid_as_used() {
    measured(|| {
        let _alone = alone();
        let lab = ceiling(50);
        let mut m = timed(&lab);
        for (what, how) in [("without waiting", -1), ("with waiting", 1)] {
            // Three kernels of 60 us, 75 times, each group followed by 20 ms on the host.
            let spent = spent(&lab, &mut m, &format!("loop 60000 0 225 3 20000000 1 {how}"));
            spent.is_paid_within(8.0, &format!("bursts {what}"));
        }
    });
}

#[test]
fn whoever_waits_after_every_launch_pays_as_used() {
    measured(|| {
        let _alone = alone();
        let lab = ceiling(80);
        let mut m = timed(&lab);
        for (name, how) in WAITS {
            let spent = spent(&lab, &mut m, &format!("loop 100000 0 3000 1 0 1 {how}"));
            spent.is_paid_within(8.0, &format!("waits {name}"));
        }
    });
}

#[test]
fn every_kind_of_stream_pays_as_used() {
    measured(|| {
        let _alone = alone();
        let lab = ceiling(80);
        let mut m = timed(&lab);
        for (name, way) in STREAMS {
            let spent = spent(&lab, &mut m, &format!("loop 200000 400 0 32 0 {way} 0"));
            spent.is_paid_within(5.0, &format!("{name} stream"));
        }
    });
}

/// Streams of one process overlap: the time is the device's and counts once.
#[test]
fn streams_that_overlap_are_paid_once() {
    measured(|| {
        let _alone = alone();
        let lab = ceiling(95);
        let mut m = timed(&lab);
        for (what, way) in [("of four threads, created", 1), ("of four threads, their own default ones", 2)] {
            let spent = spent(&lab, &mut m, &format!("threads 4 400000 600 2 2000000 {way} 1"));
            spent.is_paid_within(8.0, &format!("streams {what}"));
        }
    });
}

/// The program orders its streams with events without timing. Those stay without timing, the program's timed events
/// show the kernels' length, and the library measures with events of its own.
#[test]
fn events_with_timing_disabled_order_streams_and_what_they_order_is_paid_as_used() {
    measured(|| {
        let _alone = alone();
        let lab = ceiling(80);
        let mut m = timed(&lab);
        m.ok("step 500 100000");
        let stretch = Stretch::begin(&lab);
        let answer = m.ok("step 4000 100000");
        stretch.end(&lab).is_paid_within(8.0, "streams in step by events without time");
        let (refused, took) = (answer.number(0), answer.number(1));
        assert_eq!(refused, 400, "their time is asked for, as without the library");
        assert!((100_000..200_000).contains(&took), "{took}");
    });
}

/// Four streams in turn without any wait. Each stream is idle at its launch, and nobody has asked about the others. The
/// library still learns the costs of launches.
#[test]
fn streams_that_are_used_in_turn_are_paid_as_used() {
    measured(|| {
        let _alone = alone();
        for limit in [30, 50, 80] {
            let lab = ceiling(limit);
            let mut m = timed(&lab);
            let spent = spent(&lab, &mut m, "loop 50000 1500 0 1000000 0 5 -1");
            spent.is_paid_within(5.0, &format!("streams in turn, {limit} %"));
        }
    });
}

/// A launch of a function or size that was never launched before has no estimate. While one runs, the launch on the
/// other stream waits at the gate, and the running one may wait for it.
#[test]
fn launches_that_are_never_alike_stay_below_the_ceiling() {
    measured(|| {
        let _alone = alone();
        for kernel in [2 * MS, 10 * MS, 30 * MS] {
            let lab = ceiling(10);
            let mut program = lab.command(compile("fresh", Kind::Linked, &[]));
            let begun = std::time::Instant::now();
            let out = program.args(["2", &kernel.to_string(), "5"]).output().unwrap();
            assert!(out.status.success(), "{}", vgpu_tests::text(&out));
            let share = lab.device(0).busy_ns as f64 * 100.0 / begun.elapsed().as_nanos() as f64;
            eprintln!("kernels of {} ms, no two alike: {share:.1} % of the device", kernel / MS);
            // At first 50 ms of work may count as a wait, and several long launches are forced before one is paid for.
            assert!((4.0..14.0).contains(&share), "{share:.1} of 10 %");
        }
    });
}

/// This driver has a limited number of events. Two events for each launch, or events that are never returned, would use
/// them up; later launches would then be charged at an outdated cost.
#[test]
fn launches_are_sampled_and_events_are_used_again() {
    measured(|| {
        let _alone = alone();
        let faults = "cuEventCreate:every=1:after=30:code=2,cuEventRecord:every=1:after=1800:code=2";
        let lab = ceiling(90).with("VGPU_SIM_FAULTS", faults);
        let mut m = timed(&lab);
        m.ok("loop 50000 0 3000 1 0 1 1");
        // From now on the same function takes six times as long.
        m.ok("loop 300000 0 100 1 0 1 1");
        let stretch = Stretch::begin(&lab);
        m.ok("loop 300000 0 300 1 0 1 1");
        stretch.end(&lab).is_paid_within(12.0, "after 3400 launches");
    });
}

/// The library learns a launch's cost again when the function's length changes, whatever it learned before.
#[test]
fn a_function_that_changes_its_length_is_paid_as_used() {
    measured(|| {
        let _alone = alone();
        let lab = ceiling(60);
        let mut m = timed(&lab);
        let stretch = Stretch::begin(&lab);
        for ns in [50_000, 2 * MS, 300_000, 5 * MS, 20_000] {
            m.ok(&format!("loop {ns} 300 0 8 0 1 1"));
        }
        stretch.end(&lab).is_paid_within(8.0, "kernels of five lengths");
    });
}

/// A kernel between another kernel and a wait has no event marker after it. When it suddenly takes ten times as long,
/// that is noticed, paid and learned.
#[test]
fn a_kernel_before_a_wait_that_grows_tenfold_is_paid_and_the_ceiling_holds() {
    const LIMIT: u32 = 30;
    for (how, name) in [(0, "for the context"), (1, "for the stream"), (2, "for an event")] {
        measured(|| {
            let _alone = alone();
            let lab = ceiling(LIMIT);
            let mut m = timed(&lab);
            m.ok(&format!("tails 1000000 100000 800 {how}"));
            let stretch = Stretch::begin(&lab);
            m.ok(&format!("tails 1000000 1000000 2500 {how}"));
            let spent = stretch.end(&lab);
            spent.is_paid_within(8.0, &format!("grown, waits {name}"));
            assert!(spent.share() <= f64::from(LIMIT + 2), "{name}: {spent:?}");
        });
    }
}

/// Work before an error is paid, the program gets its own error, and nothing hangs.
#[test]
fn an_error_of_the_context_stays_the_programs_own() {
    let _alone = alone();
    let rules =
        ["cuLaunchKernel", "cuEventRecord", "cuEventQuery", "cuEventElapsedTime", "cuStreamQuery", "cuCtxSynchronize"];
    let faults: Vec<String> = rules.iter().map(|name| format!("{name}:every=1:after=200:code=700")).collect();
    let lab = ceiling(50).with("VGPU_SIM_FAULTS", faults.join(","));
    let mut m = timed(&lab);
    for _ in 0..3 {
        let answer = m.ask("loop 100000 3000 0 1000 0 1 1");
        assert_eq!(answer.code, 700, "{answer:?}; {}", m.errors());
    }
    assert!(m.finish().success());
}

/// The library's event queries fail while the program's launches succeed. The program continues and pays the costs
/// learned before.
#[test]
fn a_driver_that_cannot_measure_does_not_stop_the_program() {
    let _alone = alone();
    for broken in ["cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventElapsedTime", "cuStreamQuery"] {
        let lab = ceiling(50).with("VGPU_SIM_FAULTS", format!("{broken}:every=1:after=200:code=999"));
        let mut m = timed(&lab);
        m.ok("loop 200000 500 0 16 0 1 0");
        let stretch = Stretch::begin(&lab);
        m.ok("loop 200000 500 0 16 0 1 0");
        stretch.end(&lab).is_paid_within(15.0, &format!("without {broken}"));
    }
}

/// The library holds such launches back one by one under a ceiling. If only some of them were measured, the unmeasured
/// long ones would be charged as short ones.
#[test]
fn a_queue_of_one_function_that_is_mostly_short_keeps_its_ceiling() {
    measured(|| {
        let _alone = alone();
        let lab = ceiling(30);
        let mut m = timed(&lab);
        for command in ["mixed 20000 7 1000000 3000", "mixed 20000 20 2000000 3000"] {
            let spent = spent(&lab, &mut m, command);
            spent.is_paid_within(5.0, command);
            assert!(spent.share() <= 32.0, "{command}: {spent:?}");
        }
    });
}
