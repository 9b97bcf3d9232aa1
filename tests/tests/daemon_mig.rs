//! MIG instances under the daemon. A device with MIG enabled appears as its instances: in the file, in limits, leases,
//! status and findings.
//!
//! Names that NVML and CUDA write differently: `daemon_devices.rs`; without a daemon: `visible.rs`.

#[path = "leases/world.rs"]
mod world;

use serde_json::Value;
use std::fs;
use std::process::{Command, Output};
use vgpu_tests::artefacts::{libvgpu, sim_dir, vgpu, vgpud};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, MIB, Member, NOT_PERMITTED, OUT_OF_MEMORY, text};
use world::{World, alone, eventually, finish, tenant};

/// A whole device as number 0, and three instances on device number 1.
const MIXED: &str = "t4,a100:mig=3g.40gb+1g.10gb+1g.10gb";

/// UUIDs and CUDA's sizes of all devices: the whole device first, then the instances.
fn devices(world: &World) -> Vec<(String, u64)> {
    world.lab.truth().devices.into_iter().map(|device| (device.uuid, device.cuda_total)).collect()
}

/// A process of the tenant that sees one device.
fn member_on(world: &mut World, tenant: &str, uuid: &str) -> Member {
    world.lab.set("CUDA_VISIBLE_DEVICES", uuid);
    world.plain(tenant)
}

fn status(world: &World) -> Value {
    serde_json::from_str(&world.status()).unwrap()
}

fn row<'s>(status: &'s Value, tenant: &str, device: &str) -> &'s Value {
    let tenants = status["tenants"].as_array().unwrap();
    let rows = tenants.iter().find(|one| one["name"] == tenant).unwrap()["devices"].as_array().unwrap();
    rows.iter().find(|row| row["device"] == device).unwrap_or_else(|| panic!("{tenant} has no {device}: {rows:?}"))
}

