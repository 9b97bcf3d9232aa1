//! The sequences of driver calls that well-known programs make, one module per program or group. The programs
//! themselves cannot run here; their calls are public, and each module names the file that shows them. The simulated
//! device's record is the judge. Where no limit is reached, every answer is the driver's own.

mod captured_graphs;
mod collectives;
mod direct_storage;
mod elastic_cache;
mod expandable_segments;
mod growing_pool;
mod multicast;
mod second_preload;
mod servers;
mod sleep_mode;

use std::time::{Duration, Instant};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{Lab, Member};

/// Granularity of physical allocations on the simulated device.
const PAGE: u64 = 2 << 20;
/// Time limit for a wait. A memory query looks for dead members every 50 ms.
const PATIENCE: Duration = Duration::from_secs(30);
/// Handle type of an exported allocation: a POSIX file descriptor.
const DESCRIPTOR: u64 = 1;

fn lab(profile: &str, limit: &str) -> Lab {
    Lab::new(profile).with("VGPU_MEMORY_LIMIT", limit).with("VGPU_TENANT", "one")
}

/// A program with the primary context of device 0, with the library or without it.
fn started(lab: &Lab, with_library: bool) -> Member {
    let program = compile("share", Kind::Program, &[]);
    let mut member = Member::start(&mut if with_library { lab.command(program) } else { lab.bare(program) });
    member.begin();
    member
}

fn program(lab: &Lab) -> Member {
    started(lab, true)
}

/// A rank of a collective, with the primary context of its device.
fn rank(lab: &Lab, device: usize) -> Member {
    rank_with(lab, device, &[])
}

/// As [`rank`]; it finds each function by cuGetProcAddress.
fn rank_by_lookup(lab: &Lab, device: usize) -> Member {
    rank_with(lab, device, &["get"])
}

fn rank_with(lab: &Lab, device: usize, arguments: &[&str]) -> Member {
    let mut member = Member::start(lab.command(compile("share", Kind::Program, &[])).args(arguments));
    member.ok("init");
    member.ok(&format!("retain {device}"));
    member
}

#[track_caller]
fn number(member: &mut Member, command: &str) -> u64 {
    member.ok(command).number(0)
}

/// Waits until the shown bytes equal those on device 0, and returns them.
#[track_caller]
fn agrees(lab: &Lab, member: &mut Member) -> u64 {
    agrees_on(lab, member, 0)
}

/// As [`agrees`], for a device that is the member's current one.
#[track_caller]
fn agrees_on(lab: &Lab, member: &mut Member, device: usize) -> u64 {
    let begin = Instant::now();
    loop {
        let (shown, there) = (member.used(), lab.device(device).used);
        if shown == there {
            return shown;
        }
        assert!(begin.elapsed() < PATIENCE, "shown {shown}, on the device {there}: {:?}", lab.device(device));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Creates a physical allocation, maps it at `at` and lets device 0 use it. Returns the handle, or the first code
/// that is not 0.
#[track_caller]
fn try_to_map(member: &mut Member, at: u64, bytes: u64, kinds: u64) -> Result<u64, i64> {
    let created = member.ask(&format!("create {bytes} 0 {kinds}"));
    if created.code != 0 {
        return Err(created.code);
    }
    let handle = created.number(0);
    member.ok(&format!("map {at} {bytes} {handle}"));
    member.ok(&format!("allow {at} {bytes} 0 1"));
    Ok(handle)
}

/// Runs the sequence with the library and without it, each on a machine of its own, and compares all its answers and
/// the bytes that it leaves on device 0.
#[track_caller]
fn same_answers<T: PartialEq + std::fmt::Debug>(profile: &str, limit: &str, sequence: impl Fn(&Lab, &mut Member) -> T) {
    let [with, without] = [true, false].map(|with_library| {
        let lab = lab(profile, limit);
        let mut member = started(&lab, with_library);
        let answers = sequence(&lab, &mut member);
        assert_eq!(member.errors(), "", "nothing to say");
        (answers, lab.process(0, member.pid).physical_bytes)
    });
    assert_eq!(with, without, "with the library, and without it");
}
