//! `vgpu pause` and `vgpu resume`: stop a tenant's launches for a while.

use std::process::ExitCode;

use super::ask::DaemonAddress;
use vgpu_control::ControlCommand;
use vgpu_output::say::{self, Failure};

/// Pauses a tenant: it launches nothing until it is resumed, keeps its memory, and finishes its work in flight.
///
/// The tenant's programs wait at their next launch. The pause lasts until `vgpu resume` or a restart of the daemon;
/// reading the configuration again does not end it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu pause train
  vgpu pause train && sleep 60; vgpu resume train

Exit codes:
  0  paused; or it was so already
  1  no such tenant; or no daemon answers there
  2  usage")]
pub struct PauseArgs {
    /// The tenant, by its name.
    tenant: String,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Resumes a paused tenant: it may launch again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu resume train

Exit codes:
  0  resumed; or it was not paused
  1  no such tenant; or no daemon answers there
  2  usage")]
pub struct ResumeArgs {
    /// The tenant, by its name.
    tenant: String,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Pauses the tenant and reports it.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or there is no such tenant.
pub fn pause(args: &PauseArgs) -> Result<ExitCode, Failure> {
    ask_and_tell(&args.daemon, &ControlCommand::Pause { tenant: args.tenant.clone() })
}

/// Resumes the tenant and reports it.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or there is no such tenant.
pub fn resume(args: &ResumeArgs) -> Result<ExitCode, Failure> {
    ask_and_tell(&args.daemon, &ControlCommand::Resume { tenant: args.tenant.clone() })
}

fn ask_and_tell(daemon: &DaemonAddress, ask: &ControlCommand) -> Result<ExitCode, Failure> {
    let done = daemon.request_change(ask)?;
    if daemon.json {
        say::print_json(&done)?;
        return Ok(ExitCode::SUCCESS);
    }
    let what = match (done.paused, done.changed.is_empty()) {
        (true, false) => "paused",
        (true, true) => "is paused already",
        (false, false) => "resumed",
        (false, true) => "was not paused",
    };
    let notes: String = done.notes.iter().map(|note| format!("note: {note}\n")).collect();
    say::print_text(&format!("{} {what}\n{notes}", done.tenant))?;
    Ok(ExitCode::SUCCESS)
}
