//! Rows about memory, failures and neighbours. Processes (`probe`) are started natively, with the library and no limit,
//! and with a limit, and queried.

use crate::place::ReportPlace;
use crate::row::{LimitControl, MetricRow, RowKind};
use crate::spread::{FigureCell, against_itself, paired_differences};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::Duration;

/// Limit of a tenant in bytes.
const MEMORY_LIMIT_BYTES: u64 = 4 << 30;
/// Bytes that a neighbour takes.
const NEIGHBOUR_BYTES: u64 = 2 << 30;
/// Timed blocks of calls per process.
const TIMED_BLOCKS: usize = 200;

/// Environment in which a process runs: the bare driver, the library without a limit, or with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeWay {
    Native,
    NoLimits,
    Limits,
}

const PROBE_WAYS: [ProbeWay; 3] = [ProbeWay::Native, ProbeWay::NoLimits, ProbeWay::Limits];

/// A running probe. Dropping it kills the probe.
struct RunningProbe {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl RunningProbe {
    fn start(place: &ReportPlace, way: ProbeWay, room: &Path, tenant: &str) -> Result<RunningProbe, String> {
        let mut command = place.probe_command(room);
        if way != ProbeWay::Native {
            place.with_library(&mut command, room, tenant);
        }
        if way == ProbeWay::Limits {
            command.env("VGPU_MEMORY_LIMIT", MEMORY_LIMIT_BYTES.to_string());
        }
        let mut child = command.spawn().map_err(|why| format!("a probe: {why}"))?;
        let (Some(ask), Some(out)) = (child.stdin.take(), child.stdout.take()) else { unreachable!("both are pipes") };
        let mut probe = RunningProbe { child, ask, answers: BufReader::new(out) };
        match probe.read_line()?.as_str() {
            "ready" => Ok(probe),
            other => Err(format!("a probe began with {other:?}")),
        }
    }

    fn tell_probe(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.ask, "{line}").map_err(|why| format!("a probe does not listen ({line}): {why}"))
    }

    fn read_line(&mut self) -> Result<String, String> {
        let mut text = String::new();
        let read = self.answers.read_line(&mut text);
        if matches!(read, Ok(length) if length > 0) {
            return Ok(text.trim().to_owned());
        }
        let mut words = String::new();
        let _ = self.child.stderr.take().map(|mut err| err.read_to_string(&mut words));
        Err(format!("a probe ended: {}", words.trim()))
    }

    fn read_answer(&mut self) -> Result<Value, String> {
        let line = self.read_line()?;
        serde_json::from_str(&line).map_err(|why| format!("a probe said {line:?}: {why}"))
    }

    fn ask_probe(&mut self, line: &str) -> Result<Value, String> {
        self.tell_probe(line)?;
        self.read_answer()
    }

    fn ask_number(&mut self, line: &str, key: &str) -> Result<f64, String> {
        let answer = self.ask_probe(line)?;
        answer[key].as_f64().ok_or_else(|| format!("a probe said {answer} to {line:?}"))
    }

    fn ask_times(&mut self, line: &str) -> Result<Vec<f64>, String> {
        let answer = self.ask_probe(line)?;
        serde_json::from_value(answer["ns"].clone()).map_err(|why| format!("a probe said {answer} to {line:?}: {why}"))
    }

    /// Kills the probe without warning.
    fn kill_probe(mut self) {
        let _ = self.child.kill();
    }
}

impl Drop for RunningProbe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A device and a directory for ledgers. Dropping it removes them.
struct ProbeRoom(PathBuf);

impl ProbeRoom {
    fn new(place: &ReportPlace) -> Result<ProbeRoom, String> {
        let path = place.scratch_path().join("room");
        std::fs::create_dir_all(path.join("state")).map_err(|why| format!("{}: {why}", path.display()))?;
        Ok(ProbeRoom(path))
    }
}

