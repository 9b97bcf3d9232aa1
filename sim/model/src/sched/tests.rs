//! Tests of the engines of a device, checked tick by tick.

use super::*;
use crate::forecast::forecast_marks;
use crate::layout::{TO_DEVICE_LANE, TO_HOST_LANE};
use crate::segments::passed_at;

fn submit(b: &mut StateBody, slot: usize, device: usize, work: u64) {
    super::submit_work(b, slot, device, COMPUTE_LANE, work, &[0; LANE_COUNT]).unwrap();
}

fn machine(slice: u64, switch: u64) -> Box<StateBody> {
    // SAFETY: a Body is made of integers and arrays of integers: all zeroes is a valid one.
    let mut b: Box<StateBody> = unsafe { Box::new_zeroed().assume_init() };
    b.device_count = 1;
    b.devices[0].profile = crate::profile::BUILT_IN_PROFILES[4];
    b.devices[0].profile.slice_ns = slice;
    b.devices[0].profile.switch_ns = switch;
    for l in &mut b.devices[0].lanes {
        (l.current, l.last) = (NO_SLOT, NO_SLOT);
    }
    b
}

fn busy(b: &StateBody, slot: usize) -> u64 {
    b.slots[slot].devices[0].lanes[COMPUTE_LANE].busy
}

#[test]
fn a_process_alone_gets_all_of_the_device() {
    let mut b = machine(2000, 10);
    submit(&mut b, 3, 0, 10_000);
    advance_device(&mut b, 0, 7_500);
    assert_eq!(busy(&b, 3), 7_500);
    advance_device(&mut b, 0, 50_000);
    assert_eq!((busy(&b, 3), b.devices[0].switches), (10_000, 0));
    let sd = &b.slots[3].devices[0].lanes[COMPUTE_LANE];
    assert_eq!(sd.wrote - sd.read, 1, "one stretch of service is one segment");
}

#[test]
fn two_processes_take_turns_slice_by_slice() {
    let mut b = machine(2000, 10);
    submit(&mut b, 1, 0, 1_000_000);
    submit(&mut b, 2, 0, 1_000_000);
    let mut at = 0;
    while at < 900_000 {
        at += 777;
        advance_device(&mut b, 0, at);
        assert!(busy(&b, 1).abs_diff(busy(&b, 2)) <= 2000);
    }
    let d = &b.devices[0];
    assert_eq!(busy(&b, 1) + busy(&b, 2) + d.switch_ns, d.lanes[COMPUTE_LANE].clock);
    assert_eq!(d.switch_ns, 10 * d.switches);
    let sd = &b.slots[1].devices[0].lanes[COMPUTE_LANE];
    assert!(sd.wrote - sd.read < 5, "regular slices fold: {}", sd.wrote - sd.read);
}

#[test]
fn how_often_one_looks_changes_nothing() {
    let run = |steps: &[u64]| {
        let mut b = machine(2000, 10);
        submit(&mut b, 1, 0, 9_000);
        submit(&mut b, 2, 0, 30_000);
        let mut at = 0;
        for s in steps.iter().cycle() {
            at += s;
            advance_device(&mut b, 0, at.min(40_000));
            if at >= 40_000 {
                break;
            }
        }
        (busy(&b, 1), busy(&b, 2), b.devices[0].switch_ns, b.devices[0].lanes[COMPUTE_LANE].clock)
    };
    let whole = run(&[40_000]);
    assert_eq!(run(&[1]), whole);
    assert_eq!(run(&[3, 1999, 57]), whole);
}

#[test]
fn who_runs_dry_hands_over_at_once_and_who_comes_waits_for_the_slice() {
    let mut b = machine(2000, 0);
    submit(&mut b, 1, 0, 500);
    submit(&mut b, 2, 0, 10_000);
    advance_device(&mut b, 0, 1_000);
    assert_eq!((busy(&b, 1), busy(&b, 2)), (500, 500));
    submit(&mut b, 1, 0, 100);
    advance_device(&mut b, 0, 2_499);
    assert_eq!(busy(&b, 1), 500);
    advance_device(&mut b, 0, 2_600);
    assert_eq!((busy(&b, 1), busy(&b, 2)), (600, 2_000));
}

#[test]
fn a_forecast_is_what_then_happens() {
    let mut b = machine(2000, 10);
    submit(&mut b, 1, 0, 50_000);
    submit(&mut b, 2, 0, 33_333);
    submit(&mut b, 3, 0, 4_000);
    advance_device(&mut b, 0, 1_234);
    for (slot, mark) in [(1, 50_000), (2, 33_333), (3, 4_000), (1, 20_001)] {
        let at = forecast_marks(&b, slot, 0, &[mark, 0, 0], u64::MAX);
        let mut c = machine(2000, 10);
        for (s, w) in [(1, 50_000), (2, 33_333), (3, 4_000)] {
            submit(&mut c, s, 0, w);
        }
        advance_device(&mut c, 0, at - 1);
        assert!(busy(&c, slot) < mark);
        advance_device(&mut c, 0, at);
        assert!(busy(&c, slot) >= mark);
    }
}

