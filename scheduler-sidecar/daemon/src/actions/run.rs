//! One run of an action's program: starts it, writes the event to it, logs its output, and kills it at its timeout.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tracing::info;

use super::program::BECOME_PROGRAM;
use vgpu_config::action::ActionPlan;
use vgpu_config::show::timeout_text;
use vgpu_control::event::DaemonEvent;
use vgpu_output::say::escape_line;

/// Most lines of each of standard output and standard error that a run may log.
const MAX_OUTPUT_LINES: u32 = 20;

/// Longest part of an output line that is logged, in bytes.
const MAX_OUTPUT_BYTES: usize = 400;

/// Search path of programs if the daemon has none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How a run ended.
pub(super) enum RunResult {
    /// The program ended by itself, or by a signal of somebody else.
    Ended(ExitStatus),
    /// The program was killed at its timeout.
    TimedOut(String),
    /// The program was killed, because the daemon ends.
    DaemonEnds,
    /// The program cannot be started.
    NotStarted(io::Error),
}

impl RunResult {
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Ended(status) if status.success())
    }
}

impl fmt::Display for RunResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(status) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "exit status {code}"),
                (None, signal) => write!(f, "killed by signal {}", signal.unwrap_or(0)),
            },
            Self::TimedOut(timeout) => write!(f, "killed after its timeout of {timeout}"),
            Self::DaemonEnds => f.write_str("killed, because the daemon ends"),
            Self::NotStarted(why) => write!(f, "cannot be started: {why}"),
        }
    }
}

/// Runs the program of an action for one event, with these variables. `stop` is readable when the daemon ends.
pub(super) fn run_program(
    plan: &ActionPlan,
    event: &DaemonEvent,
    variables: &[(&str, PathBuf)],
    stop: Option<&OwnedFd>,
) -> RunResult {
    let begin = Instant::now();
    let mut child = match start_program(plan, event, variables) {
        Ok(child) => child,
        Err(why) => return RunResult::NotStarted(why),
    };
    let mut pipes = RunPipes::new(&mut child, plan, event);
    let watched = open_process(&child).and_then(|process| {
        let end = begin + plan.timeout;
        pipes.serve_until(&process, stop, end)
    });
    // The process is not waited for yet, so its number is still that of its group. All other processes of the group
    // end with the program.
    if let Some(group) = process_id(&child) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait();
    pipes.finish();
    match (watched, status) {
        (Ok(WatchEnd::Ended), Ok(status)) => RunResult::Ended(status),
        (Ok(WatchEnd::TimedOut), Ok(_)) => RunResult::TimedOut(timeout_text(plan)),
        (Ok(WatchEnd::Stopped), Ok(_)) => RunResult::DaemonEnds,
        (Err(why), _) | (_, Err(why)) => RunResult::NotStarted(why),
    }
}

fn start_program(plan: &ActionPlan, event: &DaemonEvent, variables: &[(&str, PathBuf)]) -> io::Result<Child> {
    let program = &plan.exec[0];
    rustix::fs::access(program.as_str(), Access::EXEC_OK)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("vgpud").arg(BECOME_PROGRAM).arg(std::process::id().to_string()).args(&plan.exec);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()));
    command.envs(variables.iter().map(|(name, path)| (name, path))).env("VGPU_EVENT", &event.kind);
    command.envs(event.tenant.iter().map(|tenant| ("VGPU_EVENT_TENANT", tenant)));
    command.envs(event.device.iter().map(|device| ("VGPU_EVENT_DEVICE", device)));
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

fn process_id(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

fn open_process(child: &Child) -> io::Result<OwnedFd> {
    let process = process_id(child).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(process, PidfdFlags::empty())?)
}

/// Why a run is not watched any longer.
enum WatchEnd {
    Ended,
    TimedOut,
    Stopped,
}

/// The daemon's ends of a program's standard input, output and error.
struct RunPipes {
    /// The event that is not written yet; `None`: all is written, or the program does not read it.
    input: Option<(File, Vec<u8>)>,
    outputs: [OutputLog; 2],
}

impl RunPipes {
    fn new(child: &mut Child, plan: &ActionPlan, event: &DaemonEvent) -> Self {
        let mut line = serde_json::to_vec(event).unwrap_or_default();
        line.push(b'\n');
        let output = |pipe: Option<OwnedFd>, stream| OutputLog {
            pipe: pipe.and_then(open_nonblocking),
            program: plan.exec[0].clone(),
            stream,
            line: Vec::new(),
            lines: 0,
            left_out: 0,
        };
        let outputs = [
            output(child.stdout.take().map(OwnedFd::from), "stdout"),
            output(child.stderr.take().map(OwnedFd::from), "stderr"),
        ];
        let input = child.stdin.take().map(OwnedFd::from).and_then(open_nonblocking);
        Self { input: input.map(|pipe| (pipe, line)), outputs }
    }

