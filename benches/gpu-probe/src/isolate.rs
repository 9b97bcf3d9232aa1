//! Runs a step in its own process: starts it, reads its lines, and ends it with all its children at its time limit.
//!
//! [`crate::sink`] defines the lines; [`crate::report`] uses the outcome.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::sink::GatheredStep;

/// Time for a killed process to disappear; after that it is left behind.
const REAP_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes kept of a step's standard error.
const STDERR_BYTES: usize = 4096;

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepStatus {
    /// The step finished, and every part gave its value.
    Ok,
    /// The step finished, but at least one part failed.
    Partial,
    /// The step finished or stopped without any value.
    Failed,
    /// The step was ended at its time limit; the values until then are kept.
    Timeout,
    /// The step died before its end; the values until then are kept.
    Crashed,
    /// The step was never started.
    Skipped,
}

impl StepStatus {
    /// The status as the document names it.
    pub fn status_word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Partial => "partial",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Crashed => "crashed",
            Self::Skipped => "skipped",
        }
    }
}

/// Outcome of a step: status, length, values and errors.
#[derive(Debug)]
pub struct StepOutcome {
    pub status: StepStatus,
    pub seconds: f64,
    pub gathered: GatheredStep,
    pub stderr: String,
}

impl StepOutcome {
    /// Outcome of a step that was not started, with the reason.
    pub fn skipped_step(why: &str) -> Self {
        let gathered = GatheredStep { errors: vec![why.to_owned()], ..GatheredStep::default() };
        Self { status: StepStatus::Skipped, seconds: 0.0, gathered, stderr: String::new() }
    }

    /// The outcome in the document's form.
    pub fn to_json(&self) -> Value {
        json!({
            "status": self.status.status_word(),
            "seconds": (self.seconds * 1000.0).round() / 1000.0,
            "data": Value::Object(self.gathered.data.clone()),
            "errors": self.gathered.errors,
            "stderr": self.stderr,
        })
    }
}

/// Runs `command`, collects its lines, and ends it and its children after `limit`.
pub fn run(command: &mut Command, limit: Duration) -> StepOutcome {
    let started = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let gathered =
                GatheredStep { errors: vec![format!("could not be started: {error}")], ..GatheredStep::default() };
            return StepOutcome { status: StepStatus::Failed, seconds: 0.0, gathered, stderr: String::new() };
        }
    };
    let lines = read_lines(child.stdout.take());
    let stderr = read_tail(child.stderr.take());
    let mut gathered = GatheredStep::default();
    let deadline = started + limit;
    let mut timed_out = false;
    loop {
        let now = Instant::now();
        if now >= deadline {
            timed_out = true;
            break;
        }
        match lines.recv_timeout(deadline - now) {
            Ok(line) => gathered.take_line(&line),
            Err(RecvTimeoutError::Timeout) => {
                timed_out = true;
                break;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if gathered.ended {
            break;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    // A step that reported its end may still hang while the driver destroys its context. So it gets 5 s to exit before
    // its process group is killed.
    let exit = if timed_out { None } else { wait(&mut child, REAP_TIMEOUT) };
    kill_group(&child);
    let reaped = exit.or_else(|| wait(&mut child, REAP_TIMEOUT));
    if reaped.is_none() {
        gathered.errors.push("the killed process did not disappear within 5 s (stuck in the kernel?)".to_owned());
    }
    let status = judge_step(&mut gathered, timed_out, exit, limit);
    let stderr = stderr.recv_timeout(Duration::from_millis(500)).unwrap_or_default();
    StepOutcome { status, seconds, gathered, stderr }
}

fn judge_step(gathered: &mut GatheredStep, timed_out: bool, exit: Option<ExitStatus>, limit: Duration) -> StepStatus {
    if timed_out {
        gathered.errors.push(format!("not through after {} s", limit.as_secs()));
        return StepStatus::Timeout;
    }
    match exit {
        Some(status) if !gathered.ended => {
            let how = status.signal().map_or_else(|| format!("exit {:?}", status.code()), |s| format!("signal {s}"));
            gathered.errors.push(format!("died before its end: {how}"));
            return StepStatus::Crashed;
        }
        None => gathered.errors.push("did not exit by itself after its end".to_owned()),
        Some(_) => {}
    }
    match (gathered.errors.is_empty(), gathered.data.is_empty()) {
        (true, false) => StepStatus::Ok,
        (false, false) => StepStatus::Partial,
        (_, true) => StepStatus::Failed,
    }
}

fn wait(child: &mut Child, at_most: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + at_most;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            _ => return None,
        }
    }
}

/// Ends the child and everything that it started: all share its process group.
fn kill_group(child: &Child) {
    let Ok(group) = i32::try_from(child.id()) else { return };
    // SAFETY: kill has no memory precondition. The group was made for this child; if it is gone, the error does not
    // matter.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}

/// Lines of a stream, read by a thread that ends with the stream.
pub fn read_lines(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (send, receive) = channel();
    if let Some(stream) = stream {
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines() {
                let Ok(line) = line else { return };
                if send.send(line).is_err() {
                    return;
                }
            }
        });
    }
    receive
}

