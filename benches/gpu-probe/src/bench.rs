//! `--bench`: times one kind of call in this process, for comparisons with and without a preloaded library.
//!
//! Prints one JSON object. The caller compares the objects of several processes (benches/hardware).

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::args::BenchOptions;
use crate::driver::ProbedDriver;
use crate::gpu::{ProbedGpu, flags};
use crate::kernels::ProbeKernels;
use crate::stats::{count_to_float, series_json, to_float};
use crate::steps::per_call;

/// Kinds of calls that `--bench` can time.
pub const BENCH_KINDS: &[&str] = &["launch", "alloc", "meminfo", "dlsym", "spin"];

/// Runs the bench and prints its result.
pub fn run(bench: &BenchOptions) -> ExitCode {
    match measure_bench(bench) {
        Ok(value) => {
            println!("{value}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{}", json!({ "bench": bench.kind, "error": error }));
            ExitCode::FAILURE
        }
    }
}

fn measure_bench(bench: &BenchOptions) -> Result<Value, String> {
    let driver = ProbedDriver::load()?;
    let gpu = ProbedGpu::open(&driver, bench.device)?;
    let value = match bench.kind.as_str() {
        "spin" => measure_spin(&gpu, bench)?,
        kind => json!({ "unit": "ns a call", "times": series_json(&call_times(&gpu, &driver, kind, bench)?) }),
    };
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|e| format!("/proc/self/maps: {e}"))?;
    Ok(json!({ "bench": bench.kind, "libvgpu_mapped": maps.contains("/libvgpu.so"), "result": value }))
}

fn call_times(
    gpu: &ProbedGpu<'_>,
    driver: &ProbedDriver,
    kind: &str,
    bench: &BenchOptions,
) -> Result<Vec<f64>, String> {
    let kernels = ProbeKernels::load(gpu)?;
    let stream = gpu.make_stream(flags::NON_BLOCKING_STREAM)?;
    gpu.warm_up(kernels.spin, 100_000_000)?;
    let mut times = Vec::with_capacity(bench.batches);
    for _ in 0..bench.batches {
        let batch = match kind {
            "launch" => per_call(1, bench.batch, || gpu.launch(kernels.null, 1, 1, stream, [])),
            "alloc" => per_call(1, bench.batch, || gpu.alloc(4096).and_then(|pointer| gpu.free(pointer))),
            "meminfo" => per_call(1, bench.batch, || gpu.mem_info().map(drop)),
            "dlsym" => per_call(1, bench.batch, || {
                std::hint::black_box(driver.export_address(c"cuModuleGetGlobal_v2"));
                Ok(())
            }),
            other => return Err(format!("{other} is not a bench")),
        };
        times.extend(batch?);
        gpu.stream_sync(stream).ok()?;
        std::thread::sleep(Duration::from_micros(bench.pause_us));
    }
    Ok(times)
}

/// Runs kernels of a known length with a wait after each batch, and measures how busy the device was.
fn measure_spin(gpu: &ProbedGpu<'_>, bench: &BenchOptions) -> Result<Value, String> {
    let kernels = ProbeKernels::load(gpu)?;
    let stream = gpu.make_stream(flags::NON_BLOCKING_STREAM)?;
    gpu.warm_up(kernels.spin, 50_000_000)?;
    let begun = Instant::now();
    let mut total = 0;
    while begun.elapsed().as_secs_f64() < bench.seconds {
        for _ in 0..bench.batch {
            gpu.launch(kernels.spin, 1, 1, stream, [bench.kernel_ns])?;
        }
        gpu.stream_sync(stream).ok()?;
        total += bench.batch;
    }
    let wall_ns = begun.elapsed().as_secs_f64() * 1e9;
    let busy_ns = count_to_float(total) * to_float(bench.kernel_ns);
    Ok(json!({ "kernels": total, "busy_ns": busy_ns, "wall_ns": wall_ns, "share": busy_ns / wall_ns }))
}
