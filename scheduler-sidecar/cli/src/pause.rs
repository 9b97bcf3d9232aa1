//! `vgpu pause`, `vgpu resume`, `vgpu exclusive` and `vgpu unset`: stop launches for a while, and end what was changed.

use std::process::ExitCode;

use super::ask::{DaemonAddress, LastingOptions};
use super::set::format_done;
use vgpu_control::ControlCommand;
use vgpu_output::say::{self, Failure};

/// Pauses a tenant: it launches nothing until it is resumed, keeps its memory, and finishes its work in flight.
///
/// The tenant's programs wait at their next launch. The pause lasts until `vgpu resume`. With --for it ends by itself, and
/// a restart of the daemon does not end it; without it, that does. Reading the configuration again ends no pause.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu pause train
  vgpu pause train --for 10m --reason 'maintenance of the data store'

Exit codes:
  0  paused; or it was so already
  1  no such tenant; or no daemon answers there
  2  usage")]
pub struct PauseArgs {
    /// The tenant, by its name.
    tenant: String,

    #[command(flatten)]
    lasting: LastingOptions,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Resumes a paused tenant: it may launch again.
///
/// A tenant that a window pauses launches until the window ends.
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

/// Gives a tenant its devices alone: the others there are paused and keep their memory.
///
/// It lasts until `vgpu unset TENANT`. With --for it ends by itself, and a restart of the daemon does not end it; without
/// it, that does. A tenant that shares one of the devices is paused on all of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu exclusive demo --for 30m --reason 'customer visit'
  vgpu exclusive demo && ./benchmark; vgpu unset demo

Exit codes:
  0  exclusive; or it was so already
  1  no such tenant; or no daemon answers there
  2  usage")]
pub struct ExclusiveArgs {
    /// The tenant, by its name.
    tenant: String,

    #[command(flatten)]
    lasting: LastingOptions,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Ends everything that commands changed of a tenant: its terms, its pause, its exclusive use.
///
/// The terms of the configuration hold again, as its windows and bookings say. Bookings stay.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu unset train

Exit codes:
  0  nothing is changed by hand any more
  1  no such tenant; the terms of the file do not fit beside the others; or no daemon answers
  2  usage")]
pub struct UnsetArgs {
    /// The tenant, by its name.
    tenant: String,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Makes the tenant exclusive and prints who is paused for it.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or there is no such tenant.
pub fn exclusive(args: &ExclusiveArgs) -> Result<ExitCode, Failure> {
    let ask = ControlCommand::Exclusive { tenant: args.tenant.clone(), lasting: args.lasting.to_lasting() };
    let done = args.daemon.request_change(&ask)?;
    if args.daemon.json {
        say::print_json(&done)?;
        return Ok(ExitCode::SUCCESS);
    }
    let what = if done.changed.is_empty() { "is exclusive already" } else { "is exclusive" };
    let notes: String = done.notes.iter().map(|note| format!("note: {note}\n")).collect();
    say::print_text(&format!("{} {what}\n{notes}", done.tenant))?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the changes of a tenant and prints the terms that hold then.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or it refuses.
pub fn unset(args: &UnsetArgs) -> Result<ExitCode, Failure> {
    let done = args.daemon.request_change(&ControlCommand::Unset { tenant: args.tenant.clone() })?;
    if args.daemon.json {
        say::print_json(&done)?;
    } else {
        say::print_text(&format_done(&done))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Pauses the tenant and reports it.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or there is no such tenant.
pub fn pause(args: &PauseArgs) -> Result<ExitCode, Failure> {
    let ask = ControlCommand::Pause { tenant: args.tenant.clone(), lasting: args.lasting.to_lasting() };
    ask_and_tell(&args.daemon, &ask)
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
