//! Host memory that the driver knows, allocated or registered. Ordinary pages; the device address equals the host
//! address.

use crate::content::{HostRange, Tag};
use crate::door::{Answer, Door, put};
use core::ffi::c_void;
use shim_sys::cuda::*;

const PAGE: usize = 4096;

unsafe fn alloc(d: &Door, host: *mut *mut c_void, bytes: usize, flags: u32) -> Answer {
    if host.is_null() || bytes == 0 || flags & !7 != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let c = d.context()?;
    let len = bytes.checked_next_multiple_of(PAGE).ok_or(CUresult::OUT_OF_MEMORY)?;
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
    let range = HostRange { len: bytes as u64, flags, registered: false, tag: Tag(c.number) };
    d.driver()?.memory.tables().host.insert(p as u64, range);
    unsafe { put(host, p) }
}

pub(crate) unsafe fn cuMemAllocHost(d: &Door, host: *mut *mut c_void, bytes: usize) -> Answer {
    unsafe { alloc(d, host, bytes, 0) }
}

pub(crate) unsafe fn cuMemAllocHost_v2(d: &Door, host: *mut *mut c_void, bytes: usize) -> Answer {
    unsafe { alloc(d, host, bytes, 0) }
}

pub(crate) unsafe fn cuMemHostAlloc(d: &Door, host: *mut *mut c_void, bytes: usize, flags: u32) -> Answer {
    unsafe { alloc(d, host, bytes, flags) }
}

pub(crate) unsafe fn cuMemFreeHost(d: &Door, host: *mut c_void) -> Answer {
    d.context()?;
    if host.is_null() {
        return Ok(());
    }
    let mut t = d.driver()?.memory.tables();
    let range = t.host.get(&(host as u64)).copied().filter(|h| !h.registered).ok_or(CUresult::INVALID_VALUE)?;
    t.host.remove(&(host as u64));
    let len = usize::try_from(range.len).unwrap_or(0).next_multiple_of(PAGE);
    unsafe { libc::munmap(host, len) };
    Ok(())
}

pub(crate) unsafe fn cuMemHostRegister(d: &Door, host: *mut c_void, bytes: usize, flags: u32) -> Answer {
    let c = d.context()?;
    if host.is_null() || bytes == 0 || flags & !15 != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let at = host as u64;
    let mut t = d.driver()?.memory.tables();
    if t.host.range(..at + bytes as u64).next_back().is_some_and(|(k, h)| k + h.len > at) {
        return Err(CUresult::HOST_MEMORY_ALREADY_REGISTERED);
    }
    t.host.insert(at, HostRange { len: bytes as u64, flags, registered: true, tag: Tag(c.number) });
    Ok(())
}

pub(crate) unsafe fn cuMemHostRegister_v2(d: &Door, host: *mut c_void, bytes: usize, flags: u32) -> Answer {
    unsafe { cuMemHostRegister(d, host, bytes, flags) }
}

pub(crate) unsafe fn cuMemHostUnregister(d: &Door, host: *mut c_void) -> Answer {
    d.context()?;
    let mut t = d.driver()?.memory.tables();
    if !t.host.get(&(host as u64)).is_some_and(|h| h.registered) {
        return Err(CUresult::HOST_MEMORY_NOT_REGISTERED);
    }
    t.host.remove(&(host as u64));
    Ok(())
}

fn range_of(d: &Door, host: *mut c_void) -> Result<HostRange, CUresult> {
    let at = host as u64;
    let t = d.driver()?.memory.tables();
    let found = t.host.range(..=at).next_back().filter(|(k, h)| at < **k + h.len).map(|(_, h)| *h);
    found.ok_or(CUresult::INVALID_VALUE)
}

pub(crate) unsafe fn cuMemHostGetDevicePointer_v2(
    d: &Door,
    dptr: *mut CUdeviceptr,
    host: *mut c_void,
    flags: u32,
) -> Answer {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    range_of(d, host)?;
    unsafe { put(dptr, host as u64) }
}

pub(crate) unsafe fn cuMemHostGetFlags(d: &Door, flags: *mut u32, host: *mut c_void) -> Answer {
    let range = range_of(d, host)?;
    // Under unified addressing all host memory is portable and mapped.
    unsafe { put(flags, range.flags | 3) }
}
