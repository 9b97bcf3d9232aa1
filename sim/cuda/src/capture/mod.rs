//! Stream capture: which streams capture into which graph, and the check that every stream operation passes
//! first.
//!
//! A *session* is one capture: a graph, the stream it began in, and the streams that joined it by waiting for an
//! event. For each stream it knows the nodes that its next operation depends on. Nodes are added through
//! `graph::world`, like those of explicit calls. An invalidated capture stays invalid until its end (`session`).
//! Events: `events`. Calls that are forbidden during a capture, by mode and thread: `rules`. The C functions:
//! `calls::capture`. Not simulated: captures of streams of several devices into one graph beyond joining by
//! events, conditional graphs, launches of graphs into a capture (refused, as measured on hardware).

mod events;
pub(crate) mod rules;
pub(crate) mod session;

use crate::context::CudaContext;
use crate::errors::CallResult;
use crate::graph::graph_tables;
use crate::graph::node::NodeKind;
use crate::objects::GraphId;
use parking_lot::Mutex;
use session::{CaptureLine, CaptureSession};
use shim_sys::cuda::CUresult;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use vgpu_sim::engine::StreamId;

/// The operation would merge two captures.
pub(crate) const CAPTURE_MERGE: CUresult = CUresult(902);
/// The capture has a stream that did not rejoin its origin.
pub(crate) const CAPTURE_UNJOINED: CUresult = CUresult(904);
/// Captured and executed work would depend on each other.
pub(crate) const CAPTURE_ISOLATION: CUresult = CUresult(905);
/// The event was last recorded in a capture.
pub(crate) const CAPTURED_EVENT: CUresult = CUresult(907);
/// Another thread began the capture.
pub(crate) const CAPTURE_WRONG_THREAD: CUresult = CUresult(908);

/// A stream: CUDA ordinal of its device, and its id in that device's engine.
pub(crate) type CapturedStream = (i32, StreamId);

/// All captures of this process. Its lock is taken before that of the graphs.
#[derive(Default)]
pub(crate) struct CaptureTable {
    under_way: AtomicUsize,
    state: Mutex<CaptureState>,
}

#[derive(Default)]
pub(crate) struct CaptureState {
    pub(crate) last: u64,
    pub(crate) sessions: BTreeMap<u64, CaptureSession>,
    /// The session of each capturing stream.
    pub(crate) of: HashMap<CapturedStream, u64>,
}

impl CaptureState {
    /// The session into which a stream captures.
    pub(crate) fn session_of(&mut self, key: CapturedStream) -> Option<&mut CaptureSession> {
        let id = self.of.get(&key)?;
        self.sessions.get_mut(id)
    }
}

/// An operation that is about to be captured.
pub(crate) struct CaptureOperation {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) key: CapturedStream,
    pub(crate) graph: GraphId,
    pub(crate) after: Vec<GraphId>,
}

/// Destination of an operation in a stream.
pub(crate) enum OperationTarget {
    /// The operation is carried out.
    Run(Arc<CudaContext>, StreamId),
    /// The operation becomes a node.
    Capture(CaptureOperation),
}

impl CaptureTable {
    /// True while any stream of this process captures.
    pub(crate) fn any(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    /// Runs `f` on the state.
    pub(crate) fn with_state<R>(&self, f: impl FnOnce(&mut CaptureState) -> R) -> R {
        let mut s = self.state.lock();
        let out = f(&mut s);
        self.under_way.store(s.sessions.len(), Ordering::Release);
        out
    }

    /// Refuses a stream that captures, and the legacy stream if it would depend on a capturing stream.
    ///
    /// For calls that cannot be captured: they invalidate the capture.
    pub(crate) fn refuse_captured(&self, context: &Arc<CudaContext>, key: CapturedStream, legacy: bool) -> CallResult {
        if !self.any() {
            return Ok(());
        }
        self.with_state(|s| {
            if let Some(session) = s.session_of(key) {
                let was = std::mem::replace(&mut session.invalid, true);
                let code = CUresult::STREAM_CAPTURE_UNSUPPORTED;
                return Err(if was { CUresult::STREAM_CAPTURE_INVALIDATED } else { code });
            }
            if legacy { s.refuse_implicit(context, true) } else { Ok(()) }
        })
    }

    /// The capture that an operation in a stream belongs to; `None`: the operation is carried out.
    pub(crate) fn find_capture(
        &self,
        context: &Arc<CudaContext>,
        key: CapturedStream,
        legacy: bool,
    ) -> Result<Option<CaptureOperation>, CUresult> {
        if !self.any() {
            return Ok(None);
        }
        self.with_state(|s| {
            if legacy {
                return s.refuse_implicit(context, true).map(|()| None);
            }
            let Some(session) = s.session_of(key) else { return Ok(None) };
            if session.invalid {
                return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
            }
            let after = session.streams.get(&key).map(|l| l.after.clone()).unwrap_or_default();
            Ok(Some(CaptureOperation { context: context.clone(), key, graph: session.graph, after }))
        })
    }

    /// Adds an operation to its capture.
    pub(crate) fn add(&self, t: &CaptureOperation, kind: NodeKind) -> Result<GraphId, CUresult> {
        self.with_state(|s| {
            let session = s.session_of(t.key).ok_or(CUresult::STREAM_CAPTURE_INVALIDATED)?;
            if session.invalid {
                return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
            }
            let node = graph_tables().lock_world().add(t.graph, &t.after, kind)?;
            session.parents.insert(node, t.after.clone());
            if let Some(line) = session.streams.get_mut(&t.key) {
                line.after = vec![node];
            }
            Ok(node)
        })
    }

    /// Called before a context or stream ends: invalidates captures that include it, and ends captures that began
    /// there.
    pub(crate) fn forget_streams(&self, gone: impl Fn(CapturedStream, &CaptureLine) -> bool) {
        if !self.any() {
            return;
        }
        let graphs = self.with_state(|s| {
            let mut over = Vec::new();
            for (id, session) in &mut s.sessions {
                let mine: Vec<CapturedStream> =
                    session.streams.iter().filter(|(k, l)| gone(**k, l)).map(|(k, _)| *k).collect();
                session.invalid |= !mine.is_empty();
                if mine.contains(&session.origin) {
                    over.push(*id);
                }
                for k in mine {
                    session.streams.remove(&k);
                    s.of.remove(&k);
                }
            }
            over.into_iter().filter_map(|id| s.close(id)).collect::<Vec<_>>()
        });
        for session in graphs {
            session.discard_graph();
        }
    }
}

impl CaptureState {
    /// Refuses the legacy stream of a context in which a blocking stream captures; `spoil`: also invalidates those
    /// captures.
    pub(crate) fn refuse_implicit(&mut self, context: &Arc<CudaContext>, spoil: bool) -> CallResult {
        let mut refused = false;
        for session in self.sessions.values_mut() {
            if session.streams.values().any(|l| l.blocking && Arc::ptr_eq(&l.context, context)) {
                refused = true;
                session.invalid |= spoil;
            }
        }
        if refused { Err(CUresult::STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
    }

    /// Removes the capture session `id`.
    pub(crate) fn close(&mut self, id: u64) -> Option<CaptureSession> {
        self.of.retain(|_, of| *of != id);
        self.sessions.remove(&id)
    }
}

/// The captures of this process.
pub(crate) fn capture_table() -> &'static CaptureTable {
    static CAPTURE_TABLE: LazyLock<CaptureTable> = LazyLock::new(CaptureTable::default);
    &CAPTURE_TABLE
}
