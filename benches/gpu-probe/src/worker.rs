//! A second process of a step: the probe started again with a role. Both sides exchange lines.
//!
//! The worker writes one JSON object per line and may wait for a line on its standard input. It dies with the process
//! that started it, and when its handle here is dropped.

use std::io::{BufRead, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use serde_json::Value;

use crate::args::Options;
use crate::isolate::read_lines;

/// Default time that a step waits for a line of its worker.
pub const LINE_TIMEOUT: Duration = Duration::from_secs(20);

/// A worker, seen from the step that started it. Dropping it ends the worker.
pub struct StepWorker {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl StepWorker {
    /// Starts a worker with a role and its arguments.
    pub fn start(role: &str, arguments: &[String], options: &Options) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| format!("the probe's own file: {e}"))?;
        let mut command = Command::new(program);
        command.args(["--device", &options.device.to_string()]);
        if options.quick {
            command.arg("--quick");
        }
        command.args(["--worker", role]).args(arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("worker {role} could not be started: {e}"))?;
        let stdin = child.stdin.take();
        let lines = read_lines(child.stdout.take());
        Ok(Self { child, stdin, lines })
    }

    /// Process id of the worker.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the worker's next line; an `{"error": ...}` of the worker is an error here.
    pub fn next_line(&mut self, patience: Duration) -> Result<Value, String> {
        let line = self.lines.recv_timeout(patience).map_err(|e| format!("no line from the worker: {e}"))?;
        let value: Value = serde_json::from_str(&line).map_err(|e| format!("the worker wrote {line:?}: {e}"))?;
        match value.get("error") {
            Some(error) => Err(format!("worker: {error}")),
            None => Ok(value),
        }
    }

    /// Sends the worker a line.
    pub fn send_line(&mut self, text: &str) -> Result<(), String> {
        let stdin = self.stdin.as_mut().ok_or("the worker's input is closed")?;
        writeln!(stdin, "{text}").and_then(|()| stdin.flush()).map_err(|e| format!("the worker does not listen: {e}"))
    }

    /// Closes the worker's input, which ends it, and waits for it. After `patience` the worker is killed.
    pub fn finish_worker(mut self, patience: Duration) {
        self.stdin = None;
        let deadline = std::time::Instant::now() + patience;
        while std::time::Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for StepWorker {
    fn drop(&mut self) {
        // The process may be gone already. A process stuck in the kernel is left to the time limit of the step.
        let _ = self.child.kill();
        for _ in 0..200 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// In the worker: writes one line.
pub fn write_line(value: &Value) {
    let mut out = std::io::stdout().lock();
    // A write error means that the step is gone; the worker notices when its input ends.
    let _ = writeln!(out, "{value}").and_then(|()| out.flush());
}

/// In the worker: waits for a line; `None` if the step closed the input.
pub fn read_line() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(n) if n > 0 => Some(line.trim().to_owned()),
        _ => None,
    }
}

/// Makes this process die with its parent, so that a killed step leaves no process on the device.
pub fn die_with_parent() {
    // SAFETY: prctl with this option has no memory precondition.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}
