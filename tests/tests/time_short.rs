//! Kernels of a few microseconds, most of which threads launch on credit, without the library's lock: none is forgotten, by
//! the simulated device's own clock of work done.
//!
//! Not here: how exactly they are paid for (what is so short is charged by what was learned of it, and rather too high),
//! longer kernels (`time_paid.rs`), shares (`time.rs`).

use vgpu_tests::timed::{Stretch, alone, ceiling, measured, timed};

/// Most of the device: nobody waits for long, so that launches follow each other closely.
const LIMIT: u32 = 80;
/// In percent of what the device did, by what was learned of a kernel.
const LEAST: f64 = 95.0;

fn none_is_forgotten(what: &str, commands: &[&str]) {
    measured(|| {
        let _alone = alone();
        let lab = ceiling(LIMIT);
        let mut m = timed(&lab);
        for command in commands {
            m.ok(command);
            let stretch = Stretch::begin(&lab);
            m.ok(command);
            let spent = stretch.end(&lab);
            eprintln!("{what}, {command}: paid {:.1} % of {} us", spent.paid_percent(), spent.busy / 1000);
            assert!(spent.paid_percent() >= LEAST, "{what}, {command}: {spent:?}");
        }
    });
}

/// Nothing but tails, which are paid by what was counted: a launch that is not counted is not paid.
#[test]
fn of_forty_short_kernels_and_a_wait_each_is_paid() {
    none_is_forgotten("bursts", &["loop 3000 0 20000 40 0 1 1", "loop 3000 0 20000 40 0 0 0"]);
}

#[test]
fn of_a_queue_of_short_kernels_each_is_paid() {
    none_is_forgotten("queue", &["loop 3000 500 0 1000000 0 1 -1", "loop 3000 500 0 1000000 0 2 -1"]);
}

/// Into one stream, where each thread's credit ends with the interval that any of them ends, and each into its own.
#[test]
fn of_short_kernels_of_four_threads_each_is_paid() {
    none_is_forgotten("threads", &["threads 4 3000 500 40 0 0 0", "threads 4 3000 500 40 0 2 1"]);
}

/// It rests while the program goes on in another one, which keeps the library's clock going.
#[test]
fn a_stream_that_rests_beside_another_pays_for_its_work_and_not_for_its_rest() {
    measured(|| {
        let _alone = alone();
        let lab = ceiling(LIMIT);
        let mut m = timed(&lab);
        m.ok("loop 3000 500 0 1000000 0 1 -1");
        let stretch = Stretch::begin(&lab);
        m.ok("byturns 400 40 3000 5000 30000");
        let spent = stretch.end(&lab);
        eprintln!("by turns: paid {:.1} % of {} us", spent.paid_percent(), spent.busy / 1000);
        // What is learned of a single short kernel differs by a quarter on a busy host; its rest is several times its work.
        assert!((50.0..=180.0).contains(&spent.paid_percent()), "{spent:?}");
    });
}
