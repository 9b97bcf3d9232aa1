//! Properties of deadlines: the floor suffices, is no more than that, and is never past what is admissible.

use proptest::prelude::*;
use vgpu_config::make_plan;
use vgpu_config::resolve::Surroundings;
use vgpu_config::usage::DeadlinePlan;
use vgpu_core::units::share::Share;
use vgpu_policy::deadline::{
    DeadlineDevice, DeadlineRoom, DeadlineState, FloorSums, decide_deadline, find_highest_ceiling,
};

const HOUR: i64 = 3_600;
const HOUR_NS: u64 = 3_600_000_000_000;

const FREE: DeadlineRoom = DeadlineRoom { admissible: 1000, ceiling: 1000, raised: 0 };

fn plan(hours: u64, due: i64) -> DeadlinePlan {
    DeadlinePlan { due, needed_ns: hours * HOUR_NS }
}

fn floors(plan: &DeadlinePlan, received_ns: u64, rooms: &[DeadlineRoom], now: i64) -> (DeadlineState, Vec<u32>) {
    decide_after(DeadlineState::OnTime, plan, received_ns, rooms, now)
}

fn decide_after(
    last: DeadlineState,
    plan: &DeadlinePlan,
    received_ns: u64,
    rooms: &[DeadlineRoom],
    now: i64,
) -> (DeadlineState, Vec<u32>) {
    let decision = decide_deadline(plan, received_ns, rooms, last, now);
    (decision.state, decision.floors.iter().map(|floor| permille(*floor)).collect())
}

fn permille(floor: Option<Share>) -> u32 {
    floor.map_or(0, |floor| floor.as_permille().into())
}

/// Row 84.
#[test]
fn a_deadline_gets_what_remains_by_the_time_left_and_nothing_when_it_is_done() {
    let plan = plan(5, 10 * HOUR);
    assert_eq!(floors(&plan, 0, &[FREE], 0), (DeadlineState::OnTime, vec![500]));
    assert_eq!(floors(&plan, 0, &[FREE], 4 * HOUR), (DeadlineState::OnTime, vec![840]), "5/6, rounded up");
    assert_eq!(floors(&plan, 4 * HOUR_NS, &[FREE], 4 * HOUR), (DeadlineState::OnTime, vec![170]));
    assert_eq!(floors(&plan, 5 * HOUR_NS, &[FREE], 20 * HOUR), (DeadlineState::Met, vec![0]));
    assert_eq!(floors(&plan, 0, &[FREE, FREE], 0), (DeadlineState::OnTime, vec![250, 250]), "two devices");
    let tight = DeadlineRoom { admissible: 100, ..FREE };
    assert_eq!(floors(&plan, 0, &[FREE, tight], 0), (DeadlineState::OnTime, vec![400, 100]), "where there is room");
    assert_eq!(floors(&plan, 0, &[tight], 0), (DeadlineState::AtRisk, vec![100]));
}

/// Row 84: the event says when the deadline could be met for the last time.
#[test]
fn a_deadline_that_cannot_be_met_says_since_when() {
    let plan = plan(5, 10 * HOUR);
    assert_eq!(floors(&plan, 0, &[FREE], 5 * HOUR), (DeadlineState::OnTime, vec![1000]));
    for now in [5 * HOUR + 300, 9 * HOUR, 10 * HOUR, 30 * HOUR] {
        assert_eq!(floors(&plan, 0, &[FREE], now), (DeadlineState::Missed { since: 5 * HOUR }, vec![0]), "{now}");
    }
    let half = DeadlineRoom { ceiling: 500, admissible: 500, ..FREE };
    assert_eq!(floors(&plan, 0, &[half], HOUR).0, DeadlineState::Missed { since: 0 }, "by its ceiling");
}