    /// Serves the pipes until the program has ended, its time is over, or the daemon ends.
    fn serve_until(&mut self, process: &OwnedFd, stop: Option<&OwnedFd>, end: Instant) -> io::Result<WatchEnd> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut watched = vec![PollFd::new(process, PollFlags::IN)];
            watched.extend(stop.map(|stop| PollFd::new(stop, PollFlags::IN)));
            let others = watched.len();
            let pipes: Vec<(BorrowedFd<'_>, PollFlags)> = self.open_pipes().collect();
            watched.extend(pipes.iter().map(|(pipe, flags)| PollFd::from_borrowed_fd(*pipe, *flags)));
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(&mut watched, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(why) => return Err(why.into()),
            }
            let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            let (ended, stopped) = (is_ready(&watched[0]), watched[1..others].iter().any(is_ready));
            self.serve_once();
            if ended {
                return Ok(WatchEnd::Ended);
            }
            if stopped {
                return Ok(WatchEnd::Stopped);
            }
            if Instant::now() >= end {
                return Ok(WatchEnd::TimedOut);
            }
        }
    }

    fn open_pipes(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let input = self.input.iter().map(|(pipe, _)| (pipe.as_fd(), PollFlags::OUT));
        let outputs = self.outputs.iter().filter_map(|output| output.pipe.as_ref());
        input.chain(outputs.map(|pipe| (pipe.as_fd(), PollFlags::IN)))
    }

    /// Writes and reads as much as is possible without waiting, and at most one buffer of each output.
    fn serve_once(&mut self) {
        if let Some((pipe, bytes)) = &mut self.input {
            match pipe.write(bytes) {
                Ok(count) => drop(bytes.drain(..count)),
                Err(why) if is_temporary(&why) => {}
                Err(_) => bytes.clear(),
            }
            if bytes.is_empty() {
                self.input = None;
            }
        }
        for output in &mut self.outputs {
            output.read_some();
        }
    }

    /// Logs what the ended program left in its pipes. A process that still has a pipe open is not waited for.
    fn finish(mut self) {
        for output in &mut self.outputs {
            // A pipe holds at most a few buffers. A process outside of the group may fill it again and again.
            for _ in 0..64 {
                if output.pipe.is_none() || !output.read_some() {
                    break;
                }
            }
            output.finish();
        }
    }
}

fn is_temporary(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Makes the daemon's end of a pipe nonblocking; `None`: that fails, and the pipe is closed.
fn open_nonblocking(pipe: OwnedFd) -> Option<File> {
    let flags = rustix::fs::fcntl_getfl(&pipe).ok()?;
    rustix::fs::fcntl_setfl(&pipe, flags | OFlags::NONBLOCK).ok()?;
    Some(File::from(pipe))
}

/// Logs what a program writes, line by line and not more than the log can bear.
struct OutputLog {
    /// `None`: the program closed it.
    pipe: Option<File>,
    program: String,
    stream: &'static str,
    /// The line that is not complete yet, at most one byte longer than is logged.
    line: Vec<u8>,
    lines: u32,
    /// Number of lines that were not logged.
    left_out: u64,
}

impl OutputLog {
    /// Reads one buffer. Returns true if there was something to read.
    fn read_some(&mut self) -> bool {
        let Some(pipe) = &mut self.pipe else { return false };
        let mut buffer = [0; 4096];
        match pipe.read(&mut buffer) {
            Ok(0) => self.pipe = None,
            Ok(count) => {
                self.take_bytes(&buffer[..count]);
                return true;
            }
            Err(why) if is_temporary(&why) => {}
            Err(_) => self.pipe = None,
        }
        false
    }

    fn take_bytes(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_whole) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            let room = (MAX_OUTPUT_BYTES + 1).saturating_sub(self.line.len());
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if is_whole {
                self.log_line();
            }
        }
    }

    fn log_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if self.lines == MAX_OUTPUT_LINES {
            self.left_out += 1;
            return;
        }
        self.lines += 1;
        let shown = &line[..line.len().min(MAX_OUTPUT_BYTES)];
        let more = if line.len() > MAX_OUTPUT_BYTES { "..." } else { "" };
        let text = escape_line(&String::from_utf8_lossy(shown));
        info!(action = self.program, stream = self.stream, "{text}{more}");
    }

    fn finish(&mut self) {
        if !self.line.is_empty() {
            self.log_line();
        }
        if self.left_out > 0 {
            let (action, lines) = (&self.program, self.left_out);
            info!(action, stream = self.stream, lines, "further lines of this run are not logged");
        }
    }
}
