//! A daemon with a file: members get the limits of the tenant whose socket they used, and reloads happen while they
//! hold memory. Devices and their sizes are those of the simulated driver.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use vgpu_tests::artefacts::{vgpu, vgpud};
use vgpu_tests::{GIB, Lab, MIB, Member, OUT_OF_MEMORY, eventually};

/// A machine with a T4, and a daemon that serves it from a file. Dropping it kills the daemon.
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

impl World {
    fn start(file: &str) -> World {
        let lab = Lab::new("t4");
        fs::write(lab.path().join("vgpud.toml"), file).unwrap();
        let mut c = lab.bare(vgpud());
        c.arg("--config").arg(lab.path().join("vgpud.toml")).arg("--runtime-dir").arg(lab.path().join("run"));
        let daemon = c.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let world = World { lab, daemon };
        // The daemon answers once all its sockets exist.
        eventually("the daemon answers", || !world.status().is_empty());
        world
    }

    fn socket(&self, tenant: &str) -> PathBuf {
        self.lab.path().join("run/tenants").join(tenant).join("vgpud.sock")
    }

    fn member(&mut self, tenant: &str) -> Member {
        self.lab.set("VGPU_SOCKET", self.socket(tenant));
        let mut member = self.lab.member();
        member.begin();
        member
    }

    fn status(&self) -> String {
        let output = Command::new(vgpu())
            .args(["status", "--json", "--socket"])
            .arg(self.lab.path().join("run/admin.sock"))
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    fn reload(&self, file: &str, done: &str) {
        fs::write(self.lab.path().join("vgpud.toml"), file).unwrap();
        let pid = self.daemon.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
        eventually(done, || self.status().contains(done));
    }
}

fn tenant(name: &str, terms: &str) -> String {
    format!("[[tenant]]\nname = \"{name}\"\n{terms}\n")
}

#[test]
fn each_member_is_under_the_limit_of_the_tenant_whose_socket_it_came_by() {
    let file =
        tenant("a", "memory_limit = \"2GiB\"") + &tenant("b", "memory_limit = \"25%\"") + &tenant("c", "gpu = 0.125");
    let mut world = World::start(&file);
    let whole = world.lab.device(0).cuda_total;
    let mut members: Vec<Member> = ["a", "b", "c"].iter().map(|name| world.member(name)).collect();
    for (member, limit) in members.iter_mut().zip([2 * GIB, whole / 4, whole / 8]) {
        assert_eq!(member.info().1, limit);
        assert_eq!(member.code(&format!("alloc {limit}")), OUT_OF_MEMORY);
    }
    // Each tenant has its own ledger: an allocation of one leaves the others' room unchanged.
    members[0].alloc(GIB);
    assert_eq!(members[0].code(&format!("alloc {GIB}")), OUT_OF_MEMORY, "beside the context");
    members[1].alloc(GIB);
    members[2].alloc(GIB);
}

#[test]
fn a_reload_leaves_members_their_memory_and_old_and_new_ones_get_the_new_limit_of_the_same_tenant() {
    let rest = tenant("b", "memory_limit = \"1GiB\"");
    let mut world = World::start(&(tenant("a", "memory_limit = \"4GiB\"") + &rest));
    let mut old = world.member("a");
    let held = old.alloc(2 * GIB);
    world
        .reload(&(tenant("a", "memory_limit = \"3GiB\"") + &tenant("n", "memory_limit = \"1GiB\"")), "\"name\": \"n\"");
    eventually("the old member has the new limit", || old.info().1 == 3 * GIB);
    let mut new = world.member("a");
    assert_eq!(new.info().1, 3 * GIB);
    assert_eq!(new.code(&format!("alloc {GIB}")), OUT_OF_MEMORY, "the memory of the old member counts");
    new.alloc(100 * MIB);
    old.ok(&format!("free {held}"));
    new.alloc(GIB);
    assert_eq!((old.errors(), new.errors()), (String::new(), String::new()));
    assert!(!world.socket("b").exists());
}

#[test]
fn more_than_the_devices_that_are_there_have_is_refused_before_anything_is_started() {
    let lab = Lab::new("t4,h200");
    let file = lab.path().join("vgpud.toml");
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        let output = lab.bare(vgpud()).arg("--check").arg(&file).output().unwrap();
        let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        (output.status.code(), texts)
    };
    let (code, shown) = check(&tenant("a", "memory_limit = \"50%\""));
    assert_eq!(code, Some(0), "{shown}");
    for index in [0, 1] {
        let half = lab.device(index).cuda_total / 2;
        assert!(shown.contains(&in_words(half)), "{half} is missing in {shown}");
    }
    // A limit that the larger device can serve exceeds the smaller one.
    let (code, shown) = check(&tenant("a", "memory_limit = \"20GiB\""));
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains(":3:16: tenant.memory_limit = \"20GiB\" is more than device 0 has for tenant a"), "{shown}");
    let (code, shown) = check(&tenant("a", "memory_limit = \"20GiB\"\ndevices = [1]"));
    assert_eq!(code, Some(0), "{shown}");
    let (code, shown) = check(&tenant("a", "devices = [2]"));
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("tenant.devices = 2 is not a device of this configuration; accepted: 0 (GPU-"), "{shown}");
}

/// Returns a size as the daemon prints it.
fn in_words(bytes: u64) -> String {
    for (unit, name) in [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} bytes")
}
