//! Clocks, power, temperature and PCI Express: plausible figures that follow the load.
//!
//! The model does not promise any of them; they follow utilisation so that a dashboard shows changes.

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code},
    machine::{DeviceView, NvmlGpu},
    utilization::gpu_percent,
};

const BUSY_REASONS: u64 = 0;
const IDLE_REASON: u64 = 1;

fn temperature_celsius(view: &DeviceView) -> u32 {
    30 + gpu_percent(view) * 35 / 100
}

/// Clock of a kind: 0 graphics, 1 multiprocessor, 2 memory, 3 video.
fn clock_mhz(view: &DeviceView, clock: u32, sm: u32) -> NvmlAnswer<u32> {
    match clock {
        0 | 1 => Ok(sm),
        2 => Ok(view.profile.mem_mhz),
        3 => Ok(sm - sm / 10),
        _ => Err(code::ERROR_INVALID),
    }
}

pub fn nvmlDeviceGetClockInfo(dev: NvmlGpu, kind: u32, mhz: CallerPlace<u32>) -> NvmlAnswer {
    let view = dev.current_view()?;
    mhz.put_value(clock_mhz(&view, kind, view.sm_mhz())?)
}

pub fn nvmlDeviceGetMaxClockInfo(dev: NvmlGpu, kind: u32, mhz: CallerPlace<u32>) -> NvmlAnswer {
    let view = dev.current_view()?;
    mhz.put_value(clock_mhz(&view, kind, view.profile.sm_mhz)?)
}

pub fn nvmlDeviceGetApplicationsClock(dev: NvmlGpu, kind: u32, mhz: CallerPlace<u32>) -> NvmlAnswer {
    nvmlDeviceGetMaxClockInfo(dev, kind, mhz)
}

pub fn nvmlDeviceGetDefaultApplicationsClock(dev: NvmlGpu, kind: u32, mhz: CallerPlace<u32>) -> NvmlAnswer {
    nvmlDeviceGetMaxClockInfo(dev, kind, mhz)
}

pub fn nvmlDeviceGetMaxCustomerBoostClock(dev: NvmlGpu, kind: u32, mhz: CallerPlace<u32>) -> NvmlAnswer {
    nvmlDeviceGetMaxClockInfo(dev, kind, mhz)
}

/// `which`: 0 now, 1 application target, 2 application default, 3 customer boost.
pub fn nvmlDeviceGetClock(dev: NvmlGpu, kind: u32, which: u32, mhz: CallerPlace<u32>) -> NvmlAnswer {
    match which {
        0 => nvmlDeviceGetClockInfo(dev, kind, mhz),
        1..=3 => nvmlDeviceGetMaxClockInfo(dev, kind, mhz),
        _ => Err(code::ERROR_INVALID),
    }
}

pub fn nvmlDeviceGetSupportedMemoryClocks(dev: NvmlGpu, count: CallerPlace<u32>, mhz: CallerPlace<u32>) -> NvmlAnswer {
    mhz.put_list(count, &[dev.current_view()?.profile.mem_mhz])
}

pub fn nvmlDeviceGetSupportedGraphicsClocks(
    dev: NvmlGpu,
    memory_mhz: u32,
    count: CallerPlace<u32>,
    mhz: CallerPlace<u32>,
) -> NvmlAnswer {
    let p = dev.current_view()?.profile;
    if memory_mhz != p.mem_mhz {
        return Err(code::NOT_FOUND);
    }
    let steps: Vec<u32> = (p.idle_mhz..=p.sm_mhz).rev().step_by(15).collect();
    mhz.put_list(count, &steps)
}

pub fn nvmlDeviceGetCurrentClocksThrottleReasons(dev: NvmlGpu, reasons: CallerPlace<u64>) -> NvmlAnswer {
    reasons.put_value(if gpu_percent(&dev.current_view()?) > 0 { BUSY_REASONS } else { IDLE_REASON })
}

pub fn nvmlDeviceGetSupportedClocksThrottleReasons(dev: NvmlGpu, reasons: CallerPlace<u64>) -> NvmlAnswer {
    dev.current_view()?;
    reasons.put_value(0x1ff)
}

pub fn nvmlDeviceGetCurrentClocksEventReasons(dev: NvmlGpu, reasons: CallerPlace<u64>) -> NvmlAnswer {
    nvmlDeviceGetCurrentClocksThrottleReasons(dev, reasons)
}

pub fn nvmlDeviceGetSupportedClocksEventReasons(dev: NvmlGpu, reasons: CallerPlace<u64>) -> NvmlAnswer {
    nvmlDeviceGetSupportedClocksThrottleReasons(dev, reasons)
}

pub fn nvmlDeviceGetTemperature(dev: NvmlGpu, sensor: u32, degrees: CallerPlace<u32>) -> NvmlAnswer {
    let view = dev.current_view()?;
    if sensor != 0 {
        return Err(code::ERROR_INVALID);
    }
    degrees.put_value(temperature_celsius(&view))
}

