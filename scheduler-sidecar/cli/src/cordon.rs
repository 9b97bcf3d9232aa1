//! `vgpu cordon`, `vgpu evacuate` and `vgpu uncordon`: nobody new on a device or in a tenant, until it is empty.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use vgpu_control::{ControlCommand, CordonStatus, DaemonStatus, EvacuationOptions, SubjectName};
use vgpu_output::say::{self, EXIT_FINDINGS, Failure};

use super::ask::{DaemonAddress, LastingOptions, format_notes, no_answer};

/// Pause between two looks at an evacuation.
const PROGRESS_PAUSE: Duration = Duration::from_millis(200);

/// Lets no new process and no new tenant on a device. The processes there go on.
///
/// It lasts until `vgpu uncordon`, also across restarts of the daemon, or ends by itself with --for. A process that was
/// on the device may connect again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu cordon 0 --reason 'this card is replaced on Friday'
  vgpu cordon GPU-7d2f0000-0000-0000-0000-000000000000 --for 2h
  vgpu uncordon 0

Exit codes:
  0  in force
  1  no such device; or no daemon answers there
  2  usage")]
pub struct CordonArgs {
    /// The device, by number or UUID.
    device: String,

    #[command(flatten)]
    lasting: LastingOptions,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Empties a device or a tenant: nobody new is let in, and its processes are asked to end.
///
/// Each member is asked by an event, evacuation.asked, which may start a program (docs/actions.md). It gets SIGTERM
/// only with --terminate-after. An evacuation sends no SIGKILL; the idle steps of a tenant go on meanwhile. `vgpu
/// status` shows who is left. It lasts as long as a cordon.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu evacuate 0 --reason 'new card' --wait
  vgpu evacuate train --terminate-after 5m --wait 10m
  vgpu uncordon 0

Exit codes:
  0  in force; with --wait: nobody is left
  1  no such device or tenant; with --wait: somebody is left; or no daemon answers there
  2  usage")]
pub struct EvacuateArgs {
    /// A device by number or UUID, or a tenant by its name.
    #[arg(value_name = "DEVICE|TENANT")]
    subject: String,

    /// The name is a tenant's, also if a device has it.
    #[arg(long)]
    tenant: bool,

    /// Sends SIGTERM to members that are left after this time: 0s, 30s, 5m.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    terminate_after: Option<Duration>,

    /// Waits until nobody is left, at most for TIME, and shows who is left meanwhile.
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "365d", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,

    #[command(flatten)]
    lasting: LastingOptions,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Ends a cordon or an evacuation: new processes may join again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu uncordon 0
  vgpu uncordon train

Exit codes:
  0  ended
  1  there is no cordon of it; or no daemon answers there
  2  usage")]
pub struct UncordonArgs {
    /// A device by number or UUID, or a tenant by its name.
    #[arg(value_name = "DEVICE|TENANT")]
    subject: String,