fn read_tail(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (send, receive) = channel();
    if let Some(mut stream) = stream {
        std::thread::spawn(move || {
            let mut kept: Vec<u8> = Vec::new();
            let mut buffer = [0_u8; 4096];
            while let Ok(n) = stream.read(&mut buffer) {
                if n == 0 {
                    break;
                }
                kept.extend_from_slice(&buffer[..n]);
                let surplus = kept.len().saturating_sub(STDERR_BYTES);
                kept.drain(..surplus);
            }
            // The probe may have continued without waiting for this.
            let _ = send.send(String::from_utf8_lossy(&kept).into_owned());
        });
    }
    receive
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> StepOutcome {
        run(Command::new("/bin/sh").args(["-c", script]), limit)
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_step_that_ends_well_is_ok() {
        let outcome = shell(r#"echo '{"put":"a","value":7}'; echo '{"end":true}'; echo note >&2"#, LONG);
        assert_eq!(outcome.status, StepStatus::Ok);
        assert_eq!(outcome.gathered.data["a"], json!(7));
        assert_eq!(outcome.stderr, "note\n");
    }

    #[test]
    fn a_step_that_fails_in_part_keeps_the_rest() {
        let outcome = shell(r#"echo '{"put":"a","value":7}'; echo '{"error":"b: no"}'; echo '{"end":true}'"#, LONG);
        assert_eq!(outcome.status, StepStatus::Partial);
        assert_eq!(outcome.gathered.errors, ["b: no"]);
    }

    #[test]
    fn a_step_that_hangs_is_ended_with_its_children_and_keeps_what_it_found() {
        let script = r#"sleep 600 & echo "{\"put\":\"child\",\"value\":$!}"; wait"#;
        let started = Instant::now();
        let outcome = shell(script, Duration::from_millis(500));
        assert!(started.elapsed() < LONG);
        assert_eq!(outcome.status, StepStatus::Timeout);
        let child = outcome.gathered.data["child"].as_i64().unwrap();
        let deadline = Instant::now() + LONG;
        while alive(child) {
            assert!(Instant::now() < deadline, "the child of the step lives on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// True if the process runs. A zombie does not count.
    fn alive(pid: i64) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
    }

    #[test]
    fn a_step_that_crashes_is_named_by_its_signal() {
        let outcome = shell(r#"echo '{"put":"a","value":7}'; kill -SEGV $$"#, LONG);
        assert_eq!(outcome.status, StepStatus::Crashed);
        assert_eq!(outcome.gathered.data["a"], json!(7));
        assert!(outcome.gathered.errors[0].contains("signal 11"), "{:?}", outcome.gathered.errors);
    }

    #[test]
    fn a_step_that_cannot_be_started_is_failed() {
        let outcome = run(&mut Command::new("/nonexistent/program"), LONG);
        assert_eq!(outcome.status, StepStatus::Failed);
        assert!(outcome.gathered.errors[0].contains("could not be started"));
    }

    #[test]
    fn a_step_without_any_value_is_failed_even_if_it_ends() {
        assert_eq!(shell(r#"echo '{"end":true}'"#, LONG).status, StepStatus::Failed);
    }
}
