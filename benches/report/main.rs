//! One report of the metrics of a published suite: overhead, isolation, scheduling and errors, each with native and
//! null-control columns.
//!
//!     vgpu-bench-report [--only ID,...] [--runs N] [--seconds S] [--out DIR] [--json] [--list]
//!
//! [`metrics`] is the table of all ids, with the meaning of each here or the reason why it is not measured. [`sources`]
//! runs the measuring tools, and [`memory`] queries processes of this tool ([`probe`]). [`calls_told`], [`shares_told`]
//! and [`memory`] turn the answers into rows, [`spread`] computes, [`render`] and [`picture`] show.
//! docs/bench-report.md explains how to read a report.

mod calls_told;
mod memory;
mod metrics;
mod picture;
mod place;
mod probe;
mod render;
mod row;
mod shares_told;
mod sources;
mod spread;
mod table;

// Part of another tool, which uses more of it than this one.
#[path = "../overhead/calls.rs"]
#[allow(dead_code)]
mod calls;

use clap::Parser;
use metrics::{MetricMethod, REPORT_METRICS};
use place::ReportPlace;
use sources::{FigureSource, MeasuringEffort};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use vgpu_benches::{host, output, plot};

/// Measures the metrics of a published suite, on the simulated device.
#[derive(Parser, Debug)]
#[command(
    name = "vgpu-bench-report",
    after_help = "\
Examples:
  vgpu-bench-report --list                              all ids, each with its meaning here or the reason why it is not measured
  vgpu-bench-report --only OH-001,IS-003 --runs 3       two metrics, shorter
  vgpu-bench-report --only IS --out /tmp/isolation      all ids that begin so
  vgpu-bench-report --json > report.json                everything, as JSON on stdout too

The measuring tools are found next to this program; vgpud and the libraries too, or by VGPU_BUILD, or the libraries by
VGPU_LIB_DIR and VGPU_SIM_LIB_DIR.

Exit codes:
  0  measured
  1  something could not be measured, or a limit was not in force while it was
  2  usage, or a part is missing"
)]
struct Options {
    /// Measures only these metrics: ids, or beginnings of ids (OH, IS, SCHED, ERR).
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Number of repetitions of shares, tenants and memory; six or more for an interval of 95 %.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// Seconds of each measurement in a repetition.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Directory for report.md, a picture for each group (SVG) and its numbers (CSV).
    #[arg(long, value_name = "DIR", default_value = "target/bench-report")]
    out: PathBuf,
    /// Prints JSON instead of the report.
    #[arg(long)]
    json: bool,
    /// Prints the metrics with their definitions or reasons, and measures nothing.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let outcome = if std::env::args().nth(1).as_deref() == Some(probe::PROBE_WORD) {
        probe::run().map(|()| ExitCode::SUCCESS)
    } else {
        measure_all(&Options::parse())
    };
    outcome.unwrap_or_else(|why| {
        eprintln!("vgpu-bench-report: {why}");
        ExitCode::from(2)
    })
}

/// The ids of the requested metrics, in the table's order.
fn chosen_ids(only: &[String]) -> Result<Vec<&'static str>, String> {
    let meant = |id: &str, text: &str| id == text || id.strip_prefix(text).is_some_and(|rest| rest.starts_with('-'));
    for text in only {
        if !REPORT_METRICS.iter().any(|metric| meant(metric.id, text)) {
            return Err(format!(
                "--only {text}: no metric has this id or this beginning (OH, IS-003, ...); --list shows them"
            ));
        }
    }
    let wanted = |id: &str| only.is_empty() || only.iter().any(|text| meant(id, text));
    Ok(REPORT_METRICS.iter().map(|metric| metric.id).filter(|id| wanted(id)).collect())
}

/// Prints the table as text or JSON.
fn list_metrics(ids: &[&str], json: bool) -> Result<(), String> {
    let metrics: Vec<_> = REPORT_METRICS.iter().filter(|metric| ids.contains(&metric.id)).collect();
    if json {
        println!("{}", serde_json::to_string_pretty(&metrics).map_err(|why| why.to_string())?);
        return Ok(());
    }
    for metric in metrics {
        let (word, text) = match metric.how {
            MetricMethod::Measured(text) => (format!("{}, {}", metric.unit, metric.better.direction_word()), text),
            MetricMethod::NotMeasured(text) => ("not measured".to_owned(), text),
        };
        println!("{:<10} {} ({word})\n           {text}", metric.id, metric.name);
    }
    Ok(())
}

fn measure_all(options: &Options) -> Result<ExitCode, String> {
    let ids = chosen_ids(&options.only)?;
    if options.list {
        list_metrics(&ids, options.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let facts = host::HostFacts::ask_machine("vgpu-bench-report");
    let place = ReportPlace::find()?;
    output::prepare_output(&options.out)?;

    let wanted: BTreeSet<FigureSource> = ids.iter().flat_map(|id| sources::sources_of(id)).copied().collect();
    let effort = MeasuringEffort { runs: options.runs, seconds: options.seconds };
    let mut told = sources::ask_tools(&place, &wanted, effort);
    let mut rows = Vec::new();
    if let Some(calls) = &told.calls {
        rows.extend(calls_told::call_rows(calls).map_err(|why| told.failures.push(why)).unwrap_or_default());
    }
    if wanted.contains(&FigureSource::Memory) {
        rows.extend(
            memory::memory_rows(&place, options.runs).map_err(|why| told.failures.push(why)).unwrap_or_default(),
        );
    }
    rows.extend(shares_told::share_rows(&told));
    let report = render::report(facts, options.runs, options.seconds, &ids, rows, told.failures);
    output::write(&report, &options.out, options.json)?;
    let faults = report.report_faults();
    faults.iter().for_each(|fault| eprintln!("fault: {fault}"));
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_their_beginnings_choose_and_anything_else_is_named() {
        let of = |texts: &[&str]| chosen_ids(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&[]).unwrap().len(), 56);
        assert_eq!(of(&["IS-003"]).unwrap(), ["IS-003"]);
        assert_eq!(of(&["ERR", "OH-001"]).unwrap(), ["OH-001", "ERR-001", "ERR-002", "ERR-003"]);
        // A prefix that ends inside an id matches nothing.
        assert!(of(&["IS-00"]).unwrap_err().contains("--only IS-00"));
        assert!(of(&[""]).is_err());
    }

    #[test]
    fn the_command_is_whole() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }
}
