//! Measures shares of device time: real processes with the preloaded library on the simulated device, judged by the
//! device's own record.
//!
//!     vgpu-shares [--quick] [--points TEXT,...] [--seconds S] [--runs N] [--out DIR] [--json] [--check] [--list]
//!     vgpu-shares tenants [--only TEXT,...] [--seconds S] [--out DIR] [--json] [--check] [--list]
//!
//! [`points`] lists the measurements, and [`work`] is the limited program (this one, started again). [`measure`] runs a
//! point, and [`schedule`] decides which runs share the host. [`judge`] computes figures and verdicts, [`report`] shows
//! them. docs/shares.md explains how to read a report.
//!
//! [`tenants`] measures tenants under the daemon, their latency and changes of limits, with the same processes, records
//! and host.

mod driver;
mod judge;
mod measure;
mod meter;
mod place;
mod points;
mod report;
mod schedule;
mod tenants;
mod work;

use clap::Parser;
use judge::BudgetVerdict;
use measure::MeasuredRun;
use output::OutputOptions;
use place::MeasuringPlace;
use points::{LaunchPattern, MeasuredPoint, TenantLoad};
use report::{AloneAndTogether, NullControl, PointResult, ShareResults};
use schedule::{ScheduleWidth, ScheduledRun};
use std::path::PathBuf;
use std::process::ExitCode;
use vgpu_benches::{host, output, plot};

/// Measures shares of device time with real processes on the simulated device.
#[derive(Parser, Debug)]
#[command(
    name = "vgpu-shares",
    after_help = "\
Examples:
  vgpu-shares --list                                   the names of all points
  vgpu-shares --points h200/async/1ms/30 --seconds 5   one point, a short window
  vgpu-shares --points /sync/,tenants --out /tmp/r     all points whose names contain one of the texts
  vgpu-shares --quick --runs 3 --check                 twelve points, medians of three, exit 1 if one misses a budget
  vgpu-shares tenants --check                          tenants under the daemon; see vgpu-shares tenants --help

The libraries are found next to this program, or by VGPU_BUILD, or by VGPU_LIB_DIR and VGPU_SIM_LIB_DIR.

Exit codes:
  0  measured
  1  a run failed, or a budget is missed under --check
  2  usage, or a part is missing"
)]
struct Options {
    /// Measures only points whose names contain one of these texts; a whole name means that point alone.
    #[arg(long, value_name = "TEXT,...", value_delimiter = ',')]
    points: Vec<String>,
    /// Measures the twelve points of `make bench-quick`.
    #[arg(long)]
    quick: bool,
    /// Measures each point for S seconds instead of max(10 s, 50 of its longest kernels).
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=70))]
    seconds: Option<u64>,
    /// Number of runs of each point; medians are shown.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=99))]
    runs: u64,
    /// Measures one point after another instead of as many at the same time as take half of the host.
    #[arg(long)]
    alone: bool,
    /// Measures N of the points that shared the host again, alone, and shows both.
    #[arg(long, value_name = "N", default_value_t = 3)]
    compare: usize,
    /// Directory for report.md, the pictures errors and over-time (SVG) and their numbers (CSV).
    #[arg(long, value_name = "DIR", default_value = "target/shares")]
    out: PathBuf,
    #[command(flatten)]
    output: OutputOptions,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("--work") => work_as(&arguments[1..]),
        Some(word) if tenants::client::is_program(word) => tenants::client::run(&arguments),
        Some("tenants") => tenants::measure_tenants(&arguments),
        _ => measure_points(&Options::parse()),
    };
    outcome.unwrap_or_else(|why| {
        eprintln!("vgpu-shares: {why}");
        ExitCode::from(2)
    })
}

fn work_as(arguments: &[String]) -> Result<ExitCode, String> {
    let pattern =
        arguments.first().and_then(|name| LaunchPattern::pattern_named(name)).ok_or("--work needs a pattern")?;
    let lengths = arguments.get(1).map(|text| text.split(',').map(str::parse).collect::<Result<Vec<u64>, _>>());
    work::work_by_pattern(pattern, &lengths.and_then(Result::ok).ok_or("--work needs nanoseconds")?)?;
    Ok(ExitCode::SUCCESS)
}

/// The points (settings under test) that the user requested.
fn chosen_points(options: &Options) -> Result<Vec<MeasuredPoint>, String> {
    let all = if options.quick { points::quick() } else { points::full() };
    if options.points.is_empty() {
        return Ok(all);
    }
    let whole = |text: &String| all.iter().any(|point| point.name == *text);
    let holds = |point: &MeasuredPoint, text: &String| {
        if whole(text) { point.name == *text } else { point.name.contains(text) }
    };
    for text in &options.points {
        if !all.iter().any(|point| holds(point, text)) {
            return Err(format!("--points {text}: no point's name holds this; --list shows the names"));
        }
    }
    Ok(all.iter().filter(|point| options.points.iter().any(|text| holds(point, text))).cloned().collect())
}

