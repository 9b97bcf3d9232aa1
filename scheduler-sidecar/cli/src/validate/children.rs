//! Runs a program once: its process group, its output, its end.
//!
//! Each child leads its own process group, so a terminal's Ctrl-C reaches only this process, and the child's leftover
//! processes can be ended with it. The child's end is observed before it is reaped, so its process id cannot be
//! reused meanwhile.

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::programs::TenantProgram;
use crate::validate::line::DurationMeasure;
use vgpu_output::say::{EXIT_FINDINGS, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Failure};

/// Bytes kept of the end of a program's output.
const TAIL_BYTES: usize = 4096;
/// Longest part of a line that is examined, in bytes.
const MAX_LINE_BYTES: usize = 1 << 16;
/// Most iterations kept of a run.
const MAX_ITERATIONS: usize = 1_000_000;
/// Time for a program to end after a request, and for its remaining output to arrive.
const END_GRACE: Duration = Duration::from_secs(2);

/// Output of a child: its end, and the iterations found in it.
#[derive(Debug, Default)]
pub struct ChildOutput {
    tail: VecDeque<u8>,
    /// Duration of each iteration, in seconds.
    pub iterations: Vec<f64>,
}

/// A running program of the validation.
pub struct RunningChild {
    child: Child,
    pid: Pid,
    began: Instant,
    heard: Arc<Mutex<ChildOutput>>,
    /// Closed after all output of the child was read.
    read: Receiver<()>,
}

/// A program of the validation that ended.
pub struct EndedChild {
    /// Wall time from the program's start to its end.
    pub wall: Duration,
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Output of the child.
    pub heard: ChildOutput,
}

impl ChildOutput {
    /// Returns the end of the output, at most twenty lines, with spaces for control characters.
    pub fn output_tail(&self) -> String {
        let bytes: Vec<u8> = self.tail.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let clean =
            |line: &str| line.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect::<String>();
        let lines: Vec<String> = text.lines().map(clean).filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(20)..].iter().map(|line| format!("\n  | {line}")).collect()
    }
}

/// Starts a program. Its end is sent to `ended` with `index`, its process id and the time.
///
/// # Errors
/// The program cannot be started.
pub fn start(
    program: &TenantProgram,
    measure: &DurationMeasure,
    index: usize,
    ended: &Sender<(usize, u32, Instant)>,
) -> Result<RunningChild, Failure> {
    let [name, arguments @ ..] = &program.command[..] else {
        return Err(Failure::new(EXIT_FINDINGS, "no program is given"));
    };
    let mut command = Command::new(name);
    command.args(arguments).envs(program.changes.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let began = Instant::now();
    let mut child = command.spawn().map_err(|why| {
        let code = if why.kind() == std::io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_NOT_EXECUTABLE };
        Failure::new(code, format!("{}: {}: {why}", program.name, name.display()))
    })?;
    let heard = Arc::new(Mutex::new(ChildOutput::default()));
    let (open, read) = channel();
    let outputs: [Option<Box<dyn Read + Send>>; 2] =
        [child.stdout.take().map(|pipe| Box::new(pipe) as _), child.stderr.take().map(|pipe| Box::new(pipe) as _)];
    for pipe in outputs.into_iter().flatten() {
        let (heard, measure, open) = (heard.clone(), measure.clone(), open.clone());
        thread::spawn(move || {
            listen(pipe, &heard, &measure);
            drop(open);
        });
    }
    let number = child.id();
    let pid = Pid::from_child(&child);
    let told = ended.clone();
    thread::spawn(move || {
        while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        {
        }
        // After an early end nobody receives, which is no error.
        let _ = told.send((index, number, Instant::now()));
    });
    Ok(RunningChild { child, pid, began, heard, read })
}

fn listen(mut pipe: impl Read, heard: &Mutex<ChildOutput>, measure: &DurationMeasure) {
    let (mut bytes, mut line) = ([0; 8192], Vec::new());
    let look = |line: &mut Vec<u8>, heard: &mut ChildOutput| {
        let seconds = measure.duration_of(&String::from_utf8_lossy(line));
        if heard.iterations.len() < MAX_ITERATIONS {
            heard.iterations.extend(seconds);
        }
        line.clear();
    };
    while let Ok(got) = pipe.read(&mut bytes) {
        let mut heard = heard.lock();
        for byte in &bytes[..got] {
            match byte {
                b'\n' | b'\r' => look(&mut line, &mut heard),
                byte if line.len() < MAX_LINE_BYTES => line.push(*byte),
                _ => {}
            }
        }
        heard.tail.extend(&bytes[..got]);
        let beyond = heard.tail.len().saturating_sub(TAIL_BYTES);
        heard.tail.drain(..beyond);
        if got == 0 {
            return look(&mut line, &mut heard);
        }
    }
}

impl RunningChild {
    /// Returns true if this is the process with that id.
    pub fn is_process(&self, number: u32) -> bool {
        self.child.id() == number
    }

    /// Returns how long the child has been running.
    pub fn running_time(&self) -> Duration {
        self.began.elapsed()
    }

    /// Handles the end at `at`: kills leftover processes of the group, and collects the output.
    ///
    /// # Errors
    /// The process cannot be waited for.
    pub fn finish_child(mut self, at: Instant) -> Result<EndedChild, Failure> {
        // The child is not reaped yet, so its process group ID cannot belong to other processes.
        let _ = kill_process_group(self.pid, Signal::KILL);
        let status = self
            .child
            .wait()
            .map_err(|why| Failure::new(EXIT_FINDINGS, format!("a program cannot be waited for: {why}")))?;
        // A process that left the group may keep the pipe open forever.
        let _ = self.read.recv_timeout(END_GRACE);
        let heard = std::mem::take(&mut *self.heard.lock());
        Ok(EndedChild { wall: at.saturating_duration_since(self.began), status, heard })
    }
}

/// Sends SIGTERM to all, waits up to [`END_GRACE`], and kills those that still run.
pub fn end_children(running: Vec<RunningChild>) {
    for one in &running {
        let _ = kill_process_group(one.pid, Signal::TERM);
    }
    let patience = Instant::now() + END_GRACE;
    for mut one in running {
        let ended = |one: &RunningChild| {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            !matches!(waitid(WaitId::Pid(one.pid), options), Ok(None))
        };
        while !ended(&one) && Instant::now() < patience {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = kill_process_group(one.pid, Signal::KILL);
        let _ = one.child.wait();
    }
}

/// Describes a program's end unless it succeeded.
pub fn exit_failure(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("ended with exit code {code}")),
        (None, Some(signal)) => Some(format!("was killed by signal {signal}")),
        (None, None) => Some("ended".into()),
    }
}
