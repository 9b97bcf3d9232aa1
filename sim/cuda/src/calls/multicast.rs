//! Multicast: objects for a team of devices, on machines with NVSwitch.
//!
//! A call that needs the whole team waits for it without a limit, as on a real device. The virtual-memory calls
//! map, release and export the objects.
//! Not here: the objects themselves (`content::multicast`).

use crate::content::{PHYSICAL_GRANULARITY, PhysicalPart};
use crate::driver::SimulatedDriver;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use shim_sys::cuda::*;

/// True if a device can be in a team: its model has NVSwitch, and the machine has another device.
pub(crate) fn supports_multicast(d: &SimulatedDriver, dev: i32) -> bool {
    let capable = |key: &str| ["h100", "h200"].contains(&key);
    let alone = d.devices.machine.device_count() < 2;
    !alone && d.device_of_ordinal(dev).is_ok_and(|x| capable(x.profile.profile_key()) && x.profile.mig == 0)
}

unsafe fn check_properties(
    d: &SimulatedDriver,
    prop: *const CUmulticastObjectProp,
) -> Result<CUmulticastObjectProp, CUresult> {
    if prop.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let prop = unsafe { prop.read() };
    let team = usize::try_from(prop.numDevices).unwrap_or(usize::MAX);
    if !(0..).take(d.devices.all.len()).any(|dev| supports_multicast(d, dev)) {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let kinds = u32::try_from(prop.handleTypes).map_err(|_| CUresult::INVALID_VALUE)?;
    super::vmm::check_handle_types(d, kinds)?;
    if team == 0 || team > d.devices.machine.device_count() || prop.size == 0 || prop.flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(prop)
}

pub(crate) unsafe fn cuMulticastCreate(
    d: &CallFrame,
    multicast: *mut CUmemGenericAllocationHandle,
    prop: *const CUmulticastObjectProp,
) -> CallResult {
    let driver = d.initialised_driver()?;
    let prop = unsafe { check_properties(driver, prop)? };
    let bytes = prop.size as u64;
    if multicast.is_null() || !bytes.is_multiple_of(PHYSICAL_GRANULARITY) {
        return Err(CUresult::INVALID_VALUE);
    }
    let kinds = u32::try_from(prop.handleTypes).unwrap_or(0);
    let h = driver.memory.make_multicast(prop.numDevices, bytes, kinds)?;
    unsafe { write_output(multicast, h) }
}

pub(crate) unsafe fn cuMulticastGetGranularity(
    d: &CallFrame,
    granularity: *mut usize,
    prop: *const CUmulticastObjectProp,
    option: u32,
) -> CallResult {
    unsafe { check_properties(d.initialised_driver()?, prop)? };
    if option > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { write_output(granularity, usize::try_from(PHYSICAL_GRANULARITY).unwrap_or(0)) }
}

pub(crate) unsafe fn cuMulticastAddDevice(
    d: &CallFrame,
    multicast: CUmemGenericAllocationHandle,
    dev: CUdevice,
) -> CallResult {
    let driver = d.initialised_driver()?;
    driver.device_of_ordinal(dev)?;
    if !supports_multicast(driver, dev) {
        return Err(CUresult::NOT_SUPPORTED);
    }
    driver.memory.multicast_add(multicast, dev)
}

pub(crate) unsafe fn cuMulticastBindMem(
    d: &CallFrame,
    multicast: CUmemGenericAllocationHandle,
    offset: usize,
    mem_handle: CUmemGenericAllocationHandle,
    mem_offset: usize,
    size: usize,
    flags: u64,
) -> CallResult {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    driver.memory.multicast_wait(multicast)?;
    let part = PhysicalPart { handle: mem_handle, offset: mem_offset as u64, bytes: size as u64 };
    driver.memory.multicast_bind(multicast, offset as u64, part)
}

/// The memory is a single mapping of the virtual-memory calls at that address.
pub(crate) unsafe fn cuMulticastBindAddr(
    d: &CallFrame,
    multicast: CUmemGenericAllocationHandle,
    offset: usize,
    dptr: CUdeviceptr,
    size: usize,
    flags: u64,
) -> CallResult {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    driver.memory.multicast_wait(multicast)?;
    driver.memory.multicast_bind_address(multicast, offset as u64, dptr, size as u64)
}

pub(crate) unsafe fn cuMulticastUnbind(
    d: &CallFrame,
    multicast: CUmemGenericAllocationHandle,
    dev: CUdevice,
    offset: usize,
    size: usize,
) -> CallResult {
    let driver = d.initialised_driver()?;
    driver.memory.multicast_unbind(multicast, dev, offset as u64, size as u64)
}
