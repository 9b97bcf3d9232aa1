//! Device memory: allocation, free, amounts.

use super::graph::launch::stream_line;
use crate::content::{AllocationKind, OwnerTag};
use crate::entry_points::{CallFrame, put_if, write_output};
use crate::errors::CallResult;
use crate::host_time::spend_host_time;
use shim_sys::cuda::*;
use std::sync::atomic::Ordering;

fn alloc(d: &CallFrame, bytes: u64) -> Result<CUdeviceptr, CUresult> {
    let c = d.current_context()?;
    let driver = d.initialised_driver()?;
    spend_host_time(driver.device_of_ordinal(c.device)?.profile.memory_host_ns);
    let at = driver.memory.alloc(c.device, bytes, OwnerTag(c.number), AllocationKind::Plain)?;
    // If the context was destroyed meanwhile, its allocations were already freed, so this one must be freed too.
    if !c.alive.load(Ordering::Acquire) {
        driver.memory.free_all(OwnerTag(c.number));
        return Err(CUresult::CONTEXT_IS_DESTROYED);
    }
    Ok(at)
}

pub(crate) unsafe fn cuMemAlloc_v2(d: &CallFrame, dptr: *mut CUdeviceptr, bytes: usize) -> CallResult {
    if dptr.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { write_output(dptr, alloc(d, bytes as u64)?) }
}

/// Rows are padded to a multiple of 512 bytes, as on the real driver.
pub(crate) unsafe fn cuMemAllocPitch_v2(
    d: &CallFrame,
    dptr: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> CallResult {
    if dptr.is_null() || pitch.is_null() || ![4, 8, 16].contains(&element) || width == 0 || height == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(512).ok_or(CUresult::INVALID_VALUE)?;
    let bytes = row.checked_mul(height).ok_or(CUresult::INVALID_VALUE)?;
    unsafe {
        write_output(dptr, alloc(d, bytes as u64)?)?;
        write_output(pitch, row)
    }
}

pub(crate) unsafe fn cuMemFree_v2(d: &CallFrame, dptr: CUdeviceptr) -> CallResult {
    let c = d.current_context()?;
    if dptr == 0 {
        return Ok(());
    }
    let driver = d.initialised_driver()?;
    let device = driver.device_of_ordinal(c.device)?;
    spend_host_time(device.profile.memory_host_ns);
    // The real driver waits for the context's work before it frees.
    device.engine.group_wait(c.group);
    if driver.managed.free(dptr) || driver.memory.unmap_external(dptr) {
        return Ok(());
    }
    if let Some(answer) = d.graph_tables()?.memory.free(driver, dptr, &stream_line(d, CU_STREAM_LEGACY)?) {
        return answer;
    }
    driver.memory.free(dptr, &[AllocationKind::Plain, AllocationKind::Async, AllocationKind::Imported]).map(|_| ())
}

pub(crate) unsafe fn cuMemGetInfo_v2(d: &CallFrame, free: *mut usize, total: *mut usize) -> CallResult {
    let device = d.current_device()?;
    let m = d.initialised_driver()?.devices.machine.device_memory(device.index);
    unsafe {
        put_if(free, usize::try_from(m.free).unwrap_or(usize::MAX));
        put_if(total, usize::try_from(m.cuda_total).unwrap_or(usize::MAX));
    }
    Ok(())
}

/// The 32-bit call: a size beyond 32 bits is capped.
pub(crate) unsafe fn cuMemGetInfo(d: &CallFrame, free: *mut u32, total: *mut u32) -> CallResult {
    let device = d.current_device()?;
    let m = d.initialised_driver()?.devices.machine.device_memory(device.index);
    unsafe {
        put_if(free, u32::try_from(m.free).unwrap_or(u32::MAX));
        put_if(total, u32::try_from(m.cuda_total).unwrap_or(u32::MAX));
    }
    Ok(())
}

pub(crate) unsafe fn cuMemGetAddressRange_v2(
    d: &CallFrame,
    base: *mut CUdeviceptr,
    bytes: *mut usize,
    dptr: CUdeviceptr,
) -> CallResult {
    d.current_context()?;
    let t = d.initialised_driver()?.memory.lock_tables();
    let found = t.live.range(..=dptr).next_back().filter(|(at, a)| dptr < **at + a.len).map(|(at, a)| (*at, a.bytes));
    let found = found.or_else(|| {
        t.maps.range(..=dptr).next_back().filter(|(at, m)| dptr < **at + m.len).map(|(at, m)| (*at, m.len))
    });
    let found = found.or_else(|| {
        t.host.range(..=dptr).next_back().filter(|(at, h)| dptr < **at + h.len).map(|(at, h)| (*at, h.len))
    });
    let found = found.or_else(|| d.initialised_driver().ok()?.managed.find(dptr).map(|(at, r)| (at, r.bytes)));
    let (at, len) = found.ok_or(CUresult::NOT_FOUND)?;
    unsafe {
        put_if(base, at);
        put_if(bytes, usize::try_from(len).unwrap_or(usize::MAX));
    }
    Ok(())
}