/// 0 shutdown, 1 slowdown, 2 memory, 3 GPU; the acoustic thresholds do not exist.
pub fn nvmlDeviceGetTemperatureThreshold(dev: NvmlGpu, threshold: u32, degrees: CallerPlace<u32>) -> NvmlAnswer {
    dev.current_view()?;
    degrees.put_value(match threshold {
        0 => 92,
        1 => 89,
        2 => 95,
        3 => 87,
        4..=7 => return Err(code::ERROR_UNSUPPORTED),
        _ => return Err(code::ERROR_INVALID),
    })
}

/// Boards that idle at 40 W or more stay in P0; the others drop to P8 when no process has a context.
fn performance_state(view: &DeviceView) -> u32 {
    let sinks = view.profile.power_idle_mw < 40_000;
    if sinks && !view.in_use() { 8 } else { 0 }
}

pub fn nvmlDeviceGetPerformanceState(dev: NvmlGpu, state: CallerPlace<u32>) -> NvmlAnswer {
    state.put_value(performance_state(&dev.current_view()?))
}

pub fn nvmlDeviceGetPowerState(dev: NvmlGpu, state: CallerPlace<u32>) -> NvmlAnswer {
    nvmlDeviceGetPerformanceState(dev, state)
}

pub fn nvmlDeviceGetPowerUsage(dev: NvmlGpu, mw: CallerPlace<u32>) -> NvmlAnswer {
    let view = dev.current_view()?;
    mw.put_value(view.power_milliwatts(gpu_percent(&view)))
}

pub fn nvmlDeviceGetPowerManagementMode(dev: NvmlGpu, mode: CallerPlace<u32>) -> NvmlAnswer {
    dev.current_view()?;
    mode.put_value(1)
}

fn power_limit(dev: NvmlGpu) -> NvmlAnswer<u32> {
    match dev.current_view()?.profile.power_limit_mw {
        0 => Err(code::ERROR_UNSUPPORTED),
        limit => Ok(limit),
    }
}

pub fn nvmlDeviceGetPowerManagementLimit(dev: NvmlGpu, mw: CallerPlace<u32>) -> NvmlAnswer {
    mw.put_value(power_limit(dev)?)
}

pub fn nvmlDeviceGetPowerManagementDefaultLimit(dev: NvmlGpu, mw: CallerPlace<u32>) -> NvmlAnswer {
    nvmlDeviceGetPowerManagementLimit(dev, mw)
}

pub fn nvmlDeviceGetEnforcedPowerLimit(dev: NvmlGpu, mw: CallerPlace<u32>) -> NvmlAnswer {
    nvmlDeviceGetPowerManagementLimit(dev, mw)
}

pub fn nvmlDeviceGetPowerManagementLimitConstraints(
    dev: NvmlGpu,
    least: CallerPlace<u32>,
    most: CallerPlace<u32>,
) -> NvmlAnswer {
    let limit = power_limit(dev)?;
    least.put_value(limit / 2)?;
    most.put_value(limit)
}

/// Energy since the machine was made, mJ: idle power over its whole life, the rest over the busy time.
pub fn energy_millijoules(view: &DeviceView) -> u64 {
    let idle = u64::from(view.profile.power_idle_mw);
    let more = u64::from(view.power_milliwatts(100)).saturating_sub(idle);
    view.up_ns() / 1_000_000 * idle / 1000 + view.busy_ns / 1_000_000 * more / 1000
}

pub fn nvmlDeviceGetTotalEnergyConsumption(dev: NvmlGpu, energy: CallerPlace<u64>) -> NvmlAnswer {
    energy.put_value(energy_millijoules(&dev.current_view()?))
}

macro_rules! link {
    ($($name:ident $field:ident)*) => { $(
        pub fn $name(dev: NvmlGpu, value: CallerPlace<u32>) -> NvmlAnswer {
            value.put_value(dev.current_view()?.profile.$field)
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

pub fn nvmlDeviceGetPcieThroughput(dev: NvmlGpu, counter: u32, kib_per_s: CallerPlace<u32>) -> NvmlAnswer {
    dev.current_view()?;
    if counter > 1 {
        return Err(code::ERROR_INVALID);
    }
    kib_per_s.put_value(0)
}

pub fn nvmlDeviceGetPcieReplayCounter(dev: NvmlGpu, count: CallerPlace<u32>) -> NvmlAnswer {
    dev.current_view()?;
    count.put_value(0)
}

pub fn nvmlDeviceGetNumFans(dev: NvmlGpu, fans: CallerPlace<u32>) -> NvmlAnswer {
    fans.put_value(dev.current_view()?.profile.fan)
}

/// A board without a fan has no fan speed; otherwise the speed follows the load.
pub fn nvmlDeviceGetFanSpeed(dev: NvmlGpu, percent: CallerPlace<u32>) -> NvmlAnswer {
    let view = dev.current_view()?;
    if view.profile.fan == 0 {
        return Err(code::ERROR_UNSUPPORTED);
    }
    percent.put_value(30 + gpu_percent(&view) / 2)
}

pub fn nvmlDeviceGetFanSpeed_v2(dev: NvmlGpu, fan: u32, percent: CallerPlace<u32>) -> NvmlAnswer {
    let fans = dev.current_view()?.profile.fan;
    if fans > 0 && fan >= fans {
        return Err(code::ERROR_INVALID);
    }
    nvmlDeviceGetFanSpeed(dev, percent)
}
