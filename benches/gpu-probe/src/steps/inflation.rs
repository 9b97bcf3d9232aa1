//! A kernel's time as events show it while another process keeps the device busy.
//!
//! On hardware the kernel of fixed work shows the inflation. The spin kernel does not count the time of others' slices,
//! so its event time shows the same. A simulated device does not execute device code; there only the spin kernel has a
//! meaning.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::StepOutput;
use crate::args::Options;
use crate::driver::{DriverHandle, ProbedDriver};
use crate::gpu::{LEGACY_STREAM, ProbedGpu, flags};
use crate::kernels::ProbeKernels;
use crate::stats::{series_json, series_median, to_float};
use crate::worker::{LINE_TIMEOUT, StepWorker, read_line, write_line};

/// Longest time that the neighbour keeps the device busy, as a safeguard.
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(25);

/// One kernel of the measurement.
struct InflationCase {
    key: String,
    kernel: DriverHandle,
    words: [u64; 2],
    repeats: usize,
}

pub fn run(options: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    let gpu = ProbedGpu::open(&driver, options.device)?;
    let kernels = ProbeKernels::load(&gpu)?;
    let stream = gpu.make_stream(flags::NON_BLOCKING_STREAM)?;
    gpu.warm_up(kernels.spin, 200_000_000)?;
    let scratch = gpu.alloc(8)?;

    let mut cases = Vec::new();
    for ms in [1, 10, 50] {
        let repeats = if options.quick { 5 } else { 15 };
        // This kernel has no second parameter: the driver reads as many words as the kernel declares.
        cases.push(InflationCase {
            key: format!("spin_{ms}_ms"),
            kernel: kernels.spin,
            words: [ms * 1_000_000, 0],
            repeats,
        });
        match rounds_for(&gpu, &kernels, stream, scratch, ms * 1_000_000) {
            Ok(rounds) => cases.push(InflationCase {
                key: format!("work_{ms}_ms"),
                kernel: kernels.work,
                words: [rounds, scratch],
                repeats,
            }),
            Err(error) => sink.put_failure(format_args!("work_{ms}_ms: {error}")),
        }
    }
    let measure = |case: &InflationCase| -> Result<Vec<f64>, String> {
        (0..case.repeats).map(|_| Ok(gpu.time_kernel(case.kernel, 1, 1, stream, case.words)?)).collect()
    };
    let mut results = Vec::new();
    for case in &cases {
        results.push((measure(case), Err("not measured".to_owned()), Err("not measured".to_owned())));
    }
    let mut neighbour = StepWorker::start("load", &[], options)?;
    neighbour.next_line(LINE_TIMEOUT)?;
    for (case, result) in cases.iter().zip(&mut results) {
        result.1 = measure(case);
    }
    let busy = neighbour.send_line("stop").and_then(|()| neighbour.next_line(LINE_TIMEOUT));
    neighbour.finish_worker(Duration::from_secs(5));
    for (case, result) in cases.iter().zip(&mut results) {
        result.2 = measure(case);
    }
    for (case, (alone, beside, again)) in cases.iter().zip(results) {
        sink.run_part(&case.key, || Ok(inflation_json(&alone?, &beside?, &again?)));
    }
    sink.run_part("neighbour", || busy);
    Ok(())
}

/// The three series and the ratio of their medians.
fn inflation_json(alone: &[f64], beside: &[f64], again: &[f64]) -> Value {
    let ratio = match (series_median(alone), series_median(beside)) {
        (Some(alone), Some(beside)) if alone > 0.0 => json!(beside / alone),
        _ => Value::Null,
    };
    json!({
        "alone_ns": series_json(alone), "beside_ns": series_json(beside), "alone_again_ns": series_json(again), "inflation": ratio,
    })
}

/// Number of rounds that the work kernel needs for `ns`, checked by a run of that length.
fn rounds_for(
    gpu: &ProbedGpu<'_>,
    kernels: &ProbeKernels,
    stream: DriverHandle,
    scratch: u64,
    ns: u64,
) -> Result<u64, String> {
    const TRIAL: u64 = 200_000;
    gpu.time_kernel(kernels.work, 1, 1, stream, [TRIAL, scratch])?;
    let trial = gpu.time_kernel(kernels.work, 1, 1, stream, [TRIAL, scratch])?;
    let wanted = to_float(ns);
    let rounds = to_float(TRIAL) * wanted / trial.max(1.0);
    // A round takes at least a few cycles. More than two rounds per nanosecond mean that the kernel did not do its
    // work.
    if !rounds.is_finite() || rounds < 1.0 || rounds > wanted * 2.0 {
        return Err(format!("{TRIAL} rounds took {trial} ns: this device does not execute device code"));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: between 1 and 2e8")]
    let rounds = rounds as u64;
    let got = gpu.time_kernel(kernels.work, 1, 1, stream, [rounds, scratch])?;
    if (got - wanted).abs() > wanted * 0.3 {
        return Err(format!("{rounds} rounds should take {ns} ns and took {got} ns"));
    }
    Ok(rounds)
}

/// In the neighbour: keeps the device busy with kernels of 20 ms, always two in the queue, until a line arrives.
pub fn play_neighbour(options: &Options) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    let gpu = ProbedGpu::open(&driver, options.device)?;
    let kernels = ProbeKernels::load(&gpu)?;
    let (sender, stop) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = read_line();
        // The loop below may have ended at its own limit.
        let _ = sender.send(());
    });
    let begun = Instant::now();
    let event = [gpu.make_event(0)?, gpu.make_event(0)?];
    let mut launched = 0_u64;
    loop {
        for event in event {
            if launched >= 2 {
                gpu.event_sync(event).ok()?;
            }
            gpu.launch(kernels.spin, 1, 1, LEGACY_STREAM, [20_000_000])?;
            gpu.record_event(event, LEGACY_STREAM).ok()?;
            launched += 1;
        }
        if launched == 2 {
            write_line(&json!({ "busy": true }));
        }
        if stop.try_recv().is_ok() || begun.elapsed() > NEIGHBOUR_TIMEOUT {
            break;
        }
    }
    gpu.synchronize()?;
    let wall = begun.elapsed().as_secs_f64() * 1e9;
    write_line(&json!({
        "kernels": launched, "wall_ns": wall,
        "ended_too_early": begun.elapsed() > NEIGHBOUR_TIMEOUT,
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inflation_is_the_ratio_of_the_medians() {
        let value = inflation_json(&[1.0, 1.0, 9.0], &[2.0, 2.0, 2.0], &[1.0]);
        assert_eq!(value["inflation"], 2.0);
        assert_eq!(inflation_json(&[], &[1.0], &[])["inflation"], Value::Null);
    }
}
