//! Contexts: primary and created ones, the thread's stack, settings.

use super::array::end_arrays;
use super::module::unload_module;
use crate::attributes::device_attribute;
use crate::capture::capture_table;
use crate::content::OwnerTag;
use crate::context::{CudaContext, DEFAULT_LIMITS, limit_bytes, stack_top, with_stack};
use crate::devices::{DeviceContexts, DriverDevice};
use crate::driver::SimulatedDriver;
use crate::entry_points::{CallFrame, put_if, write_output};
use crate::errors::CallResult;
use crate::graph::graph_tables;
use crate::objects::object_handle;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vgpu_sim::memory::{RecordChange, signed_bytes};

fn known_context(d: &CallFrame, ctx: CUcontext) -> Result<Arc<CudaContext>, CUresult> {
    d.initialised_driver()?.contexts.get(ctx.0).ok_or(CUresult::INVALID_CONTEXT)
}

unsafe fn make_context(d: &CallFrame, ctx: *mut CUcontext, flags: u32, dev: CUdevice, api: u32) -> CallResult {
    if ctx.is_null() || flags & !0xFF != 0 || flags & 7 == 3 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let device = driver.device_of_ordinal(dev)?;
    let context = create_context(driver, device, &mut device.state.lock(), dev, flags, false, api)?;
    unsafe { write_output(ctx, CUcontext(object_handle(&context)))? };
    with_stack(|s| s.push(context));
    Ok(())
}

/// Makes a context on `dev`, which takes device memory.
pub(crate) fn create_context(
    driver: &'static SimulatedDriver,
    device: &DriverDevice,
    state: &mut DeviceContexts,
    dev: i32,
    flags: u32,
    primary: bool,
    api: u32,
) -> Result<Arc<CudaContext>, CUresult> {
    let p = &device.profile;
    let bytes = if state.contexts == 0 { p.context_bytes } else { p.context_more_bytes };
    let change = RecordChange { contexts: 1, overhead: signed_bytes(bytes), ..RecordChange::default() };
    driver.memory.adjust_record(dev, &change)?;
    state.contexts += 1;
    let context = Arc::new(CudaContext {
        number: driver.next_number(),
        device: dev,
        group: device.engine.open_group(),
        primary,
        flags: AtomicU32::new(flags),
        cache: AtomicU32::new(0),
        banks: AtomicU32::new(1),
        alive: AtomicBool::new(true),
        users: AtomicU32::new(1),
        api,
        limits: DEFAULT_LIMITS.map(AtomicU64::new),
    });
    driver.contexts.add(context.clone());
    Ok(context)
}

/// Destroys a context: waits for its work, then frees all it holds.
pub(crate) fn destroy_context(driver: &'static SimulatedDriver, context: &Arc<CudaContext>) -> CallResult {
    let device = driver.device_of_ordinal(context.device)?;
    if !context.alive.swap(false, Ordering::AcqRel) {
        return Err(CUresult::INVALID_CONTEXT);
    }
    capture_table().forget_streams(|_, l| Arc::ptr_eq(&l.context, context));
    device.engine.group_wait(context.group);
    driver.contexts.remove(object_handle(context));
    let mine = |c: &Arc<CudaContext>| Arc::ptr_eq(c, context);
    driver.streams.remove_where(|s| mine(&s.context));
    for e in driver.events.remove_where(|e| mine(&e.context)) {
        device.engine.close_event(e.id);
    }
    for m in driver.modules.all(|m| mine(&m.context)) {
        unload_module(driver, &m);
    }
    end_arrays(driver, mine);
    driver.managed.free_all(OwnerTag(context.number));
    driver.memory.free_all(OwnerTag(context.number));
    device.engine.close_group(context.group);
    let mut state = device.state.lock();
    state.contexts -= 1;
    if state.contexts == 0 {
        graph_tables().memory.close(driver, context.device);
    }
    let p = &device.profile;
    let bytes = if state.contexts == 0 { p.context_bytes } else { p.context_more_bytes };
    let limits = (0..DEFAULT_LIMITS.len()).filter_map(|l| limit_bytes(p, l, context.limits[l].load(Ordering::Relaxed)));
    let change =
        RecordChange { contexts: -1, overhead: -signed_bytes(bytes + limits.sum::<u64>()), ..RecordChange::default() };
    driver.devices.machine.adjust_device(device.index, &change).map_err(|_| CUresult::UNKNOWN)
}

