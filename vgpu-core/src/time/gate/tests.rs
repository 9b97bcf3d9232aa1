//! The gate's promises.

use super::marks::{OpenInterval, StreamMarkers, has_kept_up};
use super::*;
use crate::time::account::cost::{CostTable, UNKNOWN_COST_NS};
use crate::time::config::{BASE, KNOWN_WAIT_NS, MARKER_INTERVAL_NS};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

const fn sure(ns: u64) -> CostGuess {
    CostGuess::with_certainty(ns)
}

fn run() -> Gate {
    Gate::Run { lease: 1, until: u64::MAX, exclusive: true, ceiling: None, wide: false }
}

fn ask(cost: CostGuess, gate: Gate, now: u64) -> LaunchRequest {
    LaunchRequest { cost, gate, admission: Admission::Admit, beside: true, aside: 0, now }
}

#[test]
fn an_open_gate_asks_nothing() {
    let mut keeper = LaunchGate::default();
    for n in 0..1000 {
        let ask = LaunchRequest {
            cost: CostGuess::NEVER_MEASURED,
            gate: Gate::Open,
            admission: Admission::WaitUntil(u64::MAX),
            beside: true,
            aside: 0,
            now: n,
        };
        assert_eq!(keeper.ask_gate(&ask), GateVerdict::Go);
    }
    assert_eq!(keeper, LaunchGate::default());
}

#[test]
fn estimated_work_in_flight_is_bounded() {
    let mut keeper = LaunchGate::default();
    let mut admitted = 0;
    while keeper.ask_gate(&ask(sure(150 * US), run(), 0)) == GateVerdict::Go {
        keeper.note_launch(sure(150 * US), 0);
        admitted += 1;
    }
    assert_eq!(admitted, 13, "2 ms hold 13 times 150 us");
    keeper.note_completed(150 * US, CostDoubt::NO_DOUBT, 150 * US);
    assert_eq!(keeper.ask_gate(&ask(sure(150 * US), run(), 150 * US)), GateVerdict::Go);
}

#[test]
fn one_long_launch_goes_when_nothing_is_in_flight_and_the_next_when_it_is_about_to_end() {
    let mut keeper = LaunchGate::default();
    let long = sure(20 * MS);
    assert_eq!(keeper.ask_gate(&ask(long, run(), 0)), GateVerdict::Go);
    keeper.note_launch(long, 0);
    assert_eq!(keeper.ask_gate(&ask(long, run(), MS)), GateVerdict::Wait(MS + 980 * US), "looks again after a while");
    let early = 20 * MS - 100 * US;
    assert_eq!(keeper.ask_gate(&ask(long, run(), early - US)), GateVerdict::Wait(early));
    assert_eq!(keeper.ask_gate(&ask(long, run(), 19 * MS)), GateVerdict::Wait(19 * MS + 230_000), "and sooner");
    assert_eq!(keeper.ask_gate(&ask(long, run(), early)), GateVerdict::Go);
    keeper.note_launch(long, early);
    assert!(matches!(keeper.ask_gate(&ask(long, run(), 21 * MS)), GateVerdict::Wait(_)), "but only one");
}

#[test]
fn launches_of_unknown_cost_go_one_at_a_time() {
    let mut keeper = LaunchGate::default();
    assert_eq!(keeper.ask_gate(&ask(CostGuess::NEVER_MEASURED, run(), 0)), GateVerdict::Go);
    keeper.note_launch(CostGuess::NEVER_MEASURED, 0);
    assert!(matches!(keeper.ask_gate(&ask(CostGuess::NEVER_MEASURED, run(), US)), GateVerdict::Wait(_)));
    assert_eq!(keeper.ask_gate(&ask(sure(US), run(), US)), GateVerdict::Go, "a known one is no risk");
    keeper.note_completed(UNKNOWN_COST_NS, CostGuess::NEVER_MEASURED.doubt_of(), 30 * US);
    assert_eq!(keeper.ask_gate(&ask(CostGuess::NEVER_MEASURED, run(), 31 * US)), GateVerdict::Go);
}

