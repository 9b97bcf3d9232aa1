//! Device memory in the three struct versions of NVML.

use crate::{
    door::{Answer, Out, code},
    machine::Gpu,
};
use shim_sys::nvml::{nvmlBAR1Memory_t, nvmlMemory_t, nvmlMemory_v2_t};

/// The first version has no field `reserved`: reserved memory counts as used.
pub fn nvmlDeviceGetMemoryInfo(dev: Gpu, memory: Out<nvmlMemory_t>) -> Answer {
    let view = dev.view()?;
    let used = view.profile.reserved() + view.used;
    memory.put(nvmlMemory_t { total: view.profile.nvml_total, free: view.profile.nvml_total - used, used })
}

pub fn nvmlDeviceGetMemoryInfo_v2(dev: Gpu, memory: Out<nvmlMemory_v2_t>) -> Answer {
    if memory.is_null() {
        return Err(code::INVALID);
    }
    let mut known = false;
    memory.each(1, |m| known = m.version == nvmlMemory_v2_t::VERSION)?;
    if !known {
        return Err(code::VERSION);
    }
    let view = dev.view()?;
    let (total, reserved) = (view.profile.nvml_total, view.profile.reserved());
    memory.put(nvmlMemory_v2_t {
        version: nvmlMemory_v2_t::VERSION,
        total,
        reserved,
        free: total - reserved - view.used,
        used: view.used,
    })
}

/// 1 MiB of the window is always mapped; clients do not change that.
pub fn nvmlDeviceGetBAR1MemoryInfo(dev: Gpu, memory: Out<nvmlBAR1Memory_t>) -> Answer {
    let total = dev.view()?.profile.bar1_total;
    let used = 1 << 20;
    memory.put(nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - used, bar1Used: used })
}
