//! Faults of the device: an illegal address in one process, a lost device, a reset. The driver's codes reach the
//! program, nobody else's charges change, and tenants that restart after the reset are served.

#[path = "leases/world.rs"]
mod world;

use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use vgpu_tests::artefacts::vgpu;
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::lab::charged;
use vgpu_tests::{GIB, Lab, MIB, Member, OUT_OF_MEMORY, eventually, run, text};
use world::{World, tenant};

const ILLEGAL_ADDRESS: i64 = 700;
const ECC_UNCORRECTABLE: i64 = 214;
const UNKNOWN_ERROR: i64 = 999;
const NO_DEVICE: i64 = 100;
/// `NVML_ERROR_TIMEOUT`.
const TIMEOUT: i64 = 10;
/// `NVML_ERROR_GPU_IS_LOST`.
const GPU_IS_LOST: i64 = 15;

/// `vgpu sim fault` with these words on the lab's machine.
fn fault_command(lab: &Lab, words: &str) -> Command {
    let mut command = Command::new(vgpu());
    command.args(["sim", "fault"]).args(words.split(' ')).arg("--dir").arg(lab.gpu());
    command
}

fn inject(lab: &Lab, words: &str) {
    run(&mut fault_command(lab, words));
}

/// Refuses with exit code 1, and returns the message.
fn refusal_words(lab: &Lab, words: &str) -> String {
    let out = fault_command(lab, words).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Calls that use the context answer `code`, again and again; calls that do not still work.
fn is_dead(member: &mut Member, pointer: u64, code: i64) {
    for _ in 0..2 {
        for call in ["sync", "info", "alloc 4096", "async 4096", "launch 1000", "primary-reset 0", "create-context 0"] {
            assert_eq!(member.code(call), code, "{call}");
        }
        assert_eq!(member.code(&format!("free {pointer}")), code);
        assert_eq!(member.ok("count").number(0), 1);
    }
}

#[test]
fn after_an_illegal_address_every_call_of_that_process_answers_700_and_its_charges_stay_until_it_ends() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "8GiB").with("VGPU_SM_LIMIT", "50");
    let (mut broken, mut neighbour) = (lab.member(), lab.member());
    let pointer = broken.begin().alloc(2 * GIB);
    neighbour.begin().alloc(GIB);
    broken.ok("launch 1000");
    neighbour.ok("launch 1000");
    let (before, used) = (lab.process(0, neighbour.pid), neighbour.used());
    inject(&lab, &format!("illegal-address --pid {}", broken.pid));
    is_dead(&mut broken, pointer, ILLEGAL_ADDRESS);
    // A refused free frees nothing on the device, so its charge stays too.
    assert!(lab.process(0, broken.pid).live_bytes >= 2 * GIB);
    assert_eq!(neighbour.used(), used);
    assert_eq!(lab.process(0, neighbour.pid).physical_bytes, before.physical_bytes);
    assert_eq!(neighbour.code(&format!("alloc {}", 6 * GIB)), OUT_OF_MEMORY);
    neighbour.ok("launch 1000");
    broken.kill();
    // The bytes of the dead process are free for its neighbour.
    neighbour.alloc(6 * GIB);
    let device = lab.device(0);
    assert_eq!(device.processes.len(), 1, "{device:?}");
    assert_eq!(neighbour.used(), vgpu_tests::lab::shown(8 * GIB, charged(&device)));
    assert!(neighbour.finish().success());
}

#[test]
fn a_wait_for_work_that_a_fault_ended_answers_at_once_with_and_without_a_ceiling() {
    for ceiling in ["100", "30"] {
        let lab = Lab::new("h200").with("VGPU_SM_LIMIT", ceiling);
        for (words, code) in [("illegal-address --pid", ILLEGAL_ADDRESS), ("lost --device 0", UNKNOWN_ERROR)] {
            let mut member = lab.member();
            let pointer = member.begin().alloc(MIB);
            let busy = lab.process(0, member.pid).kernels;
            // An hour of work.
            member.tell("launch 3600000000000");
            eventually("the kernel is on the device", || lab.process(0, member.pid).kernels > busy);
            match words.strip_suffix("--pid") {
                Some(_) => inject(&lab, &format!("{words} {}", member.pid)),
                None => inject(&lab, words),
            }
            assert_eq!(member.answer().code, code, "{words}");
            is_dead(&mut member, pointer, code);
            let busy = lab.process(0, member.pid).busy_ns;
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(lab.process(0, member.pid).busy_ns, busy, "the device works for it no longer");
        }
    }
}