    /// The name is a tenant's, also if a device has it.
    #[arg(long)]
    tenant: bool,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Begins the cordon and prints who is there.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or it refuses.
pub fn cordon(args: &CordonArgs) -> Result<ExitCode, Failure> {
    let subject = SubjectName { name: args.device.clone(), is_tenant: false };
    let ask = ControlCommand::Cordon { subject, evacuation: None, lasting: args.lasting.to_lasting() };
    print_cordon(&args.daemon, &request_cordon(&args.daemon, &ask)?, |status| {
        format!("{} is cordoned: no new process joins; {}\n", format_subject(status), format_members(status))
    })
}

/// Begins the evacuation, and waits for its end if that is asked for.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, it refuses, or somebody is left at the end of the time.
pub fn evacuate(args: &EvacuateArgs) -> Result<ExitCode, Failure> {
    let subject = SubjectName { name: args.subject.clone(), is_tenant: args.tenant };
    let evacuation = Some(EvacuationOptions { terminate_after: args.terminate_after.map(whole_seconds) });
    let ask = ControlCommand::Cordon { subject, evacuation, lasting: args.lasting.to_lasting() };
    let begun = request_cordon(&args.daemon, &ask)?;
    let Some(wait) = args.wait else {
        return print_cordon(&args.daemon, &begun, |status| {
            format!("{} is evacuated: {}\n", format_subject(status), format_members(status))
        });
    };
    wait_for_end(&args.daemon, begun, wait)
}

/// Ends the cordon.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or there is no such cordon.
pub fn uncordon(args: &UncordonArgs) -> Result<ExitCode, Failure> {
    let subject = SubjectName { name: args.subject.clone(), is_tenant: args.tenant };
    let ended = request_cordon(&args.daemon, &ControlCommand::Uncordon { subject })?;
    print_cordon(&args.daemon, &ended, |status| format!("{}: new processes may join again\n", format_subject(status)))
}

fn wait_for_end(daemon: &DaemonAddress, begun: CordonStatus, wait: Duration) -> Result<ExitCode, Failure> {
    let until = Instant::now().checked_add(wait);
    let mut said = None;
    let mut now = begun.clone();
    loop {
        let is_late = until.is_some_and(|until| Instant::now() >= until);
        // A daemon that has just started does not know yet if nobody is left.
        let is_unsure = now.members.is_empty() && now.awaits_members;
        let left = if is_unsure { "members of the last daemon may be left".to_owned() } else { format_members(&now) };
        if !daemon.json && said.as_ref() != Some(&left) && (!is_unsure || is_late) {
            say::print_text(&format!("{}: {left}\n", format_subject(&now)))?;
            said = Some(left);
        }
        let is_done = now.members.is_empty() && !is_unsure;
        if is_done || is_late {
            if daemon.json {
                say::print_json(&now)?;
            }
            let code = if is_done { 0 } else { EXIT_FINDINGS };
            return Ok(ExitCode::from(code));
        }
        thread::sleep(PROGRESS_PAUSE);
        // A daemon that restarts keeps its evacuations.
        let Ok(answer) = daemon.ask_daemon(&ControlCommand::Status) else { continue };
        let status = answer.status.ok_or_else(no_answer)?;
        let is_it = |other: &CordonStatus| other.is_tenant == begun.is_tenant && other.since == begun.since;
        let has_members = has_members(&status, &begun.subject);
        let mut all = status.cordons.into_iter();
        now = match all.find(|other| is_it(other) && other.subject == begun.subject) {
            Some(found) => found,
            // A tenant that was removed is listed until its last member has ended.
            None if begun.is_tenant && !has_members => {
                CordonStatus { members: Vec::new(), awaits_members: false, ..begun.clone() }
            }
            None => {
                let words = format!("the evacuation of {} was ended meanwhile", format_subject(&begun));
                return Err(Failure::new(EXIT_FINDINGS, words));
            }
        };
    }
}

fn has_members(status: &DaemonStatus, tenant: &str) -> bool {
    let mut named = status.tenants.iter().filter(|other| other.name == tenant);
    named.any(|tenant| !tenant.removed || !tenant.members.is_empty())
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn request_cordon(daemon: &DaemonAddress, ask: &ControlCommand) -> Result<CordonStatus, Failure> {
    daemon.ask_daemon(ask)?.cordon.ok_or_else(no_answer)
}

fn print_cordon(
    daemon: &DaemonAddress,
    status: &CordonStatus,
    words: impl Fn(&CordonStatus) -> String,
) -> Result<ExitCode, Failure> {
    if daemon.json {
        say::print_json(status)?;
    } else {
        say::print_text(&(words(status) + &format_notes(&status.notes)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats the subject: `device 0`, `tenant train`.
pub(super) fn format_subject(status: &CordonStatus) -> String {
    format!("{} {}", if status.is_tenant { "tenant" } else { "device" }, status.subject)
}

/// Formats the members that are left: `2 processes are left: chat 4711, train 815`.
pub(super) fn format_members(status: &CordonStatus) -> String {
    let pid = |pid: Option<u32>| pid.map_or("?".to_owned(), |pid| pid.to_string());
    let names: Vec<String> =
        status.members.iter().map(|member| format!("{} {}", member.tenant, pid(member.pid))).collect();
    match names.as_slice() {
        [] => "nobody is left".to_owned(),
        [one] => format!("1 process is left: {one}"),
        all => format!("{} processes are left: {}", all.len(), all.join(", ")),
    }
}
