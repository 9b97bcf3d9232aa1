//! NVML: the same view of memory as CUDA's, and the tenant's own processes.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on as they came;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::view::seen;
use crate::device::{self, Device};
use crate::mode::{self, Denied, Mode};
use crate::{boot, enforce, inventory};
use shim_sys::nvml::*;
use shim_sys::table::nvml_fn;

fn init(real: impl FnOnce() -> nvmlReturn_t) -> nvmlReturn_t {
    enforce::settle_child();
    if boot::ask().is_err() || mode::mode() == Mode::Failed {
        return nvmlReturn_t::NO_PERMISSION;
    }
    let result = real();
    if result.ok() && boot::nvml_ready().is_err() {
        // The program was told that NVML is not initialised: it must not stay so for us.
        if let Some(shutdown) = crate::driver::own::nvmlShutdown() {
            let _ = unsafe { shutdown() };
        }
        return nvmlReturn_t::NO_PERMISSION;
    }
    if result.ok() {
        inventory::program_began();
    }
    result
}

pub unsafe fn nvmlInit(real: nvml_fn::nvmlInit) -> nvmlReturn_t {
    init(|| unsafe { real() })
}

pub unsafe fn nvmlInit_v2(real: nvml_fn::nvmlInit_v2) -> nvmlReturn_t {
    init(|| unsafe { real() })
}

pub unsafe fn nvmlInitWithFlags(real: nvml_fn::nvmlInitWithFlags, flags: u32) -> nvmlReturn_t {
    init(|| unsafe { real(flags) })
}

pub unsafe fn nvmlShutdown(real: nvml_fn::nvmlShutdown) -> nvmlReturn_t {
    inventory::program_ends();
    unsafe { real() }
}

/// The device behind a handle, if it has limits that are kept: where use is only measured, all is shown as it is.
fn limited(dev: nvmlDevice_t) -> Result<Option<&'static Device>, Denied> {
    if !enforce::enforced()? {
        return Ok(None);
    }
    let device = inventory::nvml_uuid(dev).and_then(|uuid| device::by_uuid(&uuid));
    Ok(device.filter(|device| !device.observed()))
}

pub unsafe fn nvmlDeviceGetMemoryInfo(
    real: nvml_fn::nvmlDeviceGetMemoryInfo,
    dev: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    let limited = match limited(dev) {
        Ok(limited) => limited,
        Err(Denied) => return nvmlReturn_t::NO_PERMISSION,
    };
    let result = unsafe { real(dev, memory) };
    if result.ok()
        && let Some(device) = limited
    {
        let memory = unsafe { &mut *memory };
        let seen = seen(device, memory.total, memory.free);
        *memory = nvmlMemory_t { total: seen.total.0, free: seen.free.0, used: seen.used.0 };
    }
    result
}

pub unsafe fn nvmlDeviceGetMemoryInfo_v2(
    real: nvml_fn::nvmlDeviceGetMemoryInfo_v2,
    dev: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    let limited = match limited(dev) {
        Ok(limited) => limited,
        Err(Denied) => return nvmlReturn_t::NO_PERMISSION,
    };
    let result = unsafe { real(dev, memory) };
    if result.ok()
        && let Some(device) = limited
    {
        let memory = unsafe { &mut *memory };
        let seen = seen(device, memory.total, memory.free);
        memory.total = seen.total.0;
        memory.free = seen.free.0;
        memory.used = seen.used.0;
        // A limit is all the tenant's: what the driver keeps for itself stands outside it. total = reserved + free +
        // used still holds.
        memory.reserved = 0;
    }
    result
}

/// A process list in one of its layouts.
trait Entry: Copy {
    fn of(pid: u32, bytes: u64) -> Self;
}

impl Entry for nvmlProcessInfo_v1_t {
    fn of(pid: u32, bytes: u64) -> Self {
        Self { pid, usedGpuMemory: bytes }
    }
}

