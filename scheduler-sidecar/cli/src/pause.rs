//! `vgpu pause`, `vgpu resume`, `vgpu exclusive` and `vgpu unset`: stop launches for a while, and end what was changed.

use std::process::ExitCode;

use super::ask::{DaemonAddress, LastingOptions, format_notes, print_change};
use super::set::format_done;
use vgpu_control::{ChangeResult, ControlCommand};
use vgpu_output::say::Failure;

/// Pauses a tenant: it launches nothing until it is resumed, keeps its memory, and finishes its work in flight.
///
/// The tenant's programs wait at their next launch. The pause lasts until `vgpu resume`. With --for it ends by itself,
/// and a restart of the daemon does not end it; without it, that does. Reading the configuration again ends no pause.
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
/// It lasts until `vgpu unset TENANT`. With --for it ends by itself, and a restart of the daemon does not end it;
/// without it, that does. A tenant that shares some of the devices is paused there alone.
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
/// The terms of the configuration hold again, as its windows and bookings say. Bookings and labels stay.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu unset train

Exit codes:
  0  no change by `vgpu set`, `pause` or `exclusive` is left
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
    print_change(&args.daemon, &ask, |done| {
        let what = if done.changed.is_empty() { "is exclusive already" } else { "is exclusive" };
        format!("{} {what}\n", done.tenant) + &format_notes(&done.notes)
    })
}

/// Ends the changes of a tenant and prints the terms that hold then.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or it refuses.
pub fn unset(args: &UnsetArgs) -> Result<ExitCode, Failure> {
    print_change(&args.daemon, &ControlCommand::Unset { tenant: args.tenant.clone() }, format_done)
}

/// Pauses the tenant and reports it.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or there is no such tenant.
pub fn pause(args: &PauseArgs) -> Result<ExitCode, Failure> {
    let ask = ControlCommand::Pause { tenant: args.tenant.clone(), lasting: args.lasting.to_lasting() };
    print_change(&args.daemon, &ask, pause_words)
}

/// Resumes the tenant and reports it.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or there is no such tenant.
pub fn resume(args: &ResumeArgs) -> Result<ExitCode, Failure> {
    print_change(&args.daemon, &ControlCommand::Resume { tenant: args.tenant.clone() }, pause_words)
}

fn pause_words(done: &ChangeResult) -> String {
    let what = match (done.paused, done.changed.is_empty()) {
        (true, false) => "paused",
        (true, true) => "is paused already",
        (false, false) => "resumed",
        (false, true) => "was not paused",
    };
    format!("{} {what}\n", done.tenant) + &format_notes(&done.notes)
}
