//! `vgpu tenant remove`: removes an added tenant, ends its processes, and prints its final usage.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};
use vgpu_accounting::record::ask::{GroupBy, UsageQuestion, ask_record};
use vgpu_control::ControlCommand;
use vgpu_control::finding::ProcessId;
use vgpu_control::tenant::{TenantAnswer, TenantState};
use vgpu_output::say::{self, EXIT_FINDINGS, Failure};

use super::{EXIT_NO_DAEMON, request_tenant};
use crate::ask::DaemonAddress;
use crate::usage::record_directory;
use crate::when;

/// Pause between two looks at the tenant's processes.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Longest time that processes may take to end after SIGKILL: a process in a driver call ends when the call returns.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time that a daemon may take to restart while a tenant is removed.
const RESTART_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time that the usage record may take to write the last rows; it writes at least every 1.2 s.
const RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// Removes a tenant that was added: no new process can join, and its promise is free when its last process ended.
///
/// Without --kill its processes keep their last terms until they end. An unknown tenant is no error, so that a cleanup
/// can run twice. A tenant of the configuration file is removed there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu tenant remove job-7
  vgpu tenant remove job-7 --kill --grace 2s --json

JSON:
  state is removed, ending (removed before, and its processes still run) or unknown; killed is the
  number of processes that were signalled. usage is null if the tenant was not added here or no
  record is kept. It counts from the start of the minute in which the tenant was added. is_final is
  false while processes run or rows are not written.

Exit codes:
  0  removed; or there was no such tenant
  1  it is a tenant of the file; or a process did not end
  2  usage
  4  no daemon answers")]
pub struct Args {
    /// Name of the tenant.
    name: String,

    /// Prints no note about an unknown tenant.
    #[arg(long)]
    if_exists: bool,

    /// Ends the tenant's processes: SIGTERM, and SIGKILL after the grace period.
    #[arg(long)]
    kill: bool,

    /// Time between SIGTERM and SIGKILL.
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "kill", value_parser = humantime::parse_duration)]
    grace: Duration,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Result of a removal.
pub(crate) struct Removal {
    /// State of the tenant at the first request.
    pub state: TenantState,
    /// Number of processes that were signalled.
    pub killed: usize,
    /// Usage from the record as the help describes it; null if it was not asked for.
    pub usage: Value,
    /// The last answer: its members still run.
    last: TenantAnswer,
}

impl Removal {
    /// Number of processes that still run.
    pub fn members_left(&self) -> usize {
        self.last.members.len() + self.last.unseen_members
    }

    /// Fails if processes still run.
    ///
    /// # Errors
    /// [`Failure`], which names the processes.
    pub fn require_end_of_members(&self) -> Result<(), Failure> {
        if self.members_left() == 0 {
            return Ok(());
        }
        let pids: Vec<String> = self.last.members.iter().map(|member| member.pid.to_string()).collect();
        let unseen = match self.last.unseen_members {
            0 => String::new(),
            unseen => format!("; {unseen} more are in a process namespace that the daemon cannot see"),
        };
        let words = format!("processes of tenant {} did not end: {}{unseen}", self.last.name, pids.join(", "));
        Err(Failure::new(EXIT_FINDINGS, words))
    }
}

/// Removes a tenant; with a grace period it also ends the tenant's processes. `since`: when the tenant was added, for
/// the usage of one that the daemon no longer knows.
///
/// # Errors
/// [`Failure`]: no daemon answers, or it refuses.
pub(crate) fn remove_tenant(
    daemon: &DaemonAddress,
    name: &str,
    kill_grace: Option<Duration>,
    wants_usage: bool,
    since: Option<i64>,
) -> Result<Removal, Failure> {
    let ask = |only_look| ControlCommand::Remove { tenant: name.to_owned(), only_look };
    let first = request_tenant(daemon, &ask(false))?;
    let look = || look_in_time(daemon, &ask(true));
    let (mut last, killed) = match kill_grace {
        Some(grace) => end_members(first.clone(), grace, &look)?,
        None => (first.clone(), 0),
    };
    let usage = match wants_usage {
        true => final_usage(daemon, name, first.since.or(since), &mut last, &look)?,
        false => Value::Null,
    };
    Ok(Removal { state: first.state, killed, usage, last })
}

