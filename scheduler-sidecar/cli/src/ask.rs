//! Shared by the commands that ask the daemon: its socket, the message if nobody answers, numbers for people.

use std::io;
use std::path::{Path, PathBuf};

use vgpu_core::units::bytes::Bytes;

use vgpu_config::paths;
use vgpu_control::{self as control, Answer, Ask, Done, TermsStatus};
use vgpu_output::say::{FINDINGS, Failure};

/// Where the daemon is, and how the answer is shown.
#[derive(Debug, Clone, clap::Args)]
pub struct Where {
    /// The administrative socket [default: admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or $XDG_RUNTIME_DIR/vgpu].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl Where {
    /// Returns the path of the administrative socket.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| paths::admin_socket(&paths::runtime_dir()))
    }

    /// Sends a query to the daemon.
    ///
    /// # Errors
    /// [`Failure`] with code 1: nobody answers there, or the daemon refuses, with the daemon's message.
    pub fn ask(&self, ask: &Ask) -> Result<Answer, Failure> {
        let socket = self.path();
        control::ask(&socket, ask).map_err(|why| Failure::new(FINDINGS, words(&socket, &why)))
    }

    /// Sends a command to the daemon.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn done(&self, ask: &Ask) -> Result<Done, Failure> {
        self.ask(ask)?.done.ok_or_else(no_answer)
    }
}

/// Failure for an answer of the wrong kind.
#[must_use]
pub fn no_answer() -> Failure {
    Failure::new(FINDINGS, "the daemon's answer is to something else; is it older than this program? restart it")
}

/// Explains why there is no answer, and what to do.
pub(super) fn words(socket: &Path, why: &io::Error) -> String {
    let at = socket.display();
    match why.kind() {
        // An error of this kind carries the daemon's own message.
        io::ErrorKind::Other => why.to_string(),
        io::ErrorKind::PermissionDenied => {
            format!("{at}: {why}; only the daemon's user and root may ask: try it with sudo")
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("the daemon at {at} does not answer within 2 s; what it does stands in its log")
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
pub fn percent(percent: Option<f64>, none: &str) -> String {
    percent.map_or(none.into(), |percent| format!("{percent} %"))
}

/// Returns a tenant's limits and share of time on a device as a table row with the columns of [`TERMS`].
#[must_use]
pub fn terms(tenant: &str, terms: &TermsStatus) -> Vec<String> {
    vec![
        tenant.to_owned(),
        terms.device.clone(),
        terms.class.clone(),
        terms.weight.to_string(),
        percent(terms.sm_request, "none"),
        percent(terms.sm_limit, "unlimited"),
        size(terms.memory_limit),
    ]
}

/// Column headings of [`terms`].
pub const TERMS: [&str; 7] = ["TENANT", "DEVICE", "CLASS", "WEIGHT", "REQUEST", "LIMIT", "MEMORY"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_gets_no_answer_is_told_where_was_looked_and_what_to_do() {
        let socket = Path::new("/run/vgpu/admin.sock");
        let said = |kind: io::ErrorKind| words(socket, &io::Error::from(kind));
        for (kind, parts) in [
            (io::ErrorKind::NotFound, ["no daemon answers at /run/vgpu/admin.sock", "vgpud --config"]),
            (io::ErrorKind::ConnectionRefused, ["no daemon answers at /run/vgpu/admin.sock", "--socket"]),
            (io::ErrorKind::PermissionDenied, ["/run/vgpu/admin.sock", "sudo"]),
            (io::ErrorKind::TimedOut, ["/run/vgpu/admin.sock", "2 s"]),
        ] {
            assert!(parts.iter().all(|part| said(kind).contains(part)), "{}", said(kind));
        }
        let refused = io::Error::other("there is no tenant \"x\"");
        assert_eq!(words(socket, &refused), "there is no tenant \"x\"");
    }
}
