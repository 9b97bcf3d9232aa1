//! Events and captures: an event recorded in a capture refers to nodes of its graph; a wait for it joins that
//! capture.

use super::{CAPTURED_EVENT, Captures, ISOLATION, Key, MERGE, Recorded, Taking};
use crate::capture::session::Line;
use crate::context::Context;
use crate::door::Answer;
use crate::driver::hold;
use crate::objects::Event;
use shim_sys::cuda::CUresult;
use std::sync::Arc;

impl Captures {
    /// Records an event in a capture.
    pub(crate) fn record(&self, t: &Taking, e: &Event) -> Answer {
        let session = self.with(|s| s.of.get(&t.key).copied()).ok_or(CUresult::STREAM_CAPTURE_INVALIDATED)?;
        *hold(&e.captured) = Some(Recorded { session, nodes: t.after.clone() });
        Ok(())
    }

    /// A capturing stream waits for an event. An event from outside its capture invalidates the capture.
    pub(crate) fn join(&self, t: &Taking, e: &Event) -> Answer {
        let recorded = hold(&e.captured).clone();
        self.with(|s| {
            let mine = s.of.get(&t.key).copied().ok_or(CUresult::STREAM_CAPTURE_INVALIDATED)?;
            let code = match &recorded {
                Some(r) if r.session == mine => None,
                Some(r) if s.sessions.contains_key(&r.session) => Some(MERGE),
                // The event was recorded outside captures, or in a capture that is over.
                _ => Some(ISOLATION),
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
            let line = s.at(t.key).and_then(|c| c.streams.get_mut(&t.key));
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
    pub(crate) fn fork(&self, context: &Arc<Context>, key: Key, legacy: bool, blocking: bool, r: &Recorded) -> Answer {
        self.with(|s| {
            // After the capture of an event is over, streams outside cannot wait for that event.
            let c = s.sessions.get_mut(&r.session).ok_or(CAPTURED_EVENT)?;
            if c.invalid {
                return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
            }
            if legacy {
                c.invalid = true;
                return Err(ISOLATION);
            }
            let (context, after) = (context.clone(), r.nodes.clone());
            c.streams.insert(key, Line { context, blocking, after, shown: Default::default() });
            s.of.insert(key, r.session);
            Ok(())
        })
    }

    /// Refuses a query of an event that was last recorded in a capture.
    pub(crate) fn look_at(&self, e: &Event) -> Answer {
        let Some(r) = hold(&e.captured).clone() else { return Ok(()) };
        self.with(|s| {
            if let Some(c) = s.sessions.get_mut(&r.session) {
                c.invalid = true;
            }
        });
        Err(CAPTURED_EVENT)
    }

    /// Refuses a wait for a whole context in which a stream captures.
    pub(crate) fn encompass(&self, context: &Arc<Context>) -> Answer {
        if !self.any() {
            return Ok(());
        }
        self.with(|s| {
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
