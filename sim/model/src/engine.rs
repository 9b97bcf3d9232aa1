//! Streams and events of one process on one device.
//!
//! A process has one work queue per engine of the device: kernels and work that stays on the device, copies to
//! the device, copies from it. Each queue runs in the order of submission. A *mark* is a position on a queue, in
//! ns of work since the process joined. A stream is finished when the queues have passed the marks of its last
//! work. An event takes over the stream's marks. Its time is the moment at which the last of them was passed,
//! read from the segments that `sched` writes. So streams cost nothing, and an event on an idle stream is reached
//! at once while another stream works.
//!
//! Work can follow work of another engine in its stream. Then a gate on its queue waits for that engine. The gate
//! also delays later work of the same queue from other streams: a legal order, as on a device with one hardware
//! queue.
//!
//! Host functions are the exception. Operations behind one in its stream, and operations that wait for those, are
//! *held* in the stream's queue: they are neither submitted nor carried out before the function has returned. One
//! thread per device runs host functions; it starts with the first one (`turns`). Held operations are submitted
//! with the time of their release, however long the host needs to submit them, because a real device would
//! already have them in its queue. Everything else happens at the call, the movement of bytes included, in the
//! order of submission.
//!
//! Not here: handles and error codes (the driver).

mod turns;

use crate::forecast::forecast_marks;
use crate::layout::{COMPUTE_LANE, LANE_COUNT, SlotDevice};
use crate::lines::{ContextGroup, EngineEvent, EngineState, EngineStream, StreamOperation, WorkEffect, later_marks};
pub use crate::lines::{EventId, GroupId, StreamId, WorkKind};
use crate::machine::{LockedState, MachineView, now};
use crate::sched::{self, LineMarks};
use crate::segments::passed_at;
use std::cmp::Reverse;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

/// Longest sleep of a wait, ns: the death of another process can bring completion forward.
const MAX_SLEEP_NS: u64 = 5_000_000;
/// Interval between checks of a closed gate or a full queue, ns.
const GATE_POLL_NS: u64 = 100_000;
/// Shortest sleep of a wait, ns: a forecast may be too early.
const MIN_WAIT_NS: u64 = 1_000;
/// The last part of a wait spins instead of sleeping, ns.
const FINAL_SPIN_NS: u64 = 100_000;

/// The streams and events of this process on one device.
pub struct DeviceEngine {
    machine: Arc<MachineView>,
    device: usize,
    depth: usize,
    event_ns: u64,
    inner: Mutex<EngineState>,
    moved: Condvar,
    me: Weak<DeviceEngine>,
}

impl DeviceEngine {
    /// The engine for `device`. A process makes one per device, because the engine consumes the process's segments.
    pub fn new(machine: Arc<MachineView>, device: usize) -> Arc<DeviceEngine> {
        let p = machine.profile_of(device);
        Arc::new_cyclic(|me| DeviceEngine {
            machine,
            device,
            depth: usize::try_from(p.queue_depth).unwrap_or(1024).max(1),
            event_ns: p.event_ns,
            inner: Mutex::default(),
            moved: Condvar::new(),
            me: me.clone(),
        })
    }

    fn lock_state(&self) -> MutexGuard<'_, EngineState> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Opens a group of streams for a context, with its legacy default stream.
    pub fn open_group(&self) -> GroupId {
        let mut s = self.lock_state();
        s.next += 2;
        let (group, legacy) = (GroupId(s.next), StreamId(s.next + 1));
        s.groups.insert(group, ContextGroup { legacy, gone: [0; LANE_COUNT] });
        s.streams.insert(legacy, EngineStream::new(group, true, true));
        group
    }

    /// Forgets a context's streams and their held operations; submitted work still runs.
    pub fn close_group(&self, group: GroupId) {
        let mut s = self.lock_state();
        s.groups.remove(&group);
        let gone: Vec<StreamId> = s.streams.iter().filter(|(_, st)| st.group == group).map(|(id, _)| *id).collect();
        for id in gone {
            s.drop_stream(id);
        }
        self.run_held(&mut s);
    }

    /// The legacy default stream of a context.
    pub fn legacy_stream(&self, group: GroupId) -> Option<StreamId> {
        self.lock_state().groups.get(&group).map(|g| g.legacy)
    }