pub(crate) unsafe fn cuCtxCreate(d: &CallFrame, ctx: *mut CUcontext, flags: u32, dev: CUdevice) -> CallResult {
    unsafe { make_context(d, ctx, flags, dev, 3010) }
}

pub(crate) unsafe fn cuCtxCreate_v2(d: &CallFrame, ctx: *mut CUcontext, flags: u32, dev: CUdevice) -> CallResult {
    unsafe { make_context(d, ctx, flags, dev, 3020) }
}

/// Execution affinity is not simulated, so parameters are refused.
pub(crate) unsafe fn cuCtxCreate_v3(
    d: &CallFrame,
    ctx: *mut CUcontext,
    _params: *mut c_void,
    count: i32,
    flags: u32,
    dev: CUdevice,
) -> CallResult {
    if count != 0 {
        return Err(CUresult(224));
    }
    unsafe { make_context(d, ctx, flags, dev, 3020) }
}

/// Affinity and graphics parameters are refused.
pub(crate) unsafe fn cuCtxCreate_v4(
    d: &CallFrame,
    ctx: *mut CUcontext,
    params: *mut CUctxCreateParams,
    flags: u32,
    dev: CUdevice,
) -> CallResult {
    if unsafe { params.as_ref() }.is_some_and(|p| p.numExecAffinityParams != 0 || !p.cigParams.is_null()) {
        return Err(CUresult(224));
    }
    unsafe { make_context(d, ctx, flags, dev, 3020) }
}

pub(crate) unsafe fn cuCtxDestroy(d: &CallFrame, ctx: CUcontext) -> CallResult {
    let context = known_context(d, ctx)?;
    if context.primary {
        return Err(CUresult::INVALID_CONTEXT);
    }
    with_stack(|s| {
        if s.last().is_some_and(|t| Arc::ptr_eq(t, &context)) {
            s.pop();
        }
    });
    destroy_context(d.initialised_driver()?, &context)
}

pub(crate) unsafe fn cuCtxDestroy_v2(d: &CallFrame, ctx: CUcontext) -> CallResult {
    unsafe { cuCtxDestroy(d, ctx) }
}

