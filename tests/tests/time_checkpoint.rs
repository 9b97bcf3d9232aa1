//! Device time while a tenant is suspended by `vgpu-checkpoint`: the others have all of it, and nobody pays for the
//! pause. The simulated device's record judges. Not here: memory and refusals (checkpoint.rs).

#[path = "leases/world.rs"]
mod world;

use std::time::Duration;
use vgpu_tests::Member;
use vgpu_tests::artefacts::vgpu_checkpoint;
use vgpu_tests::timed::measured;
use world::{World, alone, finish, tenant};

fn checkpoint(world: &World, verb: &str, pid: u32) {
    let done = world.lab.bare(vgpu_checkpoint()).args([verb, &pid.to_string()]).status().expect("the program");
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
        // The pause is made up for, so it has more than before for a while.
        assert!(again[0] >= 0.8 * both[0], "{again:?} of {both:?}");
        let (paid, used) = (after.0 - before.0, after.1 - before.1);
        assert!(
            paid <= used * 1.05 + 0.05,
            "it had {used:.2} s of the device in and after the pause, and pays {paid:.2}"
        );
    });
}
