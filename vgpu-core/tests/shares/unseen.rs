//! The driver's samples reveal a member that works without a lease, and never accuse another.
//!
//! Samples here are the model's true usage, as late as a driver's samples may be.

use crate::profile::A100;
use crate::program::{MS, SECOND, Work};
use crate::properties::{terms, work};
use crate::world::World;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use vgpu_core::arbiter::audit::Audit;

const LOOK: u64 = 400 * MS;

/// The driver's samples of one member, each as late as it may be.
#[derive(Default)]
struct Watched {
    audit: Audit,
    busy: Vec<u64>,
}

impl Watched {
    /// Makes one check with a sample that is `late` checks old. Returns true if the member is found.
    fn look(&mut self, world: &mut World, at: usize, late: usize) -> bool {
        let member = &world.members[at];
        self.busy.push(world.devices[0].contexts[member.context].busy);
        let before = |ago: usize| self.busy.len().checked_sub(ago).map_or(0, |at| self.busy[at]);
        let seen = before(late + 1) - before(late + 2);
        let had = member.slot.and_then(|slot| world.arbiter.as_mut()?.had(slot, world.now));
        self.audit.look(had, seen, world.now, world.now)
    }
}

/// By default each run draws the same histories. `VGPU_SEED` chooses others, and `PROPTEST_CASES` sets their number.
#[expect(clippy::disallowed_methods, reason = "a test says by its variables which histories it draws")]
fn which() -> ProptestConfig {
    let seed = std::env::var("VGPU_SEED").map_or(7, |text| text.parse().expect("VGPU_SEED"));
    let told = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { told.cases } else { 64 };
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..told }
}

proptest! {
    #![proptest_config(which())]

    /// Any tenants, any launches and any kill, on a host whose threads wake up to 30 ms late.
    #[test]
    fn no_honest_tenant_is_ever_found_to_work_without_a_lease(
        tenants in prop::collection::vec((terms(), work(), 0u32..3), 1..6),
        late in 0usize..3,
        wake in prop_oneof![Just(4_000u64), Just(MS), Just(30 * MS)],
        killed in prop::option::of(0usize..6),
        seed in 1u64..1_000_000,
    ) {
        let mut world = World::new(crate::profile::Profile { wake, ..A100 }, 1, true, seed);
        let mut watched = Vec::new();
        for look in 1..=10 {
            for (at, (terms, work, comes)) in (0u32..).zip(&tenants) {
                if look == 1 + 2 * *comes {
                    world.member(at, 0, *terms, work.clone());
                    watched.push(Watched::default());
                }
            }
            world.run(u64::from(look) * LOOK);
            for (at, watched) in watched.iter_mut().enumerate().filter(|(at, _)| Some(*at) != killed || look < 7) {
                prop_assert!(!watched.look(&mut world, at, late), "{at} at look {look} in {tenants:?}");
            }
            if let Some(at) = killed.filter(|at| look == 6 && *at < world.members.len()) {
                world.kill(at);
            }
        }
    }
}

#[test]
fn a_member_that_launches_without_its_lease_is_found_within_three_seconds() {
    for late in 0..3 {
        let mut world = World::new(A100, 1, true, 7);
        let none = vgpu_core::arbiter::Terms::default();
        world.member(0, 0, none, Work::Queue { kernel: MS });
        let liar = world.member(1, 0, none, Work::Queue { kernel: MS });
        world.members[liar].guest.gate = vgpu_core::arbiter::Gate::Open;
        let slot = world.members[liar].slot.take();
        let (mut watched, mut honest) = (Watched::default(), Watched::default());
        let found = (1..=20).find(|look| {
            world.run(look * LOOK);
            world.members[liar].slot = slot;
            let is_found = watched.look(&mut world, liar, late);
            world.members[liar].slot = None;
            assert!(!honest.look(&mut world, 0, late), "look {look}");
            is_found
        });
        assert!(found.is_some_and(|look| look * LOOK <= 3 * SECOND), "{late} late: look {found:?}");
    }
}
