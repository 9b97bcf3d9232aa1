//! `vgpu tenant list`: the tenants, where they come from, and when they end.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use vgpu_control::{ControlCommand, TenantStatus};
use vgpu_output::say::{self, Failure};

use crate::ask::{DaemonAddress, no_answer};

/// Lists the tenants: those of the file and those that were added, and when these end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu tenant list
  vgpu tenant list --json

Exit codes:
  0  shown
  1  no daemon answers
  2  usage")]
pub struct Args {
    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Prints the list.
///
/// # Errors
/// [`Failure`]: no daemon answers.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let tenants = args.daemon.ask_daemon(&ControlCommand::Status)?.status.ok_or_else(no_answer)?.tenants;
    if args.daemon.json {
        let row = |tenant: &TenantStatus| {
            json!({
                "name": tenant.name,
                "from": origin_word(tenant),
                "since": tenant.added.as_ref().map(|added| added.since),
                "pid": tenant.added.as_ref().and_then(|added| added.pid),
                "seconds_left": tenant.added.as_ref().and_then(|added| added.seconds_left),
                "members": tenant.members.len(),
                "socket": tenant.socket,
            })
        };
        say::print_json(&tenants.iter().map(row).collect::<Vec<_>>())?;
    } else {
        say::print_text(&to_table(&tenants))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Origin of a tenant; a removed one ends with its last member.
fn origin_word(tenant: &TenantStatus) -> &'static str {
    match (tenant.removed, &tenant.added) {
        (true, _) => "removed",
        (false, Some(_)) => "command",
        (false, None) => "file",
    }
}

fn end_words(tenant: &TenantStatus) -> String {
    if tenant.removed {
        return "with its last process".into();
    }
    let Some(added) = &tenant.added else { return "-".into() };
    let pid = added.pid.map(|pid| format!("with process {pid}"));
    let time = added.seconds_left.map(|left| format!("in {}", humantime::format_duration(Duration::from_secs(left))));
    let words: Vec<String> = pid.into_iter().chain(time).collect();
    if words.is_empty() { "-".into() } else { words.join(" or ") }
}

fn to_table(tenants: &[TenantStatus]) -> String {
    let mut rows = vec![["TENANT", "FROM", "ENDS", "MEMBERS", "SOCKET"].map(str::to_owned).to_vec()];
    rows.extend(tenants.iter().map(|tenant| {
        vec![
            tenant.name.clone(),
            origin_word(tenant).to_owned(),
            end_words(tenant),
            tenant.members.len().to_string(),
            tenant.socket.display().to_string(),
        ]
    }));
    say::lay_out_table(&rows)
}