#[test]
fn whoever_may_not_launch_waits_for_the_word_or_the_refill() {
    let mut keeper = LaunchGate::default();
    let cost = sure(50 * US);
    assert_eq!(keeper.ask_gate(&ask(cost, Gate::Wait, 5)), GateVerdict::Wait(5 + 10 * MS));
    assert_eq!(keeper.ask_gate(&ask(cost, Gate::Cap { until: 3 * MS }, 5)), GateVerdict::Wait(3 * MS));
    // The end of the pause opens no gate by itself. A look each nanosecond would only keep a processor busy.
    assert_eq!(keeper.ask_gate(&ask(cost, Gate::Cap { until: 3 * MS }, 3 * MS)), GateVerdict::Wait(13 * MS));
    let over = Gate::Run { lease: 1, until: 4 * MS, exclusive: true, ceiling: None, wide: false };
    assert_eq!(keeper.ask_gate(&ask(cost, over, 4 * MS - 1)), GateVerdict::Go);
    assert_eq!(keeper.ask_gate(&ask(cost, over, 4 * MS)), GateVerdict::Wait(14 * MS));
    let debt = LaunchRequest { admission: Admission::WaitUntil(7 * MS), ..ask(cost, run(), 0) };
    assert_eq!(keeper.ask_gate(&debt), GateVerdict::Wait(7 * MS));
}

#[test]
fn what_runs_may_wait_for_what_is_held_back() {
    let mut keeper = LaunchGate::default();
    keeper.note_launch(sure(3 * MS), 0);
    for gate in [run(), Gate::Wait, Gate::Cap { until: u64::MAX }] {
        let mut keeper = keeper;
        let (mut now, mut forced) = (0, Vec::new());
        while forced.len() < 6 {
            match keeper.ask_gate(&ask(sure(3 * MS), gate, now)) {
                GateVerdict::Go if forced.is_empty() => now += MS, // one ahead, at the end of what runs
                GateVerdict::Wait(until) => now = until,
                GateVerdict::Forced => forced.push(now),
                GateVerdict::Go => panic!("not without being forced"),
            }
            if now >= 3 * MS {
                keeper.ahead = true;
            }
        }
        let expected = 4 * MS + 500 * US;
        let after = [10, 30, 70, 150, 310, 630].map(|ms: u64| expected + ms * MS);
        assert_eq!(forced, after, "{gate:?}");
    }
}

#[test]
fn behind_work_of_its_own_stream_a_launch_waits_longer_before_it_is_forced() {
    let mut keeper = LaunchGate::default();
    keeper.note_launch(CostGuess::NEVER_MEASURED, 0);
    let behind = |now| LaunchRequest { beside: false, ..ask(CostGuess::NEVER_MEASURED, run(), now) };
    let mut forced = Vec::new();
    let mut now = 0;
    while forced.len() < 4 {
        match keeper.ask_gate(&behind(now)) {
            GateVerdict::Wait(until) => now = until,
            GateVerdict::Forced => forced.push(now),
            GateVerdict::Go => panic!("not without being forced"),
        }
    }
    let first = UNKNOWN_COST_NS * 3 / 2 + 2_560 * MS;
    assert_eq!(forced, [0, 2_560, 5_120, 7_680].map(|ms| first + ms * MS));
}

/// Simulates launches without a balance, each held until the gate forces it. `helps`: whether the work in flight ends
/// when the launch goes. Returns how long each of them waited, in ms.
fn waits(helps: bool) -> Vec<u64> {
    let (mut keeper, mut now) = (LaunchGate::default(), 0);
    let poor = |now| LaunchRequest { admission: Admission::WaitUntil(u64::MAX), ..ask(sure(MS), run(), now) };
    let mut waits = Vec::new();
    for _ in 0..6 {
        keeper.note_launch(sure(80 * MS), now);
        let begun = now;
        while let GateVerdict::Wait(until) = keeper.ask_gate(&poor(now)) {
            now = until;
        }
        waits.push((now - begun) / MS);
        keeper.note_launch(sure(MS), now);
        keeper.note_completed(MS, CostDoubt::NO_DOUBT, now + MS);
        now += if helps { MS } else { 500 * MS };
        keeper.note_completed(80 * MS, CostDoubt::NO_DOUBT, now);
    }
    waits
}

#[test]
fn forced_launches_that_help_stay_as_quick_and_those_in_vain_become_rare() {
    assert_eq!(waits(true), [130; 6]);
    assert_eq!(waits(false), [130, 160, 280, 760, 2_680, 2_680]);
}

