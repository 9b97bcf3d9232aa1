//! Checks whether the daemon answers, on this tenant's socket and on the administrative one.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use vgpu_core::limits::Mode;
use vgpu_core::protocol::wire::{Hello, MAX_LINE, Reply, Terms, Welcome};

use super::{DoctorReport, environment_text, found};
use vgpu_config::paths;
use vgpu_control as control;

/// Longest wait for an answer, as in the library.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The socket that the environment names, and the daemon's answer on it.
pub struct DaemonAnswer {
    socket: String,
    said: Result<ToldTerms, String>,
}

impl DaemonAnswer {
    /// Asks the daemon, if the environment names a socket.
    pub fn ask_named() -> Option<Self> {
        let socket = environment_text("VGPU_SOCKET")?;
        Some(Self { said: ask_terms(Path::new(&socket)), socket })
    }

    /// Returns the tenant that the daemon says the socket belongs to.
    pub fn tenant_name(&self) -> Option<&str> {
        self.said.as_ref().ok().map(|said| said.terms.tenant.as_str())
    }
}

pub fn examine_daemon(report: &mut DoctorReport, asked: Option<&DaemonAnswer>) {
    match asked {
        None => report.add_fine("daemon", "VGPU_SOCKET is not set: limits come from the environment alone"),
        Some(DaemonAnswer { socket, said }) => match said {
            Ok(ToldTerms { terms: Terms { tenant, memory_limit, sm_limit }, mode, strict }) => {
                let memory = memory_limit.map_or("unlimited".into(), |memory| memory.to_string());
                let sm = sm_limit.map_or("unlimited".into(), |share| share.to_string());
                let how = match mode {
                    Mode::Enforce => format!("memory {memory}, device time {sm}"),
                    other => format!("mode {other}: use is measured, nothing is refused or delayed"),
                };
                let strict = if *strict { ", strict: bypasses of the library are refused" } else { "" };
                report.add_fine("daemon", format!("{socket}: tenant {tenant}, {how}{strict}"));
            }
            Err(why) => report.add_finding(
                "daemon",
                format!("VGPU_SOCKET={socket:?}: {why}; CUDA and NVML will refuse to initialise; start vgpud, or mount its directory"),
            ),
        },
    }
    let admin = paths::usual_admin_socket();
    if admin.exists() {
        match control::ask_status(&admin) {
            Ok(status) => {
                let members: usize = status.tenants.iter().map(|tenant| tenant.members.len()).sum();
                let (version, tenants) = (&status.version, status.tenants.len());
                report.add_fine(
                    "daemon",
                    format!("{}: vgpud {version}, {tenants} tenants, {members} members", admin.display()),
                );
                found::all(report, &status);
                return;
            }
            Err(why) if why.kind() == io::ErrorKind::PermissionDenied => {
                report.add_fine("daemon", format!("{} is for its owner only", admin.display()));
            }
            Err(why) => {
                report.add_finding("daemon", format!("{}: {why}; the daemon is gone, start it again", admin.display()))
            }
        }
    }
    if let Some(DaemonAnswer { socket, said: Ok(_) }) = asked {
        found::report_own_findings(report, Path::new(socket));
    }
}

/// Limits and mode that the daemon would send to a process that connects as a member.
pub struct ToldTerms {
    /// The tenant and its limits.
    pub terms: Terms,
    /// Mode of the tenant.
    pub mode: Mode,
    /// True if bypasses of the library are refused.
    pub strict: bool,
}

/// Returns the limits and mode that a process which connects as a member would receive. The daemon sees a short-lived
/// member. Descriptors sent with the answer are not received.
pub fn ask_terms(socket: &Path) -> Result<ToldTerms, String> {
    let hello = Hello { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_owned(), clock: 0 };
    let line = ask_line(socket, &hello.encode().map_err(|why| why.to_string())?)?;
    match Reply::decode(&line).map_err(|why| format!("the answer is not understood: {why}"))? {
        Reply::Welcome(Welcome { terms, mode, strict, .. }) => Ok(ToldTerms { terms, mode, strict }),
        Reply::Refused(words) => Err(format!("the daemon says: {words}")),
        Reply::Slot { .. } => Err("the answer is to another question".into()),
    }
}

/// Sends a line and returns the answer.
fn ask_line(socket: &Path, hello: &str) -> Result<Vec<u8>, String> {
    let words = |why: io::Error| why.to_string();
    let stream = UnixStream::connect(socket).map_err(words)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(words)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(words)?;
    (&stream).write_all(hello.as_bytes()).map_err(words)?;
    let mut line = Vec::new();
    let limit = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
    BufReader::new(stream.take(limit)).read_until(b'\n', &mut line).map_err(words)?;
    Ok(line)
}
