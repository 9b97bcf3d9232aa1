//! A daemon with a file: members get the limits of the tenant whose socket they used, and reloads happen while they
//! hold memory. Devices and their sizes are those of the simulated driver.

#[path = "leases/world.rs"]
mod world;

use std::fs;
use vgpu_tests::artefacts::vgpud;
use vgpu_tests::{GIB, Lab, MIB, Member, OUT_OF_MEMORY, eventually};
use world::{World, tenant};

fn member(world: &mut World, tenant: &str) -> Member {
    let mut member = world.plain(tenant);
    member.begin();
    member
}

fn reload(world: &World, file: &str, done: &str) {
    fs::write(world.lab.path().join("vgpud.toml"), file).unwrap();
    world.signal("-HUP");
    eventually(done, || world.status().contains(done));
}

#[test]
fn each_member_is_under_the_limit_of_the_tenant_whose_socket_it_came_by() {
    let file = tenant("a", "memory_limit = \"2GiB\"")
        + &tenant("b", "memory_limit = \"25%\"")
        + "[[tenant]]\nname = \"c\"\ngpu = 0.125\n";
    let mut world = World::start_on("t4", &file);
    let whole = world.lab.device(0).cuda_total;
    let mut members: Vec<Member> = ["a", "b", "c"].iter().map(|name| member(&mut world, name)).collect();
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
    let mut world = World::start_on("t4", &(tenant("a", "memory_limit = \"4GiB\"") + &rest));
    let mut old = member(&mut world, "a");
    let held = old.alloc(2 * GIB);
    reload(
        &world,
        &(tenant("a", "memory_limit = \"3GiB\"") + &tenant("n", "memory_limit = \"1GiB\"")),
        "\"name\": \"n\"",
    );
    eventually("the old member has the new limit", || old.info().1 == 3 * GIB);
    let mut new = member(&mut world, "a");
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