#[test]
fn what_takes_longer_than_expected_beside_others_is_expected_to() {
    let due = |took: &[u64]| {
        let (mut keeper, mut now) = (LaunchGate::default(), 0);
        took.iter().for_each(|spent| keeper.learn_slowdown(200 * MS, *spent));
        keeper.note_launch(sure(200 * MS), 0);
        while let GateVerdict::Wait(until) = keeper.ask_gate(&ask(sure(200 * MS), Gate::Wait, now)) {
            now = until;
        }
        now / MS
    };
    let exclusive = due(&[]);
    assert_eq!(due(&[200 * MS; 9]), exclusive);
    assert!(due(&[1_400 * MS]) >= 1_400, "seven at once: {}", due(&[1_400 * MS]));
    assert!(due(&[MS * 1_000_000]) <= 3_500, "and no end of the world: {}", due(&[MS * 1_000_000]));
    let after = [[1_400 * MS; 1].as_slice(), [200 * MS; 60].as_slice()].concat();
    assert_eq!(due(&after), exclusive, "alone again");
}

#[test]
fn a_marker_follows_250_us_of_work_whatever_the_number_of_launches() {
    for cost in [US, 10 * US, 50 * US, 249 * US] {
        let mut marks = StreamMarkers::default();
        let mut ends = 0;
        for n in 0..10_000 {
            marks.before_launch(sure(cost), n == 0, true);
            ends += u64::from(marks.after_launch(sure(cost)).is_some());
        }
        let most = 10_000 * cost / MARKER_INTERVAL_NS + 1;
        assert!(ends <= most && ends * 2 >= most, "{cost}: {ends} of {most}");
    }
}

#[test]
fn programs_that_synchronise_are_sampled() {
    let mut marks = StreamMarkers::default();
    let (mut begins, mut ends, mut tails) = (0, 0, 0);
    for _ in 0..1_000 {
        let before = marks.before_launch(sure(50 * US), true, true);
        begins += u32::from(before.begin);
        tails += before.tail.map_or(0, |tail| tail.estimate);
        if marks.after_launch(sure(50 * US)).is_some() {
            ends += 1;
            marks.complete_oldest(1, false);
        }
    }
    assert_eq!((begins, ends), (200, 200), "one launch in 250 us of work");
    assert_eq!(tails, 800 * 50 * US, "the others are charged by their cost");
    // A kernel longer than the distance is always measured.
    let before = marks.before_launch(sure(MS), true, true);
    assert!(before.begin && marks.after_launch(sure(MS)).is_some_and(|open| open.measured));
}

/// Kernels of 2 us, launched every 4 us: the device waits for the host within each interval.
#[test]
fn where_the_device_keeps_up_with_the_host_a_launch_is_measured_on_an_idle_stream() {
    let cost = CostGuess::with_certainty(2_000);
    let mut marks = StreamMarkers::default();
    marks.before_launch(cost, true, true);
    let mut launches = 0;
    let interval = loop {
        launches += 1;
        if let Some(interval) = marks.after_launch(cost) {
            break interval;
        }
        marks.before_launch(cost, false, true);
    };
    assert!(has_kept_up(interval.launches, 3_000, 500_000) && launches > 100);
    assert!(!has_kept_up(interval.launches, 40_000, 500_000), "the host is ahead");
    assert!(!has_kept_up(1, 0, 2_000), "a single launch is measured from an idle stream");
    assert!(!has_kept_up(20, 0, 500_000), "that long the host does not take for twenty launches");
    assert!(!marks.wants_idle(2_000));
    marks.before_launch(cost, false, true);
    marks.after_launch(cost);
    marks.complete_oldest(interval.launches, true);
    assert!(marks.wants_idle(2_000) && !marks.goes_on(2_000) && marks.unmarked_room().is_none());
    assert!(marks.before_launch(cost, true, true).begin);
    assert_eq!(marks.after_launch(cost).map(|sample| (sample.launches, sample.measured)), Some((1, true)));
    marks.complete_oldest(1, false);
    assert!(!marks.wants_idle(2_000), "it was measured");
    marks.before_launch(cost, false, true);
    marks.after_launch(cost);
    marks.complete_oldest(interval.launches, true);
    marks.before_launch(cost, false, true);
    assert!(!marks.wants_idle(2_000), "after one failed wait it does not ask again");
}

