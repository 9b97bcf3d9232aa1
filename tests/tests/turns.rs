//! Members of one tenant take turns on the device. Together they get their ceiling and each gets its part, whichever
//! member stops or dies. The simulated device's busy time is the judge.

use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::timed::{Stretch, measured};
use vgpu_tests::{Lab, Member};

/// Allows one measurement at a time: two cores cannot run several busy devices and their judges at once.
static ALONE: Mutex<()> = Mutex::new(());

/// Liveness bound, which only a hang reaches.
const PATIENCE: Duration = Duration::from_secs(30);

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

fn lab(percent: u32) -> Lab {
    Lab::new("h200").with("VGPU_SM_LIMIT", percent.to_string())
}

fn member(lab: &Lab) -> Member {
    let mut m = Member::start(&mut lab.command(compile("turns", Kind::Program, &[])));
    m.ok("begin");
    m
}

/// Device time of each member so far, and the time of the reading.
fn served(lab: &Lab, members: &[Member]) -> (Instant, Vec<u64>) {
    let truth = lab.truth();
    (Instant::now(), members.iter().map(|m| truth.living_process(0, m.pid).map_or(0, |p| p.busy_ns)).collect())
}

/// Percent of the device that each member gets during `time`, after half a second in which bursts are spent.
fn shares(lab: &Lab, members: &[Member], time: Duration) -> Vec<f64> {
    thread::sleep(Duration::from_millis(500));
    let (begin, before) = served(lab, members);
    thread::sleep(time);
    let (end, after) = served(lab, members);
    #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
    let percent = |(a, b): (&u64, &u64)| (b - a) as f64 / (end - begin).as_nanos() as f64 * 100.0;
    before.iter().zip(&after).map(percent).collect()
}

fn finish(members: &mut [Member]) {
    for m in members {
        let a = m.answer();
        assert_eq!(a.code, 0, "{a:?}; {}", m.errors());
    }
}

/// Starts one member for each load: kernel in us, kernels before a pause, pause in us.
fn start(lab: &Lab, loads: &[(u64, u64, u64)], ms: u64) -> Vec<Member> {
    let mut members: Vec<Member> = loads.iter().map(|_| member(lab)).collect();
    for (m, (us, count, pause)) in members.iter_mut().zip(loads) {
        m.tell(&format!("bursts {} {count} {pause} {ms}", us * 1000));
    }
    members
}

/// Waits until `holds` is true.
#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn two_members_get_the_ceiling_together_and_half_of_it_each() {
    measured(|| {
        let _alone = alone();
        let lab = lab(30);
        let mut members = start(&lab, &[(1000, 1, 0), (1000, 1, 0)], 4_200);
        let got = shares(&lab, &members, Duration::from_secs(3));
        eprintln!("two: {got:.1?}");
        finish(&mut members);
        let sum: f64 = got.iter().sum();
        assert!((28.0..=32.0).contains(&sum) && got.iter().all(|part| (12.0..=18.0).contains(part)), "{got:?}");
    });
}

#[test]
fn four_members_of_different_kernels_get_a_quarter_each() {
    measured(|| {
        let _alone = alone();
        let lab = lab(30);
        let mut members = start(&lab, &[(200, 8, 0), (1000, 1, 0), (5000, 1, 0), (20_000, 1, 0)], 4_200);
        let got = shares(&lab, &members, Duration::from_secs(3));
        eprintln!("four: {got:.1?}");
        finish(&mut members);
        let sum: f64 = got.iter().sum();
        assert!((28.0..=32.0).contains(&sum) && got.iter().all(|part| (5.5..=9.5).contains(part)), "{got:?}");
    });
}

