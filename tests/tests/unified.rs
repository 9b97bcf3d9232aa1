//! Devices without memory of their own, which use the host's (GB10 in DGX Spark). NVML does not tell their memory.
//! Limits in bytes hold as everywhere; a percentage has no meaning there and is an error.

#[path = "leases/world.rs"]
mod world;

use serde_json::Value;
use std::fs;
use std::process::Command;
use vgpu_tests::artefacts::{vgpu, vgpud};
use vgpu_tests::lab::{charged, shown};
use vgpu_tests::{GIB, Lab, MIB, Member, NO_PERMISSION, NOT_PERMITTED, OUT_OF_MEMORY, eventually, optional, run, text};
use world::World;

/// NVML's result for a query that the device does not have.
const NOT_SUPPORTED: i64 = 3;
/// The device's memory, as CUDA tells it.
const DEVICE: u64 = 122_570 * MIB;

fn under(limit: &str) -> Lab {
    Lab::new("gb10").with("VGPU_MEMORY_LIMIT", limit)
}

/// Total, free and used memory by both layouts of NVML's query, which must agree.
#[track_caller]
fn nvml(member: &mut Member) -> (u64, u64, u64) {
    let (one, two) = (member.ok("nvmem 0").numbers(), member.ok("nvmem2 0").numbers());
    assert_eq!(two, [&one[..], &[0]].concat(), "nothing is reserved");
    (one[0], one[1], one[2])
}

#[test]
fn the_last_byte_can_be_allocated_and_one_more_cannot() {
    let lab = under("4GiB");
    let mut m = lab.member();
    m.begin();
    assert_eq!(m.ok("total 0").number(0), 4 * GIB);
    let (free, total) = m.info();
    let context = lab.process(0, m.pid).overhead_bytes;
    assert!(context > 0);
    assert_eq!((free, total), (4 * GIB - context, 4 * GIB), "the context is charged, nothing else is");
    let all = m.alloc(free);
    assert_eq!(m.info(), (0, 4 * GIB));
    assert_eq!(m.code("alloc 1"), OUT_OF_MEMORY, "one byte more");
    assert_eq!(charged(&lab.device(0)), 4 * GIB, "the device agrees");
    m.ok(&format!("free {all}"));
    assert_eq!(m.code(&format!("alloc {}", free + 1)), OUT_OF_MEMORY, "one byte too many at once");
    assert_eq!(lab.process(0, m.pid).requested_bytes, 0, "a refused request reached nobody");
}

#[test]
fn nvml_shows_the_limit_and_its_use_where_the_driver_shows_nothing() {
    let lab = under("4GiB");
    let mut bare = lab.bare_member();
    bare.ok("nvinit");
    assert_eq!(
        (bare.code("nvmem 0"), bare.code("nvmem2 0")),
        (NOT_SUPPORTED, NOT_SUPPORTED),
        "the driver's own answer"
    );

    let mut m = lab.member();
    m.begin();
    m.alloc(GIB);
    m.alloc(1);
    m.ok("nvinit");
    // A monitor in the same container, which never calls CUDA.
    let mut monitor = lab.member();
    monitor.ok("nvinit");
    let used = shown(4 * GIB, charged(&lab.device(0)));
    assert!(used > GIB);
    for member in [&mut m, &mut monitor] {
        assert_eq!(nvml(member), (4 * GIB, 4 * GIB - used, used));
        let listed = member.ok("nvprocs 0").numbers();
        assert_eq!(listed.len(), 2, "one process: {listed:?}");
        assert_eq!(listed[1], charged(&lab.device(0)));
    }
    assert_eq!(m.info(), (4 * GIB - used, 4 * GIB), "CUDA's numbers are the same");
}

#[test]
fn a_limit_above_the_device_is_the_device_in_both_libraries() {
    for nvml_first in [false, true] {
        let lab = under("1T");
        let mut m = lab.member();
        if nvml_first {
            m.ok("nvinit");
            assert_eq!(nvml(&mut m).0, 1 << 40, "NVML alone does not know the device's memory");
        }
        m.begin();
        m.ok("nvinit");
        let (free, total) = m.info();
        assert_eq!((m.ok("total 0").number(0), total), (DEVICE, DEVICE));
        assert_eq!(nvml(&mut m), (DEVICE, free, DEVICE - free));
    }
}

#[test]
fn without_a_memory_limit_nvml_answers_as_the_driver_does() {
    for (name, value) in [("VGPU_SM_LIMIT", "50"), ("VGPU_MEMORY_LIMIT", "unlimited"), ("VGPU_MODE", "observe")] {
        let lab = Lab::new("gb10").with(name, value);
        let mut m = lab.member();
        m.begin();
        m.ok("nvinit");
        assert_eq!((m.code("nvmem 0"), m.code("nvmem2 0")), (NOT_SUPPORTED, NOT_SUPPORTED), "{name}={value}");
        assert_eq!(m.info().1, DEVICE, "{name}={value}");
        assert_eq!(m.errors(), "", "{name}={value}");
    }
}

#[test]
fn a_percentage_stops_cuda_and_nvml_programs_with_one_line_in_any_order() {
    for name in ["VGPU_MEMORY_LIMIT", "VGPU_MEMORY_LIMIT_0"] {
        for order in [["init", "nvinit"], ["nvinit", "init"]] {
            let lab = Lab::new("gb10").with(name, "25%");
            let mut m = lab.member();
            let codes = order.map(|call| m.code(call));
            assert_eq!(codes, order.map(|call| if call == "init" { NOT_PERMITTED } else { NO_PERMISSION }), "{name}");
            let said = m.errors();
            assert_eq!(said.lines().count(), 1, "{said}");
            assert!(said.starts_with(&format!("vgpu: {name}=\"25%\" is a percentage")), "{said}");
            assert!(said.contains("accepted: a size like 1.5GiB, or unlimited"), "{said}");
        }
    }
}

