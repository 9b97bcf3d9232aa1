//! Members that lie about time: they work on the device past the library and report that they do nothing. The tests
//! check the daemon's findings, and the neighbour's share and payment. docs/threats.md contains the figures that these
//! tests print.

#[path = "leases/world.rs"]
mod world;

use serde_json::Value;
use std::thread;
use std::time::{Duration, Instant};
use vgpu_tests::Member;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::timed::measured;
use world::{World, alone, finish, tenant};

/// A member of tenant `liar`, with a context, whose launches meet no hook.
fn liar(world: &World) -> Member {
    let mut c = world.lab.bare(compile("liar", Kind::Program, &[]));
    c.arg(&world.lab.device(0).uuid).env("VGPU_SOCKET", world.socket("liar"));
    let mut m = Member::start(&mut c);
    m.ok("begin");
    m
}

/// Process ids that the daemon found to use device time without a lease (permission to launch).
fn found(world: &World) -> Vec<u64> {
    let status: Value = serde_json::from_str(&world.status()).expect("status is JSON");
    let findings = status["findings"].as_array().cloned().unwrap_or_default();
    findings.iter().filter(|finding| finding["what"] == "time").filter_map(|finding| finding["pid"].as_u64()).collect()
}

/// Milliseconds over three seconds: device time of the honest tenant's members, their charge, and device time of the
/// others.
fn had_and_paid(world: &World, honest: &[Member], liars: &[Member]) -> (f64, f64, f64) {
    let look = || {
        let paid = world.time("honest")["gpu_seconds"].as_f64().expect("its time is measured") * 1000.0;
        let had = |members: &[Member]| world.served(members).1.iter().sum::<u64>() as f64 / 1e6;
        (had(honest), paid, had(liars))
    };
    let before = look();
    thread::sleep(Duration::from_secs(3));
    let after = look();
    (after.0 - before.0, after.1 - before.1, after.2 - before.2)
}

/// One lying process or four next to a program that queues work, and one next to a program that waits after each
/// kernel.
#[test]
fn a_member_that_works_without_a_lease_is_named_within_three_seconds_and_its_neighbour_pays_its_own_work() {
    measured(|| {
        let _alone = alone();
        for (count, burst, pause) in [(1, 64, 0), (4, 64, 0), (1, 4, 500)] {
            let mut world = World::start(&(tenant("liar", "sm_limit = 30") + &tenant("honest", "sm_request = 50")));
            let mut liars: Vec<Member> = (0..count).map(|_| liar(&world)).collect();
            let mut honest = world.at_work(&[("honest", 1000, burst, pause)], 14_000);
            // Time to learn costs, and for the daemon's first checks.
            thread::sleep(Duration::from_secs(4));
            assert!(found(&world).is_empty(), "nobody works without a lease yet");
            let begun = Instant::now();
            liars.iter_mut().for_each(|m| m.tell("bursts 1000000 64 0 9000"));
            while !liars.iter().all(|m| found(&world).contains(&m.pid.into())) {
                assert!(begun.elapsed() < Duration::from_secs(3), "{count} of them: {:?}", found(&world));
                thread::sleep(Duration::from_millis(50));
            }
            let named = begun.elapsed();
            thread::sleep(Duration::from_secs(1));
            let (had, paid, lied) = had_and_paid(&world, &honest, &liars);
            let percent = |ms: f64| ms / 30.0;
            eprintln!(
                "{count} beside bursts of {burst}: named after {named:.1?}, liars {:.1} %, neighbour {:.1} %, billed {:.2} times its own",
                percent(lied),
                percent(had),
                paid / had
            );
            assert!((0.9..=1.1).contains(&(paid / had)), "it had {had:.0} ms and pays {paid:.0}");
            assert_eq!(found(&world).len(), count, "nobody else is named");
            let explained = world.explain("liar");
            assert_eq!(explained.matches("Found (proof.time)").count(), count, "{explained}");
            finish(&mut honest);
            finish(&mut liars);
        }
    });
}

/// A member whose measurements show a microsecond for each kernel: by its reports it is far below its ceiling. It is
/// alone, so that nobody else's share limits it.
#[test]
fn a_member_whose_measurements_are_too_short_keeps_to_its_ceiling_and_ten_points() {
    measured(|| {
        let _alone = alone();
        let mut world = World::start(&tenant("liar", "sm_limit = 30"));
        // The daemon reports no finding in its first 3 s.
        thread::sleep(Duration::from_secs(4));
        world.lab.set("VGPU_SOCKET", world.socket("liar"));
        let mut liars = vec![Member::start(&mut world.lab.command(compile("instants", Kind::Program, &[])))];
        liars[0].ok("begin");
        liars[0].tell("bursts 1000000 64 0 11000");
        let (begun, look) = (Instant::now(), |members: &[Member]| world.served(members).1[0]);
        let before = look(&liars);
        while !found(&world).contains(&liars[0].pid.into()) {
            assert!(begun.elapsed() < Duration::from_secs(10), "its reports are believed");
            thread::sleep(Duration::from_millis(50));
        }
        let named = begun.elapsed();
        assert!(world.explain("liar").contains("longer than it reported"), "{}", world.explain("liar"));
        thread::sleep(Duration::from_secs(10).saturating_sub(begun.elapsed()));
        let lied = (look(&liars) - before) as f64 / begun.elapsed().as_nanos() as f64 * 100.0;
        eprintln!("a microsecond reported for each kernel: named after {named:.1?}, {lied:.1} % of 30 %");
        assert!(lied < 40.0, "{lied:.1} %");
        finish(&mut liars);
    });
}
