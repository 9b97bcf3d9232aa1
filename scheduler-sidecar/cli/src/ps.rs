//! `vgpu ps`: lists every process connected to the daemon, with its container and its pod. [`names`] finds the name of
//! the container.

pub mod names;

use std::process::ExitCode;

use serde::Serialize;
use vgpu_core::units::bytes::Bytes;

use self::names::ContainerNames;
use super::ask::{DaemonAddress, no_answer};
use vgpu_control::place::ProcessPlace;
use vgpu_control::{ControlCommand, ProcessStatus};
use vgpu_output::say::{self, Failure};

/// Shows every process that is connected to the daemon, its container, its pod, and its use of each device.
///
/// PID is the process's number on the host, INSIDE its number in the container. CONTAINER is the container's name, if
/// its engine answers or stores the name in a readable file; else the first letters of its id. Outside of containers it
/// is the systemd unit. POD is the UID of the Kubernetes pod; the column is there if a process is in one. LEASE says
/// `suspended` of a process that vgpu-checkpoint moved off its devices.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu ps
  vgpu ps --json | jq '.[] | select(.tenant == \"train\") | .pid'
  vgpu ps --json | jq -r '.[] | [.pid, .place.name] | @tsv'

Exit codes:
  0  shown
  1  no daemon answers there
  2  usage")]
pub struct Args {
    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Asks the daemon and prints the processes.
///
/// # Errors
/// [`Failure`]: the daemon does not answer.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let processes = args.daemon.ask_daemon(&ControlCommand::Ps)?.members.ok_or_else(no_answer)?;
    let mut names = ContainerNames::on_this_host();
    let all: Vec<PlacedProcess> =
        processes.into_iter().map(|process| PlacedProcess::new(process, &mut names)).collect();
    if args.daemon.json {
        say::print_json(&all)?;
    } else {
        say::print_text(&format_processes(&all))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Number of the column with the pod.
const POD_COLUMN: usize = 2;

/// A process and its container.
#[derive(Debug, Serialize)]
struct PlacedProcess {
    #[serde(flatten)]
    process: ProcessStatus,
    /// Container or unit of the process; null if unknown.
    place: Option<ProcessPlace>,
}

impl PlacedProcess {
    /// The place as this program sees it, which may have a name; else as the daemon saw it.
    fn new(mut process: ProcessStatus, names: &mut ContainerNames) -> Self {
        let member = &mut process.member;
        let place = member
            .pid
            .map(|pid| names.place_of(pid, member.pid_inside))
            .filter(|place| *place != ProcessPlace::default());
        let place = place.or(member.place.take());
        member.place = None;
        Self { process, place }
    }

    fn pod_uid(&self) -> Option<&str> {
        self.place.as_ref()?.pod.as_deref()
    }
}

fn format_processes(processes: &[PlacedProcess]) -> String {
    let has_pods = processes.iter().any(|process| process.pod_uid().is_some());
    let heads = [
        "TENANT",
        "CONTAINER",
        "POD",
        "PID",
        "INSIDE",
        "UID",
        "DEVICE",
        "LEASE",
        "GPU-SECONDS",
        "WAITED",
        "MEMORY",
        "SINCE",
        "LIBRARY",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for process in processes {
        let (PlacedProcess { process: ProcessStatus { tenant, member }, place }, pod) = (process, process.pod_uid());
        let container = place.as_ref().and_then(ProcessPlace::short_text).unwrap_or_else(|| "-".into());
        let row = |device: &str, lease: String, gpu: String, waited: String, memory: String| {
            vec![
                tenant.clone(),
                container.clone(),
                pod.unwrap_or("-").to_owned(),
                member.pid.map_or("-".into(), |pid| pid.to_string()),
                member.pid_inside.to_string(),
                member.uid.to_string(),
                device.to_owned(),
                lease,
                gpu,
                waited,
                memory,
                format_span(member.connected_seconds),
                say::escape_line(&member.version),
            ]
        };
        let is_suspended = member.suspended_since.is_some();
        if member.devices.is_empty() {
            let lease = if is_suspended { "suspended" } else { "none" };
            rows.push(row("-", lease.into(), "-".into(), "-".into(), "-".into()));
        }
        for here in &member.devices {
            let lease = match (is_suspended, here.waits) {
                (true, _) => "suspended".to_owned(),
                (false, true) => format!("{}, waits", here.lease),
                (false, false) => here.lease.clone(),
            };
            let gpu = here.gpu_seconds.map_or("?".into(), |seconds| format!("{seconds:.3}"));
            let waited = format!("{:.3}", here.waited_seconds);
            let memory = here.memory_used.map_or("?".into(), |used| Bytes(used).to_string());
            rows.push(row(&here.device, lease, gpu, waited, memory));
        }
    }
    if !has_pods {
        rows.iter_mut().for_each(|row| drop(row.remove(POD_COLUMN)));
    }
    say::lay_out_table(&rows)
}

/// Formats seconds for people.
pub(super) fn format_span(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_control::{MemberDevice, MemberStatus};

    #[test]
    fn a_process_has_a_row_for_each_device_and_one_without_any() {
        let device = |name: &str, waits| MemberDevice {
            device: name.into(),
            lease: "run".into(),
            waits,
            gpu_seconds: Some(1.25),
            waited_seconds: 0.5,
            memory_used: Some(3 << 30),
            overhead: None,
        };
        let member =
            MemberStatus { pid: Some(7), pid_inside: 3, uid: 1000, connected_seconds: 130, ..MemberStatus::default() };
        let two = MemberStatus { devices: vec![device("0", false), device("1", true)], ..member };
        let place = ProcessPlace { name: Some("trainer".into()), ..ProcessPlace::default() };
        let process = |member| PlacedProcess {
            process: ProcessStatus { tenant: "a".into(), member },
            place: Some(place.clone()),
        };
        let text = format_processes(&[process(two.clone()), process(MemberStatus::default())]);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(
            text.contains(
                "a       trainer    7    3       1000  0       run         1.250        0.500   3 GiB   2 min"
            ),
            "{text}"
        );
        assert!(text.contains("run, waits") && text.contains("  none ") && !text.contains("POD"), "{text}");
        let suspended = MemberStatus { suspended_since: Some(9), ..two.clone() };
        let text = format_processes(&[process(suspended)]);
        assert_eq!(text.matches("  suspended  ").count(), 2, "{text}");
        // The daemon saw the pod of a process that this program cannot see.
        let pod = "7ac1d5a2-9b42-4f4c-8d0a-52a1b7e3c111";
        let far = ProcessPlace { pod: Some(pod.into()), ..ProcessPlace::default() };
        let member = MemberStatus { pid: None, place: Some(far), ..two };
        let placed = PlacedProcess::new(
            ProcessStatus { tenant: "b".into(), member },
            &mut ContainerNames::under_root(std::path::Path::new("/none"), "/none".into()),
        );
        let json = serde_json::to_string(&placed).unwrap();
        assert_eq!(json.matches("\"place\"").count(), 1, "{json}");
        let text = format_processes(&[placed, process(MemberStatus::default())]);
        assert!(text.starts_with("TENANT  CONTAINER  POD ") && text.contains(pod), "{text}");
    }
}
