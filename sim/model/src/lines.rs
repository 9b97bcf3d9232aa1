//! The streams and events inside a process, and the rules of their order.
//!
//! Data and rules only; `engine` carries them out on the device.

use crate::layout::{COMPUTE_LANE, LANE_COUNT, TO_DEVICE_LANE, TO_HOST_LANE};
use crate::sched::LineMarks;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

/// A stream of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub(crate) u64);

/// The streams of one context as a group, so that the engine can wait for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub(crate) u64);

/// An event of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub(crate) usize);

/// Type of a piece of work. It selects the engine and the counters of the ground truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A kernel that runs on the device.
    Kernel,
    /// A fill, or a copy that stays on the device.
    Copy,
    /// A copy from the host to the device.
    FromHost,
    /// A copy from the device to the host.
    ToHost,
    /// Neither kernel nor copy: the cost of an event record.
    Other,
}

impl WorkKind {
    /// The engine that does this work.
    pub(crate) fn lane_of_kind(self) -> usize {
        match self {
            WorkKind::FromHost => TO_DEVICE_LANE,
            WorkKind::ToHost => TO_HOST_LANE,
            _ => COMPUTE_LANE,
        }
    }
}

pub(crate) type WorkEffect = Box<dyn FnOnce() + Send>;
/// An operation of the host in a stream; returns false while it is not done, and is then called again.
pub(crate) type HostTurn = Box<dyn FnMut() -> bool + Send>;

pub(crate) enum StreamOperation {
    Work { ns: u64, kind: WorkKind, effect: Option<WorkEffect> },
    Record { event: usize, seq: u64 },
    Wait { event: usize, seq: u64 },
    Host { f: Option<HostTurn> },
}

pub(crate) struct QueuedOperation {
    pub(crate) op: StreamOperation,
    /// Streams that must first have carried out this many operations.
    pub(crate) after: Vec<(StreamId, u64)>,
}

/// Other streams' operations that this stream follows through events it waited for: for each stream, the number
/// of operations pushed to it.
pub(crate) type StreamDependencies = Arc<BTreeMap<StreamId, u64>>;

/// The operations that a wait for an event's last record follows.
#[derive(Default)]
pub(crate) struct LastRecord {
    /// The recording stream, with the number of its operations.
    stream: Option<(StreamId, u64)>,
    /// Operations that this stream followed itself.
    behind: StreamDependencies,
}

/// For each queue, the later of two positions.
pub(crate) fn later_marks(a: LineMarks, b: LineMarks) -> LineMarks {
    std::array::from_fn(|l| a[l].max(b[l]))
}

pub(crate) struct EngineStream {
    pub(crate) group: GroupId,
    pub(crate) blocking: bool,
    pub(crate) legacy: bool,
    /// End of the stream's last operation on each queue.
    pub(crate) tail: LineMarks,
    /// Engine of the stream's last operation.
    pub(crate) lane: usize,
    pub(crate) pushed: u64,
    pub(crate) done: u64,
    /// True after the program destroyed the stream; it is removed once its held operations are carried out.
    pub(crate) closing: bool,
    pub(crate) queue: VecDeque<QueuedOperation>,
    pub(crate) behind: StreamDependencies,
}

#[derive(Default, Clone, Copy)]
pub(crate) struct EngineEvent {
    pub(crate) in_use: bool,
    pub(crate) timing: bool,
    /// True if the event was recorded since it was opened.
    pub(crate) mine: bool,
    pub(crate) asked: u64,
    pub(crate) recorded: u64,
    pub(crate) mark: LineMarks,
    pub(crate) asked_at: u64,
    /// Queues that have not passed the marks of the last record.
    pub(crate) left: u8,
    /// When the last of the other queues passed the event's mark, ns.
    pub(crate) latest: u64,
    pub(crate) at: Option<u64>,
}

/// The streams of one context as a group.
#[derive(Clone, Copy)]
pub(crate) struct ContextGroup {
    pub(crate) legacy: StreamId,
    /// Latest mark of streams that were removed.
    pub(crate) gone: LineMarks,
}

#[derive(Default)]
pub(crate) struct EngineState {
    pub(crate) streams: BTreeMap<StreamId, EngineStream>,
    pub(crate) groups: BTreeMap<GroupId, ContextGroup>,
    pub(crate) events: Vec<EngineEvent>,
    /// For each event, its last record.
    pub(crate) records: Vec<LastRecord>,
    pub(crate) free_events: Vec<usize>,
    /// For each queue: pending marks, the event of each, and the number of its record.
    pub(crate) pending: [BinaryHeap<Reverse<(u64, usize, u64)>>; LANE_COUNT],
    pub(crate) outstanding: VecDeque<u64>,
    pub(crate) held: usize,
    pub(crate) served: LineMarks,
    /// While held work is released: the time of the release, ns.
    pub(crate) moment: Option<u64>,
    pub(crate) next: u64,
    pub(crate) thread: bool,
}

