//! Physical allocations and pools between processes, by file descriptors.
//!
//! A descriptor keeps its memory until its open file is closed everywhere; an import does not close it. Handles
//! other than file descriptors are not supported.
//! Not here: legacy handles (`calls::ipc`).

use crate::content::OwnerTag;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::objects::{PoolHandle, object_of_handle};
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;

fn only_descriptors(kind: u32, flags: u64) -> CallResult {
    match kind {
        _ if flags != 0 => Err(CUresult::INVALID_VALUE),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => Ok(()),
        2 | 4 | CU_MEM_HANDLE_TYPE_FABRIC => Err(CUresult::NOT_SUPPORTED),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

/// A descriptor is passed as a pointer whose address is its value.
fn descriptor_of_handle(os_handle: *mut c_void) -> Result<i32, CUresult> {
    i32::try_from(os_handle as usize).map_err(|_| CUresult::INVALID_VALUE)
}

unsafe fn hand_out(to: *mut c_void, fd: OwnedFd) -> CallResult {
    unsafe { write_output(to.cast::<i32>(), fd.into_raw_fd()) }
}

pub(crate) unsafe fn cuMemExportToShareableHandle(
    d: &CallFrame,
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: u32,
    flags: u64,
) -> CallResult {
    only_descriptors(kind, flags)?;
    if shareable.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let device = driver.memory.lock_tables().physical_of_handle(handle)?.device;
    let export = || driver.memory.export_descriptor(handle, kind);
    let fd = match device {
        Some(dev) => driver.device_of_ordinal(dev)?.engine.while_still(export)?,
        None => export()?,
    };
    unsafe { hand_out(shareable, fd) }
}

pub(crate) unsafe fn cuMemImportFromShareableHandle(
    d: &CallFrame,
    handle: *mut CUmemGenericAllocationHandle,
    os_handle: *mut c_void,
    kind: u32,
) -> CallResult {
    let driver = d.initialised_driver()?;
    if kind == CU_MEM_HANDLE_TYPE_FABRIC && super::vmm::promises_fabric(driver) {
        return Err(CUresult::INVALID_DEVICE);
    }
    only_descriptors(kind, 0)?;
    if handle.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let h = driver.memory.import_descriptor(descriptor_of_handle(os_handle)?)?;
    unsafe { write_output(handle, h) }
}

pub(crate) unsafe fn cuMemPoolExportToShareableHandle(
    d: &CallFrame,
    shareable: *mut c_void,
    pool: CUmemoryPool,
    kind: u32,
    flags: u64,
) -> CallResult {
    only_descriptors(kind, flags)?;
    let driver = d.initialised_driver()?;
    let p = object_of_handle(&driver.pools, pool.0)?;
    if shareable.is_null() || p.imported != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let export = || driver.memory.export_pool(p.number, kind);
    let fd = driver.device_of_ordinal(p.device)?.engine.while_still(export)?;
    unsafe { hand_out(shareable, fd) }
}

/// An imported pool cannot allocate: it only opens blocks that its own process allocated.
pub(crate) unsafe fn cuMemPoolImportFromShareableHandle(
    d: &CallFrame,
    pool: *mut CUmemoryPool,
    os_handle: *mut c_void,
    kind: u32,
    flags: u64,
) -> CallResult {
    only_descriptors(kind, flags)?;
    if pool.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let (imported, device) = driver.memory.import_pool(descriptor_of_handle(os_handle)?)?;
    let handle = driver.pools.add(Arc::new(PoolHandle { device, number: 0, imported }));
    unsafe { write_output(pool, CUmemoryPool(handle)) }
}

pub(crate) unsafe fn cuMemPoolExportPointer(
    d: &CallFrame,
    data: *mut CUmemPoolPtrExportData,
    dptr: CUdeviceptr,
) -> CallResult {
    let driver = d.initialised_driver()?;
    let reserved = driver.memory.pool_pointer(dptr)?;
    unsafe { write_output(data, CUmemPoolPtrExportData { reserved }) }
}

pub(crate) unsafe fn cuMemPoolImportPointer(
    d: &CallFrame,
    dptr: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> CallResult {
    let driver = d.initialised_driver()?;
    let p = object_of_handle(&driver.pools, pool.0)?;
    if dptr.is_null() || data.is_null() || p.imported == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // The imported pointer ends with the context in which it was opened, like an allocation.
    let tag = OwnerTag(d.current_context()?.number);
    let name = unsafe { data.read_unaligned() };
    let at = driver.memory.open_pool_pointer(p.imported, &name.reserved, tag)?;
    unsafe { write_output(dptr, at) }
}