/// Kernels so short that most have no event marker. The end of a turn must show that the work after the last marker is
/// complete, without waiting until the turn has long passed.
///
/// The device's switch between members is charged to neither: at 10 % a turn is a dozen launches.
#[test]
fn two_members_of_short_kernels_get_the_ceiling_and_pay_for_what_they_used() {
    for (percent, least, most) in [(80, 76.0, 82.0), (10, 9.4, 10.7)] {
        measured(|| {
            let _alone = alone();
            let lab = lab(percent);
            let mut members = start(&lab, &[(50, 64, 0), (50, 64, 0)], 5_500);
            thread::sleep(Duration::from_secs(1));
            let stretch = Stretch::begin(&lab);
            thread::sleep(Duration::from_secs(4));
            let spent = stretch.end(&lab);
            finish(&mut members);
            spent.is_paid_within(5.0, &format!("two members at {percent} %"));
            assert!((least..=most).contains(&spent.share()), "{percent} %: {:.2}", spent.share());
        });
    }
}

/// Cost of a thread that waits for its balance: it knows when the balance will suffice, so it sleeps until then.
#[test]
fn a_throttled_thread_sleeps_a_few_times_for_each_launch() {
    let _alone = alone();
    let lab = lab(10);
    let mut m = member(&lab);
    m.ok("bursts 2000000 4 0 500");
    let before = m.ok("usage").numbers();
    let begin = Instant::now();
    let launched = m.ok("bursts 2000000 4 0 3000").number(0);
    let wall = begin.elapsed();
    let after = m.ok("usage").numbers();
    let (us, slept) = (after[0] - before[0], after[1] - before[1]);
    #[allow(clippy::cast_precision_loss)] // microseconds that add up to seconds
    let core = us as f64 / wall.as_micros() as f64 * 100.0;
    eprintln!("{launched} launches: {slept} sleeps, {core:.2} % of a core");
    assert!(launched > 50, "{launched}");
    // Two sleeps for each launch, plus the waits for the last four launches.
    assert!(slept <= launched * 4, "{slept} sleeps for {launched} launches");
    assert!(core < 5.0, "{core:.2} % of a core");
}

/// One member launches 1 ms of work and makes no call for 50 ms. Only a thread of the library can notice that its work
/// has completed.
#[test]
fn a_member_that_computes_leaves_the_device_to_the_other() {
    measured(|| {
        let _alone = alone();
        let lab = lab(90);
        let mut members = start(&lab, &[(1000, 1, 50_000), (1000, 64, 0)], 4_000);
        let got = shares(&lab, &members, Duration::from_secs(3));
        eprintln!("computing and busy: {got:.1?}");
        finish(&mut members);
        assert!(got.iter().sum::<f64>() >= 80.0, "{got:?}");
        assert!(got[0] >= 1.0, "it gets what it wants: {got:?}");
    });
}

#[test]
fn a_member_that_is_killed_or_stopped_in_its_turn_holds_up_nobody() {
    measured(|| {
        let _alone = alone();
        let lab = lab(30);
        let mut members = start(&lab, &[(1000, 64, 0), (1000, 64, 0), (1000, 64, 0)], 5_000);
        thread::sleep(Duration::from_millis(700));
        members[0].kill();
        thread::sleep(Duration::from_millis(300));
        lab.stop(&members[1]);
        let got = shares(&lab, &members[2..], Duration::from_secs(3));
        eprintln!("beside a stopped one: {got:.1?}");
        members[1].signal(libc::SIGCONT);
        assert!((27.0..=32.5).contains(&got[0]), "{got:?}");
        finish(&mut members[1..]);
    });
}

