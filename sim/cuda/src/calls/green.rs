//! Green contexts: a part of the multiprocessors with its own context handle. Only drivers newer than 535 have
//! them.
//!
//! A green context holds the primary context and shares everything but the handle with it: memory, default
//! streams, synchronisation. Its number of multiprocessors is only reported; the duration of its kernels does not
//! depend on it.

use crate::context::{Context, create, destroy};
use crate::door::{Answer, Door, put, put_if};
use crate::driver::hold;
use crate::objects::{Stream, handle, known};
use shim_sys::cuda::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vgpu_sim::Profile;

/// Resource type: multiprocessors.
const SM: u32 = 1;
const INVALID_RESOURCE_TYPE: CUresult = CUresult(914);
const INVALID_RESOURCE_CONFIGURATION: CUresult = CUresult(915);

/// Resources for a green context.
pub(crate) struct Description {
    sms: u32,
}

/// A green context: its own context, which holds the primary one.
pub(crate) struct Green {
    context: Arc<Context>,
    sms: u32,
}

/// Smallest size of a part, and granularity of sizes, in multiprocessors, by compute capability.
fn step(p: &Profile) -> u32 {
    if p.cc_major >= 9 { 8 } else { 4 }
}

fn resource(p: &Profile, sms: u32) -> CUdevResource {
    let (sm_least, sm_step) = (step(p), step(p));
    let next = core::ptr::null_mut();
    CUdevResource { kind: SM, internal: [0; 92], sm_count: sms, sm_least, sm_step, rest: [0; 7], next }
}

pub(crate) unsafe fn cuDeviceGetDevResource(
    d: &Door,
    dev: CUdevice,
    resource_out: *mut CUdevResource,
    kind: u32,
) -> Answer {
    let p = &d.driver()?.device(dev)?.profile;
    if kind != SM {
        return Err(INVALID_RESOURCE_TYPE);
    }
    unsafe { put(resource_out, resource(p, p.sms)) }
}

/// Splits into groups of at least the requested number of multiprocessors, as many as fit, and a rest. With a
/// null pointer for the groups, only their number is written.
pub(crate) unsafe fn cuDevSmResourceSplitByCount(
    d: &Door,
    groups: *mut CUdevResource,
    count: *mut u32,
    input: *const CUdevResource,
    rest: *mut CUdevResource,
    _flags: u32,
    least: u32,
) -> Answer {
    if count.is_null() || input.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let (all, wanted) = unsafe { (input.read(), count.read()) };
    if all.kind != SM {
        return Err(INVALID_RESOURCE_TYPE);
    }
    let p = &d.driver()?.device(0)?.profile;
    let size = least.max(1).next_multiple_of(step(p));
    if size > all.sm_count {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    let most = all.sm_count / size;
    if groups.is_null() {
        return unsafe { put(count, most) };
    }
    let number = wanted.min(most);
    for at in 0..number {
        unsafe { put(groups.add(at as usize), resource(p, size))? };
    }
    unsafe { put_if(rest, resource(p, all.sm_count - number * size)) };
    unsafe { put(count, number) }
}

pub(crate) unsafe fn cuDevResourceGenerateDesc(
    d: &Door,
    desc: *mut CUdevResourceDesc,
    resources: *mut CUdevResource,
    count: u32,
) -> Answer {
    if resources.is_null() || count == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let all = (0..count as usize).map(|at| unsafe { resources.add(at).read() });
    let sms = all.filter(|one| one.kind == SM).map(|one| one.sm_count).sum();
    if sms == 0 {
        return Err(INVALID_RESOURCE_TYPE);
    }
    unsafe { put(desc, CUdevResourceDesc(d.driver()?.descriptions.add(Arc::new(Description { sms })))) }
}

/// Makes the primary context if it does not exist, and holds it.
pub(crate) unsafe fn cuGreenCtxCreate(
    d: &Door,
    green: *mut CUgreenCtx,
    desc: CUdevResourceDesc,
    dev: CUdevice,
    flags: u32,
) -> Answer {
    if green.is_null() || flags & !1 != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let device = driver.device(dev)?;
    let sms = known(&driver.descriptions, desc.0)?.sms;
    if sms > device.profile.sms {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    let mut state = hold(&device.state);
    let primary = match &state.primary {
        Some(primary) => primary.clone(),
        None => {
            let flags = state.primary_flags;
            let made = create(driver, device, &mut state, dev, flags, true, 3020)?;
            state.primary = Some(made.clone());
            made
        }
    };
    state.retained += 1;
    drop(state);
    let context = Arc::new(primary.green());
    driver.contexts.add(context.clone());
    unsafe { put(green, CUgreenCtx(driver.greens.add(Arc::new(Green { context, sms })))) }
}

pub(crate) unsafe fn cuGreenCtxDestroy(d: &Door, green: CUgreenCtx) -> Answer {
    let driver = d.driver()?;
    let one = driver.greens.remove(green.0).ok_or(CUresult::INVALID_HANDLE)?;
    let device = driver.device(one.context.device)?;
    device.engine.group_wait(one.context.group);
    one.context.alive.store(false, Ordering::Release);
    driver.contexts.remove(handle(&one.context));
    for s in driver.streams.remove_where(|s| Arc::ptr_eq(&s.context, &one.context)) {
        device.engine.close_stream(s.id);
    }
    let mut state = hold(&device.state);
    state.retained = state.retained.saturating_sub(1);
    let last = if state.retained == 0 { state.primary.take() } else { None };
    drop(state);
    last.map_or(Ok(()), |primary| destroy(driver, &primary))
}

pub(crate) unsafe fn cuCtxFromGreenCtx(d: &Door, ctx: *mut CUcontext, green: CUgreenCtx) -> Answer {
    let one = known(&d.driver()?.greens, green.0)?;
    unsafe { put(ctx, CUcontext(handle(&one.context))) }
}

pub(crate) unsafe fn cuGreenCtxGetDevResource(
    d: &Door,
    green: CUgreenCtx,
    resource_out: *mut CUdevResource,
    kind: u32,
) -> Answer {
    let driver = d.driver()?;
    let one = known(&driver.greens, green.0)?;
    if kind != SM {
        return Err(INVALID_RESOURCE_TYPE);
    }
    unsafe { put(resource_out, resource(&driver.device(one.context.device)?.profile, one.sms)) }
}

/// Always a stream that does not wait for the legacy stream.
pub(crate) unsafe fn cuGreenCtxStreamCreate(
    d: &Door,
    stream: *mut CUstream,
    green: CUgreenCtx,
    flags: u32,
    priority: i32,
) -> Answer {
    if stream.is_null() || flags != CU_STREAM_NON_BLOCKING {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let context = known(&driver.greens, green.0)?.context.clone();
    let id = driver.device(context.device)?.engine.open_stream(context.group, false);
    let made = Stream { context, id, flags, priority: priority.clamp(-5, 0), number: driver.fresh() };
    unsafe { put(stream, CUstream(driver.streams.add(Arc::new(made)))) }
}
