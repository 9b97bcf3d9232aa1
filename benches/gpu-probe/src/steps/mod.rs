//! The table of steps, and running one of them in this process.
//!
//! Order: valuable and safe steps first, steps of several processes later, the long matrix last.

mod alloc_cost;
mod call_costs;
mod capture;
mod context_overhead;
mod device;
mod elf;
mod event_cost;
mod first_calls;
mod granularity;
mod host;
mod inflation;
mod launch_cost;
mod proc_address;
mod slices;
mod slices_math;
mod timer;
mod versions;

use std::io::Stdout;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;

use crate::args::Options;
use crate::driver::CallFailure;
use crate::sink::StepSink;
use crate::stats::count_to_float;
use crate::worker;

/// Sink of a step's results: the process's standard output.
pub type StepOutput = StepSink<Stdout>;

/// One step of the probe: a group of measurements in a process of its own.
pub struct ProbeStep {
    /// Name of the step on the command line and in the document.
    pub name: &'static str,
    /// One line about the result of the step, for the help.
    pub about: &'static str,
    /// Time after which the step is ended, in seconds.
    pub limit_s: u64,
    run: fn(&Options, &mut StepOutput) -> Result<(), String>,
}

/// Every step, in the order in which they run.
pub const ALL_STEPS: &[ProbeStep] = &[
    ProbeStep { name: "host", about: "system, C library, environment", limit_s: 10, run: host::run },
    ProbeStep {
        name: "proc_address",
        about: "cuGetProcAddress: names x versions x flags",
        limit_s: 40,
        run: proc_address::run,
    },
    ProbeStep { name: "device", about: "name, attributes, memory by CUDA and NVML", limit_s: 40, run: device::run },
    ProbeStep {
        name: "first_calls",
        about: "times of the first calls in fresh processes",
        limit_s: 60,
        run: first_calls::run,
    },
    ProbeStep {
        name: "context_overhead",
        about: "memory of a context, by free memory and by NVML, twice",
        limit_s: 60,
        run: context_overhead::run,
    },
    ProbeStep {
        name: "launch_cost",
        about: "launch, launch and wait, queue depth",
        limit_s: 30,
        run: launch_cost::run,
    },
    ProbeStep {
        name: "event_cost",
        about: "record, query, elapsed, and the device time of a record",
        limit_s: 30,
        run: event_cost::run,
    },
    ProbeStep { name: "call_costs", about: "cuMemGetInfo and other small calls", limit_s: 30, run: call_costs::run },
    ProbeStep { name: "alloc_cost", about: "allocation and release by size", limit_s: 40, run: alloc_cost::run },
    ProbeStep {
        name: "timer",
        about: "the device's timer, and the accuracy of the spin kernel",
        limit_s: 30,
        run: timer::run,
    },
    ProbeStep {
        name: "slices",
        about: "time slices and context switches of two and three processes",
        limit_s: 60,
        run: slices::run,
    },
    ProbeStep {
        name: "inflation",
        about: "event time of a kernel with a busy neighbour",
        limit_s: 60,
        run: inflation::run,
    },
    ProbeStep {
        name: "granularity",
        about: "memory that allocations of each size really take",
        limit_s: 60,
        run: granularity::run,
    },
    ProbeStep { name: "capture", about: "effect of each call during a stream capture", limit_s: 60, run: capture::run },
];

/// Runs one step here and writes its lines to standard output.
pub fn run_here(name: &str, options: &Options) -> ExitCode {
    worker::die_with_parent();
    let Some(step) = ALL_STEPS.iter().find(|step| step.name == name) else { return ExitCode::FAILURE };
    let mut sink = StepSink::new(std::io::stdout());
    match catch_unwind(AssertUnwindSafe(|| (step.run)(options, &mut sink))) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => sink.put_failure(error),
        Err(_) => sink.put_failure("the probe itself failed (its message is on standard error)"),
    }
    sink.end_step();
    ExitCode::SUCCESS
}

/// Plays one role in a step of several processes.
pub fn work_here(role: &str, rest: &[String], options: &Options) -> ExitCode {
    worker::die_with_parent();
    let played = match role {
        "first_calls" => first_calls::play_calls(options),
        "stages" => context_overhead::play_stages(options),
        "slices" => slices::play_worker(rest, options),
        "load" => inflation::play_neighbour(options),
        _ => Err(format!("no part is called {role}")),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            worker::write_line(&json!({ "error": error }));
            ExitCode::FAILURE
        }
    }
}

/// Times `batches` batches of `batch` calls and returns the nanoseconds per call of each batch.
pub fn per_call(
    batches: usize,
    batch: usize,
    mut call: impl FnMut() -> Result<(), CallFailure>,
) -> Result<Vec<f64>, CallFailure> {
    let mut times = Vec::with_capacity(batches);
    for _ in 0..batches {
        let start = Instant::now();
        for _ in 0..batch {
            call()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e9 / count_to_float(batch));
    }
    Ok(times)
}

/// Repeats a reading until two in a row agree. Returns the last reading, and whether it agreed with the one before.
pub fn read_settled<T: PartialEq + Copy>(mut read: impl FnMut() -> Result<T, String>) -> Result<(T, bool), String> {
    let mut last = read()?;
    for _ in 0..40 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let now = read()?;
        if now == last {
            return Ok((now, true));
        }
        last = now;
    }
    Ok((last, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_names_are_unique_and_each_has_a_limit() {
        for (i, step) in ALL_STEPS.iter().enumerate() {
            assert!(step.limit_s > 0);
            assert!(!ALL_STEPS[..i].iter().any(|other| other.name == step.name), "{} twice", step.name);
        }
    }

    #[test]
    fn a_reading_settles_when_two_agree() {
        let mut readings = [5, 4, 3, 3, 2].into_iter();
        assert_eq!(read_settled(|| readings.next().ok_or("none".into())), Ok((3, true)));
    }

    #[test]
    fn per_call_divides_by_the_batch_and_stops_at_a_failure() {
        let mut calls = 0;
        let times = per_call(3, 4, || {
            calls += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!((times.len(), calls), (3, 12));
    }
}
