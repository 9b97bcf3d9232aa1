//! `vgpu queue`: shows who waits for time on a device, and who waits for room.

use std::process::ExitCode;

use super::ask::{DaemonAddress, no_answer};
use vgpu_control::ControlCommand;
use vgpu_control::service::QueueAnswer;
use vgpu_output::say::{self, Failure};

/// Shows the tenants that wait: for time on a device, and for room to be added.
///
/// POSITION is the order in which a device's tenants would get a lease now. EXPECTED is the time until then if each
/// tenant before uses one whole lease; it is not known for a paused tenant. The second table has the tenants for which
/// `vgpu tenant add --wait` waits. They take no turns: the first one that fits is added. There EXPECTED is the time
/// until the next added tenant ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu queue
  vgpu queue --json | jq '.time[] | select(.position == 1) | .tenant'

Exit codes:
  0  shown
  1  no daemon answers there
  2  usage")]
pub struct Args {
    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Asks the daemon and prints the queues.
///
/// # Errors
/// [`Failure`]: the daemon does not answer.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let queue = args.daemon.ask_daemon(&ControlCommand::Queue)?.queue.ok_or_else(no_answer)?;
    if args.daemon.json {
        say::print_json(&queue)?;
    } else {
        say::print_text(&format_queue(&queue))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats seconds with the unit that fits: leases last milliseconds, additions wait for hours.
fn format_wait(seconds: f64) -> String {
    match seconds {
        0.0..1.0 => format!("{:.1}ms", seconds * 1000.0),
        1.0..60.0 => format!("{seconds:.1}s"),
        60.0..3600.0 => format!("{:.0}m", (seconds / 60.0).floor()),
        _ => format!("{:.1}h", seconds / 3600.0),
    }
}

fn format_queue(queue: &QueueAnswer) -> String {
    if queue.time.is_empty() && queue.additions.is_empty() {
        return "nobody waits\n".to_owned();
    }
    let expected = |seconds: Option<f64>| seconds.map_or_else(|| "?".to_owned(), format_wait);
    let mut text = String::new();
    if !queue.time.is_empty() {
        let heads = ["DEVICE", "POSITION", "TENANT", "MEMBERS", "WAITING", "EXPECTED", "HOLDER", "STATE"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows.extend(queue.time.iter().map(|one| {
            vec![
                one.device.clone(),
                one.position.to_string(),
                one.tenant.clone(),
                one.members.to_string(),
                format_wait(one.waiting_seconds),
                expected(one.expected_seconds),
                one.holder.clone().unwrap_or_else(|| "-".to_owned()),
                one.state.clone(),
            ]
        }));
        text.push_str(&say::lay_out_table(&rows));
    }
    if !queue.additions.is_empty() {
        let mut rows = vec![["POSITION", "ADDITION", "WAITING", "EXPECTED", "REASON"].map(str::to_owned).to_vec()];
        rows.extend(queue.additions.iter().map(|one| {
            vec![
                one.position.to_string(),
                one.tenant.clone(),
                format_wait(one.waiting_seconds),
                expected(one.expected_seconds),
                say::escape_line(&one.words),
            ]
        }));
        text.push_str(&say::lay_out_table(&rows));
    }
    text
}

#[cfg(test)]
mod tests {
    use vgpu_control::service::{QueuedAddition, QueuedTenant};

    use super::*;

    #[test]
    fn the_queue_has_positions_and_expected_waits_and_says_who_waits_for_room() {
        let tenant = |position, tenant: &str, expected_seconds| QueuedTenant {
            device: "GPU-1".into(),
            position,
            tenant: tenant.into(),
            members: 1,
            waiting_seconds: 0.0042,
            expected_seconds,
            holder: Some("train".into()),
            state: "waiting".into(),
        };
        let addition = QueuedAddition {
            position: 1,
            tenant: "job-7".into(),
            waiting_seconds: 7200.0,
            expected_seconds: Some(90.0),
            words: "sm_request: 110 % of the device".into(),
        };
        let time = vec![tenant(1, "chat", Some(0.0015)), tenant(2, "idle", None)];
        let text = format_queue(&QueueAnswer { time, additions: vec![addition] });
        let cells: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(cells[1], ["GPU-1", "1", "chat", "1", "4.2ms", "1.5ms", "train", "waiting"]);
        assert_eq!((cells[2][1], cells[2][5]), ("2", "?"));
        assert_eq!(cells[4][..4], ["1", "job-7", "2.0h", "1m"]);
        assert!(text.contains("sm_request: 110 % of the device"), "{text}");
        assert_eq!(format_queue(&QueueAnswer::default()), "nobody waits\n");
    }
}