/// Output of a `vgpu` command about the daemon.
#[track_caller]
fn told(world: &World, words: &[&str]) -> String {
    let mut command = Command::new(vgpu());
    command.args(words).arg("--socket").arg(world.lab.path().join("run/admin.sock")).env("VGPU_LIBRARY", libvgpu());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn check(world: &World) -> Output {
    world.lab.bare(vgpud()).arg("--check").arg(world.lab.path().join("vgpud.toml")).output().unwrap()
}

#[test]
fn a_file_that_names_no_device_serves_whole_devices_and_instances_with_percentages_of_each() {
    let mut world = World::start_on(MIXED, &tenant("a", "memory_limit = \"25%\""));
    let all = devices(&world);
    let mut members = Vec::new();
    for (at, (uuid, memory)) in all.iter().enumerate() {
        let mut m = member_on(&mut world, "a", uuid);
        m.begin();
        assert_eq!(m.info().1, memory / 4, "device {at}");
        assert_eq!(m.code(&format!("alloc {}", memory / 4)), OUT_OF_MEMORY, "device {at}");
        m.alloc(GIB);
        assert_eq!(m.errors(), "");
        members.push(m);
    }
    let name = |at: usize| if at == 0 { "0".to_owned() } else { all[at].0.clone() };
    eventually("what is held on each device is known", || {
        let status = status(&world);
        (0..all.len()).all(|at| row(&status, "a", &name(at))["memory_used"].as_u64().is_some_and(|used| used > GIB))
    });
    let status = status(&world);
    let told = status["devices"].as_array().unwrap();
    assert_eq!(told.len(), all.len(), "{told:?}");
    for (at, (uuid, memory)) in all.iter().enumerate() {
        let device = &told[at];
        assert_eq!((&device["name"], &device["uuid"]), (&name(at).into(), &uuid.as_str().into()), "{device}");
        assert_eq!(device["memory"], *memory, "{device}");
        assert_eq!(row(&status, "a", &name(at))["memory_limit"], memory / 4);
    }
    assert!(told[1]["model"].as_str().unwrap().ends_with("MIG 3g.40gb"), "{told:?}");
    let plan = text(&check(&world));
    for (uuid, memory) in &all[1..] {
        let line = plan.lines().find(|line| line.starts_with(uuid)).unwrap_or_else(|| panic!("no {uuid}: {plan}"));
        assert!(line.contains(&vgpu_core::units::bytes::Bytes(*memory).to_string()), "{line}");
    }
}

#[test]
fn leases_are_given_for_an_instance_and_its_time_is_counted_there_alone() {
    let limits = "memory_limit = \"10%\"\nsm_limit = 40";
    let mut world = World::start_on(MIXED, &(tenant("a", limits) + &tenant("b", limits)));
    let all = devices(&world);
    world.lab.set("CUDA_VISIBLE_DEVICES", &all[2].0);
    let mut members = world.at_work(&[("a", 500, 100, 0), ("b", 500, 100, 0)], 3000);
    let mut holders = std::collections::BTreeSet::new();
    eventually("both hold the instance in turn", || {
        let status = status(&world);
        let told = status["devices"].as_array().unwrap();
        holders.extend(told[2]["holder"].as_str().map(str::to_owned));
        assert_eq!((&told[1]["holder"], &told[3]["holder"]), (&Value::Null, &Value::Null), "{told:?}");
        holders.len() == 2
    });
    world::finish(&mut members);
    let status = status(&world);
    for tenant in ["a", "b"] {
        let seconds = row(&status, tenant, &all[2].0)["time"]["gpu_seconds"].as_f64().unwrap();
        // 40 % of three seconds, with a margin for a loaded machine.
        assert!((0.3..=1.4).contains(&seconds), "{tenant} {seconds}");
    }
}

#[test]
fn the_number_of_a_partitioned_device_stands_for_its_instances_and_a_uuid_for_one() {
    let names = {
        let world = World::start_on(MIXED, &tenant("a", ""));
        devices(&world)
    };
    let [_, first, second, third] = names.as_slice() else { panic!("{names:?}") };
    let file = format!(
        "[[device]]\nid = 0\n[[device]]\nid = 1\novercommit = 2\n{}{}{}",
        tenant("board", "devices = [1]\nmemory_limit = \"50%\""),
        tenant("one", &format!("devices = [{:?}]\nmemory_limit = \"80%\"", second.0)),
        tenant(
            "two",
            &format!(
                "devices = [1]\nmemory_limit = \"10%\"\n[[tenant.device]]\nid = {:?}\nmemory_limit = \"60%\"",
                third.0
            )
        ),
    );
    // The lab's machine is created again; an instance keeps its UUID.
    let mut world = World::start_on(MIXED, &file);
    assert_eq!(devices(&world), names);
    for (uuid, memory) in [first, second, third] {
        let mut m = member_on(&mut world, "board", uuid);
        m.begin();
        assert_eq!(m.info().1, memory / 2, "{uuid}");
        let mut m = member_on(&mut world, "one", uuid);
        if uuid == &second.0 {
            m.begin();
            assert_eq!(m.info().1, memory * 8 / 10);
        } else {
            assert_eq!(m.code("init"), NOT_PERMITTED);
            assert!(m.errors().contains("is not one of the devices of tenant one"), "{}", m.errors());
        }
        let mut m = member_on(&mut world, "two", uuid);
        m.begin();
        assert_eq!(m.info().1, if uuid == &third.0 { memory * 6 / 10 } else { memory / 10 }, "{uuid}");
    }
    let mut m = member_on(&mut world, "board", &names[0].0);
    assert_eq!(m.code("init"), NOT_PERMITTED, "the whole device is not listed");
}

#[test]
fn processes_on_instances_are_found_and_named_by_their_instance() {
    let mut world = World::start_on(
        MIXED,
        &format!("[proof]\ninterval = \"100ms\"\nslack = \"64MiB\"\n{}", tenant("a", "memory_limit = \"2GiB\"")),
    );
    let all = devices(&world);
    world.lab.set("CUDA_VISIBLE_DEVICES", &all[3].0);
    let mut stranger = world.lab.bare_member();
    stranger.begin();
    world.lab.set("CUDA_VISIBLE_DEVICES", &all[1].0);
    world.lab.set("VGPU_SOCKET", world.socket("a"));
    let mut past = Member::start(&mut world.lab.command(compile("escape", Kind::Program, &[])));
    past.ok("begin");
    past.ok(&format!("alloc {}", 4 * MIB));
    let mut honest = member_on(&mut world, "a", &all[1].0);
    honest.begin();
    honest.alloc(100 * MIB);
    past.ok(&format!("read {}", 2 * GIB));
    let found = |pid: u32| {
        let status = status(&world);
        status["findings"].as_array().unwrap().iter().find(|finding| finding["pid"] == pid).cloned()
    };
    for (pid, what, device) in [(stranger.pid, "uncontrolled", &all[3].0), (past.pid, "over", &all[1].0)] {
        eventually(what, || found(pid).is_some_and(|finding| finding["what"] == what));
        assert_eq!(found(pid).unwrap()["device"], **device);
    }
    assert_eq!(found(honest.pid), None);
}

#[test]
fn top_has_each_instance_under_the_name_that_status_has_with_its_own_processes() {
    let mut world = World::start_on(MIXED, &tenant("a", "memory_limit = \"2GiB\""));
    let all = devices(&world);
    let mut members = Vec::new();
    for (at, (uuid, _)) in all.iter().enumerate().take(3) {
        // Two processes are on the second instance.
        for _ in 0..if at == 2 { 2 } else { 1 } {
            let mut m = member_on(&mut world, "a", uuid);
            m.begin();
            members.push(m);
        }
    }
    let top = told(&world, &["top", "--once"]);
    let processes = |device: &str| {
        let row = top.lines().find(|line| line.split_whitespace().take(2).eq(["a", device]))?;
        row.split_whitespace().rev().nth(1).map(str::to_owned)
    };
    let status = status(&world);
    let told_names: Vec<&str> =
        status["devices"].as_array().unwrap().iter().map(|device| device["name"].as_str().unwrap()).collect();
    let counts: Vec<Option<String>> = told_names.iter().map(|name| processes(name)).collect();
    assert_eq!(counts, ["1", "1", "2", "0"].map(|count| Some(count.to_owned())), "{top}");
    let instance = top.lines().find(|line| line.starts_with(&format!("device {}: ", all[1].0)));
    assert!(instance.is_some_and(|line| line.ends_with("MIG 3g.40gb")), "{top}");
    let one = told(&world, &["top", "--once", "--device", &all[2].0]);
    assert_eq!((one.matches("MIG-").count(), one.matches(&all[2].0).count()), (2, 2), "its line and its row: {one}");
    let json: Value = serde_json::from_str(&told(&world, &["top", "--once", "--json"])).unwrap();
    let names =
        |status: &Value| status["devices"].as_array().unwrap().iter().map(|d| d["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(&json), names(&status));
}

/// A daemon without a driver knows an instance by CUDA's name only.
#[test]
fn a_report_has_one_line_for_an_instance_and_counts_its_time_once_also_after_a_daemon_without_a_driver() {
    let _alone = alone();
    let mut world = World::start_on(MIXED, &tenant("a", "memory_limit = \"1GiB\""));
    let instance = devices(&world).remove(2).0;
    let empty = world.lab.path().join("driver");
    fs::create_dir(&empty).unwrap();
    let state = world.lab.path().join("run/state");
    let report = || -> Vec<(String, u64)> {
        let mut command = Command::new(vgpu());
        command.args(["report", "usage", "--by", "device", "--only-used", "--json", "--state-dir"]).arg(&state);
        let report: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap_or_default();
        let lines = report["lines"].as_array().cloned().unwrap_or_default().into_iter();
        let line = |line: Value| (line["device"].as_str().unwrap().to_owned(), line["gpu_ns"].as_u64().unwrap());
        lines.map(line).filter(|(_, ns)| *ns > 0).collect()
    };
    let mut members = Vec::new();
    for (driver, name) in [(empty, instance.replace("MIG-", "GPU-")), (sim_dir(), instance.clone())] {
        world.kill();
        world.lab.with_driver(&driver);
        world.restart();
        world.lab.with_driver(&sim_dir());
        eventually("the daemon answers", || !world.status().is_empty());
        world.lab.set("CUDA_VISIBLE_DEVICES", &instance);
        let mut at_work = world.at_work(&[("a", 1000, 32, 0)], 1000);
        finish(&mut at_work);
        // These processes join the next daemon, and report the device time that this one recorded.
        members.append(&mut at_work);
        let truth = world.lab.device(2).busy_ns;
        // Time that counts twice would be half more; a busy host adds some percent.
        let is_recorded = |ns: u64| (truth * 85..truth * 115).contains(&(ns * 100));
        eventually("it is recorded, under one name", || {
            let lines = report();
            lines.len() == 1 && lines[0].0 == name && is_recorded(lines[0].1)
        });
    }
}

#[test]
fn a_cdi_device_leads_its_container_to_the_tenants_instance() {
    let names = {
        let world = World::start_on(MIXED, &tenant("one", ""));
        devices(&world)
    };
    let file = tenant("board", "devices = [1]\nmemory_limit = \"50%\"")
        + &tenant("one", &format!("devices = [{:?}]\nmemory_limit = \"40%\"", names[2].0));
    let mut world = World::start_on(MIXED, &file);
    let spec: Value = serde_json::from_str(&told(&world, &["cdi", "generate"])).unwrap();
    let variable = |tenant: &str| {
        let device = spec["devices"].as_array().unwrap().iter().find(|device| device["name"] == tenant).unwrap();
        let env = device["containerEdits"]["env"].as_array().unwrap();
        env.iter().find_map(|one| one.as_str()?.strip_prefix("CUDA_VISIBLE_DEVICES=").map(str::to_owned))
    };
    assert_eq!(variable("board"), None, "its containers choose one of three instances");
    let mut lost = world.plain("one");
    assert_eq!(lost.code("init"), NOT_PERMITTED, "CUDA shows the first device, which is another one");
    let mut m = member_on(&mut world, "one", &variable("one").expect("the instance"));
    m.begin();
    assert_eq!((m.info().1, m.errors()), (names[2].1 * 4 / 10, String::new()));
}
