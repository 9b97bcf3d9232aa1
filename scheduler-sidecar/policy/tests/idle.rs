//! Properties of the detectors of use: idle, resident-idle, stalled, starved, over-used, and the steps that follow.

use std::time::Duration;

use proptest::prelude::*;
use vgpu_config::usage::{IdlePlan, IdleStep, StepKind};
use vgpu_policy::idle::{IdleEnd, IdleWatch, ScaledUse, UseNews, UseSample, UseState};

const SECOND: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;

/// One second of a tenant's life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Life {
    /// Device time that it gets, in thousandths.
    used: u64,
    launches: u64,
    in_flight: bool,
    waits: bool,
    memory: u64,
}

const BUSY: Life = Life { used: 900, launches: 5, in_flight: true, waits: false, memory: GIB };
const SLOW: Life = Life { used: 100, launches: 1, in_flight: false, waits: false, memory: GIB };
const HOLDING: Life = Life { used: 0, launches: 0, in_flight: false, waits: false, memory: GIB };
const EMPTY: Life = Life { memory: 0, ..HOLDING };
const STUCK: Life = Life { in_flight: true, ..HOLDING };
const WAITING: Life = Life { waits: true, ..HOLDING };

/// A tenant that is sampled once a second.
struct Tenant {
    plan: IdlePlan,
    watch: IdleWatch,
    now: UseSample,
}

impl Tenant {
    fn new(steps: &[(StepKind, u64)]) -> Self {
        let step = |(kind, seconds): &(StepKind, u64)| IdleStep { kind: *kind, after: Duration::from_secs(*seconds) };
        let plan = IdlePlan { steps: steps.iter().map(step).collect(), ..IdlePlan::default() };
        let now = UseSample { members: 1, floor_permille: 300, ..UseSample::default() };
        Self { plan, watch: IdleWatch::default(), now }
    }

    fn live(&mut self, life: Life) -> UseNews {
        self.now.at += SECOND;
        self.now.charged_ns += life.used * SECOND / 1000;
        self.now.scaled_ns += life.used * SECOND / 1000;
        self.now.launches += life.launches;
        if life.waits {
            self.now.waited_ns += SECOND;
        }
        (self.now.in_flight, self.now.waits, self.now.memory) = (life.in_flight, life.waits, life.memory);
        self.watch.take_sample(&self.plan, self.now)
    }

    /// Lives for some seconds; returns the seconds at which the state changed, and the new states.
    fn live_for(&mut self, life: Life, seconds: u64) -> Vec<(u64, UseState)> {
        let changed = |at| self.live(life).change.map(|(_, state)| (at, state));
        (1..=seconds).filter_map(changed).collect()
    }

    fn steps_of(&mut self, life: Life, seconds: u64) -> Vec<(u64, StepKind)> {
        let due = |at| self.live(life).steps.into_iter().map(move |step| (at, step.kind)).collect::<Vec<_>>();
        (1..=seconds).flat_map(due).collect()
    }
}

/// Row 50: `idle_minutes` 2, `idle_threshold` 20 %.
#[test]
fn below_20_percent_for_2_minutes_is_idle_and_not_before_and_20_percent_is_not() {
    let mut tenant = Tenant::new(&[]);
    assert_eq!(tenant.live_for(BUSY, 60), []);
    assert_eq!(tenant.live_for(SLOW, 300), [(120, UseState::Idle)]);
    assert_eq!(tenant.live_for(Life { used: 200, ..SLOW }, 1), [(1, UseState::Busy)], "busy again within a sample");
    assert_eq!(tenant.live_for(Life { used: 200, ..SLOW }, 150), [], "the threshold itself is not below it");
}

/// Row 47: a tenant that holds memory and launches nothing.
#[test]
fn memory_held_without_a_launch_is_resident_idle_and_a_launch_ends_it() {
    let mut tenant = Tenant::new(&[]);
    tenant.live_for(BUSY, 10);
    assert_eq!(tenant.live_for(HOLDING, 200), [(120, UseState::Resident)]);
    assert_eq!(tenant.live_for(SLOW, 1), [(1, UseState::Idle)], "it launches, and is idle by its use");
    let mut tenant = Tenant::new(&[]);
    tenant.live_for(EMPTY, 1);
    assert_eq!(tenant.live_for(EMPTY, 200), [(120, UseState::Idle)], "nothing is held");
}