impl Drop for ProbeRoom {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Results of one repetition in one environment.
#[derive(Clone, Debug, Default)]
struct SeenMemory {
    /// Total memory as the process sees it.
    total: f64,
    /// Memory that two processes got together, in percent of the allowed amount.
    accuracy: f64,
    /// Times that refused allocations took, ns.
    refusals: Vec<f64>,
    /// Times that recoveries after a refusal took, ns.
    recoveries: Vec<f64>,
    /// Percent of the promises about exhausted memory that held.
    score: f64,
    /// Promises about exhausted memory that did not hold.
    broken: Vec<String>,
    /// A neighbour's memory that was visible, MiB.
    leaked: f64,
    /// Percent of calls that succeeded while a neighbour was killed.
    unharmed: f64,
}

/// Two processes of one tenant fill the memory, and one of them is timed on refusals and recoveries. Then a new process
/// of the tenant exhausts the memory alone.
fn one_tenant(place: &ReportPlace, way: ProbeWay, seen: &mut SeenMemory) -> Result<(), String> {
    let room = ProbeRoom::new(place)?;
    // Without the library this process sees the device's true free memory, with the others' contexts subtracted.
    let mut watch = RunningProbe::start(place, ProbeWay::Native, &room.0, "watch")?;
    let before = watch.ask_number("look", "free")?;
    let mut first = RunningProbe::start(place, way, &room.0, "bench")?;
    let mut second = RunningProbe::start(place, way, &room.0, "bench")?;
    seen.total = first.ask_number("look", "total")?;
    first.tell_probe("fill")?;
    let later = second.ask_number("fill", "got")?;
    let sooner = first.read_answer()?["got"].as_f64().ok_or("a probe did not say what it got")?;
    let taken = before - watch.ask_number("look", "free")?;
    seen.accuracy = taken / if way == ProbeWay::Limits { MEMORY_LIMIT_BYTES as f64 } else { before } * 100.0;
    // One process may have got nothing because the other was first. The process with memory can release some.
    let one = if later > sooner { &mut second } else { &mut first };
    seen.refusals = one.ask_times(&format!("refuse {TIMED_BLOCKS}"))?;
    seen.recoveries = one.ask_times(&format!("recover {TIMED_BLOCKS}"))?;
    drop(watch);
    drop((first, second));
    let mut alone = RunningProbe::start(place, way, &room.0, "bench")?;
    let promises = alone.ask_probe("exhaust")?;
    let promises = promises.as_object().ok_or("a probe has no promises")?;
    seen.broken = promises.iter().filter(|one| one.1 != true).map(|one| one.0.clone()).collect();
    seen.score = (promises.len() - seen.broken.len()) as f64 / promises.len() as f64 * 100.0;
    Ok(())
}

/// A neighbour of another tenant takes memory, works, and is killed while it works.
fn two_tenants(place: &ReportPlace, way: ProbeWay, seen: &mut SeenMemory) -> Result<(), String> {
    let room = ProbeRoom::new(place)?;
    let mut own = RunningProbe::start(place, way, &room.0, "own")?;
    let mut other = RunningProbe::start(place, way, &room.0, "other")?;
    let before = own.ask_number("look", "free")?;
    other.ask_probe(&format!("take {NEIGHBOUR_BYTES}"))?;
    seen.leaked = (before - own.ask_number("look", "free")?) / f64::from(1 << 20);
    own.tell_probe("work 500")?;
    other.tell_probe("work 60000")?;
    std::thread::sleep(Duration::from_millis(200));
    other.kill_probe();
    let work = own.read_answer()?;
    let (calls, failed) = (work["calls"].as_f64().unwrap_or(0.0), work["failed"].as_f64().unwrap_or(0.0));
    seen.unharmed = (calls - failed) / calls * 100.0;
    Ok(())
}

fn see_memory(place: &ReportPlace, way: ProbeWay) -> Result<SeenMemory, String> {
    let mut seen = SeenMemory::default();
    let asked = one_tenant(place, way, &mut seen).and_then(|()| two_tenants(place, way, &mut seen));
    asked.map(|()| seen).map_err(|why| format!("memory, {way:?}: {why}"))
}

/// Makes all measurements, `runs` times.
///
/// # Errors
/// A process cannot be started, or a call returns an unexpected code.
pub fn memory_rows(place: &ReportPlace, runs: u32) -> Result<Vec<MetricRow>, String> {
    let mut all: [Vec<SeenMemory>; 3] = Default::default();
    for number in 1..=runs {
        eprintln!("measuring memory, {number} of {runs}");
        for (at, way) in PROBE_WAYS.into_iter().enumerate() {
            all[at].push(see_memory(place, way)?);
        }
    }
    Ok(rows_of(&all))
}

/// Median of blocks within one process. They are not independent runs, so each repetition gives one number.
fn block_median(blocks: &[f64]) -> f64 {
    FigureCell::of_runs(blocks).map_or(f64::NAN, |cell| cell.value)
}

/// Rows from the results: native, without limits, with a limit.
fn rows_of(all: &[Vec<SeenMemory>; 3]) -> Vec<MetricRow> {
    let totals: Vec<f64> = all[2].iter().map(|seen| seen.total).collect();
    let native = all[0].first().map_or(f64::NAN, |seen| seen.total);
    let shown = totals.iter().all(|total| *total == MEMORY_LIMIT_BYTES as f64) && native > MEMORY_LIMIT_BYTES as f64;
    let unlimited = all[1].iter().all(|seen| seen.total == native);
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let control = LimitControl::new(
        format!("{:.1} GiB are told as the total natively, {:.1} under the limit", gib(native), gib(totals[0])),
        shown && unlimited,
    );
    let whole = |id, what: &str, figure: fn(&SeenMemory) -> f64| {
        let [native, off, limits] = [0, 1, 2].map(|at: usize| all[at].iter().map(figure).collect::<Vec<f64>>());
        MetricRow {
            native: FigureCell::of_runs(&native),
            bare_again: against_itself(&native),
            no_limits: FigureCell::of_runs(&off),
            limits: FigureCell::of_runs(&limits),
            difference: paired_differences(&limits, &native),
            ..MetricRow::new(id, what, RowKind::Whole, control.clone())
        }
    };
    let mut broken: Vec<&str> = all[2].iter().flat_map(|seen| &seen.broken).map(String::as_str).collect();
    broken.sort_unstable();
    broken.dedup();
    let which = if broken.is_empty() { "seven promises".into() } else { format!("broken: {}", broken.join(", ")) };
    vec![
        whole("IS-001", "two processes at once", |seen| seen.accuracy),
        whole("IS-002", "a refused cuMemAlloc", |seen| block_median(&seen.refusals)),
        whole("IS-005", "free memory beside a neighbour", |seen| seen.leaked),
        whole("IS-010", "beside a process that is killed", |seen| seen.unharmed),
        whole("ERR-002", "cuMemFree and cuMemAlloc of 1 MiB", |seen| block_median(&seen.recoveries)),
        whole("ERR-003", &which, |seen| seen.score),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(total: f64, leaked: f64, time: f64) -> SeenMemory {
        let times = vec![time, time + 1.0, time + 2.0];
        SeenMemory {
            total,
            leaked,
            accuracy: 99.0,
            refusals: times.clone(),
            recoveries: times,
            score: 100.0,
            unharmed: 100.0,
            broken: Vec::new(),
        }
    }

    fn all(limited: f64) -> [Vec<SeenMemory>; 3] {
        let device = 141.0 * f64::from(1 << 30);
        [vec![one(device, 2048.0, 400.0); 3], vec![one(device, 2048.0, 401.0); 3], vec![one(limited, 0.0, 90.0); 3]]
    }

    #[test]
    fn columns_are_ways_and_differences_are_against_native() {
        let rows = rows_of(&all(MEMORY_LIMIT_BYTES as f64));
        let leaked = rows.iter().find(|row| row.id == "IS-005").unwrap();
        assert_eq!(leaked.native, Some(FigureCell::with_interval(2048.0, 2048.0, 2048.0)));
        assert_eq!(
            (leaked.no_limits, leaked.difference),
            (leaked.native, Some(FigureCell::with_interval(-2048.0, -2048.0, -2048.0)))
        );
        let refused = rows.iter().find(|row| row.id == "IS-002").unwrap();
        assert_eq!(refused.limits.map(|cell| cell.value), Some(91.0));
        assert!(
            refused.difference.is_some_and(FigureCell::is_told_from_zero) && rows.iter().all(|row| row.control.holds)
        );
    }

    #[test]
    fn a_limit_that_is_not_shown_was_not_in_force() {
        let rows = rows_of(&all(141.0 * f64::from(1 << 30)));
        assert!(rows.iter().all(|row| !row.control.holds));
    }
}
