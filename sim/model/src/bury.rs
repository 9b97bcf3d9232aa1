//! Removes a finished process from the machine: drops its work and memory, and adds its counters to the totals
//! exactly once, even if the remover is killed.
//!
//! The removal goes device by device and writes each step to a redo log first ([`Burial`]). So the step of a
//! remover that is killed can be repeated.
//! Not here: detection of dead processes (`machine`).

use crate::layout::{Body, Burial, DEVICES, FINISHED, Finished, NOBODY, Use, WINDOWS, ring_index, set_bit};
use crate::sched;
use std::sync::atomic::{Ordering, fence};

/// Removes the process in `slot` as of `time`.
pub fn bury(body: &mut Body, slot: usize, time: u64) {
    for d in 0..DEVICES {
        if body.slots[slot].touched & (1 << d) != 0 {
            settle(body, slot, d, time);
        }
    }
    for d in 0..body.device_count as usize {
        for lane in &mut body.devices[d].lanes {
            if lane.last as usize == slot {
                // The process that ran last is removed, so the next one has no predecessor to switch from.
                lane.last = NOBODY;
            }
            if lane.current as usize == slot {
                lane.current = NOBODY;
            }
        }
    }
    body.let_go_of_shares(slot);
    body.slots[slot].state = 0;
    set_bit(&mut body.live, slot, false);
}

/// Saves the counters of `slot` on one device and clears them there.
fn settle(body: &mut Body, slot: usize, d: usize, time: u64) {
    sched::withdraw(body, slot, d);
    let number = |i: usize| u32::try_from(i).unwrap_or(NOBODY);
    let (s, mut done) = (&body.slots[slot], body.devices[d].done);
    // Includes the shares that it owned to the end.
    let used = body.used(slot, d);
    let entry = Finished {
        serial: s.serial,
        pid: s.pid,
        device: number(d),
        slot: number(slot),
        pad: 0,
        at: time,
        name: s.name,
        used,
    };
    // The new entry does not count yet: an entry beyond `finished_count` is ignored.
    body.finished[ring_index(body.finished_count, FINISHED)] = entry;
    done.busy += used.busy;
    done.copying += used.copying;
    done.kernels += used.kernels;
    done.copies += used.copies;
    done.peak = done.peak.max(used.peak);
    body.burial =
        Burial { open: 0, slot: number(slot), device: number(d), pad: 0, count: body.finished_count + 1, done };
    fence(Ordering::SeqCst);
    // SAFETY: a valid, aligned field of a live structure that this thread has exclusively.
    unsafe { std::ptr::write_volatile(&mut body.burial.open, 1) };
    fence(Ordering::SeqCst);
    apply(body);
    fence(Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { std::ptr::write_volatile(&mut body.burial.open, 0) };
}

fn apply(body: &mut Body) {
    let j = body.burial;
    let (slot, d) = (j.slot as usize, j.device as usize);
    body.devices[d].done = j.done;
    body.finished_count = j.count;
    let sd = &mut body.slots[slot].devices[d];
    sd.used = Use::default();
    sd.waiting = 0;
    sd.waited = 0;
    for line in &mut sd.lanes {
        (line.submitted, line.busy) = (0, 0);
        (line.wrote, line.read, line.gates_wrote, line.gates_read) = (0, 0, 0, 0);
    }
    sd.window = 0;
    sd.windows = [0; WINDOWS];
    body.slots[slot].touched &= !(1 << d);
}

/// Completes the updates that a killed process left half made. For a process that takes the lock over from a dead
/// holder.
pub fn repair(body: &mut Body) {
    sched::repair(body);
    if body.burial.open == 1 {
        apply(body);
        body.burial.open = 0;
    }
}
