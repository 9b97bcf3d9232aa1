//! Promises over random tenants: none exceeds its ceiling and burst, every one makes progress, the device is busy,
//! charges are true, floors are kept. The tenants are drawn from a fixed seed, so each run is the same.

use crate::measure;
use crate::profile::A100;
use crate::program::{MS, SECOND, US, Work};
use crate::world::World;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use vgpu_core::time::arbiter::{Class, DeviceId, TenantId, Terms};
use vgpu_core::units::share::Share;

const SPAN: u64 = 8 * SECOND;

fn kernel() -> impl Strategy<Value = u64> {
    prop_oneof![Just(50 * US), Just(300 * US), Just(MS), Just(3 * MS), Just(8 * MS), Just(20 * MS)]
}

pub(crate) fn work() -> impl Strategy<Value = Work> {
    work_of(kernel)
}

/// Work whose kernels are as long as `kernel` draws.
pub(crate) fn work_of<K: Strategy<Value = u64>>(kernel: fn() -> K) -> impl Strategy<Value = Work> {
    prop_oneof![
        4 => kernel().prop_map(|kernel| Work::Queue { kernel }),
        2 => (kernel(), 1u64..400).prop_map(|(kernel, gap)| Work::Sync { kernel, gap: gap * US }),
        1 => (kernel(), 1u32..6, 1u64..30)
            .prop_map(|(kernel, count, host)| Work::Burst { count, kernel, host: host * MS }),
        1 => (kernel(), 2usize..6).prop_map(|(kernel, streams)| Work::Streams { streams, kernel, each: 24 }),
    ]
}

/// Random terms whose floors add up to at most 90 %.
pub(crate) fn terms() -> impl Strategy<Value = Terms> {
    let limit = prop_oneof![2 => Just(None), 3 => (5u32..100).prop_map(Some)];
    let floor = prop_oneof![2 => Just(None), 1 => (1u32..=15).prop_map(Some)];
    (limit, floor, 1u32..10, 0u8..6).prop_map(|(limit, floor, weight, class)| {
        let ceiling = limit.map(|limit| limit.max(floor.unwrap_or(0)));
        let class = match class {
            0 => Class::Latency,
            1 => Class::Batch,
            _ => Class::Normal,
        };
        Terms {
            class,
            floor: floor.and_then(Share::from_percent),
            ceiling: ceiling.and_then(Share::from_percent),
            weight,
            quantum: None,
        }
    })
}

fn percent(share: Option<Share>) -> Option<f64> {
    share.map(|share| f64::from(share.as_permille()) / 10.0)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        rng_seed: RngSeed::Fixed(30),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whoever_comes_nobody_is_over_and_nobody_is_left_out(
        tenants in prop::collection::vec((terms(), work()), 1..7),
        seed in 1u64..1_000_000,
    ) {
        let mut world = World::new(A100, 1, true, seed);
        for (at, (terms, work)) in (0u32..).zip(&tenants) {
            world.member(at, 0, *terms, work.clone());
        }
        world.run(SPAN);
        world.report();
        // A latency tenant does not wait for others' long kernels. Then two contexts run by slices, and the events of
        // each contain the other's slices.
        let longest = world.members.iter().map(|member| member.program.longest()).max().unwrap_or(0);
        let latency = tenants.iter().any(|(terms, _)| terms.class == Class::Latency);
        let meter = if latency && longest >= 3 * MS { 0.3 } else { 0.08 };
        for (at, (terms, work)) in (0u32..).zip(&tenants) {
            let got = measure::share(&world, 0, at);
            let longest = world.members[at as usize].program.longest() as f64 * 100.0 / SPAN as f64;
            if let Some(limit) = percent(terms.effective_ceiling().map(|_| terms.ceiling).unwrap_or_default()) {
                // A burst of 50 ms, the credit earned while a neighbour's kernel ran, and the last kernel.
                let bucket = limit * (50 * MS + 40 * MS) as f64 / SPAN as f64;
                prop_assert!(got <= limit * (1.0 + meter / 4.0) + bucket + longest + 0.2, "{at}: {got:.2} over {limit} in {tenants:?}");
            }
            prop_assert!(got > 0.0, "{at} got {got:.3} in {tenants:?}");
            let charged = world.arbiter.as_ref().unwrap().charged_ns(TenantId(at), DeviceId(0)) as f64 * 100.0 / SPAN as f64;
            let alone = tenants.len() == 1 && terms.effective_ceiling().is_none();
            prop_assert!(alone || (charged - got).abs() <= got * meter + 0.6, "{at}: charged {charged:.2}, used {got:.2}");
            // A floor is kept for a tenant that always wants it. Below a class that takes every moment, a tenant with
            // short kernels gets up to a quarter less. `behaviour` measures that case with kernels of 1 ms; it is not
            // promised here.
            if let (Some(floor), Work::Queue { .. }, false) = (percent(terms.floor), work, latency) {
                prop_assert!(got >= floor * (1.0 - meter) - longest - 0.2, "{at}: {got:.2} below its floor {floor} in {tenants:?}");
            }
        }
        // A tenant without a ceiling that always has work queued keeps the device busy. Exceptions are the pauses of
        // tenants that synchronise after every 50 us: they keep their lease during the pause.
        let always = tenants.iter().any(|(terms, work)| terms.effective_ceiling().is_none() && matches!(work, Work::Queue { .. }));
        let handovers = tenants.iter().all(|(_, work)| matches!(work, Work::Queue { .. }));
        if always {
            let busy = measure::busy(&world, 0, SECOND);
            let least = if handovers { 97.0 } else { 60.0 };
            prop_assert!(busy >= least, "busy {busy:.2} with {tenants:?}");
        }
    }

    /// A usage meter that is wrong by some percent makes the share wrong by the same percentage and no more.
    #[test]
    fn a_biased_meter_biases_the_share_by_as_much(bias in 900u64..1100, limit in 10u32..70) {
        let mut world = World::new(A100, 1, true, 5);
        let ceiling = Terms { ceiling: Share::from_percent(limit), ..Terms::default() };
        world.member(0, 0, ceiling, Work::Queue { kernel: MS });
        world.members[0].guest.bias = bias;
        world.run(10 * SECOND);
        let got = measure::share(&world, 0, 0);
        let due = f64::from(limit) * 1000.0 / bias as f64;
        prop_assert!((got - due).abs() <= 0.01 * due + 0.5, "{got:.2} with {bias}, due {due:.2}");
    }
}
