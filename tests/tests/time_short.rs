//! Kernels of a few microseconds. Threads launch most of them on credit, without the library's lock. No launch goes
//! unpaid, by the simulated device's busy time.
//!
//! Kernels as short as their launch calls get their due time. Half of such a program's time is host time, and each
//! process picks at random when within a call the device sees the work. vgpu-core/tests/shares/short.rs covers all
//! combinations on a simulated clock.
//!
//! Not here: longer kernels (`time_paid.rs`), their shares (`time.rs`).

use vgpu_tests::lab::Lab;
use vgpu_tests::timed::{Stretch, alone, ceiling, measured, timed};

/// High ceiling in percent, so that launches rarely wait and follow each other closely.
const LIMIT: u32 = 80;
/// Smallest charged time, in percent of the device's busy time, once the cost of a kernel is learned.
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

/// The kernels before each wait are charged by the number of launches: an uncounted launch would not be charged.
#[test]
fn of_forty_short_kernels_and_a_wait_each_is_paid() {
    none_is_forgotten("bursts", &["loop 3000 0 20000 40 0 1 1", "loop 3000 0 20000 40 0 0 0"]);
}

#[test]
fn of_a_queue_of_short_kernels_each_is_paid() {
    none_is_forgotten("queue", &["loop 3000 500 0 1000000 0 1 -1", "loop 3000 500 0 1000000 0 2 -1"]);
}

/// Into one stream, where the end of any thread's sample ends every thread's credit; then each thread into its own
/// stream.
#[test]
fn of_short_kernels_of_four_threads_each_is_paid() {
    none_is_forgotten("threads", &["threads 4 3000 500 40 0 0 0", "threads 4 3000 500 40 0 2 1"]);
}

/// Threads launch at the same time, so that a kernel's two markers may enclose kernels of the other threads.
#[test]
fn of_what_four_threads_launch_little_is_paid_twice() {
    let _alone = alone();
    let own_streams = ["threads 4 5000 MS 40 0 2 1", "threads 4 20000 MS 8 0 1 1", "threads 4 20000 MS 1 0 1 1"];
    for command in own_streams.into_iter().chain(["threads 4 20000 MS 40 0 0 1"]) {
        measured(|| {
            let lab = ceiling(50);
            let mut m = timed(&lab);
            m.ok(&command.replace("MS", "500"));
            let stretch = Stretch::begin(&lab);
            m.ok(&command.replace("MS", "1000"));
            let spent = stretch.end(&lab);
            eprintln!("{command}: share {:.1} %, paid {:.1} %", spent.share(), spent.paid_percent());
            assert!((80.0..=150.0).contains(&spent.paid_percent()), "{command}: {spent:?}");
        });
    }
}

/// The stream is idle while the program uses another one, which keeps the library's clock running.
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
        // The learned cost of a single short kernel varies by a quarter on a busy host; the stream's idle time is
        // several times its work.
        assert!((50.0..=180.0).contains(&spent.paid_percent()), "{spent:?}");
    });
}

/// A row of the table of short kernels.
struct ShortRow {
    launch_ns: u64,
    ceiling: u32,
    command: &'static str,
}

/// Measures each row, and its program alone on the device at the same launch cost.
#[test]
fn kernels_of_a_few_microseconds_get_what_is_due() {
    let rows = [
        (1_000, 30, "loop 5000 MS 0 1000000 0 1 -1"),
        (2_000, 50, "loop 5000 MS 0 1000000 0 1 -1"),
        (2_000, 30, "loop 5000 MS 0 1 0 1 1"),
        (2_000, 30, "loop 10000 MS 0 1 0 1 1"),
        (2_000, 80, "loop 10000 MS 0 64 0 5 0"),
        (4_000, 80, "loop 1000 MS 0 1000000 0 1 -1"),
        (4_000, 80, "loop 2000 MS 0 1000000 0 1 -1"),
        (4_000, 10, "loop 10000 MS 0 1 0 1 1"),
        (4_000, 30, "loop 10000 MS 0 1000000 0 1 -1"),
        (4_000, 50, "loop 20000 MS 0 1 0 1 1"),
        (4_000, 30, "graph 10000 20 MS"),
    ];
    let rows = rows.map(|(launch_ns, ceiling, command)| ShortRow { launch_ns, ceiling, command });
    let _alone = alone();
    for ShortRow { launch_ns, ceiling, command } in rows {
        measured(|| {
            let profile = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(profile.path(), format!("{{\"launch_host_ns\": {launch_ns}}}")).unwrap();
            let profile = format!("h200@{}", profile.path().display());
            let share = |lab: &Lab, warm: &str, ms: &str| {
                let mut m = timed(lab);
                m.ok(&command.replace("MS", warm));
                let stretch = Stretch::begin(lab);
                m.ok(&command.replace("MS", ms));
                stretch.end(lab)
            };
            let bare = share(&Lab::new(&profile), "50", "200");
            let held = share(&Lab::new(&profile).with("VGPU_SM_LIMIT", ceiling.to_string()), "600", "1000");
            let due = f64::from(ceiling).min(bare.share());
            let got = held.share() * 100.0 / due;
            eprintln!(
                "{command}, launch {launch_ns} ns, {ceiling} %: {got:.1} % of {due:.1}, paid {:.1} %",
                held.paid_percent()
            );
            // A program that the processor limits may have been slower alone, on a busy host. Its ceiling is the bound.
            let is_kept = held.share() <= f64::from(ceiling) * 1.05;
            let least = if bare.share() < f64::from(ceiling) { 75.0 } else { 96.0 };
            assert!(got >= least && is_kept, "{command}, {launch_ns} ns, {ceiling} %: {got:.1} % of {due:.1}");
        });
    }
}
