//! Accounting, where the device has it enabled: of the tenant's live processes, from the ledger's figures. Records of
//! ended processes are not shown: the driver identifies them by pids that may belong to other tenants.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::{limited_or, put_list, visible_members};
use crate::device::table::Device;
use crate::device::usage::{since_1970, to_percent};
use crate::ffi::clock;
use shim_sys::nvml::*;
use shim_sys::table::nvml_fn;

pub unsafe fn nvmlDeviceGetAccountingPids(
    real: nvml_fn::nvmlDeviceGetAccountingPids,
    dev: nvmlDevice_t,
    count: *mut u32,
    pids: *mut u32,
) -> nvmlReturn_t {
    let device = limited_or!(dev, unsafe { real(dev, count, pids) });
    // The driver decides whether accounting is enabled.
    let mut none = 0;
    let result = unsafe { real(dev, &raw mut none, core::ptr::null_mut()) };
    match unsafe { count.as_mut() } {
        Some(count) if result.ok() || result == nvmlReturn_t::INSUFFICIENT_SIZE => {
            let own: Vec<u32> = visible_members(device).iter().map(|member| member.pid).collect();
            put_list(count, pids, &own)
        }
        Some(_) => result,
        None => nvmlReturn_t::INVALID_ARGUMENT,
    }
}

pub unsafe fn nvmlDeviceGetAccountingStats(
    real: nvml_fn::nvmlDeviceGetAccountingStats,
    dev: nvmlDevice_t,
    pid: u32,
    stats: *mut nvmlAccountingStats_t,
) -> nvmlReturn_t {
    let device = limited_or!(dev, unsafe { real(dev, pid, stats) });
    if stats.is_null() {
        return nvmlReturn_t::INVALID_ARGUMENT;
    }
    // The driver decides whether accounting is enabled; "process not found" does not mean that it is disabled.
    let mut theirs = nvmlAccountingStats_t::default();
    let result = unsafe { real(dev, pid, &raw mut theirs) };
    if !result.ok() && result != nvmlReturn_t::NOT_FOUND {
        return result;
    }
    match accounting_stats(device, pid) {
        Some(own) => {
            unsafe { *stats = own };
            nvmlReturn_t::SUCCESS
        }
        None => nvmlReturn_t::NOT_FOUND,
    }
}

fn accounting_stats(device: &Device, pid: u32) -> Option<nvmlAccountingStats_t> {
    let member = visible_members(device).into_iter().find(|member| member.pid == pid)?;
    let age = clock::now().saturating_sub(member.birth).max(1);
    Some(nvmlAccountingStats_t {
        gpuUtilization: to_percent(member.busy_ns, age),
        maxMemoryUsage: member.high,
        // `time` stays 0: NVML reports it only after the process has ended.
        startTime: since_1970().saturating_sub(age / 1000),
        isRunning: 1,
        ..Default::default()
    })
}
