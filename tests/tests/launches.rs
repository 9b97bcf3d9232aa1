//! Every function that makes a device work is charged. Under a ceiling the simulated device's busy time stays below it,
//! whichever function the program calls.
//!
//! The bounds are generous: these tests check that a function is charged at all, and `time.rs` checks the precision.
//! Each function has a null control: without the library the same loop takes most of the device.

use shim_sys::table::{CUDA_ROWS, RowAction};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::timed::measured;
use vgpu_tests::{Lab, Member};

/// Allows one measurement at a time: two cores cannot run several busy devices and their judges at once.
static ALONE: Mutex<()> = Mutex::new(());

const MS: u64 = 1_000_000;
/// Bytes of a fill or copy: about half a millisecond for a fill and one for a copy, at the speed in `SLOW`. The
/// simulated device moves bytes with the processor, which must be faster than the device's speed for the device to be
/// busy.
const BYTES: u64 = 64 << 10;
const SLOW: &str = r#"{ "device_bytes_per_us": 100, "host_bytes_per_us": 100 }"#;
/// Ceiling of all tests in this file, in percent.
const CEILING: &str = "20";

fn start(lab: &Lab, with_library: bool) -> Member {
    let program = compile("launches", Kind::Program, &[]);
    Member::start(&mut if with_library { lab.command(program) } else { lab.bare(program) })
}

/// Percent of the wall clock that each device worked while the program looped `way`.
fn shares(lab: &Lab, member: &mut Member, way: &str, n: u64, milliseconds: u64) -> Vec<u64> {
    let busy = |lab: &Lab| lab.truth().devices.iter().map(|device| device.busy_ns).collect::<Vec<_>>();
    let before = busy(lab);
    let answer = member.ok(&format!("{way} {n} {milliseconds} 1"));
    let (calls, took) = (answer.number(0), answer.number(1));
    assert!(calls > 0, "{way}: nothing was done");
    busy(lab).iter().zip(before).map(|(now, before)| (now - before) * 100 / took).collect()
}

/// Least busy share without a ceiling, in percent; far above the ceiling.
const FREE: u64 = 35;
/// Highest busy share under the ceiling, in percent.
const HELD: u64 = 28;

/// Repeats the measurement, for at most 30 s, until the device's share exceeds `FREE` on a busy host. Returns the last
/// one.
fn freely(device: usize, mut measure: impl FnMut() -> Vec<u64>) -> Vec<u64> {
    let begin = Instant::now();
    loop {
        let found = measure();
        if found[device] > FREE || begin.elapsed() > Duration::from_secs(30) {
            return found;
        }
    }
}

/// Functions measured at the same time. Each has a machine of its own and mostly waits.
const AT_ONCE: usize = 4;

/// Measures each function without and with a ceiling, on a machine that `lab` makes for it.
fn pay(lab: impl Fn() -> Lab + Sync, ways: &[&str], n: u64) {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    for ways in ways.chunks(AT_ONCE) {
        thread::scope(|scope| ways.iter().for_each(|way| drop(scope.spawn(|| pays(&lab(), way, n)))));
    }
}

/// Loops `way` without and with a ceiling. Without one the last device works far more than the ceiling. With one the
/// last device works, and every device's share stays below 1.4 times the ceiling.
#[track_caller]
fn pays(lab: &Lab, way: &str, n: u64) {
    let last = lab.truth().devices.len() - 1;
    let bare = freely(last, || shares(lab, &mut start(lab, false), way, n, 300));
    assert!(bare[last] > FREE, "{way}: worked {bare:?} % without a ceiling, so that nothing is shown");
    // Long enough that the burst of 50 ms and the time for learning costs are small against it.
    measured(|| {
        let held = shares(lab, &mut start(lab, true), way, n, 1500);
        eprintln!("{way}: bare {bare:?} %, under {CEILING} % {held:?} %");
        assert!(held[last] > 0 && held.iter().all(|held| *held <= HELD), "{way}: worked {held:?} % under {CEILING} %");
    });
}

fn lab() -> Lab {
    Lab::new("h200").with("VGPU_SM_LIMIT", CEILING)
}

/// A machine with `devices` devices that copy slowly.
fn slow_copies(devices: u32) -> Lab {
    let figures = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(figures.path(), SLOW).expect("own file");
    Lab::new(&format!("{devices}xh200@{}", figures.path().display()))
}

fn charging_copies(devices: u32) -> Lab {
    slow_copies(devices).with("VGPU_SM_LIMIT", CEILING).with("VGPU_CHARGE_COPIES", "1")
}

#[test]
fn launches_and_their_twins_with_a_stream_per_thread_pay() {
    let one = ["kernel", "kernel_ptsz", "extra", "ex", "ex_ptsz"];
    let other = ["cooperative", "cooperative_ptsz", "graph", "graph_ptsz"];
    pay(lab, &[&one[..], &other[..]].concat(), MS);
}

#[test]
fn the_launches_of_cuda_2_pay() {
    pay(lab, &["legacy", "legacy_grid", "legacy_async"], MS);
}

