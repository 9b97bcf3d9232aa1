//! Decides which process each engine of a device serves, and when. Round robin between processes, computed from
//! timestamps; nothing sleeps.
//!
//! A device has three engines that work at the same time: one for kernels and work that stays on the device, and
//! one copy engine per direction. Each process has one queue per engine: submitted work minus served work, in the
//! order of submission (`engine`). Where work must wait for work of another engine, a *gate* is on the queue. It
//! opens when the other queue passes the gate's mark. [`advance_device`] brings a device from its clocks to `now`,
//! slice by slice, always the engine whose clock is furthest behind. It writes how service was spread over time to the
//! queue's ring of segments; the owner dates its events from them (`segments`).
//!
//! Rules:
//! - A process that is alone keeps the engine; its slice is renewed.
//! - A process that arrives waits for the end of the running slice.
//! - A process that runs out of work, or reaches a closed gate, gives up the engine at once.
//! - On the kernel engine a change of process takes `switch_ns`, which counts for no process.
//! - Under MPS several processes share the device evenly, modelled by slices of [`SHARED_SLICE_NS`] without a
//!   switch.
//! - A kernel that waits for a word of memory keeps the device for its process until the word arrives. Other work
//!   of that process runs meanwhile.
//!
//! Not here: streams and events (`engine`), wall time (the caller's `now`), forecasts (`forecast`).

use crate::layout::{
    COMPUTE_LANE, ClockJournal, DeviceBody, GATES_KEPT, LANE_COUNT, LineGate, MAX_PROCESSES, NO_SLOT, SEGMENTS_KEPT,
    ServiceSegment, SlotDevice, StateBody, WorkLine, next_bit, ring_index, set_bit,
};
use crate::profile::DeviceProfile;
use crate::segments::{note_run, sample_run};
use std::sync::atomic::{Ordering, fence};

/// Slice that models even sharing under MPS, ns.
pub const SHARED_SLICE_NS: u64 = 50_000;
/// How often a waiting kernel checks whether other work of its process can run next to it, ns.
const YIELD_CHECK_NS: u64 = 50_000;

/// A position on each queue of a process.
pub type LineMarks = [u64; LANE_COUNT];

/// Slice and switch time of an engine, ns.
pub(crate) fn slice_and_switch(p: &DeviceProfile, lane: usize) -> (u64, u64) {
    match (lane, p.mps) {
        (COMPUTE_LANE, 0) => (p.slice_ns, p.switch_ns),
        (COMPUTE_LANE, _) => (SHARED_SLICE_NS, 0),
        _ => (p.slice_ns, 0),
    }
}

/// Advances the device to `now`.
pub fn advance_device(body: &mut StateBody, device: usize, now: u64) {
    loop {
        let mut first: Option<(u64, usize)> = None;
        for lane in 0..LANE_COUNT {
            if let Some(at) = start(body, device, lane)
                && first.is_none_or(|(f, _)| at < f)
            {
                first = Some((at, lane));
            }
        }
        let Some((at, lane)) = first.filter(|(at, _)| *at < now) else { break };
        run_slice(body, device, lane, at, now);
    }
    for l in body.devices[device].lanes.iter_mut().filter(|l| l.clock < now) {
        // The engine is idle. This needs no journal: after either of the two stores alone the state is still valid.
        l.current = NO_SLOT;
        l.clock = now;
    }
}

/// A journal of the present state: applied as it is, it changes nothing.
fn open_journal(d: &DeviceBody, device: usize, lane: usize) -> ClockJournal {
    let l = &d.lanes[lane];
    ClockJournal {
        open: 1,
        device: index(device),
        slot: NO_SLOT,
        lane: index(lane),
        current: l.current,
        last: l.last,
        clock: l.clock,
        slice_end: l.slice_end,
        switch_ns: d.switch_ns,
        switches: d.switches,
        ..ClockJournal::default()
    }
}

