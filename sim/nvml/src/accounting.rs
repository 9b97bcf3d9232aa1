//! Accounting of processes: off, as devices are shipped, unless `VGPU_SIM_ACCOUNTING` is set. Covers living
//! processes only.

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code},
    machine::{DeviceView, NvmlGpu},
};
use once_cell::race::OnceBool;
use shim_sys::nvml::nvmlAccountingStats_t;

/// True if accounting is on.
pub fn is_on() -> bool {
    static ON: OnceBool = OnceBool::new();
    ON.get_or_init(|| std::env::var_os("VGPU_SIM_ACCOUNTING").is_some())
}

fn kept_view(dev: NvmlGpu) -> NvmlAnswer<DeviceView> {
    let view = dev.current_view()?;
    if is_on() { Ok(view) } else { Err(code::ERROR_UNSUPPORTED) }
}

pub fn nvmlDeviceGetAccountingMode(dev: NvmlGpu, mode: CallerPlace<u32>) -> NvmlAnswer {
    dev.current_view()?;
    mode.put_value(u32::from(is_on()))
}

pub fn nvmlDeviceGetAccountingPids(dev: NvmlGpu, count: CallerPlace<u32>, pids: CallerPlace<u32>) -> NvmlAnswer {
    let view = kept_view(dev)?;
    let all: Vec<u32> = view.processes.iter().filter(|p| p.used.contexts > 0).filter_map(|p| p.pid).collect();
    pids.put_list(count, &all)
}

pub fn nvmlDeviceGetAccountingStats(dev: NvmlGpu, pid: u32, stats: CallerPlace<nvmlAccountingStats_t>) -> NvmlAnswer {
    let view = kept_view(dev)?;
    let process = view.processes.iter().find(|p| p.pid == Some(pid) && p.used.contexts > 0).ok_or(code::NOT_FOUND)?;
    let age_us = view.up_ns() / 1000;
    stats.put_value(nvmlAccountingStats_t {
        gpuUtilization: u32::try_from((process.used.busy / 10).checked_div(age_us).unwrap_or(0).min(100))
            .unwrap_or(100),
        maxMemoryUsage: process.used.physical_bytes(),
        startTime: view.wall_us - age_us,
        isRunning: 1,
        ..Default::default()
    })
}