/// Row 91: the hoard is memory held multiplied by idle time.
#[test]
fn the_hoard_counts_memory_times_idle_time_and_begins_anew() {
    let mut tenant = Tenant::new(&[]);
    tenant.live_for(HOLDING, 121);
    assert_eq!(tenant.watch.state(), UseState::Resident);
    tenant.live_for(HOLDING, 100);
    assert_eq!((tenant.watch.hoarded_byte_seconds(), tenant.watch.idle_seconds()), (100 * u128::from(GIB), 220));
    let ended = IdleEnd { seconds: 220, byte_seconds: 100 * u128::from(GIB) };
    assert_eq!(tenant.live(BUSY).ended, Some(ended));
    assert_eq!((tenant.watch.hoarded_byte_seconds(), tenant.watch.idle_seconds()), (0, 0));
}

/// Row 47: queued work without progress.
#[test]
fn work_in_flight_without_progress_is_stalled_after_its_minutes_and_a_long_kernel_is_not() {
    let mut tenant = Tenant::new(&[]);
    tenant.live_for(BUSY, 10);
    assert_eq!(tenant.live_for(STUCK, 599), [], "a kernel of some minutes is work");
    assert_eq!(tenant.live_for(STUCK, 2), [(1, UseState::Stalled)]);
    assert_eq!(tenant.live_for(Life { used: 1000, ..BUSY }, 1), [(1, UseState::Busy)]);
}

#[test]
fn the_busiest_device_counts_in_parts_of_its_ceiling() {
    let mut scaled = ScaledUse::default();
    assert_eq!(scaled.add_sums([("a", 7_000, 1000), ("b", 900, 300)].into_iter()), 0, "the time before is unknown");
    assert_eq!(scaled.add_sums([("a", 7_100, 1000), ("b", 990, 300)].into_iter()), 300);
    assert_eq!(scaled.add_sums([("a", 7_600, 1000), ("b", 990, 300)].into_iter()), 800);
}

#[test]
fn a_tenant_that_waits_without_its_floor_is_starved_and_neither_idle_nor_stalled() {
    let mut tenant = Tenant::new(&[]);
    tenant.live_for(BUSY, 10);
    let waiting = Life { used: 100, launches: 1, ..WAITING };
    assert_eq!(tenant.live_for(waiting, 300), [(180, UseState::Starved)]);
    let served = Life { used: 300, launches: 3, ..WAITING };
    assert_eq!(tenant.live_for(served, 1), [(1, UseState::Busy)], "it gets its floor");
}

/// Row 51: `over_minutes` 3, `over_threshold` 80 %.
#[test]
fn at_80_percent_of_what_it_may_for_3_minutes_is_over_used_also_in_bursts() {
    let mut tenant = Tenant::new(&[]);
    let first = tenant.live_for(Life { used: 800, ..BUSY }, 200);
    assert_eq!(first, [(181, UseState::OverUsed)], "the first sample only begins");
    let ended = tenant.live_for(Life { used: 790, ..BUSY }, 200);
    assert_eq!(ended.iter().map(|(_, state)| *state).collect::<Vec<_>>(), [UseState::Busy]);
    let mut bursts = Tenant::new(&[]);
    for second in 0..400 {
        bursts.live(Life { used: if second % 10 < 9 { 1000 } else { 0 }, ..BUSY });
    }
    assert_eq!(bursts.watch.state(), UseState::OverUsed);
}

/// Row 48: warn, take, signal, kill, each at its time.
#[test]
fn steps_come_in_their_order_at_their_times_and_end_when_the_tenant_is_busy_again() {
    use StepKind::{Event, Lower, Reclaimable, Suspend, Terminate};
    let mut tenant = Tenant::new(&[(Event, 0), (Lower, 0), (Reclaimable, 60), (Suspend, 300), (Terminate, 600)]);
    tenant.live_for(BUSY, 10);
    let steps = tenant.steps_of(HOLDING, 1_000);
    assert_eq!(steps, [(120, Lower), (180, Reclaimable), (420, Suspend), (720, Terminate)]);
    let bounds = tenant.watch.restriction(&tenant.plan).unwrap();
    assert_eq!((bounds.weight, bounds.is_batch, bounds.is_paused), (Some(1), true, false));
    assert!(tenant.watch.is_reclaimable(&tenant.plan));
    tenant.live(BUSY);
    assert_eq!((tenant.watch.restriction(&tenant.plan), tenant.watch.taken_steps()), (None, &[][..]));
    assert_eq!(tenant.steps_of(HOLDING, 200), [(120, Lower), (180, Reclaimable)], "all begins again");
}

