//! Stream capture: which streams capture into which graph, and what every call has to ask before it touches a stream.
//!
//! A *session* is what one begin starts: a graph, the stream it began in, the streams that joined it by waiting for an
//! event, and for each of them the nodes that its next operation comes after. Nodes go into the graph through
//! `graph::world`, as those of explicit calls do. What was invalid once stays so until its end (`session`). Events: `events`.
//! Which calls are forbidden while somebody captures, by mode and thread: `rules`. The C functions: `calls::capture`.
//! Not simulated: captures of streams of several devices into one graph beyond what events do, conditional graphs,
//! launches of graphs into a capture (refused, as measured on hardware).

mod events;
pub(crate) mod rules;
pub(crate) mod session;

use crate::context::Context;
use crate::door::{Answer, Door};
use crate::driver::{Driver, hold};
use crate::graph::Id;
use crate::graph::node::Kind;
use parking_lot::Mutex;
use session::{Line, Session};
use shim_sys::cuda::{CUresult, CUstream};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vgpu_sim::engine::StreamId;

/// Two captures would become one.
pub(crate) const MERGE: CUresult = CUresult(902);
/// The capture has a stream that did not come back.
pub(crate) const UNJOINED: CUresult = CUresult(904);
/// Captured and executed work would depend on each other.
pub(crate) const ISOLATION: CUresult = CUresult(905);
/// Last recorded in a capture.
pub(crate) const CAPTURED_EVENT: CUresult = CUresult(907);
/// Begun by another thread.
pub(crate) const WRONG_THREAD: CUresult = CUresult(908);

/// A stream: CUDA ordinal of its device, and its number there.
pub(crate) type Key = (i32, StreamId);

/// Where an event was last recorded, if that was in a capture.
#[derive(Clone)]
pub(crate) struct Recorded {
    pub(crate) session: u64,
    /// What whoever waits for it comes after.
    pub(crate) nodes: Vec<Id>,
}

/// All captures of this process. Its lock is taken before that of graphs.
#[derive(Default)]
pub(crate) struct Captures {
    under_way: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) last: u64,
    pub(crate) sessions: BTreeMap<u64, Session>,
    /// The session of each stream that captures.
    pub(crate) of: HashMap<Key, u64>,
}

impl State {
    /// The session that a stream captures into.
    pub(crate) fn at(&mut self, key: Key) -> Option<&mut Session> {
        let id = self.of.get(&key)?;
        self.sessions.get_mut(id)
    }
}

/// An operation on its way into a capture.
pub(crate) struct Taking {
    pub(crate) context: Arc<Context>,
    pub(crate) key: Key,
    pub(crate) graph: Id,
    pub(crate) after: Vec<Id>,
}

/// What becomes of an operation in a stream.
pub(crate) enum Target {
    /// It is carried out.
    Run(Arc<Context>, StreamId),
    /// It becomes a node.
    Capture(Taking),
}

impl Captures {
    /// Whether anything captures in this process.
    pub(crate) fn any(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    /// Carries out `f` on the state.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut s = hold(&self.state);
        let out = f(&mut s);
        self.under_way.store(s.sessions.len(), Ordering::Release);
        out
    }

    /// Refuses a stream that captures, and the legacy stream where it would depend on one that does.
    ///
    /// Whoever asks is a call that cannot be captured: the capture is invalid from now on.
    pub(crate) fn refuse(&self, context: &Arc<Context>, key: Key, legacy: bool) -> Answer {
        if !self.any() {
            return Ok(());
        }
        self.with(|s| {
            if let Some(session) = s.at(key) {
                let was = std::mem::replace(&mut session.invalid, true);
                let code = CUresult::STREAM_CAPTURE_UNSUPPORTED;
                return Err(if was { CUresult::STREAM_CAPTURE_INVALIDATED } else { code });
            }
            if legacy { s.implicit(context, true) } else { Ok(()) }
        })
    }

    /// The capture an operation in a stream goes into; `None`: it is carried out.
    fn taking(&self, context: &Arc<Context>, key: Key, legacy: bool) -> Result<Option<Taking>, CUresult> {
        if !self.any() {
            return Ok(None);
        }
        self.with(|s| {
            if legacy {
                return s.implicit(context, true).map(|()| None);
            }
            let Some(session) = s.at(key) else { return Ok(None) };
            if session.invalid {
                return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
            }
            let after = session.streams.get(&key).map(|l| l.after.clone()).unwrap_or_default();
            Ok(Some(Taking { context: context.clone(), key, graph: session.graph, after }))
        })
    }

    /// Puts an operation into its capture.
    pub(crate) fn add(&self, driver: &'static Driver, t: &Taking, kind: Kind) -> Result<Id, CUresult> {
        self.with(|s| {
            let session = s.at(t.key).ok_or(CUresult::STREAM_CAPTURE_INVALIDATED)?;
            if session.invalid {
                return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
            }
            let node = driver.graphs.world().add(t.graph, &t.after, kind)?;
            session.parents.insert(node, t.after.clone());
            if let Some(line) = session.streams.get_mut(&t.key) {
                line.after = vec![node];
            }
            Ok(node)
        })
    }

    /// A context is about to end, or a stream is: what captures there is invalid; what began there is over.
    pub(crate) fn forget(&self, driver: &'static Driver, gone: impl Fn(Key, &Line) -> bool) {
        if !self.any() {
            return;
        }
        let graphs = self.with(|s| {
            let mut over = Vec::new();
            for (id, session) in &mut s.sessions {
                let mine: Vec<Key> = session.streams.iter().filter(|(k, l)| gone(**k, l)).map(|(k, _)| *k).collect();
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
            session.discard(driver);
        }
    }
}

impl State {
    /// Refuses the legacy stream of a context in which a blocking stream captures; `spoil`: and ends those captures.
    pub(crate) fn implicit(&mut self, context: &Arc<Context>, spoil: bool) -> Answer {
        let mut refused = false;
        for session in self.sessions.values_mut() {
            if session.streams.values().any(|l| l.blocking && Arc::ptr_eq(&l.context, context)) {
                refused = true;
                session.invalid |= spoil;
            }
        }
        if refused { Err(CUresult::STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
    }

    /// Takes a session out.
    pub(crate) fn close(&mut self, id: u64) -> Option<Session> {
        self.of.retain(|_, of| *of != id);
        self.sessions.remove(&id)
    }
}

impl Door {
    /// Where an operation in `stream` goes.
    pub(crate) fn target(&self, stream: CUstream) -> Result<Target, CUresult> {
        let (context, id) = self.raw_stream(stream)?;
        let key = (context.device, id);
        let taking = self.driver()?.captures.taking(&context, key, self.is_legacy(stream))?;
        Ok(taking.map_or(Target::Run(context, id), Target::Capture))
    }

    /// Adds the node that `make` makes to a capture.
    pub(crate) fn capture(&self, t: &Taking, make: impl FnOnce() -> Result<Kind, CUresult>) -> Answer {
        let driver = self.driver()?;
        let kind = make()?;
        driver.captures.add(driver, t, kind).map(|_| ())
    }
}