#[test]
fn a_lost_device_is_lost_for_all_until_it_is_reset_after_its_processes() {
    for (loss, code) in [("lost --device 0", UNKNOWN_ERROR), ("lost --device 0 --xid 95", ECC_UNCORRECTABLE)] {
        let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB");
        let mut members = [lab.member(), lab.member()];
        let pointers = members.each_mut().map(|member| {
            member.begin();
            assert_eq!(member.code("nvinit"), 0);
            assert_eq!(member.code("nvmem 0"), 0);
            member.alloc(MIB)
        });
        inject(&lab, loss);
        for (member, pointer) in members.iter_mut().zip(pointers) {
            is_dead(member, pointer, code);
            assert_eq!(member.code("nvmem 0"), GPU_IS_LOST);
            assert_eq!(member.code("nvprocs 0"), GPU_IS_LOST);
        }
        assert_eq!(lab.member().code("init"), NO_DEVICE);
        let words = refusal_words(&lab, "reset --device 0");
        assert!(members.iter().all(|member| words.contains(&member.pid.to_string())), "{words}");
        members.iter_mut().for_each(Member::kill);
        inject(&lab, "reset --device 0");
        let mut later = lab.member();
        later.begin().alloc(3 * GIB);
        later.ok("launch 1000");
        assert_eq!(later.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY);
        assert_eq!(later.code("nvinit"), 0);
        assert_eq!(later.code("nvmem 0"), 0);
        assert!(later.finish().success());
    }
}

#[test]
fn a_lost_device_leaves_the_other_device_of_the_machine_alone() {
    let lab = Lab::new("2xt4").with("VGPU_MEMORY_LIMIT", "4GiB");
    let (mut here, mut there) = (lab.member(), lab.member());
    here.begin().alloc(MIB);
    there.ok("init");
    there.ok("retain 1");
    there.alloc(GIB);
    there.ok("launch 1000");
    let (used, truth) = (there.used(), lab.process(1, there.pid).physical_bytes);
    inject(&lab, "lost --device 0");
    assert_eq!(here.code("sync"), UNKNOWN_ERROR);
    there.ok("launch 1000");
    assert_eq!(there.used(), used);
    assert_eq!(lab.process(1, there.pid).physical_bytes, truth);
    assert_eq!(there.code("retain 0"), UNKNOWN_ERROR);
}

#[test]
fn a_fault_is_refused_in_words_that_name_its_argument() {
    let lab = Lab::new("h200");
    assert!(refusal_words(&lab, "illegal-address --pid 1").contains("--pid 1"));
    assert!(refusal_words(&lab, "lost --device 7").contains("--device 7"));
    assert!(refusal_words(&lab, "reset --device 1").contains("the machine has 1 devices"));
    let out = fault_command(&lab, "lost --device 0 --xid 13").output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", text(&out));
    inject(&lab, "reset --device 0");
}

/// Two tenants of one device, with the daemon's leases.
fn two_tenants(lab: &Lab) -> Daemon {
    let tenants = ["a", "b"].map(|name| (name.to_owned(), "memory_limit = \"8GiB\"".to_owned()));
    let plan = Plan { device: lab.device(0).uuid, time: "arbitrate = true".into(), tenants: tenants.to_vec() };
    Daemon::start(lab.path(), &plan)
}

fn memory_used(daemon: &Daemon, tenant: usize) -> Option<u64> {
    let status: Value = serde_json::from_str(&daemon.tell(&["status", "--json"])).unwrap();
    status["tenants"][tenant]["devices"][0]["memory_used"].as_u64()
}

