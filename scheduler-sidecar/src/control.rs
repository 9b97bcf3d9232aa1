//! The administrative protocol: what `vgpu status` and `vgpu doctor` ask the daemon.
//!
//! One JSON line there, one JSON line back, on the administrative socket, which only the daemon's own
//! user and root may open. Members speak [`vgpu_core::wire`] instead, on their tenant's socket.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The number of this protocol.
pub const PROTOCOL: u64 = 1;

/// Longest answer that is read.
const MAX_ANSWER: u64 = 64 << 20;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// A question.
#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    /// [`PROTOCOL`].
    pub hello: u64,
    /// What is asked; there is one question so far: `status`.
    pub ask: String,
}

/// An answer: one of its fields is there.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// [`PROTOCOL`].
    pub hello: u64,
    /// The answer to `status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The daemon as it is now.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// The configuration file; null if there is none.
    #[serde(default)]
    pub configuration: Option<Configuration>,
    /// In the order they were given.
    pub tenants: Vec<TenantStatus>,
}

/// The configuration file of a daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct Configuration {
    /// Where it is.
    pub file: PathBuf,
    /// How often it was read again and taken.
    pub reloads: u64,
    /// Why its last reading changed nothing, a line for each error; null if it was taken.
    pub refused: Option<String>,
    /// What is checked and recorded without being in force, and what could not be checked.
    pub notes: Vec<String>,
}

/// A tenant as it is now.
#[derive(Debug, Serialize, Deserialize)]
pub struct TenantStatus {
    /// Its name.
    pub name: String,
    /// Where its members connect.
    pub socket: PathBuf,
    /// Bytes per device; null = no limit.
    pub memory_limit: Option<u64>,
    /// Percent of a device's time; null = no limit.
    pub sm_limit: Option<f64>,
    /// Connections that were turned away since the start: wrong protocol, garbage, silence, too many.
    pub refused: u64,
    /// Was it taken out of the configuration? Then nobody new comes in, and it goes with its last member.
    #[serde(default)]
    pub removed: bool,
    /// Members whose connection is open, longest first.
    pub members: Vec<MemberStatus>,
}

/// A member as it is now.
#[derive(Debug, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The process by the kernel's word; null if it lives outside the daemon's pid namespace.
    pub pid: Option<u32>,
    /// The process by its own word, in its own pid namespace.
    pub pid_inside: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Version of its library, by its own word.
    pub version: String,
    /// Seconds since its hello.
    pub connected_seconds: u64,
    /// Was it told other limits than its tenant has now? They stay in force until it starts anew.
    #[serde(default)]
    pub earlier_terms: bool,
}

/// Asks the daemon behind an administrative socket for its status.
///
/// # Errors
/// Whatever connecting, writing, reading (at most 2 s) or parsing says; an error of the daemon's becomes
/// [`io::ErrorKind::Other`] with its words.
pub fn ask_status(socket: &Path) -> io::Result<Status> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(&Question { hello: PROTOCOL, ask: "status".into() })?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream.take(MAX_ANSWER)).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon closed the connection without an answer"));
    }
    let answer: Answer = serde_json::from_str(&answer)?;
    match (answer.status, answer.error) {
        (Some(status), _) => Ok(status),
        (None, Some(words)) => Err(io::Error::other(words)),
        (None, None) => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the answer holds neither a status nor an error"))
        }
    }
}

/// The directory where the daemon puts what it was given no other place for.
///
/// `VGPU_RUNTIME_DIR` if set, else `/run/vgpu` for root, else `$XDG_RUNTIME_DIR/vgpu`, else `/tmp/vgpu-<uid>`.
#[must_use]
pub fn runtime_dir() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let uid = rustix::process::geteuid().as_raw();
    set("VGPU_RUNTIME_DIR").unwrap_or_else(|| match (uid, set("XDG_RUNTIME_DIR")) {
        (0, _) => PathBuf::from("/run/vgpu"),
        (_, Some(dir)) => dir.join("vgpu"),
        (uid, None) => PathBuf::from(format!("/tmp/vgpu-{uid}")),
    })
}

/// The administrative socket within a runtime directory.
#[must_use]
pub fn admin_socket(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("admin.sock")
}
