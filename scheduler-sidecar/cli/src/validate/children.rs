//! One run of a program: its process group, its output, its end.
//!
//! Each child is the leader of a group of its own, so that a terminal's Ctrl-C reaches only us, and what it leaves behind is
//! ended with it. That it ended is seen before it is reaped: as long as it is not, its number is nobody else's.

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::programs::Program;
use crate::validate::line::Measure;
use vgpu_output::say::{FINDINGS, Failure, NOT_EXECUTABLE, NOT_FOUND};

/// Of what a program says last, so many bytes are kept.
const TAIL: usize = 4096;
/// A line that is longer is looked at up to here.
const LINE: usize = 1 << 16;
/// Iterations of a run that are kept.
const MOST: usize = 1_000_000;
/// How long a program that is to end may take to do so, and what it wrote to arrive.
const GRACE: Duration = Duration::from_secs(2);

/// What a child said.
#[derive(Debug, Default)]
pub struct Heard {
    tail: VecDeque<u8>,
    /// Seconds of each iteration.
    pub iterations: Vec<f64>,
}

/// A child that runs.
pub struct Running {
    child: Child,
    pid: Pid,
    began: Instant,
    heard: Arc<Mutex<Heard>>,
    /// Closed when all it wrote was read.
    read: Receiver<()>,
}

/// A child that ended.
pub struct Ended {
    /// From its start to its end.
    pub wall: Duration,
    /// How.
    pub status: ExitStatus,
    /// What it said.
    pub heard: Heard,
}

impl Heard {
    /// The last of it, as text that a terminal may be shown: at most twenty lines.
    pub fn tail(&self) -> String {
        let bytes: Vec<u8> = self.tail.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let clean =
            |line: &str| line.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect::<String>();
        let lines: Vec<String> = text.lines().map(clean).filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(20)..].iter().map(|line| format!("\n  | {line}")).collect()
    }
}

/// Starts a program; that it ended is told with `index` and the moment.
///
/// # Errors
/// It cannot be started.
pub fn start(
    program: &Program,
    measure: &Measure,
    index: usize,
    ended: &Sender<(usize, u32, Instant)>,
) -> Result<Running, Failure> {
    let [name, arguments @ ..] = &program.command[..] else {
        return Err(Failure::new(FINDINGS, "no program is given"));
    };
    let mut command = Command::new(name);
    command.args(arguments).envs(program.changes.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let began = Instant::now();
    let mut child = command.spawn().map_err(|why| {
        let code = if why.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        Failure::new(code, format!("{}: {}: {why}", program.name, name.display()))
    })?;
    let heard = Arc::new(Mutex::new(Heard::default()));
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
        // Nobody may be left to be told.
        let _ = told.send((index, number, Instant::now()));
    });
    Ok(Running { child, pid, began, heard, read })
}

fn listen(mut pipe: impl Read, heard: &Mutex<Heard>, measure: &Measure) {
    let (mut bytes, mut line) = ([0; 8192], Vec::new());
    let look = |line: &mut Vec<u8>, heard: &mut Heard| {
        let seconds = measure.of(&String::from_utf8_lossy(line));
        if heard.iterations.len() < MOST {
            heard.iterations.extend(seconds);
        }
        line.clear();
    };
    while let Ok(got) = pipe.read(&mut bytes) {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        for byte in &bytes[..got] {
            match byte {
                b'\n' | b'\r' => look(&mut line, &mut heard),
                byte if line.len() < LINE => line.push(*byte),
                _ => {}
            }
        }
        heard.tail.extend(&bytes[..got]);
        let beyond = heard.tail.len().saturating_sub(TAIL);
        heard.tail.drain(..beyond);
        if got == 0 {
            return look(&mut line, &mut heard);
        }
    }
}

impl Running {
    /// Is it this process?
    pub fn is(&self, number: u32) -> bool {
        self.child.id() == number
    }

    /// How long it runs.
    pub fn runs(&self) -> Duration {
        self.began.elapsed()
    }

    /// It ended at this moment: ends what it left behind, and takes what it said.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn finish(mut self, at: Instant) -> Result<Ended, Failure> {
        // It is not reaped yet, so that the group is its own.
        let _ = kill_process_group(self.pid, Signal::KILL);
        let status = self
            .child
            .wait()
            .map_err(|why| Failure::new(FINDINGS, format!("a program cannot be waited for: {why}")))?;
        // Whoever left its group may hold the pipe for ever.
        let _ = self.read.recv_timeout(GRACE);
        let heard = std::mem::take(&mut *self.heard.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Ended { wall: at.saturating_duration_since(self.began), status, heard })
    }
}

/// Asks all to end, waits for a moment, and ends who has not.
pub fn end(running: Vec<Running>) {
    for one in &running {
        let _ = kill_process_group(one.pid, Signal::TERM);
    }
    let patience = Instant::now() + GRACE;
    for mut one in running {
        let ended = |one: &Running| {
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

/// How a program ended, if not well.
pub fn failure(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("ended with exit code {code}")),
        (None, Some(signal)) => Some(format!("was killed by signal {signal}")),
        (None, None) => Some("ended".into()),
    }
}
