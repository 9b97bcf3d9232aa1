//! Accounting of processes: off, as devices are shipped, unless `VGPU_SIM_ACCOUNTING` is set. Covers living
//! processes only.

use crate::{
    door::{Answer, Out, code},
    machine::{Gpu, View},
};
use once_cell::race::OnceBool;
use shim_sys::nvml::nvmlAccountingStats_t;

/// True if accounting is on.
pub fn is_on() -> bool {
    static ON: OnceBool = OnceBool::new();
    ON.get_or_init(|| std::env::var_os("VGPU_SIM_ACCOUNTING").is_some())
}

fn kept(dev: Gpu) -> Answer<View> {
    let view = dev.view()?;
    if is_on() { Ok(view) } else { Err(code::UNSUPPORTED) }
}

pub fn nvmlDeviceGetAccountingMode(dev: Gpu, mode: Out<u32>) -> Answer {
    dev.view()?;
    mode.put(u32::from(is_on()))
}

pub fn nvmlDeviceGetAccountingPids(dev: Gpu, count: Out<u32>, pids: Out<u32>) -> Answer {
    let view = kept(dev)?;
    let all: Vec<u32> = view.processes.iter().filter(|p| p.used.contexts > 0).map(|p| p.pid).collect();
    pids.put_list(count, &all)
}

pub fn nvmlDeviceGetAccountingStats(dev: Gpu, pid: u32, stats: Out<nvmlAccountingStats_t>) -> Answer {
    let view = kept(dev)?;
    let process = view.processes.iter().find(|p| p.pid == pid && p.used.contexts > 0).ok_or(code::NOT_FOUND)?;
    let age_us = view.up_ns() / 1000;
    stats.put(nvmlAccountingStats_t {
        gpuUtilization: u32::try_from((process.used.busy / 10).checked_div(age_us).unwrap_or(0).min(100))
            .unwrap_or(100),
        maxMemoryUsage: process.used.physical(),
        startTime: view.wall_us - age_us,
        isRunning: 1,
        ..Default::default()
    })
}
