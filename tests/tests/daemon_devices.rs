//! The devices of a tenant, by every name that a file can use. Device numbers, which only the driver can resolve, also
//! when it answers late. MIG instances, which NVML and CUDA name differently.

use std::fs;
use std::process::{Child, Command, Output, Stdio};

use vgpu_tests::artefacts::{sim_dir, vgpu, vgpud};
use vgpu_tests::{GIB, Lab, Member, OUT_OF_MEMORY, eventually};

/// A machine and a daemon that serves it from a file. The daemon uses the driver libraries of one directory, which may
/// be empty.
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

fn world(profile: &str, file: impl Fn(&Lab) -> String, driver: bool) -> World {
    let mut lab = Lab::new(profile);
    let dir = lab.path().join("driver");
    fs::create_dir(&dir).unwrap();
    if driver {
        load(&lab);
    }
    lab.with_driver(&dir);
    fs::write(lab.path().join("vgpud.toml"), file(&lab)).unwrap();
    let log = fs::File::create(lab.path().join("vgpud.log")).unwrap();
    let mut command = lab.bare(vgpud());
    command.arg("--config").arg(lab.path().join("vgpud.toml")).arg("--runtime-dir").arg(lab.path().join("run"));
    let daemon = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
    // The members' driver is complete in any case.
    lab.with_driver(&sim_dir());
    let world = World { lab, daemon };
    eventually("the daemon answers", || !world.status().is_empty());
    world
}

/// Installs NVML in the daemon's driver directory.
fn load(lab: &Lab) {
    // NVML's Rust wrapper opens the second name; the driver's package installs the first.
    for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
        std::os::unix::fs::symlink(sim_dir().join("libnvidia-ml.so.1"), lab.path().join("driver").join(name)).unwrap();
    }
}

impl World {
    fn status(&self) -> String {
        let mut command = Command::new(vgpu());
        command.args(["status", "--json", "--socket"]).arg(self.lab.path().join("run/admin.sock"));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    fn member(&mut self, tenant: &str) -> Member {
        self.lab.set("VGPU_SOCKET", self.lab.path().join("run/tenants").join(tenant).join("vgpud.sock"));
        self.lab.member()
    }

    fn check(&self) -> Output {
        let mut command = self.lab.bare(vgpud());
        // The check runs without NVML, like the daemon.
        command.env("LD_LIBRARY_PATH", self.lab.path().join("nowhere"));
        command.arg("--check").arg(self.lab.path().join("vgpud.toml")).output().unwrap()
    }
}

const NUMBERED: &str = "[[device]]\nid = 0\n[[tenant]]\nname = \"a\"\nmemory_limit = \"2GiB\"\ndevices = [0]\n";

#[test]
fn a_numbered_device_is_named_in_every_refusal_and_is_there_once_the_driver_answers() {
    let mut world = world("h200", |_| NUMBERED.into(), false);
    let words = "only the driver knows which device is 0";
    let log = |world: &World| fs::read_to_string(world.lab.path().join("vgpud.log")).unwrap();
    let checked = world.check();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        checked.status.success() && said.contains("note: device.id, tenant.devices: ") && said.contains(words),
        "{said}"
    );
    assert!(world.status().contains(words) && log(&world).contains(words), "{}", world.status());
    let mut early = world.member("a");
    assert_ne!(early.code("init"), 0);
    let errors = early.errors();
    assert!(errors.contains("its driver does not answer yet") && errors.contains("tenant.devices"), "{errors}");
    load(&world.lab);
    eventually("the device is known", || !world.status().contains(words));
    assert!(world.status().contains("\"model\": \"NVIDIA H200\""), "{}", world.status());
    let mut late = world.member("a");
    late.begin();
    assert_eq!((late.info().1, late.code(&format!("alloc {}", 2 * GIB))), (2 * GIB, OUT_OF_MEMORY));
    assert!(log(&world).contains("read against the driver's devices"), "{}", log(&world));
}

#[test]
fn what_was_changed_by_hand_stays_when_the_driver_answers_and_ends_when_the_file_is_read_again() {
    let mut world = world("h200", |_| NUMBERED.into(), false);
    let unknown = "only the driver knows which device is 0";
    assert!(world.status().contains(unknown));
    let mut set = Command::new(vgpu());
    set.args(["set", "a", "--memory-limit", "1GiB", "--mode", "enforce", "--strict", "true", "--socket"]);
    assert!(set.arg(world.lab.path().join("run/admin.sock")).status().unwrap().success());
    load(&world.lab);
    eventually("the device is known", || !world.status().contains(unknown));
    let mut m = world.member("a");
    m.begin();
    assert_eq!(m.info().1, GIB, "by hand");
    let status: serde_json::Value = serde_json::from_str(&world.status()).unwrap();
    let tenant = &status["tenants"][0];
    assert_eq!(tenant["strict"], true, "{tenant}");
    let changed = &tenant["devices"][0]["changed_live"];
    assert_eq!(*changed, serde_json::json!(["memory_limit", "strict"]), "{tenant}");
    // SAFETY: the process is a child of this test that was not waited for.
    unsafe { libc::kill(world.daemon.id().try_into().unwrap(), libc::SIGHUP) };
    eventually("the file holds", || m.info().1 == 2 * GIB);
}

#[test]
fn a_driver_is_asked_no_more_once_no_device_needs_it() {
    let world = world("h200", |_| NUMBERED.into(), false);
    let asks = || {
        let threads = fs::read_dir(format!("/proc/{}/task", world.daemon.id())).unwrap();
        let name =
            |thread: std::io::Result<fs::DirEntry>| fs::read_to_string(thread.unwrap().path().join("comm")).unwrap();
        threads.map(name).any(|name| name.trim() == "vgpud-nvml")
    };
    eventually("the driver is asked again", asks);
    let named = NUMBERED.replace("[0]", "[\"GPU-1\"]").replace("id = 0", "id = \"GPU-1\"");
    fs::write(world.lab.path().join("vgpud.toml"), named).unwrap();
    // SAFETY: the process is a child of this test that was not waited for.
    unsafe { libc::kill(world.daemon.id().try_into().unwrap(), libc::SIGHUP) };
    eventually("nobody asks", || !asks());
}

#[test]
fn a_mig_instance_is_the_tenants_under_the_name_that_nvml_writes_with_the_daemon_and_without() {
    let instance = |lab: &Lab| lab.device(1).uuid;
    let file = |lab: &Lab| {
        let uuid = instance(lab);
        assert!(uuid.starts_with("MIG-"), "{uuid}");
        format!(
            "[[device]]\nid = {uuid:?}\nmemory = \"30GiB\"\n[[tenant]]\nname = \"a\"\nmemory_limit = \"2GiB\"\ndevices = [{uuid:?}]\n"
        )
    };
    for driver in [true, false] {
        let mut world = world("t4,a100:mig=3g.40gb+3g.40gb", file, driver);
        world.lab.set("CUDA_VISIBLE_DEVICES", instance(&world.lab));
        let mut m = world.member("a");
        m.begin();
        assert_eq!((m.info().1, m.errors()), (2 * GIB, String::new()));
        assert_eq!(m.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY);
        world.daemon.kill().unwrap();
        world.daemon.wait().unwrap();
        let mut m = world.member("a");
        m.begin();
        assert_eq!((m.info().1, m.errors()), (2 * GIB, String::new()), "by the terms file");
        // An instance that belongs to no tenant is refused.
        world.lab.set("CUDA_VISIBLE_DEVICES", world.lab.device(2).uuid);
        let mut m = world.member("a");
        assert_ne!(m.code("init"), 0);
    }
}