impl EngineStream {
    pub(crate) fn new(group: GroupId, blocking: bool, legacy: bool) -> EngineStream {
        EngineStream {
            group,
            blocking,
            legacy,
            tail: [0; LANE_COUNT],
            lane: COMPUTE_LANE,
            pushed: 0,
            done: 0,
            closing: false,
            queue: VecDeque::new(),
            behind: StreamDependencies::default(),
        }
    }
}

impl EngineState {
    /// Streams that an operation in `id` must follow by the legacy default stream's rule, with their operation
    /// counts.
    pub(crate) fn implied_dependencies(&self, id: StreamId) -> Vec<(StreamId, u64)> {
        if self.held == 0 {
            return Vec::new();
        }
        let Some(st) = self.streams.get(&id).filter(|st| st.blocking) else { return Vec::new() };
        self.streams
            .iter()
            .filter(|(o, x)| **o != id && x.group == st.group && x.blocking && (st.legacy || x.legacy))
            .filter(|(_, x)| x.done < x.pushed)
            .map(|(o, x)| (*o, x.pushed))
            .collect()
    }

    pub(crate) fn begin_operation(&mut self, id: StreamId) -> Vec<(StreamId, u64)> {
        let after = self.implied_dependencies(id);
        if let Some(st) = self.streams.get_mut(&id) {
            st.pushed += 1;
        }
        after
    }

    pub(crate) fn finish_operation(&mut self, id: StreamId) {
        if let Some(st) = self.streams.get_mut(&id) {
            st.done += 1;
            if st.closing && st.done == st.pushed {
                self.drop_stream(id);
            }
        }
    }

    pub(crate) fn ready_now(&self, id: StreamId, after: &[(StreamId, u64)]) -> bool {
        after.is_empty() && self.streams.get(&id).is_some_and(|st| st.queue.is_empty())
    }

    pub(crate) fn hold_operation(&mut self, id: StreamId, op: StreamOperation, after: Vec<(StreamId, u64)>) {
        if let Some(st) = self.streams.get_mut(&id) {
            st.queue.push_back(QueuedOperation { op, after });
            self.held += 1;
        }
    }

    /// Remembers the operations that a wait for the record just begun will follow.
    pub(crate) fn note_record(&mut self, id: StreamId, event: usize) {
        let Some(st) = self.streams.get(&id) else { return };
        let last = LastRecord { stream: Some((id, st.pushed)), behind: st.behind.clone() };
        if self.records.len() <= event {
            self.records.resize_with(event + 1, LastRecord::default);
        }
        self.records[event] = last;
    }

    /// Notes that the stream waits for the event's last record.
    pub(crate) fn note_wait(&mut self, id: StreamId, event: usize) {
        let (Some(st), Some(record)) = (self.streams.get_mut(&id), self.records.get(event)) else { return };
        let mine = Arc::make_mut(&mut st.behind);
        for (other, n) in record.behind.iter().map(|(o, n)| (*o, *n)).chain(record.stream).filter(|(o, _)| *o != id) {
            let place = mine.entry(other).or_insert(0);
            *place = (*place).max(n);
        }
    }

    /// The marks that an operation in the stream follows: its own stream's, and those of the legacy rule.
    pub(crate) fn order_tail(&self, id: StreamId) -> LineMarks {
        let Some(st) = self.streams.get(&id) else { return [0; LANE_COUNT] };
        if !st.legacy {
            // A legacy operation already raised the tails of the blocking streams.
            return st.tail;
        }
        self.streams
            .values()
            .filter(|x| x.group == st.group && x.blocking)
            .map(|x| x.tail)
            .fold([0; LANE_COUNT], later_marks)
    }

    /// The marks that a query or a wait of the stream covers, and whether operations are still held.
    pub(crate) fn wait_goal(&self, id: StreamId) -> Option<(LineMarks, bool)> {
        let st = self.streams.get(&id)?;
        Some((self.order_tail(id), st.done < st.pushed || !self.implied_dependencies(id).is_empty()))
    }

    pub(crate) fn join(&mut self, id: StreamId, event: usize) {
        let mark = self.events[event].mark;
        if let Some(st) = self.streams.get_mut(&id) {
            st.tail = later_marks(st.tail, mark);
        }
    }

    /// Sets the stream's end to `mark`. For the legacy stream also sets that of all blocking streams, which follow
    /// it.
    pub(crate) fn raise_end(&mut self, id: StreamId, mark: LineMarks) {
        let Some(st) = self.streams.get_mut(&id) else { return };
        st.tail = mark;
        if st.legacy {
            let group = st.group;
            for st in self.streams.values_mut().filter(|st| st.group == group && st.blocking) {
                st.tail = mark;
            }
        }
    }

    pub(crate) fn drop_stream(&mut self, id: StreamId) {
        if let Some(st) = self.streams.remove(&id) {
            for other in self.streams.values_mut().filter(|o| o.behind.contains_key(&id)) {
                Arc::make_mut(&mut other.behind).remove(&id);
            }
            self.held -= st.queue.len();
            if let Some(g) = self.groups.get_mut(&st.group) {
                g.gone = later_marks(g.gone, st.tail);
            }
        }
    }
}
