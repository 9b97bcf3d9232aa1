//! Removes a finished process from the machine: drops its work and memory, and adds its counters to the totals
//! exactly once, even if the remover is killed.
//!
//! The removal goes device by device and writes each step to a redo log first ([`ProcessBurial`]). So the step of a
//! remover that is killed can be repeated.
//! Not here: detection of dead processes (`machine`).

use crate::layout::{
    DeviceUse, FINISHED_KEPT, FinishedProcess, NO_SLOT, ProcessBurial, StateBody, WINDOWS_KEPT, ring_index, set_bit,
};
use crate::profile::MAX_SIMULATED_DEVICES;
use crate::sched;
use std::sync::atomic::{Ordering, fence};

/// Removes the process in `slot` as of `time`.
pub fn end_process(body: &mut StateBody, slot: usize, time: u64) {
    for d in 0..MAX_SIMULATED_DEVICES {
        if body.slots[slot].touched & (1 << d) != 0 {
            settle_device(body, slot, d, time);
        }
    }
    for d in 0..body.device_count as usize {
        for lane in &mut body.devices[d].lanes {
            if lane.last as usize == slot {
                // The process that ran last is removed, so the next one has no predecessor to switch from.
                lane.last = NO_SLOT;
            }
            if lane.current as usize == slot {
                lane.current = NO_SLOT;
            }
        }
    }
    body.let_go_of_shares(slot);
    body.slots[slot].state = 0;
    set_bit(&mut body.live, slot, false);
}

/// Saves the counters of `slot` on one device and clears them there.
fn settle_device(body: &mut StateBody, slot: usize, d: usize, time: u64) {
    sched::withdraw_slot(body, slot, d);
    let number = |i: usize| u32::try_from(i).unwrap_or(NO_SLOT);
    let (s, mut done) = (&body.slots[slot], body.devices[d].done);
    // Includes the shares that it owned to the end.
    let used = body.used_with_shares(slot, d);
    let entry = FinishedProcess {
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
    body.finished[ring_index(body.finished_count, FINISHED_KEPT)] = entry;
    done.busy += used.busy;
    done.copying += used.copying;
    done.kernels += used.kernels;
    done.copies += used.copies;
    done.peak = done.peak.max(used.peak);
    body.burial =
        ProcessBurial { open: 0, slot: number(slot), device: number(d), pad: 0, count: body.finished_count + 1, done };
    fence(Ordering::SeqCst);
    // SAFETY: a valid, aligned field of a live structure that this thread has exclusively.
    unsafe { std::ptr::write_volatile(&mut body.burial.open, 1) };
    fence(Ordering::SeqCst);
    apply_burial(body);
    fence(Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { std::ptr::write_volatile(&mut body.burial.open, 0) };
}

fn apply_burial(body: &mut StateBody) {
    let j = body.burial;
    let (slot, d) = (j.slot as usize, j.device as usize);
    body.devices[d].done = j.done;
    body.finished_count = j.count;
    let sd = &mut body.slots[slot].devices[d];
    sd.used = DeviceUse::default();
    sd.waiting = 0;
    sd.waited = 0;
    for line in &mut sd.lanes {
        (line.submitted, line.busy) = (0, 0);
        (line.wrote, line.read, line.gates_wrote, line.gates_read) = (0, 0, 0, 0);
    }
    sd.window = 0;
    sd.windows = [0; WINDOWS_KEPT];
    body.slots[slot].touched &= !(1 << d);
}

/// Completes the updates that a killed process left half made. For a process that takes the lock over from a dead
/// holder.
pub fn repair_burial(body: &mut StateBody) {
    sched::repair_step(body);
    if body.burial.open == 1 {
        apply_burial(body);
        body.burial.open = 0;
    }
}
