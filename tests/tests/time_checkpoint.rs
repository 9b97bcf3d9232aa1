//! Device time while a tenant is suspended by `vgpu-checkpoint`: the others have all of it, and nobody pays for the
//! pause. The simulated device's record judges. Not here: memory and refusals (checkpoint.rs).

#[path = "leases/world.rs"]
mod world;

use std::thread;
use std::time::Duration;
use vgpu_tests::Member;
use vgpu_tests::artefacts::vgpu_checkpoint;
use vgpu_tests::timed::measured;
use world::{World, alone, finish, tenant};

fn checkpoint(world: &World, verb: &str, pid: u32) {
    let mut program = world.lab.bare(vgpu_checkpoint());
    let socket = world.lab.path().join("run/admin.sock");
    let done = program.args([verb, &pid.to_string(), "--socket"]).arg(socket).status().expect("the program");
    assert!(done.success(), "{verb}: {done}");
}

#[test]
fn a_suspended_tenant_holds_no_lease_and_pays_for_no_time() {
    measured(|| {
        let _alone = alone();
        let mut world = World::start(&(tenant("a", "sm_request = 50") + &tenant("b", "")));
        world.lab.set("VGPU_SIM_DRIVER", "580");
        let mut members = world.at_work(&[("a", 1000, 64, 0), ("b", 1000, 64, 0)], 14_000);
        let both = world.shares(&members, Duration::from_millis(1_500));
        let billed = |world: &World| world.time("a")["gpu_seconds"].as_f64().expect("its time is measured");
        #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
        let had = |world: &World, members: &[Member]| world.served(members).1[0] as f64 / 1e9;
        checkpoint(&world, "suspend", members[0].pid);
        let before = (billed(&world), had(&world, &members));
        let suspended = world.shares(&members, Duration::from_secs(3));
        let standing = world.explain("a");
        checkpoint(&world, "resume", members[0].pid);
        let again = world.shares(&members, Duration::from_millis(1_500));
        let after = (billed(&world), had(&world, &members));
        finish(&mut members);
        eprintln!("{both:.1?} together, {suspended:.1?} suspended, {again:.1?} again");
        assert!(suspended[0] < 0.5, "{suspended:?}; {standing}");
        assert!(suspended[1] >= 0.9 * (both[0] + both[1]), "{suspended:?} of {both:?}; {standing}");
        assert!(again[0] >= 0.8 * both[0], "{again:?} of {both:?}");
        let (paid, used) = (after.0 - before.0, after.1 - before.1);
        assert!(
            paid <= used * 1.05 + 0.05,
            "it had {used:.2} s of the device in and after the pause, and pays {paid:.2}"
        );
    });
}

/// Percent of the device that each member gets from now on for `time`.
fn shares_at_once(world: &World, members: &[Member], time: Duration) -> Vec<f64> {
    let (begin, before) = world.served(members);
    thread::sleep(time);
    let (end, after) = world.served(members);
    #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
    let percent = |(a, b): (&u64, &u64)| (b - a) as f64 / (end - begin).as_nanos() as f64 * 100.0;
    before.iter().zip(&after).map(percent).collect()
}

/// Both tenants have a floor of half. One that waited for four seconds would have all of the device for two.
#[test]
fn a_tenant_that_was_suspended_at_work_does_not_make_up_for_it() {
    measured(|| {
        let _alone = alone();
        let mut world = World::start(&(tenant("a", "sm_request = 50") + &tenant("b", "sm_request = 50")));
        world.lab.set("VGPU_SIM_DRIVER", "580");
        let mut members = world.at_work(&[("a", 1000, 64, 0), ("b", 1000, 64, 0)], 12_000);
        let both = world.shares(&members, Duration::from_millis(1_000));
        checkpoint(&world, "suspend", members[0].pid);
        let suspended = shares_at_once(&world, &members, Duration::from_secs(4));
        assert_eq!(world.time("a")["state"], "suspended");
        assert_eq!(world.time("a")["waiting"], 0, "it waits for nothing");
        checkpoint(&world, "resume", members[0].pid);
        let again = shares_at_once(&world, &members, Duration::from_millis(1_500));
        finish(&mut members);
        eprintln!("{both:.1?} together, {suspended:.1?} suspended, {again:.1?} again");
        assert!(suspended[0] < 0.1 * suspended[1], "{suspended:?}");
        assert!(again[0] > 0.5 * again[1] && again[0] < 1.6 * again[1], "{again:?} of {both:?}");
    });
}
