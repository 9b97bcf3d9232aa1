//! Liveness: under a ceiling every program makes progress and ends, whatever its kernels and threads wait for. Not
//! here: precision of payments (`time_paid.rs`), captures (`capture.rs`).

use std::thread;
use std::time::Duration;
use vgpu_tests::Lab;
use vgpu_tests::artefacts::libvgpu;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::timed::{MS, Stretch, alone, ceiling, measured, timed};

/// The first kernel occupies the device until the second one, launched later in another stream, has run. The library
/// holds the second launch while the tenant has no balance of device time, but not for ever. The test waits for most of
/// a minute, so others are measured at the same time.
#[test]
fn a_kernel_that_waits_for_one_of_another_stream_gets_it_a_hundred_times() {
    let lab = ceiling(30);
    let mut m = timed(&lab);
    m.ok("crossed 100 500000");
    assert!(m.finish().success());
}

#[test]
fn beside_a_kernel_that_stays_others_run() {
    let _alone = alone();
    let lab = ceiling(30);
    let mut m = timed(&lab);
    let answer = m.ok("persistent 1200 100000");
    assert!(answer.number(0) >= 3, "{answer:?}");
    // The kernel used the device all the time, and the debt stays: about 3 s at 30 %.
    let stretch = Stretch::begin(&lab);
    m.ok("loop 1000000 500 0 1 0 1 1");
    let spent = stretch.end(&lab);
    assert!(spent.share() < 60.0, "{spent:?}");
}

/// A thread holds an interpreter's lock while the library holds its launch back. The other threads get the lock once
/// the launch passes.
#[test]
fn a_lock_that_is_held_at_the_gate_is_given_back() {
    let _alone = alone();
    let lab = ceiling(30);
    let mut m = timed(&lab);
    let answer = m.ok("locked 1000000 1500");
    let (launched, computed, longest) = (answer.number(0), answer.number(1), answer.number(2));
    eprintln!(
        "{launched} launches, {computed} turns of the other, the longest wait for the lock {} us",
        longest / 1000
    );
    assert!(launched > 100 && computed > 100, "{answer:?}");
    assert!(longest < 2000 * MS, "{answer:?}");
}

/// Contexts and streams end with event markers in flight. No event of a later context or stream with the same handle is
/// taken for theirs.
#[test]
fn contexts_and_streams_that_end_with_work_in_flight_are_paid_for() {
    let _alone = alone();
    let lab = ceiling(60);
    let mut m = timed(&lab);
    let stretch = Stretch::begin(&lab);
    m.ok("contexts 40 12 400000");
    stretch.end(&lab).is_paid_within(40.0, "contexts that end");
    let stretch = Stretch::begin(&lab);
    m.ok("passing 400 400000");
    stretch.end(&lab).is_paid_within(15.0, "streams that end");
    m.ok("loop 100000 300 0 8 0 1 1");
}

/// One measurement of a few microseconds permits two launches, not hundreds. Otherwise eight kernels of 100 ms would be
/// launched at once and occupy the device for most of a second.
///
/// It is measured again if it fails: after a pause of the host two launches were paid by their old estimate, in 1 of 48
/// runs next to such pauses.
#[test]
fn what_was_short_once_does_not_go_out_in_numbers() {
    for first in [4_000, 50_000] {
        measured(|| {
            let _alone = alone();
            let lab = ceiling(90);
            let mut m = timed(&lab);
            let stretch = Stretch::begin(&lab);
            let answer = m.ok(&format!("flood {first} 8 {}", 100 * MS));
            assert!(answer.number(0) >= 300 * MS, "{answer:?}, after one of {first} ns");
            stretch.end(&lab).is_paid_within(15.0, "what was to be learned");
        });
    }
}

/// More streams than the usage meter follows, each with a short kernel that nothing waits for. Streams that finished
/// make room in the meter.
#[test]
fn streams_that_come_and_go_by_the_thousand_stay_below_the_ceiling() {
    measured(|| {
        let _alone = alone();
        let lab = ceiling(10);
        let mut m = timed(&lab);
        m.ok("passing 2000 6000");
        // Saves up a burst that lasts for more streams than the usage meter follows.
        thread::sleep(Duration::from_millis(200));
        let stretch = Stretch::begin(&lab);
        m.ok("passing 40000 6000");
        let spent = stretch.end(&lab);
        spent.is_paid_within(30.0, "streams by the thousand");
        assert!(spent.share() < 13.0, "{spent:?}");
    });
}

/// A change of the wall clock has no effect: balances, leases and waits use a clock that nobody can set.
#[test]
fn steps_of_the_clock_of_the_day_change_nothing() {
    let date = |lab: &Lab| vgpu_tests::run(lab.command("date").arg("+%s")).trim().parse::<i64>().expect("a number");
    measured(|| {
        let _alone = alone();
        let steps = compile("steps", Kind::Library, &[]);
        let mut lab = ceiling(30);
        lab.preload(&[&libvgpu(), &steps]);
        let real = vgpu_sim::wall_ns() / 1_000_000_000;
        assert!(date(&lab).abs_diff(i64::try_from(real).unwrap()) > 1800, "the clock is stepped");
        let mut members = [timed(&lab), timed(&lab)];
        members.iter_mut().for_each(|m| m.tell("loop 1000000 2500 0 4 0 1 1"));
        thread::sleep(Duration::from_millis(400));
        let stretch = Stretch::begin(&lab);
        thread::sleep(Duration::from_millis(1800));
        let spent = stretch.end(&lab);
        for m in &mut members {
            assert_eq!(m.answer().code, 0, "{}", m.errors());
        }
        spent.is_paid_within(8.0, "with a clock of the day that is stepped");
        assert!((25.0..=35.0).contains(&spent.share()), "{spent:?}");
    });
}

#[test]
fn children_that_are_forked_at_work_change_nothing() {
    let _alone = alone();
    let lab = ceiling(60);
    let mut m = timed(&lab);
    m.ok("loop 300000 200 0 8 0 1 1");
    let stretch = Stretch::begin(&lab);
    let answer = m.ok("forked 300000 40");
    assert_eq!(answer.number(0), 0, "children that hung or crashed");
    stretch.end(&lab).is_paid_within(10.0, "a parent of forty");
}

/// Under MPS the contexts of processes run at the same time. Each process's measurement contains the other's work, and
/// together they stay below the ceiling.
#[test]
fn under_mps_the_account_alone_holds_the_ceiling() {
    measured(|| {
        let _alone = alone();
        let lab = Lab::new("h200:mps").with("VGPU_SM_LIMIT", "40");
        let mut members = [timed(&lab), timed(&lab)];
        members.iter_mut().for_each(|m| m.tell("loop 1000000 2500 0 4 0 1 1"));
        thread::sleep(Duration::from_millis(500));
        let stretch = Stretch::begin(&lab);
        thread::sleep(Duration::from_millis(1800));
        let spent = stretch.end(&lab);
        for m in &mut members {
            assert_eq!(m.answer().code, 0, "{}", m.errors());
        }
        eprintln!("MPS: {:.1} %", spent.share());
        assert!((12.0..=46.0).contains(&spent.share()), "{spent:?}");
    });
}
