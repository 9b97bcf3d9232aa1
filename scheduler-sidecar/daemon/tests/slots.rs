//! Tests of a file that is read again with another number of slots (`replicas`) while slots have members.

#[path = "../../support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use support::world::World;
use support::{Peer, eventually, texts, vgpu};

const GIB: u64 = 1 << 30;

fn file(replicas: u32) -> String {
    format!("[[device]]\nid = 0\nmemory = \"80GiB\"\n[[tenant]]\nname = \"s\"\nreplicas = {replicas}\n")
}

/// Memory limit in GiB and floor in percent of each tenant that is served, and of removed ones, which have a `-`.
fn slots(world: &World) -> BTreeMap<String, (u64, u64)> {
    let terms = |tenant: vgpu_control::TenantStatus| {
        let name = if tenant.removed { format!("-{}", tenant.name) } else { tenant.name };
        let floor = tenant.devices[0].sm_request.unwrap_or(0.0);
        // The floor of an eighth is 12.5 %.
        let floor: u64 = format!("{:.0}", floor.floor()).parse().unwrap();
        (name, (tenant.devices[0].memory_limit.unwrap() / GIB, floor))
    };
    world.status().tenants.into_iter().map(terms).collect()
}

fn expect(world: &World, what: &str, expected: &[(&str, u64, u64)]) {
    let expected: BTreeMap<String, (u64, u64)> =
        expected.iter().map(|(name, memory, floor)| ((*name).to_owned(), (*memory, *floor))).collect();
    eventually(&format!("{what}: {expected:?}"), || slots(world) == expected);
}

fn reload(world: &World, text: &str) {
    let reloads = || world.status().configuration.unwrap().reloads;
    let before = reloads();
    std::fs::write(world.dir.path().join("vgpud.toml"), text).unwrap();
    world.daemon.signal(rustix::process::Signal::HUP);
    eventually("it is read", || reloads() > before);
}

fn join(world: &World, tenant: &str) -> Peer {
    let mut peer = Peer::connect(&world.socket(tenant));
    assert!(peer.hello().contains("\"tenant\""));
    peer
}

fn notes(world: &World) -> Vec<String> {
    let notes = world.status().configuration.unwrap().notes;
    notes.into_iter().filter(|note| note.starts_with("tenant s-")).collect()
}

#[test]
fn more_slots_come_as_the_members_of_the_larger_ones_leave() {
    let world = World::start(&file(2));
    let (first, second) = (join(&world, "s-0"), join(&world, "s-0"));
    reload(&world, &file(4));
    // Half of the device is still promised to the one with members.
    expect(&world, "one waits", &[("s-0", 40, 50), ("s-1", 20, 25), ("s-2", 20, 25)]);
    assert_eq!(
        notes(&world),
        [
            "tenant s-0 keeps its memory limit and its floor until its last member has left; then the file decides",
            "tenant s-3 does not fit yet; it is served when members of other slots have left",
        ]
    );
    drop(first);
    let third = join(&world, "s-0");
    drop(second);
    drop(join(&world, "s-1"));
    eventually("the others have left", || {
        world.status().tenants.iter().map(|tenant| tenant.members.len()).sum::<usize>() == 1
    });
    expect(&world, "a member is left", &[("s-0", 40, 50), ("s-1", 20, 25), ("s-2", 20, 25)]);
    drop(third);
    expect(&world, "the last has left", &[("s-0", 20, 25), ("s-1", 20, 25), ("s-2", 20, 25), ("s-3", 20, 25)]);
    assert!(notes(&world).is_empty());
    drop(join(&world, "s-3"));
}

#[test]
fn fewer_slots_grow_only_into_room_that_nobody_holds() {
    let world = World::start(&file(4));
    let (kept, removed) = (join(&world, "s-1"), join(&world, "s-2"));
    reload(&world, &file(2));
    expect(&world, "the free one grows", &[("s-0", 40, 50), ("s-1", 20, 25), ("-s-2", 20, 25)]);
    // It is free, and there is no room for it yet.
    drop(kept);
    eventually("it is told", || {
        notes(&world) == ["tenant s-1 is smaller than the file says; it grows when members of other slots have left"]
    });
    expect(&world, "it waits", &[("s-0", 40, 50), ("s-1", 20, 25), ("-s-2", 20, 25)]);
    drop(removed);
    expect(&world, "all is free", &[("s-0", 40, 50), ("s-1", 40, 50)]);
    assert!(notes(&world).is_empty());
}

#[test]
fn the_room_that_kept_slots_will_take_is_given_to_nobody_else() {
    let world = World::start(&file(4));
    let (first, second) = (join(&world, "s-0"), join(&world, "s-1"));
    reload(&world, &file(2));
    // Half of the device is free now, and will be theirs.
    expect(&world, "both are kept", &[("s-0", 20, 25), ("s-1", 20, 25)]);
    let add = vgpu().args(["tenant", "add", "x", "--memory-limit", "1GiB", "--socket"]).arg(world.admin()).output();
    let (out, err) = texts(&add.unwrap());
    assert!(err.contains("may be promised"), "{out}{err}");
    drop((first, second));
    expect(&world, "they grow", &[("s-0", 40, 50), ("s-1", 40, 50)]);
}

#[test]
fn a_removed_slot_that_comes_back_with_its_members_keeps_their_terms() {
    let world = World::start(&file(4));
    let member = join(&world, "s-2");
    reload(&world, &file(2));
    expect(&world, "it is removed", &[("s-0", 40, 50), ("s-1", 20, 25), ("-s-2", 20, 25)]);
    reload(&world, &file(8));
    let all: Vec<(String, u64, u64)> = (0..8).map(|slot| (format!("s-{slot}"), 10, 12)).collect();
    let mut now: Vec<(&str, u64, u64)> =
        all.iter().map(|(name, memory, floor)| (name.as_str(), *memory, *floor)).collect();
    now[2] = ("s-2", 20, 25);
    expect(&world, "it is back as it was, and the last one waits", &now[..7]);
    // The last one leaves no room for a larger promise. A change without one stays when the slots follow the file.
    let set = |what: [&str; 3]| {
        let set = vgpu().arg("set").args(what).arg("--socket").arg(world.admin()).output().unwrap();
        (set.status.success(), texts(&set).1)
    };
    for what in [["s-1", "--weight", "7"], ["s-0", "--sm-request", "5"]] {
        let (is_set, why) = set(what);
        assert!(is_set, "{what:?}: {why}");
    }
    let (is_set, why) = set(["s-1", "--sm-request", "13"]);
    assert!(!is_set && why.contains("does not fit"), "{why}");
    drop(member);
    (now[0], now[2]) = (("s-0", 10, 5), ("s-2", 10, 12));
    expect(&world, "all follow", &now);
    let status = world.status();
    let weight = status.tenants.iter().find(|tenant| tenant.name == "s-1").unwrap().devices[0].weight;
    assert_eq!(weight, 7);
}

#[test]
fn a_limit_that_the_file_changes_with_the_same_number_is_in_force_at_once() {
    let world = World::start(&file(4));
    let _member = join(&world, "s-0");
    reload(&world, &format!("{}memory_limit = \"10GiB\"\n", file(4)));
    expect(&world, "as for any tenant", &[("s-0", 10, 25), ("s-1", 10, 25), ("s-2", 10, 25), ("s-3", 10, 25)]);
}