/// Work that needs all of its ceiling, measured a little short of it or past it at each look.
#[test]
fn work_at_the_boundary_keeps_its_floor_and_a_missed_deadline_is_told_once() {
    let plan = plan(5, 10 * HOUR);
    let half = [DeadlineRoom { ceiling: 500, admissible: 500, ..FREE }];
    let got_ns = 5 * HOUR_NS / 2;
    let short = |last, seconds: u64| decide_after(last, &plan, got_ns - seconds * 1_000_000_000, &half, 5 * HOUR);
    assert_eq!(short(DeadlineState::OnTime, 0), (DeadlineState::OnTime, vec![500]));
    assert_eq!(short(DeadlineState::OnTime, 60), (DeadlineState::AtRisk, vec![500]), "it keeps all that it may have");
    let missed = short(DeadlineState::AtRisk, 120).0;
    assert!(matches!(missed, DeadlineState::Missed { .. }), "{missed:?}");
    assert_eq!(short(missed, 0).0, DeadlineState::Missed { since: 5 * HOUR }, "two minutes gained do not end it");
    let ahead = decide_after(missed, &plan, got_ns + 200_000_000_000, &half, 5 * HOUR).0;
    assert_eq!(ahead, DeadlineState::OnTime);
}

/// A window that leaves 10 percent by day does not miss a deadline that the nights can meet.
#[test]
fn a_ceiling_of_this_hour_alone_makes_no_deadline_missed() {
    let file = "[[device]]\nid = 0\n[[tenant]]\nname = \"a\"\ndevices = [0]\nmemory_limit = \"1GiB\"\nsm_limit = 50\n\
        [[window]]\nname = \"day\"\nfrom = \"08:00\"\nto = \"18:00\"\nsm_limit = 10\n\
        [[window]]\nname = \"night\"\nfrom = \"18:00\"\nto = \"08:00\"\nsm_limit = 90\ntenants = [\"a\"]\n";
    let around = Surroundings { run_dir: "/run/vgpu".into(), ..Surroundings::default() };
    let file = make_plan(file, &around).unwrap();
    let highest =
        |windows: &[_], in_force| find_highest_ceiling(&file.tenants[0], "0", Share::from_permille(in_force), windows);
    assert_eq!(highest(&file.windows, 100), 900, "by night");
    assert_eq!(highest(&file.windows[..1], 100), 500, "in the evening");
    assert_eq!(highest(&file.windows[..1], 700), 700, "an administrator gave more");
    let by_day = DeadlineRoom { admissible: 100, ceiling: highest(&file.windows, 100), raised: 0 };
    assert_eq!(floors(&plan(5, 10 * HOUR), 0, &[by_day], 0), (DeadlineState::AtRisk, vec![100]));
}

#[test]
fn a_floor_changes_by_whole_percent_and_falls_only_by_two() {
    let plan = plan(5, 10 * HOUR);
    let at = |raised, received_ns| floors(&plan, received_ns, &[DeadlineRoom { raised, ..FREE }], 0).1[0];
    assert_eq!(at(0, 0), 500);
    assert_eq!(at(500, HOUR_NS / 10), 500, "49 percent are needed, and 50 stay");
    assert_eq!(at(500, HOUR_NS / 5), 480, "48 percent are needed");
    assert_eq!(at(480, 0), 500, "it rises at once");
}

fn rooms() -> impl Strategy<Value = Vec<DeadlineRoom>> {
    let room = (1..=100_u32, 0..=100_u32, 0..=100_u32).prop_map(|(ceiling, admissible, raised)| {
        let (ceiling, admissible) = (ceiling * 10, (admissible * 10).min(ceiling * 10));
        DeadlineRoom { ceiling, admissible, raised: (raised * 10).min(admissible) }
    });
    prop::collection::vec(room, 1..5)
}

/// Tenants of one device: floor and ceiling in percent, and the GPU hours that the deadline needs (0: no deadline).
fn sharers() -> impl Strategy<Value = Vec<(u16, u16, u64)>> {
    prop::collection::vec((0..=30_u16, 10..=100_u16, 0..=12_u64), 2..8).prop_map(|mut all| {
        let sum: u16 = all.iter().map(|(floor, ..)| *floor).sum();
        all.iter_mut().for_each(|(floor, ceiling, _)| {
            // The file admits floors up to the whole device, each below its ceiling.
            *floor = *floor * 100 / sum.max(100);
            *ceiling = (*ceiling).max(*floor).max(1);
        });
        all
    })
}

