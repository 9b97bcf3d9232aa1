//! Utilisation with NVML's behaviour: windows of a sixth of a second, published one window late, absent when
//! idle.
//!
//! The busy time of each window is the model's own account. Memory utilisation is not modelled: it is reported as
//! half of the busy time, and that of the encoders as none.

use crate::{
    door::{Answer, Out, code},
    machine::{Gpu, View},
};
use shim_sys::nvml::{nvmlProcessUtilizationSample_t, nvmlSample_t, nvmlUtilization_t, nvmlValue_t};
use vgpu_sim::layout::{WINDOW_NS, WINDOWS};

const PERIOD_US: u32 = 166_666;
/// Windows that a process sample averages over: one second.
const SPAN: u64 = 6;

/// The newest window whose sample is published.
pub fn newest(view: &View) -> u64 {
    (view.now / WINDOW_NS).saturating_sub(2)
}

/// Number of the oldest utilisation window that is kept.
fn oldest(view: &View) -> u64 {
    newest(view).saturating_sub(WINDOWS as u64 - 4)
}

/// Busy share of `windows` windows in percent, rounded, at least 1 for any work at all.
fn percent(busy_ns: u64, windows: u64) -> u32 {
    let whole = (WINDOW_NS * windows).max(1);
    let rounded = (busy_ns * 100 + whole / 2) / whole;
    u32::try_from(rounded.clamp(u64::from(busy_ns > 0), 100)).unwrap_or(100)
}

/// Busy time of the device in window `w`, ns.
fn device_busy(view: &View, w: u64) -> u64 {
    view.processes.iter().map(|p| p.busy_in(w)).sum()
}

/// Utilisation in the newest published window, percent.
pub fn gpu_percent(view: &View) -> u32 {
    percent(device_busy(view, newest(view)), 1)
}

/// When window `w` ended, microseconds since 1970.
fn stamp(view: &View, w: u64) -> u64 {
    let end = (w + 1) * WINDOW_NS;
    view.wall_us.saturating_sub(view.now.saturating_sub(end) / 1000)
}

pub fn nvmlDeviceGetUtilizationRates(dev: Gpu, rates: Out<nvmlUtilization_t>) -> Answer {
    let gpu = gpu_percent(&dev.view()?);
    rates.put(nvmlUtilization_t { gpu, memory: gpu / 2 })
}

pub fn nvmlDeviceGetProcessUtilization(
    dev: Gpu,
    samples: Out<nvmlProcessUtilizationSample_t>,
    count: Out<u32>,
    since: u64,
) -> Answer {
    let view = dev.view()?;
    let to = newest(&view);
    let from =
        (oldest(&view)..=to).find(|w| stamp(&view, *w) > since).unwrap_or(to + 1).max((to + 1).saturating_sub(SPAN));
    let mut all = Vec::new();
    for p in &view.processes {
        let busy: u64 = (from..=to).map(|w| p.busy_in(w)).sum();
        let Some(last) = (from..=to).rev().find(|w| p.busy_in(*w) > 0) else { continue };
        let sm = percent(busy, to + 1 - from);
        all.push(nvmlProcessUtilizationSample_t {
            pid: p.pid,
            timeStamp: stamp(&view, last),
            smUtil: sm,
            memUtil: sm / 2,
            ..Default::default()
        });
    }
    if all.is_empty() {
        // No process was busy since that time. The needed capacity, 0, is still reported.
        count.put(0)?;
        return Err(code::NOT_FOUND);
    }
    if samples.is_null() {
        count.put(u32::try_from(all.len()).map_err(|_| code::UNKNOWN)?)?;
        return Err(code::SMALL);
    }
    samples.put_list(count, &all)
}

pub fn nvmlDeviceGetSamples(
    dev: Gpu,
    kind: u32,
    since: u64,
    value_type: Out<u32>,
    count: Out<u32>,
    samples: Out<nvmlSample_t>,
) -> Answer {
    let view = dev.view()?;
    let (from, to) = (oldest(&view), newest(&view));
    let value = |w: u64| {
        let gpu = percent(device_busy(&view, w), 1);
        Some(match kind {
            0 => crate::telemetry::milliwatts(&view, gpu),
            1 => gpu,
            2 => gpu / 2,
            3 | 4 => 0,
            5 => crate::telemetry::sm_mhz(&view),
            6 => view.profile.mem_mhz,
            _ => return None,
        })
    };
    if value(to).is_none() {
        return Err(if kind < 8 { code::UNSUPPORTED } else { code::INVALID });
    }
    let all: Vec<nvmlSample_t> = (from..=to)
        .map(|w| (stamp(&view, w), w))
        .filter(|(at, _)| *at > since)
        .filter_map(|(at, w)| Some(nvmlSample_t { timeStamp: at, sampleValue: nvmlValue_t { uiVal: value(w)? } }))
        .collect();
    value_type.put(1)?; // unsigned int
    if samples.is_null() {
        return count.put(u32::try_from(WINDOWS).map_err(|_| code::UNKNOWN)?);
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
        pub fn $name(dev: Gpu, percent: Out<u32>, period_us: Out<u32>) -> Answer {
            dev.view()?;
            percent.put(0)?;
            period_us.put(PERIOD_US)
        }
    )* };
}
idle_engine! {
    nvmlDeviceGetEncoderUtilization nvmlDeviceGetDecoderUtilization nvmlDeviceGetJpgUtilization
    nvmlDeviceGetOfaUtilization
}

pub fn nvmlDeviceGetEncoderStats(dev: Gpu, sessions: Out<u32>, fps: Out<u32>, latency_us: Out<u32>) -> Answer {
    dev.view()?;
    sessions.put(0)?;
    fps.put(0)?;
    latency_us.put(0)
}
