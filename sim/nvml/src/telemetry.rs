//! Clocks, power, temperature and PCI Express: plausible figures that follow the load.
//!
//! The model does not promise any of them; they follow utilisation so that a dashboard shows changes.

use crate::{
    door::{Answer, Out, code},
    machine::{Gpu, View},
    utilization::gpu_percent,
};

const BUSY_REASONS: u64 = 0;
const IDLE_REASON: u64 = 1;

/// Present graphics and multiprocessor clock: idle until a process has a context.
pub fn sm_mhz(view: &View) -> u32 {
    if view.in_use() { view.profile.sm_mhz } else { view.profile.idle_mhz }
}

/// Power drawn at `percent` utilisation, milliwatt.
pub fn milliwatts(view: &View, percent: u32) -> u32 {
    let p = &view.profile;
    let idle = if view.in_use() { p.power_idle_mw + p.power_idle_mw / 4 } else { p.power_idle_mw };
    idle + (p.power_limit_mw.saturating_sub(idle) / 10 * 9 / 100) * percent
}

fn celsius(view: &View) -> u32 {
    30 + gpu_percent(view) * 35 / 100
}

/// Clock of a kind: 0 graphics, 1 multiprocessor, 2 memory, 3 video.
fn clock(view: &View, clock: u32, sm: u32) -> Answer<u32> {
    match clock {
        0 | 1 => Ok(sm),
        2 => Ok(view.profile.mem_mhz),
        3 => Ok(sm - sm / 10),
        _ => Err(code::INVALID),
    }
}

pub fn nvmlDeviceGetClockInfo(dev: Gpu, kind: u32, mhz: Out<u32>) -> Answer {
    let view = dev.view()?;
    mhz.put(clock(&view, kind, sm_mhz(&view))?)
}

pub fn nvmlDeviceGetMaxClockInfo(dev: Gpu, kind: u32, mhz: Out<u32>) -> Answer {
    let view = dev.view()?;
    mhz.put(clock(&view, kind, view.profile.sm_mhz)?)
}

pub fn nvmlDeviceGetApplicationsClock(dev: Gpu, kind: u32, mhz: Out<u32>) -> Answer {
    nvmlDeviceGetMaxClockInfo(dev, kind, mhz)
}

pub fn nvmlDeviceGetDefaultApplicationsClock(dev: Gpu, kind: u32, mhz: Out<u32>) -> Answer {
    nvmlDeviceGetMaxClockInfo(dev, kind, mhz)
}

pub fn nvmlDeviceGetMaxCustomerBoostClock(dev: Gpu, kind: u32, mhz: Out<u32>) -> Answer {
    nvmlDeviceGetMaxClockInfo(dev, kind, mhz)
}

/// `which`: 0 now, 1 application target, 2 application default, 3 customer boost.
pub fn nvmlDeviceGetClock(dev: Gpu, kind: u32, which: u32, mhz: Out<u32>) -> Answer {
    match which {
        0 => nvmlDeviceGetClockInfo(dev, kind, mhz),
        1..=3 => nvmlDeviceGetMaxClockInfo(dev, kind, mhz),
        _ => Err(code::INVALID),
    }
}

pub fn nvmlDeviceGetSupportedMemoryClocks(dev: Gpu, count: Out<u32>, mhz: Out<u32>) -> Answer {
    mhz.put_list(count, &[dev.view()?.profile.mem_mhz])
}

pub fn nvmlDeviceGetSupportedGraphicsClocks(dev: Gpu, memory_mhz: u32, count: Out<u32>, mhz: Out<u32>) -> Answer {
    let p = dev.view()?.profile;
    if memory_mhz != p.mem_mhz {
        return Err(code::NOT_FOUND);
    }
    let steps: Vec<u32> = (p.idle_mhz..=p.sm_mhz).rev().step_by(15).collect();
    mhz.put_list(count, &steps)
}

pub fn nvmlDeviceGetCurrentClocksThrottleReasons(dev: Gpu, reasons: Out<u64>) -> Answer {
    reasons.put(if gpu_percent(&dev.view()?) > 0 { BUSY_REASONS } else { IDLE_REASON })
}

pub fn nvmlDeviceGetSupportedClocksThrottleReasons(dev: Gpu, reasons: Out<u64>) -> Answer {
    dev.view()?;
    reasons.put(0x1ff)
}

pub fn nvmlDeviceGetCurrentClocksEventReasons(dev: Gpu, reasons: Out<u64>) -> Answer {
    nvmlDeviceGetCurrentClocksThrottleReasons(dev, reasons)
}

pub fn nvmlDeviceGetSupportedClocksEventReasons(dev: Gpu, reasons: Out<u64>) -> Answer {
    nvmlDeviceGetSupportedClocksThrottleReasons(dev, reasons)
}

pub fn nvmlDeviceGetTemperature(dev: Gpu, sensor: u32, degrees: Out<u32>) -> Answer {
    let view = dev.view()?;
    if sensor != 0 {
        return Err(code::INVALID);
    }
    degrees.put(celsius(&view))
}

