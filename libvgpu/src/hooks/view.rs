//! The memory that CUDA shows to a tenant: its limit as the total, the unused part of the limit as free. And the words
//! for a process whose memory does not fit on the device when it is restored.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// u64 and usize have the same size on the supported machines.
#![allow(clippy::cast_possible_truncation)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only, and null is safe wherever it was for the driver.
#![allow(clippy::undocumented_unsafe_blocks)]

use crate::device::table;
use crate::device::table::Device;
use crate::driver::calls::memory_info;
use crate::member::enforce;
use crate::memory::deferred_frees;
use crate::process::message;
use crate::process::mode::Denied;
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;
use vgpu_core::memory::view::{self, MemoryView, PhysicalMemory};
use vgpu_core::units::bytes::Bytes;

/// The device of the current context, if its numbers must be shown differently.
fn changed_device() -> Result<Option<&'static Device>, Denied> {
    Ok(enforce::on_current()?.map(|(_, device)| device).filter(|device| !device.is_observed()))
}

/// The device with CUDA ordinal `dev`, if its numbers must be shown differently.
fn changed_by_cuda(dev: CUdevice) -> Option<&'static Device> {
    table::by_cuda(dev).filter(|device| !device.is_observed())
}

/// The tenant's view of `device`.
pub fn tenant_view(device: &Device, total: u64, free: u64) -> MemoryView {
    let physical = PhysicalMemory { total: Bytes(total), free: Bytes(free) };
    deferred_frees::look_again();
    device.look_for_daemon();
    let used = device.ledger.tenant_used().unwrap_or(device.memory_limit()).saturating_add(device.uncharged_bytes());
    view::view_memory(shown_limit(device), Bytes(used), physical)
}

fn shown_limit(device: &Device) -> Option<Bytes> {
    Some(device.memory_limit()).filter(|limit| *limit != u64::MAX).map(Bytes)
}

pub unsafe fn cuMemGetInfo_v2(real: cuda_fn::cuMemGetInfo_v2, free: *mut usize, total: *mut usize) -> CUresult {
    let current = match changed_device() {
        Ok(current) => current,
        Err(Denied) => return CUresult::NOT_PERMITTED,
    };
    let result = unsafe { real(free, total) };
    if result.ok()
        && let Some(device) = current
    {
        // If the driver accepted a null output, the missing number is queried separately.
        let (mut physical_free, mut physical_total) = (0, 0);
        match (unsafe { free.as_ref() }, unsafe { total.as_ref() }) {
            (Some(&free), Some(&total)) => (physical_free, physical_total) = (free, total),
            _ => {
                if !unsafe { real(&raw mut physical_free, &raw mut physical_total) }.ok() {
                    return result;
                }
            }
        }
        let seen = tenant_view(device, physical_total as u64, physical_free as u64);
        if let Some(free) = unsafe { free.as_mut() } {
            *free = seen.free.0 as usize;
        }
        if let Some(total) = unsafe { total.as_mut() } {
            *total = seen.total.0 as usize;
        }
    }
    result
}

/// The 32-bit call: numbers beyond 4 GiB are shown as `u32::MAX`.
pub unsafe fn cuMemGetInfo(real: cuda_fn::cuMemGetInfo, free: *mut u32, total: *mut u32) -> CUresult {
    let current = match changed_device() {
        Ok(current) => current,
        Err(Denied) => return CUresult::NOT_PERMITTED,
    };
    let result = unsafe { real(free, total) };
    if result.ok()
        && let Some(device) = current
        && let Some((physical_free, physical_total)) = memory_info()
    {
        let seen = tenant_view(device, physical_total, physical_free);
        if let Some(free) = unsafe { free.as_mut() } {
            *free = u32::try_from(seen.free.0).unwrap_or(u32::MAX);
        }
        if let Some(total) = unsafe { total.as_mut() } {
            *total = u32::try_from(seen.total.0).unwrap_or(u32::MAX);
        }
    }
    result
}

pub unsafe fn cuDeviceTotalMem_v2(real: cuda_fn::cuDeviceTotalMem_v2, bytes: *mut usize, dev: CUdevice) -> CUresult {
    let limited = match enforce::is_enforced() {
        Ok(enforced) => enforced,
        Err(Denied) => return CUresult::NOT_PERMITTED,
    };
    let result = unsafe { real(bytes, dev) };
    if result.ok()
        && limited
        && let (Some(device), Some(bytes)) = (changed_by_cuda(dev), unsafe { bytes.as_mut() })
    {
        *bytes = view::total(shown_limit(device), Bytes(*bytes as u64)).0 as usize;
    }
    result
}

pub unsafe fn cuDeviceTotalMem(real: cuda_fn::cuDeviceTotalMem, bytes: *mut u32, dev: CUdevice) -> CUresult {
    let limited = match enforce::is_enforced() {
        Ok(enforced) => enforced,
        Err(Denied) => return CUresult::NOT_PERMITTED,
    };
    let result = unsafe { real(bytes, dev) };
    if result.ok()
        && limited
        && let (Some(device), Some(bytes)) = (changed_by_cuda(dev), unsafe { bytes.as_mut() })
    {
        let limit = u32::try_from(device.memory_limit()).unwrap_or(u32::MAX);
        *bytes = (*bytes).min(limit);
    }
    result
}

/// A checkpointed process keeps its charges, so its limit never refuses it. But others may use the device memory that
/// it left, and then the driver refuses.
pub unsafe fn cuCheckpointProcessRestore(
    real: cuda_fn::cuCheckpointProcessRestore,
    pid: i32,
    args: *mut CUcheckpointRestoreArgs,
) -> CUresult {
    let result = unsafe { real(pid, args) };
    if result == CUresult::OUT_OF_MEMORY && enforce::is_enforced() == Ok(true) {
        message::warn_once(&format!(
            "process {pid} cannot be restored now: the device has too little free memory for it; the process stays \
             checkpointed, so restore it again when other processes have freed memory"
        ));
    }
    result
}
