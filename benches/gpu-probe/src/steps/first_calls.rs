//! The time of the first calls, each in a new process: the wait of a program before it can compute.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::Out;
use crate::args::Options;
use crate::driver::Driver;
use crate::gpu::{Gpu, LEGACY, device, init, pci};
use crate::kernels::Kernels;
use crate::nvml::Nvml;
use crate::stats::median;
use crate::worker::{Worker, tell};

pub fn run(options: &Options, sink: &mut Out) -> Result<(), String> {
    let rounds = if options.quick { 2 } else { 5 };
    let mut all: Vec<Value> = Vec::new();
    for _ in 0..rounds {
        let mut worker = Worker::start("first_calls", &[], options)?;
        match worker.line(Duration::from_secs(30)) {
            Ok(times) => all.push(times),
            Err(error) => sink.fail(error),
        }
        worker.finish(Duration::from_secs(5));
        sink.put("processes", json!(all));
    }
    sink.put("median", medians(&all));
    Ok(())
}

/// The median of each number over the processes.
fn medians(all: &[Value]) -> Value {
    let Some(Value::Object(first)) = all.first() else { return Value::Null };
    let mut result = Map::new();
    for name in first.keys() {
        let values: Vec<f64> = all.iter().filter_map(|times| times[name].as_f64()).collect();
        result.insert(name.clone(), json!(median(&values)));
    }
    Value::Object(result)
}

/// In the new process: makes every first call in turn and times it.
pub fn play(options: &Options) -> Result<(), String> {
    let mut times = Map::new();
    let mut last = Instant::now();
    let mut lap = |name: &str, last: &mut Instant| {
        times.insert(format!("{name}_ns"), json!((last.elapsed().as_secs_f64() * 1e9).round()));
        *last = Instant::now();
    };
    let driver = Driver::load()?;
    lap("load_library", &mut last);
    init(&driver)?;
    lap("init", &mut last);
    let handle = device(&driver, options.device)?;
    lap("device_get", &mut last);
    let gpu = Gpu { driver: &driver, device: handle, context: Gpu::retain(&driver, handle)? };
    lap("primary_retain", &mut last);
    gpu.make_current()?;
    lap("set_current", &mut last);
    gpu.mem_info()?;
    lap("mem_get_info", &mut last);
    let pointer = gpu.alloc(1)?;
    lap("alloc", &mut last);
    gpu.free(pointer)?;
    lap("free", &mut last);
    let kernels = Kernels::load(&gpu)?;
    lap("module_load", &mut last);
    gpu.launch(kernels.null, 1, 1, LEGACY, [])?;
    lap("launch", &mut last);
    gpu.sync()?;
    lap("sync", &mut last);
    gpu.launch(kernels.null, 1, 1, LEGACY, [])?;
    gpu.sync()?;
    lap("second_launch_and_sync", &mut last);
    let stream = gpu.stream(1)?;
    lap("stream_create", &mut last);
    gpu.stream_sync(stream).ok()?;
    lap("stream_sync", &mut last);
    let address = pci(&driver, handle)?;
    lap("pci", &mut last);
    // NVML is a separate library; without it the other times remain valid.
    if let Ok(nvml) = Nvml::open(&address) {
        lap("nvml_load_init_and_find", &mut last);
        if nvml.memory().is_ok() {
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
    tell(&Value::Object(times));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_taken_per_number() {
        let all = [json!({"a_ns": 1.0, "b_ns": 10.0}), json!({"a_ns": 3.0}), json!({"a_ns": 2.0, "b_ns": 20.0})];
        assert_eq!(medians(&all), json!({"a_ns": 2.0, "b_ns": 15.0}));
        assert_eq!(medians(&[]), Value::Null);
    }
}
