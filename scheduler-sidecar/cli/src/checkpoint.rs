//! `vgpu-checkpoint`: moves processes off their devices and back, by the driver's checkpoint calls.
//!
//! A program of its own, because the daemon loads no driver of CUDA. [`steps`] has the order of the calls and the way
//! back; the calls themselves, which need `unsafe`, are in `bin/vgpu-checkpoint`. A second process, the guard, watches
//! the first one: if that is killed in the middle, the guard leads all processes back, so none stays locked.
//! [`telling`] tells the daemon, if there is one, which processes are suspended in the end.

pub mod steps;
pub mod telling;

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use serde::Serialize;
use steps::{CheckpointDriver, Operation, ProcessState};
use telling::{LockedProcesses, ToldDaemon};
use vgpu_output::say::{self, EXIT_FINDINGS, Failure};

/// A process could be led neither forward nor back.
const EXIT_LEFT_BETWEEN: u8 = 4;
/// Word that tells the guard that its work is not needed.
const DONE: &[u8] = b"done";
/// Interval at which a restore that does not fit is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which the guard stops trying to restore a process whose memory does not fit.
const GUARD_PATIENCE: Duration = Duration::from_secs(60);

/// Moves processes off their GPU and back: their device memory goes to the host, and others may use the device.
///
/// All processes of a command change together or not at all. The driver needs version 570 or newer. A daemon of this
/// host learns which of its processes are suspended.
#[derive(Debug, Parser)]
#[command(
    name = "vgpu-checkpoint",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  vgpu-checkpoint suspend 4711
  vgpu-checkpoint state 4711 --json
  vgpu-checkpoint resume --wait 30s 4711

Exit codes:
  0  done; processes that were in that state already are fine
  1  refused, and every process is as before; or state: a process uses no GPU
  2  usage
  3  there is no driver of CUDA here, or it is older than 570
  4  refused, and a process could not be led back; the message names it"
)]
pub struct CheckpointOptions {
    #[command(subcommand)]
    verb: CheckpointVerb,
}

#[derive(Debug, Subcommand)]
enum CheckpointVerb {
    /// Waits for the processes' work, then moves their memory to the host; their calls wait until they are resumed.
    #[command(after_help = "\
Examples:
  vgpu-checkpoint suspend 4711
  vgpu-checkpoint suspend --timeout 2s 4711 4712")]
    Suspend {
        /// Time that work on the device may take to end.
        #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
        timeout: Duration,
        #[command(flatten)]
        daemon: ToldDaemon,
        /// Processes, as the host numbers them.
        #[arg(value_name = "PID", required = true, value_parser = clap::value_parser!(u32).range(1..=0x7FFF_FFFF))]
        pids: Vec<u32>,
    },
    /// Moves the processes' memory back to their devices and lets their calls go on.
    #[command(after_help = "\
Examples:
  vgpu-checkpoint resume 4711
  vgpu-checkpoint resume --wait 30s 4711 4712")]
    Resume {
        /// Time to wait for free memory on the device; without it, memory that does not fit is refused at once.
        #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
        wait: Duration,
        #[command(flatten)]
        daemon: ToldDaemon,
        /// Processes, as the host numbers them.
        #[arg(value_name = "PID", required = true, value_parser = clap::value_parser!(u32).range(1..=0x7FFF_FFFF))]
        pids: Vec<u32>,
    },
    /// Prints the state of each process: running, locked, checkpointed or failed.
    #[command(after_help = "\
Examples:
  vgpu-checkpoint state 4711
  vgpu-checkpoint state --json 4711 4712")]
    State {
        /// Prints JSON.
        #[arg(long)]
        json: bool,
        /// Processes, as the host numbers them.
        #[arg(value_name = "PID", required = true, value_parser = clap::value_parser!(u32).range(1..=0x7FFF_FFFF))]
        pids: Vec<u32>,
    },
    /// Leads processes back when the program that moved them dies; started by it.
    #[command(hide = true)]
    Guard {
        #[command(flatten)]
        daemon: ToldDaemon,
        #[arg(value_enum)]
        operation: Operation,
        pids: Vec<u32>,
    },
}

#[derive(Serialize)]
struct StateLine {
    pid: u32,
    /// `none`: a process that uses no GPU.
    state: &'static str,
}

impl CheckpointOptions {
    /// Runs the command; `load` loads the driver.
    ///
    /// # Errors
    /// The driver cannot be loaded, or a step was refused.
    pub fn run<D: CheckpointDriver>(self, load: impl FnOnce() -> Result<D, Failure>) -> Result<ExitCode, Failure> {
        match self.verb {
            CheckpointVerb::Guard { daemon, operation, pids } => {
                if !told_done() {
                    let mut driver = load()?;
                    lead_back(operation, &pids, &mut driver);
                    daemon.tell_states(&pids, LockedProcesses::Own, &mut driver);
                }
                Ok(ExitCode::SUCCESS)
            }
            CheckpointVerb::State { json, pids } => print_states(&mut load()?, &distinct(pids), json),
            CheckpointVerb::Suspend { timeout, daemon, pids } => {
                change(Operation::Suspend, &distinct(pids), timeout, &daemon, &mut load()?)
            }
            CheckpointVerb::Resume { wait, daemon, pids } => {
                change(Operation::Resume, &distinct(pids), wait, &daemon, &mut load()?)
            }
        }
    }
}