#[test]
fn what_was_never_measured_is_measured_at_once() {
    let mut marks = StreamMarkers::default();
    assert!(marks.before_launch(CostGuess::NEVER_MEASURED, true, true).begin);
    assert!(marks.after_launch(CostGuess::NEVER_MEASURED).is_some_and(|open| open.measured && open.doubt.unknown == 1));
}

/// The short path decides like the long one: every launch that it lets go would have gone on the long path, and both
/// count alike.
#[test]
fn what_goes_on_is_what_would_have_gone_anyway() {
    let (mut short, mut long) = (LaunchGate::default(), LaunchGate::default());
    let (mut marks, mut other) = (StreamMarkers::default(), StreamMarkers::default());
    let mut taken = 0;
    for n in 0..3_000u64 {
        let cost = 1 + n * 7_919 % 9_000;
        let admission = if n % 11 == 0 { Admission::WaitUntil(n + MS) } else { Admission::Admit };
        let gate = if n % 13 == 0 { Gate::Wait } else { run() };
        let ask = LaunchRequest { admission, ..ask(sure(cost), gate, n) };
        if marks.goes_on(cost) && short.goes_on(&ask) {
            taken += 1;
            assert_eq!(long.ask_gate(&ask), GateVerdict::Go, "{ask:?}");
            marks.go_on(cost);
            assert!(other.before_launch(sure(cost), false, true).tail.is_none());
            assert!(other.after_launch(sure(cost)).is_none(), "no marker");
        } else {
            for marks in [&mut marks, &mut other] {
                marks.before_launch(sure(cost), n == 0, true);
                if marks.after_launch(sure(cost)).is_some() {
                    marks.complete_oldest(1, false);
                }
            }
            short.note_launch(sure(cost), n);
        }
        long.note_launch(sure(cost), n);
        assert_eq!((short.in_flight(), marks), (long.in_flight(), other));
        if short.in_flight() > MS {
            short.note_completed(MS, CostDoubt::NO_DOUBT, n);
            long.note_completed(MS, CostDoubt::NO_DOUBT, n);
        }
    }
    assert!(taken > 2_000, "{taken}");
}

/// A launch that took 50 us once may take a second the next time.
#[test]
fn of_what_was_measured_a_few_times_only_as_many_go_together() {
    let costs = CostTable::<1>::new();
    for most in [2, 4, 8, 16, 32, 64, 200] {
        costs.learn_cost(7, 10 * US);
        let (mut keeper, mut marks) = (LaunchGate::default(), StreamMarkers::default());
        let cost = costs.guess_cost(7);
        let own = |cost, now| LaunchRequest { beside: false, ..ask(cost, run(), now) };
        let mut went = 0;
        while keeper.ask_gate(&own(cost, 0)) == GateVerdict::Go {
            let begins = marks.before_launch(cost, went == 0, true).begin;
            assert_eq!(begins, went == 0 && most < 200, "where it can it begins at a marker");
            keeper.note_launch(cost, 0);
            went += 1;
            marks.after_launch(cost);
        }
        assert_eq!((went, keeper.is_in_doubt(&own(cost, 0))), (most, most < 200));
        assert!(matches!(keeper.ask_gate(&own(cost, MS)), GateVerdict::Wait(_)), "not by its time: {most}");
        assert_eq!(keeper.ask_gate(&own(sure(10 * US), 0)) == GateVerdict::Go, most < 200, "others go beside it");
        assert!(most == 200 || !keeper.goes_on(&own(cost, 0)), "and it takes the long way");
        assert_eq!(keeper.ask_gate(&ask(cost, run(), 0)) == GateVerdict::Go, most < 200, "as others may wait for it");
        // A launch that waits puts a marker after the work in flight; each marker that is reached makes room for as
        // many launches again.
        let doubt = marks.close().map_or(cost.doubt_of(), |open| open.doubt);
        keeper.note_completed(10 * US, doubt, 10 * US);
        assert_eq!(keeper.ask_gate(&own(cost, 10 * US)), GateVerdict::Go);
    }
}

