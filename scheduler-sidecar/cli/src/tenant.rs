//! `vgpu tenant`: tenants that come and go while the daemon serves, for engines that start one for each job.

pub(crate) mod add;
mod list;
pub(crate) mod remove;

use std::process::ExitCode;

use clap::Subcommand;
use vgpu_control::tenant::{DaemonRefusal, RefusalKind, TenantAnswer};
use vgpu_control::{self as control, ControlCommand};
use vgpu_output::say::{EXIT_FINDINGS, EXIT_USAGE, Failure};

use super::ask::{DaemonAddress, explain_failure, no_answer};

/// The tenant does not fit next to the others now.
pub(crate) const EXIT_DOES_NOT_FIT: u8 = 3;
/// No daemon answers, or it is busy with other administrators.
pub(crate) const EXIT_NO_DAEMON: u8 = 4;

/// Adds, removes and lists tenants while the daemon serves.
///
/// An added tenant is admitted by the arithmetic of the configuration file. It stays when the file is read again and
/// when the daemon restarts. It ends when it is removed, when its process or its time ends, or when the host restarts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu tenant add job-7 --gpu 0.25
  vgpu tenant list
  vgpu tenant remove job-7 --kill

Exit codes:
  0  done; or it was so already
  1  the daemon refused it
  2  usage: a value is not accepted
  3  the tenant does not fit next to the others now
  4  no daemon answers")]
pub struct Args {
    #[command(subcommand)]
    verb: TenantVerb,
}

#[derive(Debug, Subcommand)]
enum TenantVerb {
    Add(Box<add::Args>),
    Remove(remove::Args),
    List(list::Args),
}

/// Runs the subcommand.
///
/// # Errors
/// [`Failure`], with the exit codes of the subcommand's help.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.verb {
        TenantVerb::Add(args) => add::run(args),
        TenantVerb::Remove(args) => remove::run(args),
        TenantVerb::List(args) => list::run(args),
    }
}

/// Sends a request about a tenant. The exit code of the failure tells its kind.
fn request_tenant(daemon: &DaemonAddress, ask: &ControlCommand) -> Result<TenantAnswer, Failure> {
    let socket = daemon.socket_path();
    let answer = control::ask_daemon(&socket, ask).map_err(|why| {
        let refusal = why.get_ref().and_then(|why| why.downcast_ref::<DaemonRefusal>());
        let code = match refusal.map(|refusal| refusal.kind) {
            Some(Some(RefusalKind::BadTerms)) => EXIT_USAGE,
            Some(Some(RefusalKind::DoesNotFit)) => EXIT_DOES_NOT_FIT,
            Some(Some(RefusalKind::Busy)) | None => EXIT_NO_DAEMON,
            Some(_) => EXIT_FINDINGS,
        };
        Failure::new(code, explain_failure(&socket, &why))
    })?;
    answer.tenant.ok_or_else(no_answer)
}
