//! In NVML a tenant of the daemon finds the devices of its list, counted from 0, and no others by any name.
//!
//! Client: nvidia-ml-py

use serde_json::{Value, json};
use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use vgpu_tests::artefacts::{checkout, vgpud};
use vgpu_tests::{GIB, LONG_TIMEOUT, Lab, NOT_PERMITTED, optional, run};

/// A machine, and a daemon with one tenant `a`.
struct World {
    lab: Lab,
    daemon: Child,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// The tenant may use the devices with these indices in the simulated machine, each with 2 GiB.
fn world(profile: &str, own: &[usize], mode: &str) -> World {
    let mut lab = Lab::new(profile);
    let names: Vec<String> = own.iter().map(|at| format!("{:?}", lab.device(*at).uuid)).collect();
    let devices: String = names.iter().map(|name| format!("[[device]]\nid = {name}\nmemory = \"10GiB\"\n")).collect();
    let list = names.join(", ");
    let file =
        format!("{devices}[[tenant]]\nname = \"a\"\nmemory_limit = \"2GiB\"\nmode = {mode:?}\ndevices = [{list}]\n");
    fs::write(lab.path().join("vgpud.toml"), file).unwrap();
    let log = fs::File::create(lab.path().join("vgpud.log")).unwrap();
    let mut command = lab.bare(vgpud());
    command.arg("--config").arg(lab.path().join("vgpud.toml")).arg("--runtime-dir").arg(lab.path().join("run"));
    let daemon = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
    let socket = lab.path().join("run/tenants/a/vgpud.sock");
    let begin = Instant::now();
    while !socket.exists() {
        let log = || fs::read_to_string(lab.path().join("vgpud.log")).unwrap_or_default();
        assert!(begin.elapsed() < LONG_TIMEOUT, "no daemon: {}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
    lab.set("VGPU_SOCKET", socket);
    World { lab, daemon }
}

impl World {
    fn uuids(&self) -> Vec<String> {
        self.lab.truth().devices.iter().map(|device| device.uuid.clone()).collect()
    }

    /// Devices that a program with nvidia-ml-py finds.
    fn found(&self, python: &std::path::Path) -> Value {
        let script = checkout().join("tests/clients/nvml_devices.py");
        let asked = serde_json::to_string(&self.uuids()).unwrap();
        serde_json::from_str(&run(self.lab.command(python).arg(script).arg(asked))).unwrap()
    }
}

#[test]
fn a_tenant_finds_the_devices_of_its_list_counted_from_0_and_no_others_by_any_name() {
    let Some(python) = optional::python() else { return };
    let mut world = world("l4,h200,t4", &[1, 2], "enforce");
    let uuids = world.uuids();
    let found = |world: &World| {
        let seen = world.found(&python);
        let own = json!([uuids[1], uuids[2]]);
        assert_eq!(seen["boards"], own, "{seen}");
        assert_eq!(seen["beyond"], json!([2]), "an invalid argument: {seen}");
        assert_eq!((&seen["index"], &seen["memory"]), (&json!([0, 1]), &json!([2 * GIB, 2 * GIB])), "{seen}");
        assert_eq!(seen["uuid"], json!([[6], uuids[1], uuids[2]]), "{seen}");
        assert_eq!((&seen["pci"], &seen["serial"]), (&own, &own), "{seen}");
        assert_eq!(seen["all places"].as_array().unwrap().len(), 2, "{seen}");
    };
    found(&world);
    // The driver alone shows all three devices.
    let mut bare = world.lab.bare(&python);
    bare.arg(checkout().join("tests/clients/nvml_devices.py")).arg("[]");
    let all: Value = serde_json::from_str(&run(&mut bare)).unwrap();
    assert_eq!((&all["boards"], all["all places"].as_array().unwrap().len()), (&json!(uuids), 3));
    // CUDA is refused if it would show a device that is not the tenant's; otherwise its devices agree with NVML's.
    assert_eq!(world.lab.member().code("init"), NOT_PERMITTED);
    world.lab.set("CUDA_VISIBLE_DEVICES", format!("{},{}", uuids[1], uuids[2]));
    let mut member = world.lab.member();
    member.begin();
    assert_eq!((member.ok("count").number(0), member.info().1), (2, 2 * GIB));
    member.ok("nvinit");
    assert_eq!(member.ok("nvcount").number(0), 2);
    world.lab.unset("CUDA_VISIBLE_DEVICES");
    // The view stays the same when the daemon is gone.
    world.daemon.kill().unwrap();
    world.daemon.wait().unwrap();
    found(&world);
}

#[test]
fn where_use_is_only_measured_all_devices_are_shown() {
    let Some(python) = optional::python() else { return };
    let world = world("l4,h200,t4", &[1, 2], "observe");
    let seen = world.found(&python);
    assert_eq!(seen["boards"], json!(world.uuids()), "{seen}");
}

#[test]
fn a_board_is_the_way_to_the_tenants_instances_and_tells_nothing_itself() {
    let Some(python) = optional::python() else { return };
    let world = world("t4,a100:mig=3g.40gb+3g.40gb", &[2], "enforce");
    let (seen, uuids) = (world.found(&python), world.uuids());
    assert_eq!(seen["boards"].as_array().unwrap().len(), 1, "{seen}");
    assert!(seen["boards"][0].as_str().unwrap().starts_with("GPU-"), "{seen}");
    assert_eq!(seen["memory"], json!([[4]]), "of the board as a whole nobody but its administrator is told: {seen}");
    assert_eq!(seen["instances"], json!([[[6], uuids[2], [6]]]), "{seen}");
    assert_eq!(seen["uuid"], json!([[6], [6], uuids[2]]), "{seen}");
}