/// Work that the program waits for each time gets no marker merely because it is new: a collective that waits for
/// others would get one.
#[test]
fn what_is_in_doubt_gets_no_marker_behind_it_until_somebody_waits_for_that() {
    let costs = CostTable::<1>::new();
    for _ in 0..6 {
        costs.learn_cost(7, 2 * US);
        let mut marks = StreamMarkers::default();
        assert!(
            marks.before_launch(costs.guess_cost(7), true, true).begin
                && marks.after_launch(costs.guess_cost(7)).is_none()
        );
        assert!(marks.close().is_some_and(|open| open.measured && open.doubt == costs.guess_cost(7).doubt_of()));
        marks.complete_oldest(1, false);
        assert!(
            !marks.before_launch(costs.guess_cost(7), true, false).begin,
            "beside what is not measured it cannot be"
        );
    }
    costs.learn_cost(7, 2 * US);
    let mut marks = StreamMarkers::default();
    assert!(
        !marks.before_launch(costs.guess_cost(7), true, true).begin
            && marks.after_launch(costs.guess_cost(7)).is_none()
    );
}

/// A kernel waits for the host, and others are queued behind it before the host releases it.
#[test]
fn whom_nothing_but_doubt_holds_back_is_not_held_for_long_each_time() {
    let costs = CostTable::<1>::new();
    costs.learn_cost(7, 10 * US);
    let cost = costs.guess_cost(7);
    for beside in [false, true] {
        let own = |now, admission| LaunchRequest { beside, admission, ..ask(cost, run(), now) };
        let (mut keeper, mut now, admit) = (LaunchGate::default(), 0, Admission::Admit);
        while keeper.ask_gate(&own(now, admit)) == GateVerdict::Go {
            keeper.note_launch(cost, 0);
        }
        let mut poor = keeper;
        for n in 0..20 {
            assert!(keeper.is_held_by_doubt(&own(now, admit)));
            assert!(matches!(keeper.ask_gate(&own(now + KNOWN_WAIT_NS - MS, admit)), GateVerdict::Wait(_)), "{n}");
            now += KNOWN_WAIT_NS + MS;
            assert_eq!(keeper.ask_gate(&own(now, admit)), GateVerdict::Forced, "{n}");
            keeper.note_launch(cost, now);
        }
        let without = Admission::WaitUntil(u64::MAX);
        assert!(!poor.is_held_by_doubt(&own(0, without)));
        let all =
            (1..=20).filter(|n| poor.ask_gate(&own(n * (KNOWN_WAIT_NS + MS), without)) == GateVerdict::Forced).count();
        assert!(beside || all < 10, "nor is that a way round the balance: {all}");
    }
}

#[test]
fn a_launch_that_the_driver_refused_leaves_nothing() {
    let (mut keeper, mut marks) = (LaunchGate::default(), StreamMarkers::default());
    keeper.note_launch(sure(MS), 0);
    marks.before_launch(sure(100 * US), true, true);
    assert!(marks.after_launch(sure(100 * US)).is_none());
    let before = (keeper.in_flight(), marks);
    // One in the middle of an interval, one of unknown cost that was to end it.
    let costs = CostTable::<1>::new();
    let young = [3, 1, 1].map(|more| ((0..more).for_each(|_| costs.learn_cost(7, 50 * US)), costs.guess_cost(7)).1);
    for cost in [sure(50 * US), CostGuess::NEVER_MEASURED].into_iter().chain(young) {
        keeper.note_launch(cost, 0);
        marks.before_launch(cost, false, true);
        let closed = marks.after_launch(cost);
        assert_eq!(closed.is_some(), cost.is_unknown());
        keeper.undo_launch(cost);
        marks.undo_launch(cost, closed);
        assert_eq!((keeper.in_flight(), keeper.young_doubt(), marks), (before.0, 0, before.1));
    }
    assert_eq!(
        keeper.ask_gate(&ask(CostGuess::NEVER_MEASURED, run(), 0)),
        GateVerdict::Go,
        "none of unknown cost is left"
    );
}

