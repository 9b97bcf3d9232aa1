//! Event functions.

use super::launch::spend;
use crate::capture::Target;
use crate::door::{Answer, Door, put};
use crate::driver::hold;
use crate::graph::node::Kind;
use crate::objects::{Event, known};
use parking_lot::Mutex;
use shim_sys::cuda::*;
use std::sync::Arc;

const INTERPROCESS: u32 = 4;

pub(crate) unsafe fn cuEventCreate(d: &Door, event: *mut CUevent, flags: u32) -> Answer {
    if event.is_null() || flags & !7 != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if flags & INTERPROCESS != 0 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let context = d.context()?;
    let driver = d.driver()?;
    let id = driver.device(context.device)?.engine.open_event(flags & CU_EVENT_DISABLE_TIMING == 0);
    unsafe {
        put(event, CUevent(driver.events.add(Arc::new(Event { context, id, flags, captured: Mutex::default() }))))
    }
}

pub(crate) unsafe fn cuEventDestroy(d: &Door, event: CUevent) -> Answer {
    let driver = d.driver()?;
    let e = driver.events.remove(event.0).ok_or(CUresult::INVALID_HANDLE)?;
    driver.device(e.context.device)?.engine.close_event(e.id);
    Ok(())
}

pub(crate) unsafe fn cuEventDestroy_v2(d: &Door, event: CUevent) -> Answer {
    unsafe { cuEventDestroy(d, event) }
}

/// Flag, for captures only: adds a node that records the event, instead of referring to a place in the capture.
const EXTERNAL: u32 = 1;

fn record(d: &Door, event: CUevent, stream: CUstream, external: bool) -> Answer {
    let driver = d.driver()?;
    let e = known(&driver.events, event.0)?;
    let (c, _) = d.raw_stream(stream)?;
    // The event and the stream must belong to the same context.
    if !e.context.is_of(&c) {
        return Err(CUresult::INVALID_HANDLE);
    }
    let (c, id) = match d.target(stream)? {
        Target::Capture(t) if external => return d.capture(&t, || Ok(Kind::Record(e))),
        Target::Capture(t) => return driver.captures.record(&t, &e),
        Target::Run(..) if external => return Err(CUresult::INVALID_VALUE),
        Target::Run(c, id) => (c, id),
    };
    *hold(&e.captured) = None;
    spend(driver.device(c.device)?.profile.record_host_ns);
    if driver.device(c.device)?.engine.record(id, e.id) { Ok(()) } else { Err(CUresult::INVALID_HANDLE) }
}

pub(crate) unsafe fn cuEventRecord(d: &Door, event: CUevent, stream: CUstream) -> Answer {
    record(d, event, stream, false)
}

pub(crate) unsafe fn cuEventRecordWithFlags(d: &Door, event: CUevent, stream: CUstream, flags: u32) -> Answer {
    if flags > EXTERNAL {
        return Err(CUresult::INVALID_VALUE);
    }
    record(d, event, stream, flags == EXTERNAL)
}

pub(crate) unsafe fn cuEventQuery(d: &Door, event: CUevent) -> Answer {
    let driver = d.driver()?;
    let e = known(&driver.events, event.0)?;
    driver.captures.look_at(&e)?;
    driver.captures.forbid()?;
    spend(driver.device(e.context.device)?.profile.query_host_ns);
    if driver.device(e.context.device)?.engine.event_done(e.id) { Ok(()) } else { Err(CUresult::NOT_READY) }
}

pub(crate) unsafe fn cuEventSynchronize(d: &Door, event: CUevent) -> Answer {
    let driver = d.driver()?;
    let e = known(&driver.events, event.0)?;
    driver.captures.look_at(&e)?;
    driver.captures.forbid()?;
    driver.device(e.context.device)?.engine.event_wait(e.id);
    driver.memory.synchronised(driver);
    Ok(())
}

pub(crate) unsafe fn cuEventElapsedTime(d: &Door, ms: *mut f32, start: CUevent, end: CUevent) -> Answer {
    if ms.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let (a, b) = (known(&driver.events, start.0)?, known(&driver.events, end.0)?);
    if a.context.device != b.context.device || (a.flags | b.flags) & CU_EVENT_DISABLE_TIMING != 0 {
        return Err(CUresult::INVALID_HANDLE);
    }
    driver.captures.look_at(&a)?;
    driver.captures.look_at(&b)?;
    let engine = &driver.device(a.context.device)?.engine;
    if !engine.event_recorded(a.id) || !engine.event_recorded(b.id) {
        return Err(CUresult::INVALID_HANDLE);
    }
    let (Some(from), Some(to)) = (engine.event_time(a.id), engine.event_time(b.id)) else {
        return Err(CUresult::NOT_READY);
    };
    // Milliseconds as a float, as the driver API defines it.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
    let elapsed = (to as i64 - from as i64) as f64 / 1e6;
    #[allow(clippy::cast_possible_truncation)]
    let elapsed = elapsed as f32;
    unsafe { put(ms, elapsed) }
}