proptest! {
    #[test]
    fn deadlines_that_are_decided_together_never_share_the_same_free_room(sharers in sharers(), passes in 1..4) {
        let share = |percent: u16| Share::from_permille(u32::from(percent) * 10);
        let mut raised = vec![None::<Share>; sharers.len()];
        for _ in 0..passes {
            let floor = |at: usize| share(sharers[at].0).filter(|_| sharers[at].0 > 0).max(raised[at]);
            let in_force: Vec<Option<Share>> = (0..sharers.len()).map(floor).collect();
            let mut sums = FloorSums::default();
            in_force.iter().for_each(|floor| sums.add_floor("0", *floor));
            for (at, (_, ceiling, hours)) in sharers.iter().enumerate().filter(|(_, (.., hours))| *hours > 0) {
                let device = DeadlineDevice {
                    name: "0".into(),
                    floor: in_force[at],
                    ceiling: share(*ceiling),
                    highest_ceiling: 1000,
                    raised: permille(raised[at]),
                };
                let decision = sums.decide_next(
                    &plan(*hours, 10 * HOUR), 0, &[device], DeadlineState::OnTime, |_| false, 0,
                );
                raised[at] = decision.floors[0];
            }
            let promised: u32 = in_force.iter().zip(&raised).map(|(own, raised)| permille((*own).max(*raised))).sum();
            prop_assert!(promised <= 1000, "{} of {:?}", promised, sharers);
        }
    }

    #[test]
    fn floors_never_pass_what_is_admissible_and_on_time_they_suffice_without_waste(
        rooms in rooms(), needed in 1..2_000_000_u64, left in 1..1_000_000_i64,
    ) {
        let plan = DeadlinePlan { due: left, needed_ns: needed * 1_000_000_000 };
        let (state, floors) = floors(&plan, 0, &rooms, 0);
        let rate = (u128::from(needed) * 1000).div_ceil(left.unsigned_abs().into());
        for (floor, room) in floors.iter().zip(&rooms) {
            prop_assert!(*floor <= room.admissible);
        }
        let sum: u128 = floors.iter().map(|floor| u128::from(*floor)).sum();
        let (admissible, ceilings): (u32, u32) =
            rooms.iter().fold((0, 0), |(a, c), room| (a + room.admissible, c + room.ceiling));
        match state {
            DeadlineState::OnTime => {
                prop_assert!(sum >= rate);
                // One percent of rounding and less than two of falling, on each device.
                prop_assert!(sum <= rate + 30 * rooms.len() as u128, "{sum} for {rate}");
            }
            DeadlineState::AtRisk => prop_assert!(sum < rate && sum == u128::from(admissible)),
            DeadlineState::Missed { since } => {
                prop_assert!(sum == 0 && rate > u128::from(ceilings) && since <= 0);
            }
            DeadlineState::Met => prop_assert!(false, "work remains"),
        }
    }

    /// A tenant that gets exactly its floor, or more, is done in time; its floor changes rarely.
    #[test]
    fn a_tenant_that_gets_its_floor_is_done_in_time(
        hours in 1..40_u64, days in 2..6_i64, lucky in prop::collection::vec(0..3_u64, 1..30),
    ) {
        const STEP: i64 = 60;
        let plan = plan(hours, days * 24 * HOUR);
        let (mut received, mut raised, mut changes, mut now) = (0_u64, 0_u32, 0_u32, 0_i64);
        while now < plan.due {
            let room = DeadlineRoom { raised, ..FREE };
            let (state, floors) = floors(&plan, received, &[room], now);
            prop_assert!(matches!(state, DeadlineState::OnTime | DeadlineState::Met), "{state:?} at {now}");
            changes += u32::from(floors[0] != raised);
            raised = floors[0];
            let luck = lucky[usize::try_from(now / (6 * HOUR)).unwrap() % lucky.len()] * 50;
            received += (u64::from(raised) + luck).min(1000) * STEP.unsigned_abs() * 1_000_000;
            now += STEP;
        }
        prop_assert_eq!(floors(&plan, received, &[FREE], now).0, DeadlineState::Met);
        prop_assert!(changes <= 110, "{changes} changes of the floor");
    }
}