/// A device that is advanced tick by tick gives the true time of every mark of every process. The segments must
/// give the same times, however seldom and irregularly the device is advanced, with work arriving in between.
#[test]
fn segments_date_every_mark_to_the_tick() {
    use crate::faults::splitmix64;
    for seed in 0..40 {
        let slice = 20 + splitmix64(seed) % 40;
        let (mut watched, mut seldom) = (machine(slice, seed % 4), machine(slice, seed % 4));
        let mut crossed: Vec<Vec<u64>> = vec![vec![0]; 4];
        let mut draw = seed * 1000;
        let mut next = |n: u64| {
            draw += 1;
            splitmix64(draw) % n
        };
        let (mut look, mut arrival) = (0, 0);
        for now in 0..3000u64 {
            advance_device(&mut watched, 0, now);
            for (slot, times) in crossed.iter_mut().enumerate() {
                while (times.len() as u64) <= busy(&watched, slot) {
                    times.push(now);
                }
            }
            if now >= arrival {
                arrival = now + next(150);
                let (slot, work) = (usize::try_from(next(4)).unwrap(), next(200));
                advance_device(&mut seldom, 0, now);
                submit(&mut watched, slot, 0, work);
                submit(&mut seldom, slot, 0, work);
            } else if now >= look {
                look = now + next(300);
                advance_device(&mut seldom, 0, now);
            }
        }
        advance_device(&mut seldom, 0, 2999);
        for (slot, times) in crossed.iter().enumerate() {
            let sd = &seldom.slots[slot].devices[0].lanes[COMPUTE_LANE];
            let other = &watched.slots[slot].devices[0].lanes[COMPUTE_LANE];
            assert_eq!((sd.busy, sd.submitted), (other.busy, other.submitted), "seed {seed}");
            assert!(sd.wrote < SEGMENTS_KEPT as u64, "the ring must not have merged: {}", sd.wrote);
            for mark in 1..=sd.busy {
                let dated = passed_at(sd, mark).unwrap();
                assert_eq!(dated, times[usize::try_from(mark).unwrap()], "seed {seed} slot {slot} mark {mark}");
            }
        }
    }
}

#[test]
fn a_full_ring_keeps_the_sums_and_interpolates_times() {
    let mut b = machine(20, 1);
    let mut submitted = 0;
    for k in 0..5_000u64 {
        // Irregular run lengths, so that no segments fold.
        let work = 1 + crate::faults::splitmix64(k) % 17;
        submit(&mut b, 1, 0, work);
        submit(&mut b, 2, 0, 1 + k % 13);
        submitted += work;
        let clock = b.devices[0].lanes[COMPUTE_LANE].clock;
        advance_device(&mut b, 0, clock + 40);
    }
    let sd = &b.slots[1].devices[0].lanes[COMPUTE_LANE];
    assert!(sd.wrote - sd.read < SEGMENTS_KEPT as u64);
    assert_eq!(sd.submitted, submitted);
    let mut before = 0;
    for mark in (1..=sd.busy).step_by(7) {
        let at = passed_at(sd, mark).unwrap();
        assert!(at >= before && at <= b.devices[0].lanes[COMPUTE_LANE].clock, "times go forward");
        before = at;
    }
}

#[test]
fn a_step_left_half_made_is_completed_once() {
    let mut b = machine(2000, 10);
    submit(&mut b, 1, 0, 10_000);
    submit(&mut b, 2, 0, 10_000);
    advance_device(&mut b, 0, 5_000);
    let state = |b: &StateBody| {
        let line = b.slots[1].devices[0].lanes[COMPUTE_LANE];
        let l = b.devices[0].lanes[COMPUTE_LANE];
        let turn = (l.clock, l.slice_end, l.current, l.last, l.ready);
        (line.submitted, line.busy, line.wrote, line.ring, turn, b.devices[0].switch_ns)
    };
    let (before_slot, before_device) = (b.slots[1].devices[0], b.devices[0]);
    advance_device(&mut b, 0, 5_500);
    let whole = state(&b);
    for torn in 0..4 {
        // Undoes some stores of the step, as if the writer died between them.
        if torn & 1 == 0 {
            b.slots[1].devices[0].lanes[COMPUTE_LANE].busy = before_slot.lanes[COMPUTE_LANE].busy;
        }
        if torn & 2 == 0 {
            b.devices[0].lanes[COMPUTE_LANE].clock = before_device.lanes[COMPUTE_LANE].clock;
            b.devices[0].lanes[COMPUTE_LANE].slice_end = before_device.lanes[COMPUTE_LANE].slice_end;
        }
        b.journal.open = 1;
        repair_step(&mut b);
        repair_step(&mut b);
        assert!(state(&b) == whole, "after {torn}");
    }
}

