//! The daemon's leases as members see them when a member dies, comes back, changes, rests or is refused. Shares of the
//! device are tested in `time_leases`.

#[path = "leases/world.rs"]
mod world;

use std::fs;
use std::thread;
use std::time::Duration;
use vgpu_tests::{GIB, MIB, OUT_OF_MEMORY};
use world::{World, alone, eventually, finish, members_of, tenant};

#[test]
fn a_member_killed_inside_its_lease_blocks_nobody() {
    let _alone = alone();
    let mut world = World::start(&(tenant("a", "weight = 50") + &tenant("b", "weight = 50")));
    let mut members = world.at_work(&[("a", 1000, 64, 0), ("b", 1000, 64, 0)], 60_000);
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(130));
        members[0].kill();
        let before = world.lab.process(0, members[1].pid).busy_ns;
        eventually("the other goes on", || world.lab.process(0, members[1].pid).busy_ns > before + 50_000_000);
        members[0] = world.at_work(&[("a", 1000, 64, 0)], 60_000).remove(0);
    }
    let before = world.served(&members).1;
    eventually("both work", || {
        world.served(&members).1.iter().zip(&before).all(|(now, then)| *now > then + 50_000_000)
    });
}

#[test]
fn a_member_starts_without_the_daemon_by_what_it_left_and_comes_under_it_later() {
    let _alone = alone();
    let mut world = World::start(&(tenant("a", "memory_limit = \"2GiB\"") + &tenant("b", "memory_limit = \"1GiB\"")));
    world.kill();
    let mut m = world.plain("a");
    m.begin();
    assert_eq!(m.info().1, 2 * GIB);
    assert_eq!(m.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY);
    m.alloc(GIB);
    fs::write(world.lab.path().join("vgpud.toml"), tenant("a", "memory_limit = \"3GiB\"")).unwrap();
    world.restart();
    eventually("the new limit", || m.info().1 == 3 * GIB);
    m.alloc(GIB);
    assert_eq!(m.errors(), "");
}

#[test]
fn with_neither_daemon_nor_terms_nobody_starts() {
    let mut world = World::start(&tenant("a", "memory_limit = \"2GiB\""));
    world.kill();
    let file = world.socket("a").with_file_name("terms.json");
    fs::write(&file, "{\"terms\":1}").unwrap();
    let mut m = world.plain("a");
    assert_ne!(m.code("init"), 0);
    assert!(m.errors().contains("terms.json"), "{}", m.errors());
    fs::remove_file(&file).unwrap();
    let mut m = world.plain("a");
    assert_ne!(m.code("init"), 0);
    assert!(m.errors().contains("cannot be reached"), "{}", m.errors());
}

#[test]
fn a_memory_limit_changes_under_a_living_process() {
    let mut world = World::start(&tenant("a", "memory_limit = \"2GiB\""));
    let mut m = world.plain("a");
    m.begin();
    let held = m.alloc(GIB);
    for (text, bytes) in [("4GiB", 4 * GIB), ("1GiB", GIB), ("3GiB", 3 * GIB)] {
        fs::write(world.lab.path().join("vgpud.toml"), tenant("a", &format!("memory_limit = \"{text}\""))).unwrap();
        world.signal("-HUP");
        eventually("the limit is shown", || m.info().1 == bytes && m.ok("total 0").number(0) == bytes);
        assert_eq!(
            m.code(&format!("alloc {}", bytes.saturating_sub(GIB).max(MIB))),
            OUT_OF_MEMORY,
            "beside the context"
        );
    }
    let more = m.alloc(GIB);
    m.ok("nvinit");
    assert_eq!(m.ok("nvmem 0").number(0), 3 * GIB);
    m.ok(&format!("free {held}"));
    m.ok(&format!("free {more}"));
    assert_eq!(m.errors(), "");
}

/// The tenant's `sm_request` bounds the floor, with the daemon running and, from the terms file, after it was killed.
#[test]
fn a_floor_in_the_environment_holds_within_what_the_daemon_guarantees() {
    let mut world = World::start(&(tenant("a", "sm_request = 30") + &tenant("b", "")));
    for is_there in [true, false] {
        if !is_there {
            world.kill();
        }
        for (of, asked, refusal) in [
            ("a", "30", None),
            ("a", "12.5%", None),
            ("a", "31", Some("than the daemon gives this tenant; accepted: up to 30 %")),
            ("b", "1", Some("and the daemon gives this tenant none")),
        ] {
            world.lab.set("VGPU_SM_REQUEST", asked);
            let mut m = world.plain(of);
            let code = m.code("init");
            let said = m.errors();
            assert_eq!(code, refusal.map_or(0, |_| vgpu_tests::NOT_PERMITTED), "{of}: {asked}, {is_there}: {said}");
            assert!(refusal.is_none_or(|words| said.contains(words)), "{said}");
        }
    }
}

