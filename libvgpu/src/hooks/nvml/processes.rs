//! The processes that NVML shows to a tenant: its own, from the ledger, with the pids of their own namespace.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::{is_tenant, limited_device, limited_or, put_list, visible_members};
use crate::device::table;
use crate::process::mode::Denied;
use core::ffi::c_char;
use shim_sys::nvml::*;
use shim_sys::table::nvml_fn;

/// An entry of a process list, in one of NVML's layouts.
trait ProcessEntry: Copy {
    fn of(pid: u32, bytes: u64) -> Self;
}

impl ProcessEntry for nvmlProcessInfo_v1_t {
    fn of(pid: u32, bytes: u64) -> Self {
        Self { pid, usedGpuMemory: bytes }
    }
}

impl ProcessEntry for nvmlProcessInfo_t {
    fn of(pid: u32, bytes: u64) -> Self {
        Self { pid, usedGpuMemory: bytes, gpuInstanceId: u32::MAX, computeInstanceId: u32::MAX }
    }
}

impl ProcessEntry for nvmlProcessDetail_v1_t {
    fn of(pid: u32, bytes: u64) -> Self {
        let none = u32::MAX;
        Self { pid, usedGpuMemory: bytes, gpuInstanceId: none, computeInstanceId: none, usedGpuCcProtectedMemory: 0 }
    }
}

/// Every process of a tenant counts as a compute process.
fn process_entries<E: ProcessEntry>(device: &table::Device, computing: bool) -> Vec<E> {
    if computing { visible_members(device).iter().map(|m| E::of(m.pid, m.used)).collect() } else { Vec::new() }
}

/// The answer for a limited tenant. `None`: use the driver's. One copy for each layout, not for each function, to
/// keep the library small.
fn list_processes<E: ProcessEntry>(
    dev: nvmlDevice_t,
    count: *mut u32,
    infos: *mut E,
    computing: bool,
) -> Option<nvmlReturn_t> {
    match limited_device(dev) {
        Ok(device) => Some(put_list(unsafe { count.as_mut() }?, infos, &process_entries(device?, computing))),
        Err(Denied) => Some(nvmlReturn_t::NO_PERMISSION),
    }
}

macro_rules! process_lists {
    ($($name:ident $entry:ident $computing:literal;)*) => {$(
        pub unsafe fn $name(
            real: nvml_fn::$name,
            dev: nvmlDevice_t,
            count: *mut u32,
            infos: *mut $entry,
        ) -> nvmlReturn_t {
            list_processes(dev, count, infos, $computing).unwrap_or_else(|| unsafe { real(dev, count, infos) })
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

/// Refuses an unknown mode or layout of a newer driver with the driver's error codes.
pub unsafe fn nvmlDeviceGetRunningProcessDetailList(
    real: nvml_fn::nvmlDeviceGetRunningProcessDetailList,
    dev: nvmlDevice_t,
    list: *mut nvmlProcessDetailList_v1_t,
) -> nvmlReturn_t {
    let device = limited_or!(dev, unsafe { real(dev, list) });
    match unsafe { list.as_mut() } {
        Some(list) if list.version != nvmlProcessDetailList_v1_t::VERSION => nvmlReturn_t::ARGUMENT_VERSION_MISMATCH,
        Some(list) if list.mode > 2 => nvmlReturn_t::INVALID_ARGUMENT,
        Some(list) => put_list(&mut list.numProcArrayEntries, list.procArray, &process_entries(device, list.mode == 0)),
        None => nvmlReturn_t::INVALID_ARGUMENT,
    }
}

/// The name of a member, read in its own pid namespace: NVML's answer may be for another process with that pid.
pub unsafe fn nvmlSystemGetProcessName(
    real: nvml_fn::nvmlSystemGetProcessName,
    pid: u32,
    name: *mut c_char,
    len: u32,
) -> nvmlReturn_t {
    match is_tenant() {
        Ok(true) if !name.is_null() && len > 0 => {}
        Ok(_) => return unsafe { real(pid, name, len) },
        Err(_) => return nvmlReturn_t::NO_PERMISSION,
    }
    if !table::all().any(|device| visible_members(device).iter().any(|member| member.pid == pid)) {
        return nvmlReturn_t::NOT_FOUND;
    }
    let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return nvmlReturn_t::NOT_FOUND };
    let text = line.split(|&byte| byte == 0).next().unwrap_or_default();
    // Cut to the buffer as NVML does, between two characters.
    let mut room = text.len().min(len as usize - 1);
    while text.get(room).is_some_and(|byte| byte & 0xc0 == 0x80) && room > 0 {
        room -= 1;
    }
    for (at, byte) in text.iter().take(room).chain(&[0]).enumerate() {
        unsafe { *name.add(at) = c_char::from_ne_bytes([*byte]) };
    }
    nvmlReturn_t::SUCCESS
}
