//! `vgpu explain`: explains in sentences why a tenant gets its present limits and time.

use std::process::ExitCode;

use super::ask::{DaemonAddress, no_answer};
use vgpu_control::ControlCommand;
use vgpu_output::say::{self, Failure};

/// Explains why a tenant waits or not: the tenants before it, the rule that limits it, and when the wait ends.
///
/// The output has a line for each device of the tenant, from the daemon's arbiter. The command changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu explain train
  vgpu explain train --json

Exit codes:
  0  explained
  1  no such tenant; or no daemon answers there
  2  usage")]
pub struct Args {
    /// The tenant, by its name.
    tenant: String,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Asks the daemon and prints the answer.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or there is no such tenant.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let answer = args.daemon.ask_daemon(&ControlCommand::Explain { tenant: args.tenant.clone() })?;
    let explained = answer.explained.ok_or_else(no_answer)?;
    if args.daemon.json {
        say::print_json(&explained)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for device in explained {
        let head = format!("{} on device {}: {}", args.tenant, device.device, device.state);
        text.push_str(&say::in_colour(say::Colour::Bold, &head));
        text.push('\n');
        text.extend(device.sentences.iter().map(|sentence| format!("  {sentence}\n")));
    }
    say::print_text(&text)?;
    Ok(ExitCode::SUCCESS)
}
