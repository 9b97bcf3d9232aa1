//! Contexts: primary and created ones, the thread's stack, settings.

use crate::attributes::device_attribute;
use crate::context::{Context, create, destroy, limit_bytes, top, with_stack};
use crate::door::{Answer, Door, put, put_if};
use crate::driver::hold;
use crate::objects::handle;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vgpu_sim::memory::{Change, plus};

fn known(d: &Door, ctx: CUcontext) -> Result<Arc<Context>, CUresult> {
    d.driver()?.contexts.get(ctx.0).ok_or(CUresult::INVALID_CONTEXT)
}

unsafe fn make(d: &Door, ctx: *mut CUcontext, flags: u32, dev: CUdevice, api: u32) -> Answer {
    if ctx.is_null() || flags & !0xFF != 0 || flags & 7 == 3 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let device = driver.device(dev)?;
    let context = create(driver, device, &mut hold(&device.state), dev, flags, false, api)?;
    unsafe { put(ctx, CUcontext(handle(&context)))? };
    with_stack(|s| s.push(context));
    Ok(())
}

pub(crate) unsafe fn cuCtxCreate(d: &Door, ctx: *mut CUcontext, flags: u32, dev: CUdevice) -> Answer {
    unsafe { make(d, ctx, flags, dev, 3010) }
}

pub(crate) unsafe fn cuCtxCreate_v2(d: &Door, ctx: *mut CUcontext, flags: u32, dev: CUdevice) -> Answer {
    unsafe { make(d, ctx, flags, dev, 3020) }
}

/// Execution affinity is not simulated, so parameters are refused.
pub(crate) unsafe fn cuCtxCreate_v3(
    d: &Door,
    ctx: *mut CUcontext,
    _params: *mut c_void,
    count: i32,
    flags: u32,
    dev: CUdevice,
) -> Answer {
    if count != 0 {
        return Err(CUresult(224));
    }
    unsafe { make(d, ctx, flags, dev, 3020) }
}

/// Affinity and graphics parameters are refused.
pub(crate) unsafe fn cuCtxCreate_v4(
    d: &Door,
    ctx: *mut CUcontext,
    params: *mut CUctxCreateParams,
    flags: u32,
    dev: CUdevice,
) -> Answer {
    if unsafe { params.as_ref() }.is_some_and(|p| p.numExecAffinityParams != 0 || !p.cigParams.is_null()) {
        return Err(CUresult(224));
    }
    unsafe { make(d, ctx, flags, dev, 3020) }
}

pub(crate) unsafe fn cuCtxDestroy(d: &Door, ctx: CUcontext) -> Answer {
    let context = known(d, ctx)?;
    if context.primary {
        return Err(CUresult::INVALID_CONTEXT);
    }
    with_stack(|s| {
        if s.last().is_some_and(|t| Arc::ptr_eq(t, &context)) {
            s.pop();
        }
    });
    destroy(d.driver()?, &context)
}

pub(crate) unsafe fn cuCtxDestroy_v2(d: &Door, ctx: CUcontext) -> Answer {
    unsafe { cuCtxDestroy(d, ctx) }
}