/// Each process once, in the order in which they were given.
fn distinct(pids: Vec<u32>) -> Vec<u32> {
    let mut all = Vec::new();
    pids.into_iter().for_each(|pid| {
        if !all.contains(&pid) {
            all.push(pid)
        }
    });
    all
}

fn print_states(driver: &mut impl CheckpointDriver, pids: &[u32], json: bool) -> Result<ExitCode, Failure> {
    let words = |pid: &u32| StateLine { pid: *pid, state: driver.state(*pid).map_or("none", ProcessState::to_word) };
    let lines: Vec<StateLine> = pids.iter().map(words).collect();
    if json {
        say::print_json(&lines)?;
    } else {
        let rows = lines.iter().map(|line| vec![line.pid.to_string(), line.state.to_owned()]);
        let rows: Vec<_> = [vec!["PID".to_owned(), "STATE".to_owned()]].into_iter().chain(rows).collect();
        say::print_text(&say::lay_out_table(&rows))?;
    }
    Ok(ExitCode::from(if lines.iter().any(|line| line.state == "none") { EXIT_FINDINGS } else { 0 }))
}

/// Changes the state of all processes, under a guard, or of none, and tells the daemon the state of each. Processes
/// that need no change are told too, so a repeated command tells a daemon that was not reached before.
fn change(
    operation: Operation,
    pids: &[u32],
    patience: Duration,
    daemon: &ToldDaemon,
    driver: &mut impl CheckpointDriver,
) -> Result<ExitCode, Failure> {
    let refused = |words: String| Failure::new(EXIT_FINDINGS, words);
    let to_change = match steps::select_processes(operation, pids, driver) {
        Ok(to_change) if !to_change.is_empty() => to_change,
        selected => {
            daemon.tell_states(pids, LockedProcesses::OfOthers, driver);
            return selected.map(|_| ExitCode::SUCCESS).map_err(refused);
        }
    };
    let guard = Guard::start(operation, &to_change, daemon).map_err(|why| {
        Failure::new(EXIT_FINDINGS, format!("the guard cannot be started: {why}; nothing was changed"))
    })?;
    if operation == Operation::Resume {
        daemon.announce_resume(&to_change);
    }
    let end = Instant::now() + patience;
    let remaining = || end.saturating_duration_since(Instant::now());
    let pause = || std::thread::sleep(RETRY_INTERVAL);
    let changed = steps::change_all(operation, &to_change, driver, remaining, pause);
    // If this program is killed before the daemon knows, the guard leads the processes back and tells the daemon.
    daemon.tell_states(pids, LockedProcesses::Own, driver);
    guard.dismiss();
    match changed {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(stopped) if stopped.left_between.is_empty() => {
            Err(refused(format!("{}; every process is as before", stopped.words)))
        }
        Err(stopped) => {
            let left = stopped.left_between.join("; ");
            let words = format!("{}; and not led back: {left}; try `vgpu-checkpoint resume` later", stopped.words);
            Err(Failure::new(EXIT_LEFT_BETWEEN, words))
        }
    }
}

/// The process that leads back what this one leaves in the middle if it is killed.
struct Guard(Child);

impl Guard {
    /// Starts the guard in a process group of its own, so that a signal for this group does not end both.
    fn start(operation: Operation, pids: &[u32], daemon: &ToldDaemon) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("guard").args(daemon.to_options()).arg(operation.to_word()).args(pids.iter().map(u32::to_string));
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().map(Self)
    }

    /// Ends the guard without any work.
    fn dismiss(mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            let _ = input.write_all(DONE);
        }
        let _ = self.0.wait();
    }
}

/// Waits for the end of the program that started this guard; true if it had finished its work.
fn told_done() -> bool {
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        // A service manager that stops a service sends SIGTERM to both processes; the guard outlives it.
        let _ = signal_hook::flag::register(signal, std::sync::Arc::default());
    }
    let mut said = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut said);
    said == DONE
}

/// Leads all processes back, or forward where only the last step is missing, and says what it could not do.
fn lead_back(operation: Operation, pids: &[u32], driver: &mut impl CheckpointDriver) {
    say::print_note("vgpu-checkpoint was killed; its guard leads the processes back");
    let end = Instant::now() + GUARD_PATIENCE;
    // A call that was under way at the death may end later, so a quiet look is confirmed by a second one.
    let mut quiet_looks = 0;
    let mut left = Vec::new();
    while quiet_looks < 2 && Instant::now() < end {
        std::thread::sleep(RETRY_INTERVAL);
        left = steps::settle(operation, pids, driver);
        quiet_looks = if left.is_empty() { quiet_looks + 1 } else { 0 };
    }
    left.iter().for_each(|words| say::print_note(words));
}