fn line(b: &StateBody, slot: usize, lane: usize) -> &WorkLine {
    &b.slots[slot].devices[0].lanes[lane]
}

#[test]
fn copies_run_beside_kernels_and_in_both_directions_at_once() {
    let mut b = machine(2000, 10);
    for lane in [COMPUTE_LANE, TO_DEVICE_LANE, TO_HOST_LANE] {
        super::submit_work(&mut b, 1, 0, lane, 5_000, &[0; LANE_COUNT]).unwrap();
    }
    advance_device(&mut b, 0, 4_000);
    assert!((0..LANE_COUNT).all(|l| line(&b, 1, l).busy == 4_000));
}

#[test]
fn what_waits_for_another_engine_begins_at_the_moment_that_is_done() {
    let mut b = machine(1_000_000, 0);
    let copied = super::submit_work(&mut b, 1, 0, TO_DEVICE_LANE, 700, &[0; LANE_COUNT]).unwrap();
    let computed = super::submit_work(&mut b, 1, 0, COMPUTE_LANE, 300, &[0, copied, 0]).unwrap();
    super::submit_work(&mut b, 1, 0, TO_HOST_LANE, 50, &[computed, 0, 0]).unwrap();
    // The kernel engine serves another process meanwhile, and is free when the gate opens.
    super::submit_work(&mut b, 2, 0, COMPUTE_LANE, 400, &[0; LANE_COUNT]).unwrap();
    assert_eq!(forecast_marks(&b, 1, 0, &[0, 0, 50], u64::MAX), 1_050);
    advance_device(&mut b, 0, 699);
    assert_eq!((line(&b, 1, COMPUTE_LANE).busy, line(&b, 2, COMPUTE_LANE).busy), (0, 400));
    advance_device(&mut b, 0, 999);
    assert_eq!((line(&b, 1, COMPUTE_LANE).busy, line(&b, 1, TO_HOST_LANE).busy), (299, 0));
    advance_device(&mut b, 0, 5_000);
    assert_eq!(passed_at(line(&b, 1, COMPUTE_LANE), 1), Some(701));
    assert_eq!(passed_at(line(&b, 1, TO_HOST_LANE), 1), Some(1_001));
    assert_eq!(passed_at(line(&b, 1, TO_HOST_LANE), 50), Some(1_050));
}

/// A pipeline: chunks are copied to the device, processed and copied back. All engines are busy together, and the
/// number of advances in between changes nothing, to the tick.
#[test]
fn a_pipeline_overlaps_and_how_often_one_looks_changes_nothing() {
    let run = |steps: &[u64]| {
        let mut b = machine(1_000_000, 3);
        for slot in [1, 2] {
            for k in 0..40 {
                let there = super::submit_work(&mut b, slot, 0, TO_DEVICE_LANE, 100 + k, &[0; LANE_COUNT]).unwrap();
                let done = super::submit_work(&mut b, slot, 0, COMPUTE_LANE, 90 + 2 * k, &[0, there, 0]).unwrap();
                super::submit_work(&mut b, slot, 0, TO_HOST_LANE, 80, &[done, 0, 0]).unwrap();
            }
        }
        let mut at = 0;
        for s in steps.iter().cycle() {
            at += s;
            advance_device(&mut b, 0, at.min(30_000));
            if at >= 30_000 {
                break;
            }
        }
        let last = |slot, lane| passed_at(line(&b, slot, lane), line(&b, slot, lane).busy);
        let ends: Vec<_> = (0..LANE_COUNT).flat_map(|l| [last(1, l), last(2, l)]).collect();
        (ends, b.devices[0].switches, line(&b, 1, COMPUTE_LANE).busy + line(&b, 2, COMPUTE_LANE).busy)
    };
    let whole = run(&[30_000]);
    assert_eq!(whole.2, 2 * (0..40).map(|k| 90 + 2 * k).sum::<u64>(), "all is done");
    let end = whole.0.iter().flatten().max().unwrap();
    let alone: u64 = 2 * (0..40).map(|k| 100 + k + 90 + 2 * k + 80).sum::<u64>();
    assert!(*end < alone * 6 / 10, "{end} of {alone}: the engines work together");
    assert_eq!(run(&[1]), whole);
    assert_eq!(run(&[7, 1999, 57]), whole);
}

