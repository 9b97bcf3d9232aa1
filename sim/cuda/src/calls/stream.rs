//! Streams, and host functions in them.
//!
//! Not here: capture (`capture`).

use super::launch::spend;
use crate::capture::Target;
use crate::context::Context;
use crate::door::{Answer, Door, put};
use crate::driver::hold;
use crate::graph::node::{Host, Kind};
use crate::objects::{Stream, handle};
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;

unsafe fn make(d: &Door, out: *mut CUstream, flags: u32, priority: i32) -> Answer {
    if out.is_null() || flags & !CU_STREAM_NON_BLOCKING != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let context = d.context()?;
    let driver = d.driver()?;
    let id = driver.device(context.device)?.engine.open_stream(context.group, flags & CU_STREAM_NON_BLOCKING == 0);
    let priority = priority.clamp(-5, 0);
    let stream = Arc::new(Stream { context, id, flags, priority, number: driver.fresh() });
    unsafe { put(out, CUstream(driver.streams.add(stream))) }
}

pub(crate) unsafe fn cuStreamCreate(d: &Door, stream: *mut CUstream, flags: u32) -> Answer {
    unsafe { make(d, stream, flags, 0) }
}

pub(crate) unsafe fn cuStreamCreateWithPriority(d: &Door, stream: *mut CUstream, flags: u32, priority: i32) -> Answer {
    unsafe { make(d, stream, flags, priority) }
}

pub(crate) unsafe fn cuStreamDestroy(d: &Door, stream: CUstream) -> Answer {
    let driver = d.driver()?;
    let s = driver.streams.remove(stream.0).ok_or(CUresult::INVALID_HANDLE)?;
    let key = (s.context.device, s.id);
    driver.captures.forget(driver, |k, _| k == key);
    driver.device(s.context.device)?.engine.close_stream(s.id);
    Ok(())
}

pub(crate) unsafe fn cuStreamDestroy_v2(d: &Door, stream: CUstream) -> Answer {
    unsafe { cuStreamDestroy(d, stream) }
}

pub(crate) unsafe fn cuStreamQuery(d: &Door, stream: CUstream) -> Answer {
    let (c, id) = d.stream(stream)?;
    d.driver()?.captures.forbid()?;
    spend(d.driver()?.device(c.device)?.profile.query_host_ns);
    match d.driver()?.device(c.device)?.engine.stream_done(id) {
        Some(true) => Ok(()),
        Some(false) => Err(CUresult::NOT_READY),
        None => Err(CUresult::INVALID_HANDLE),
    }
}

pub(crate) unsafe fn cuStreamSynchronize(d: &Door, stream: CUstream) -> Answer {
    let (c, id) = d.stream(stream)?;
    let driver = d.driver()?;
    driver.captures.forbid()?;
    if !driver.device(c.device)?.engine.stream_wait(id) {
        return Err(CUresult::INVALID_HANDLE);
    }
    driver.memory.synchronised(driver);
    Ok(())
}

/// Flag, for captures only: adds a node that waits, instead of a dependency.
const EXTERNAL: u32 = 1;

pub(crate) unsafe fn cuStreamWaitEvent(d: &Door, stream: CUstream, event: CUevent, flags: u32) -> Answer {
    if flags > EXTERNAL {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let e = driver.events.get(event.0).ok_or(CUresult::INVALID_HANDLE)?;
    let (c, id) = match d.target(stream)? {
        Target::Capture(t) if flags == EXTERNAL => return d.capture(&t, || Ok(Kind::Wait(e.clone()))),
        Target::Capture(t) => return driver.captures.join(&t, &e),
        Target::Run(..) if flags == EXTERNAL => return Err(CUresult::INVALID_VALUE),
        Target::Run(c, id) => (c, id),
    };
    let recorded = hold(&e.captured).clone();
    if let Some(recorded) = recorded {
        return driver.captures.fork(&c, (c.device, id), d.is_legacy(stream), d.is_blocking(stream), &recorded);
    }
    let engine = &driver.device(c.device)?.engine;
    if e.context.device == c.device {
        engine.wait_event(id, e.id);
    } else {
        // The other device's clock is independent, so the stream is held until the event is reached.
        let other = driver.device(e.context.device)?.engine.clone();
        engine.gate(id, move || other.event_done(e.id));
    }
    Ok(())
}

/// A stream's flags and priority; a default stream has neither.
fn described(d: &Door, stream: CUstream) -> Result<(Arc<Context>, u32, i32, u64), CUresult> {
    if let Some(s) = d.driver()?.streams.get(stream.0) {
        return Ok((s.context.clone(), s.flags, s.priority, s.number));
    }
    let (c, _) = d.raw_stream(stream)?;
    let number = if d.per_thread || stream == CU_STREAM_PER_THREAD { 2 } else { 1 };
    Ok((c, 0, 0, number))
}

pub(crate) unsafe fn cuStreamGetFlags(d: &Door, stream: CUstream, flags: *mut u32) -> Answer {
    unsafe { put(flags, described(d, stream)?.1) }
}

pub(crate) unsafe fn cuStreamGetPriority(d: &Door, stream: CUstream, priority: *mut i32) -> Answer {
    unsafe { put(priority, described(d, stream)?.2) }
}

pub(crate) unsafe fn cuStreamGetCtx(d: &Door, stream: CUstream, ctx: *mut CUcontext) -> Answer {
    unsafe { put(ctx, CUcontext(handle(&described(d, stream)?.0))) }
}

pub(crate) unsafe fn cuStreamGetId(d: &Door, stream: CUstream, id: *mut u64) -> Answer {
    unsafe { put(id, described(d, stream)?.3) }
}

struct Data(*mut c_void);

// SAFETY: the program passes the pointer so that its function receives it on another thread.
unsafe impl Send for Data {}

pub(crate) unsafe fn cuLaunchHostFunc(d: &Door, stream: CUstream, f: CUhostFn, data: *mut c_void) -> Answer {
    let f = f.ok_or(CUresult::INVALID_VALUE)?;
    let (c, id) = match d.target(stream)? {
        Target::Capture(t) => return d.capture(&t, || Ok(Kind::Host(Host { f, data }))),
        Target::Run(c, id) => (c, id),
    };
    let data = Data(data);
    let call = move || {
        let data = data;
        // SAFETY: the program's own function with its own argument.
        unsafe { f(data.0) }
    };
    d.driver()?.device(c.device)?.engine.host(id, call);
    Ok(())
}

/// Cannot be captured, unlike a host function.
pub(crate) unsafe fn cuStreamAddCallback(
    d: &Door,
    stream: CUstream,
    f: CUstreamCallback,
    data: *mut c_void,
    flags: u32,
) -> Answer {
    let f = f.filter(|_| flags == 0).ok_or(CUresult::INVALID_VALUE)?;
    let (c, id) = d.stream(stream)?;
    let data = Data(data);
    let call = move || {
        let data = data;
        // SAFETY: the program's own function with its own argument.
        unsafe { f(stream, CUresult::SUCCESS, data.0) }
    };
    d.driver()?.device(c.device)?.engine.host(id, call);
    Ok(())
}