#[test]
fn a_tenants_fault_frees_its_lease_and_never_changes_its_neighbours_charges() {
    let mut lab = Lab::new("h200");
    let daemon = two_tenants(&lab);
    let mut begin = |tenant: &str, bytes: u64| {
        lab.set("VGPU_SOCKET", daemon.socket(tenant));
        let mut member = lab.member();
        member.begin().alloc(bytes);
        member.ok("launch 1000");
        member
    };
    let (mut broken, mut neighbour) = (begin("a", GIB), begin("b", 2 * GIB));
    let lab = &lab;
    let truth = |pid| lab.process(0, pid).physical_bytes;
    let before = truth(neighbour.pid);
    eventually("the daemon has read both", || memory_used(&daemon, 1).is_some_and(|used| used >= before));
    let kernels = lab.process(0, broken.pid).kernels;
    broken.tell("launch 3600000000000");
    eventually("the kernel is on the device", || lab.process(0, broken.pid).kernels > kernels);
    inject(lab, &format!("illegal-address --pid {}", broken.pid));
    assert_eq!(broken.answer().code, ILLEGAL_ADDRESS);
    // The tenant of the dead context still runs, and each of its launches is refused.
    for _ in 0..50 {
        assert_eq!(broken.code("launch 1000"), ILLEGAL_ADDRESS);
        neighbour.ok("launch 1000");
    }
    let held = |lease: &str| {
        let status: Value = serde_json::from_str(&daemon.tell(&["status", "--json"])).unwrap();
        status["devices"][0]["holder"].as_str() == Some(lease)
    };
    eventually("the lease of the dead context is free", || !held("a"));
    assert_eq!(truth(neighbour.pid), before);
    assert_eq!(memory_used(&daemon, 1), Some(before));
    broken.kill();
    eventually("the charges of the dead process return", || memory_used(&daemon, 0) == Some(0));
    assert_eq!((truth(neighbour.pid), memory_used(&daemon, 1)), (before, Some(before)));
    neighbour.ok("launch 1000");
}

/// Output of `vgpu` about the world's daemon, whatever its exit code.
fn ask(world: &World, words: &[&str]) -> String {
    let mut command = world.lab.bare(vgpu());
    command.args(words).env("VGPU_RUNTIME_DIR", world.lab.path().join("run"));
    String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
}

fn status(world: &World) -> Value {
    serde_json::from_str(&world.status()).unwrap()
}

/// A process of the tenant with 1 GiB that has launched.
fn at_work(world: &mut World, tenant: &str) -> Member {
    let mut member = world.plain(tenant);
    member.begin().alloc(GIB);
    member.ok("launch 1000");
    member
}

#[test]
fn the_daemon_says_which_device_is_lost_since_when_and_serves_tenants_that_restart_after_the_reset() {
    let limit = "memory_limit = \"8GiB\"";
    let mut world =
        World::start(&format!("[proof]\ninterval = \"100ms\"\n{}{}", tenant("a", limit), tenant("b", limit)));
    let uuid = world.lab.device(0).uuid;
    let mut members = [at_work(&mut world, "a"), at_work(&mut world, "b")];
    let lost = format!("vgpu_device_lost{{device=\"{uuid}\"}}");
    eventually("the device is there", || ask(&world, &["metrics"]).contains(&format!("{lost} 0")));
    assert_eq!(status(&world)["devices"][0]["lost_since"], Value::Null);
    let kernels = world.lab.process(0, members[0].pid).kernels;
    members[0].tell("launch 3600000000000");
    eventually("the kernel is on the device", || world.lab.process(0, members[0].pid).kernels > kernels);
    inject(&world.lab, "lost --device 0");
    assert_eq!(members[0].answer().code, UNKNOWN_ERROR);
    assert_eq!(members[1].code("launch 1000"), UNKNOWN_ERROR);
    eventually("the daemon knows the loss", || status(&world)["devices"][0]["lost_since"].is_string());
    let since = status(&world)["devices"][0]["lost_since"].as_str().unwrap().to_owned();
    assert!(ask(&world, &["status"]).contains(&format!("lost since {since}")));
    assert!(ask(&world, &["doctor"]).contains(&format!("{uuid} is lost since {since}")));
    assert!(ask(&world, &["metrics"]).contains(&format!("{lost} 1")));
    members.iter_mut().for_each(Member::kill);
    inject(&world.lab, "reset --device 0");
    eventually("the device is back", || status(&world)["devices"][0]["lost_since"].is_null());
    let events = ask(&world, &["events", "--json", "--kind", "device"]);
    let told: Vec<Value> = events.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let kinds: Vec<_> = told.iter().filter_map(|event| event["kind"].as_str()).collect();
    assert_eq!(kinds, ["device.lost", "device.back"], "{events}");
    assert!(told.iter().all(|event| event["device"] == uuid.as_str()), "{events}");
    let mut later = [at_work(&mut world, "a"), at_work(&mut world, "b")];
    for (at, member) in later.iter_mut().enumerate() {
        let truth = world.lab.process(0, member.pid).physical_bytes;
        eventually("the status is the device's truth", || {
            status(&world)["tenants"][at]["devices"][0]["memory_used"].as_u64() == Some(truth)
        });
        assert_eq!(member.code(&format!("alloc {}", 8 * GIB)), OUT_OF_MEMORY);
        member.ok("launch 1000");
    }
}

