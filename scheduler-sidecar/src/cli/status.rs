//! `vgpu status`: asks the daemon what it serves, and the tenants' ledgers, where they can be read here, for open doors.

use std::path::PathBuf;
use std::process::ExitCode;

use vgpu_core::bytes::Bytes;
use vgpu_core::tenant::{Facts, TenantKey};

use super::ledgers;
use super::say::{self, FINDINGS, Failure};
use crate::control::{self, Status};

/// Shows the daemon's tenants, their limits and their members.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu status
  vgpu status --socket /srv/gpu/admin.sock --json

Exit codes:
  0  shown
  1  no daemon answers there
  2  usage")]
pub struct Args {
    /// The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Asks and prints.
///
/// # Errors
/// [`Failure`]: nobody answers.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let socket = args.socket.clone().unwrap_or_else(|| control::admin_socket(&control::runtime_dir()));
    let status = control::ask_status(&socket).map_err(|why| {
        let hint = "a daemon whose sockets are all named opens this one only with --admin-socket";
        Failure::new(FINDINGS, format!("no daemon answers at {}: {why} ({hint})", socket.display()))
    })?;
    if args.json {
        let mut all = serde_json::to_value(&status).map_err(std::io::Error::from)?;
        if let Some(tenants) = all.get_mut("tenants").and_then(|tenants| tenants.as_array_mut()) {
            for (tenant, told) in tenants.iter_mut().zip(status.tenants.iter().map(|tenant| doors(&tenant.name))) {
                tenant["open_doors"] = told.as_ref().map(|(count, _)| *count).into();
                tenant["first_open_door"] = told.filter(|(count, _)| *count > 0).map(|(_, first)| first).into();
            }
        }
        say::json(&all)?;
    } else {
        say::text(&shown(&status))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the ledgers of a tenant tell; those of a container are its own, and cannot be read from outside.
fn doors(tenant: &str) -> Option<(u64, String)> {
    let facts = Facts { name: Some(tenant.as_bytes()), mount_namespace: 0, pid_namespace: 0, host: true, uid: 0 };
    let key = TenantKey::of(&facts).ok()?;
    ledgers::places().iter().find_map(|place| ledgers::open_doors(place, &key))
}

fn in_words(told: Option<(u64, String)>) -> String {
    match told {
        None => "?".into(),
        Some((0, _)) => "closed".into(),
        Some((count, first)) => format!("{count} open: {first}"),
    }
}

fn shown(status: &Status) -> String {
    let mut rows = vec![["TENANT", "MEMORY", "SM", "MEMBERS", "DOORS", "SOCKET"].map(str::to_owned).to_vec()];
    let mut remarks = Vec::new();
    for tenant in &status.tenants {
        let pids: Vec<String> = tenant
            .members
            .iter()
            .map(|member| member.pid.map_or(format!("({})", member.pid_inside), |pid| pid.to_string()))
            .collect();
        let earlier = tenant.members.iter().filter(|member| member.earlier_terms).count();
        if earlier > 0 {
            remarks.push(format!("{}: {earlier} of its members keep limits they were told earlier\n", tenant.name));
        }
        if tenant.removed {
            remarks.push(format!("{}: removed; it goes with its last member\n", tenant.name));
        }
        rows.push(vec![
            tenant.name.clone(),
            tenant.memory_limit.map_or("unlimited".into(), |bytes| Bytes(bytes).to_string()),
            tenant.sm_limit.map_or("unlimited".into(), |percent| format!("{percent} %")),
            if pids.is_empty() { "-".into() } else { pids.join(",") },
            in_words(doors(&tenant.name)),
            tenant.socket.display().to_string(),
        ]);
    }
    if let Some(file) = &status.configuration {
        remarks.extend(file.notes.iter().map(|note| format!("note: {note}\n")));
        if let Some(why) = &file.refused {
            remarks.push(format!("the last reload of {} changed nothing:\n{why}\n", file.file.display()));
        }
    }
    let Status { version, pid, uptime_seconds, .. } = status;
    format!("vgpud {version}, process {pid}, up {uptime_seconds} s\n{}{}", say::table(&rows), remarks.concat())
}
