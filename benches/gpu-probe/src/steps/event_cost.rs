//! The cost of events: processor time for each call, device time for each record.

use serde_json::{Value, json};

use super::{StepOutput, per_call};
use crate::args::Options;
use crate::driver::{DriverHandle, ProbedDriver};
use crate::gpu::{ProbedGpu, flags};
use crate::kernels::ProbeKernels;
use crate::stats::{count_to_float, series_json, series_median};

const EVENTS_PER_BATCH: usize = 100;

pub fn run(options: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    let gpu = ProbedGpu::open(&driver, options.device)?;
    let kernels = ProbeKernels::load(&gpu)?;
    let stream = gpu.make_stream(flags::NON_BLOCKING_STREAM)?;
    gpu.warm_up(kernels.spin, 100_000_000)?;
    let batches = if options.quick { 20 } else { 200 };
    let (start, end) = (gpu.make_event(0)?, gpu.make_event(0)?);
    let untimed = gpu.make_event(flags::NO_TIMING)?;

    for (key, event) in [("record_ns", start), ("record_no_timing_ns", untimed)] {
        sink.run_part(key, || {
            let mut times = Vec::new();
            for _ in 0..batches {
                times.extend(per_call(1, EVENTS_PER_BATCH, || gpu.record_event(event, stream).ok())?);
                gpu.stream_sync(stream).ok()?;
            }
            Ok(series_json(&times))
        });
    }
    sink.run_part("query_done_ns", || {
        gpu.record_event(start, stream).ok()?;
        gpu.stream_sync(stream).ok()?;
        Ok(series_json(&per_call(batches, EVENTS_PER_BATCH, || gpu.query_event(start).ok())?))
    });
    sink.run_part("query_busy_ns", || {
        let (mut times, mut last) = (Vec::new(), 0);
        for _ in 0..batches.min(50) {
            gpu.launch(kernels.spin, 1, 1, stream, [3_000_000])?;
            gpu.record_event(end, stream).ok()?;
            let batch = per_call(1, 20, || {
                // This times the answer 600, not ready; 0 would mean that the kernel is already complete.
                let _ = gpu.query_event(end);
                Ok(())
            })?;
            last = gpu.query_event(end).value;
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
        Ok(series_json(&times))
    });
    sink.run_part("elapsed_ns", || {
        gpu.record_event(start, stream).ok()?;
        gpu.record_event(end, stream).ok()?;
        gpu.stream_sync(stream).ok()?;
        Ok(series_json(&per_call(batches, EVENTS_PER_BATCH, || gpu.elapsed_ns(start, end).map(drop))?))
    });
    sink.run_part("create_destroy_ns", || {
        Ok(series_json(&per_call(batches, EVENTS_PER_BATCH, || {
            gpu.make_event(0).and_then(|event| gpu.event_destroy(event))
        })?))
    });
    sink.run_part("stream_query_idle_ns", || {
        Ok(series_json(&per_call(batches, EVENTS_PER_BATCH, || gpu.stream_query(stream).ok())?))
    });
    sink.run_part("empty_interval_ns", || {
        let mut times = Vec::new();
        for _ in 0..batches {
            gpu.record_event(start, stream).ok()?;
            gpu.record_event(end, stream).ok()?;
            gpu.stream_sync(stream).ok()?;
            times.push(gpu.elapsed_ns(start, end)?);
        }
        Ok(series_json(&times))
    });
    sink.run_part("record_device_ns", || on_the_device(&gpu, &kernels, stream, batches.min(30)));
    Ok(())
}

/// Device time of a record between two kernels: the same kernels are queued with and without records, in turn.
fn on_the_device(
    gpu: &ProbedGpu<'_>,
    kernels: &ProbeKernels,
    stream: DriverHandle,
    rounds: usize,
) -> Result<Value, String> {
    const KERNELS: usize = 200;
    let (start, end, between) = (gpu.make_event(0)?, gpu.make_event(0)?, gpu.make_event(0)?);
    let mut differences = Vec::new();
    for _ in 0..rounds {
        let mut times = [0.0; 2];
        for (records, time) in times.iter_mut().enumerate() {
            gpu.launch(kernels.spin, 1, 1, stream, [3_000_000])?;
            gpu.record_event(start, stream).ok()?;
            for _ in 0..KERNELS {
                gpu.launch(kernels.null, 1, 1, stream, [])?;
                if records == 1 {
                    gpu.record_event(between, stream).ok()?;
                }
            }
            gpu.record_event(end, stream).ok()?;
            gpu.event_sync(end).ok()?;
            *time = gpu.elapsed_ns(start, end)?;
        }
        differences.push((times[1] - times[0]) / count_to_float(KERNELS));
    }
    Ok(json!(series_median(&differences)))
}