/// The next obstacle on a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LineAhead {
    /// This many ns of work can run before the next gate, or before the end of the queue.
    Free(u64),
    /// A gate that opens at this time.
    Until(u64),
    /// A gate whose opening time is not known yet.
    Shut,
}

/// The next obstacle on `line` at time `clock`, and the index of the first gate that is not passed.
fn line_ahead(line: &WorkLine, clock: u64) -> (LineAhead, u64) {
    for i in line.gates_read..line.gates_wrote {
        let g: LineGate = line.gates[ring_index(i, GATES_KEPT)];
        if g.at > line.busy {
            return (LineAhead::Free(g.at - line.busy), i);
        }
        if g.open == 0 {
            return (LineAhead::Shut, i);
        }
        if g.open > clock {
            return (LineAhead::Until(g.open), i);
        }
    }
    (LineAhead::Free(line.line_backlog()), line.gates_wrote)
}

/// The earliest time from `clock` on at which a slot can be served on an engine.
fn earliest_service(sd: &SlotDevice, lane: usize, clock: u64) -> Option<u64> {
    if lane == COMPUTE_LANE && sd.waiting > 0 {
        return Some(clock);
    }
    match line_ahead(&sd.lanes[lane], clock).0 {
        LineAhead::Free(0) | LineAhead::Shut => None,
        LineAhead::Free(_) => Some(clock),
        LineAhead::Until(at) => Some(at),
    }
}

/// When an engine next has something to do.
fn start(body: &StateBody, device: usize, lane: usize) -> Option<u64> {
    let l = &body.devices[device].lanes[lane];
    let at = |slot: usize| earliest_service(&body.slots[slot].devices[device], lane, l.clock);
    let current = l.current as usize;
    if l.current != NO_SLOT && l.ready[current / 64] & (1 << (current % 64)) != 0 && at(current) == Some(l.clock) {
        return Some(l.clock);
    }
    let begin = next_bit(&l.ready, MAX_PROCESSES - 1)?;
    let (mut slot, mut first) = (begin, None);
    loop {
        match (at(slot), first) {
            (Some(t), _) if t == l.clock => return Some(t),
            (Some(t), Some(f)) if t < f => first = Some(t),
            (Some(t), None) => first = Some(t),
            _ => {}
        }
        slot = next_bit(&l.ready, slot)?;
        if slot == begin {
            return first;
        }
    }
}

/// Runs one process on an engine from `at`, at most to the end of its slice.
fn run_slice(body: &mut StateBody, device: usize, lane: usize, at: u64, now: u64) {
    let d = &body.devices[device];
    let mut j = open_journal(d, device, lane);
    if j.clock < at {
        j.clock = at;
        j.current = NO_SLOT;
    }
    let Some(slot) = choose_slot(body, d, &mut j) else {
        commit(body, &j);
        return;
    };
    if j.clock >= now {
        commit(body, &j);
        return;
    }
    let room = (j.slice_end - j.clock).min(now - j.clock);
    let sd = &body.slots[slot].devices[device];
    let line = &sd.lanes[lane];
    let (before, gates_read) = line_ahead(line, j.clock);
    j.slot = index(slot);
    j.busy = line.busy;
    j.waited = sd.waited;
    j.gates_read = gates_read;
    j.wrote = line.wrote;
    j.newest = line.ring[ring_index(line.wrote.wrapping_sub(1), SEGMENTS_KEPT)];
    j.before = line.ring[ring_index(line.wrote.wrapping_sub(2), SEGMENTS_KEPT)];
    let run = match before {
        LineAhead::Free(work) if work > 0 => {
            let run = room.min(work).min(watched_work(sd, lane, line.busy));
            j.busy += run;
            note_run(line, &mut j, run);
            run
        }
        _ => {
            // Only a kernel that waits for memory; no other work of its process can run.
            let run = match before {
                LineAhead::Until(open) => room.min(open - j.clock),
                LineAhead::Shut => room.min(YIELD_CHECK_NS),
                LineAhead::Free(_) => room,
            };
            j.waited += run;
            run
        }
    };
    if lane == COMPUTE_LANE {
        let s = &mut body.slots[slot];
        sample_run(&mut s.devices[device], s.serial, j.clock, run);
    }
    j.clock += run;
    commit(body, &j);
}