#[test]
fn a_device_that_is_lost_before_the_daemons_first_look_is_named_by_its_uuid() {
    let world = World::start(&tenant("a", ""));
    let uuid = world.lab.device(0).uuid;
    inject(&world.lab, "lost --device 0");
    eventually("the daemon knows the loss", || status(&world)["devices"][0]["lost_since"].is_string());
    let events = ask(&world, &["events", "--json", "--kind", "device.lost"]);
    let told: Vec<Value> = events.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let devices: Vec<_> = told.iter().filter_map(|event| event["device"].as_str()).collect();
    assert_eq!(devices, [uuid.as_str()], "{events}");
}

/// The driver names a lost device by its number alone, so the daemon cannot tell its UUID or size.
#[test]
fn a_daemon_that_starts_while_a_device_is_lost_serves_the_other_and_after_the_reset_both() {
    let by_number = |_: &[String]| "[[device]]\nid = 0\n[[device]]\nid = 1\n".to_owned();
    let by_uuid = |uuids: &[String]| uuids.iter().map(|uuid| format!("[[device]]\nid = {uuid:?}\n")).collect();
    let listed = |_: &[String]| "[defaults]\nstrict = false\n".to_owned();
    type Row = (&'static str, fn(&[String]) -> String, &'static str);
    let files: [Row; 3] =
        [("by number", by_number, ""), ("by UUID", by_uuid, ""), ("listed", listed, "devices = [0, 1]\n")];
    for (name, head, lines) in files {
        let mut world = World::start_on("2xt4", "[[tenant]]\nname = \"a\"\n");
        world.kill();
        let devices = [world.lab.device(0), world.lab.device(1)];
        let file = head(&devices.each_ref().map(|device| device.uuid.clone()));
        // A percentage of a device whose size nobody tells is no error here.
        let file = format!("{file}{}", tenant("a", &format!("{lines}memory_limit = \"25%\"")));
        std::fs::write(world.lab.path().join("vgpud.toml"), file).unwrap();
        inject(&world.lab, "lost --device 0");
        world.restart();
        eventually("the daemon answers", || !world.status().is_empty());

        let quarter = devices[1].cuda_total / 4;
        let mut there = world.plain("a");
        there.begin().alloc(GIB);
        assert_eq!(there.info().1, quarter, "{name}");
        assert_eq!(there.code(&format!("alloc {quarter}")), OUT_OF_MEMORY, "{name}");
        assert_eq!(world.lab.process(1, there.pid).live_bytes, GIB, "{name}: the other device");
        let lost = |world: &World| {
            let status = status(world);
            let mut devices = status["devices"].as_array().unwrap().iter();
            devices.find(|device| device["lost_since"].is_string()).map(|device| device["name"].clone())
        };
        eventually("the daemon knows the loss", || lost(&world) == Some("0".into()));
        let told = ask(&world, &["status"]);
        assert!(told.contains("lost since") && told.contains("device 0 does not answer"), "{name}: {told}");

        inject(&world.lab, "reset --device 0");
        let uuids = |world: &World| -> Vec<Value> {
            status(world)["devices"].as_array().unwrap().iter().map(|device| device["uuid"].clone()).collect()
        };
        let both = devices.each_ref().map(|device| Value::from(device.uuid.clone()));
        eventually("the device is served", || uuids(&world) == both && lost(&world).is_none());
        assert!(!ask(&world, &["status"]).contains("does not answer"), "{name}");
        world.lab.set("CUDA_VISIBLE_DEVICES", &devices[0].uuid);
        let mut here = world.plain("a");
        here.begin().alloc(GIB);
        assert_eq!(here.info().1, devices[0].cuda_total / 4, "{name}");
        assert_eq!(world.lab.process(0, here.pid).live_bytes, GIB, "{name}");
        there.alloc(MIB);
        there.ok("launch 1000");
    }
}

