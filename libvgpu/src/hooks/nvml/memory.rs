//! The memory that NVML shows to a tenant: the same numbers as CUDA's, from the same computation (`view`).
//!
//! On a device that uses the host's memory (GB10) NVML supports no query of it. A tenant with a memory limit has an
//! answer there nevertheless: its limit and its use, without which monitors would show nothing. Other tenants get the
//! driver's error.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only, and written after success or "not supported".
#![allow(clippy::undocumented_unsafe_blocks)]

use super::limited_or;
use crate::device::table::Device;
use crate::driver::calls::{nvml_memory, total_memory};
use crate::hooks::view::tenant_view;
use shim_sys::nvml::*;
use shim_sys::table::nvml_fn;
use vgpu_core::memory::view::MemoryView;

/// The tenant's view of a device by NVML's handle. `None`: there is no view, as in [`view_after`].
pub fn view_of(device: &Device, dev: nvmlDevice_t) -> Option<MemoryView> {
    let (result, memory) = nvml_memory(dev)?;
    view_after(device, result, || (memory.total, memory.free))
}

/// True if [`view_after`] may have a view. After any other result the program's pointer is not touched: the driver may
/// have refused the call because of it.
fn may_have_view(result: nvmlReturn_t) -> bool {
    matches!(result, nvmlReturn_t::SUCCESS | nvmlReturn_t::NOT_SUPPORTED)
}

/// The tenant's view after the driver's `result`; `told` reads total and free memory from its answer. `None`: the
/// driver's result stands.
///
/// If the driver does not support the query, only the limit bounds the tenant, and the device's total where CUDA has
/// told it. Free host memory is not looked at: CUDA's own figure leaves out the memory that the kernel would give back.
fn view_after(device: &Device, result: nvmlReturn_t, told: impl FnOnce() -> (u64, u64)) -> Option<MemoryView> {
    let (total, free) = match result {
        nvmlReturn_t::SUCCESS => told(),
        nvmlReturn_t::NOT_SUPPORTED if device.memory_limit() != u64::MAX => {
            let total = total_memory(device.cuda()).unwrap_or(u64::MAX);
            (total, total)
        }
        _ => return None,
    };
    Some(tenant_view(device, total, free))
}

pub unsafe fn nvmlDeviceGetMemoryInfo(
    real: nvml_fn::nvmlDeviceGetMemoryInfo,
    dev: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    let device = limited_or!(dev, unsafe { real(dev, memory) });
    let result = unsafe { real(dev, memory) };
    if !may_have_view(result) {
        return result;
    }
    let Some(memory) = (unsafe { memory.as_mut() }) else { return result };
    let Some(seen) = view_after(device, result, || (memory.total, memory.free)) else { return result };
    *memory = nvmlMemory_t { total: seen.total.0, free: seen.free.0, used: seen.used.0 };
    nvmlReturn_t::SUCCESS
}

pub unsafe fn nvmlDeviceGetMemoryInfo_v2(
    real: nvml_fn::nvmlDeviceGetMemoryInfo_v2,
    dev: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    let device = limited_or!(dev, unsafe { real(dev, memory) });
    let result = unsafe { real(dev, memory) };
    if !may_have_view(result) {
        return result;
    }
    let Some(memory) = (unsafe { memory.as_mut() }) else { return result };
    // The driver may have refused the query before it looked at the version.
    if !result.ok() && memory.version != nvmlMemory_v2_t::VERSION {
        return result;
    }
    let Some(seen) = view_after(device, result, || (memory.total, memory.free)) else { return result };
    memory.total = seen.total.0;
    memory.free = seen.free.0;
    memory.used = seen.used.0;
    // The whole limit belongs to the tenant; memory reserved by the driver is outside it. total = reserved + free +
    // used still holds.
    memory.reserved = 0;
    nvmlReturn_t::SUCCESS
}

/// BAR1, the window into device memory: its size is a property of the device. Mapped bytes cannot be attributed to a
/// tenant, so the tenant is shown at most as many as the memory it uses.
pub unsafe fn nvmlDeviceGetBAR1MemoryInfo(
    real: nvml_fn::nvmlDeviceGetBAR1MemoryInfo,
    dev: nvmlDevice_t,
    memory: *mut nvmlBAR1Memory_t,
) -> nvmlReturn_t {
    let device = limited_or!(dev, unsafe { real(dev, memory) });
    let result = unsafe { real(dev, memory) };
    if result.ok() {
        let memory = unsafe { &mut *memory };
        memory.bar1Used = memory.bar1Used.min(device.ledger.tenant_used().unwrap_or(0));
        memory.bar1Free = memory.bar1Total.saturating_sub(memory.bar1Used);
    }
    result
}

/// Shows at most the limit as an instance's memory.
fn limited_attributes(
    real: &dyn Fn() -> nvmlReturn_t,
    dev: nvmlDevice_t,
    out: *mut nvmlDeviceAttributes_t,
) -> nvmlReturn_t {
    let device = limited_or!(dev, real());
    let result = real();
    if result.ok() {
        let out = unsafe { &mut *out };
        out.memorySizeMB = out.memorySizeMB.min(device.memory_limit() >> 20);
    }
    result
}

pub unsafe fn nvmlDeviceGetAttributes(
    real: nvml_fn::nvmlDeviceGetAttributes,
    dev: nvmlDevice_t,
    out: *mut nvmlDeviceAttributes_t,
) -> nvmlReturn_t {
    limited_attributes(&|| unsafe { real(dev, out) }, dev, out)
}

pub unsafe fn nvmlDeviceGetAttributes_v2(
    real: nvml_fn::nvmlDeviceGetAttributes_v2,
    dev: nvmlDevice_t,
    out: *mut nvmlDeviceAttributes_t,
) -> nvmlReturn_t {
    limited_attributes(&|| unsafe { real(dev, out) }, dev, out)
}
