//! The device's own timer, and how precisely the spin kernel takes the requested time.

use serde_json::{Map, Value, json};

use super::StepOutput;
use crate::args::Options;
use crate::driver::{DriverHandle, ProbedDriver};
use crate::gpu::{LEGACY_STREAM, ProbedGpu, flags};
use crate::kernels::{HEAD_WORDS, ProbeKernels, RECORD_WORDS, SliceRecording};
use crate::stats::{series_json, to_float};

/// Reason for a missing recording although every call succeeded.
pub const NOT_EXECUTED: &str = "the kernel wrote nothing: this device does not execute device code";

/// Number of records that a recording can hold.
pub const RECORDING_CAPACITY: usize = 4096;

pub fn run(options: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    let gpu = ProbedGpu::open(&driver, options.device)?;
    let kernels = ProbeKernels::load(&gpu)?;
    let stream = gpu.make_stream(flags::NON_BLOCKING_STREAM)?;
    gpu.warm_up(kernels.spin, 100_000_000)?;

    let mut spins = Map::new();
    let repeats = if options.quick { 5 } else { 20 };
    for ns in [10_000, 100_000, 1_000_000, 10_000_000] {
        let times: Result<Vec<f64>, _> =
            (0..repeats).map(|_| gpu.time_kernel(kernels.spin, 1, 1, stream, [ns])).collect();
        match times {
            Ok(times) => drop(spins.insert(ns.to_string(), series_json(&times))),
            Err(failure) => sink.put_failure(format_args!("spin of {ns} ns: {failure}")),
        }
    }
    sink.put_value("spin_event_ns", Value::Object(spins));
    match record_gaps(&gpu, kernels.slices, 1, 1, 20_000_000, LEGACY_STREAM)? {
        Some(recording) => {
            let wall = to_float(recording.last.saturating_sub(recording.first));
            sink.put_value("step_ns", json!(recording.smallest_step));
            sink.put_value("reading_ns", json!(wall / to_float(recording.readings)));
            sink.put_value("largest_step_below_20_us_ns", json!(recording.largest_step));
            sink.put_value(
                "cycles_per_ns",
                json!(to_float(recording.cycles.1.wrapping_sub(recording.cycles.0)) / wall),
            );
            sink.put_value("gaps_when_alone", json!(recording.gaps));
        }
        None => sink.put_failure(format_args!("timer: {NOT_EXECUTED}")),
    }
    Ok(())
}

/// Runs the recording kernel with a threshold of 20 us; `None` if it wrote nothing.
pub fn record_gaps(
    gpu: &ProbedGpu<'_>,
    kernel: DriverHandle,
    grid: u32,
    block: u32,
    ns: u64,
    stream: DriverHandle,
) -> Result<Option<SliceRecording>, String> {
    let words = HEAD_WORDS + RECORDING_CAPACITY * RECORD_WORDS;
    let out = gpu.alloc(words * 8)?;
    gpu.fill_zero(out, words * 8)?;
    gpu.synchronize()?;
    gpu.launch(kernel, grid, block, stream, [out, RECORDING_CAPACITY as u64, ns, 20_000])?;
    gpu.synchronize()?;
    let recording = SliceRecording::read(&gpu.read(out, words)?);
    gpu.free(out)?;
    Ok(recording)
}