/// Deprecated reference count of a context; only the current one is allowed.
pub(crate) unsafe fn cuCtxAttach(d: &CallFrame, ctx: *mut CUcontext, flags: u32) -> CallResult {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let current = d.current_context()?;
    unsafe { write_output(ctx, CUcontext(object_handle(&current)))? };
    current.users.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Destroys the current context with its last user.
pub(crate) unsafe fn cuCtxDetach(d: &CallFrame, ctx: CUcontext) -> CallResult {
    let current = d.current_context()?;
    if CUcontext(object_handle(&current)) != ctx || current.primary {
        return Err(CUresult::INVALID_CONTEXT);
    }
    if current.users.fetch_sub(1, Ordering::Relaxed) > 1 {
        return Ok(());
    }
    unsafe { cuCtxDestroy(d, ctx) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxRetain(d: &CallFrame, ctx: *mut CUcontext, dev: CUdevice) -> CallResult {
    if ctx.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let device = driver.device_of_ordinal(dev)?;
    let mut state = device.state.lock();
    let context = match &state.primary {
        Some(c) => c.clone(),
        None => {
            let flags = state.primary_flags;
            let c = create_context(driver, device, &mut state, dev, flags, true, 3020)?;
            state.primary = Some(c.clone());
            c
        }
    };
    state.retained += 1;
    unsafe { write_output(ctx, CUcontext(object_handle(&context))) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease(d: &CallFrame, dev: CUdevice) -> CallResult {
    let driver = d.initialised_driver()?;
    let device = driver.device_of_ordinal(dev)?;
    let mut state = device.state.lock();
    state.retained = state.retained.checked_sub(1).ok_or(CUresult::INVALID_CONTEXT)?;
    if state.retained > 0 {
        return Ok(());
    }
    let primary = state.primary.take();
    drop(state);
    primary.map_or(Ok(()), |c| destroy_context(driver, &c))
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease_v2(d: &CallFrame, dev: CUdevice) -> CallResult {
    unsafe { cuDevicePrimaryCtxRelease(d, dev) }
}

/// Destroys the primary context. Retains stay counted, so each holder may still release; the next retain makes a
/// new context.
pub(crate) unsafe fn cuDevicePrimaryCtxReset(d: &CallFrame, dev: CUdevice) -> CallResult {
    let driver = d.initialised_driver()?;
    let device = driver.device_of_ordinal(dev)?;
    let primary = device.state.lock().primary.take();
    primary.map_or(Ok(()), |c| destroy_context(driver, &c))
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset_v2(d: &CallFrame, dev: CUdevice) -> CallResult {
    unsafe { cuDevicePrimaryCtxReset(d, dev) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxGetState(
    d: &CallFrame,
    dev: CUdevice,
    flags: *mut u32,
    active: *mut i32,
) -> CallResult {
    let device = d.initialised_driver()?.device_of_ordinal(dev)?;
    let state = device.state.lock();
    unsafe {
        write_output(flags, state.primary_flags)?;
        write_output(active, i32::from(state.primary.is_some()))
    }
}

pub(crate) unsafe fn cuDevicePrimaryCtxSetFlags(d: &CallFrame, dev: CUdevice, flags: u32) -> CallResult {
    if flags & !0xFF != 0 || flags & 7 == 3 {
        return Err(CUresult::INVALID_VALUE);
    }
    let device = d.initialised_driver()?.device_of_ordinal(dev)?;
    let mut state = device.state.lock();
    state.primary_flags = flags;
    if let Some(c) = &state.primary {
        c.flags.store(flags, Ordering::Relaxed);
    }
    Ok(())
}

pub(crate) unsafe fn cuDevicePrimaryCtxSetFlags_v2(d: &CallFrame, dev: CUdevice, flags: u32) -> CallResult {
    unsafe { cuDevicePrimaryCtxSetFlags(d, dev, flags) }
}

pub(crate) unsafe fn cuCtxGetCurrent(_: &CallFrame, ctx: *mut CUcontext) -> CallResult {
    unsafe { write_output(ctx, stack_top().map_or(CUcontext::NULL, |c| CUcontext(object_handle(&c)))) }
}

pub(crate) unsafe fn cuCtxSetCurrent(d: &CallFrame, ctx: CUcontext) -> CallResult {
    let context = if ctx.is_null() { None } else { Some(known_context(d, ctx)?) };
    with_stack(|s| {
        s.pop();
        s.extend(context);
    });
    Ok(())
}

pub(crate) unsafe fn cuCtxPushCurrent(d: &CallFrame, ctx: CUcontext) -> CallResult {
    let context = known_context(d, ctx)?;
    with_stack(|s| s.push(context));
    Ok(())
}

pub(crate) unsafe fn cuCtxPushCurrent_v2(d: &CallFrame, ctx: CUcontext) -> CallResult {
    unsafe { cuCtxPushCurrent(d, ctx) }
}

pub(crate) unsafe fn cuCtxPopCurrent(_: &CallFrame, ctx: *mut CUcontext) -> CallResult {
    let context = with_stack(Vec::pop).ok_or(CUresult::INVALID_CONTEXT)?;
    unsafe { put_if(ctx, CUcontext(object_handle(&context))) };
    Ok(())
}

pub(crate) unsafe fn cuCtxPopCurrent_v2(d: &CallFrame, ctx: *mut CUcontext) -> CallResult {
    unsafe { cuCtxPopCurrent(d, ctx) }
}

pub(crate) unsafe fn cuCtxGetDevice(d: &CallFrame, dev: *mut CUdevice) -> CallResult {
    unsafe { write_output(dev, d.current_context()?.device) }
}

pub(crate) unsafe fn cuCtxGetFlags(d: &CallFrame, flags: *mut u32) -> CallResult {
    unsafe { write_output(flags, d.current_context()?.flags.load(Ordering::Relaxed)) }
}

pub(crate) unsafe fn cuCtxSetFlags(d: &CallFrame, flags: u32) -> CallResult {
    d.current_context()?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

fn given_or_current(d: &CallFrame, ctx: CUcontext) -> Result<Arc<CudaContext>, CUresult> {
    if ctx.is_null() { d.current_context() } else { known_context(d, ctx) }
}

pub(crate) unsafe fn cuCtxGetId(d: &CallFrame, ctx: CUcontext, id: *mut u64) -> CallResult {
    unsafe { write_output(id, given_or_current(d, ctx)?.number) }
}

pub(crate) unsafe fn cuCtxGetApiVersion(d: &CallFrame, ctx: CUcontext, version: *mut u32) -> CallResult {
    unsafe { write_output(version, given_or_current(d, ctx)?.api) }
}

pub(crate) unsafe fn cuCtxGetCacheConfig(d: &CallFrame, config: *mut u32) -> CallResult {
    unsafe { write_output(config, d.current_context()?.cache.load(Ordering::Relaxed)) }
}

pub(crate) unsafe fn cuCtxSetCacheConfig(d: &CallFrame, config: u32) -> CallResult {
    d.current_context()?.cache.store(config, Ordering::Relaxed);
    Ok(())
}

pub(crate) unsafe fn cuCtxGetSharedMemConfig(d: &CallFrame, config: *mut u32) -> CallResult {
    unsafe { write_output(config, d.current_context()?.banks.load(Ordering::Relaxed)) }
}

pub(crate) unsafe fn cuCtxSetSharedMemConfig(d: &CallFrame, config: u32) -> CallResult {
    d.current_context()?.banks.store(config, Ordering::Relaxed);
    Ok(())
}

pub(crate) unsafe fn cuCtxGetStreamPriorityRange(d: &CallFrame, least: *mut i32, greatest: *mut i32) -> CallResult {
    d.current_context()?;
    unsafe {
        put_if(least, 0);
        put_if(greatest, -5);
    }
    Ok(())
}

pub(crate) unsafe fn cuCtxResetPersistingL2Cache(d: &CallFrame) -> CallResult {
    d.current_context().map(|_| ())
}

pub(crate) unsafe fn cuCtxGetLimit(d: &CallFrame, value: *mut usize, limit: u32) -> CallResult {
    let c = d.current_context()?;
    let l = c.limits.get(limit as usize).filter(|_| limit < 7).ok_or(CUresult(215))?;
    unsafe { write_output(value, usize::try_from(l.load(Ordering::Relaxed)).unwrap_or(usize::MAX)) }
}

/// A stack, heap or buffer above its initial size takes device memory at once, and returns it when it shrinks.
pub(crate) unsafe fn cuCtxSetLimit(d: &CallFrame, limit: u32, value: usize) -> CallResult {
    let (driver, c, value) = (d.initialised_driver()?, d.current_context()?, value as u64);
    let number = limit as usize;
    let l = c.limits.get(number).filter(|_| limit < 7).ok_or(CUresult(215))?;
    let device = driver.device_of_ordinal(c.device)?;
    let p = &device.profile;
    let persisting = device_attribute(p, &device.identity, 108).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    let most = [512 << 10, u64::MAX, u64::MAX, 24, u64::MAX, 128, persisting];
    if value > most[number] {
        return Err(CUresult::INVALID_VALUE);
    }
    let _one = device.state.lock();
    let bytes = |v: u64| limit_bytes(p, number, v).map(signed_bytes).ok_or(CUresult::OUT_OF_MEMORY);
    let overhead = bytes(value)? - bytes(l.load(Ordering::Relaxed))?;
    let change = RecordChange { overhead, ..RecordChange::default() };
    driver.memory.adjust_record(c.device, &change)?;
    l.store(value, Ordering::Relaxed);
    Ok(())
}

pub(crate) unsafe fn cuCtxSynchronize(d: &CallFrame) -> CallResult {
    let c = d.current_context()?;
    let driver = d.initialised_driver()?;
    d.capture_table()?.refuse_context_wait(&c)?;
    driver.device_of_ordinal(c.device)?.engine.group_wait(c.group);
    driver.memory.trim_after_wait();
    Ok(())
}

/// Waits for any context, not only the current one.
pub(crate) unsafe fn cuCtxSynchronize_v2(d: &CallFrame, ctx: CUcontext) -> CallResult {
    let c = given_or_current(d, ctx)?;
    d.capture_table()?.refuse_context_wait(&c)?;
    d.initialised_driver()?.device_of_ordinal(c.device)?.engine.group_wait(c.group);
    Ok(())
}

pub(crate) unsafe fn cuCtxEnablePeerAccess(d: &CallFrame, peer: CUcontext, _flags: u32) -> CallResult {
    d.current_context()?;
    known_context(d, peer)?;
    Err(CUresult(217))
}

pub(crate) unsafe fn cuCtxDisablePeerAccess(d: &CallFrame, peer: CUcontext) -> CallResult {
    d.current_context()?;
    known_context(d, peer)?;
    Err(CUresult(705))
}

pub(crate) unsafe fn cuCtxGetExecAffinity(d: &CallFrame, _affinity: *mut c_void, _kind: u32) -> CallResult {
    d.current_context()?;
    Err(CUresult(224))
}
