//! Physical allocations and pools between processes, by file descriptors.
//!
//! A descriptor keeps its memory until its open file is closed everywhere; an import does not close it. Handles
//! other than file descriptors are not supported.
//! Not here: legacy handles (`calls::ipc`).

use crate::content::Tag;
use crate::door::{Answer, Door, put};
use crate::objects::{Pool, known};
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;

fn only_descriptors(kind: u32, flags: u64) -> Answer {
    match kind {
        _ if flags != 0 => Err(CUresult::INVALID_VALUE),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => Ok(()),
        2 | 4 | CU_MEM_HANDLE_TYPE_FABRIC => Err(CUresult::NOT_SUPPORTED),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

/// A descriptor is passed as a pointer whose address is its value.
fn descriptor(os_handle: *mut c_void) -> Result<i32, CUresult> {
    i32::try_from(os_handle as usize).map_err(|_| CUresult::INVALID_VALUE)
}

unsafe fn hand_out(to: *mut c_void, fd: OwnedFd) -> Answer {
    unsafe { put(to.cast::<i32>(), fd.into_raw_fd()) }
}

pub(crate) unsafe fn cuMemExportToShareableHandle(
    d: &Door,
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: u32,
    flags: u64,
) -> Answer {
    only_descriptors(kind, flags)?;
    if shareable.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let device = driver.memory.tables().handle(handle)?.device;
    let export = || driver.memory.export(driver, handle, kind);
    let fd = match device {
        Some(dev) => driver.device(dev)?.engine.still(export)?,
        None => export()?,
    };
    unsafe { hand_out(shareable, fd) }
}

pub(crate) unsafe fn cuMemImportFromShareableHandle(
    d: &Door,
    handle: *mut CUmemGenericAllocationHandle,
    os_handle: *mut c_void,
    kind: u32,
) -> Answer {
    only_descriptors(kind, 0)?;
    if handle.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let h = driver.memory.import(driver, descriptor(os_handle)?)?;
    unsafe { put(handle, h) }
}

pub(crate) unsafe fn cuMemPoolExportToShareableHandle(
    d: &Door,
    shareable: *mut c_void,
    pool: CUmemoryPool,
    kind: u32,
    flags: u64,
) -> Answer {
    only_descriptors(kind, flags)?;
    let driver = d.driver()?;
    let p = known(&driver.pools, pool.0)?;
    if shareable.is_null() || p.imported != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let export = || driver.memory.export_pool(driver, p.number, kind);
    let fd = driver.device(p.device)?.engine.still(export)?;
    unsafe { hand_out(shareable, fd) }
}

/// An imported pool cannot allocate: it only opens blocks that its own process allocated.
pub(crate) unsafe fn cuMemPoolImportFromShareableHandle(
    d: &Door,
    pool: *mut CUmemoryPool,
    os_handle: *mut c_void,
    kind: u32,
    flags: u64,
) -> Answer {
    only_descriptors(kind, flags)?;
    if pool.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let (imported, device) = driver.memory.import_pool(driver, descriptor(os_handle)?)?;
    let handle = driver.pools.add(Arc::new(Pool { device, number: 0, imported }));
    unsafe { put(pool, CUmemoryPool(handle)) }
}

pub(crate) unsafe fn cuMemPoolExportPointer(d: &Door, data: *mut CUmemPoolPtrExportData, dptr: CUdeviceptr) -> Answer {
    let driver = d.driver()?;
    let reserved = driver.memory.pool_pointer(driver, dptr)?;
    unsafe { put(data, CUmemPoolPtrExportData { reserved }) }
}

pub(crate) unsafe fn cuMemPoolImportPointer(
    d: &Door,
    dptr: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> Answer {
    let driver = d.driver()?;
    let p = known(&driver.pools, pool.0)?;
    if dptr.is_null() || data.is_null() || p.imported == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // The imported pointer ends with the context in which it was opened, like an allocation.
    let tag = Tag(d.context()?.number);
    let name = unsafe { data.read_unaligned() };
    let at = driver.memory.open_pool_pointer(driver, p.imported, &name.reserved, tag)?;
    unsafe { put(dptr, at) }
}