/// Work on a queue until the next position that a gate of another queue of the same process waits for, ns.
fn watched_work(sd: &SlotDevice, lane: usize, busy: u64) -> u64 {
    let mut next = u64::MAX;
    for line in sd.lanes.iter().filter(|l| l.gates_read < l.gates_wrote) {
        for i in line.gates_read..line.gates_wrote {
            let g = line.gates[ring_index(i, GATES_KEPT)];
            if g.lane == lane as u64 && g.mark > busy {
                next = next.min(g.mark - busy);
            }
        }
    }
    next
}

/// The slot to run at `j.clock`; enters the switch and the renewed slice into `j`.
fn choose_slot(body: &StateBody, d: &DeviceBody, j: &mut ClockJournal) -> Option<usize> {
    let (device, lane) = (j.device as usize, j.lane as usize);
    let ready = &d.lanes[lane].ready;
    let runs = |slot: usize, at| earliest_service(&body.slots[slot].devices[device], lane, at) == Some(at);
    let current = j.current as usize;
    let goes_on = j.current != NO_SLOT && ready[current / 64] & (1 << (current % 64)) != 0 && runs(current, j.clock);
    if goes_on && j.clock < j.slice_end {
        return Some(current);
    }
    let from = if j.current == NO_SLOT { j.last } else { j.current };
    let begin = next_bit(ready, if from == NO_SLOT { MAX_PROCESSES - 1 } else { from as usize })?;
    let mut next = begin;
    while !runs(next, j.clock) {
        next = next_bit(ready, next).filter(|n| *n != begin)?;
    }
    let (slice, switch) = slice_and_switch(&d.profile, lane);
    if j.last != NO_SLOT && j.last as usize != next && switch > 0 {
        j.clock += switch;
        j.switch_ns += switch;
    }
    if lane == COMPUTE_LANE && d.profile.mps == 0 && j.last != NO_SLOT && j.last as usize != next {
        j.switches += 1;
    }
    j.current = index(next);
    j.last = index(next);
    j.slice_end = j.clock + slice;
    Some(next)
}

/// Makes the step: writes the journal, then the state, then closes the journal.
fn commit(body: &mut StateBody, j: &ClockJournal) {
    // Volatile and fenced: if this process is killed in between, the next one relies on the order of these stores. It
    // only reads them after the kernel has told it of the death, so release fences suffice.
    body.journal = ClockJournal { open: 0, ..*j };
    fence(Ordering::Release);
    // SAFETY: a valid, aligned field of a live structure that this thread has exclusively.
    unsafe { std::ptr::write_volatile(&mut body.journal.open, 1) };
    fence(Ordering::Release);
    apply_journal(body);
    fence(Ordering::Release);
    // SAFETY: as above.
    unsafe { std::ptr::write_volatile(&mut body.journal.open, 0) };
}

/// Repeats a step that a killed process left half made.
pub fn repair_step(body: &mut StateBody) {
    if body.journal.open == 1 {
        apply_journal(body);
        body.journal.open = 0;
    }
}

fn apply_journal(body: &mut StateBody) {
    let j = body.journal;
    let (device, lane) = (j.device as usize, j.lane as usize);
    if j.slot != NO_SLOT {
        let slot = j.slot as usize;
        let sd = &mut body.slots[slot].devices[device];
        sd.waited = j.waited;
        let line = &mut sd.lanes[lane];
        line.busy = j.busy;
        line.gates_read = j.gates_read;
        let put = |ring: &mut [ServiceSegment; SEGMENTS_KEPT], i: u64, s| ring[ring_index(i, SEGMENTS_KEPT)] = s;
        put(&mut line.ring, j.wrote.wrapping_sub(1), j.newest);
        put(&mut line.ring, j.wrote.wrapping_sub(2), j.before);
        line.wrote = j.wrote;
        let empty = line.line_backlog() == 0 && (lane != COMPUTE_LANE || sd.waiting == 0);
        open_gates(sd, lane, j.clock);
        if empty {
            set_bit(&mut body.devices[device].lanes[lane].ready, slot, false);
        }
    }
    let d = &mut body.devices[device];
    d.switch_ns = j.switch_ns;
    d.switches = j.switches;
    let l = &mut d.lanes[lane];
    l.clock = j.clock;
    l.slice_end = j.slice_end;
    l.current = j.current;
    l.last = j.last;
}

