//! Predicts when work will be done if no process arrives or leaves: the time a wait sleeps before it checks
//! again.
//!
//! Exact on one engine; with gates in between it may be too early, but never too late.

use crate::layout::{Body, COMPUTE, GATES, LANES, NOBODY, bits, next_bit, ring_index, set_bit};
use crate::sched::{Marks, terms};

/// Longest chain of gates that is followed.
const DEEP: u32 = 8;

/// When a slot has passed `marks` on all its queues, or `horizon` if that is earlier.
pub fn forecast(body: &Body, slot: usize, device: usize, marks: &Marks, horizon: u64) -> u64 {
    (0..LANES).map(|lane| line(body, slot, device, lane, marks[lane], horizon, DEEP)).max().unwrap_or(horizon)
}

fn line(body: &Body, slot: usize, device: usize, lane: usize, mark: u64, horizon: u64, deep: u32) -> u64 {
    let l = &body.slots[slot].devices[device].lanes[lane];
    if l.busy >= mark {
        return 0;
    }
    let mut at = alone(body, slot, device, lane, mark, horizon);
    // Only the last gate before the mark matters: the work after it begins when that gate opens.
    let gates = (l.gates_read..l.gates_wrote).map(|i| l.gates[ring_index(i, GATES)]);
    if let Some(g) = gates.take_while(|g| g.at < mark).last().filter(|_| deep > 0) {
        let other = usize::try_from(g.lane).unwrap_or(0);
        let opens = if g.open > 0 { g.open } else { line(body, slot, device, other, g.mark, horizon, deep - 1) };
        at = at.max(opens.saturating_add(mark - g.at.max(l.busy)));
    }
    at.min(horizon)
}

/// When one queue of a slot has passed `mark` if no gate (dependency on another engine) holds it up, or `horizon`.
fn alone(body: &Body, slot: usize, device: usize, lane: usize, mark: u64, horizon: u64) -> u64 {
    let d = &body.devices[device];
    let mut view = d.lanes[lane];
    let (slice, switch) = terms(&d.profile, lane);
    let mut left: Vec<(usize, u64)> = Vec::new();
    for s in bits(&view.ready) {
        let sd = &body.slots[s].devices[device];
        let endless = lane == COMPUTE && sd.waiting > 0 && s != slot;
        left.push((s, if endless { u64::MAX / 2 } else { sd.lanes[lane].backlog() }));
    }
    let mut need = mark.saturating_sub(body.slots[slot].devices[device].lanes[lane].busy);
    if left.len() == 1 && left[0].0 == slot && (view.last == NOBODY || view.last as usize == slot) {
        return (view.clock + need).min(horizon);
    }
    while need > 0 && view.clock < horizon {
        let current = view.current as usize;
        let runs = view.current != NOBODY && view.ready[current / 64] & (1 << (current % 64)) != 0;
        if !runs || view.clock >= view.slice_end {
            let from = if view.current == NOBODY { view.last } else { view.current };
            let Some(next) =
                next_bit(&view.ready, if from == NOBODY { crate::layout::SLOTS - 1 } else { from as usize })
            else {
                break;
            };
            if view.last != NOBODY && view.last as usize != next {
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