#[test]
fn processes_that_were_asked_to_end_are_killed_once_after_the_grace() {
    let mut tenant = Tenant::new(&[(StepKind::Terminate, 60)]);
    tenant.live_for(BUSY, 2);
    let kills: Vec<u64> = (1..=400).filter(|_| tenant.live(HOLDING).is_kill_due).collect();
    assert_eq!(kills.len(), 1);
    let mut spared = Tenant::new(&[(StepKind::Terminate, 60)]);
    spared.live_for(BUSY, 2);
    assert_eq!(spared.steps_of(HOLDING, 190).len(), 1);
    spared.live(BUSY);
    assert!((1..=100).all(|_| !spared.live(HOLDING).is_kill_due), "busy again within the grace");
}

#[test]
fn a_process_that_just_joined_is_asked_to_end_only_after_the_whole_time() {
    let mut tenant = Tenant::new(&[(StepKind::Lower, 0), (StepKind::Terminate, 60)]);
    tenant.live_for(BUSY, 2);
    assert_eq!(tenant.steps_of(HOLDING, 179), [(120, StepKind::Lower)]);
    tenant.now.joins += 1;
    let steps = tenant.steps_of(HOLDING, 400);
    assert_eq!(steps, [(181, StepKind::Terminate)], "counted from the join; the harmless step goes on");
    // One more joins after the grace, when the others were killed.
    tenant.now.joins += 1;
    assert_eq!(tenant.steps_of(HOLDING, 400), [(181, StepKind::Terminate)], "its own time begins");
}

#[test]
fn a_process_that_joins_within_the_grace_does_not_spare_the_processes_that_were_asked() {
    let mut tenant = Tenant::new(&[(StepKind::Terminate, 60)]);
    tenant.live_for(BUSY, 2);
    assert_eq!(tenant.steps_of(HOLDING, 190), [(180, StepKind::Terminate)]);
    tenant.now.joins += 1;
    let kills: Vec<u64> = (1..=100).filter(|_| tenant.live(HOLDING).is_kill_due).collect();
    assert_eq!(kills, [20], "30 s after they were asked");
}

/// A step of a dry run sends its event and does nothing else, and so does one that the file no longer has.
#[test]
fn processes_that_were_asked_to_end_are_not_killed_once_a_dry_run_began_or_the_step_is_gone() {
    type Change = fn(&mut IdlePlan);
    let changes: [Change; 2] = [|plan| plan.dry_run = true, |plan| plan.steps.clear()];
    for change in changes {
        let mut tenant = Tenant::new(&[(StepKind::Terminate, 60)]);
        tenant.live_for(BUSY, 2);
        assert_eq!(tenant.steps_of(HOLDING, 190), [(180, StepKind::Terminate)]);
        let before = tenant.plan.clone();
        change(&mut tenant.plan);
        let mut undone = Tenant { plan: before, watch: tenant.watch.clone(), now: tenant.now };
        assert!((1..=100).all(|_| !tenant.live(HOLDING).is_kill_due));
        // The change is undone within the grace, which would have ended 20 s later.
        undone.watch.take_sample(&tenant.plan, undone.now);
        assert!((1..=25).all(|_| !undone.live(HOLDING).is_kill_due));
    }
}

/// A reload changes `idle_steps` of a tenant that is idle.
#[test]
fn a_step_that_the_file_has_no_longer_does_not_hold_and_one_that_it_has_again_is_due_again() {
    use StepKind::{Lower, Reclaimable, Suspend};
    let mut tenant = Tenant::new(&[(Lower, 0), (Reclaimable, 0), (Suspend, 10)]);
    assert_eq!(tenant.steps_of(HOLDING, 200).len(), 3);
    let all = std::mem::take(&mut tenant.plan.steps);
    tenant.plan.steps = vec![all[1]];
    assert_eq!(tenant.live(HOLDING), UseNews::default());
    assert_eq!(tenant.watch.taken_steps(), [Reclaimable]);
    assert_eq!(tenant.watch.restriction(&tenant.plan), None);
    tenant.plan.steps = all;
    assert_eq!(tenant.steps_of(HOLDING, 10), [(1, Lower), (1, Suspend)]);
}

