//! The devices that a tenant of the daemon sees: those of its list, numbered from 0 in NVML's order. Others are not
//! found.
//!
//! A partitioned board (MIG) is visible if one of its instances belongs to the tenant, because instances are found
//! through it.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

use crate::device::list::{mig_instances, nvml_uuid};
use crate::device::table;
use crate::driver::calls::nvml_boards;
use crate::member::enforce;
use crate::process::mode::Denied;
use core::ffi::{c_char, c_void};
use shim_sys::nvml::*;
use shim_sys::table::nvml_fn;

/// Whether some devices are hidden from this process.
fn hides_devices() -> Result<bool, Denied> {
    Ok(enforce::is_enforced_for_rare_call()? && table::hides_any())
}

fn is_there(dev: nvmlDevice_t) -> bool {
    let own = |dev| nvml_uuid(dev).is_none_or(|uuid| !table::is_foreign(&uuid));
    own(dev) || mig_instances(dev).into_iter().any(own)
}

/// The visible boards, in NVML's order.
fn visible_boards() -> Vec<nvmlDevice_t> {
    nvml_boards().into_iter().filter(|dev| is_there(*dev)).collect()
}

macro_rules! hiding_or {
    ($real:expr) => {
        match hides_devices() {
            Ok(true) => {}
            Ok(false) => return $real,
            Err(Denied) => return nvmlReturn_t::NO_PERMISSION,
        }
    };
}

fn count_of(count: *mut u32, real: &dyn Fn() -> nvmlReturn_t) -> nvmlReturn_t {
    hiding_or!(real());
    let result = real();
    if result.ok() {
        unsafe { *count = u32::try_from(visible_boards().len()).unwrap_or(u32::MAX) };
    }
    result
}

pub unsafe fn nvmlDeviceGetCount(real: nvml_fn::nvmlDeviceGetCount, count: *mut u32) -> nvmlReturn_t {
    count_of(count, &|| unsafe { real(count) })
}

pub unsafe fn nvmlDeviceGetCount_v2(real: nvml_fn::nvmlDeviceGetCount_v2, count: *mut u32) -> nvmlReturn_t {
    count_of(count, &|| unsafe { real(count) })
}

fn by_index(index: u32, dev: *mut nvmlDevice_t, real: &dyn Fn(u32) -> nvmlReturn_t) -> nvmlReturn_t {
    hiding_or!(real(index));
    match visible_boards().get(index as usize) {
        // Let the driver report the error for an index that is too large, or for a null output.
        None => real(u32::MAX),
        Some(_) if dev.is_null() => real(index),
        Some(found) => {
            unsafe { *dev = *found };
            nvmlReturn_t::SUCCESS
        }
    }
}

pub unsafe fn nvmlDeviceGetHandleByIndex(
    real: nvml_fn::nvmlDeviceGetHandleByIndex,
    index: u32,
    dev: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    by_index(index, dev, &|index| unsafe { real(index, dev) })
}

pub unsafe fn nvmlDeviceGetHandleByIndex_v2(
    real: nvml_fn::nvmlDeviceGetHandleByIndex_v2,
    index: u32,
    dev: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    by_index(index, dev, &|index| unsafe { real(index, dev) })
}

/// Looks up a handle by any other name: a device that is not the tenant's is not found.
fn by_name(dev: *mut nvmlDevice_t, real: &dyn Fn(*mut nvmlDevice_t) -> nvmlReturn_t) -> nvmlReturn_t {
    hiding_or!(real(dev));
    if dev.is_null() {
        return real(dev);
    }
    let mut found = nvmlDevice_t(core::ptr::null_mut());
    let result = real(&raw mut found);
    if result.ok() {
        if !is_there(found) {
            return nvmlReturn_t::NOT_FOUND;
        }
        unsafe { *dev = found };
    }
    result
}

macro_rules! handles {
    ($($name:ident $($arg:ident : $ty:ty),*;)*) => {$(
        pub unsafe fn $name(real: nvml_fn::$name, $($arg: $ty,)* dev: *mut nvmlDevice_t) -> nvmlReturn_t {
            by_name(dev, &|dev| unsafe { real($($arg,)* dev) })
        }
    )*};
}

handles! {
    nvmlDeviceGetHandleByUUID uuid: *const c_char;
    nvmlDeviceGetHandleByUUIDV uuid: *const c_void;
    nvmlDeviceGetHandleByPciBusId text: *const c_char;
    nvmlDeviceGetHandleByPciBusId_v2 text: *const c_char;
    nvmlDeviceGetHandleBySerial text: *const c_char;
    nvmlDeviceGetMigDeviceHandleByIndex board: nvmlDevice_t, index: u32;
}

/// The index under which the device is visible; for an instance, its index on its board.
pub unsafe fn nvmlDeviceGetIndex(
    real: nvml_fn::nvmlDeviceGetIndex,
    dev: nvmlDevice_t,
    index: *mut u32,
) -> nvmlReturn_t {
    hiding_or!(unsafe { real(dev, index) });
    let result = unsafe { real(dev, index) };
    if result.ok() {
        let uuid = nvml_uuid(dev);
        let place = visible_boards().into_iter().position(|board| nvml_uuid(board) == uuid);
        if let Some(place) = place.and_then(|place| u32::try_from(place).ok()) {
            unsafe { *index = place };
        }
    }
    result
}

/// Lists neighbouring devices, without hidden ones.
fn visible_neighbours(
    count: *mut u32,
    devs: *mut nvmlDevice_t,
    real: &dyn Fn(*mut u32, *mut nvmlDevice_t) -> nvmlReturn_t,
) -> nvmlReturn_t {
    hiding_or!(real(count, devs));
    let Some(count) = (unsafe { count.as_mut() }) else { return real(count, devs) };
    let mut all = [nvmlDevice_t(core::ptr::null_mut()); 64];
    let mut found = 64;
    let result = real(&raw mut found, all.as_mut_ptr());
    if !result.ok() {
        return result;
    }
    let there: Vec<nvmlDevice_t> = all.into_iter().take(found as usize).filter(|dev| is_there(*dev)).collect();
    let room = if devs.is_null() { 0 } else { *count as usize };
    for (at, dev) in there.iter().take(room).enumerate() {
        unsafe { *devs.add(at) = *dev };
    }
    *count = u32::try_from(if devs.is_null() { there.len() } else { there.len().min(room) }).unwrap_or(u32::MAX);
    result
}

pub unsafe fn nvmlDeviceGetTopologyNearestGpus(
    real: nvml_fn::nvmlDeviceGetTopologyNearestGpus,
    dev: nvmlDevice_t,
    level: u32,
    count: *mut u32,
    devs: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    visible_neighbours(count, devs, &|count, devs| unsafe { real(dev, level, count, devs) })
}

pub unsafe fn nvmlSystemGetTopologyGpuSet(
    real: nvml_fn::nvmlSystemGetTopologyGpuSet,
    cpu: u32,
    count: *mut u32,
    devs: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    visible_neighbours(count, devs, &|count, devs| unsafe { real(cpu, count, devs) })
}
