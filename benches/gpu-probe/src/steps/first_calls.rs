//! The time of the first calls, each in a new process: the wait of a program before it can compute.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::StepOutput;
use crate::args::Options;
use crate::driver::ProbedDriver;
use crate::gpu::{LEGACY_STREAM, ProbedGpu, device_of_ordinal, init, pci_address};
use crate::kernels::ProbeKernels;
use crate::nvml::ProbedNvml;
use crate::stats::series_median;
use crate::worker::{StepWorker, write_line};

pub fn run(options: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let rounds = if options.quick { 2 } else { 5 };
    let mut all: Vec<Value> = Vec::new();
    for _ in 0..rounds {
        let mut worker = StepWorker::start("first_calls", &[], options)?;
        match worker.next_line(Duration::from_secs(30)) {
            Ok(times) => all.push(times),
            Err(error) => sink.put_failure(error),
        }
        worker.finish_worker(Duration::from_secs(5));
        sink.put_value("processes", json!(all));
    }
    sink.put_value("median", median_of_each(&all));
    Ok(())
}

/// The median of each number over the processes.
fn median_of_each(all: &[Value]) -> Value {
    let Some(Value::Object(first)) = all.first() else { return Value::Null };
    let mut result = Map::new();
    for name in first.keys() {
        let values: Vec<f64> = all.iter().filter_map(|times| times[name].as_f64()).collect();
        result.insert(name.clone(), json!(series_median(&values)));
    }
    Value::Object(result)
}

/// In the new process: makes every first call in turn and times it.
pub fn play_calls(options: &Options) -> Result<(), String> {
    let mut times = Map::new();
    let mut last = Instant::now();
    let mut lap = |name: &str, last: &mut Instant| {
        times.insert(format!("{name}_ns"), json!((last.elapsed().as_secs_f64() * 1e9).round()));
        *last = Instant::now();
    };
    let driver = ProbedDriver::load()?;
    lap("load_library", &mut last);
    init(&driver)?;
    lap("init", &mut last);
    let handle = device_of_ordinal(&driver, options.device)?;
    lap("device_get", &mut last);
    let gpu = ProbedGpu { driver: &driver, device: handle, context: ProbedGpu::retain_primary(&driver, handle)? };
    lap("primary_retain", &mut last);
    gpu.make_current()?;
    lap("set_current", &mut last);
    gpu.mem_info()?;
    lap("mem_get_info", &mut last);
    let pointer = gpu.alloc(1)?;
    lap("alloc", &mut last);
    gpu.free(pointer)?;
    lap("free", &mut last);
    let kernels = ProbeKernels::load(&gpu)?;
    lap("module_load", &mut last);
    gpu.launch(kernels.null, 1, 1, LEGACY_STREAM, [])?;
    lap("launch", &mut last);
    gpu.synchronize()?;
    lap("sync", &mut last);
    gpu.launch(kernels.null, 1, 1, LEGACY_STREAM, [])?;
    gpu.synchronize()?;
    lap("second_launch_and_sync", &mut last);
    let stream = gpu.make_stream(1)?;
    lap("stream_create", &mut last);
    gpu.stream_sync(stream).ok()?;
    lap("stream_sync", &mut last);
    let address = pci_address(&driver, handle)?;
    lap("pci", &mut last);
    // NVML is a separate library; without it the other times remain valid.
    if let Ok(nvml) = ProbedNvml::open(&address) {
        lap("nvml_load_init_and_find", &mut last);
        if nvml.read_memory().is_ok() {
            lap("nvml_memory", &mut last);
        }
    }
    let mut second = std::ptr::null_mut();
    // SAFETY: the pointer is to a local handle.
    if unsafe { driver.context_create(&raw mut second, 0, handle) }.ok().is_ok() {
        lap("second_context_create", &mut last);
        // SAFETY: the context was created just above, and nothing else uses it.
        if unsafe { driver.context_destroy(second) }.ok().is_ok() {
            lap("second_context_destroy", &mut last);
        }
    }
    // SAFETY: the context was retained above, and nothing uses it afterwards.
    let released = unsafe { driver.primary_release(handle) };
    if released.ok().is_ok() {
        lap("primary_release", &mut last);
    }
    write_line(&Value::Object(times));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_taken_per_number() {
        let all = [json!({"a_ns": 1.0, "b_ns": 10.0}), json!({"a_ns": 3.0}), json!({"a_ns": 2.0, "b_ns": 20.0})];
        assert_eq!(median_of_each(&all), json!({"a_ns": 2.0, "b_ns": 15.0}));
        assert_eq!(median_of_each(&[]), Value::Null);
    }
}