/// Launches with an estimated cost near zero never add up to an interval, so a sample must be asked for.
#[test]
fn what_would_never_come_to_a_marker_is_measured_on_demand() {
    let mut marks = StreamMarkers::default();
    assert!(!marks.before_launch(sure(1), true, true).begin);
    assert!(marks.after_launch(sure(1)).is_none());
    marks.sample_next();
    marks.before_launch(sure(1), false, true);
    assert!(marks.after_launch(sure(1)).is_some(), "an interval that is open ends with the next launch");
    marks.complete_oldest(1, false);
    marks.sample_next();
    assert!(marks.before_launch(sure(1), true, true).begin, "an idle stream begins one");
    assert!(marks.after_launch(sure(1)).is_some_and(|open| open.measured));
}

/// A launch of 2 ms under 10 %: the balance suffices after 20 ms, and each look wakes a thread. But work that took
/// less than its estimate must be noticed while that still matters.
#[test]
fn a_launch_that_waits_for_the_balance_looks_a_few_times() {
    let looks = |limit: u64, took: u64| {
        let mut keeper = LaunchGate::default();
        keeper.note_launch(sure(2 * MS), 0);
        let (mut now, mut looks) = (0, 0);
        loop {
            let in_flight = keeper.in_flight();
            let nil = (if in_flight > 0 { 2 * MS } else { took }) * 100 / limit;
            let admission = if now > nil { Admission::Admit } else { Admission::WaitUntil(nil + 1) };
            match keeper.ask_gate(&LaunchRequest { admission, ..ask(sure(MS), run(), now) }) {
                GateVerdict::Wait(until) => (now, looks) = (until, looks + 1),
                _ => return (looks, now - (took * 100 / limit)),
            }
            if now >= took && in_flight > 0 {
                keeper.note_completed(in_flight, CostDoubt::NO_DOUBT, took);
            }
        }
    };
    for (limit, most) in [(10, 3), (50, 4)] {
        let (count, late) = looks(limit, 2 * MS);
        assert!(count <= most && late <= 1, "{limit} %: {count}, {late} late");
    }
    for (limit, most) in [(10, 10 * MS), (50, MS), (90, MS)] {
        let (_, late) = looks(limit, MS / 2);
        assert!(late <= most, "{limit} %: {late}");
    }
}

#[test]
fn a_tail_that_others_wait_for_ends_with_a_marker() {
    let mut marks = StreamMarkers::default();
    assert_eq!(marks.close(), None, "nothing is open");
    marks.before_launch(sure(60 * US), true, true);
    assert!(marks.after_launch(sure(60 * US)).is_none());
    let tail = marks.close().expect("there is a tail");
    assert_eq!((tail.estimate, tail.measured, marks.pending_intervals(), marks.must_ask()), (60 * US, false, 1, false));
    marks.complete_oldest(1, false);
    assert_eq!((marks.pending_intervals(), marks.close()), (0, None));
}

#[test]
fn what_takes_longer_than_expected_is_looked_at_less_and_less() {
    let mut keeper = LaunchGate::default();
    keeper.note_launch(sure(MS), 0);
    let looks = |end: u64| {
        let (mut now, mut count) = (0, 0);
        while now < end {
            now = keeper.next_look(now);
            count += 1;
        }
        (count, now - end)
    };
    let (count, late) = looks(1_000 * MS);
    assert!(count < 1_200 && late <= MS, "{count} looks, {late} late");
    let (_, late) = looks(2 * MS);
    assert!(late <= 2 * MS / 16, "{late}");
}

/// A launch that others' work may be waiting for is not held back because it was once measured to take longer than it
/// does.
#[test]
fn what_is_a_small_part_of_the_work_beside_it_goes() {
    for (cost, in_flight, goes) in [
        (sure(100_000), 3_000_000, true),
        (sure(112_000), 3_000_000, true),
        (sure(112_000), 1_000_000, false),
        (sure(3_000_000), 100_000_000, true),
        (sure(30_000_000), 100_000_000, false),
        (CostGuess::NEVER_MEASURED, 100_000_000, false),
    ] {
        assert_eq!(goes_beside(cost, in_flight, true), goes, "{cost:?} beside {in_flight}");
        assert!(!goes_beside(cost, in_flight, false), "on its own stream it waits in the device");
        let mut keeper = LaunchGate::default();
        keeper.note_launch(sure(in_flight), 0);
        let aside = if goes { in_flight } else { 0 };
        let verdict = keeper.ask_gate(&LaunchRequest { aside, ..ask(cost, run(), 1000) });
        assert_eq!(
            verdict == GateVerdict::Go,
            goes || !cost.is_unknown() && cost.as_ns() + in_flight <= BASE.in_flight
        );
    }
}

