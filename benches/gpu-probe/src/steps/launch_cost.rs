//! The processor time of a launch, and the device time of an empty kernel.

use std::time::Instant;

use serde_json::{Value, json};

use super::{Out, per_call};
use crate::args::Options;
use crate::driver::Driver;
use crate::gpu::{Gpu, LEGACY, flags};
use crate::kernels::Kernels;
use crate::stats::{count, median, summary};

/// Launches per timed batch: far below the depth of any launch queue, so that no launch waits for the device.
const BATCH: usize = 100;
/// Most launches after a long kernel that are tried to find the queue's depth.
const DEEPEST: usize = 6000;
/// Length of that long kernel in ns.
const BLOCKER_NS: u64 = 300_000_000;

pub fn run(options: &Options, sink: &mut Out) -> Result<(), String> {
    let driver = Driver::load()?;
    let gpu = Gpu::open(&driver, options.device)?;
    let kernels = Kernels::load(&gpu)?;
    let stream = gpu.stream(flags::NON_BLOCKING)?;
    gpu.warm(kernels.spin, 100_000_000)?;
    let batches = if options.quick { 20 } else { 200 };

    for (key, stream) in [("launch_ns", stream), ("launch_legacy_stream_ns", LEGACY)] {
        sink.attempt(key, || {
            let mut times = Vec::new();
            for _ in 0..batches {
                times.extend(per_call(1, BATCH, || gpu.launch(kernels.null, 1, 1, stream, []))?);
                gpu.sync()?;
            }
            Ok(summary(&times))
        });
    }
    sink.attempt("launch_sync_ns", || {
        let times = per_call(batches * 5, 1, || {
            gpu.launch(kernels.null, 1, 1, stream, [])?;
            gpu.stream_sync(stream).ok()
        })?;
        Ok(summary(&times))
    });
    sink.attempt("sync_idle_ns", || Ok(summary(&per_call(batches, BATCH, || gpu.stream_sync(stream).ok())?)));
    sink.attempt("null_kernel_device_ns", || {
        let (start, end) = (gpu.event(0)?, gpu.event(0)?);
        let mut times = Vec::new();
        for _ in 0..batches.min(50) {
            // A kernel in front keeps the device busy until all are queued, so the device's own pace is measured.
            gpu.launch(kernels.spin, 1, 1, stream, [3_000_000])?;
            gpu.record(start, stream).ok()?;
            for _ in 0..500 {
                gpu.launch(kernels.null, 1, 1, stream, [])?;
            }
            gpu.record(end, stream).ok()?;
            gpu.event_sync(end).ok()?;
            times.push(gpu.elapsed_ns(start, end)? / count(500));
        }
        Ok(json!(median(&times)))
    });
    sink.attempt("queue_depth", || queue_depth(&gpu, &kernels));
    Ok(())
}

/// Number of launches that fit after a long kernel before one waits; null if none waited.
fn queue_depth(gpu: &Gpu<'_>, kernels: &Kernels) -> Result<Value, String> {
    let stream = gpu.stream(flags::NON_BLOCKING)?;
    gpu.launch(kernels.spin, 1, 1, stream, [BLOCKER_NS])?;
    let begun = Instant::now();
    let mut depth = Value::Null;
    for launched in 0..DEEPEST {
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
