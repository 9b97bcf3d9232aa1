//! Memory of `cuMemAlloc` between processes, by legacy handles of 64 bytes.
//!
//! Only memory of `cuMemAlloc` and `cuMemAllocPitch` has such a handle. The memory must be on the context's
//! device: there is no peer access here.
//! Not here: descriptors (`calls::share`), events.

use crate::content::Tag;
use crate::door::{Answer, Door, put};
use shim_sys::cuda::*;

pub(crate) unsafe fn cuIpcGetMemHandle(d: &Door, out: *mut CUipcMemHandle, dptr: CUdeviceptr) -> Answer {
    let c = d.context()?;
    if out.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let reserved = driver.device(c.device)?.engine.still(|| driver.memory.legacy_handle(driver, dptr))?;
    unsafe { put(out, CUipcMemHandle { reserved }) }
}

/// The only flag, lazy peer access, is required.
pub(crate) unsafe fn cuIpcOpenMemHandle(
    d: &Door,
    dptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> Answer {
    let c = d.context()?;
    if dptr.is_null() || flags != 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let at = driver.memory.open_legacy(driver, &handle.reserved, Tag(c.number), c.device)?;
    unsafe { put(dptr, at) }
}

pub(crate) unsafe fn cuIpcOpenMemHandle_v2(
    d: &Door,
    dptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> Answer {
    unsafe { cuIpcOpenMemHandle(d, dptr, handle, flags) }
}

pub(crate) unsafe fn cuIpcCloseMemHandle(d: &Door, dptr: CUdeviceptr) -> Answer {
    let c = d.context()?;
    let driver = d.driver()?;
    // The context's work is finished before its memory is unmapped, as a free does it.
    driver.device(c.device)?.engine.group_wait(c.group);
    driver.memory.close_legacy(driver, dptr)
}
