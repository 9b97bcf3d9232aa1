//! Devices: number, handles, properties.

use crate::attributes::device_attribute;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use core::ffi::{CStr, c_char};
use shim_sys::cuda::*;

/// The only attribute that depends on the other devices of the machine.
const MULTICAST_SUPPORTED: u32 = 132;

pub(crate) unsafe fn cuDeviceGet(d: &CallFrame, dev: *mut CUdevice, ordinal: i32) -> CallResult {
    d.initialised_driver()?.devices.device_of_ordinal(ordinal)?;
    unsafe { write_output(dev, ordinal) }
}

pub(crate) unsafe fn cuDeviceGetCount(d: &CallFrame, count: *mut i32) -> CallResult {
    let n = i32::try_from(d.initialised_driver()?.devices.all.len()).unwrap_or(0);
    unsafe { write_output(count, n) }
}

unsafe fn text_out(to: *mut c_char, len: i32, text: &str) -> CallResult {
    let room = usize::try_from(len).unwrap_or(0);
    if to.is_null() || room == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let n = text.len().min(room - 1);
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), n);
        to.add(n).write(0);
    }
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetName(d: &CallFrame, name: *mut c_char, len: i32, dev: CUdevice) -> CallResult {
    unsafe { text_out(name, len, d.initialised_driver()?.devices.device_of_ordinal(dev)?.profile.name()) }
}

/// The first version returns the UUID of the whole device, the second that of the MIG instance.
pub(crate) unsafe fn cuDeviceGetUuid(d: &CallFrame, uuid: *mut CUuuid, dev: CUdevice) -> CallResult {
    let bytes = d.initialised_driver()?.devices.device_of_ordinal(dev)?.identity.whole_device().uuid;
    unsafe { write_output(uuid, CUuuid { bytes }) }
}

pub(crate) unsafe fn cuDeviceGetUuid_v2(d: &CallFrame, uuid: *mut CUuuid, dev: CUdevice) -> CallResult {
    let bytes = d.initialised_driver()?.devices.device_of_ordinal(dev)?.identity.uuid;
    unsafe { write_output(uuid, CUuuid { bytes }) }
}

/// Always an error, because only Windows has LUIDs.
pub(crate) unsafe fn cuDeviceGetLuid(d: &CallFrame, _luid: *mut c_char, _mask: *mut u32, dev: CUdevice) -> CallResult {
    d.initialised_driver()?.devices.device_of_ordinal(dev)?;
    Err(CUresult::NOT_SUPPORTED)
}

pub(crate) unsafe fn cuDeviceTotalMem_v2(d: &CallFrame, bytes: *mut usize, dev: CUdevice) -> CallResult {
    let total = d.initialised_driver()?.devices.device_of_ordinal(dev)?.profile.cuda_total;
    unsafe { write_output(bytes, usize::try_from(total).unwrap_or(usize::MAX)) }
}

/// The 32-bit call: a size beyond 32 bits is capped.
pub(crate) unsafe fn cuDeviceTotalMem(d: &CallFrame, bytes: *mut u32, dev: CUdevice) -> CallResult {
    let total = d.initialised_driver()?.devices.device_of_ordinal(dev)?.profile.cuda_total;
    unsafe { write_output(bytes, u32::try_from(total).unwrap_or(u32::MAX)) }
}

pub(crate) unsafe fn cuDeviceGetAttribute(d: &CallFrame, value: *mut i32, attribute: u32, dev: CUdevice) -> CallResult {
    let driver = d.initialised_driver()?;
    let device = driver.devices.device_of_ordinal(dev)?;
    if attribute == MULTICAST_SUPPORTED {
        return unsafe { write_output(value, i32::from(super::multicast::supports_multicast(driver, dev))) };
    }
    let v = device_attribute(&device.profile, &device.identity, attribute).ok_or(CUresult::INVALID_VALUE)?;
    unsafe { write_output(value, v) }
}

pub(crate) unsafe fn cuDeviceComputeCapability(
    d: &CallFrame,
    major: *mut i32,
    minor: *mut i32,
    dev: CUdevice,
) -> CallResult {
    unsafe {
        cuDeviceGetAttribute(d, major, 75, dev)?;
        cuDeviceGetAttribute(d, minor, 76, dev)
    }
}

pub(crate) unsafe fn cuDeviceGetProperties(d: &CallFrame, prop: *mut CUdevprop, dev: CUdevice) -> CallResult {
    let device = d.initialised_driver()?.devices.device_of_ordinal(dev)?;
    let a = |n| device_attribute(&device.profile, &device.identity, n).unwrap_or(0);
    let value = CUdevprop {
        maxThreadsPerBlock: a(1),
        maxThreadsDim: [a(2), a(3), a(4)],
        maxGridSize: [a(5), a(6), a(7)],
        sharedMemPerBlock: a(8),
        totalConstantMemory: a(9),
        SIMDWidth: a(10),
        memPitch: a(11),
        regsPerBlock: a(12),
        clockRate: a(13),
        textureAlign: a(14),
    };
    unsafe { write_output(prop, value) }
}

pub(crate) unsafe fn cuDeviceGetPCIBusId(d: &CallFrame, text: *mut c_char, len: i32, dev: CUdevice) -> CallResult {
    unsafe { text_out(text, len, &d.initialised_driver()?.devices.device_of_ordinal(dev)?.identity.pci_text()) }
}

pub(crate) unsafe fn cuDeviceGetByPCIBusId(d: &CallFrame, dev: *mut CUdevice, text: *const c_char) -> CallResult {
    if text.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let text = unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| CUresult::INVALID_VALUE)?;
    // Format: [domain:]bus:device[.function], hexadecimal.
    let plain = text.split('.').next().unwrap_or_default();
    let mut numbers = Vec::new();
    for part in plain.split(':') {
        numbers.push(u32::from_str_radix(part, 16).map_err(|_| CUresult::INVALID_VALUE)?);
    }
    let wanted = match numbers[..] {
        [bus, device] => (0, bus, device),
        [domain, bus, device] => (domain, bus, device),
        _ => return Err(CUresult::INVALID_VALUE),
    };
    let found = d
        .initialised_driver()?
        .devices
        .all
        .iter()
        .position(|x| (x.identity.domain, x.identity.bus, x.identity.device) == wanted);
    let ordinal = found.and_then(|i| i32::try_from(i).ok()).ok_or(CUresult::INVALID_DEVICE)?;
    unsafe { write_output(dev, ordinal) }
}

/// Devices have no direct access to each other's memory.
pub(crate) unsafe fn cuDeviceCanAccessPeer(d: &CallFrame, can: *mut i32, dev: CUdevice, peer: CUdevice) -> CallResult {
    d.initialised_driver()?.devices.device_of_ordinal(dev)?;
    d.initialised_driver()?.devices.device_of_ordinal(peer)?;
    unsafe { write_output(can, 0) }
}

pub(crate) unsafe fn cuDeviceGetP2PAttribute(
    d: &CallFrame,
    value: *mut i32,
    attribute: u32,
    from: CUdevice,
    to: CUdevice,
) -> CallResult {
    d.initialised_driver()?.devices.device_of_ordinal(from)?;
    d.initialised_driver()?.devices.device_of_ordinal(to)?;
    if from == to {
        return Err(CUresult::INVALID_DEVICE);
    }
    if !(1..=4).contains(&attribute) {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { write_output(value, 0) }
}
