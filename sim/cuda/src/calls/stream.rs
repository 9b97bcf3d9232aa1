//! Streams, and host functions in them.
//!
//! Not here: capture (`capture`).

use crate::capture::OperationTarget;
use crate::context::CudaContext;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::graph::node::{HostNode, NodeKind};
use crate::host_time::spend_host_time;
use crate::objects::{StreamObject, object_handle};
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;

unsafe fn make_stream(d: &CallFrame, out: *mut CUstream, flags: u32, priority: i32) -> CallResult {
    if out.is_null() || flags & !CU_STREAM_NON_BLOCKING != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let context = d.current_context()?;
    let driver = d.initialised_driver()?;
    let id = driver
        .device_of_ordinal(context.device)?
        .engine
        .open_stream(context.group, flags & CU_STREAM_NON_BLOCKING == 0);
    let priority = priority.clamp(-5, 0);
    let stream = Arc::new(StreamObject { context, id, flags, priority, number: driver.next_number() });
    unsafe { write_output(out, CUstream(driver.streams.add(stream))) }
}

pub(crate) unsafe fn cuStreamCreate(d: &CallFrame, stream: *mut CUstream, flags: u32) -> CallResult {
    unsafe { make_stream(d, stream, flags, 0) }
}

pub(crate) unsafe fn cuStreamCreateWithPriority(
    d: &CallFrame,
    stream: *mut CUstream,
    flags: u32,
    priority: i32,
) -> CallResult {
    unsafe { make_stream(d, stream, flags, priority) }
}

pub(crate) unsafe fn cuStreamDestroy(d: &CallFrame, stream: CUstream) -> CallResult {
    let driver = d.initialised_driver()?;
    let s = driver.streams.remove(stream.0).ok_or(CUresult::INVALID_HANDLE)?;
    let key = (s.context.device, s.id);
    d.capture_table()?.forget_streams(|k, _| k == key);
    driver.device_of_ordinal(s.context.device)?.engine.close_stream(s.id);
    Ok(())
}

pub(crate) unsafe fn cuStreamDestroy_v2(d: &CallFrame, stream: CUstream) -> CallResult {
    unsafe { cuStreamDestroy(d, stream) }
}

pub(crate) unsafe fn cuStreamQuery(d: &CallFrame, stream: CUstream) -> CallResult {
    let (c, id) = d.resolve_stream(stream)?;
    d.capture_table()?.refuse_unsafe()?;
    spend_host_time(d.initialised_driver()?.device_of_ordinal(c.device)?.profile.query_host_ns);
    match d.initialised_driver()?.device_of_ordinal(c.device)?.engine.stream_done(id) {
        Some(true) => Ok(()),
        Some(false) => Err(CUresult::NOT_READY),
        None => Err(CUresult::INVALID_HANDLE),
    }
}

pub(crate) unsafe fn cuStreamSynchronize(d: &CallFrame, stream: CUstream) -> CallResult {
    let (c, id) = d.resolve_stream(stream)?;
    let driver = d.initialised_driver()?;
    d.capture_table()?.refuse_unsafe()?;
    if !driver.device_of_ordinal(c.device)?.engine.stream_wait(id) {
        return Err(CUresult::INVALID_HANDLE);
    }
    driver.memory.trim_after_wait();
    Ok(())
}

/// Flag, for captures only: adds a node that waits, instead of a dependency.
const EXTERNAL_WAIT_FLAG: u32 = 1;