#[test]
fn a_launch_on_several_devices_pays_on_each_of_them() {
    pay(|| Lab::new("2xh200").with("VGPU_SM_LIMIT", CEILING), &["devices"], MS);
}

/// A launch on several devices waits for the one with a ceiling: each grid is part of one launch.
#[test]
fn a_launch_on_several_devices_waits_for_the_one_with_a_ceiling() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let lab = Lab::new("2xh200").with("VGPU_SM_LIMIT_1", CEILING);
    let held = shares(&lab, &mut start(&lab, true), "devices", MS, 2000);
    eprintln!("{held:?} %");
    assert!(held.iter().all(|held| (1..=HELD).contains(held)), "{held:?}");
}

/// Two programs launch on the same devices. Each launch waits for the devices' gates (ceilings) in the same order, so
/// both proceed.
#[test]
fn launches_on_several_devices_by_several_members_do_not_wait_crosswise() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let lab = Lab::new("2xh200").with("VGPU_SM_LIMIT", CEILING);
    let mut members = [start(&lab, true), start(&lab, true)];
    for member in &mut members {
        member.tell(&format!("devices {MS} 2000 1"));
    }
    for member in &mut members {
        let answer = member.answer();
        assert_eq!(answer.code, 0, "{answer:?}; {}", member.errors());
        assert!(answer.number(0) > 20, "{answer:?}");
    }
}

#[test]
fn a_launch_in_a_green_context_pays() {
    pay(|| lab().with("VGPU_SIM_DRIVER", "580"), &["green"], MS);
}

#[test]
fn fills_pay_where_that_is_asked_for() {
    let ways = ["fill", "fill_ptds", "fill_async", "fill_async_ptsz", "fill_rows", "fill_rows_async"];
    pay(|| charging_copies(1), &ways, BYTES);
}

#[test]
fn copies_that_stay_on_devices_pay_where_that_is_asked_for() {
    let plain = ["copy", "copy_ptds", "copy_async", "copy_dtod", "copy_dtod_async", "copy_dtod_async_ptsz"];
    let shaped = ["copy_peer", "copy_sheet", "copy_sheet_async", "copy_block", "copy_block_async", "copy_block_peer"];
    pay(|| charging_copies(1), &[plain, shaped].concat(), BYTES);
}

/// A copy in a stream of the second device, while the first device is current: the second device's ceiling applies and
/// is charged.
#[test]
fn a_copy_pays_where_its_stream_is() {
    pay(|| charging_copies(2), &["elsewhere"], BYTES);
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let lab = slow_copies(2).with("VGPU_SM_LIMIT_0", CEILING).with("VGPU_CHARGE_COPIES", "1");
    let free = freely(1, || shares(&lab, &mut start(&lab, true), "elsewhere", BYTES, 400));
    assert!(free[1] > FREE, "the second device has no ceiling: {free:?}");
}

#[test]
fn copies_are_free_unless_that_is_asked_for() {
    for option in [None, Some("0")] {
        for way in ["fill_async", "copy_async", "copy_sheet"] {
            let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
            let mut lab = slow_copies(1).with("VGPU_SM_LIMIT", CEILING);
            option.into_iter().for_each(|value| lab.set("VGPU_CHARGE_COPIES", value));
            let free = freely(0, || shares(&lab, &mut start(&lab, true), way, BYTES, 400));
            assert!(free[0] > FREE, "{way}: {free:?} %");
        }
    }
}

/// Copies from the host keep the copy engines busy, not the device.
#[test]
fn copies_from_the_host_are_free_also_where_copies_are_charged() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let lab = charging_copies(1);
    let copied = freely(0, || {
        let mut member = start(&lab, true);
        let answer = member.ok(&format!("host {BYTES} 400 1"));
        vec![lab.process(0, member.pid).copying_ns * 100 / answer.number(1)]
    });
    assert!(copied[0] > FREE, "{copied:?} %");
}

/// Every row of the table whose name suggests device work is hooked or states the reason why not. Functions that launch
/// without a hook launch host code.
#[test]
fn every_function_that_launches_or_copies_is_hooked_or_says_why_not() {
    let mut counts = [0; 2];
    for row in CUDA_ROWS {
        let launches =
            row.name.starts_with("cuLaunch") || row.name.contains("GraphLaunch") || row.name.contains("Decompress");
        let moves =
            row.name.starts_with("cuMemcpy") || row.name.starts_with("cuMemset") || row.name.contains("FabricCpy");
        match row.action {
            RowAction::Hook(subject) if launches || moves => {
                assert!(["kernel", "launch", "copy"].contains(&subject), "{}: {subject}", row.name);
                counts[usize::from(moves)] += 1;
            }
            RowAction::Hook(_) => {}
            RowAction::Pass(why) if launches => assert!(why.contains("host code"), "{}: {why}", row.name),
            RowAction::Pass(why) if moves => assert!(why.contains("between host and device"), "{}: {why}", row.name),
            RowAction::Pass(_) => {}
            RowAction::Deny(_) | RowAction::Hide(_) => panic!("{}: nothing of CUDA's is shut", row.name),
        }
    }
    assert_eq!(counts, [14, 86], "launches, and copies and fills");
}