#[test]
fn a_percentage_for_another_device_or_behind_a_size_does_no_harm() {
    // The size of the device itself overrides the percentage for all.
    let lab = under("25%").with("VGPU_MEMORY_LIMIT_0", "3GiB");
    let mut m = lab.member();
    m.begin();
    assert_eq!(m.info().1, 3 * GIB);
    // The percentage is for the discrete device alone.
    let lab = Lab::new("t4,gb10").with("VGPU_MEMORY_LIMIT_0", "25%").with("VGPU_MEMORY_LIMIT_1", "2GiB");
    let mut m = lab.member();
    m.ok("nvinit");
    m.ok("init");
    let quarter = lab.device(0).cuda_total / 4;
    assert_eq!(m.ok("nvmem 0").number(0), quarter);
    assert_eq!(m.ok("nvmem 1").number(0), 2 * GIB);
}

#[test]
fn monitors_show_the_limit_and_its_use() {
    let lab = under("4GiB");
    let mut m = lab.member();
    m.begin();
    m.alloc(GIB);
    let used = shown(4 * GIB, charged(&lab.device(0)));
    if let Some(smi) = optional::nvidia_smi() {
        let mut asked = lab.command(smi);
        asked.args(["--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits"]);
        assert_eq!(run(&mut asked), format!("NVIDIA GB10, {}, {}\n", 4 * GIB / MIB, used / MIB));
    }
    if let Some(python) = optional::python() {
        let words = "from nvitop import Device; d = Device(0); print(d.memory_total(), d.memory_used(), d.name())";
        let said = run(lab.command(python).args(["-c", words]));
        assert_eq!(said, format!("{} {used} NVIDIA GB10\n", 4 * GIB));
    }
}

/// Output of `vgpu` about the world's daemon, with its messages.
fn ask(world: &World, words: &[&str]) -> String {
    let mut command = Command::new(vgpu());
    let out = command.args(words).arg("--socket").arg(world.lab.path().join("run/admin.sock")).output().unwrap();
    String::from_utf8([out.stdout, out.stderr].concat()).unwrap()
}

#[test]
fn the_daemon_holds_a_limit_in_bytes_and_shows_the_device_without_a_size() {
    let mut world = World::start_on("gb10", "[[tenant]]\nname = \"a\"\nmemory_limit = \"2GiB\"\n");
    let mut m = world.plain("a");
    m.begin();
    m.ok("nvinit");
    assert_eq!((m.info().1, nvml(&mut m).0), (2 * GIB, 2 * GIB));
    assert_eq!(m.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY);
    let p = m.alloc(GIB);
    let status = || serde_json::from_str::<Value>(&world.status()).unwrap();
    let used = charged(&world.lab.device(0));
    eventually("the use is known", || status()["tenants"][0]["devices"][0]["memory_used"] == used);
    let device = &status()["devices"][0];
    assert_eq!((&device["model"], &device["memory"]), (&Value::from("NVIDIA GB10"), &Value::Null), "{device}");
    // A part of an unknown size is refused, and the limit stays.
    let said = ask(&world, &["set", "a", "--memory-limit", "50%"]);
    assert!(said.contains("whose size is not known") && said.contains("accepted: bytes"), "{said}");
    assert_eq!(m.info().1, 2 * GIB);
    ask(&world, &["set", "a", "--memory-limit", "3GiB"]);
    eventually("the new limit holds", || m.info().1 == 3 * GIB);
    m.ok(&format!("free {p}"));
    let plain = ask(&world, &["top", "--once"]);
    assert!(plain.contains("3 GiB"), "{plain}");
}

#[test]
fn a_percentage_in_the_daemons_file_needs_the_devices_memory_in_the_file() {
    let file = "[[tenant]]\nname = \"a\"\nmemory_limit = \"25%\"\n";
    let lab = Lab::new("gb10");
    let check = |text: &str| {
        fs::write(lab.path().join("vgpud.toml"), text).unwrap();
        lab.bare(vgpud()).arg("--check").arg(lab.path().join("vgpud.toml")).output().unwrap()
    };
    let refused = check(file);
    let said = text(&refused);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("memory_limit = \"25%\" is a part of device 0, whose size is not known"), "{said}");
    assert!(said.contains("accepted: bytes or a number with a unit, or [[device]] with its memory"), "{said}");

    let mut world = World::start_on("gb10", &format!("[[device]]\nid = 0\nmemory = \"100GiB\"\n{file}"));
    let mut m = world.plain("a");
    m.begin();
    assert_eq!(m.info().1, 25 * GIB);
}

#[test]
fn the_doctor_proves_a_limit_in_bytes_and_names_a_percentage() {
    let visit = |lab: &Lab| {
        let out = lab.command(vgpu()).arg("doctor").env("VGPU_LIBRARY", lab.lib()).output().unwrap();
        (out.status.success(), text(&out))
    };
    let (well, said) = visit(&under("1GiB"));
    assert!(well && said.contains("2 MiB were granted, 1 GiB and 2 MiB more were refused: the limit holds"), "{said}");
    let (well, said) = visit(&under("25%"));
    assert!(
        !well && said.contains("VGPU_MEMORY_LIMIT=\"25%\" is a percentage, and the driver does not tell"),
        "{said}"
    );
}
