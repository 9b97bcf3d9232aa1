//! The processor time of a launch, and the device time of an empty kernel.

use std::time::Instant;

use serde_json::{Value, json};

use super::{StepOutput, per_call};
use crate::args::Options;
use crate::driver::{DriverHandle, ProbedDriver};
use crate::gpu::{LEGACY_STREAM, ProbedGpu, flags};
use crate::kernels::ProbeKernels;
use crate::stats::{count_to_float, series_json, series_median};

/// Launches per timed batch: far below the depth of any launch queue, so that no launch waits for the device.
const LAUNCHES_PER_READING: usize = 100;
/// Most launches after a long kernel that are tried to find the queue's depth.
const MAX_QUEUE_DEPTH: usize = 6000;
/// Length of that long kernel in ns.
const BLOCKER_NS: u64 = 300_000_000;

pub fn run(options: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    let gpu = ProbedGpu::open(&driver, options.device)?;
    let kernels = ProbeKernels::load(&gpu)?;
    let stream = gpu.make_stream(flags::NON_BLOCKING_STREAM)?;
    gpu.warm_up(kernels.spin, 100_000_000)?;
    let batches = if options.quick { 20 } else { 200 };

    for (key, stream) in [("launch_ns", stream), ("launch_legacy_stream_ns", LEGACY_STREAM)] {
        sink.run_part(key, || {
            let mut times = Vec::new();
            for _ in 0..batches {
                times.extend(per_call(1, LAUNCHES_PER_READING, || gpu.launch(kernels.null, 1, 1, stream, []))?);
                gpu.synchronize()?;
            }
            Ok(series_json(&times))
        });
    }
    sink.run_part("launch_sync_ns", || {
        let times = per_call(batches * 5, 1, || {
            gpu.launch(kernels.null, 1, 1, stream, [])?;
            gpu.stream_sync(stream).ok()
        })?;
        Ok(series_json(&times))
    });
    sink.run_part("sync_idle_ns", || {
        Ok(series_json(&per_call(batches, LAUNCHES_PER_READING, || gpu.stream_sync(stream).ok())?))
    });
    sink.run_part("null_kernel_device_ns", || {
        let (start, end) = (gpu.make_event(0)?, gpu.make_event(0)?);
        let mut times = Vec::new();
        for _ in 0..batches.min(50) {
            // A kernel in front keeps the device busy until all are queued, so the device's own pace is measured.
            gpu.launch(kernels.spin, 1, 1, stream, [3_000_000])?;
            gpu.record_event(start, stream).ok()?;
            for _ in 0..500 {
                gpu.launch(kernels.null, 1, 1, stream, [])?;
            }
            gpu.record_event(end, stream).ok()?;
            gpu.event_sync(end).ok()?;
            times.push(gpu.elapsed_ns(start, end)? / count_to_float(500));
        }
        Ok(json!(series_median(&times)))
    });
    sink.run_part("idle_start", || idle_start(&gpu, &kernels, stream, batches * 5));
    sink.run_part("queue_depth", || queue_depth(&gpu, &kernels));
    Ok(())
}

/// Length in ns of the kernel that is launched on an idle stream.
const LEAD_KERNEL_NS: u64 = 20_000;

/// How long after a begin marker a kernel starts on an idle stream, and the time of its launch call. The lead is the
/// time between the two markers, less the same kernel's time in a busy stream.
fn idle_start(
    gpu: &ProbedGpu<'_>,
    kernels: &ProbeKernels,
    stream: DriverHandle,
    rounds: usize,
) -> Result<Value, String> {
    const KERNELS: usize = 100;
    let (start, end) = (gpu.make_event(0)?, gpu.make_event(0)?);
    let launch = || gpu.launch(kernels.spin, 1, 1, stream, [LEAD_KERNEL_NS]);
    let (mut in_turn, mut between, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 20 == 0 {
            gpu.launch(kernels.spin, 1, 1, stream, [3_000_000])?;
            gpu.record_event(start, stream).ok()?;
            (0..KERNELS).try_for_each(|_| launch())?;
            gpu.record_event(end, stream).ok()?;
            gpu.stream_sync(stream).ok()?;
            in_turn.push(gpu.elapsed_ns(start, end)? / count_to_float(KERNELS));
        }
        gpu.record_event(start, stream).ok()?;
        let begun = Instant::now();
        launch()?;
        calls.push(begun.elapsed().as_nanos() as f64);
        gpu.record_event(end, stream).ok()?;
        gpu.stream_sync(stream).ok()?;
        between.push(gpu.elapsed_ns(start, end)?);
    }
    Ok(json!({
        "kernel_in_turn_ns": series_json(&in_turn),
        "between_markers_ns": series_json(&between),
        "launch_call_ns": series_json(&calls),
        "lead_ns": series_median(&between).zip(series_median(&in_turn)).map(|(between, kernel)| between - kernel),
    }))
}

/// Number of launches that fit after a long kernel before one waits; null if none waited.
fn queue_depth(gpu: &ProbedGpu<'_>, kernels: &ProbeKernels) -> Result<Value, String> {
    let stream = gpu.make_stream(flags::NON_BLOCKING_STREAM)?;
    gpu.launch(kernels.spin, 1, 1, stream, [BLOCKER_NS])?;
    let begun = Instant::now();
    let mut depth = Value::Null;
    for launched in 0..MAX_QUEUE_DEPTH {
        let start = Instant::now();
        gpu.launch(kernels.null, 1, 1, stream, [])?;
        if start.elapsed().as_millis() >= 10 {
            // The long kernel itself is in the queue too.
            depth = json!(launched + 1);
            break;
        }
        if begun.elapsed().as_millis() >= 250 {
            break;
        }
    }
    gpu.stream_sync(stream).ok()?;
    Ok(depth)
}
