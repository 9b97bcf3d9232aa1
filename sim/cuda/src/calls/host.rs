//! Host memory that the driver knows, allocated or registered. Ordinary pages; the device address equals the host
//! address.

use crate::content::{HostRange, OwnerTag};
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use core::ffi::c_void;
use shim_sys::cuda::*;

const HOST_PAGE_BYTES: usize = 4096;

unsafe fn alloc(d: &CallFrame, host: *mut *mut c_void, bytes: usize, flags: u32) -> CallResult {
    if host.is_null() || bytes == 0 || flags & !7 != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let c = d.current_context()?;
    let len = bytes.checked_next_multiple_of(HOST_PAGE_BYTES).ok_or(CUresult::OUT_OF_MEMORY)?;
    let p = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let range = HostRange { len: bytes as u64, flags, registered: false, tag: OwnerTag(c.number) };
    d.initialised_driver()?.memory.lock_tables().host.insert(p as u64, range);
    unsafe { write_output(host, p) }
}

pub(crate) unsafe fn cuMemAllocHost(d: &CallFrame, host: *mut *mut c_void, bytes: usize) -> CallResult {
    unsafe { alloc(d, host, bytes, 0) }
}

pub(crate) unsafe fn cuMemAllocHost_v2(d: &CallFrame, host: *mut *mut c_void, bytes: usize) -> CallResult {
    unsafe { alloc(d, host, bytes, 0) }
}

pub(crate) unsafe fn cuMemHostAlloc(d: &CallFrame, host: *mut *mut c_void, bytes: usize, flags: u32) -> CallResult {
    unsafe { alloc(d, host, bytes, flags) }
}

pub(crate) unsafe fn cuMemFreeHost(d: &CallFrame, host: *mut c_void) -> CallResult {
    d.current_context()?;
    if host.is_null() {
        return Ok(());
    }
    let mut t = d.initialised_driver()?.memory.lock_tables();
    let range = t.host.get(&(host as u64)).copied().filter(|h| !h.registered).ok_or(CUresult::INVALID_VALUE)?;
    t.host.remove(&(host as u64));
    let len = usize::try_from(range.len).unwrap_or(0).next_multiple_of(HOST_PAGE_BYTES);
    unsafe { libc::munmap(host, len) };
    Ok(())
}

pub(crate) unsafe fn cuMemHostRegister(d: &CallFrame, host: *mut c_void, bytes: usize, flags: u32) -> CallResult {
    let c = d.current_context()?;
    if host.is_null() || bytes == 0 || flags & !15 != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let at = host as u64;
    let mut t = d.initialised_driver()?.memory.lock_tables();
    if t.host.range(..at + bytes as u64).next_back().is_some_and(|(k, h)| k + h.len > at) {
        return Err(CUresult::HOST_MEMORY_ALREADY_REGISTERED);
    }
    t.host.insert(at, HostRange { len: bytes as u64, flags, registered: true, tag: OwnerTag(c.number) });
    Ok(())
}

pub(crate) unsafe fn cuMemHostRegister_v2(d: &CallFrame, host: *mut c_void, bytes: usize, flags: u32) -> CallResult {
    unsafe { cuMemHostRegister(d, host, bytes, flags) }
}

pub(crate) unsafe fn cuMemHostUnregister(d: &CallFrame, host: *mut c_void) -> CallResult {
    d.current_context()?;
    let mut t = d.initialised_driver()?.memory.lock_tables();
    if !t.host.get(&(host as u64)).is_some_and(|h| h.registered) {
        return Err(CUresult::HOST_MEMORY_NOT_REGISTERED);
    }
    t.host.remove(&(host as u64));
    Ok(())
}

fn range_of(d: &CallFrame, host: *mut c_void) -> Result<HostRange, CUresult> {
    let at = host as u64;
    let t = d.initialised_driver()?.memory.lock_tables();
    let found = t.host.range(..=at).next_back().filter(|(k, h)| at < **k + h.len).map(|(_, h)| *h);
    found.ok_or(CUresult::INVALID_VALUE)
}

pub(crate) unsafe fn cuMemHostGetDevicePointer_v2(
    d: &CallFrame,
    dptr: *mut CUdeviceptr,
    host: *mut c_void,
    flags: u32,
) -> CallResult {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    range_of(d, host)?;
    unsafe { write_output(dptr, host as u64) }
}

pub(crate) unsafe fn cuMemHostGetFlags(d: &CallFrame, flags: *mut u32, host: *mut c_void) -> CallResult {
    let range = range_of(d, host)?;
    // Under unified addressing all host memory is portable and mapped.
    unsafe { write_output(flags, range.flags | 3) }
}
