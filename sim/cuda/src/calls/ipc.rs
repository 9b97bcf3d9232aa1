//! Memory of `cuMemAlloc` between processes, by legacy handles of 64 bytes.
//!
//! Only memory of `cuMemAlloc` and `cuMemAllocPitch` has such a handle. The memory must be on the context's
//! device: there is no peer access here.
//! Not here: descriptors (`calls::share`), events.

use crate::content::OwnerTag;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use shim_sys::cuda::*;

pub(crate) unsafe fn cuIpcGetMemHandle(d: &CallFrame, out: *mut CUipcMemHandle, dptr: CUdeviceptr) -> CallResult {
    let c = d.current_context()?;
    if out.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let reserved = driver.device_of_ordinal(c.device)?.engine.while_still(|| driver.memory.legacy_handle(dptr))?;
    unsafe { write_output(out, CUipcMemHandle { reserved }) }
}

/// The only flag, lazy peer access, is required.
pub(crate) unsafe fn cuIpcOpenMemHandle(
    d: &CallFrame,
    dptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> CallResult {
    let c = d.current_context()?;
    if dptr.is_null() || flags != 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let at = driver.memory.open_legacy(&handle.reserved, OwnerTag(c.number), c.device)?;
    unsafe { write_output(dptr, at) }
}

pub(crate) unsafe fn cuIpcOpenMemHandle_v2(
    d: &CallFrame,
    dptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> CallResult {
    unsafe { cuIpcOpenMemHandle(d, dptr, handle, flags) }
}

pub(crate) unsafe fn cuIpcCloseMemHandle(d: &CallFrame, dptr: CUdeviceptr) -> CallResult {
    let c = d.current_context()?;
    let driver = d.initialised_driver()?;
    // The context's work is finished before its memory is unmapped, as a free does it.
    driver.device_of_ordinal(c.device)?.engine.group_wait(c.group);
    driver.memory.close_legacy(dptr)
}