/// Null controls of these points: their programs without the library, each once.
fn nulls_of(points: &[MeasuredPoint]) -> Vec<MeasuredPoint> {
    let mut nulls: Vec<MeasuredPoint> = Vec::new();
    for point in points {
        for tenant in &point.tenants {
            let null = MeasuredPoint::null_control(point.profile, tenant.load);
            if !nulls.iter().any(|other| other.name == null.name) {
                nulls.push(null);
            }
        }
    }
    nulls
}

fn measure_points(options: &Options) -> Result<ExitCode, String> {
    let points = chosen_points(options)?;
    let runs = usize::try_from(options.runs).unwrap_or(1);
    if options.output.list {
        for point in &points {
            println!("{:<34} {:>3} s", point.name, point.record_ns(options.seconds) / 1_000_000_000);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (place, facts) = (MeasuringPlace::find()?, host::HostFacts::ask_machine("vgpu-shares"));
    output::prepare_output(&options.out)?;
    eprintln!("measuring {}", place.library_path().display());
    let width = if options.alone { ScheduleWidth::ONE_AT_A_TIME } else { ScheduleWidth::of_host() };
    let one = |job: &ScheduledRun| {
        measure::run(&place, &job.point, job.seconds).map_err(|why| format!("{}: {why}", job.point.name))
    };
    let job = |point: &MeasuredPoint| ScheduledRun { point: point.clone(), seconds: options.seconds };
    let mut failures = Vec::new();

    let null_points = nulls_of(&points);
    let jobs: Vec<ScheduledRun> = (0..runs).flat_map(|_| null_points.iter().map(job)).collect();
    let made = of_each(null_points.len(), schedule::all("null controls", &jobs, width, one), &mut failures);
    let nulls = null_points.iter().zip(&made).filter_map(|(point, runs)| {
        // Takes the run with the largest share: a busy host can only reduce the program's use.
        let figures = runs.iter().map(|run| judge::tenant_figures(run, &run.tenants[0], &point.tenants[0], 100.0));
        let figures = figures.max_by(|a, b| a.share.total_cmp(&b.share))?;
        Some(NullControl { name: point.name.clone(), load: point.tenants[0].load, profile: point.profile, figures })
    });
    let nulls: Vec<NullControl> = nulls.collect();

    let jobs: Vec<ScheduledRun> = (0..runs).flat_map(|_| points.iter().map(job)).collect();
    let made = of_each(points.len(), schedule::all("points", &jobs, width, one), &mut failures);
    let by_itself = |profile: &str, load: TenantLoad| {
        let null = nulls.iter().find(|null| null.profile == profile && null.load == load);
        null.map_or(100.0, |null| null.figures.share)
    };
    let unlimited = |point: &MeasuredPoint| -> Vec<f64> {
        point.tenants.iter().map(|tenant| by_itself(point.profile, tenant.load)).collect()
    };
    let measured =
        points.iter().zip(&made).filter_map(|(point, runs)| PointResult::of_runs(point, runs, &unlimited(point)));
    let measured: Vec<PointResult> = measured.collect();

    let compared = to_compare(&measured, options.compare);
    let jobs: Vec<ScheduledRun> = compared.iter().map(|measured| job(&measured.point)).collect();
    let made = schedule::all("alone", &jobs, ScheduleWidth::ONE_AT_A_TIME, one);
    let mut alone = Vec::new();
    for (together, answer) in compared.into_iter().zip(made) {
        match answer {
            Ok(run) => alone.extend(alone_and_together(together, &run, &unlimited(&together.point))),
            Err(why) => failures.push(why),
        }
    }

    let results = ShareResults { facts, runs, nulls, points: measured, alone, failures };
    output::write(&results, &options.out, options.output.json)?;
    Ok(options.output.exit_code(!results.failures.is_empty(), results.count_verdicts(BudgetVerdict::Missed) > 0))
}

/// Sorts the answers into runs of each of `count` points. The answers cycle through the points.
fn of_each(
    count: usize,
    answers: Vec<Result<MeasuredRun, String>>,
    failures: &mut Vec<String>,
) -> Vec<Vec<MeasuredRun>> {
    let mut runs: Vec<Vec<MeasuredRun>> = (0..count).map(|_| Vec::new()).collect();
    for (at, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(run) => runs[at % count].push(run),
            Err(why) => failures.push(why),
        }
    }
    runs
}

/// Points that shared the host, the busiest first, because those would suffer most.
fn to_compare(measured: &[PointResult], count: usize) -> Vec<&PointResult> {
    let mut shared: Vec<&PointResult> = measured.iter().filter(|measured| measured.beside > 1).collect();
    shared.sort_by(|a, b| b.point.cores_needed().total_cmp(&a.point.cores_needed()));
    shared.truncate(count);
    shared
}

fn alone_and_together(together: &PointResult, run: &MeasuredRun, unlimited: &[f64]) -> Option<AloneAndTogether> {
    let alone = PointResult::of_runs(&together.point, std::slice::from_ref(run), unlimited)?;
    let (ours, theirs) = (together.tenants.first()?, alone.tenants.first()?);
    Some(AloneAndTogether {
        name: together.point.name.clone(),
        together: (ours.median.share, together.beside, ours.range),
        alone: theirs.median.share,
        window_p99: (ours.median.window_p99, theirs.median.window_p99),
    })
}