/// A thread that wakes up this late still sees that the work is about to end, not only that it may be over. The next
/// member is then admitted without idle time.
#[test]
fn who_looks_late_by_less_than_a_handover_still_sees_the_end_before_it_comes() {
    for work in [150 * US, 200 * US, 450 * US, MS, 1_950 * US] {
        for late in (0..35).map(|us| us * US) {
            let mut keeper = LaunchGate::default();
            keeper.note_launch(sure(work), 0);
            let mut now = 0;
            while keeper.reported_remaining(now) >= BASE.handover && now < work {
                now = keeper.next_look(now) + late;
            }
            assert!(
                (1..BASE.handover).contains(&keeper.reported_remaining(now)),
                "{work} ns, looks late by {late}: {now}"
            );
        }
    }
}

#[test]
fn what_is_launched_beside_others_pays_its_part_only_where_that_can_be_told() {
    let own_apart = |begin: bool, is_apart, estimate, all, length, spent| {
        let mut open = OpenInterval::default();
        open.estimate = estimate;
        open.own_part(begin, is_apart, all, length, spent)
    };
    let own = |begin: bool, estimate, all, length, spent| own_apart(begin, true, estimate, all, length, spent);
    assert_eq!(own(false, 250, 250, 400, 400), 400, "alone it is what was counted");
    assert_eq!(own(false, 250, 1000, 1200, 900), 300, "a fifth longer than believed, as all of them");
    assert_eq!(own(true, 50, 90, 120, 51), 51, "behind a marker of its own the others are counted for themselves");
    assert_eq!(own(true, 50, 100, 120, 0), 50, "or for it");
    assert_eq!(own_apart(true, false, 50, 200, 180, 180), 50, "where they are not, it is what was believed");
    assert_eq!(own(false, 20, 1_300_000, 25, 25), 20, "what runs beside a wait is no part of that");
    assert_eq!(own(false, 1000, 1020, 1_000_000, 999_990), 980_392, "and a wait is no part of what runs beside it");
}

#[test]
fn launches_that_ran_beside_others_teach_an_undisturbed_cost_only_if_others_cannot_explain_it() {
    let shown_below = |bound, unknown, estimate, part, spent, late| {
        let mut open = OpenInterval::default();
        (open.doubt.unknown, open.estimate) = (unknown, estimate);
        let shown = open.shown_cost(part, spent, late, bound);
        (shown.ns, shown.is_disturbed)
    };
    let shown = |unknown, estimate, part, spent, late| shown_below(None, unknown, estimate, part, spent, late);
    assert_eq!(shown(0, 100, 150, 300, 0), (150, false), "nobody was admitted: its part");
    assert_eq!(shown(0, 100, 150, 300, 200), (300, true), "others may be the reason");
    assert_eq!(shown(0, 100, 1000, 1000, 800), (600, false), "half of the device was its own");
    assert_eq!(shown(0, 100, 790, 790, 790), (790, true), "half of that is less than four times the estimate");
    assert_eq!(shown(1, 100, 1000, 1000, 800), (1000, true), "nothing was known");
    assert_eq!(shown_below(Some(150), 0, 100, 100, 150, 0), (150, true), "a bound above the estimate");
    assert_eq!(shown_below(Some(80), 0, 100, 60, 60, 0), (80, true), "a bound below it");
    assert_eq!(shown_below(Some(20), 0, 100, 10, 10, 0), (20, false), "far below it");
    assert_eq!(shown_below(Some(1000), 0, 100, 1000, 1000, 0), (1000, false), "far longer");
    let second = 1_000 * MS;
    assert_eq!(shown_below(Some(second), 0, 20 * US, 20 * US, second, 0), (second, false), "whatever others claim");
    assert_eq!(shown_below(Some(MS), 0, 20 * US, 20 * US, MS, 0), (MS, true), "many threads with short kernels");
    assert_eq!(shown_below(Some(150), 1, 20, 150, 150, 0), (150, false), "the only knowledge there is");
}