    /// Opens a stream. A `blocking` stream and the legacy default stream wait for each other.
    pub fn open_stream(&self, group: GroupId, blocking: bool) -> StreamId {
        let mut s = self.lock_state();
        s.next += 2;
        let id = StreamId(s.next);
        s.streams.insert(id, EngineStream::new(group, blocking, false));
        id
    }

    /// Destroys a stream. Its held operations are still carried out, and a wait for its context covers its work.
    pub fn close_stream(&self, id: StreamId) {
        let mut s = self.lock_state();
        match s.streams.get_mut(&id) {
            Some(st) if st.done < st.pushed => st.closing = true,
            _ => s.drop_stream(id),
        }
    }

    /// Creates an event; `timing`: it can be used to measure times.
    pub fn open_event(&self, timing: bool) -> EventId {
        let mut s = self.lock_state();
        let e = EngineEvent { in_use: true, timing, ..EngineEvent::default() };
        if let Some(i) = s.free_events.pop() {
            let asked = s.events[i].asked;
            s.events[i] = EngineEvent { asked, recorded: asked, at: Some(0), ..e };
            return EventId(i);
        }
        s.events.push(EngineEvent { at: Some(0), ..e });
        EventId(s.events.len() - 1)
    }

    /// Forgets an event; waits for it that are already enqueued stay in force.
    pub fn close_event(&self, e: EventId) {
        let mut s = self.lock_state();
        if let Some(ev) = s.events.get_mut(e.0).filter(|ev| ev.in_use) {
            ev.in_use = false;
            // A queued record or wait still refers to this index, so the index is not reused.
            if ev.asked == ev.recorded {
                s.free_events.push(e.0);
            }
        }
    }

    /// Enqueues `ns` of device time in a stream. `effect` runs when the stream reaches it, mostly at once.
    ///
    /// Returns when the work is enqueued. With `queue_depth` launches outstanding that is only after some of them
    /// finish. False: there is no such stream.
    pub fn enqueue_work(
        &self,
        id: StreamId,
        ns: u64,
        kind: WorkKind,
        effect: Option<impl FnOnce() + Send + 'static>,
    ) -> bool {
        let mut s = self.lock_state();
        if !s.streams.contains_key(&id) {
            return false;
        }
        if kind == WorkKind::Kernel {
            s = self.make_room(s);
        }
        let after = s.begin_operation(id);
        if s.ready_now(id, &after) {
            if let Some(f) = effect {
                f();
            }
            let (b, _) = self.look_at_device(&mut s);
            drop(self.submit_work(b, &mut s, id, ns, kind, kind.lane_of_kind()));
            s.finish_operation(id);
        } else {
            let effect = effect.map(|f| Box::new(f) as WorkEffect);
            s.hold_operation(id, StreamOperation::Work { ns, kind, effect }, after);
        }
        true
    }

    /// Records an event in a stream. False: there is no such stream or event.
    pub fn record_event(&self, id: StreamId, e: EventId) -> bool {
        let mut s = self.lock_state();
        if !s.streams.contains_key(&id) || e.0 >= s.events.len() {
            return false;
        }
        let ev = &mut s.events[e.0];
        ev.asked += 1;
        ev.mine = true;
        let seq = ev.asked;
        let after = s.begin_operation(id);
        s.note_record(id, e.0);
        if s.ready_now(id, &after) {
            self.reach_event(&mut s, id, e.0, seq);
            s.finish_operation(id);
        } else {
            s.hold_operation(id, StreamOperation::Record { event: e.0, seq }, after);
        }
        true
    }

    /// Lets a stream wait for the last record of an event of this engine. False: there is no such stream or event.
    pub fn wait_event(&self, id: StreamId, e: EventId) -> bool {
        let mut s = self.lock_state();
        if !s.streams.contains_key(&id) || e.0 >= s.events.len() {
            return false;
        }
        let seq = s.events[e.0].asked;
        let after = s.begin_operation(id);
        s.note_wait(id, e.0);
        if s.ready_now(id, &after) && s.events[e.0].recorded >= seq {
            s.join(id, e.0);
            s.finish_operation(id);
        } else {
            s.hold_operation(id, StreamOperation::Wait { event: e.0, seq }, after);
        }
        true
    }

