//! Device time: a ceiling holds by the simulated device's busy time, for one process and for several of a tenant
//! together. A share is the busy time in percent of the wall clock between two readings that this test takes.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};
use vgpu_tests::program::{Kind, compile, compile_with};
use vgpu_tests::timed::{Stretch, measured};
use vgpu_tests::{Lab, Member, run};

/// Allows one measurement at a time: two cores cannot run several busy devices and their judges at once.
static ALONE: Mutex<()> = Mutex::new(());

const MS: u64 = 1_000_000;

/// Busy nanoseconds of all members, alive or not.
fn busy(lab: &Lab) -> (Instant, u64) {
    let device = lab.device(0);
    (Instant::now(), device.busy_ns)
}

/// Makes each member launch kernels of `ns` for `ms`, with a wait after every `batch` kernels. Returns the device's
/// share in percent, without the first half second, in which the burst is spent and costs are learned.
fn share(lab: &Lab, members: &mut [Member], ns: u64, batch: u64, ms: u64) -> f64 {
    for m in members.iter_mut() {
        m.tell(&format!("work {ns} {} {batch}", ms + 1000));
    }
    thread::sleep(Duration::from_millis(500));
    let (begin, at_begin) = busy(lab);
    thread::sleep(Duration::from_millis(ms));
    let (end, at_end) = busy(lab);
    for m in members.iter_mut() {
        let a = m.answer();
        assert_eq!(a.code, 0, "{a:?}; {}", m.errors());
        assert!(a.number(0) > 0, "it launched");
    }
    #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
    let percent = (at_end - at_begin) as f64 / (end - begin).as_nanos() as f64 * 100.0;
    eprintln!("{} member(s), kernels of {} us, wait after {batch}: {percent:.1} %", members.len(), ns / 1000);
    percent
}

fn members(lab: &Lab, count: usize) -> Vec<Member> {
    (0..count)
        .map(|_| {
            let mut m = lab.member();
            m.begin();
            m
        })
        .collect()
}

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

#[test]
fn thirty_percent_is_thirty_percent_for_a_program_that_waits_after_each_launch() {
    measured(|| {
        let _alone = alone();
        let lab = Lab::new("h200").with("VGPU_SM_LIMIT", "30");
        let got = share(&lab, &mut members(&lab, 1), MS, 1, 3000);
        assert!((25.0..=35.0).contains(&got), "{got} %");
    });
}

#[test]
fn thirty_percent_is_thirty_percent_for_a_program_that_runs_ahead() {
    measured(|| {
        let _alone = alone();
        let lab = Lab::new("h200").with("VGPU_SM_LIMIT", "30");
        let got = share(&lab, &mut members(&lab, 1), MS, 1000, 3000);
        assert!((25.0..=35.0).contains(&got), "{got} %");
    });
}

#[test]
fn hamis_variable_is_a_ceiling_too_and_a_memory_limit_beside_it_changes_nothing() {
    measured(|| {
        let _alone = alone();
        let lab = Lab::new("h200").with("CUDA_DEVICE_SM_LIMIT", "30").with("CUDA_DEVICE_MEMORY_LIMIT", "4g");
        let got = share(&lab, &mut members(&lab, 1), MS, 64, 2000);
        assert!((25.0..=35.0).contains(&got), "{got} %");
    });
}

/// The members take turns, so that no member's samples contain the other's slices: see `turns.rs`. Two separate
/// ceilings would be 60 %.
#[test]
fn two_members_of_a_tenant_share_one_ceiling() {
    measured(|| {
        let _alone = alone();
        let lab = Lab::new("h200").with("VGPU_SM_LIMIT", "30");
        let got = share(&lab, &mut members(&lab, 2), MS, 1, 5000);
        assert!((28.0..=32.0).contains(&got), "{got} %");
    });
}

