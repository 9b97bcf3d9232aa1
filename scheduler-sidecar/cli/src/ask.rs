//! Shared by the commands that ask the daemon: its socket, the message if nobody answers, numbers for people.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use vgpu_core::units::bytes::Bytes;

use vgpu_config::paths;
use vgpu_control::{self as control, ChangeLasting, ChangeResult, ControlAnswer, ControlCommand, TermsStatus};
use vgpu_output::say::{self, EXIT_FINDINGS, Failure};

/// Where the daemon is, and how the answer is shown.
#[derive(Debug, Clone, clap::Args)]
pub struct DaemonAddress {
    /// The administrative socket [default: $VGPU_ADMIN_SOCKET, or admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or
    /// $XDG_RUNTIME_DIR/vgpu].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

impl DaemonAddress {
    /// Returns the path of the administrative socket.
    #[must_use]
    pub fn socket_path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(paths::usual_admin_socket)
    }

    /// Sends a query to the daemon.
    ///
    /// # Errors
    /// [`Failure`] with code 1: nobody answers there, or the daemon refuses, with the daemon's message.
    pub fn ask_daemon(&self, ask: &ControlCommand) -> Result<ControlAnswer, Failure> {
        let socket = self.socket_path();
        control::ask_daemon(&socket, ask).map_err(|why| Failure::new(EXIT_FINDINGS, explain_failure(&socket, &why)))
    }

    /// Sends a command to the daemon.
    ///
    /// # Errors
    /// As [`Self::ask_daemon`].
    pub fn request_change(&self, ask: &ControlCommand) -> Result<ChangeResult, Failure> {
        self.ask_daemon(ask)?.done.ok_or_else(no_answer)
    }
}

/// How long a change lasts, and why it is made.
#[derive(Debug, Clone, clap::Args)]
pub struct LastingOptions {
    /// Ends the change by itself after this time: 90s, 30m, 1h, 2days [default: it has no end of its own].
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    lasting: Option<Duration>,

    /// Reason, for the audit log and `vgpu explain`.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl LastingOptions {
    /// Returns the end and the reason as the daemon reads them. Parts of a second count as a second.
    #[must_use]
    pub fn to_lasting(&self) -> ChangeLasting {
        let seconds = self.lasting.map(|time| time.as_secs() + u64::from(time.subsec_nanos() > 0));
        ChangeLasting { seconds, reason: self.reason.clone() }
    }
}

/// Asks for a change, and prints it in the caller's words or as JSON.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or it refuses.
pub fn print_change(
    daemon: &DaemonAddress,
    ask: &ControlCommand,
    words: impl Fn(&ChangeResult) -> String,
) -> Result<ExitCode, Failure> {
    let done = daemon.request_change(ask)?;
    if daemon.json {
        say::print_json(&done)?;
    } else {
        say::print_text(&words(&done))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats hints of the daemon, one line each.
#[must_use]
pub fn format_notes(notes: &[String]) -> String {
    notes.iter().map(|note| format!("note: {note}\n")).collect()
}

/// Failure for an answer of the wrong kind.
#[must_use]
pub fn no_answer() -> Failure {
    Failure::new(EXIT_FINDINGS, "the daemon answered another question; is it older than this program? restart it")
}

/// Explains why there is no answer, and what to do.
pub(super) fn explain_failure(socket: &Path, why: &io::Error) -> String {
    let at = socket.display();
    match why.kind() {
        // An error of this kind carries the daemon's own message.
        io::ErrorKind::Other => why.to_string(),
        io::ErrorKind::PermissionDenied => {
            format!("{at}: {why}; only the daemon's user and root may ask: try it with sudo")
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("the daemon at {at} does not answer within 2 s; its log shows what it does")
        }
        _ => format!(
            "no daemon answers at {at}: {why}; start it with `vgpud --config FILE` or `systemctl start vgpud`, or name its \
             socket with --socket or its directory with VGPU_RUNTIME_DIR (a daemon whose sockets are all named opens this one \
             only with --admin-socket)"
        ),
    }
}

/// Formats bytes, or the absence of a limit.
#[must_use]
pub fn size(bytes: Option<u64>) -> String {
    bytes.map_or("unlimited".into(), |bytes| Bytes(bytes).to_string())
}

/// Formats a percentage, or `none` if there is no value.
#[must_use]
pub fn format_percent(percent: Option<f64>, none: &str) -> String {
    percent.map_or(none.into(), |percent| format!("{percent} %"))
}

/// Returns a tenant's limits and share of time on a device as a table row with the columns of [`TERMS_HEADINGS`].
#[must_use]
pub fn terms_rows(tenant: &str, terms: &TermsStatus) -> Vec<String> {
    vec![
        tenant.to_owned(),
        terms.device.clone(),
        terms.class.clone(),
        terms.weight.to_string(),
        format_percent(terms.sm_request, "none"),
        format_percent(terms.sm_limit, "unlimited"),
        size(terms.memory_limit),
    ]
}

/// Column headings of [`terms_rows`].
pub const TERMS_HEADINGS: [&str; 7] = ["TENANT", "DEVICE", "CLASS", "WEIGHT", "REQUEST", "LIMIT", "MEMORY"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_gets_no_answer_is_told_where_was_looked_and_what_to_do() {
        let socket = Path::new("/run/vgpu/admin.sock");
        let said = |kind: io::ErrorKind| explain_failure(socket, &io::Error::from(kind));
        for (kind, parts) in [
            (io::ErrorKind::NotFound, ["no daemon answers at /run/vgpu/admin.sock", "vgpud --config"]),
            (io::ErrorKind::ConnectionRefused, ["no daemon answers at /run/vgpu/admin.sock", "--socket"]),
            (io::ErrorKind::PermissionDenied, ["/run/vgpu/admin.sock", "sudo"]),
            (io::ErrorKind::TimedOut, ["/run/vgpu/admin.sock", "2 s"]),
        ] {
            assert!(parts.iter().all(|part| said(kind).contains(part)), "{}", said(kind));
        }
        let refused = io::Error::other("there is no tenant \"x\"");
        assert_eq!(explain_failure(socket, &refused), "there is no tenant \"x\"");
    }
}
