//! Does the daemon answer, on this tenant's socket and on the administrative one?

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use vgpu_core::wire::{Hello, MAX_LINE, Reply, Terms};

use super::{Report, variable};
use crate::control;

/// How long an answer may take, as in the library.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn look(report: &mut Report) {
    match variable("VGPU_SOCKET") {
        None => report.fine("daemon", "VGPU_SOCKET is not set: limits come from the environment alone"),
        Some(socket) => match terms(Path::new(&socket)) {
            Ok(Terms { tenant, memory_limit, sm_limit }) => {
                let memory = memory_limit.map_or("unlimited".into(), |memory| memory.to_string());
                let sm = sm_limit.map_or("unlimited".into(), |share| share.to_string());
                report.fine("daemon", format!("{socket}: tenant {tenant}, memory {memory}, device time {sm}"));
            }
            Err(why) => report.finding(
                "daemon",
                format!("VGPU_SOCKET={socket:?}: {why}; CUDA and NVML will refuse to initialise; start vgpud, or mount its directory"),
            ),
        },
    }
    let admin = control::admin_socket(&control::runtime_dir());
    if admin.exists() {
        match control::ask_status(&admin) {
            Ok(status) => {
                let members: usize = status.tenants.iter().map(|tenant| tenant.members.len()).sum();
                let (version, tenants) = (status.version, status.tenants.len());
                report.fine(
                    "daemon",
                    format!("{}: vgpud {version}, {tenants} tenants, {members} members", admin.display()),
                );
            }
            Err(why) if why.kind() == io::ErrorKind::PermissionDenied => {
                report.fine("daemon", format!("{} is for its owner only", admin.display()));
            }
            Err(why) => {
                report.finding("daemon", format!("{}: {why}; the daemon is gone, start it again", admin.display()))
            }
        }
    }
}

/// The terms a member would get. The daemon sees this as a short-lived member.
pub fn terms(socket: &Path) -> Result<Terms, String> {
    let words = |why: io::Error| why.to_string();
    let stream = UnixStream::connect(socket).map_err(words)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(words)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(words)?;
    let hello = Hello { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_owned() };
    (&stream).write_all(hello.encode().map_err(|why| why.to_string())?.as_bytes()).map_err(words)?;
    let mut line = Vec::new();
    let limit = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
    BufReader::new(stream.take(limit)).read_until(b'\n', &mut line).map_err(words)?;
    match Reply::decode(&line).map_err(|why| format!("the answer is not understood: {why}"))? {
        Reply::Terms(terms) => Ok(terms),
        Reply::Error(why) => Err(format!("the daemon says: {why}")),
    }
}