#[test]
fn the_environment_only_tightens_and_its_mode_counts_for_nothing() {
    let mut world = World::start(&tenant("a", "memory_limit = \"2GiB\""));
    for (name, value, expected) in [
        ("VGPU_MEMORY_LIMIT", "1GiB", GIB),
        ("VGPU_MEMORY_LIMIT", "8GiB", 2 * GIB),
        ("VGPU_MODE", "off", 2 * GIB),
        ("VGPU_MODE", "observe", 2 * GIB),
        ("CUDA_DISABLE_CONTROL", "true", 2 * GIB),
        ("VGPU_ON_ERROR", "open", 2 * GIB),
    ] {
        world.lab.set(name, value);
        let mut m = world.plain("a");
        m.begin();
        assert_eq!(m.info().1, expected, "{name}={value}");
        assert_eq!(m.code(&format!("alloc {expected}")), OUT_OF_MEMORY, "{name}={value}");
        world.lab.unset(name);
    }
}

#[test]
fn a_device_that_the_tenant_may_not_use_is_refused_in_words() {
    let mut world = World::start_on("2xt4", &tenant("a", "memory_limit = \"2GiB\"\ndevices = [0]"));
    let mut m = world.plain("a");
    assert_ne!(m.code("init"), 0);
    assert!(m.errors().starts_with("vgpu: ") && m.errors().contains("device"), "{}", m.errors());
    world.lab.set("CUDA_VISIBLE_DEVICES", "0");
    let mut m = world.plain("a");
    m.begin();
    assert_eq!((m.info().1, m.errors()), (2 * GIB, String::new()));
}

/// A forked child becomes a member of its own, and the parent stays one.
#[test]
fn a_forked_child_is_registered_anew_and_the_parent_goes_on() {
    let _alone = alone();
    let mut world = World::start(&(tenant("a", "weight = 50") + &tenant("b", "weight = 50")));
    let mut members = world.at_work(&[("b", 1000, 64, 0)], 4_000);
    let mut one = world.member("a");
    one.ok("bursts 1000000 4 0 500");
    one.tell("fork");
    assert_eq!(one.answer().code, 0, "the child says its number");
    assert_ne!(one.ask("bursts 1000000 4 0 500").code, 0, "it cannot use its parent's context");
    assert_eq!(members_of(&world), 3, "{}", world.status());
    one.tell("exit 0");
    assert_eq!(one.answer().number(0), 0, "the parent goes on");
    one.ok("bursts 1000000 4 0 300");
    finish(&mut members);
}

/// A tenant that was alone launched without leases (open gate), so nobody knows its work in flight, and it makes no
/// further call.
#[test]
fn a_tenant_that_rests_behind_an_open_gate_does_not_count_as_working() {
    let _alone = alone();
    let opens = "[record]\nexact = false\n";
    let mut world = World::start(&(tenant("a", "weight = 50") + &tenant("b", "weight = 50") + opens));
    let mut first = world.at_work(&[("a", 1000, 4, 1000)], 6_000);
    eventually("its gate opens", || world.status().contains("\"open\""));
    finish(&mut first);
    thread::sleep(Duration::from_secs(2));
    let mut second = world.at_work(&[("b", 1000, 4, 0)], 3_000);
    eventually("the daemon knows that it rests", || world.time("a")["state"] == "idle");
    finish(&mut second);
    assert_eq!(world.time("a")["state"], "idle");
}

/// The next daemon learns the usage from the members' own cumulative counters; the killed daemon wrote nothing down.
#[test]
fn what_living_members_used_is_known_to_the_next_daemon() {
    let _alone = alone();
    let mut world = World::start(&(tenant("a", "weight = 30\nsm_limit = 60") + &tenant("b", "weight = 70")));
    let mut members = world.at_work(&[("a", 1000, 64, 0), ("b", 1000, 64, 0)], 5_000);
    thread::sleep(Duration::from_secs(2));
    let used = |world: &World, tenant: &str| world.time(tenant)["gpu_seconds"].as_f64().unwrap_or(0.0);
    let before = ["a", "b"].map(|tenant| used(&world, tenant));
    assert!(before.iter().all(|used| *used > 0.1), "{before:?}");
    world.kill();
    world.restart();
    eventually("both are members again", || members_of(&world) >= 2);
    eventually("what they used is known", || {
        ["a", "b"].iter().zip(before).all(|(tenant, then)| used(&world, tenant) >= then)
    });
    finish(&mut members);
    for (m, tenant) in members.iter().zip(["a", "b"]) {
        let (said, truth) = (used(&world, tenant), world.lab.process(0, m.pid).busy_ns);
        #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
        let truth = truth as f64 / 1e9;
        eprintln!("{tenant}: {said:.2} s of {truth:.2}");
        // Without the daemon each member also measured the other's slices, for at most 1.5 s plus the delay of a busy
        // host.
        assert!(said >= 0.8 * truth && said <= truth + 2.5, "{tenant}: {said} s of {truth}");
    }
}
