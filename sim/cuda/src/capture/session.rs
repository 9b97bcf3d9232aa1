//! One capture: its streams, the nodes their next operations depend on, and the resulting graph.

use super::CapturedStream;
use crate::context::CudaContext;
use crate::graph::graph_tables;
use crate::objects::GraphId;
use shim_sys::cuda::{CUgraphEdgeData, CUgraphNode};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// State of one stream that takes part in a capture.
pub(crate) struct CaptureLine {
    pub(crate) context: Arc<CudaContext>,
    /// True if the stream and the legacy stream would wait for each other.
    pub(crate) blocking: bool,
    /// Nodes that the stream's next operation depends on.
    pub(crate) after: Vec<GraphId>,
    /// Copy of `after` that was last returned to the program, with data for as many edges; the program keeps pointers
    /// to it.
    pub(crate) shown: (Vec<CUgraphNode>, Vec<CUgraphEdgeData>),
}

// SAFETY: the handles are numbers.
unsafe impl Send for CaptureLine {}

/// State of one stream capture, from its begin to its end.
pub(crate) struct CaptureSession {
    pub(crate) graph: GraphId,
    /// True if the graph was made for this capture.
    pub(crate) own: bool,
    pub(crate) mode: u32,
    /// The thread that began the capture (`rules::me`).
    pub(crate) thread: u64,
    /// The stream in which the capture began.
    pub(crate) origin: CapturedStream,
    pub(crate) invalid: bool,
    pub(crate) streams: BTreeMap<CapturedStream, CaptureLine>,
    /// The nodes that each captured node depended on, whatever the program changed in the graph since.
    pub(crate) parents: HashMap<GraphId, Vec<GraphId>>,
    /// Nodes that the program removed from a stream's dependencies; they need not be joined.
    pub(crate) dropped: HashSet<GraphId>,
}

impl CaptureSession {
    /// True if the last work of every stream is followed by the stream in which the capture began.
    pub(crate) fn is_joined(&self) -> bool {
        let mut seen: HashSet<GraphId> = HashSet::new();
        let mut todo = self.streams.get(&self.origin).map(|l| l.after.clone()).unwrap_or_default();
        while let Some(n) = todo.pop() {
            if seen.insert(n) {
                todo.extend(self.parents.get(&n).into_iter().flatten());
            }
        }
        let mut last = self.streams.values().flat_map(|l| &l.after);
        last.all(|n| seen.contains(n) || self.dropped.contains(n) || !self.parents.contains_key(n))
    }

    /// Ends a failed capture; a graph that was made for it is destroyed.
    pub(crate) fn discard_graph(self) {
        let mut world = graph_tables().lock_world();
        if let Ok(g) = world.graph_mut(self.graph) {
            g.capturing = false;
        }
        let gone = if self.own { world.destroy_graph(self.graph) } else { Vec::new() };
        drop(world);
        // Dropped outside the lock, because the objects it held may call the program.
        drop(gone);
    }
}
