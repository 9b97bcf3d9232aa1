//! Events and captures: an event recorded in a capture refers to nodes of its graph; a wait for it joins that
//! capture.

use super::{CAPTURE_ISOLATION, CAPTURE_MERGE, CAPTURED_EVENT, CaptureOperation, CaptureTable, CapturedStream};
use crate::capture::session::CaptureLine;
use crate::context::CudaContext;
use crate::errors::CallResult;
use crate::objects::{EventObject, RecordedEvent};
use shim_sys::cuda::CUresult;
use std::sync::Arc;

impl CaptureTable {
    /// Records an event in a capture.
    pub(crate) fn record_captured(&self, t: &CaptureOperation, e: &EventObject) -> CallResult {
        let session = self.with_state(|s| s.of.get(&t.key).copied()).ok_or(CUresult::STREAM_CAPTURE_INVALIDATED)?;
        *e.captured.lock() = Some(RecordedEvent { session, nodes: t.after.clone() });
        Ok(())
    }

    /// A capturing stream waits for an event. An event from outside its capture invalidates the capture.
    pub(crate) fn join(&self, t: &CaptureOperation, e: &EventObject) -> CallResult {
        let recorded = e.captured.lock().clone();
        self.with_state(|s| {
            let mine = s.of.get(&t.key).copied().ok_or(CUresult::STREAM_CAPTURE_INVALIDATED)?;
            let code = match &recorded {
                Some(r) if r.session == mine => None,
                Some(r) if s.sessions.contains_key(&r.session) => Some(CAPTURE_MERGE),
                // The event was recorded outside captures, or in a capture that is over.
                _ => Some(CAPTURE_ISOLATION),
            };
            let other = recorded.as_ref().map(|r| r.session);
            if let Some(code) = code {
                for id in [Some(mine), other].into_iter().flatten() {
                    if let Some(c) = s.sessions.get_mut(&id) {
                        c.invalid = true;
                    }
                }
                return Err(code);
            }
            let line = s.session_of(t.key).and_then(|c| c.streams.get_mut(&t.key));
            if let (Some(l), Some(r)) = (line, recorded) {
                for n in r.nodes {
                    if !l.after.contains(&n) {
                        l.after.push(n);
                    }
                }
            }
            Ok(())
        })
    }

    /// A stream that does not capture waits for an event of a capture: it joins that capture.
    pub(crate) fn fork_capture(
        &self,
        context: &Arc<CudaContext>,
        key: CapturedStream,
        legacy: bool,
        blocking: bool,
        r: &RecordedEvent,
    ) -> CallResult {
        self.with_state(|s| {
            // After the capture of an event is over, streams outside cannot wait for that event.
            let c = s.sessions.get_mut(&r.session).ok_or(CAPTURED_EVENT)?;
            if c.invalid {
                return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
            }
            if legacy {
                c.invalid = true;
                return Err(CAPTURE_ISOLATION);
            }
            let (context, after) = (context.clone(), r.nodes.clone());
            c.streams.insert(key, CaptureLine { context, blocking, after, shown: Default::default() });
            s.of.insert(key, r.session);
            Ok(())
        })
    }

    /// Refuses a query of an event that was last recorded in a capture.
    pub(crate) fn look_at(&self, e: &EventObject) -> CallResult {
        let Some(r) = e.captured.lock().clone() else { return Ok(()) };
        self.with_state(|s| {
            if let Some(c) = s.sessions.get_mut(&r.session) {
                c.invalid = true;
            }
        });
        Err(CAPTURED_EVENT)
    }

    /// Refuses a wait for a whole context in which a stream captures.
    pub(crate) fn refuse_context_wait(&self, context: &Arc<CudaContext>) -> CallResult {
        if !self.any() {
            return Ok(());
        }
        self.with_state(|s| {
            let mut refused = false;
            for c in s.sessions.values_mut() {
                if c.streams.values().any(|l| Arc::ptr_eq(&l.context, context)) {
                    refused = true;
                    c.invalid = true;
                }
            }
            if refused { Err(CUresult::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
        })
    }
}
