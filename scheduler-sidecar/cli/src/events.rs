//! `vgpu events`: shows past events of the daemon, and follows new ones.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use super::ask::{self, DaemonAddress, no_answer};
use vgpu_config::problem;
use vgpu_control::event::{DaemonEvent, EventPosition};
use vgpu_control::{self as control, ControlAnswer, ControlCommand, ControlRequest};
use vgpu_output::say::{self, EXIT_FINDINGS, Failure};

/// Time between two attempts to reach a restarting daemon.
const RESTART_POLL: Duration = Duration::from_millis(500);

/// Shows the daemon's events: members that joined and left, changes and their authors, refusals, findings.
///
/// The daemon keeps the last 4096 events of its run; numbers begin at 1 with each start of it. The audit log keeps the
/// important events across restarts (`log.audit` in the daemon's file; `vgpu audit`).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu events
  vgpu events --follow
  vgpu events --tenant train --kind member --json
  vgpu events --follow --json --kind proof | while read -r event; do logger \"$event\"; done

Exit codes:
  0  shown
  1  no daemon answers there
  2  usage")]
pub struct Args {
    /// Waits for further events, until interrupted, also across restarts of the daemon.
    #[arg(long, short)]
    follow: bool,

    /// Number of the first event.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    since: u64,

    /// Shows only events of this tenant.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// Shows only events of this kind or subject: member.joined, tenant, proof; repeatable.
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    kind: Vec<String>,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Parses the name of an event kind, or the prefix of several.
fn parse_kind(text: &str) -> Result<String, String> {
    let kinds = control::event::EVENT_KINDS.iter().map(|kind| kind.name);
    let subject = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    if kinds.clone().any(|name| name == text || subject(name) == text) {
        return Ok(text.to_owned());
    }
    let mut subjects: Vec<String> = kinds.clone().map(subject).collect();
    subjects.dedup();
    Err(format!("accepted: {}; or one of {}", subjects.join(", "), kinds.collect::<Vec<_>>().join(", ")))
}

/// Asks for the events and prints them.
///
/// # Errors
/// [`Failure`]: the daemon does not answer.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (mut next, mut boot) = (args.since.max(1), None);
    loop {
        match stream_events(args, &mut next, &mut boot) {
            // Stop if output fails, since further events would be lost. A closed pipe ends here too: its reader has
            // seen enough.
            Err(Ended::Output(failure)) => return Err(failure),
            Err(Ended::Daemon(failure)) if boot.is_none() || !args.follow => return Err(failure),
            Ok(()) if !args.follow => return Ok(ExitCode::SUCCESS),
            _ => std::thread::sleep(RESTART_POLL),
        }
    }
}

/// The reason why no more events are shown.
enum Ended {
    /// The daemon does not answer, or refuses.
    Daemon(Failure),
    /// Standard output cannot be written, so that the command ends.
    Output(Failure),
}

/// Shows events until the daemon closes the connection; stores the number after the last one in `next`.
fn stream_events(args: &Args, next: &mut u64, boot: &mut Option<u64>) -> Result<(), Ended> {
    let socket = args.daemon.socket_path();
    let told = |why: io::Error| Ended::Daemon(Failure::new(EXIT_FINDINGS, ask::explain_failure(&socket, &why)));
    let question = |since| ControlRequest {
        hello: control::CONTROL_PROTOCOL,
        ask: ControlCommand::Events { since, follow: args.follow },
    };
    let open = |since| -> io::Result<(BufReader<UnixStream>, ControlAnswer)> {
        let mut stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(control::own::PATIENCE))?;
        let mut line = serde_json::to_vec(&question(since))?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the daemon closed the connection without an answer",
            ));
        }
        Ok((reader, serde_json::from_str(&first)?))
    };
    let (mut reader, mut answer) = open(*next).map_err(told)?;
    let other = |answer: &ControlAnswer| matches!((answer.following, *boot), (Some(EventPosition { boot, .. }), Some(old)) if boot != old);
    if other(&answer) {
        // A restarted daemon numbers its events from 1.
        *next = 1;
        (reader, answer) = open(1).map_err(told)?;
    }
    if let Some(why) = answer.error {
        return Err(Ended::Daemon(Failure::new(EXIT_FINDINGS, why)));
    }
    let following = answer.following.ok_or_else(no_answer).map_err(Ended::Daemon)?;
    *boot = Some(following.boot);
    reader.get_ref().set_read_timeout(None).map_err(told)?;
    let mut line = String::new();
    loop {
        line.clear();
        match reader.read_line(&mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(_) if args.follow => return Ok(()),
            Err(why) => return Err(told(why)),
        }
        // Skip a line that the daemon's end cut off.
        let Ok(event) = serde_json::from_str::<DaemonEvent>(&line) else { continue };
        *next = event.seq + 1;
        if args.wants_event(&event) {
            match args.daemon.json {
                true => say::print_exact(&say::plain_json(&line)),
                false => say::print_text(&format_event(&event)),
            }
            .map_err(Ended::Output)?;
        }
    }
}

impl Args {
    fn wants_event(&self, event: &DaemonEvent) -> bool {
        let subject = event.kind.split('.').next().unwrap_or_default();
        let kind = self.kind.is_empty() || self.kind.iter().any(|kind| *kind == event.kind || kind == subject);
        let tenant = self.tenant.is_none() || self.tenant == event.tenant;
        (kind && tenant) || event.kind == "events.lost"
    }
}

/// Formats an event as one line.
#[must_use]
pub fn format_event(event: &DaemonEvent) -> String {
    let mut line = format!("{}  {:<18}", event.at, event.kind);
    let mut put = |name: &str, value: String| {
        // A tenant chooses the names of files and programs, so escape them.
        line.push_str(&format!(" {name}={}", problem::escape_value(&value)));
    };
    if let Some(tenant) = &event.tenant {
        put("tenant", tenant.clone());
    }
    if let Some(device) = &event.device {
        put("device", device.clone());
    }
    if let Some(pid) = event.pid {
        put("pid", pid.to_string());
    }
    if let Some(by) = event.by {
        put("by_uid", by.uid.to_string());
    }
    for (name, value) in &event.more {
        put(name, value.as_str().map_or_else(|| value.to_string(), |text| format!("{text:?}")));
    }
    line.push_str("  ");
    line.push_str(&say::escape_line(&event.words));
    let colour = match event.level.as_str() {
        "error" | "warning" => Some(say::Colour::Yellow),
        _ => None,
    };
    let line = match colour {
        Some(colour) => say::in_colour(colour, &line),
        None => line,
    };
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_or_its_subject_is_accepted_and_anything_else_is_told_what_there_is() {
        assert!(parse_kind("member").is_ok() && parse_kind("member.joined").is_ok());
        let words = parse_kind("members").unwrap_err();
        assert!(words.contains("member, ") && words.contains("tenant.paused"), "{words}");
    }
}