#[test]
fn a_dry_run_tells_the_steps_and_changes_nothing() {
    let mut tenant = Tenant::new(&[(StepKind::Lower, 0), (StepKind::Reclaimable, 0), (StepKind::Terminate, 10)]);
    tenant.plan.dry_run = true;
    tenant.live_for(BUSY, 2);
    let news: Vec<UseNews> = (0..300).map(|_| tenant.live(HOLDING)).collect();
    assert_eq!(news.iter().map(|news| news.steps.len()).sum::<usize>(), 3);
    assert!(news.iter().all(|news| !news.is_kill_due));
    assert_eq!(tenant.watch.restriction(&tenant.plan), None);
    assert!(!tenant.watch.is_reclaimable(&tenant.plan));
}

/// A person who ends a dry run expects no signal in the next second.
#[test]
fn after_a_dry_run_harmless_steps_hold_at_once_and_harmful_ones_count_from_then() {
    use StepKind::{Lower, Suspend, Terminate};
    let mut tenant = Tenant::new(&[(Lower, 0), (Suspend, 10), (Terminate, 60)]);
    tenant.plan.dry_run = true;
    tenant.live_for(BUSY, 2);
    assert_eq!(tenant.steps_of(HOLDING, 170), [(120, Lower), (130, Suspend)], "told");
    tenant.plan.dry_run = false;
    assert_eq!(tenant.live(HOLDING), UseNews::default());
    assert!(tenant.watch.restriction(&tenant.plan).is_some());
    assert_eq!(tenant.watch.taken_steps(), [Lower]);
    assert_eq!(tenant.steps_of(HOLDING, 200), [(130, Suspend), (180, Terminate)]);
    let kills: Vec<u64> = (201..=400).filter(|_| tenant.live(HOLDING).is_kill_due).collect();
    assert_eq!(kills, [210], "30 s after SIGTERM");
}

#[test]
fn unknown_use_a_pause_and_the_last_process_end_every_state() {
    type Change = fn(&mut UseSample);
    let changes: [Change; 3] =
        [|now| now.is_unmeasured = true, |now| now.is_paused = true, |now| (now.members, now.memory) = (0, 0)];
    for change in changes {
        let mut tenant = Tenant::new(&[(StepKind::Terminate, 0)]);
        tenant.live_for(HOLDING, 200);
        assert_eq!(tenant.watch.state(), UseState::Resident);
        change(&mut tenant.now);
        let news = tenant.live(HOLDING);
        assert_eq!((news.change, news.is_kill_due), (Some((UseState::Resident, UseState::Busy)), false));
        for _ in 0..500 {
            let news = tenant.live(HOLDING);
            assert!(news.steps.is_empty() && news.change.is_none(), "{news:?}");
        }
    }
}

/// Row 48: a tenant that the step `suspend` suspended is not ended by the steps that follow.
#[test]
fn a_suspended_tenant_hoards_nothing_has_no_further_steps_and_begins_again_when_it_is_resumed() {
    let steps = [(StepKind::Lower, 0), (StepKind::Suspend, 10), (StepKind::Terminate, 20)];
    let mut tenant = Tenant::new(&steps);
    assert_eq!(tenant.steps_of(HOLDING, 132), [(121, StepKind::Lower), (131, StepKind::Suspend)]);
    assert!(tenant.watch.hoarded_byte_seconds() > 0);
    tenant.now.is_suspended = true;
    let news = tenant.live(HOLDING);
    assert_eq!(news.change, Some((UseState::Resident, UseState::Suspended)));
    assert!(news.ended.is_some() && tenant.watch.restriction(&tenant.plan).is_none());
    // A process that was suspended at work has a request and work that make no progress.
    for life in [HOLDING, STUCK, WAITING, EMPTY] {
        for _ in 0..1_000 {
            assert_eq!(tenant.live(life), UseNews::default(), "{life:?}");
        }
    }
    assert_eq!((tenant.watch.hoarded_byte_seconds(), tenant.watch.idle_seconds()), (0, 0));
    assert_eq!(tenant.watch.state().word(), "suspended");
    tenant.now.is_suspended = false;
    assert_eq!(tenant.live(HOLDING).change, Some((UseState::Suspended, UseState::Busy)));
    let again = [(119, StepKind::Lower), (129, StepKind::Suspend), (139, StepKind::Terminate)];
    assert_eq!(tenant.steps_of(HOLDING, 160), again, "the times begin with the last sample before the resume");
}