/// A library that exports `cuLaunchKernel`, looks up the driver's and launches by the answer. Before every caller got
/// the hook, this took the whole device, even under `VGPU_STRICT=1`. The run without the library is the null control.
#[test]
fn a_library_that_exports_the_drivers_names_and_launches_by_them_keeps_its_ceiling() {
    let program = compile_with("host", Kind::Program, &[], &["-rdynamic"]);
    measured(|| {
        let _alone = alone();
        for (way, strict, preloaded) in
            [("BY_HANDLE", "0", true), ("BY_HANDLE", "1", false), ("BY_GET", "1", true), ("BY_NEXT", "1", true)]
        {
            // Linked with the driver, so that RTLD_NEXT finds the driver behind the library.
            let guest = compile("guest", Kind::LinkedLibrary, &["OWN", "NAMED", way]);
            let mut lab = Lab::new("h200").with("VGPU_SM_LIMIT", "30").with("VGPU_STRICT", strict);
            let us = lab.lib().to_owned();
            let both: [&Path; 2] = [&us, &guest];
            lab.preload(if preloaded { &both } else { &both[..1] });
            let share = |command: &mut Command| {
                let stretch = Stretch::begin(&lab);
                let said = run(command.args(["open".as_ref(), guest.as_os_str(), "busy".as_ref(), "2000".as_ref()]));
                assert!(said.trim().parse::<i32>().is_ok_and(|launched| launched > 100), "{said}");
                stretch.end(&lab).share()
            };
            let (bare, held) = (share(&mut lab.bare(&program)), share(&mut lab.command(&program)));
            eprintln!(
                "{way}, strict {strict}, preloaded {preloaded}: {held:.1} % under 30, {bare:.1} % without the library"
            );
            assert!(bare >= 80.0 && (20.0..=38.0).contains(&held), "{way}: {held} %, without the library {bare} %");
        }
    });
}

/// Null control: without a ceiling the same program takes the whole device, so the measurements above are meaningful.
#[test]
fn without_a_ceiling_a_program_gets_the_whole_device() {
    measured(|| {
        let _alone = alone();
        let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB");
        let got = share(&lab, &mut members(&lab, 1), MS, 64, 1500);
        assert!(got >= 90.0, "{got} %");
    });
}

#[test]
fn a_ceiling_of_all_is_none() {
    measured(|| {
        let _alone = alone();
        let lab = Lab::new("h200").with("VGPU_SM_LIMIT", "100");
        let got = share(&lab, &mut members(&lab, 1), MS, 64, 1000);
        assert!(got >= 90.0, "{got} %");
    });
}

const WAYS: [&str; 7] =
    ["plain", "own stream", "cooperative", "huge grid", "extended", "extended, own stream", "retaining"];

/// Every launch function waits for the ceiling in the same way. A library that counts blocks in 32 bits would overflow
/// at the huge grid and credit time instead of charging it. All run at the same time, each on a machine of its own,
/// because they mostly wait.
#[test]
fn every_way_to_launch_pays() {
    let _alone = alone();
    thread::scope(|scope| {
        for (way, name) in WAYS.iter().enumerate() {
            scope.spawn(move || measured(|| pays(way, name)));
        }
    });
}

fn pays(way: usize, name: &str) {
    let lab = Lab::new("h200").with("VGPU_SM_LIMIT", "20");
    let mut m = members(&lab, 1).swap_remove(0);
    let (begin, at_begin) = busy(&lab);
    let a = m.ok(&format!("work 1000000 2000 1 {way}"));
    let (end, at_end) = busy(&lab);
    let (done, launched_ns) = (at_end - at_begin, a.number(0) * MS);
    assert!((launched_ns..launched_ns + launched_ns / 50).contains(&done), "{name}: the kernels, and markers: {done}");
    let percent = done * 100 / u64::try_from((end - begin).as_nanos()).unwrap();
    eprintln!("{name}: {percent} %");
    assert!((13..=27).contains(&percent), "{name}: {percent} %");
}