/// Opens the gates that wait for the work `lane` has done by `clock`.
fn open_gates(sd: &mut SlotDevice, lane: usize, clock: u64) {
    let busy = sd.lanes[lane].busy;
    for line in sd.lanes.iter_mut().filter(|l| l.gates_read < l.gates_wrote) {
        for i in line.gates_read..line.gates_wrote {
            let g = &mut line.gates[ring_index(i, GATES_KEPT)];
            if g.lane == lane as u64 && g.mark <= busy && g.open == 0 {
                g.open = clock;
            }
        }
    }
}

/// Enqueues `work` ns for a slot on an engine, after the positions `behind`; returns the mark at its end. The
/// caller has advanced the device to now. `None`: the queue has no room for the gates (at most [`GATES_KEPT`]); try
/// again later.
pub fn submit_work(
    body: &mut StateBody,
    slot: usize,
    device: usize,
    lane: usize,
    work: u64,
    behind: &LineMarks,
) -> Option<u64> {
    let sd = &mut body.slots[slot].devices[device];
    let place = sd.lanes[lane].submitted;
    let open = |other: usize| other != lane && behind[other] > sd.lanes[other].busy;
    let needed = (0..LANE_COUNT).filter(|o| open(*o)).count() as u64;
    if work == 0 {
        return Some(place);
    }
    if needed > 0 {
        let new: Vec<LineGate> = (0..LANE_COUNT)
            .filter(|o| open(*o))
            .map(|o| LineGate { at: place, mark: behind[o], open: 0, lane: o as u64 })
            .collect();
        let line = &mut sd.lanes[lane];
        if line.gates_wrote - line.gates_read + needed > GATES_KEPT as u64 {
            return None;
        }
        for g in new {
            line.gates[ring_index(line.gates_wrote, GATES_KEPT)] = g;
            line.gates_wrote += 1;
        }
    }
    let line = &mut sd.lanes[lane];
    line.submitted = line.submitted.saturating_add(work);
    let mark = line.submitted;
    set_bit(&mut body.devices[device].lanes[lane].ready, slot, true);
    Some(mark)
}

/// A kernel of a slot starts to wait on the device for a word of memory (`1`), or has seen the word (`-1`). The
/// caller has advanced the device to now.
pub fn wait(body: &mut StateBody, slot: usize, device: usize, change: i64) {
    let sd = &mut body.slots[slot].devices[device];
    sd.waiting = sd.waiting.saturating_add_signed(change);
    let busy = sd.waiting > 0 || sd.lanes[COMPUTE_LANE].line_backlog() > 0;
    set_bit(&mut body.devices[device].lanes[COMPUTE_LANE].ready, slot, busy);
}

/// Drops the queued work of a slot whose process, or whose contexts, are gone.
pub fn withdraw_slot(body: &mut StateBody, slot: usize, device: usize) {
    for lane in 0..LANE_COUNT {
        set_bit(&mut body.devices[device].lanes[lane].ready, slot, false);
        let line = &mut body.slots[slot].devices[device].lanes[lane];
        line.submitted = line.busy;
        line.gates_read = line.gates_wrote;
    }
    body.slots[slot].devices[device].waiting = 0;
}

pub(crate) fn index(i: usize) -> u32 {
    u32::try_from(i).unwrap_or(NO_SLOT)
}

#[cfg(test)]
mod tests;