impl Entry for nvmlProcessInfo_t {
    fn of(pid: u32, bytes: u64) -> Self {
        Self { pid, usedGpuMemory: bytes, gpuInstanceId: u32::MAX, computeInstanceId: u32::MAX }
    }
}

/// The tenant's own processes, from the ledger, with NVML's protocol for the size of the buffer.
fn list<E: Entry>(
    dev: nvmlDevice_t,
    count: *mut u32,
    infos: *mut E,
    computing: bool,
    real: impl FnOnce() -> nvmlReturn_t,
) -> nvmlReturn_t {
    let device = match limited(dev) {
        Ok(Some(device)) => device,
        Ok(None) => return real(),
        Err(Denied) => return nvmlReturn_t::NO_PERMISSION,
    };
    let (Some(count), Ok(joined)) = (unsafe { count.as_mut() }, device.ledger.joined()) else {
        return real();
    };
    let own: Vec<E> = if computing {
        joined.members().iter().filter(|m| m.used > 0).map(|m| E::of(m.pid, m.used)).collect()
    } else {
        Vec::new()
    };
    let room = *count as usize;
    *count = u32::try_from(own.len()).unwrap_or(u32::MAX);
    if own.len() > room {
        return nvmlReturn_t::INSUFFICIENT_SIZE;
    }
    if infos.is_null() && !own.is_empty() {
        return nvmlReturn_t::INVALID_ARGUMENT;
    }
    for (at, entry) in own.into_iter().enumerate() {
        unsafe { *infos.add(at) = entry };
    }
    nvmlReturn_t::SUCCESS
}

macro_rules! process_lists {
    ($($name:ident $entry:ident $computing:literal;)*) => {$(
        pub unsafe fn $name(
            real: nvml_fn::$name,
            dev: nvmlDevice_t,
            count: *mut u32,
            infos: *mut $entry,
        ) -> nvmlReturn_t {
            list(dev, count, infos, $computing, || unsafe { real(dev, count, infos) })
        }
    )*};
}

process_lists! {
    nvmlDeviceGetComputeRunningProcesses nvmlProcessInfo_v1_t true;
    nvmlDeviceGetComputeRunningProcesses_v2 nvmlProcessInfo_t true;
    nvmlDeviceGetComputeRunningProcesses_v3 nvmlProcessInfo_t true;
    nvmlDeviceGetGraphicsRunningProcesses nvmlProcessInfo_v1_t false;
    nvmlDeviceGetGraphicsRunningProcesses_v2 nvmlProcessInfo_t false;
    nvmlDeviceGetGraphicsRunningProcesses_v3 nvmlProcessInfo_t false;
    nvmlDeviceGetMPSComputeRunningProcesses nvmlProcessInfo_v1_t false;
    nvmlDeviceGetMPSComputeRunningProcesses_v2 nvmlProcessInfo_t false;
    nvmlDeviceGetMPSComputeRunningProcesses_v3 nvmlProcessInfo_t false;
}

pub unsafe fn nvmlDeviceGetProcessUtilization(
    real: nvml_fn::nvmlDeviceGetProcessUtilization,
    dev: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut u32,
    since: u64,
) -> nvmlReturn_t {
    let device = match limited(dev) {
        Ok(device) => device,
        Err(Denied) => return nvmlReturn_t::NO_PERMISSION,
    };
    let result = unsafe { real(dev, samples, count, since) };
    let (true, Some(device), false) = (result.ok(), device, samples.is_null()) else { return result };
    let Ok(joined) = device.ledger.joined() else { return nvmlReturn_t::NO_PERMISSION };
    let own: Vec<u32> = joined.members().iter().map(|member| member.pid).collect();
    let samples = unsafe { core::slice::from_raw_parts_mut(samples, *count as usize) };
    let mut kept = 0;
    for at in 0..samples.len() {
        if own.contains(&samples[at].pid) {
            samples[kept] = samples[at];
            kept += 1;
        }
    }
    unsafe { *count = u32::try_from(kept).unwrap_or(u32::MAX) };
    if kept == 0 { nvmlReturn_t::NOT_FOUND } else { result }
}