#[test]
fn a_line_takes_only_so_many_gates_and_loses_none() {
    let mut b = machine(1_000_000, 0);
    let mut taken = 0;
    for _ in 0..GATES_KEPT + 5 {
        let there = super::submit_work(&mut b, 1, 0, TO_DEVICE_LANE, 10, &[0; LANE_COUNT]).unwrap();
        taken += u64::from(super::submit_work(&mut b, 1, 0, COMPUTE_LANE, 10, &[0, there, 0]).is_some());
    }
    assert_eq!(taken, GATES_KEPT as u64);
    advance_device(&mut b, 0, 100);
    let behind = [0, line(&b, 1, TO_DEVICE_LANE).submitted, 0];
    assert!(super::submit_work(&mut b, 1, 0, COMPUTE_LANE, 10, &behind).is_some(), "passed gates make room");
    advance_device(&mut b, 0, 1_000_000);
    assert_eq!(line(&b, 1, COMPUTE_LANE).line_backlog(), 0);
}

#[test]
fn a_kernel_that_waits_keeps_its_turns_and_work_beside_it_goes_on() {
    let mut b = machine(2000, 0);
    wait(&mut b, 1, 0, 1);
    advance_device(&mut b, 0, 10_000);
    assert_eq!(b.slots[1].devices[0].waited, 10_000);
    submit(&mut b, 1, 0, 3_000);
    advance_device(&mut b, 0, 13_000);
    assert_eq!((busy(&b, 1), b.slots[1].devices[0].waited), (3_000, 10_000), "beside it");
    // Another process gets every other slice, so no less than half of the time.
    submit(&mut b, 2, 0, 100_000);
    advance_device(&mut b, 0, 113_000);
    assert!(busy(&b, 2).abs_diff(50_000) <= 2_000, "{}", busy(&b, 2));
    let waited = b.slots[1].devices[0].waited;
    wait(&mut b, 1, 0, -1);
    advance_device(&mut b, 0, 200_000);
    assert_eq!((busy(&b, 2), b.slots[1].devices[0].waited), (100_000, waited));
}

#[test]
fn under_mps_processes_share_evenly_and_nothing_is_switched() {
    let mut b = machine(2_000_000, 10_000);
    b.devices[0].profile.mps = 1;
    for slot in 1..=3 {
        submit(&mut b, slot, 0, 50_000_000);
    }
    advance_device(&mut b, 0, 3_000_000);
    for slot in 1..=3 {
        assert!(busy(&b, slot).abs_diff(1_000_000) <= SHARED_SLICE_NS, "{}", busy(&b, slot));
    }
    assert_eq!((b.devices[0].switch_ns, b.devices[0].switches), (0, 0));
}

#[test]
fn buckets_say_when_the_device_worked() {
    use crate::layout::{BUCKET_NS, BUCKETS_KEPT};
    let mut b = machine(BUCKET_NS, 0);
    advance_device(&mut b, 0, BUCKET_NS / 2);
    submit(&mut b, 1, 0, BUCKET_NS * 2);
    advance_device(&mut b, 0, BUCKET_NS * 10);
    let of = |b: &StateBody, n| u64::from(b.slots[1].devices[0].buckets.get(n));
    assert_eq!([0, 1, 2, 3].map(|n| of(&b, n)), [BUCKET_NS / 2, BUCKET_NS, BUCKET_NS / 2, 0]);
    assert!(BUCKETS_KEPT as u64 * BUCKET_NS >= 60_000_000_000, "a minute is kept");
    let kept = BUCKETS_KEPT as u64;
    advance_device(&mut b, 0, BUCKET_NS * kept);
    submit(&mut b, 1, 0, BUCKET_NS);
    advance_device(&mut b, 0, BUCKET_NS * (kept + 1));
    assert_eq!([0, 1, 2, kept].map(|n| of(&b, n)), [0, BUCKET_NS, BUCKET_NS / 2, BUCKET_NS], "the oldest goes");
    advance_device(&mut b, 0, BUCKET_NS * 3 * kept);
    submit(&mut b, 1, 0, 5);
    advance_device(&mut b, 0, BUCKET_NS * (3 * kept + 1));
    assert_eq!([2, kept, 3 * kept].map(|n| of(&b, n)), [0, 0, 5]);
    // Another process in the same slot starts with empty buckets.
    b.slots[1].serial = 9;
    submit(&mut b, 1, 0, 7);
    advance_device(&mut b, 0, BUCKET_NS * (3 * kept + 2));
    assert_eq!([3 * kept, 3 * kept + 1].map(|n| of(&b, n)), [0, 7]);
}
