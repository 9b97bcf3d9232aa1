//! Properties that shares must not break: latency, progress, and a busy device. One scenario per test.

use crate::measure;
use crate::profile::A100;
use crate::program::{MS, SECOND, US, Work};
use crate::table::{ceiling, floor, weight};
use crate::world::World;
use vgpu_core::time::arbiter::{Class, Gate, TenantId, Terms};
use vgpu_core::units::share::Share;

fn class(class: Class) -> Terms {
    Terms { class, ..Terms::default() }
}

fn answers(kernel: u64, beside: Option<Work>) -> (u64, u64) {
    let mut world = World::new(A100, 1, true, 3);
    let here = world.member(0, 0, class(Class::Latency), Work::Requests { kernel, period: 15 * MS });
    if let Some(work) = beside {
        world.member(1, 0, class(Class::Batch), work);
    }
    world.run(60 * SECOND);
    let answers = &world.members[here].answers;
    assert!(answers.len() > 3_000);
    (measure::quantile(answers, 50), measure::quantile(answers, 99))
}

#[test]
fn a_latency_tenant_answers_in_time_beside_a_saturating_batch_tenant() {
    for kernel in [50 * US, 500 * US, MS] {
        for batch in [50 * US, MS] {
            let (solo, _) = (answers(kernel, None).1, ());
            let (median, p99) = answers(kernel, Some(Work::Queue { kernel: batch }));
            println!(
                "| latency {} us beside batch {} us | solo p99 {} us | median {} us | p99 {} us |",
                kernel / US,
                batch / US,
                solo / US,
                median / US,
                p99 / US
            );
            assert!(p99 <= solo + 2_500 * US, "{p99} against {solo}");
        }
    }
}

#[test]
fn a_latency_tenant_waits_for_no_more_than_one_long_kernel_of_others() {
    let solo = answers(MS, None).1;
    let (_, p99) = answers(MS, Some(Work::Queue { kernel: 20 * MS }));
    // When the drain allowance after the arrival is over, the contexts share the device by slices, whatever still runs.
    assert!(p99 <= solo + 21 * MS, "{p99} against {solo}");
}

#[test]
fn a_saturating_latency_tenant_starves_neither_floors_nor_classes() {
    let mut world = World::new(A100, 1, true, 1);
    world.member(0, 0, class(Class::Latency), Work::Queue { kernel: MS });
    world.member(1, 0, Terms { class: Class::Batch, ..floor(30) }, Work::Queue { kernel: MS });
    world.member(2, 0, class(Class::Batch), Work::Queue { kernel: MS });
    world.run(20 * SECOND);
    let floor = measure::share(&world, 0, 1);
    assert!(floor >= 29.0, "a floor of 30 % in another class: {floor:.1}");
    let last = measure::share(&world, 0, 2);
    assert!(last >= 0.1, "a class without a floor: {last:.2}");
    // The tenant gets some time in every second.
    let context = world.members[2].context;
    let buckets = &world.devices[0].contexts[context].buckets;
    for second in 2..19 {
        assert!(
            buckets[second * 100 - 50..second * 100 + 100].iter().any(|&ns| ns > 0),
            "nothing about second {second}"
        );
    }
}

#[test]
fn a_holder_that_computes_without_a_call_does_not_keep_the_device() {
    for kernels in [1, 20] {
        let mut world = World::new(A100, 1, true, 1);
        world.member(0, 0, Terms::default(), Work::Absent { kernel: MS / u64::from(kernels), kernels, host: 50 * MS });
        world.member(1, 0, Terms::default(), Work::Queue { kernel: MS });
        world.run(10 * SECOND);
        let busy = measure::busy(&world, 0, 0);
        assert!(busy >= 98.0, "busy {busy:.2} %");
        let alone = 100.0 / 51.0;
        let got = measure::share(&world, 0, 0);
        assert!(got >= 0.85 * alone, "and it gets its own milliseconds: {got:.2} % of {alone:.2}");
    }
}

#[test]
fn a_kernel_that_waits_for_another_stream_ends_under_a_ceiling() {
    for daemon in [false, true] {
        let mut world = World::new(A100, 1, daemon, 1);
        let here = world.member(0, 0, ceiling(30), Work::Dependent { times: 100 });
        world.run(120 * SECOND);
        assert_eq!(world.members[here].program.rounds(), 100, "all hundred pairs, daemon {daemon}");
        assert!(world.devices[0].contexts[0].queue.is_empty());
    }
}