fn life() -> impl Strategy<Value = Life> {
    let one = prop_oneof![Just(BUSY), Just(SLOW), Just(HOLDING), Just(EMPTY), Just(STUCK), Just(WAITING)];
    (one, 0..3_u64).prop_map(|(life, launches)| Life { launches: life.launches * launches, ..life })
}

proptest! {
    /// No life whatever ends or suspends a tenant that launched, waited or worked within the time that the file gives.
    #[test]
    fn nothing_harmful_happens_to_a_tenant_that_launched_or_waits(
        lives in prop::collection::vec((life(), 1..400_u64), 1..12),
        after in 1..400_u64,
    ) {
        let mut tenant = Tenant::new(&[(StepKind::Lower, 0), (StepKind::Suspend, after), (StepKind::Terminate, after)]);
        let (mut second, mut quiet_from) = (0_u64, 0_u64);
        for (life, seconds) in lives {
            for _ in 0..seconds {
                let (used, launches) = (tenant.now.charged_ns, tenant.now.launches);
                let news = tenant.live(life);
                second += 1;
                let worked = tenant.now.charged_ns != used || tenant.now.launches != launches;
                if worked || life.waits {
                    quiet_from = second;
                }
                let quiet = second - quiet_from;
                if news.is_kill_due || news.steps.iter().any(|step| step.kind.is_harmful()) {
                    prop_assert!(quiet >= 120 + after, "after {quiet} s without a launch, at {second} s");
                }
                if news.change.is_some_and(|(_, state)| state == UseState::Resident) {
                    prop_assert!(quiet >= 120 && life.memory > 0);
                }
                // A restriction never outlives the state.
                let bounds = tenant.watch.restriction(&tenant.plan);
                prop_assert!(bounds.is_none() || tenant.watch.state().has_steps());
            }
        }
    }

    /// A tenant that rests is told the same in the same second, whatever it did before and does afterwards.
    #[test]
    fn a_tenant_that_rests_is_told_the_same_in_the_same_second(
        lives in prop::collection::vec((life(), 1..900_u64, 0..2_u64, 0..9_u8), 1..10),
        after in 1..400_u64,
    ) {
        let steps = [(StepKind::Lower, 0), (StepKind::Reclaimable, 30), (StepKind::Suspend, after), (StepKind::Terminate, after)];
        let mut always = Tenant::new(&steps);
        let Tenant { watch: mut resting, mut plan, .. } = Tenant::new(&steps);
        let (mut last, mut left_out) = (UseSample::default(), 0);
        for (life, seconds, joins, state) in lives {
            always.now.joins += joins;
            (always.now.is_paused, always.now.is_unmeasured) = (state == 1, state == 2);
            always.now.members = usize::from(state != 3);
            always.now.is_suspended = state == 4;
            always.plan.dry_run = state == 5;
            for _ in 0..seconds {
                let news = always.live(life);
                let now = always.now;
                let is_same = UseSample { at: now.at, ..last } == now && plan == always.plan;
                if is_same && resting.rests_until(&always.plan).is_some_and(|until| now.at < until) {
                    prop_assert_eq!(news, UseNews::default());
                    left_out += 1;
                } else {
                    resting.pass_rest(&plan, now.at - SECOND);
                    plan.clone_from(&always.plan);
                    prop_assert_eq!(resting.take_sample(&always.plan, now), news);
                    last = now;
                }
            }
            let mut as_of_now = resting.clone();
            as_of_now.pass_rest(&always.plan, always.now.at);
            prop_assert_eq!(as_of_now.idle_seconds(), always.watch.idle_seconds());
            prop_assert_eq!(as_of_now.hoarded_byte_seconds(), always.watch.hoarded_byte_seconds());
            if life == EMPTY && seconds > 700 {
                prop_assert!(left_out > 0, "nobody rested");
            }
        }
    }

    /// Once its use is at its threshold, a tenant is told busy with the next sample, whatever was before.
    #[test]
    fn a_busy_tenant_is_busy_with_the_next_sample(lives in prop::collection::vec((life(), 1..900_u64), 1..6)) {
        let mut tenant = Tenant::new(&[(StepKind::Lower, 0)]);
        for (life, seconds) in lives {
            tenant.live_for(life, seconds);
        }
        tenant.live(Life { used: 500, ..BUSY });
        prop_assert!(!tenant.watch.state().has_steps());
    }
}
