//! The device's own timer, and how precisely the spin kernel takes the requested time.

use serde_json::{Map, Value, json};

use super::Out;
use crate::args::Options;
use crate::driver::{Driver, Handle};
use crate::gpu::{Gpu, LEGACY, flags};
use crate::kernels::{HEAD_WORDS, Kernels, RECORD_WORDS, Recording};
use crate::stats::{float, summary};

/// Reason for a missing recording although every call succeeded.
pub const NOT_EXECUTED: &str = "the kernel wrote nothing: this device does not execute device code";

/// Number of records that a recording can hold.
pub const CAPACITY: usize = 4096;

pub fn run(options: &Options, sink: &mut Out) -> Result<(), String> {
    let driver = Driver::load()?;
    let gpu = Gpu::open(&driver, options.device)?;
    let kernels = Kernels::load(&gpu)?;
    let stream = gpu.stream(flags::NON_BLOCKING)?;
    gpu.warm(kernels.spin, 100_000_000)?;

    let mut spins = Map::new();
    let repeats = if options.quick { 5 } else { 20 };
    for ns in [10_000, 100_000, 1_000_000, 10_000_000] {
        let times: Result<Vec<f64>, _> = (0..repeats).map(|_| gpu.timed(kernels.spin, 1, 1, stream, [ns])).collect();
        match times {
            Ok(times) => drop(spins.insert(ns.to_string(), summary(&times))),
            Err(failure) => sink.fail(format_args!("spin of {ns} ns: {failure}")),
        }
    }
    sink.put("spin_event_ns", Value::Object(spins));
    match recorded(&gpu, kernels.slices, 1, 1, 20_000_000, LEGACY)? {
        Some(recording) => {
            let wall = float(recording.last.saturating_sub(recording.first));
            sink.put("step_ns", json!(recording.smallest_step));
            sink.put("reading_ns", json!(wall / float(recording.readings)));
            sink.put("largest_step_below_20_us_ns", json!(recording.largest_step));
            sink.put("cycles_per_ns", json!(float(recording.cycles.1.wrapping_sub(recording.cycles.0)) / wall));
            sink.put("gaps_when_alone", json!(recording.gaps));
        }
        None => sink.fail(format_args!("timer: {NOT_EXECUTED}")),
    }
    Ok(())
}

/// Runs the recording kernel with a threshold of 20 us; `None` if it wrote nothing.
pub fn recorded(
    gpu: &Gpu<'_>,
    kernel: Handle,
    grid: u32,
    block: u32,
    ns: u64,
    stream: Handle,
) -> Result<Option<Recording>, String> {
    let words = HEAD_WORDS + CAPACITY * RECORD_WORDS;
    let out = gpu.alloc(words * 8)?;
    gpu.zero(out, words * 8)?;
    gpu.sync()?;
    gpu.launch(kernel, grid, block, stream, [out, CAPACITY as u64, ns, 20_000])?;
    gpu.sync()?;
    let recording = Recording::read(&gpu.read(out, words)?);
    gpu.free(out)?;
    Ok(recording)
}
