//! Measures the daemon's cost with a thousand tenants and ten thousand members, through its protocol and its pages
//! alone.
//!
//!     vgpu-daemon-bench [--tenants N] [--members N] [--seconds N] [--json] [--check] [--out DIR]
//!
//! This process acts as all members, with real sockets, real pages, real wake-up events, and sleeps on the real futex
//! words. There is no device and no library.
//!
//! The figures:
//!
//! - seconds until every member is welcomed and has a slot
//! - the daemon's descriptors and memory
//! - time from a member's request to its lease, with a sleeping thread and with a polling one (which excludes the
//!   host's time to wake a thread)
//! - the daemon's processor time when idle and at 100 handovers a second
//! - the processor time of all its threads when idle with every policy in its file, at first and from 20 s after the
//!   joins on
//!
//! `--check` fails if a figure is over its budget.
//!
//! [`daemon`] starts and reads the daemon, [`measure`] does the measurements. Not here: shares of device time
//! (`vgpu-shares`).

mod daemon;
mod measure;

use clap::Parser;
use measure::DaemonFigures;
use std::path::Path;
use std::process::ExitCode;
use vgpu_benches::host::HostFacts;
use vgpu_benches::output;

/// Measures the cost of the daemon with many tenants.
#[derive(Parser)]
struct Options {
    /// Number of tenants.
    #[arg(long, default_value_t = 1000)]
    tenants: usize,
    /// Number of members of all tenants together.
    #[arg(long, default_value_t = 10_000)]
    members: usize,
    /// Length of each measurement of processor time.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Prints JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Fails if a budget is missed.
    #[arg(long)]
    check: bool,
    /// Directory for report.md.
    #[arg(long, value_name = "DIR")]
    out: Option<std::path::PathBuf>,
}

/// Name, budget, unit, and the figure that it applies to.
type FigureBudget = (&'static str, f64, &'static str, fn(&DaemonFigures) -> f64);

const FIGURE_BUDGETS: &[FigureBudget] = &[
    ("ring to awake, p99", 100.0, "us", |f| f.asleep.p99),
    ("descriptors per member", 1.3, "", |f| f.descriptors_per_member),
    ("processor at rest with all policies", 1.0, "% of a core", |f| f.policies.settled),
    ("processor at 100 handovers/s", 1.0, "% of a core", |f| f.busy_percent),
];

/// Writes the figures, the machine and the command as report.md.
fn write(figures: &DaemonFigures, facts: HostFacts, out: &Path) -> Result<(), String> {
    output::prepare_output(out)?;
    let head =
        facts.report_head("The members are simulated inside one process; sockets, pages, bells and sleeps are real.");
    let path = out.join("report.md");
    let text = format!("# The daemon with many tenants, measured\n\n{head}```text\n{figures}```\n");
    std::fs::write(&path, text).map_err(|why| format!("{}: {why}", path.display()))
}

fn main() -> ExitCode {
    let options = Options::parse();
    let facts = HostFacts::ask_machine("vgpu-daemon-bench");
    let figures = match measure::all(options.tenants, options.members, options.seconds) {
        Ok(figures) => figures,
        Err(why) => {
            eprintln!("vgpu-daemon-bench: {why}");
            return ExitCode::from(2);
        }
    };
    if let Some(Err(why)) = options.out.as_deref().map(|out| write(&figures, facts, out)) {
        eprintln!("vgpu-daemon-bench: {why}");
        return ExitCode::from(2);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&figures).expect("plain numbers"));
    } else {
        print!("{figures}");
    }
    let mut kept = true;
    for (name, budget, unit, figure) in FIGURE_BUDGETS {
        let value = figure(&figures);
        let over = value > *budget;
        kept &= !over;
        eprintln!("{:<30} {value:>9.2} {unit}, budget {budget} {}", name, if over { "OVER" } else { "kept" });
    }
    if options.check && !kept { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
