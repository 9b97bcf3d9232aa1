//! Event functions.

use crate::capture::OperationTarget;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::graph::node::NodeKind;
use crate::host_time::{TimedCall, spend_host_time};
use crate::objects::{EventObject, object_of_handle};
use parking_lot::Mutex;
use shim_sys::cuda::*;
use std::sync::Arc;

const INTERPROCESS_FLAG: u32 = 4;

pub(crate) unsafe fn cuEventCreate(d: &CallFrame, event: *mut CUevent, flags: u32) -> CallResult {
    if event.is_null() || flags & !7 != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if flags & INTERPROCESS_FLAG != 0 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let context = d.current_context()?;
    let driver = d.initialised_driver()?;
    let id = driver.device_of_ordinal(context.device)?.engine.open_event(flags & CU_EVENT_DISABLE_TIMING == 0);
    unsafe {
        write_output(
            event,
            CUevent(driver.events.add(Arc::new(EventObject { context, id, flags, captured: Mutex::default() }))),
        )
    }
}

pub(crate) unsafe fn cuEventDestroy(d: &CallFrame, event: CUevent) -> CallResult {
    let driver = d.initialised_driver()?;
    let e = driver.events.remove(event.0).ok_or(CUresult::INVALID_HANDLE)?;
    driver.device_of_ordinal(e.context.device)?.engine.close_event(e.id);
    Ok(())
}

pub(crate) unsafe fn cuEventDestroy_v2(d: &CallFrame, event: CUevent) -> CallResult {
    unsafe { cuEventDestroy(d, event) }
}

/// Resolution of event times, ns.
const EVENT_RESOLUTION_NS: u64 = 500;
/// Flag, for captures only: adds a node that records the event, instead of referring to a place in the capture.
const EXTERNAL_RECORD_FLAG: u32 = 1;

fn record_event(d: &CallFrame, event: CUevent, stream: CUstream, external: bool) -> CallResult {
    static CALL: TimedCall = TimedCall::new();
    let begin = vgpu_sim::now();
    let driver = d.initialised_driver()?;
    let e = object_of_handle(&driver.events, event.0)?;
    let (c, _) = d.raw_stream(stream)?;
    // The event and the stream must belong to the same context.
    if !e.context.is_of(&c) {
        return Err(CUresult::INVALID_HANDLE);
    }
    let (c, id) = match d.target_of(stream)? {
        OperationTarget::Capture(t) if external => return d.capture_node(&t, || Ok(NodeKind::Record(e))),
        OperationTarget::Capture(t) => return d.capture_table()?.record_captured(&t, &e),
        OperationTarget::Run(..) if external => return Err(CUresult::INVALID_VALUE),
        OperationTarget::Run(c, id) => (c, id),
    };
    *e.captured.lock() = None;
    let device = driver.device_of_ordinal(c.device)?;
    let recorded = CALL.run(begin, &device.profile, &device.engine, device.profile.record_host_ns, || {
        device.engine.record_event(id, e.id)
    });
    if recorded { Ok(()) } else { Err(CUresult::INVALID_HANDLE) }
}

pub(crate) unsafe fn cuEventRecord(d: &CallFrame, event: CUevent, stream: CUstream) -> CallResult {
    record_event(d, event, stream, false)
}

pub(crate) unsafe fn cuEventRecordWithFlags(d: &CallFrame, event: CUevent, stream: CUstream, flags: u32) -> CallResult {
    if flags > EXTERNAL_RECORD_FLAG {
        return Err(CUresult::INVALID_VALUE);
    }
    record_event(d, event, stream, flags == EXTERNAL_RECORD_FLAG)
}

pub(crate) unsafe fn cuEventQuery(d: &CallFrame, event: CUevent) -> CallResult {
    let driver = d.initialised_driver()?;
    let e = object_of_handle(&driver.events, event.0)?;
    d.capture_table()?.look_at(&e)?;
    d.capture_table()?.refuse_unsafe()?;
    spend_host_time(driver.device_of_ordinal(e.context.device)?.profile.query_host_ns);
    if driver.device_of_ordinal(e.context.device)?.engine.event_done(e.id) { Ok(()) } else { Err(CUresult::NOT_READY) }
}

pub(crate) unsafe fn cuEventSynchronize(d: &CallFrame, event: CUevent) -> CallResult {
    let driver = d.initialised_driver()?;
    let e = object_of_handle(&driver.events, event.0)?;
    d.capture_table()?.look_at(&e)?;
    d.capture_table()?.refuse_unsafe()?;
    driver.device_of_ordinal(e.context.device)?.engine.event_wait(e.id);
    driver.memory.trim_after_wait();
    Ok(())
}

pub(crate) unsafe fn cuEventElapsedTime(d: &CallFrame, ms: *mut f32, start: CUevent, end: CUevent) -> CallResult {
    if ms.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let (a, b) = (object_of_handle(&driver.events, start.0)?, object_of_handle(&driver.events, end.0)?);
    if a.context.device != b.context.device || (a.flags | b.flags) & CU_EVENT_DISABLE_TIMING != 0 {
        return Err(CUresult::INVALID_HANDLE);
    }
    d.capture_table()?.look_at(&a)?;
    d.capture_table()?.look_at(&b)?;
    let device = driver.device_of_ordinal(a.context.device)?;
    spend_host_time(device.profile.query_host_ns);
    let engine = &device.engine;
    if !engine.event_recorded(a.id) || !engine.event_recorded(b.id) {
        return Err(CUresult::INVALID_HANDLE);
    }
    let (Some(from), Some(to)) = (engine.event_time(a.id), engine.event_time(b.id)) else {
        return Err(CUresult::NOT_READY);
    };
    let [from, to] = [from, to].map(|time| time / EVENT_RESOLUTION_NS * EVENT_RESOLUTION_NS);
    // Milliseconds as a float, as the driver API defines it.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
    let elapsed = (to as i64 - from as i64) as f64 / 1e6;
    #[allow(clippy::cast_possible_truncation)]
    let elapsed = elapsed as f32;
    unsafe { write_output(ms, elapsed) }
}
