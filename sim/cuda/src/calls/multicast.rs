//! Multicast: objects for a team of devices, on machines with NVSwitch.
//!
//! A call that needs the whole team waits for it without a limit, as on a real device. The virtual-memory calls
//! map, release and export the objects.
//! Not here: the objects themselves (`content::multicast`).

use crate::content::{GRANULARITY, Part};
use crate::door::{Answer, Door, put};
use crate::driver::Driver;
use shim_sys::cuda::*;

/// True if a device can be in a team: its model has NVSwitch, and the machine has another device.
pub(crate) fn supported(d: &Driver, dev: i32) -> bool {
    let capable = |key: &str| ["h100", "h200"].contains(&key);
    let alone = d.machine.device_count() < 2;
    !alone && d.device(dev).is_ok_and(|x| capable(x.profile.key()) && x.profile.mig == 0)
}

unsafe fn checked(d: &Driver, prop: *const CUmulticastObjectProp) -> Result<CUmulticastObjectProp, CUresult> {
    if prop.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let prop = unsafe { prop.read() };
    let team = usize::try_from(prop.numDevices).unwrap_or(usize::MAX);
    if !(0..).take(d.devices.len()).any(|dev| supported(d, dev)) {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let kinds = u32::try_from(prop.handleTypes).map_err(|_| CUresult::INVALID_VALUE)?;
    super::vmm::check_handle_types(kinds)?;
    if team == 0 || team > d.machine.device_count() || prop.size == 0 || prop.flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(prop)
}

pub(crate) unsafe fn cuMulticastCreate(
    d: &Door,
    multicast: *mut CUmemGenericAllocationHandle,
    prop: *const CUmulticastObjectProp,
) -> Answer {
    let driver = d.driver()?;
    let prop = unsafe { checked(driver, prop)? };
    let bytes = prop.size as u64;
    if multicast.is_null() || !bytes.is_multiple_of(GRANULARITY) {
        return Err(CUresult::INVALID_VALUE);
    }
    let kinds = u32::try_from(prop.handleTypes).unwrap_or(0);
    let h = driver.memory.multicast(driver, prop.numDevices, bytes, kinds)?;
    unsafe { put(multicast, h) }
}

pub(crate) unsafe fn cuMulticastGetGranularity(
    d: &Door,
    granularity: *mut usize,
    prop: *const CUmulticastObjectProp,
    option: u32,
) -> Answer {
    unsafe { checked(d.driver()?, prop)? };
    if option > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { put(granularity, usize::try_from(GRANULARITY).unwrap_or(0)) }
}

pub(crate) unsafe fn cuMulticastAddDevice(d: &Door, multicast: CUmemGenericAllocationHandle, dev: CUdevice) -> Answer {
    let driver = d.driver()?;
    driver.device(dev)?;
    if !supported(driver, dev) {
        return Err(CUresult::NOT_SUPPORTED);
    }
    driver.memory.multicast_add(driver, multicast, dev)
}

pub(crate) unsafe fn cuMulticastBindMem(
    d: &Door,
    multicast: CUmemGenericAllocationHandle,
    offset: usize,
    mem_handle: CUmemGenericAllocationHandle,
    mem_offset: usize,
    size: usize,
    flags: u64,
) -> Answer {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    driver.memory.multicast_wait(driver, multicast)?;
    let part = Part { handle: mem_handle, offset: mem_offset as u64, bytes: size as u64 };
    driver.memory.multicast_bind(driver, multicast, offset as u64, part)
}

/// The memory is a single mapping of the virtual-memory calls at that address.
pub(crate) unsafe fn cuMulticastBindAddr(
    d: &Door,
    multicast: CUmemGenericAllocationHandle,
    offset: usize,
    dptr: CUdeviceptr,
    size: usize,
    flags: u64,
) -> Answer {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    driver.memory.multicast_wait(driver, multicast)?;
    driver.memory.multicast_bind_address(driver, multicast, offset as u64, dptr, size as u64)
}

pub(crate) unsafe fn cuMulticastUnbind(
    d: &Door,
    multicast: CUmemGenericAllocationHandle,
    dev: CUdevice,
    offset: usize,
    size: usize,
) -> Answer {
    let driver = d.driver()?;
    driver.memory.multicast_unbind(driver, multicast, dev, offset as u64, size as u64)
}