/// Removes the tenant.
///
/// # Errors
/// [`Failure`], with the exit codes of the help.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let removal = remove_tenant(&args.daemon, &args.name, args.kill.then_some(args.grace), args.daemon.json, None)?;
    let is_unknown = removal.state == TenantState::Unknown;
    if is_unknown && !args.if_exists {
        say::print_note(&format!("there is no tenant {:?}; nothing to remove", args.name));
    }
    if args.daemon.json {
        say::print_json(&json!({
            "name": args.name,
            "state": removal.state,
            "killed": removal.killed,
            "members": removal.members_left(),
            "usage": removal.usage,
        }))?;
    } else if !is_unknown {
        let and = match removal.members_left() {
            0 => String::new(),
            left => format!("; {left} of its processes run on and keep their last terms"),
        };
        say::print_text(&format!("{} removed{and}\n", args.name))?;
    }
    if args.kill {
        removal.require_end_of_members()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks about the removed tenant, also while the daemon restarts.
fn look_in_time(daemon: &DaemonAddress, ask: &ControlCommand) -> Result<TenantAnswer, Failure> {
    let until = Instant::now() + RESTART_TIMEOUT;
    loop {
        match request_tenant(daemon, ask) {
            Err(why) if why.code == EXIT_NO_DAEMON && Instant::now() < until => thread::sleep(LOOK_PAUSE),
            other => return other,
        }
    }
}

/// A process that may be signalled.
struct HeldProcess {
    descriptor: OwnedFd,
    /// True once the daemon listed the process after the descriptor was opened.
    is_confirmed: bool,
    /// The last signal.
    sent: Option<Signal>,
}

impl HeldProcess {
    fn has_ended(&self) -> bool {
        let mut ended = [PollFd::new(&self.descriptor, PollFlags::IN)];
        poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

/// Signals the members until none is left. Returns the last answer and the number of processes that were signalled.
///
/// The daemon lists a member only while its process is the one that connected. A descriptor is opened before the
/// daemon lists the process again, so a later process with the same ID is never signalled. A process that was listed
/// is signalled until it ends, even by a daemon that restarted and no longer knows it.
fn end_members(
    first: TenantAnswer,
    grace: Duration,
    look: &dyn Fn() -> Result<TenantAnswer, Failure>,
) -> Result<(TenantAnswer, usize), Failure> {
    let begun = Instant::now();
    let mut held: BTreeMap<ProcessId, HeldProcess> = BTreeMap::new();
    let mut last = first;
    let mut signalled = 0;
    loop {
        for member in &last.members {
            if !held.contains_key(member)
                && let Some(descriptor) = open_process(*member)
            {
                held.insert(*member, HeldProcess { descriptor, is_confirmed: false, sent: None });
            }
        }
        last = look()?;
        for member in &last.members {
            if let Some(process) = held.get_mut(member) {
                process.is_confirmed = true;
            }
        }
        held.retain(|_, process| !process.has_ended());
        let is_over = last.members.is_empty() && last.unseen_members == 0;
        if is_over && held.values().all(|process| !process.is_confirmed) || begun.elapsed() >= grace + KILL_TIMEOUT {
            return Ok((last, signalled));
        }
        let signal = if begun.elapsed() >= grace { Signal::KILL } else { Signal::TERM };
        for process in held.values_mut().filter(|process| process.is_confirmed && process.sent != Some(signal)) {
            if pidfd_send_signal(&process.descriptor, signal).is_ok() {
                signalled += usize::from(process.sent.is_none());
                process.sent = Some(signal);
            }
        }
        thread::sleep(LOOK_PAUSE);
    }
}

fn open_process(process: ProcessId) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(i32::try_from(process.pid).ok()?)?, PidfdFlags::empty()).ok()
}

/// Returns the usage since the tenant was added, from the record. Waits for the last rows once no process is left.
fn final_usage(
    daemon: &DaemonAddress,
    name: &str,
    since: Option<i64>,
    last: &mut TenantAnswer,
    look: &dyn Fn() -> Result<TenantAnswer, Failure>,
) -> Result<Value, Failure> {
    let Some(since) = since else { return Ok(Value::Null) };
    let until = Instant::now() + RECORD_TIMEOUT;
    while !last.is_recorded && last.members.is_empty() && last.unseen_members == 0 && Instant::now() < until {
        thread::sleep(LOOK_PAUSE);
        *last = look()?;
    }
    // Without a record the usage is unknown, and the tenant is removed all the same.
    let Ok(dir) = record_directory(None, daemon) else { return Ok(Value::Null) };
    let start = since.div_euclid(60) * 60;
    let question = UsageQuestion {
        tenants: vec![name.to_owned()],
        devices: false,
        span: (start, when::now().saturating_add(60)),
        by: GroupBy::Total,
    };
    let Ok(answer) = ask_record(&dir, &question) else { return Ok(Value::Null) };
    let total = answer.total;
    Ok(json!({
        "since": start,
        "gpu_ns": total.gpu_ns,
        "unmeasured_ns": total.unmeasured_ns,
        "wait_ns": total.wait_ns,
        "memory_byte_seconds": total.memory_byte_seconds,
        "peak_bytes": total.peak_bytes,
        "launches": total.launches,
        "refused_allocations": total.refused_allocations,
        "is_final": last.is_recorded,
    }))
}
