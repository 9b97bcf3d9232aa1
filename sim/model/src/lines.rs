//! The lines of work inside a process: its streams with what they hold, its events, and the rules of their order.
//!
//! Data and rules only; `engine` carries them out on the device.

use crate::layout::{COMPUTE, LANES, TO_DEVICE, TO_HOST};
use crate::sched::Marks;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

/// A stream of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub(crate) u64);

/// A context's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub(crate) u64);

/// An event of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub(crate) usize);

/// What a piece of work is, for the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A kernel.
    Kernel,
    /// A fill, or a copy that stays on the device.
    Copy,
    /// A copy from the host.
    FromHost,
    /// A copy to the host.
    ToHost,
    /// Neither (an event record's cost).
    Other,
}

impl Kind {
    /// The engine that does it.
    pub(crate) fn lane(self) -> usize {
        match self {
            Kind::FromHost => TO_DEVICE,
            Kind::ToHost => TO_HOST,
            _ => COMPUTE,
        }
    }
}

pub(crate) type Effect = Box<dyn FnOnce() + Send>;
/// Something the host does in a stream; false: not yet, ask again.
pub(crate) type Turn = Box<dyn FnMut() -> bool + Send>;

pub(crate) enum Op {
    Work { ns: u64, kind: Kind, effect: Option<Effect> },
    Record { event: usize, seq: u64 },
    Wait { event: usize, seq: u64 },
    Host { f: Option<Turn> },
}

pub(crate) struct Queued {
    pub(crate) op: Op,
    /// Streams that must have carried out so many operations first.
    pub(crate) after: Vec<(StreamId, u64)>,
}

/// How far a stream is behind others by the events it waited for: operations of each, counted as they were pushed.
pub(crate) type Behind = Arc<BTreeMap<StreamId, u64>>;

/// The later place on each line.
pub(crate) fn later(a: Marks, b: Marks) -> Marks {
    std::array::from_fn(|l| a[l].max(b[l]))
}

pub(crate) struct Stream {
    pub(crate) group: GroupId,
    pub(crate) blocking: bool,
    pub(crate) legacy: bool,
    /// Where its last operation ends on each line.
    pub(crate) tail: Marks,
    /// The engine of its last operation.
    pub(crate) lane: usize,
    pub(crate) pushed: u64,
    pub(crate) done: u64,
    /// Destroyed by the program; goes when what it holds is carried out.
    pub(crate) closing: bool,
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) behind: Behind,
}

#[derive(Default, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) in_use: bool,
    pub(crate) timing: bool,
    /// Recorded since it was opened.
    pub(crate) mine: bool,
    pub(crate) asked: u64,
    pub(crate) recorded: u64,
    pub(crate) mark: Marks,
    pub(crate) asked_at: u64,
    /// Lines of the last record that have not passed their marks.
    pub(crate) left: u8,
    /// When the last of the others did.
    pub(crate) latest: u64,
    pub(crate) at: Option<u64>,
}

/// A context's streams as a whole.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub(crate) legacy: StreamId,
    /// The last mark of streams that are gone.
    pub(crate) gone: Marks,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) streams: HashMap<StreamId, Stream>,
    pub(crate) groups: HashMap<GroupId, Group>,
    pub(crate) events: Vec<Event>,
    /// What a wait for each event's last record comes behind: the recording stream's operations, and what that was behind.
    pub(crate) records: Vec<Behind>,
    pub(crate) free_events: Vec<usize>,
    /// Of each line: marks, events, and which of their records.
    pub(crate) pending: [BinaryHeap<Reverse<(u64, usize, u64)>>; LANES],
    pub(crate) outstanding: VecDeque<u64>,
    pub(crate) held: usize,
    pub(crate) served: Marks,
    /// While work that was held is let go: the moment at which that happened.
    pub(crate) moment: Option<u64>,
    pub(crate) next: u64,
    pub(crate) thread: bool,
}

impl Stream {
    pub(crate) fn new(group: GroupId, blocking: bool, legacy: bool) -> Stream {
        Stream {
            group,
            blocking,
            legacy,
            tail: [0; LANES],
            lane: COMPUTE,
            pushed: 0,
            done: 0,
            closing: false,
            queue: VecDeque::new(),
            behind: Behind::default(),
        }
    }
}

impl Inner {
    /// Streams that an operation in `id` must follow by the legacy rule, with how far they must be.
    pub(crate) fn implied(&self, id: StreamId) -> Vec<(StreamId, u64)> {
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

    pub(crate) fn begin(&mut self, id: StreamId) -> Vec<(StreamId, u64)> {
        let after = self.implied(id);
        if let Some(st) = self.streams.get_mut(&id) {
            st.pushed += 1;
        }
        after
    }

    pub(crate) fn finish(&mut self, id: StreamId) {
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

    pub(crate) fn hold(&mut self, id: StreamId, op: Op, after: Vec<(StreamId, u64)>) {
        if let Some(st) = self.streams.get_mut(&id) {
            st.queue.push_back(Queued { op, after });
            self.held += 1;
        }
    }

    /// Remembers what a wait for the record that was just begun comes behind.
    pub(crate) fn note_record(&mut self, id: StreamId, event: usize) {
        let Some(st) = self.streams.get(&id) else { return };
        let mut behind = st.behind.clone();
        Arc::make_mut(&mut behind).insert(id, st.pushed);
        if self.records.len() <= event {
            self.records.resize_with(event + 1, Behind::default);
        }
        self.records[event] = behind;
    }

    /// The stream waits for the event's last record.
    pub(crate) fn note_wait(&mut self, id: StreamId, event: usize) {
        let (Some(st), Some(record)) = (self.streams.get_mut(&id), self.records.get(event)) else { return };
        let mine = Arc::make_mut(&mut st.behind);
        for (other, n) in record.iter().filter(|(other, _)| **other != id) {
            let place = mine.entry(*other).or_insert(0);
            *place = (*place).max(*n);
        }
    }

    /// The mark behind which an operation in the stream comes: its own, and the legacy rule's.
    pub(crate) fn order_tail(&self, id: StreamId) -> Marks {
        let Some(st) = self.streams.get(&id) else { return [0; LANES] };
        if !st.legacy {
            // A legacy operation has raised the tails of the blocking streams already.
            return st.tail;
        }
        self.streams.values().filter(|x| x.group == st.group && x.blocking).map(|x| x.tail).fold([0; LANES], later)
    }

    /// The mark a query or a wait of the stream is about, and whether something is held.
    pub(crate) fn goal(&self, id: StreamId) -> Option<(Marks, bool)> {
        let st = self.streams.get(&id)?;
        Some((self.order_tail(id), st.done < st.pushed || !self.implied(id).is_empty()))
    }

    pub(crate) fn join(&mut self, id: StreamId, event: usize) {
        let mark = self.events[event].mark;
        if let Some(st) = self.streams.get_mut(&id) {
            st.tail = later(st.tail, mark);
        }
    }

    /// Puts the stream's end at `mark`. After an operation in the legacy stream blocking streams answer for it too.
    pub(crate) fn raise(&mut self, id: StreamId, mark: Marks) {
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
                g.gone = later(g.gone, st.tail);
            }
        }
    }
}
