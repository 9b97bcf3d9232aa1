//! The daemon, from the member's side: who says hello, what comes back, and what holds while nobody answers.
//!
//! - [`hello`]: the conversation over the socket, with its deadlines
//! - [`session`]: the pages that came with the welcome, checked; a slot in them per device; the bell
//! - [`post`]: what launches and allocations ask first, in atomics: the slot, the memory limit as last read
//! - [`lease`]: what the governor remembers of its lease, under its lock; what is said in the report
//! - [`renew`]: the start without a daemon, its loss, its return, a forked child
//!
//! The connection stays open for the life of the process: its end is how the daemon sees a member's death. Limits that
//! were answered stay in force whatever becomes of the daemon.

pub mod hello;
pub mod lease;
pub mod post;
pub mod renew;
pub mod session;
#[cfg(test)]
pub mod stand_in;

pub use post::Post;
pub use session::{Place, Session};

use crate::tenant;
use std::path::Path;
use vgpu_core::limits::Mode;
use vgpu_core::wire::terms_file::{FILE_NAME, TermsFile};

/// What a process starts with.
pub enum Start {
    /// Pages: each device is joined.
    Session(&'static Session),
    /// What the last daemon left.
    File(TermsFile),
}

impl Start {
    /// The tenant's name.
    pub fn tenant(&self) -> &str {
        match self {
            Self::Session(session) => &session.welcome.terms.tenant,
            Self::File(file) => &file.tenant,
        }
    }

    /// What is done about limits.
    pub fn mode(&self) -> Mode {
        match self {
            Self::Session(session) => session.welcome.mode,
            Self::File(file) => file.mode,
        }
    }

    /// Whether what cannot be kept becomes a warning.
    pub fn is_open_on_error(&self) -> bool {
        match self {
            Self::Session(session) => session.welcome.open_on_error,
            Self::File(file) => file.open_on_error,
        }
    }

    /// Whether a way around the hooks is refused.
    pub fn is_strict(&self) -> bool {
        match self {
            Self::Session(session) => session.welcome.strict,
            Self::File(file) => file.strict,
        }
    }
}

/// Asks the daemon at `socket`; where nobody answers, reads what the last one left beside it.
///
/// # Errors
/// One line that names the socket and what went wrong.
pub fn start(socket: &Path) -> Result<Start, String> {
    let wrong = |what: &str| format!("VGPU_SOCKET=\"{}\": {what}", socket.display());
    match hello::begin(socket, hello::DEADLINE) {
        Ok(session) => Ok(Start::Session(session::keep(session))),
        Err(hello::Trouble::Refused(words)) => Err(wrong(&words)),
        Err(hello::Trouble::Absent(words)) => match renew::file(socket) {
            Ok(Some(file)) => {
                let uid = tenant::user_of(file.user_namespace);
                if !file.admits(uid) {
                    return Err(wrong(&format!("tenant {} does not accept user {uid} ({FILE_NAME})", file.tenant)));
                }
                renew::is_lost();
                Ok(Start::File(file))
            }
            Ok(None) => Err(wrong(&words)),
            Err(file) => Err(wrong(&format!("{words}; {file}"))),
        },
    }
}
