//! Programs in pid namespaces of their own, as in containers. Each is process 1 there, so its number on the host must
//! come from the kernel: in the driver's list of processes, in the daemon's check, and in the arbitration by both.

#[path = "leases/world.rs"]
#[allow(unused_imports, reason = "this program uses a part")]
mod world;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use vgpu_tests::optional;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{Lab, Member};
use world::{World, alone, tenant};

/// A pid namespace and a /proc of its own, as a container has them.
const UNSHARE: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];

/// Starts a program in a pid namespace of its own, with a context. `member`: with the library.
fn contained(lab: &Lab, member: bool) -> Member {
    let mut unshare = if member { lab.command("unshare") } else { lab.bare("unshare") };
    let mut m = Member::start(unshare.args(UNSHARE).arg(compile("member", Kind::Program, &[])).arg("dlsym"));
    assert_eq!(m.pid, 1);
    m.begin();
    m
}

fn has_namespaces() -> bool {
    let can = Command::new("unshare").args(UNSHARE).arg("true").status().is_ok_and(|status| status.success());
    if !can {
        optional::skipped("a pid namespace: unshare is refused here");
    }
    can
}

/// Processes of the host that run this program's `member` and are number 1 in their own namespace.
fn processes_numbered_1(lab: &Lab) -> BTreeSet<u64> {
    let member = compile("member", Kind::Program, &[]);
    let directory = format!("VGPU_SIM_DIR={}", lab.gpu().display());
    let numbers = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let levels = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let is_here = environment.split(|byte| *byte == 0).any(|word| word == directory.as_bytes());
        let is_first = levels.split_whitespace().count() > 1 && levels.split_whitespace().next_back() == Some("1");
        (is_first && is_here && fs::read_link(entry.path().join("exe")).ok()? == member).then_some(number)
    });
    numbers.collect()
}

/// Numbers in the driver's list of processes, as this program sees it.
fn listed(m: &mut Member) -> Vec<u64> {
    m.ok("nvinit");
    m.ok("nvprocs 0").numbers().into_iter().step_by(2).collect()
}

/// A real driver leaves out processes without a number in the caller's namespace
/// (docs/simulated-device.md#processes-in-containers).
#[test]
fn the_driver_tells_each_process_by_its_number_in_the_callers_namespace_and_leaves_out_those_without_one() {
    if !has_namespaces() {
        return;
    }
    let lab = Lab::new("h200").with("VGPU_SIM_DRIVER", "580");
    let (mut first, mut second) = (contained(&lab, false), contained(&lab, false));
    let inside = processes_numbered_1(&lab);
    assert_eq!(inside.len(), 2, "{inside:?}");
    let mut host = lab.bare_member();
    host.begin();
    let all = listed(&mut host).into_iter().collect::<BTreeSet<_>>();
    assert_eq!(all, inside.iter().copied().chain([host.pid.into()]).collect(), "seen from the host");
    assert_eq!([&mut first, &mut second].map(listed), [[1], [1]], "seen from inside");
    let truth: BTreeSet<u64> = lab.device(0).processes.iter().map(|process| process.pid.into()).collect();
    assert_eq!(truth, all, "the device's own list");
    // Calls name processes by the same numbers.
    host.ok(&format!("suspend lock {}", inside.first().unwrap()));
    let locked: Vec<u64> = inside.iter().map(|pid| host.ok(&format!("suspend state {pid}")).number(0)).collect();
    assert_eq!(locked, [1, 0]);
    host.ok(&format!("suspend unlock {}", inside.first().unwrap()));
    // A program that uses NVML and leaves it again keeps its number.
    first.ok("nvshutdown");
    assert_eq!(listed(&mut host).into_iter().collect::<BTreeSet<_>>(), all);
}

/// Percent of the device that the members got, in the order in which they began, in this time.
#[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
fn shares(lab: &Lab, time: Duration) -> Vec<f64> {
    let busy = || {
        let truth = lab.truth();
        (truth.at_ns, truth.devices[0].processes.iter().map(|process| process.busy_ns).collect::<Vec<_>>())
    };
    let (began, before) = busy();
    thread::sleep(time);
    let (ended, after) = busy();
    before.iter().zip(after).map(|(a, b)| (b - a) as f64 * 100.0 / (ended - began) as f64).collect()
}

/// The daemon names a process past the library within 3 s. It named process 1 of the host while the device's list told
/// the numbers inside of containers; the floors were wrong from then on.
#[test]
fn floors_of_containers_hold_although_each_program_is_process_1_and_nobody_is_named() {
    if !has_namespaces() {
        return;
    }
    let _alone = alone();
    let mut world = World::start(&(tenant("small", "sm_request = 30") + &tenant("big", "sm_request = 70")));
    let mut members: Vec<Member> = ["small", "big"]
        .into_iter()
        .map(|tenant| {
            world.lab.set("VGPU_SOCKET", world.socket(tenant));
            contained(&world.lab, true)
        })
        .collect();
    for m in &mut members {
        // One function, first short and then long.
        m.ok("launch 1000");
        m.tell("work 500000 9000 16");
    }
    thread::sleep(Duration::from_secs(4));
    let got = shares(&world.lab, Duration::from_secs(4));
    eprintln!("{got:.1?}");
    let status: serde_json::Value = serde_json::from_str(&world.status()).unwrap();
    assert_eq!(status["findings"], serde_json::json!([]), "{got:.1?}");
    // On a busy host both get less, in proportion.
    let part = got[0] * 100.0 / got.iter().sum::<f64>();
    assert!((26.0..34.0).contains(&part), "floors of 30 and 70 %: {got:.1?}");
    for m in &mut members {
        let done = m.answer();
        assert_eq!((done.code, m.errors()), (0, String::new()), "{done:?}");
        assert_eq!(listed(m), [1], "the tenant sees itself");
    }
}
