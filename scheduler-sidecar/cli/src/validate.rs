//! `vgpu validate`: runs programs alone and together, as tenants, and reports the cost of sharing.
//!
//! [`programs`] reads the programs of each tenant, [`children`] runs them, [`rounds`] sets the order. Pure
//! evaluation: [`stats`] (medians, intervals, changes, fairness) and [`results`] (measurements and their meaning).
//! [`line`](mod@line) parses what a program prints about its iterations. [`isolation`] lists the tests that show each
//! kind of isolation. [`show`] renders the report. docs/validate.md is the user's guide.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::ask::DaemonAddress;
use super::when;
use vgpu_accounting::report::page;
use vgpu_output::say::{self, EXIT_FINDINGS, EXIT_UNKNOWN, Failure};

mod children;
pub mod isolation;
pub mod line;
mod programs;
pub mod results;
mod rounds;
pub mod show;
pub mod stats;

use line::{DurationMeasure, LinePattern};
use results::ValidationResults;
use rounds::{EarlyEnd, ValidationRounds};

/// Exit code after an interruption by a signal: 128 + SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

/// Runs programs alone and together, each as its tenant, and reports the cost of sharing: latency, throughput, P99,
/// fairness.
///
/// A round runs each program alone, then all of them at the same time; medians are of the rounds. In the shared part, a
/// program that ends first is started again, uncounted, so that no counted run is alone. Each program runs as with
/// `vgpu run`: with the socket of the daemon's tenant of that name, or, with --tenant or --bare, without a daemon.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu validate chat -- ./serve --once --and train -- python3 train.py --steps 50
  vgpu validate --runs 20 --out report chat -- ./serve --once --and train -- ./step
  vgpu validate --pattern 'step {ms} ms' a -- python3 a.py --and b -- python3 b.py
  vgpu validate --measure json a -- ./a --and b -- ./b          # lines like {\"seconds\": 0.0123}
  vgpu validate --tenant a:memory=4GiB,sm=30 --tenant b:sm=70 a -- ./a --and b -- ./b  # no daemon
  vgpu validate --bare a -- ./a --and b -- ./b                  # without vgpu: plain sharing

Exit codes:
  0    measured
  1    a program failed, or took longer than --timeout (its last words are shown); or no daemon
       answers, or has no such tenant
  2    usage
  3    a program printed no iterations
  125  libvgpu.so, or with --sim the simulated driver, was not found or cannot be used
  126  a program cannot be executed
  127  a program was not found
  130  interrupted; reports of whole rounds are written, marked as incomplete")]
pub struct Args {
    /// Number of rounds; fewer than 10 give wide intervals.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,

    /// Number of uncounted rounds before them.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    warmup: u32,

    /// Measured unit: the whole run, or an iteration that the program prints as a line of JSON with "seconds" or
    /// "milliseconds".
    #[arg(long, value_name = "HOW", value_parser = ["run", "json"], default_value = "run", conflicts_with = "pattern")]
    measure: String,

    /// Reads iterations from lines that match TEXT, with {s}, {ms}, {us} or, for a number per second, {/s}.
    #[arg(long, value_name = "TEXT", value_parser = LinePattern::read)]
    pattern: Option<LinePattern>,

    /// Longest time of a run.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
    timeout: Duration,

    /// Directory for report.html, report.md and report.json.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// A tenant without a daemon: NAME, or NAME:memory=SIZE,sm=PERCENT; repeatable.
    #[arg(long, value_name = "SPEC", conflicts_with_all = ["socket", "bare"])]
    tenant: Vec<String>,

    /// Runs the programs without the library, so no limit applies.
    #[arg(long, conflicts_with = "socket")]
    bare: bool,

    /// libvgpu.so to use [default: $VGPU_LIBRARY, else the one next to this program].
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// Gives the programs the simulated driver instead of the real one.
    #[arg(long)]
    sim: bool,

    #[command(flatten)]
    daemon: DaemonAddress,

    /// NAME -- PROGRAM [ARGUMENT]... --and NAME -- PROGRAM [ARGUMENT]...
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAMS")]
    programs: Vec<std::ffi::OsString>,
}

/// Measures and reports.
///
/// # Errors
/// [`Failure`]: nothing could be measured.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let measure = match (&args.pattern, args.measure.as_str()) {
        (Some(pattern), _) => DurationMeasure::Pattern(pattern.clone()),
        (None, "json") => DurationMeasure::Json,
        (None, _) => DurationMeasure::Run,
    };
    let (programs, mut facts, notes) = programs::prepare_programs(args)?;
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out)
            .map_err(|why| Failure::new(EXIT_FINDINGS, format!("--out {}: {why}", out.display())))?;
    }
    if args.runs < 10 {
        say::print_note(&format!("{} rounds say little: 10 or more are better (--runs)", args.runs));
    }
    facts.insert(0, ("begun (UTC)".into(), when::format_second(when::now())));
    let mut results = ValidationResults {
        programs: programs.iter().map(programs::TenantProgram::without_runs).collect(),
        measure: measure.clone(),
        wanted: args.runs as usize,
        cut: None,
        began: when::now(),
        facts,
        notes,
    };
    let mut rounds = ValidationRounds::new(&programs, &measure, args.timeout)?;
    let ended = rounds.run_all(args.warmup, &mut results);
    drop(rounds);
    match ended {
        Ok(()) => {
            write(args, &results)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(EarlyEnd::Interrupted) => {
            results.cut = Some("interrupted".into());
            cut_short(args, &results);
            Err(Failure::new(EXIT_INTERRUPTED, "interrupted; the programs were ended"))
        }
        Err(EarlyEnd::Failed(code, words)) => {
            results.cut = Some("a program failed".into());
            cut_short(args, &results);
            Err(Failure::new(code, words))
        }
        Err(EarlyEnd::Silent(words)) => Err(Failure::new(EXIT_UNKNOWN, words)),
    }
}

/// Writes reports of the complete rounds, if any, each marked as incomplete; if that fails, only prints a note.
fn cut_short(args: &Args, results: &ValidationResults) {
    let whole = results.whole_rounds();
    if whole == 0 || args.out.is_none() {
        return;
    }
    match write(args, results) {
        Ok(()) => say::print_note(&format!("what was measured in {whole} rounds is reported, marked as INCOMPLETE")),
        Err(why) => say::print_note(&why.words),
    }
}

fn write(args: &Args, results: &ValidationResults) -> Result<(), Failure> {
    let (mut sheet, json) = (show::to_sheet(results), show::to_json(results));
    if let Some(out) = &args.out {
        let pretty = serde_json::to_string_pretty(&json).map_err(std::io::Error::from)? + "\n";
        say::write_file(&out.join("report.html"), &page::to_html(&sheet))?;
        say::write_file(&out.join("report.md"), &sheet.to_markdown())?;
        say::write_file(&out.join("report.json"), &pretty)?;
    }
    // The last table says which resources are isolated. It is too wide for a terminal and the same for every
    // measurement, so the text output leaves it and its note, the last one, out.
    sheet.tables.pop();
    sheet.notes.pop();
    if args.daemon.json { say::print_json(&json) } else { say::print_text(&sheet.to_text()) }
}