pub(crate) unsafe fn cuStreamWaitEvent(d: &CallFrame, stream: CUstream, event: CUevent, flags: u32) -> CallResult {
    if flags > EXTERNAL_WAIT_FLAG {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let e = driver.events.get(event.0).ok_or(CUresult::INVALID_HANDLE)?;
    let (c, id) = match d.target_of(stream)? {
        OperationTarget::Capture(t) if flags == EXTERNAL_WAIT_FLAG => {
            return d.capture_node(&t, || Ok(NodeKind::Wait(e.clone())));
        }
        OperationTarget::Capture(t) => return d.capture_table()?.join(&t, &e),
        OperationTarget::Run(..) if flags == EXTERNAL_WAIT_FLAG => return Err(CUresult::INVALID_VALUE),
        OperationTarget::Run(c, id) => (c, id),
    };
    let recorded = e.captured.lock().clone();
    if let Some(recorded) = recorded {
        return d.capture_table()?.fork_capture(
            &c,
            (c.device, id),
            d.is_legacy(stream),
            d.is_blocking(stream),
            &recorded,
        );
    }
    let engine = &driver.device_of_ordinal(c.device)?.engine;
    if e.context.device == c.device {
        engine.wait_event(id, e.id);
    } else {
        // The other device's clock is independent, so the stream is held until the event is reached.
        let other = driver.device_of_ordinal(e.context.device)?.engine.clone();
        engine.enqueue_gate(id, move || other.event_done(e.id));
    }
    Ok(())
}

/// A stream's flags and priority; a default stream has neither.
fn describe_stream(d: &CallFrame, stream: CUstream) -> Result<(Arc<CudaContext>, u32, i32, u64), CUresult> {
    if let Some(s) = d.initialised_driver()?.streams.get(stream.0) {
        return Ok((s.context.clone(), s.flags, s.priority, s.number));
    }
    let (c, _) = d.raw_stream(stream)?;
    let number = if d.per_thread || stream == CU_STREAM_PER_THREAD { 2 } else { 1 };
    Ok((c, 0, 0, number))
}

pub(crate) unsafe fn cuStreamGetFlags(d: &CallFrame, stream: CUstream, flags: *mut u32) -> CallResult {
    unsafe { write_output(flags, describe_stream(d, stream)?.1) }
}

pub(crate) unsafe fn cuStreamGetPriority(d: &CallFrame, stream: CUstream, priority: *mut i32) -> CallResult {
    unsafe { write_output(priority, describe_stream(d, stream)?.2) }
}

pub(crate) unsafe fn cuStreamGetCtx(d: &CallFrame, stream: CUstream, ctx: *mut CUcontext) -> CallResult {
    unsafe { write_output(ctx, CUcontext(object_handle(&describe_stream(d, stream)?.0))) }
}

pub(crate) unsafe fn cuStreamGetId(d: &CallFrame, stream: CUstream, id: *mut u64) -> CallResult {
    unsafe { write_output(id, describe_stream(d, stream)?.3) }
}

struct CallbackData(*mut c_void);

// SAFETY: the program passes the pointer so that its function receives it on another thread.
unsafe impl Send for CallbackData {}

pub(crate) unsafe fn cuLaunchHostFunc(d: &CallFrame, stream: CUstream, f: CUhostFn, data: *mut c_void) -> CallResult {
    let f = f.ok_or(CUresult::INVALID_VALUE)?;
    let (c, id) = match d.target_of(stream)? {
        OperationTarget::Capture(t) => return d.capture_node(&t, || Ok(NodeKind::Host(HostNode { f, data }))),
        OperationTarget::Run(c, id) => (c, id),
    };
    let data = CallbackData(data);
    let call = move || {
        let data = data;
        // SAFETY: the program's own function with its own argument.
        unsafe { f(data.0) }
    };
    d.initialised_driver()?.device_of_ordinal(c.device)?.engine.enqueue_host(id, call);
    Ok(())
}

/// Cannot be captured, unlike a host function.
pub(crate) unsafe fn cuStreamAddCallback(
    d: &CallFrame,
    stream: CUstream,
    f: CUstreamCallback,
    data: *mut c_void,
    flags: u32,
) -> CallResult {
    let f = f.filter(|_| flags == 0).ok_or(CUresult::INVALID_VALUE)?;
    let (c, id) = d.resolve_stream(stream)?;
    let data = CallbackData(data);
    let call = move || {
        let data = data;
        // SAFETY: the program's own function with its own argument.
        unsafe { f(stream, CUresult::SUCCESS, data.0) }
    };
    d.initialised_driver()?.device_of_ordinal(c.device)?.engine.enqueue_host(id, call);
    Ok(())
}
