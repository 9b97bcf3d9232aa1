//! Device memory that a context takes beyond any allocation, stage by stage, seen from another process.
//!
//! Two independent readings: the free memory of a neighbour, and NVML (device total and per process). Everything is
//! done twice. If two rounds disagree, the figures are reported but do not enter the profile.

use std::time::Duration;

use serde_json::{Value, json};

use super::{StepOutput, read_settled};
use crate::args::Options;
use crate::driver::ProbedDriver;
use crate::gpu::{LEGACY_STREAM, ProbedGpu, device_of_ordinal, init, pci_address};
use crate::kernels::ProbeKernels;
use crate::nvml::ProbedNvml;
use crate::worker::{LINE_TIMEOUT, StepWorker, read_line, write_line};

/// The stages of the worker, in order.
const WORKER_STAGES: &[&str] = &["init", "context", "module", "launch", "alloc", "stream", "event", "second_context"];

pub fn run(options: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    let gpu = ProbedGpu::open(&driver, options.device)?;
    let nvml = pci_address(&driver, gpu.device).map_err(String::from).and_then(|address| ProbedNvml::open(&address));
    if let Err(error) = &nvml {
        sink.put_failure(format_args!("nvml: {error}"));
    }
    let nvml = nvml.ok();
    let mut rounds: Vec<Value> = Vec::new();
    for _ in 0..2 {
        match run_round(&gpu, nvml.as_ref(), options) {
            Ok(round) => rounds.push(round),
            Err(error) => sink.put_failure(error),
        }
        sink.put_value("rounds", json!(rounds));
    }
    let taken = |stage: &str| agreed_bytes(&rounds, stage);
    sink.run_part("context_bytes", || taken("context"));
    sink.run_part("after_first_launch_bytes", || taken("launch"));
    sink.run_part("further_context_bytes", || {
        let bytes = |stage: &str| taken(stage)?.as_i64().ok_or_else(|| "no number".to_owned());
        Ok(json!(bytes("second_context")? - bytes("event")?))
    });
    Ok(())
}

/// Runs one worker through its stages and returns the memory that each stage took since the start.
fn run_round(gpu: &ProbedGpu<'_>, nvml: Option<&ProbedNvml>, options: &Options) -> Result<Value, String> {
    let read = || read_settled(|| Ok(gpu.mem_info()?.0));
    let used = |nvml: &ProbedNvml| read_settled(|| nvml.used_bytes());
    let (free_before, _) = read()?;
    let used_before = nvml.map(used).transpose()?;
    let mut worker = StepWorker::start("stages", &[], options)?;
    let pid = worker.process_id();
    let mut stages = Vec::new();
    for stage in WORKER_STAGES {
        worker.send_line(stage)?;
        worker.next_line(LINE_TIMEOUT)?;
        let (free, agrees) = read()?;
        let mut entry = json!({
            "stage": stage,
            "free_drop_bytes": signed_difference(free_before, free),
            "two_readings_agree": agrees,
        });
        if let (Some(nvml), Some((before, _))) = (nvml, used_before) {
            entry["nvml_used_rise_bytes"] = json!(used(nvml).map(|(now, _)| signed_difference(now, before)).ok());
            let processes = nvml.read_processes();
            entry["nvml_process_bytes"] = json!(
                processes.as_ref().ok().and_then(|list| list.iter().find(|(p, _)| *p == pid)).and_then(|(_, b)| *b)
            );
            // In a container NVML's pids may be the host's; the complete list lets a reader find the worker.
            entry["nvml_processes"] = processes.map_or_else(|error| json!(error), |list| json!(list));
        }
        stages.push(entry);
    }
    worker.finish_worker(Duration::from_secs(10));
    let (free_after, _) = read()?;
    Ok(json!({ "stages": stages, "left_after_exit_bytes": signed_difference(free_before, free_after) }))
}

/// `a - b` of two byte counts, with its sign.
fn signed_difference(a: u64, b: u64) -> i64 {
    if a >= b {
        i64::try_from(a - b).unwrap_or(i64::MAX)
    } else {
        i64::try_from(b - a).map_or(i64::MIN, |positive| -positive)
    }
}

/// Free memory that a stage took, if both rounds agree.
fn agreed_bytes(rounds: &[Value], stage: &str) -> Result<Value, String> {
    let figures: Vec<i64> = rounds
        .iter()
        .filter_map(|round| round["stages"].as_array()?.iter().find(|entry| entry["stage"] == stage))
        .filter_map(|entry| entry["free_drop_bytes"].as_i64())
        .collect();
    match figures[..] {
        [a, b] if a == b => Ok(json!(a)),
        [a, b] => Err(format!("two rounds disagree: {a} and {b} bytes")),
        _ => Err(format!("{} of 2 rounds gave a figure", figures.len())),
    }
}

/// In the worker: runs one stage for each line received and keeps all objects until the input ends.
pub fn play_stages(options: &Options) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    let mut gpu: Option<ProbedGpu<'_>> = None;
    let mut kernels = None;
    while let Some(stage) = read_line() {
        let ready = || "the context comes first".to_owned();
        match stage.as_str() {
            "init" => init(&driver)?,
            "context" => {
                let handle = device_of_ordinal(&driver, options.device)?;
                let made =
                    ProbedGpu { driver: &driver, device: handle, context: ProbedGpu::retain_primary(&driver, handle)? };
                made.make_current()?;
                gpu = Some(made);
            }
            "module" => kernels = Some(ProbeKernels::load(gpu.as_ref().ok_or_else(ready)?)?),
            "launch" => {
                let gpu = gpu.as_ref().ok_or_else(ready)?;
                let kernels = kernels.as_ref().ok_or("the module comes first")?;
                gpu.launch(kernels.null, 1, 1, LEGACY_STREAM, [])?;
                gpu.synchronize()?;
            }
            "alloc" => drop(gpu.as_ref().ok_or_else(ready)?.alloc(1)?),
            "stream" => drop(gpu.as_ref().ok_or_else(ready)?.make_stream(1)?),
            "event" => drop(gpu.as_ref().ok_or_else(ready)?.make_event(0)?),
            "second_context" => {
                let gpu = gpu.as_ref().ok_or_else(ready)?;
                let mut second = std::ptr::null_mut();
                // SAFETY: a pointer to a local handle; the context lives as long as this process.
                unsafe { driver.context_create(&raw mut second, 0, gpu.device) }.ok()?;
            }
            other => return Err(format!("no stage is called {other}")),
        }
        write_line(&json!({ "stage": stage }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_of(bytes: i64) -> Value {
        json!({"stages": [{"stage": "init", "free_drop_bytes": 0}, {"stage": "context", "free_drop_bytes": bytes}]})
    }

    #[test]
    fn only_two_rounds_that_agree_make_a_figure() {
        assert_eq!(agreed_bytes(&[round_of(500), round_of(500)], "context"), Ok(json!(500)));
        assert!(agreed_bytes(&[round_of(500), round_of(600)], "context").unwrap_err().contains("disagree"));
        assert!(agreed_bytes(&[round_of(500)], "context").is_err());
        assert!(agreed_bytes(&[], "context").is_err());
    }

    #[test]
    fn a_difference_keeps_its_sign() {
        assert_eq!(signed_difference(5, 3), 2);
        assert_eq!(signed_difference(3, 5), -2);
        assert_eq!(signed_difference(u64::MAX, 0), i64::MAX);
    }
}
