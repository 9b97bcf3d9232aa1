//! The cost of events: processor time for each call, device time for each record.

use serde_json::{Value, json};

use super::{Out, per_call};
use crate::args::Options;
use crate::driver::{Driver, Handle};
use crate::gpu::{Gpu, flags};
use crate::kernels::Kernels;
use crate::stats::{count, median, summary};

const BATCH: usize = 100;

pub fn run(options: &Options, sink: &mut Out) -> Result<(), String> {
    let driver = Driver::load()?;
    let gpu = Gpu::open(&driver, options.device)?;
    let kernels = Kernels::load(&gpu)?;
    let stream = gpu.stream(flags::NON_BLOCKING)?;
    gpu.warm(kernels.spin, 100_000_000)?;
    let batches = if options.quick { 20 } else { 200 };
    let (start, end) = (gpu.event(0)?, gpu.event(0)?);
    let untimed = gpu.event(flags::NO_TIMING)?;

    for (key, event) in [("record_ns", start), ("record_no_timing_ns", untimed)] {
        sink.attempt(key, || {
            let mut times = Vec::new();
            for _ in 0..batches {
                times.extend(per_call(1, BATCH, || gpu.record(event, stream).ok())?);
                gpu.stream_sync(stream).ok()?;
            }
            Ok(summary(&times))
        });
    }
    sink.attempt("query_done_ns", || {
        gpu.record(start, stream).ok()?;
        gpu.stream_sync(stream).ok()?;
        Ok(summary(&per_call(batches, BATCH, || gpu.query(start).ok())?))
    });
    sink.attempt("query_busy_ns", || {
        let (mut times, mut last) = (Vec::new(), 0);
        for _ in 0..batches.min(50) {
            gpu.launch(kernels.spin, 1, 1, stream, [3_000_000])?;
            gpu.record(end, stream).ok()?;
            let batch = per_call(1, 20, || {
                // This times the answer 600, not ready; 0 would mean that the kernel is already complete.
                let _ = gpu.query(end);
                Ok(())
            })?;
            last = gpu.query(end).value;
            gpu.stream_sync(stream).ok()?;
            // If the host was busy for 3 ms, the kernel has ended and the batch timed something else. It does not
            // count.
            if last == 600 {
                times.extend(batch);
            }
        }
        if times.is_empty() {
            return Err(format!("the event answered {last} whenever a 3 ms kernel should have been running"));
        }
        Ok(summary(&times))
    });
    sink.attempt("elapsed_ns", || {
        gpu.record(start, stream).ok()?;
        gpu.record(end, stream).ok()?;
        gpu.stream_sync(stream).ok()?;
        Ok(summary(&per_call(batches, BATCH, || gpu.elapsed_ns(start, end).map(drop))?))
    });
    sink.attempt("create_destroy_ns", || {
        Ok(summary(&per_call(batches, BATCH, || gpu.event(0).and_then(|event| gpu.event_destroy(event)))?))
    });
    sink.attempt("stream_query_idle_ns", || Ok(summary(&per_call(batches, BATCH, || gpu.stream_query(stream).ok())?)));
    sink.attempt("empty_interval_ns", || {
        let mut times = Vec::new();
        for _ in 0..batches {
            gpu.record(start, stream).ok()?;
            gpu.record(end, stream).ok()?;
            gpu.stream_sync(stream).ok()?;
            times.push(gpu.elapsed_ns(start, end)?);
        }
        Ok(summary(&times))
    });
    sink.attempt("record_device_ns", || on_the_device(&gpu, &kernels, stream, batches.min(30)));
    Ok(())
}

/// Device time of a record between two kernels: the same kernels are queued with and without records, in turn.
fn on_the_device(gpu: &Gpu<'_>, kernels: &Kernels, stream: Handle, rounds: usize) -> Result<Value, String> {
    const KERNELS: usize = 200;
    let (start, end, between) = (gpu.event(0)?, gpu.event(0)?, gpu.event(0)?);
    let mut differences = Vec::new();
    for _ in 0..rounds {
        let mut times = [0.0; 2];
        for (records, time) in times.iter_mut().enumerate() {
            gpu.launch(kernels.spin, 1, 1, stream, [3_000_000])?;
            gpu.record(start, stream).ok()?;
            for _ in 0..KERNELS {
                gpu.launch(kernels.null, 1, 1, stream, [])?;
                if records == 1 {
                    gpu.record(between, stream).ok()?;
                }
            }
            gpu.record(end, stream).ok()?;
            gpu.event_sync(end).ok()?;
            *time = gpu.elapsed_ns(start, end)?;
        }
        differences.push((times[1] - times[0]) / count(KERNELS));
    }
    Ok(json!(median(&differences)))
}
