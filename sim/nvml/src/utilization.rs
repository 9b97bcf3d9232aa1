//! Utilisation with NVML's behaviour: windows of a sixth of a second, published one window late, absent when
//! idle.
//!
//! The busy time of each window is the model's own account. Memory utilisation is not modelled: it is reported as
//! half of the busy time, and that of the encoders as none.

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code},
    machine::{DeviceView, NvmlGpu},
};
use shim_sys::nvml::{nvmlProcessUtilizationSample_t, nvmlSample_t, nvmlUtilization_t, nvmlValue_t};
use vgpu_sim::layout::{WINDOW_NS, WINDOWS_KEPT};

const WINDOW_PERIOD_US: u32 = 166_666;
/// Windows that a process sample averages over: one second.
const SAMPLE_WINDOWS: u64 = 6;

/// The newest window whose sample is published.
pub fn newest_window(view: &DeviceView) -> u64 {
    (view.now / WINDOW_NS).saturating_sub(2)
}

/// Number of the oldest utilisation window that is kept.
fn oldest_window(view: &DeviceView) -> u64 {
    newest_window(view).saturating_sub(WINDOWS_KEPT as u64 - 4)
}

/// Busy share of `windows` windows in percent, rounded, at least 1 for any work at all.
fn window_percent(busy_ns: u64, windows: u64) -> u32 {
    let whole = (WINDOW_NS * windows).max(1);
    let rounded = (busy_ns * 100 + whole / 2) / whole;
    u32::try_from(rounded.clamp(u64::from(busy_ns > 0), 100)).unwrap_or(100)
}

/// Busy time of the device in window `w`, ns.
fn device_busy(view: &DeviceView, w: u64) -> u64 {
    view.processes.iter().map(|p| p.busy_in(w)).sum()
}

/// Utilisation in the newest published window, percent.
pub fn gpu_percent(view: &DeviceView) -> u32 {
    window_percent(device_busy(view, newest_window(view)), 1)
}

/// When window `w` ended, microseconds since 1970.
fn window_end_us(view: &DeviceView, w: u64) -> u64 {
    let end = (w + 1) * WINDOW_NS;
    view.wall_us.saturating_sub(view.now.saturating_sub(end) / 1000)
}

pub fn nvmlDeviceGetUtilizationRates(dev: NvmlGpu, rates: CallerPlace<nvmlUtilization_t>) -> NvmlAnswer {
    let gpu = gpu_percent(&dev.current_view()?);
    rates.put_value(nvmlUtilization_t { gpu, memory: gpu / 2 })
}

pub fn nvmlDeviceGetProcessUtilization(
    dev: NvmlGpu,
    samples: CallerPlace<nvmlProcessUtilizationSample_t>,
    count: CallerPlace<u32>,
    since: u64,
) -> NvmlAnswer {
    let view = dev.current_view()?;
    let to = newest_window(&view);
    let from = (oldest_window(&view)..=to)
        .find(|w| window_end_us(&view, *w) > since)
        .unwrap_or(to + 1)
        .max((to + 1).saturating_sub(SAMPLE_WINDOWS));
    let mut all = Vec::new();
    for p in &view.processes {
        let Some(pid) = p.pid else { continue };
        let busy: u64 = (from..=to).map(|w| p.busy_in(w)).sum();
        let Some(last) = (from..=to).rev().find(|w| p.busy_in(*w) > 0) else { continue };
        let sm = window_percent(busy, to + 1 - from);
        all.push(nvmlProcessUtilizationSample_t {
            pid,
            timeStamp: window_end_us(&view, last),
            smUtil: sm,
            memUtil: sm / 2,
            ..Default::default()
        });
    }
    if all.is_empty() {
        // No process was busy since that time. The needed capacity, 0, is still reported.
        count.put_value(0)?;
        return Err(code::NOT_FOUND);
    }
    if samples.is_null() {
        count.put_value(u32::try_from(all.len()).map_err(|_| code::UNKNOWN)?)?;
        return Err(code::ERROR_TOO_SMALL);
    }
    samples.put_list(count, &all)
}

pub fn nvmlDeviceGetSamples(
    dev: NvmlGpu,
    kind: u32,
    since: u64,
    value_type: CallerPlace<u32>,
    count: CallerPlace<u32>,
    samples: CallerPlace<nvmlSample_t>,
) -> NvmlAnswer {
    let view = dev.current_view()?;
    let (from, to) = (oldest_window(&view), newest_window(&view));
    let value = |w: u64| {
        let gpu = window_percent(device_busy(&view, w), 1);
        Some(match kind {
            0 => view.power_milliwatts(gpu),
            1 => gpu,
            2 => gpu / 2,
            3 | 4 => 0,
            5 => view.sm_mhz(),
            6 => view.profile.mem_mhz,
            _ => return None,
        })
    };
    if value(to).is_none() {
        return Err(if kind < 8 { code::ERROR_UNSUPPORTED } else { code::ERROR_INVALID });
    }
    let all: Vec<nvmlSample_t> = (from..=to)
        .map(|w| (window_end_us(&view, w), w))
        .filter(|(at, _)| *at > since)
        .filter_map(|(at, w)| Some(nvmlSample_t { timeStamp: at, sampleValue: nvmlValue_t { uiVal: value(w)? } }))
        .collect();
    value_type.put_value(1)?; // unsigned int
    if samples.is_null() {
        return count.put_value(u32::try_from(WINDOWS_KEPT).map_err(|_| code::UNKNOWN)?);
    }
    if all.is_empty() {
        return Err(code::NOT_FOUND);
    }
    // The newest samples that fit, in order.
    let room = count.get()? as usize;
    samples.put_list(count, &all[all.len().saturating_sub(room)..])
}

macro_rules! idle_engine {
    ($($name:ident)*) => { $(
        pub fn $name(dev: NvmlGpu, percent: CallerPlace<u32>, period_us: CallerPlace<u32>) -> NvmlAnswer {
            dev.current_view()?;
            percent.put_value(0)?;
            period_us.put_value(WINDOW_PERIOD_US)
        }
    )* };
}
idle_engine! {
    nvmlDeviceGetEncoderUtilization nvmlDeviceGetDecoderUtilization nvmlDeviceGetJpgUtilization
    nvmlDeviceGetOfaUtilization
}

pub fn nvmlDeviceGetEncoderStats(
    dev: NvmlGpu,
    sessions: CallerPlace<u32>,
    fps: CallerPlace<u32>,
    latency_us: CallerPlace<u32>,
) -> NvmlAnswer {
    dev.current_view()?;
    sessions.put_value(0)?;
    fps.put_value(0)?;
    latency_us.put_value(0)
}