    /// Operations put into a stream so far; the next operation follows them.
    pub fn operations_queued(&self, id: StreamId) -> u64 {
        self.lock_state().streams.get(&id).map_or(0, |st| st.pushed)
    }

    /// True if an operation put into `id` now follows the first `n` operations of `other`, through events `id` waited
    /// for.
    pub fn is_behind(&self, id: StreamId, other: StreamId, n: u64) -> bool {
        self.lock_state().streams.get(&id).and_then(|st| st.behind.get(&other).copied()).is_some_and(|m| m >= n)
    }

    /// Returns whether all work of a stream is done; `None`: there is no such stream.
    pub fn stream_done(&self, id: StreamId) -> Option<bool> {
        let mut s = self.lock_state();
        let (tail, held) = s.wait_goal(id)?;
        Some(!held && self.has_reached(&mut s, &tail))
    }

    /// Waits for the present operations of a stream. False: there is no such stream.
    pub fn stream_wait(&self, id: StreamId) -> bool {
        let s = self.lock_state();
        let Some(st) = s.streams.get(&id) else { return false };
        let mut after = vec![(id, st.pushed)];
        after.extend(s.implied_dependencies(id));
        self.wait_all(s, &after, None);
        true
    }

    /// Waits until all work of a context is done.
    pub fn group_wait(&self, group: GroupId) {
        let s = self.lock_state();
        let all: Vec<_> =
            s.streams.iter().filter(|(_, st)| st.group == group).map(|(id, st)| (*id, st.pushed)).collect();
        self.wait_all(s, &all, Some(group));
    }

    /// Returns whether the last record of an event was reached; true for an event that was never recorded.
    pub fn event_done(&self, e: EventId) -> bool {
        let mut s = self.lock_state();
        let Some(ev) = s.events.get(e.0).copied() else { return true };
        ev.recorded == ev.asked && (ev.at.is_some() || self.has_reached(&mut s, &ev.mark))
    }

    /// Returns whether an event was ever recorded.
    pub fn event_recorded(&self, e: EventId) -> bool {
        self.lock_state().events.get(e.0).is_some_and(|ev| ev.mine)
    }