#[test]
fn the_thread_comes_with_contention_takes_no_signal_and_goes() {
    let _alone = alone();
    let lab = lab(50);
    let mut one = member(&lab);
    one.ok("bursts 1000000 4 0 300");
    assert_eq!(one.ok("threads").numbers(), [0, 0], "alone there is none");
    let mut other = member(&lab);
    other.tell("bursts 1000000 4 0 3000");
    one.tell("bursts 1000000 4 0 1500");
    for _ in 0..100 {
        one.signal(libc::SIGUSR1);
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(one.answer().code, 0);
    assert_eq!(one.ok("threads").numbers(), [1, 0], "one thread, all signals blocked");
    let handled = one.ok("handled").numbers();
    assert!(handled[0] > 0 && handled[1] == 0, "handled, elsewhere: {handled:?}");
    assert_eq!(other.answer().code, 0);
    until("the thread does not end", || {
        one.ok("threads").numbers() == [0, 0] && other.ok("threads").numbers() == [0, 0]
    });
}

/// The child of an initialised process cannot use the driver. Its calls must not disturb the turn.
#[test]
fn a_child_forked_beside_the_thread_has_none_and_holds_up_nobody() {
    let _alone = alone();
    let lab = lab(50);
    let mut other = member(&lab);
    other.tell("bursts 1000000 4 0 2500");
    let mut one = member(&lab);
    one.ok("bursts 1000000 4 0 500");
    assert_eq!(one.ok("threads").number(0), 1);
    one.tell("fork");
    assert_eq!(one.answer().code, 0, "the child says its number");
    assert_eq!(one.ok("threads").number(0), 0, "it has none");
    assert_ne!(one.ask("bursts 1000000 4 0 500").code, 0);
    let before = lab.process(0, other.pid).busy_ns;
    until("the other waits for ever", || lab.process(0, other.pid).busy_ns > before + 100_000_000);
    one.tell("exit 0");
    assert_eq!(one.answer().number(0), 0, "the parent goes on");
    one.ok("bursts 1000000 4 0 300");
    assert_eq!(other.answer().code, 0);
}

/// Under MPS processes run at the same time, and no member waits for another.
#[test]
fn under_mps_there_are_no_turns() {
    let _alone = alone();
    let lab = Lab::new("h200:mps").with("VGPU_SM_LIMIT", "50");
    let mut members = start(&lab, &[(1000, 4, 0), (1000, 4, 0)], 1000);
    finish(&mut members);
    for m in &mut members {
        assert_eq!(m.ok("threads").number(0), 0);
    }
}

/// Chance decides where a launch is killed: before it takes the turn, while it holds the turn, or between two writes to
/// shared memory.
#[test]
fn members_killed_at_random_leave_nobody_waiting_and_the_ceiling_holds() {
    const KILLS: u64 = 200;
    let _alone = alone();
    let lab = lab(30);
    let fresh = |lab: &Lab| {
        let mut m = member(lab);
        m.tell("bursts 500000 4 0 600000");
        m
    };
    let mut steady = fresh(&lab);
    let mut doomed: Vec<Member> = (0..3).map(|_| fresh(&lab)).collect();
    let (begin, before) = (Instant::now(), lab.device(0).busy_ns);
    let mut random = fastrand::Rng::with_seed(1);
    for kill in 0..KILLS {
        thread::sleep(Duration::from_micros(random.u64(..20_000)));
        let at = usize::try_from(kill % 3).unwrap();
        doomed[at].kill();
        doomed[at] = fresh(&lab);
    }
    let (end, after) = (Instant::now(), lab.device(0).busy_ns);
    #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
    let (elapsed, done) = ((end - begin).as_nanos() as f64, (after - before) as f64);
    // A killed member does not pay for its work in flight, at most 2 ms; the start had a burst of 15 ms.
    #[allow(clippy::cast_precision_loss)]
    let most = elapsed * 0.31 + KILLS as f64 * 2.5e6 + 15e6;
    eprintln!("{KILLS} kills in {:.1} s: {:.1} %", elapsed / 1e9, done / elapsed * 100.0);
    assert!(done <= most, "{done} of {most}");
    // No killed process keeps the turn: every living member gets device time now.
    doomed.push(steady);
    let (_, at_first) = served(&lab, &doomed);
    until("a member waits for ever", || served(&lab, &doomed).1.iter().zip(&at_first).all(|(now, then)| now > then));
    steady = doomed.swap_remove(3);
    steady.kill();
}