/// Next to six other tenants a kernel takes seven times as long as expected. That is no reason to admit the next one.
#[test]
fn without_a_daemon_nobody_beside_six_others_is_over_its_ceiling() {
    let streams = |kernel| Work::Streams { streams: 4, kernel, each: 1_000_000 };
    let queue = |kernel| Work::Queue { kernel };
    for (what, kernel, work) in [
        ("queued", MS, queue(MS)),
        ("queued", 20 * MS, queue(20 * MS)),
        ("queued", 200 * MS, queue(200 * MS)),
        ("on four streams", 20 * MS, streams(20 * MS)),
        ("on four streams", 200 * MS, streams(200 * MS)),
    ] {
        let mut world = World::new(A100, 1, false, 1);
        let ceilings: Vec<u32> = (1..=7).map(|weight| 1000 * weight / 28).collect();
        for (at, &permille) in (0u32..).zip(&ceilings) {
            let terms = Terms { ceiling: Share::from_permille(permille), ..Terms::default() };
            world.member(at, 0, terms, work.clone());
        }
        world.run(12 * SECOND);
        for (at, &permille) in (0u32..).zip(&ceilings) {
            let (got, due) = (measure::share(&world, 0, at), f64::from(permille) / 10.0);
            println!("| {} ms {what}, {due} % of seven | {got:.2} |", kernel / MS);
            assert!(got <= due + 1.0, "{} ms {what}: {got:.2} under {due}", kernel / MS);
        }
    }
}

/// An unmeasured function is launched once until a measurement exists. The start costs one kernel beyond the ceiling,
/// not one for each stream, and not one for each expired wait.
#[test]
fn the_first_launches_of_a_long_function_are_one() {
    let streams = Work::Streams { streams: 4, kernel: SECOND, each: 1_000_000 };
    for (what, work) in [("queued", Work::Queue { kernel: SECOND }), ("on four streams", streams)] {
        let mut world = World::new(A100, 1, false, 1);
        world.member(0, 0, ceiling(10), work);
        world.run(5 * SECOND);
        let used = measure::used(&world, 0, 0);
        assert!(used <= 1_010 * MS, "{what}: {} ms in the first five seconds", used / MS);
    }
}

#[test]
fn what_is_used_while_alone_is_not_held_against_anybody() {
    let mut world = World::new(A100, 1, true, 1);
    world.member(0, 0, weight(1), Work::Queue { kernel: MS });
    world.run(30 * SECOND);
    assert!(measure::share(&world, 0, 0) > 99.0);
    assert_eq!(world.members[0].guest.gate, Gate::Open, "alone and unlimited: no lease");
    world.member(1, 0, weight(1), Work::Queue { kernel: MS });
    let before = [0, 1].map(|at| measure::used(&world, 0, at));
    world.run(40 * SECOND);
    let after = [0, 1].map(|at| measure::used(&world, 0, at));
    let got = [0, 1].map(|at| (after[at] - before[at]) as f64 / (10 * SECOND) as f64 * 100.0);
    // 1024 launches were queued through the open gate. They run first, at the same time as the newcomer's.
    assert!((got[0] - 50.0).abs() <= 6.0 && (got[1] - 50.0).abs() <= 6.0, "{got:?}");
    let before = after;
    world.run(50 * SECOND);
    let got = [0, 1].map(|at| {
        (measure::used(&world, 0, at) - before[usize::try_from(at).unwrap()]) as f64 / (10 * SECOND) as f64 * 100.0
    });
    assert!((got[0] - 50.0).abs() <= 1.0, "{got:?}");
}

/// A thousand launches were queued through the open gate. They run at the same time as the newcomer's and are paid.
#[test]
fn weights_hold_from_the_moment_on_at_which_a_second_tenant_comes() {
    let mut world = World::new(A100, 1, true, 1);
    world.member(0, 0, weight(30), Work::Queue { kernel: MS });
    world.run(30 * SECOND);
    assert_eq!(world.members[0].guest.gate, Gate::Open, "alone and unlimited: no lease");
    world.member(1, 0, weight(70), Work::Queue { kernel: MS });
    let before = [0, 1].map(|at| measure::used(&world, 0, at));
    world.run(40 * SECOND);
    let got = [0, 1].map(|at| {
        (measure::used(&world, 0, at) - before[usize::try_from(at).unwrap()]) as f64 / (10 * SECOND) as f64 * 100.0
    });
    assert!((got[0] - 30.0).abs() <= 1.5 && (got[1] - 70.0).abs() <= 1.5, "{got:?}");
}

/// Time alone counts as served to the floor. Otherwise the tenant would be a second behind its floor when another one
/// comes, and that one would wait.
#[test]
fn a_floor_is_not_owed_for_the_time_alone() {
    let mut world = World::new(A100, 1, true, 1);
    world.member(0, 0, Terms { floor: Share::from_percent(50), ..weight(1) }, Work::Queue { kernel: MS });
    world.run(5 * SECOND);
    assert_eq!(world.members[0].guest.gate, Gate::Open, "alone and unlimited: no lease");
    world.member(1, 0, weight(9), Work::Queue { kernel: MS });
    world.run(7 * SECOND);
    let got = measure::used(&world, 0, 1) as f64 / (2 * SECOND) as f64 * 100.0;
    println!("| beside a floor of 50 % that was alone | {got:.1} |");
    assert!(got >= 36.0, "nine parts of ten of what the floor leaves: {got:.1}");
}

