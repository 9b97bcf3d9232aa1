//! Green contexts: a part of the multiprocessors with its own context handle. Only drivers newer than 535 have
//! them.
//!
//! A green context holds the primary context and shares everything but the handle with it: memory, default
//! streams, synchronisation. Its number of multiprocessors is only reported; the duration of its kernels does not
//! depend on it.

use super::context::{create_context, destroy_context};
use crate::entry_points::{CallFrame, put_if, write_output};
use crate::errors::CallResult;
use crate::objects::{GreenContext, GreenDescription, StreamObject, object_handle, object_of_handle};
use shim_sys::cuda::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vgpu_sim::DeviceProfile;

/// Resource type: multiprocessors.
const SM_RESOURCE: u32 = 1;
const INVALID_RESOURCE_TYPE: CUresult = CUresult(914);
const INVALID_RESOURCE_CONFIGURATION: CUresult = CUresult(915);

/// Smallest size of a part, and granularity of sizes, in multiprocessors, by compute capability.
fn partition_step(p: &DeviceProfile) -> u32 {
    if p.cc_major >= 9 { 8 } else { 4 }
}

fn sm_resource(p: &DeviceProfile, sms: u32) -> CUdevResource {
    let (sm_least, sm_step) = (partition_step(p), partition_step(p));
    let next = core::ptr::null_mut();
    CUdevResource { kind: SM_RESOURCE, internal: [0; 92], sm_count: sms, sm_least, sm_step, rest: [0; 7], next }
}

pub(crate) unsafe fn cuDeviceGetDevResource(
    d: &CallFrame,
    dev: CUdevice,
    resource_out: *mut CUdevResource,
    kind: u32,
) -> CallResult {
    let p = &d.initialised_driver()?.device_of_ordinal(dev)?.profile;
    if kind != SM_RESOURCE {
        return Err(INVALID_RESOURCE_TYPE);
    }
    unsafe { write_output(resource_out, sm_resource(p, p.sms)) }
}

/// Splits into groups of at least the requested number of multiprocessors, as many as fit, and a rest. With a
/// null pointer for the groups, only their number is written.
pub(crate) unsafe fn cuDevSmResourceSplitByCount(
    d: &CallFrame,
    groups: *mut CUdevResource,
    count: *mut u32,
    input: *const CUdevResource,
    rest: *mut CUdevResource,
    _flags: u32,
    least: u32,
) -> CallResult {
    if count.is_null() || input.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let (all, wanted) = unsafe { (input.read(), count.read()) };
    if all.kind != SM_RESOURCE {
        return Err(INVALID_RESOURCE_TYPE);
    }
    let p = &d.initialised_driver()?.device_of_ordinal(0)?.profile;
    let size = least.max(1).next_multiple_of(partition_step(p));
    if size > all.sm_count {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    let most = all.sm_count / size;
    if groups.is_null() {
        return unsafe { write_output(count, most) };
    }
    let number = wanted.min(most);
    for at in 0..number {
        unsafe { write_output(groups.add(at as usize), sm_resource(p, size))? };
    }
    unsafe { put_if(rest, sm_resource(p, all.sm_count - number * size)) };
    unsafe { write_output(count, number) }
}

pub(crate) unsafe fn cuDevResourceGenerateDesc(
    d: &CallFrame,
    desc: *mut CUdevResourceDesc,
    resources: *mut CUdevResource,
    count: u32,
) -> CallResult {
    if resources.is_null() || count == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let all = (0..count as usize).map(|at| unsafe { resources.add(at).read() });
    let sms = all.filter(|one| one.kind == SM_RESOURCE).map(|one| one.sm_count).sum();
    if sms == 0 {
        return Err(INVALID_RESOURCE_TYPE);
    }
    unsafe {
        write_output(
            desc,
            CUdevResourceDesc(d.initialised_driver()?.descriptions.add(Arc::new(GreenDescription { sms }))),
        )
    }
}

/// Makes the primary context if it does not exist, and holds it.
pub(crate) unsafe fn cuGreenCtxCreate(
    d: &CallFrame,
    green: *mut CUgreenCtx,
    desc: CUdevResourceDesc,
    dev: CUdevice,
    flags: u32,
) -> CallResult {
    if green.is_null() || flags & !1 != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let device = driver.device_of_ordinal(dev)?;
    let sms = object_of_handle(&driver.descriptions, desc.0)?.sms;
    if sms > device.profile.sms {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    let mut state = device.state.lock();
    let primary = match &state.primary {
        Some(primary) => primary.clone(),
        None => {
            let flags = state.primary_flags;
            let made = create_context(driver, device, &mut state, dev, flags, true, 3020)?;
            state.primary = Some(made.clone());
            made
        }
    };
    state.retained += 1;
    drop(state);
    let context = Arc::new(primary.make_green());
    driver.contexts.add(context.clone());
    unsafe { write_output(green, CUgreenCtx(driver.greens.add(Arc::new(GreenContext { context, sms })))) }
}

pub(crate) unsafe fn cuGreenCtxDestroy(d: &CallFrame, green: CUgreenCtx) -> CallResult {
    let driver = d.initialised_driver()?;
    let one = driver.greens.remove(green.0).ok_or(CUresult::INVALID_HANDLE)?;
    let device = driver.device_of_ordinal(one.context.device)?;
    device.engine.group_wait(one.context.group);
    one.context.alive.store(false, Ordering::Release);
    driver.contexts.remove(object_handle(&one.context));
    for s in driver.streams.remove_where(|s| Arc::ptr_eq(&s.context, &one.context)) {
        device.engine.close_stream(s.id);
    }
    let mut state = device.state.lock();
    state.retained = state.retained.saturating_sub(1);
    let last = if state.retained == 0 { state.primary.take() } else { None };
    drop(state);
    last.map_or(Ok(()), |primary| destroy_context(driver, &primary))
}

pub(crate) unsafe fn cuCtxFromGreenCtx(d: &CallFrame, ctx: *mut CUcontext, green: CUgreenCtx) -> CallResult {
    let one = object_of_handle(&d.initialised_driver()?.greens, green.0)?;
    unsafe { write_output(ctx, CUcontext(object_handle(&one.context))) }
}

pub(crate) unsafe fn cuGreenCtxGetDevResource(
    d: &CallFrame,
    green: CUgreenCtx,
    resource_out: *mut CUdevResource,
    kind: u32,
) -> CallResult {
    let driver = d.initialised_driver()?;
    let one = object_of_handle(&driver.greens, green.0)?;
    if kind != SM_RESOURCE {
        return Err(INVALID_RESOURCE_TYPE);
    }
    unsafe { write_output(resource_out, sm_resource(&driver.device_of_ordinal(one.context.device)?.profile, one.sms)) }
}

/// Always a stream that does not wait for the legacy stream.
pub(crate) unsafe fn cuGreenCtxStreamCreate(
    d: &CallFrame,
    stream: *mut CUstream,
    green: CUgreenCtx,
    flags: u32,
    priority: i32,
) -> CallResult {
    if stream.is_null() || flags != CU_STREAM_NON_BLOCKING {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let context = object_of_handle(&driver.greens, green.0)?.context.clone();
    let id = driver.device_of_ordinal(context.device)?.engine.open_stream(context.group, false);
    let made = StreamObject { context, id, flags, priority: priority.clamp(-5, 0), number: driver.next_number() };
    unsafe { write_output(stream, CUstream(driver.streams.add(Arc::new(made)))) }
}
