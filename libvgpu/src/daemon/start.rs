//! The daemon's answer at the start of a process.

use super::session::Session;
use super::{hello, search, session};
use crate::process::tenant;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use vgpu_core::limits::Mode;
use vgpu_core::protocol::wire::terms_file::{MAX_TERMS_FILE_BYTES, TERMS_FILE_NAME, TermsFile};

/// The daemon's answer at the start of a process.
pub enum DaemonStart {
    /// Shared pages from a running daemon: each device is joined.
    Session(&'static Session),
    /// The terms file that the last daemon left.
    File(TermsFile),
}

impl DaemonStart {
    /// The tenant's name.
    pub fn tenant_name(&self) -> &str {
        match self {
            Self::Session(session) => &session.welcome.terms.tenant,
            Self::File(file) => &file.tenant,
        }
    }

    /// The mode for limits.
    pub fn enforcement_mode(&self) -> Mode {
        match self {
            Self::Session(session) => session.welcome.mode,
            Self::File(file) => file.mode,
        }
    }

    /// Whether a limit that cannot be kept causes a warning instead of a failure.
    pub fn is_open_on_error(&self) -> bool {
        match self {
            Self::Session(session) => session.welcome.open_on_error,
            Self::File(file) => file.open_on_error,
        }
    }

    /// Whether lookups that bypass the hooks are refused.
    pub fn is_strict(&self) -> bool {
        match self {
            Self::Session(session) => session.welcome.strict,
            Self::File(file) => file.strict,
        }
    }
}

/// Asks the daemon at `socket`. If nobody answers, reads the terms file that the last daemon left next to it.
///
/// # Errors
/// One line that names the socket and what went wrong.
pub fn start(socket: &Path) -> Result<DaemonStart, String> {
    let wrong = |what: &str| format!("VGPU_SOCKET=\"{}\": {what}", socket.display());
    match hello::say_hello(socket, hello::ANSWER_TIMEOUT) {
        Ok(session) => Ok(DaemonStart::Session(session::set_current(session))),
        Err(hello::HelloError::Refused(words)) => Err(wrong(&words)),
        Err(hello::HelloError::Absent(words)) => match read_terms_file(socket) {
            Ok(Some(file)) => {
                let uid = tenant::user_of(file.user_namespace);
                if !file.admits_user(uid) {
                    return Err(wrong(&format!(
                        "tenant {} does not accept user {uid} ({TERMS_FILE_NAME})",
                        file.tenant
                    )));
                }
                search::is_lost();
                Ok(DaemonStart::File(file))
            }
            Ok(None) => Err(wrong(&words)),
            Err(file) => Err(wrong(&format!("{words}; {file}"))),
        },
    }
}

/// The terms file that the last daemon left next to its socket; `None`: there is none.
///
/// # Errors
/// The message to print, in one line: the path of the terms file and what is wrong with it.
fn read_terms_file(socket: &Path) -> Result<Option<TermsFile>, String> {
    let path = socket.with_file_name(TERMS_FILE_NAME);
    let wrong = |what: &dyn core::fmt::Display| format!("{}: {what}", path.display());
    // Non-blocking: a pipe in place of the file must not block the program.
    let file = match std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(wrong(&e)),
    };
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(wrong(&"is no file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_TERMS_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|e| wrong(&e))?;
    TermsFile::decode(&bytes).map(Some).map_err(|e| wrong(&e))
}
