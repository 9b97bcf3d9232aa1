//! `vgpu doctor`: reports which guarantees would hold for a program started here, and which would not.
//!
//! Each section checks one thing and adds lines to the [`DoctorReport`]: `preload` (the library and the preload that
//! names it), `driver`, `limits` (the variables; `mps` has the list for MPS), `state` (tenant, place of the ledger,
//! bypasses found), `daemon` (and its `found` processes), `control` (hooks and limits in force, tested in a child
//! process). A line is fine or a finding; a finding says what to do. Nothing is changed. This process loads no driver;
//! its child does (`bin/vgpu/child.rs`) and reports its observations as [`seen`].

mod control;
mod daemon;
mod driver;
mod found;
mod limits;
mod mps;
mod preload;
pub mod seen;
mod state;

use std::process::ExitCode;

use serde::Serialize;

use vgpu_output::say::{self, Colour, EXIT_FINDINGS, Failure};

/// Examines this environment and proves the limits: library, driver, limits, tenant, daemon, its findings.
///
/// The proof is a child process, started like any program here. It allocates a little memory, which must be granted,
/// and
/// more than the limit, which must be refused. It frees the memory immediately.
///
/// The daemon's findings are shown too: those of all tenants if its administrative socket may be opened, in a container
/// those of the tenant whose socket is there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu doctor
  docker run ... -v /usr/local/bin/vgpu:/usr/local/bin/vgpu:ro IMAGE vgpu doctor --json
  vgpu run --memory-limit 4GiB -- vgpu doctor   # the environment of the program

Exit codes:
  0  nothing found
  1  findings of this environment or of the daemon, each with its remedy
  2  usage")]
pub struct Args {
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// A line of the report.
#[derive(Debug, Serialize)]
struct DoctorLine {
    /// Name of the thing that was checked.
    subject: &'static str,
    /// True if the check found no problem.
    ok: bool,
    /// The observation, and for a finding what to do.
    words: String,
}

/// Lines of the report, in order of the checks.
#[derive(Debug, Default, Serialize)]
pub struct DoctorReport {
    /// Number of lines that report a problem.
    findings: usize,
    lines: Vec<DoctorLine>,
}

impl DoctorReport {
    /// Adds a line that is fine.
    fn add_fine(&mut self, subject: &'static str, words: impl Into<String>) {
        self.lines.push(DoctorLine { subject, ok: true, words: words.into() });
    }

    /// Adds a line that reports a problem.
    fn add_finding(&mut self, subject: &'static str, words: impl Into<String>) {
        self.findings += 1;
        self.lines.push(DoctorLine { subject, ok: false, words: words.into() });
    }
}

/// Runs all checks and prints the report.
///
/// # Errors
/// Stdout is closed.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut report = DoctorReport::default();
    let asked = daemon::DaemonAnswer::ask_named();
    preload::examine_preload(&mut report);
    driver::examine_driver(&mut report);
    limits::examine_limits(&mut report);
    state::examine_state(&mut report, asked.as_ref().and_then(daemon::DaemonAnswer::tenant_name));
    daemon::examine_daemon(&mut report, asked.as_ref());
    control::examine_control(&mut report);
    if args.json {
        say::print_json(&report)?;
    } else {
        say::print_text(&format_report(&report))?;
    }
    Ok(ExitCode::from(if report.findings == 0 { 0 } else { EXIT_FINDINGS }))
}

fn format_report(report: &DoctorReport) -> String {
    let mut out = String::new();
    for DoctorLine { subject, ok, words } in &report.lines {
        let mark = if *ok { say::in_colour(Colour::Green, "ok     ") } else { say::in_colour(Colour::Red, "FINDING") };
        out.push_str(&format!("{mark}  {subject:<8}  {words}\n"));
    }
    out.push_str(&match report.findings {
        0 => "nothing found\n".to_owned(),
        1 => "1 finding\n".to_owned(),
        many => format!("{many} findings\n"),
    });
    out
}

/// Returns an environment variable as text; an empty one counts as unset.
fn environment_text(name: &str) -> Option<String> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
}
