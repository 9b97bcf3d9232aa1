//! `vgpu ps`: every process that is connected to the daemon.

use std::process::ExitCode;

use vgpu_core::bytes::Bytes;

use super::ask::{Where, no_answer};
use super::say::{self, Failure};
use crate::control::{Ask, Process};

/// Shows every process that is connected to the daemon, and what it got of each device.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu ps
  vgpu ps --json | jq '.[] | select(.tenant == \"train\") | .pid'

Exit codes:
  0  shown
  1  no daemon answers there
  2  usage")]
pub struct Args {
    #[command(flatten)]
    daemon: Where,
}

/// Asks and prints.
///
/// # Errors
/// [`Failure`]: nobody answers.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let processes = args.daemon.ask(&Ask::Ps)?.members.ok_or_else(no_answer)?;
    if args.daemon.json {
        say::json(&processes)?;
    } else {
        say::text(&shown(&processes))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(processes: &[Process]) -> String {
    let heads =
        ["TENANT", "PID", "INSIDE", "UID", "DEVICE", "LEASE", "GPU-SECONDS", "WAITED", "MEMORY", "SINCE", "LIBRARY"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for Process { tenant, member } in processes {
        let row = |device: &str, lease: String, gpu: String, waited: String, memory: String| {
            vec![
                tenant.clone(),
                member.pid.map_or("-".into(), |pid| pid.to_string()),
                member.pid_inside.to_string(),
                member.uid.to_string(),
                device.to_owned(),
                lease,
                gpu,
                waited,
                memory,
                span(member.connected_seconds),
                member.version.clone(),
            ]
        };
        if member.devices.is_empty() {
            let lease = if member.protocol == 1 { "none (protocol 1)" } else { "none" };
            rows.push(row("-", lease.into(), "-".into(), "-".into(), "-".into()));
        }
        for here in &member.devices {
            let lease = if here.waits { format!("{}, waits", here.lease) } else { here.lease.clone() };
            let (gpu, waited) = (format!("{:.3}", here.gpu_seconds), format!("{:.3}", here.waited_seconds));
            let memory = here.memory_used.map_or("?".into(), |used| Bytes(used).to_string());
            rows.push(row(&here.device, lease, gpu, waited, memory));
        }
    }
    say::table(&rows)
}

/// Seconds for people.
fn span(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{MemberDevice, MemberStatus};

    #[test]
    fn a_process_has_a_row_for_each_device_and_one_without_any() {
        let device = |name: &str, waits| MemberDevice {
            device: name.into(),
            lease: "run".into(),
            waits,
            gpu_seconds: 1.25,
            waited_seconds: 0.5,
            memory_used: Some(3 << 30),
            overhead: None,
        };
        let member = MemberStatus {
            pid: Some(7),
            pid_inside: 3,
            uid: 1000,
            protocol: 2,
            connected_seconds: 130,
            ..MemberStatus::default()
        };
        let two = MemberStatus { devices: vec![device("0", false), device("1", true)], ..member };
        let old = MemberStatus { protocol: 1, ..MemberStatus::default() };
        let process = |member| Process { tenant: "a".into(), member };
        let text = shown(&[process(two), process(old)]);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(
            text.contains("a       7    3       1000  0       run                1.250        0.500   3 GiB   2 min"),
            "{text}"
        );
        assert!(text.contains("run, waits") && text.contains("none (protocol 1)"), "{text}");
    }
}
