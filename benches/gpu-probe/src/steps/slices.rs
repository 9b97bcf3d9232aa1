//! Time slices: several processes keep the device busy, and each records by the device's timer when it had the device.

use std::time::Duration;

use serde_json::{Value, json};

use super::StepOutput;
use super::slices_math::combine_slices;
use super::timer::{NOT_EXECUTED, record_gaps};
use crate::args::Options;
use crate::driver::ProbedDriver;
use crate::gpu::{ProbedGpu, device_attribute, device_of_ordinal, flags, init};
use crate::kernels::{ProbeKernels, SliceRecording};
use crate::worker::{LINE_TIMEOUT, StepWorker, read_line, write_line};

/// Threads per block with which two blocks fill a multiprocessor on every device.
const FULL_BLOCK: u32 = 512;

pub fn run(options: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    init(&driver)?;
    let sms = device_attribute(&driver, device_of_ordinal(&driver, options.device)?, 16)?;
    let full = u32::try_from(sms).map_err(|e| e.to_string())?.saturating_mul(2);
    let ns: u64 = if options.quick { 200_000_000 } else { 600_000_000 };
    for (key, processes, grid, block) in
        [("two_light", 2, 1, 1), ("two_full", 2, full, FULL_BLOCK), ("three_light", 3, 1, 1), ("alone", 1, 1, 1)]
    {
        sink.run_part(key, || record_together(processes, grid, block, ns, options));
    }
    Ok(())
}

/// Starts the processes, lets them begin at the same moment, and combines their recordings.
fn record_together(processes: usize, grid: u32, block: u32, ns: u64, options: &Options) -> Result<Value, String> {
    let arguments = [grid.to_string(), block.to_string(), ns.to_string()];
    let mut workers = Vec::new();
    for _ in 0..processes {
        workers.push(StepWorker::start("slices", &arguments, options)?);
    }
    for worker in &mut workers {
        worker.next_line(LINE_TIMEOUT)?;
    }
    for worker in &mut workers {
        worker.send_line("go")?;
    }
    let mut recordings = Vec::new();
    for worker in &mut workers {
        recordings.push(recording_of(&worker.next_line(LINE_TIMEOUT)?)?);
    }
    for worker in workers {
        worker.finish_worker(Duration::from_secs(5));
    }
    let mut value = combine_slices(&recordings).to_json();
    value["gaps_seen"] = json!(recordings.iter().map(|r| r.seen).collect::<Vec<_>>());
    value["recorded_ns"] = json!(recordings.iter().map(|r| r.last.saturating_sub(r.first)).collect::<Vec<_>>());
    value["kernel_ns"] = json!(ns);
    value["grid"] = json!(grid);
    value["block"] = json!(block);
    if processes > 1 && value["slice_ns"].is_null() {
        return Err(format!("no whole slice was seen: {value}"));
    }
    Ok(value)
}

/// In a worker: reports that it is ready, waits for a line, records, and writes its recording.
pub fn play_worker(rest: &[String], options: &Options) -> Result<(), String> {
    let [grid, block, ns] = rest else { return Err("grid, block and ns are wanted".to_owned()) };
    let grid: u32 = grid.parse().map_err(|_| "grid")?;
    let block: u32 = block.parse().map_err(|_| "block")?;
    let ns: u64 = ns.parse().map_err(|_| "ns")?;
    let driver = ProbedDriver::load()?;
    let gpu = ProbedGpu::open(&driver, options.device)?;
    let kernels = ProbeKernels::load(&gpu)?;
    let stream = gpu.make_stream(flags::NON_BLOCKING_STREAM)?;
    gpu.warm_up(kernels.spin, 50_000_000)?;
    write_line(&json!({ "ready": true }));
    read_line().ok_or("nobody said go")?;
    let recording = record_gaps(&gpu, kernels.slices, grid, block, ns, stream)?.ok_or(NOT_EXECUTED)?;
    write_line(&json!({
        "seen": recording.seen, "readings": recording.readings, "first": recording.first, "last": recording.last,
        "gaps": recording.gaps,
    }));
    Ok(())
}

/// Parses the line that a worker wrote.
fn recording_of(line: &Value) -> Result<SliceRecording, String> {
    let number = |name: &str| line[name].as_u64().ok_or_else(|| format!("{name} is missing in a worker's line"));
    let gaps = line["gaps"].as_array().ok_or("gaps are missing in a worker's line")?;
    let gaps = gaps
        .iter()
        .map(|gap| Some((gap[0].as_u64()?, gap[1].as_u64()?)))
        .collect::<Option<Vec<_>>>()
        .ok_or("a gap is not a pair of numbers")?;
    Ok(SliceRecording {
        seen: number("seen")?,
        readings: number("readings")?,
        first: number("first")?,
        last: number("last")?,
        smallest_step: None,
        largest_step: 0,
        cycles: (0, 0),
        gaps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_s_line_is_read_back() {
        let line = json!({"seen": 1, "readings": 9, "first": 5, "last": 50, "gaps": [[10, 20]]});
        let recording = recording_of(&line).unwrap();
        assert_eq!((recording.first, recording.last, recording.gaps), (5, 50, vec![(10, 20)]));
    }

    #[test]
    fn a_line_without_a_number_is_refused_by_name() {
        let line = json!({"seen": 1, "readings": 9, "first": 5, "gaps": []});
        assert!(recording_of(&line).unwrap_err().contains("last"));
    }
}
