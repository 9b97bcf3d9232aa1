//! Virtual memory management: addresses, physical allocations, mappings, access.
//!
//! A mapping can only be ended as a whole; one call may end several.
//! Not here: the life of an allocation (`content::physical`), its export (`calls::share`).

use crate::content::PHYSICAL_GRANULARITY;
use crate::driver::SimulatedDriver;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use core::ffi::c_void;
use shim_sys::cuda::*;

fn check_granularity(bytes: u64) -> Result<u64, CUresult> {
    if bytes == 0 || !bytes.is_multiple_of(PHYSICAL_GRANULARITY) { Err(CUresult::INVALID_VALUE) } else { Ok(bytes) }
}

/// True if a device promises fabric handles by its attribute, as Hopper and later do.
pub(super) fn promises_fabric(driver: &SimulatedDriver) -> bool {
    driver.devices.all.iter().any(|device| device.profile.cc_major >= 9)
}

/// Only file descriptors are supported as handle types. Fabric handles need a service (IMEX) that this machine does
/// not have, although the devices promise them.
pub(super) fn check_handle_types(driver: &SimulatedDriver, kinds: u32) -> CallResult {
    match kinds {
        0 | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => Ok(()),
        _ if kinds & !15 != 0 => Err(CUresult::INVALID_VALUE),
        _ if kinds & CU_MEM_HANDLE_TYPE_FABRIC != 0 && promises_fabric(driver) => Err(CUresult::NOT_PERMITTED),
        _ => Err(CUresult::NOT_SUPPORTED),
    }
}

/// The device of a location; `None` for the host's types.
fn device_of(d: &CallFrame, location: CUmemLocation) -> Result<Option<i32>, CUresult> {
    match location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => {
            d.initialised_driver()?.device_of_ordinal(location.id).map(|_| Some(location.id))
        }
        CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(None),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

pub(crate) unsafe fn cuMemAddressReserve(
    d: &CallFrame,
    ptr: *mut CUdeviceptr,
    bytes: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
) -> CallResult {
    let align = (alignment as u64).max(PHYSICAL_GRANULARITY);
    if ptr.is_null() || flags != 0 || !align.is_power_of_two() {
        return Err(CUresult::INVALID_VALUE);
    }
    let at = d.initialised_driver()?.memory.reserve(check_granularity(bytes as u64)?, align, addr)?;
    unsafe { write_output(ptr, at) }
}

pub(crate) unsafe fn cuMemAddressFree(d: &CallFrame, ptr: CUdeviceptr, bytes: usize) -> CallResult {
    d.initialised_driver()?.memory.end_reservation(ptr, bytes as u64)
}

pub(crate) unsafe fn cuMemCreate(
    d: &CallFrame,
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> CallResult {
    if handle.is_null() || prop.is_null() || flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let prop = unsafe { prop.read() };
    if prop.kind != 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    check_handle_types(driver, prop.requestedHandleTypes)?;
    let device = device_of(d, prop.location)?;
    let location = (prop.location.kind, prop.location.id);
    let h =
        driver.memory.create_physical(check_granularity(bytes as u64)?, device, location, prop.requestedHandleTypes)?;
    unsafe { write_output(handle, h) }
}

pub(crate) unsafe fn cuMemRelease(d: &CallFrame, handle: CUmemGenericAllocationHandle) -> CallResult {
    let driver = d.initialised_driver()?;
    driver.memory.release(handle)
}

pub(crate) unsafe fn cuMemMap(
    d: &CallFrame,
    dptr: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CallResult {
    if flags != 0 || offset != 0 || !dptr.is_multiple_of(PHYSICAL_GRANULARITY) {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    driver.memory.multicast_wait(handle)?;
    driver.memory.map(dptr, check_granularity(bytes as u64)?, 0, handle)
}

pub(crate) unsafe fn cuMemUnmap(d: &CallFrame, dptr: CUdeviceptr, bytes: usize) -> CallResult {
    let driver = d.initialised_driver()?;
    driver.memory.unmap_range(dptr, check_granularity(bytes as u64)?)
}

pub(crate) unsafe fn cuMemSetAccess(
    d: &CallFrame,
    ptr: CUdeviceptr,
    bytes: usize,
    desc: *const CUmemAccessDesc,
    count: usize,
) -> CallResult {
    if desc.is_null() || count == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let end = ptr.checked_add(check_granularity(bytes as u64)?).ok_or(CUresult::INVALID_VALUE)?;
    for i in 0..count {
        let one = unsafe { desc.add(i).read() };
        device_of(d, one.location)?;
        if ![0, 1, 3].contains(&one.flags) {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut t = d.initialised_driver()?.memory.lock_tables();
        // The range must consist of whole, adjacent mappings.
        let mut at = ptr;
        while at < end {
            at += t.maps.get(&at).filter(|m| m.plain).map(|m| m.len).ok_or(CUresult::INVALID_VALUE)?;
        }
        if at != end {
            return Err(CUresult::INVALID_VALUE);
        }
        for (_, m) in t.maps.range_mut(ptr..end) {
            m.access = one.flags;
        }
    }
    Ok(())
}

pub(crate) unsafe fn cuMemGetAccess(
    d: &CallFrame,
    flags: *mut u64,
    location: *const CUmemLocation,
    ptr: CUdeviceptr,
) -> CallResult {
    if location.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    device_of(d, unsafe { location.read() })?;
    let t = d.initialised_driver()?.memory.lock_tables();
    let m = t.mapping_at(ptr).filter(|(_, m)| m.plain).ok_or(CUresult::INVALID_VALUE)?;
    unsafe { write_output(flags, u64::from(m.1.access)) }
}

pub(crate) unsafe fn cuMemGetAllocationGranularity(
    d: &CallFrame,
    granularity: *mut usize,
    prop: *const CUmemAllocationProp,
    option: u32,
) -> CallResult {
    if prop.is_null() || option > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    device_of(d, unsafe { prop.read() }.location)?;
    unsafe { write_output(granularity, usize::try_from(PHYSICAL_GRANULARITY).unwrap_or(0)) }
}

pub(crate) unsafe fn cuMemGetAllocationPropertiesFromHandle(
    d: &CallFrame,
    prop: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> CallResult {
    let mut t = d.initialised_driver()?.memory.lock_tables();
    let p = t.physical_of_handle(handle)?;
    let value = CUmemAllocationProp {
        kind: 1,
        requestedHandleTypes: p.handle_types,
        location: CUmemLocation { kind: p.location.0, id: p.location.1 },
        win32HandleMetaData: core::ptr::null_mut(),
        allocFlags: CUmemAllocationFlags::default(),
    };
    unsafe { write_output(prop, value) }
}

pub(crate) unsafe fn cuMemRetainAllocationHandle(
    d: &CallFrame,
    handle: *mut CUmemGenericAllocationHandle,
    addr: *mut c_void,
) -> CallResult {
    let mut t = d.initialised_driver()?.memory.lock_tables();
    let at = addr as u64;
    let h = t.mapping_at(at).filter(|(_, m)| m.plain).map(|(_, m)| m.handle).ok_or(CUresult::INVALID_VALUE)?;
    t.physical.get_mut(&h).ok_or(CUresult::INVALID_VALUE)?.handles += 1;
    unsafe { write_output(handle, h) }
}