/// 0 shutdown, 1 slowdown, 2 memory, 3 GPU; the acoustic thresholds do not exist.
pub fn nvmlDeviceGetTemperatureThreshold(dev: Gpu, threshold: u32, degrees: Out<u32>) -> Answer {
    dev.view()?;
    degrees.put(match threshold {
        0 => 92,
        1 => 89,
        2 => 95,
        3 => 87,
        4..=7 => return Err(code::UNSUPPORTED),
        _ => return Err(code::INVALID),
    })
}

/// Boards that idle at 40 W or more stay in P0; the others drop to P8 when no process has a context.
fn performance_state(view: &View) -> u32 {
    let sinks = view.profile.power_idle_mw < 40_000;
    if sinks && !view.in_use() { 8 } else { 0 }
}

pub fn nvmlDeviceGetPerformanceState(dev: Gpu, state: Out<u32>) -> Answer {
    state.put(performance_state(&dev.view()?))
}

pub fn nvmlDeviceGetPowerState(dev: Gpu, state: Out<u32>) -> Answer {
    nvmlDeviceGetPerformanceState(dev, state)
}

pub fn nvmlDeviceGetPowerUsage(dev: Gpu, mw: Out<u32>) -> Answer {
    let view = dev.view()?;
    mw.put(milliwatts(&view, gpu_percent(&view)))
}

pub fn nvmlDeviceGetPowerManagementMode(dev: Gpu, mode: Out<u32>) -> Answer {
    dev.view()?;
    mode.put(1)
}

pub fn nvmlDeviceGetPowerManagementLimit(dev: Gpu, mw: Out<u32>) -> Answer {
    mw.put(dev.view()?.profile.power_limit_mw)
}

pub fn nvmlDeviceGetPowerManagementDefaultLimit(dev: Gpu, mw: Out<u32>) -> Answer {
    nvmlDeviceGetPowerManagementLimit(dev, mw)
}

pub fn nvmlDeviceGetEnforcedPowerLimit(dev: Gpu, mw: Out<u32>) -> Answer {
    nvmlDeviceGetPowerManagementLimit(dev, mw)
}

pub fn nvmlDeviceGetPowerManagementLimitConstraints(dev: Gpu, least: Out<u32>, most: Out<u32>) -> Answer {
    let limit = dev.view()?.profile.power_limit_mw;
    least.put(limit / 2)?;
    most.put(limit)
}

/// Energy since the machine was made, mJ: idle power over its whole life, the rest over the busy time.
pub fn millijoules(view: &View) -> u64 {
    let idle = u64::from(view.profile.power_idle_mw);
    let more = u64::from(milliwatts(view, 100)).saturating_sub(idle);
    view.up_ns() / 1_000_000 * idle / 1000 + view.busy_ns / 1_000_000 * more / 1000
}

pub fn nvmlDeviceGetTotalEnergyConsumption(dev: Gpu, energy: Out<u64>) -> Answer {
    energy.put(millijoules(&dev.view()?))
}

macro_rules! link {
    ($($name:ident $field:ident)*) => { $(
        pub fn $name(dev: Gpu, value: Out<u32>) -> Answer {
            value.put(dev.view()?.profile.$field)
        }
    )* };
}
link! {
    nvmlDeviceGetCurrPcieLinkGeneration pcie_gen
    nvmlDeviceGetMaxPcieLinkGeneration pcie_gen
    nvmlDeviceGetGpuMaxPcieLinkGeneration pcie_gen
    nvmlDeviceGetCurrPcieLinkWidth pcie_width
    nvmlDeviceGetMaxPcieLinkWidth pcie_width
}

pub fn nvmlDeviceGetPcieThroughput(dev: Gpu, counter: u32, kib_per_s: Out<u32>) -> Answer {
    dev.view()?;
    if counter > 1 {
        return Err(code::INVALID);
    }
    kib_per_s.put(0)
}

pub fn nvmlDeviceGetPcieReplayCounter(dev: Gpu, count: Out<u32>) -> Answer {
    dev.view()?;
    count.put(0)
}

pub fn nvmlDeviceGetNumFans(dev: Gpu, fans: Out<u32>) -> Answer {
    fans.put(dev.view()?.profile.fan)
}

/// A board without a fan has no fan speed; otherwise the speed follows the load.
pub fn nvmlDeviceGetFanSpeed(dev: Gpu, percent: Out<u32>) -> Answer {
    let view = dev.view()?;
    if view.profile.fan == 0 {
        return Err(code::UNSUPPORTED);
    }
    percent.put(30 + gpu_percent(&view) / 2)
}

pub fn nvmlDeviceGetFanSpeed_v2(dev: Gpu, fan: u32, percent: Out<u32>) -> Answer {
    let fans = dev.view()?.profile.fan;
    if fans > 0 && fan >= fans {
        return Err(code::INVALID);
    }
    nvmlDeviceGetFanSpeed(dev, percent)
}
