//! Utilisation as a tenant sees it: the part of the device's time that its own processes used, as measured (`usage`).
//! Where device time is not measured, NVML's samples of the tenant's own processes.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::memory::view_of;
use super::{limited_or, put_list, visible_members};
use crate::device::table::Device;
use crate::device::usage::{self, since_1970, to_percent};
use crate::driver::calls::nvml_samples;
use shim_sys::nvml::*;
use shim_sys::table::nvml_fn;

/// Age in us up to which NVML's samples count as current.
const SAMPLE_WINDOW_US: u64 = 1_000_000;
/// Kind of samples: device use, replaced by the tenant's.
const GPU_SAMPLES: u32 = 1;
/// Kind of samples: memory use, replaced by the tenant's.
const MEMORY_SAMPLES: u32 = 2;
/// Kinds of samples of video engines: not supported. All other kinds (power, clocks) are the device's own.
const VIDEO_SAMPLES: [u32; 4] = [3, 4, 8, 9];

/// The recent use of the device by the tenant's processes.
fn recent_samples(device: &Device, dev: nvmlDevice_t, since: u64) -> Vec<nvmlProcessUtilizationSample_t> {
    let Some(usage) = usage::usage_of(device) else { return driver_samples(device, dev, since) };
    let total = view_of(device, dev).map_or(u64::MAX, |view| view.total.0);
    let now = since_1970();
    let used = usage.shares.iter().filter(|share| share.busy_ns > 0 && now > since);
    used.map(|share| nvmlProcessUtilizationSample_t {
        pid: share.pid,
        timeStamp: now,
        smUtil: to_percent(share.busy_ns, usage.span_ns),
        memUtil: to_percent(share.used, total),
        ..Default::default()
    })
    .collect()
}

/// NVML's samples, of the tenant's processes only.
fn driver_samples(device: &Device, dev: nvmlDevice_t, since: u64) -> Vec<nvmlProcessUtilizationSample_t> {
    let mut all = nvml_samples(dev, since);
    if all.is_empty() {
        return all;
    }
    let own = visible_members(device);
    all.retain(|sample| own.iter().any(|member| member.pid == sample.pid));
    all
}

/// Percent of the device's recent time that the tenant used.
fn gpu_percent(device: &Device, dev: nvmlDevice_t) -> u32 {
    match usage::usage_of(device) {
        Some(usage) => to_percent(usage.shares.iter().map(|share| share.busy_ns).sum(), usage.span_ns),
        None => {
            let since = since_1970().saturating_sub(SAMPLE_WINDOW_US);
            driver_samples(device, dev, since).iter().map(|sample| sample.smUtil).sum::<u32>().min(100)
        }
    }
}

/// Percent of its memory that the tenant uses.
fn memory_percent(device: &Device, dev: nvmlDevice_t) -> u32 {
    let used = device.ledger.tenant_used().unwrap_or(0);
    view_of(device, dev).map_or(0, |view| to_percent(used, view.total.0))
}

pub unsafe fn nvmlDeviceGetUtilizationRates(
    real: nvml_fn::nvmlDeviceGetUtilizationRates,
    dev: nvmlDevice_t,
    rates: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    let device = limited_or!(dev, unsafe { real(dev, rates) });
    let result = unsafe { real(dev, rates) };
    if result.ok() {
        unsafe { *rates = nvmlUtilization_t { gpu: gpu_percent(device, dev), memory: memory_percent(device, dev) } };
    }
    result
}

/// Returns the driver's own timestamps, each with the tenant's current value.
pub unsafe fn nvmlDeviceGetSamples(
    real: nvml_fn::nvmlDeviceGetSamples,
    dev: nvmlDevice_t,
    kind: u32,
    since: u64,
    value_type: *mut u32,
    count: *mut u32,
    samples: *mut nvmlSample_t,
) -> nvmlReturn_t {
    let device = limited_or!(dev, unsafe { real(dev, kind, since, value_type, count, samples) });
    if VIDEO_SAMPLES.contains(&kind) {
        return nvmlReturn_t::NOT_SUPPORTED;
    }
    let result = unsafe { real(dev, kind, since, value_type, count, samples) };
    if !result.ok() || samples.is_null() || (kind != GPU_SAMPLES && kind != MEMORY_SAMPLES) {
        return result;
    }
    let percent = if kind == GPU_SAMPLES { gpu_percent(device, dev) } else { memory_percent(device, dev) };
    unsafe { *value_type = 1 }; // unsigned int
    for at in 0..unsafe { *count } as usize {
        unsafe { (*samples.add(at)).sampleValue = nvmlValue_t { ullVal: u64::from(percent) } };
    }
    result
}

pub unsafe fn nvmlDeviceGetProcessUtilization(
    real: nvml_fn::nvmlDeviceGetProcessUtilization,
    dev: nvmlDevice_t,
    at: *mut nvmlProcessUtilizationSample_t,
    count: *mut u32,
    since: u64,
) -> nvmlReturn_t {
    let device = limited_or!(dev, unsafe { real(dev, at, count, since) });
    let Some(count) = (unsafe { count.as_mut() }) else { return nvmlReturn_t::INVALID_ARGUMENT };
    let own = recent_samples(device, dev, since);
    if own.is_empty() {
        *count = 0;
        return nvmlReturn_t::NOT_FOUND;
    }
    if at.is_null() {
        *count = 0;
    }
    put_list(count, at, &own)
}
