//! Predicts when work will be done if no process arrives or leaves: the time a wait sleeps before it checks
//! again.
//!
//! Exact on one engine; with gates in between it may be too early, but never too late.

use crate::layout::{
    COMPUTE_LANE, GATES_KEPT, LANE_COUNT, NO_SLOT, StateBody, next_bit, ring_index, set_bit, set_bits,
};
use crate::sched::{LineMarks, slice_and_switch};

/// Longest chain of gates that is followed.
const MAX_GATE_DEPTH: u32 = 8;

/// When a slot has passed `marks` on all its queues, or `horizon` if that is earlier.
pub fn forecast_marks(body: &StateBody, slot: usize, device: usize, marks: &LineMarks, horizon: u64) -> u64 {
    (0..LANE_COUNT)
        .map(|lane| forecast_line(body, slot, device, lane, marks[lane], horizon, MAX_GATE_DEPTH))
        .max()
        .unwrap_or(horizon)
}

fn forecast_line(body: &StateBody, slot: usize, device: usize, lane: usize, mark: u64, horizon: u64, deep: u32) -> u64 {
    let l = &body.slots[slot].devices[device].lanes[lane];
    if l.busy >= mark {
        return 0;
    }
    let mut at = forecast_alone(body, slot, device, lane, mark, horizon);
    // Only the last gate before the mark matters: the work after it begins when that gate opens.
    let gates = (l.gates_read..l.gates_wrote).map(|i| l.gates[ring_index(i, GATES_KEPT)]);
    if let Some(g) = gates.take_while(|g| g.at < mark).last().filter(|_| deep > 0) {
        let other = usize::try_from(g.lane).unwrap_or(0);
        let opens =
            if g.open > 0 { g.open } else { forecast_line(body, slot, device, other, g.mark, horizon, deep - 1) };
        at = at.max(opens.saturating_add(mark - g.at.max(l.busy)));
    }
    at.min(horizon)
}

/// Returns the time in ns at which one queue of a slot passes `mark`, at most `horizon`. Gates (dependencies on other
/// engines) are ignored.
fn forecast_alone(body: &StateBody, slot: usize, device: usize, lane: usize, mark: u64, horizon: u64) -> u64 {
    let d = &body.devices[device];
    let mut view = d.lanes[lane];
    let (slice, switch) = slice_and_switch(&d.profile, lane);
    let mut left: Vec<(usize, u64)> = Vec::new();
    for s in set_bits(&view.ready) {
        let sd = &body.slots[s].devices[device];
        let endless = lane == COMPUTE_LANE && sd.waiting > 0 && s != slot;
        left.push((s, if endless { u64::MAX / 2 } else { sd.lanes[lane].line_backlog() }));
    }
    let mut need = mark.saturating_sub(body.slots[slot].devices[device].lanes[lane].busy);
    if left.len() == 1 && left[0].0 == slot && (view.last == NO_SLOT || view.last as usize == slot) {
        return (view.clock + need).min(horizon);
    }
    while need > 0 && view.clock < horizon {
        let current = view.current as usize;
        let runs = view.current != NO_SLOT && view.ready[current / 64] & (1 << (current % 64)) != 0;
        if !runs || view.clock >= view.slice_end {
            let from = if view.current == NO_SLOT { view.last } else { view.current };
            let Some(next) =
                next_bit(&view.ready, if from == NO_SLOT { crate::layout::MAX_PROCESSES - 1 } else { from as usize })
            else {
                break;
            };
            if view.last != NO_SLOT && view.last as usize != next {
                view.clock += switch;
            }
            view.current = crate::sched::index(next);
            view.last = view.current;
            view.slice_end = view.clock + slice;
        }
        let s = view.current as usize;
        let Some(entry) = left.iter_mut().find(|e| e.0 == s) else { break };
        let mut run = entry.1.min(view.slice_end - view.clock);
        if s == slot {
            run = run.min(need);
            need -= run;
        }
        entry.1 -= run;
        if entry.1 == 0 {
            set_bit(&mut view.ready, s, false);
        }
        view.clock += run;
    }
    view.clock.min(horizon)
}