    /// Waits until the last record of an event is reached.
    pub fn event_wait(&self, e: EventId) {
        let mut s = self.lock_state();
        let Some(want) = s.events.get(e.0).map(|ev| ev.asked) else { return };
        while s.events[e.0].recorded < want {
            s = self.moved.wait(s).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        if s.events[e.0].recorded == want && s.events[e.0].at.is_none() {
            let mark = s.events[e.0].mark;
            drop(s);
            self.wait_marks(&mark);
        }
    }

    /// When the last record of an event was reached, ns of the device's clock; `None`: not yet, or never recorded.
    pub fn event_time(&self, e: EventId) -> Option<u64> {
        if !self.event_done(e) {
            return None;
        }
        self.lock_state().events.get(e.0).filter(|ev| ev.mine).and_then(|ev| ev.at).filter(|at| *at > 0)
    }

    /// Runs `f` while no effect of this device runs, for changes that an effect must not see half made.
    pub fn while_still<R>(&self, f: impl FnOnce() -> R) -> R {
        let _state = self.lock_state();
        f()
    }

    /// Ends everything that this process has queued on the device, for a process whose contexts are gone.
    pub fn withdraw_all(&self) {
        let (mut b, _) = self.machine.at_present(self.device);
        let slot = self.machine.own_slot();
        sched::withdraw_slot(&mut b, slot, self.device);
    }

    /// True if this process has a fault or the device is lost.
    fn is_faulted(&self) -> bool {
        (self.machine.own_fault() | self.machine.lost_code(self.device)) != 0
    }

    /// Advances the device to now.
    pub fn bring_up_to_date(&self) {
        let _ = self.look_at_device(&mut self.lock_state());
    }

    /// Index of the device that this engine simulates.
    pub fn device_index(&self) -> usize {
        self.device
    }

    /// Advances the device to now and dates the events that were reached.
    fn look_at_device(&self, s: &mut EngineState) -> (LockedState<'_>, u64) {
        let (mut b, time) = self.machine.at_moment(self.device, s.moment);
        // After a fault nothing runs any more. Everything counts as reached, so that no wait hangs.
        let faulted = b.fault_code(self.machine.own_slot(), self.device) != 0;
        let sd: &mut SlotDevice = &mut b.slots[self.machine.own_slot()].devices[self.device];
        for lane in 0..LANE_COUNT {
            let line = &mut sd.lanes[lane];
            s.served[lane] = if faulted { u64::MAX } else { line.busy };
            while let Some(Reverse((mark, event, seq))) = s.pending[lane].peek().copied() {
                if mark > s.served[lane] {
                    break;
                }
                s.pending[lane].pop();
                let ev = &mut s.events[event];
                if ev.recorded == seq && ev.at.is_none() {
                    ev.latest = ev.latest.max(passed_at(line, mark).unwrap_or(time));
                    ev.left -= 1;
                    ev.at = (ev.left == 0).then_some(ev.latest.max(ev.asked_at));
                }
            }
            line.read = line.wrote;
        }
        (b, time)
    }

    fn has_reached(&self, s: &mut EngineState, marks: &LineMarks) -> bool {
        let passed = |s: &EngineState| (0..LANE_COUNT).all(|l| s.served[l] >= marks[l]);
        if !passed(s) {
            let _ = self.look_at_device(s);
        }
        passed(s)
    }

    /// Enqueues work after the stream's last operation. The caller has advanced the device to now.
    fn submit_work<'a>(
        &'a self,
        mut b: LockedState<'a>,
        s: &mut EngineState,
        id: StreamId,
        ns: u64,
        kind: WorkKind,
        lane: usize,
    ) -> LockedState<'a> {
        let tail = s.order_tail(id);
        let slot = self.machine.own_slot();
        let mark = loop {
            b.slots[slot].touched |= 1 << self.device;
            // A call that was under way when the fault came gives the device no work.
            let ns = if b.fault_code(slot, self.device) == 0 { ns } else { 0 };
            if let Some(mark) = sched::submit_work(&mut b, slot, self.device, lane, ns, &tail) {
                let used = &mut b.slots[slot].devices[self.device].used;
                match kind {
                    WorkKind::Kernel => used.kernels += 1,
                    WorkKind::Copy | WorkKind::FromHost | WorkKind::ToHost => used.copies += 1,
                    WorkKind::Other => {}
                }
                break mark;
            }
            // The queue is full of gates. They open as submitted work runs, so wait and try again.
            drop(b);
            sleep_until(now() + GATE_POLL_NS);
            s.moment = s.moment.map(|_| now());
            b = self.look_at_device(s).0;
        };
        if kind == WorkKind::Kernel {
            s.outstanding.push_back(mark);
        }
        if ns == 0 {
            return b;
        }
        let mut marks = [0; LANE_COUNT];
        marks[lane] = mark;
        s.raise_end(id, marks);
        if let Some(st) = s.streams.get_mut(&id) {
            st.lane = lane;
        }
        b
    }

    /// Carries out a record: the event takes the stream's last marks, and those that the legacy rule adds.
    fn reach_event(&self, s: &mut EngineState, id: StreamId, event: usize, seq: u64) {
        let (b, time) = self.look_at_device(s);
        let mut tail = s.order_tail(id);
        let last = (0..LANE_COUNT).filter(|l| tail[*l] > s.served[*l]).max_by_key(|l| tail[*l] - s.served[*l]);
        if let Some(last) = last.filter(|_| s.events[event].timing && self.event_ns > 0) {
            // The engine that did the stream's last work also writes the end timestamp.
            let own = s.streams.get(&id).map(|st| st.lane).filter(|l| tail[*l] > s.served[*l]);
            drop(self.submit_work(b, s, id, self.event_ns, WorkKind::Other, own.unwrap_or(last)));
            tail = s.order_tail(id);
        }
        let open = (0..LANE_COUNT).filter(|l| s.served[*l] < tail[*l]);
        let ev = &mut s.events[event];
        (ev.recorded, ev.mark, ev.asked_at) = (seq, tail, time);
        (ev.left, ev.latest) = (0, 0);
        for lane in open {
            ev.left += 1;
            s.pending[lane].push(Reverse((tail[lane], event, seq)));
        }
        ev.at = (ev.left == 0).then_some(time);
        s.raise_end(id, tail);
    }

    /// Blocks while too many launches are outstanding, as a real driver does when its launch queue is full.
    fn make_room<'a>(&'a self, mut s: MutexGuard<'a, EngineState>) -> MutexGuard<'a, EngineState> {
        loop {
            if s.outstanding.len() < self.depth {
                return s;
            }
            let _ = self.look_at_device(&mut s);
            while s.outstanding.front().is_some_and(|m| *m <= s.served[COMPUTE_LANE]) {
                s.outstanding.pop_front();
            }
            if let Some(mark) = s.outstanding.front().copied().filter(|_| s.outstanding.len() >= self.depth) {
                drop(s);
                let mut marks = [0; LANE_COUNT];
                marks[COMPUTE_LANE] = mark;
                self.wait_marks(&marks);
                s = self.lock_state();
            }
        }
    }

    fn wait_all(&self, mut s: MutexGuard<'_, EngineState>, all: &[(StreamId, u64)], group: Option<GroupId>) {
        while all.iter().any(|(id, n)| s.streams.get(id).is_some_and(|st| st.done < *n)) {
            s = self.moved.wait(s).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        let gone = group.and_then(|g| s.groups.get(&g)).map(|g| g.gone);
        let tails = all.iter().filter_map(|(id, _)| s.streams.get(id)).map(|st| st.tail);
        let marks = tails.chain(gone).fold([0; LANE_COUNT], later_marks);
        let done = self.has_reached(&mut s, &marks);
        drop(s);
        if !done {
            self.wait_marks(&marks);
        }
    }

    /// Sleeps, and spins at the end, until the process's served work has passed `marks`.
    fn wait_marks(&self, marks: &LineMarks) {
        loop {
            let mut s = self.lock_state();
            let (b, time) = self.look_at_device(&mut s);
            if (0..LANE_COUNT).all(|l| s.served[l] >= marks[l]) {
                return;
            }
            let eta = forecast_marks(&b, self.machine.own_slot(), self.device, marks, time + MAX_SLEEP_NS);
            let eta = eta.max(time + MIN_WAIT_NS);
            drop(b);
            drop(s);
            sleep_until(eta.saturating_sub(FINAL_SPIN_NS));
            while now() < eta {
                std::hint::spin_loop();
            }
        }
    }

    /// Carries out held operations that no longer have to wait.
    fn run_held(&self, s: &mut EngineState) {
        loop {
            let ready = s.streams.iter().find_map(|(id, st)| {
                let q = st.queue.front()?;
                let free = q.after.iter().all(|(o, n)| s.streams.get(o).is_none_or(|x| x.done >= *n));
                let open = match &q.op {
                    StreamOperation::Host { .. } => false,
                    StreamOperation::Wait { event, seq } => s.events[*event].recorded >= *seq,
                    _ => true,
                };
                (free && open).then_some(*id)
            });
            let Some(id) = ready else { break };
            let Some(q) = s.streams.get_mut(&id).and_then(|st| st.queue.pop_front()) else { break };
            s.held -= 1;
            match q.op {
                StreamOperation::Work { ns, kind, effect } => {
                    if let Some(f) = effect {
                        f();
                    }
                    let (b, _) = self.look_at_device(s);
                    drop(self.submit_work(b, s, id, ns, kind, kind.lane_of_kind()));
                }
                StreamOperation::Record { event, seq } => self.reach_event(s, id, event, seq),
                StreamOperation::Wait { event, .. } => s.join(id, event),
                StreamOperation::Host { .. } => {}
            }
            s.finish_operation(id);
        }
        self.moved.notify_all();
    }
}

fn sleep_until(at: u64) {
    if at <= now() {
        return;
    }
    let t = libc::timespec {
        tv_sec: i64::try_from(at / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(at % 1_000_000_000).unwrap_or(0),
    };
    // SAFETY: a live structure that the kernel reads; no remainder is asked for. The caller checks again after an
    // early return.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const t, std::ptr::null_mut()) };
}