#[test]
fn leases_on_a_lost_device_end_while_its_processes_live_and_the_next_ones_get_leases_again() {
    let terms = "sm_limit = \"50%\"";
    let mut world =
        World::start(&format!("[proof]\ninterval = \"100ms\"\n{}{}", tenant("a", terms), tenant("b", terms)));
    for lost in [true, false] {
        eventually("the device is shared by leases", || status(&world)["devices"][0]["arbitrated"] == true);
        let mut other = at_work(&mut world, "b");
        let mut holder = at_work(&mut world, "a");
        let kernels = world.lab.process(0, holder.pid).kernels;
        holder.tell("launch 3600000000000");
        eventually("the kernel is on the device", || world.lab.process(0, holder.pid).kernels > kernels);
        eventually("a has a lease", || status(&world)["devices"][0]["holder"] == "a");
        if lost {
            // Stopped, it neither sees the fault nor says that its work is over.
            holder.signal(libc::SIGSTOP);
            inject(&world.lab, "lost --device 0");
            eventually("nobody holds the lost device", || {
                let device = &status(&world)["devices"][0];
                device["lost_since"].is_string() && device["holder"].is_null()
            });
            assert!(world.explain("a").contains("The driver has lost this device"), "{}", world.explain("a"));
            assert_eq!(other.code("launch 1000"), UNKNOWN_ERROR);
            assert_eq!(status(&world)["devices"][0]["holder"], Value::Null);
        }
        holder.kill();
        other.kill();
        if lost {
            inject(&world.lab, "reset --device 0");
        }
    }
}

/// An answer of `nvevent` with this Xid of the watched device. Nothing in it tells which process caused it.
fn xid_event(number: u64) -> [u64; 5] {
    let no_instance = u64::from(u32::MAX);
    [8, number, 1, no_instance, no_instance]
}

#[test]
fn a_tenant_that_waits_for_nvml_events_gets_the_xids_of_its_device_also_those_of_its_neighbours() {
    let file = format!("{}{}", tenant("a", ""), tenant("b", ""));
    let mut world = World::start_on("2xt4", &file);
    let (mut broken, mut watcher) = (at_work(&mut world, "a"), at_work(&mut world, "b"));
    for member in [&mut broken, &mut watcher] {
        member.ok("nvinit");
        member.ok("nvwatch 0");
        assert_eq!(member.code("nvevent 1"), TIMEOUT);
    }
    let (used, truth) = (watcher.used(), world.lab.process(0, watcher.pid).physical_bytes);
    inject(&world.lab, &format!("illegal-address --pid {}", broken.pid));
    for member in [&mut broken, &mut watcher] {
        let event = member.ask("nvevent 60000");
        assert_eq!((event.code, event.numbers()), (0, xid_event(31).to_vec()));
        assert_eq!(member.code("nvevent 1"), TIMEOUT, "once");
    }
    assert_eq!(broken.code("sync"), ILLEGAL_ADDRESS);
    watcher.ok("launch 1000");
    assert_eq!((watcher.used(), world.lab.process(0, watcher.pid).physical_bytes), (used, truth));
    inject(&world.lab, "lost --device 1");
    assert_eq!(watcher.code("nvevent 1"), TIMEOUT, "the other device is not watched");
    // A wait that began before the loss ends with it.
    watcher.tell("nvevent 60000");
    inject(&world.lab, "lost --device 0");
    let event = watcher.answer();
    assert_eq!((event.code, event.numbers()), (0, xid_event(79).to_vec()));
    assert_eq!(watcher.code("nvevent 60000"), GPU_IS_LOST);
    assert_eq!(watcher.code("nvwatch 0"), GPU_IS_LOST);
}
