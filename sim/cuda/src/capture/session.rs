//! One capture: its streams, what their next operations come after, and what its end makes of it.

use super::Key;
use crate::context::Context;
use crate::driver::Driver;
use crate::graph::Id;
use shim_sys::cuda::{CUgraphEdgeData, CUgraphNode};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// A stream in a capture.
pub(crate) struct Line {
    pub(crate) context: Arc<Context>,
    /// It and the legacy stream would wait for each other.
    pub(crate) blocking: bool,
    /// What its next operation comes after.
    pub(crate) after: Vec<Id>,
    /// The same, as last handed out to the program, with data of as many edges.
    pub(crate) shown: (Vec<CUgraphNode>, Vec<CUgraphEdgeData>),
}

// SAFETY: the handles are numbers.
unsafe impl Send for Line {}

/// One capture.
pub(crate) struct Session {
    pub(crate) graph: Id,
    /// The graph was made for it.
    pub(crate) own: bool,
    pub(crate) mode: u32,
    /// Who began it (`rules::me`).
    pub(crate) thread: u64,
    /// Where it began.
    pub(crate) origin: Key,
    pub(crate) invalid: bool,
    pub(crate) streams: BTreeMap<Key, Line>,
    /// What each captured node came after, whatever the program did to the graph since.
    pub(crate) parents: HashMap<Id, Vec<Id>>,
    /// Nodes that the program took out of a stream's dependencies: nobody needs to join them.
    pub(crate) dropped: HashSet<Id>,
}

impl Session {
    /// Whether every stream's last work is behind the stream it began in.
    pub(crate) fn is_joined(&self) -> bool {
        let mut seen: HashSet<Id> = HashSet::new();
        let mut todo = self.streams.get(&self.origin).map(|l| l.after.clone()).unwrap_or_default();
        while let Some(n) = todo.pop() {
            if seen.insert(n) {
                todo.extend(self.parents.get(&n).into_iter().flatten());
            }
        }
        let mut last = self.streams.values().flat_map(|l| &l.after);
        last.all(|n| seen.contains(n) || self.dropped.contains(n) || !self.parents.contains_key(n))
    }

    /// The capture failed: a graph of its own goes with it.
    pub(crate) fn discard(self, driver: &'static Driver) {
        let mut world = driver.graphs.world();
        if let Ok(g) = world.graph_mut(self.graph) {
            g.capturing = false;
        }
        let gone = if self.own { world.destroy(self.graph) } else { Vec::new() };
        drop(world);
        // The objects it held may call the program.
        drop(gone);
    }
}