/// Deprecated reference count of a context; only the current one is allowed.
pub(crate) unsafe fn cuCtxAttach(d: &Door, ctx: *mut CUcontext, flags: u32) -> Answer {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let current = d.context()?;
    unsafe { put(ctx, CUcontext(handle(&current)))? };
    current.users.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Destroys the current context with its last user.
pub(crate) unsafe fn cuCtxDetach(d: &Door, ctx: CUcontext) -> Answer {
    let current = d.context()?;
    if CUcontext(handle(&current)) != ctx || current.primary {
        return Err(CUresult::INVALID_CONTEXT);
    }
    if current.users.fetch_sub(1, Ordering::Relaxed) > 1 {
        return Ok(());
    }
    unsafe { cuCtxDestroy(d, ctx) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxRetain(d: &Door, ctx: *mut CUcontext, dev: CUdevice) -> Answer {
    if ctx.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let device = driver.device(dev)?;
    let mut state = hold(&device.state);
    let context = match &state.primary {
        Some(c) => c.clone(),
        None => {
            let flags = state.primary_flags;
            let c = create(driver, device, &mut state, dev, flags, true, 3020)?;
            state.primary = Some(c.clone());
            c
        }
    };
    state.retained += 1;
    unsafe { put(ctx, CUcontext(handle(&context))) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease(d: &Door, dev: CUdevice) -> Answer {
    let driver = d.driver()?;
    let device = driver.device(dev)?;
    let mut state = hold(&device.state);
    state.retained = state.retained.checked_sub(1).ok_or(CUresult::INVALID_CONTEXT)?;
    if state.retained > 0 {
        return Ok(());
    }
    let primary = state.primary.take();
    drop(state);
    primary.map_or(Ok(()), |c| destroy(driver, &c))
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease_v2(d: &Door, dev: CUdevice) -> Answer {
    unsafe { cuDevicePrimaryCtxRelease(d, dev) }
}

/// Destroys the primary context. Retains stay counted, so each holder may still release; the next retain makes a
/// new context.
pub(crate) unsafe fn cuDevicePrimaryCtxReset(d: &Door, dev: CUdevice) -> Answer {
    let driver = d.driver()?;
    let device = driver.device(dev)?;
    let primary = hold(&device.state).primary.take();
    primary.map_or(Ok(()), |c| destroy(driver, &c))
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset_v2(d: &Door, dev: CUdevice) -> Answer {
    unsafe { cuDevicePrimaryCtxReset(d, dev) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxGetState(d: &Door, dev: CUdevice, flags: *mut u32, active: *mut i32) -> Answer {
    let device = d.driver()?.device(dev)?;
    let state = hold(&device.state);
    unsafe {
        put(flags, state.primary_flags)?;
        put(active, i32::from(state.primary.is_some()))
    }
}

pub(crate) unsafe fn cuDevicePrimaryCtxSetFlags(d: &Door, dev: CUdevice, flags: u32) -> Answer {
    if flags & !0xFF != 0 || flags & 7 == 3 {
        return Err(CUresult::INVALID_VALUE);
    }
    let device = d.driver()?.device(dev)?;
    let mut state = hold(&device.state);
    state.primary_flags = flags;
    if let Some(c) = &state.primary {
        c.flags.store(flags, Ordering::Relaxed);
    }
    Ok(())
}

pub(crate) unsafe fn cuDevicePrimaryCtxSetFlags_v2(d: &Door, dev: CUdevice, flags: u32) -> Answer {
    unsafe { cuDevicePrimaryCtxSetFlags(d, dev, flags) }
}

pub(crate) unsafe fn cuCtxGetCurrent(_: &Door, ctx: *mut CUcontext) -> Answer {
    unsafe { put(ctx, top().map_or(CUcontext::NULL, |c| CUcontext(handle(&c)))) }
}

pub(crate) unsafe fn cuCtxSetCurrent(d: &Door, ctx: CUcontext) -> Answer {
    let context = if ctx.is_null() { None } else { Some(known(d, ctx)?) };
    with_stack(|s| {
        s.pop();
        s.extend(context);
    });
    Ok(())
}

pub(crate) unsafe fn cuCtxPushCurrent(d: &Door, ctx: CUcontext) -> Answer {
    let context = known(d, ctx)?;
    with_stack(|s| s.push(context));
    Ok(())
}

pub(crate) unsafe fn cuCtxPushCurrent_v2(d: &Door, ctx: CUcontext) -> Answer {
    unsafe { cuCtxPushCurrent(d, ctx) }
}

pub(crate) unsafe fn cuCtxPopCurrent(_: &Door, ctx: *mut CUcontext) -> Answer {
    let context = with_stack(Vec::pop).ok_or(CUresult::INVALID_CONTEXT)?;
    unsafe { put_if(ctx, CUcontext(handle(&context))) };
    Ok(())
}

pub(crate) unsafe fn cuCtxPopCurrent_v2(d: &Door, ctx: *mut CUcontext) -> Answer {
    unsafe { cuCtxPopCurrent(d, ctx) }
}

pub(crate) unsafe fn cuCtxGetDevice(d: &Door, dev: *mut CUdevice) -> Answer {
    unsafe { put(dev, d.context()?.device) }
}

pub(crate) unsafe fn cuCtxGetFlags(d: &Door, flags: *mut u32) -> Answer {
    unsafe { put(flags, d.context()?.flags.load(Ordering::Relaxed)) }
}

pub(crate) unsafe fn cuCtxSetFlags(d: &Door, flags: u32) -> Answer {
    d.context()?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

fn given_or_current(d: &Door, ctx: CUcontext) -> Result<Arc<Context>, CUresult> {
    if ctx.is_null() { d.context() } else { known(d, ctx) }
}

pub(crate) unsafe fn cuCtxGetId(d: &Door, ctx: CUcontext, id: *mut u64) -> Answer {
    unsafe { put(id, given_or_current(d, ctx)?.number) }
}

pub(crate) unsafe fn cuCtxGetApiVersion(d: &Door, ctx: CUcontext, version: *mut u32) -> Answer {
    unsafe { put(version, given_or_current(d, ctx)?.api) }
}

pub(crate) unsafe fn cuCtxGetCacheConfig(d: &Door, config: *mut u32) -> Answer {
    unsafe { put(config, d.context()?.cache.load(Ordering::Relaxed)) }
}

pub(crate) unsafe fn cuCtxSetCacheConfig(d: &Door, config: u32) -> Answer {
    d.context()?.cache.store(config, Ordering::Relaxed);
    Ok(())
}

pub(crate) unsafe fn cuCtxGetSharedMemConfig(d: &Door, config: *mut u32) -> Answer {
    unsafe { put(config, d.context()?.banks.load(Ordering::Relaxed)) }
}

pub(crate) unsafe fn cuCtxSetSharedMemConfig(d: &Door, config: u32) -> Answer {
    d.context()?.banks.store(config, Ordering::Relaxed);
    Ok(())
}

pub(crate) unsafe fn cuCtxGetStreamPriorityRange(d: &Door, least: *mut i32, greatest: *mut i32) -> Answer {
    d.context()?;
    unsafe {
        put_if(least, 0);
        put_if(greatest, -5);
    }
    Ok(())
}

pub(crate) unsafe fn cuCtxResetPersistingL2Cache(d: &Door) -> Answer {
    d.context().map(|_| ())
}

pub(crate) unsafe fn cuCtxGetLimit(d: &Door, value: *mut usize, limit: u32) -> Answer {
    let c = d.context()?;
    let l = c.limits.get(limit as usize).filter(|_| limit < 7).ok_or(CUresult(215))?;
    unsafe { put(value, usize::try_from(l.load(Ordering::Relaxed)).unwrap_or(usize::MAX)) }
}

/// A stack, heap or buffer above its initial size takes device memory at once, and returns it when it shrinks.
pub(crate) unsafe fn cuCtxSetLimit(d: &Door, limit: u32, value: usize) -> Answer {
    let (driver, c, value) = (d.driver()?, d.context()?, value as u64);
    let number = limit as usize;
    let l = c.limits.get(number).filter(|_| limit < 7).ok_or(CUresult(215))?;
    let device = driver.device(c.device)?;
    let p = &device.profile;
    let persisting = device_attribute(p, &device.identity, 108).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    let most = [512 << 10, u64::MAX, u64::MAX, 24, u64::MAX, 128, persisting];
    if value > most[number] {
        return Err(CUresult::INVALID_VALUE);
    }
    let _one = hold(&device.state);
    let bytes = |v: u64| limit_bytes(p, number, v).map(plus).ok_or(CUresult::OUT_OF_MEMORY);
    let overhead = bytes(value)? - bytes(l.load(Ordering::Relaxed))?;
    let change = Change { overhead, ..Change::default() };
    driver.memory.adjust(driver, c.device, &change)?;
    l.store(value, Ordering::Relaxed);
    Ok(())
}

pub(crate) unsafe fn cuCtxSynchronize(d: &Door) -> Answer {
    let c = d.context()?;
    let driver = d.driver()?;
    driver.captures.encompass(&c)?;
    driver.device(c.device)?.engine.group_wait(c.group);
    driver.memory.synchronised(driver);
    Ok(())
}

/// Waits for any context, not only the current one.
pub(crate) unsafe fn cuCtxSynchronize_v2(d: &Door, ctx: CUcontext) -> Answer {
    let c = given_or_current(d, ctx)?;
    d.driver()?.captures.encompass(&c)?;
    d.driver()?.device(c.device)?.engine.group_wait(c.group);
    Ok(())
}

pub(crate) unsafe fn cuCtxEnablePeerAccess(d: &Door, peer: CUcontext, _flags: u32) -> Answer {
    d.context()?;
    known(d, peer)?;
    Err(CUresult(217))
}

pub(crate) unsafe fn cuCtxDisablePeerAccess(d: &Door, peer: CUcontext) -> Answer {
    d.context()?;
    known(d, peer)?;
    Err(CUresult(705))
}

pub(crate) unsafe fn cuCtxGetExecAffinity(d: &Door, _affinity: *mut c_void, _kind: u32) -> Answer {
    d.context()?;
    Err(CUresult(224))
}
