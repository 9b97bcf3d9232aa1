//! A kernel's time as events show it while another process keeps the device busy.
//!
//! On hardware the kernel of fixed work shows the inflation. The spin kernel does not count the time of others' slices,
//! so its event time shows the same. A simulated device does not execute device code; there only the spin kernel has a
//! meaning.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Out;
use crate::args::Options;
use crate::driver::{Driver, Handle};
use crate::gpu::{Gpu, LEGACY, flags};
use crate::kernels::Kernels;
use crate::stats::{float, median, summary};
use crate::worker::{PATIENCE, Worker, hear, tell};

/// Longest time that the neighbour keeps the device busy, as a safeguard.
const NEIGHBOUR_AT_MOST: Duration = Duration::from_secs(25);

/// One kernel of the measurement.
struct Case {
    key: String,
    kernel: Handle,
    words: [u64; 2],
    repeats: usize,
}

pub fn run(options: &Options, sink: &mut Out) -> Result<(), String> {
    let driver = Driver::load()?;
    let gpu = Gpu::open(&driver, options.device)?;
    let kernels = Kernels::load(&gpu)?;
    let stream = gpu.stream(flags::NON_BLOCKING)?;
    gpu.warm(kernels.spin, 200_000_000)?;
    let scratch = gpu.alloc(8)?;

    let mut cases = Vec::new();
    for ms in [1, 10, 50] {
        let repeats = if options.quick { 5 } else { 15 };
        // This kernel has no second parameter: the driver reads as many words as the kernel declares.
        cases.push(Case { key: format!("spin_{ms}_ms"), kernel: kernels.spin, words: [ms * 1_000_000, 0], repeats });
        match rounds_for(&gpu, &kernels, stream, scratch, ms * 1_000_000) {
            Ok(rounds) => cases.push(Case {
                key: format!("work_{ms}_ms"),
                kernel: kernels.work,
                words: [rounds, scratch],
                repeats,
            }),
            Err(error) => sink.fail(format_args!("work_{ms}_ms: {error}")),
        }
    }
    let measure = |case: &Case| -> Result<Vec<f64>, String> {
        (0..case.repeats).map(|_| Ok(gpu.timed(case.kernel, 1, 1, stream, case.words)?)).collect()
    };
    let mut results = Vec::new();
    for case in &cases {
        results.push((measure(case), Err("not measured".to_owned()), Err("not measured".to_owned())));
    }
    let mut neighbour = Worker::start("load", &[], options)?;
    neighbour.line(PATIENCE)?;
    for (case, result) in cases.iter().zip(&mut results) {
        result.1 = measure(case);
    }
    let busy = neighbour.say("stop").and_then(|()| neighbour.line(PATIENCE));
    neighbour.finish(Duration::from_secs(5));
    for (case, result) in cases.iter().zip(&mut results) {
        result.2 = measure(case);
    }
    for (case, (alone, beside, again)) in cases.iter().zip(results) {
        sink.attempt(&case.key, || Ok(inflation(&alone?, &beside?, &again?)));
    }
    sink.attempt("neighbour", || busy);
    Ok(())
}

/// The three series and the ratio of their medians.
fn inflation(alone: &[f64], beside: &[f64], again: &[f64]) -> Value {
    let ratio = match (median(alone), median(beside)) {
        (Some(alone), Some(beside)) if alone > 0.0 => json!(beside / alone),
        _ => Value::Null,
    };
    json!({
        "alone_ns": summary(alone), "beside_ns": summary(beside), "alone_again_ns": summary(again), "inflation": ratio,
    })
}

/// Number of rounds that the work kernel needs for `ns`, checked by a run of that length.
fn rounds_for(gpu: &Gpu<'_>, kernels: &Kernels, stream: Handle, scratch: u64, ns: u64) -> Result<u64, String> {
    const TRIAL: u64 = 200_000;
    gpu.timed(kernels.work, 1, 1, stream, [TRIAL, scratch])?;
    let trial = gpu.timed(kernels.work, 1, 1, stream, [TRIAL, scratch])?;
    let wanted = float(ns);
    let rounds = float(TRIAL) * wanted / trial.max(1.0);
    // A round takes at least a few cycles. More than two rounds per nanosecond mean that the kernel did not do its
    // work.
    if !rounds.is_finite() || rounds < 1.0 || rounds > wanted * 2.0 {
        return Err(format!("{TRIAL} rounds took {trial} ns: this device does not execute device code"));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: between 1 and 2e8")]
    let rounds = rounds as u64;
    let got = gpu.timed(kernels.work, 1, 1, stream, [rounds, scratch])?;
    if (got - wanted).abs() > wanted * 0.3 {
        return Err(format!("{rounds} rounds should take {ns} ns and took {got} ns"));
    }
    Ok(rounds)
}

/// In the neighbour: keeps the device busy with kernels of 20 ms, always two in the queue, until a line arrives.
pub fn play(options: &Options) -> Result<(), String> {
    let driver = Driver::load()?;
    let gpu = Gpu::open(&driver, options.device)?;
    let kernels = Kernels::load(&gpu)?;
    let (sender, stop) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = hear();
        // The loop below may have ended at its own limit.
        let _ = sender.send(());
    });
    let begun = Instant::now();
    let event = [gpu.event(0)?, gpu.event(0)?];
    let mut launched = 0_u64;
    loop {
        for event in event {
            if launched >= 2 {
                gpu.event_sync(event).ok()?;
            }
            gpu.launch(kernels.spin, 1, 1, LEGACY, [20_000_000])?;
            gpu.record(event, LEGACY).ok()?;
            launched += 1;
        }
        if launched == 2 {
            tell(&json!({ "busy": true }));
        }
        if stop.try_recv().is_ok() || begun.elapsed() > NEIGHBOUR_AT_MOST {
            break;
        }
    }
    gpu.sync()?;
    let wall = begun.elapsed().as_secs_f64() * 1e9;
    tell(&json!({
        "kernels": launched, "wall_ns": wall,
        "ended_too_early": begun.elapsed() > NEIGHBOUR_AT_MOST,
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inflation_is_the_ratio_of_the_medians() {
        let value = inflation(&[1.0, 1.0, 9.0], &[2.0, 2.0, 2.0], &[1.0]);
        assert_eq!(value["inflation"], 2.0);
        assert_eq!(inflation(&[], &[1.0], &[])["inflation"], Value::Null);
    }
}
