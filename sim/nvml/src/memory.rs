//! Device memory in the three struct versions of NVML. An integrated device has no memory of its own, and these
//! queries are not supported on it.

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code},
    machine::{DeviceView, NvmlGpu},
};
use shim_sys::nvml::{nvmlBAR1Memory_t, nvmlMemory_t, nvmlMemory_v2_t};

/// The device's state, if it has memory of its own.
fn view_of_own_memory(dev: NvmlGpu) -> NvmlAnswer<DeviceView> {
    let view = dev.current_view()?;
    if view.profile.integrated == 0 { Ok(view) } else { Err(code::ERROR_UNSUPPORTED) }
}

/// The first version has no field `reserved`: reserved memory counts as used.
pub fn nvmlDeviceGetMemoryInfo(dev: NvmlGpu, memory: CallerPlace<nvmlMemory_t>) -> NvmlAnswer {
    let view = view_of_own_memory(dev)?;
    let used = view.profile.reserved_bytes() + view.used;
    memory.put_value(nvmlMemory_t { total: view.profile.nvml_total, free: view.profile.nvml_total - used, used })
}

pub fn nvmlDeviceGetMemoryInfo_v2(dev: NvmlGpu, memory: CallerPlace<nvmlMemory_v2_t>) -> NvmlAnswer {
    if memory.is_null() {
        return Err(code::ERROR_INVALID);
    }
    let mut known = false;
    memory.edit_each(1, |m| known = m.version == nvmlMemory_v2_t::VERSION)?;
    if !known {
        return Err(code::ERROR_VERSION);
    }
    let view = view_of_own_memory(dev)?;
    let (total, reserved) = (view.profile.nvml_total, view.profile.reserved_bytes());
    memory.put_value(nvmlMemory_v2_t {
        version: nvmlMemory_v2_t::VERSION,
        total,
        reserved,
        free: total - reserved - view.used,
        used: view.used,
    })
}

/// 1 MiB of the window is always mapped; clients do not change that.
pub fn nvmlDeviceGetBAR1MemoryInfo(dev: NvmlGpu, memory: CallerPlace<nvmlBAR1Memory_t>) -> NvmlAnswer {
    let total = view_of_own_memory(dev)?.profile.bar1_total;
    let used = 1 << 20;
    memory.put_value(nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - used, bar1Used: used })
}