#[test]
fn without_the_daemon_everybody_goes_on_with_what_was_promised() {
    let mut world = World::new(A100, 1, true, 1);
    world.member(0, 0, Terms { floor: Share::from_percent(20), ..ceiling(50) }, Work::Queue { kernel: MS });
    world.member(1, 0, ceiling(30), Work::Queue { kernel: MS });
    world.run(5 * SECOND);
    world.daemon_alive = false;
    let before = [0, 1].map(|at| measure::used(&world, 0, at));
    world.run(15 * SECOND);
    for (at, due) in [(0u32, 20.0), (1, 30.0)] {
        let got = (measure::used(&world, 0, at) - before[at as usize]) as f64 / (10 * SECOND) as f64 * 100.0;
        assert!(got <= due + 1.0, "tenant {at} keeps below {due}: {got:.1}");
        // Elapsed time contains the other tenant's slices, so a tenant may use its ceiling only partly.
        assert!(got >= due / 2.0, "tenant {at} goes on: {got:.1}");
    }
}

#[test]
fn a_dead_holder_costs_the_others_nothing() {
    let mut world = World::new(A100, 1, true, 1);
    let dies = world.member(0, 0, weight(1), Work::Queue { kernel: SECOND });
    world.member(1, 0, weight(1), Work::Queue { kernel: MS });
    world.run(5 * SECOND + 3 * MS);
    world.kill(dies);
    let before = measure::used(&world, 0, 1);
    world.run(10 * SECOND);
    let got = (measure::used(&world, 0, 1) - before) as f64 * 100.0 / (5 * SECOND) as f64;
    assert!(got > 99.0, "{got:.1} % of the time after");
    let arbiter = world.arbiter.as_mut().unwrap();
    let device = vgpu_core::time::arbiter::DeviceId(0);
    assert!(arbiter.charged_ns(TenantId(0), device) > 0, "what it owes stays, should it come back");
    arbiter.forget_tenant(TenantId(0));
    assert_eq!(arbiter.charged_ns(TenantId(0), device), 0, "its seat is gone");
}

#[test]
fn a_changed_limit_is_in_force_within_ten_milliseconds() {
    let mut world = World::new(A100, 1, true, 1);
    world.member(0, 0, Terms::default(), Work::Queue { kernel: 200 * US });
    world.run(3 * SECOND);
    world.set(0, 0, ceiling(20));
    // 1024 launches passed the open gate before the change and are still queued.
    world.run(4 * SECOND);
    let before = measure::used(&world, 0, 0);
    world.run(8 * SECOND);
    let got = (measure::used(&world, 0, 0) - before) as f64 * 100.0 / (4 * SECOND) as f64;
    assert!((got - 20.0).abs() <= 1.0, "{got:.2}");
    // Changes the tenant's ceiling from one value to another.
    world.set(0, 0, ceiling(60));
    let before = measure::used(&world, 0, 0);
    world.run(8 * SECOND + 110 * MS);
    let got = (measure::used(&world, 0, 0) - before) as f64 / (110 * MS) as f64 * 100.0;
    assert!((45.0..75.0).contains(&got), "{got:.1} % in the first 110 ms");
    world.set(0, 0, ceiling(10));
    let before = measure::used(&world, 0, 0);
    world.run(8 * SECOND + 210 * MS);
    let got = (measure::used(&world, 0, 0) - before) as f64 / (100 * MS) as f64 * 100.0;
    assert!(got <= 20.0, "{got:.1} % in the first 100 ms of 10 %");
}

#[test]
fn members_of_a_tenant_take_turns_within_its_share() {
    let mut world = World::new(A100, 1, true, 1);
    for _ in 0..3 {
        world.member(0, 0, weight(1), Work::Queue { kernel: MS });
    }
    world.member(1, 0, weight(1), Work::Queue { kernel: MS });
    world.run(20 * SECOND);
    let got = measure::share(&world, 0, 0);
    assert!((got - 50.0).abs() <= 1.0, "three members have one share: {got:.2}");
    for member in 0..3 {
        let own = world.devices[0].contexts[member].busy as f64 * 100.0 / world.now as f64;
        assert!((own - got / 3.0).abs() <= 1.0, "and each a third of it: {own:.2}");
    }
}

#[test]
fn bursts_are_charged_what_they_used() {
    for (kernel, host) in [(50 * US, 20 * MS), (200 * US, 20 * MS), (20 * US, MS)] {
        let mut world = World::new(A100, 1, true, 1);
        world.member(0, 0, ceiling(50), Work::Burst { count: 3, kernel, host });
        world.run(30 * SECOND);
        let (truth, said) = (measure::used(&world, 0, 0), world.members[0].guest.busy);
        assert!(said.abs_diff(truth) * 20 <= truth, "{said} charged for {truth}");
    }
}

#[test]
fn a_program_that_synchronises_gets_its_part_beside_one_that_queues() {
    let mut world = World::new(A100, 1, true, 1);
    world.member(0, 0, weight(1), Work::Sync { kernel: MS, gap: 300 * US });
    world.member(1, 0, weight(1), Work::Queue { kernel: MS });
    world.run(10 * SECOND);
    let got = measure::share(&world, 0, 0);
    assert!(got >= 25.0, "pauses of 300 us cost it {got:.1} of 50");
}
