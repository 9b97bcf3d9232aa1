//! The member's side of the daemon: the connection, the daemon's answers, and the rules in force while it does not
//! answer.
//!
//! - [`hello`]: the conversation over the socket, with its deadlines
//! - [`session`]: the shared pages from the daemon's welcome, checked; one slot per device; the wake-up bell
//! - [`post`]: the daemon state that launches and allocations read first, in atomics: the slot, and the last memory
//!   limit
//! - [`lease`]: the governor's state of its lease, under its lock; the contents of its report
//! - [`renew`]: start without a daemon, its loss, its return, and forked children
//!
//! The connection stays open for the life of the process: its end tells the daemon that a member died. Limits once
//! received stay in force, whatever happens to the daemon.

pub mod hello;
pub mod lease;
pub mod post;
pub mod renew;
pub mod session;
#[cfg(test)]
pub mod stand_in;

pub use post::DaemonLink;
pub use session::{PagesSlot, Session};

use crate::tenant;
use std::path::Path;
use vgpu_core::limits::Mode;
use vgpu_core::protocol::wire::terms_file::{TERMS_FILE_NAME, TermsFile};

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
        Err(hello::HelloError::Absent(words)) => match renew::read_terms_file(socket) {
            Ok(Some(file)) => {
                let uid = tenant::user_of(file.user_namespace);
                if !file.admits_user(uid) {
                    return Err(wrong(&format!(
                        "tenant {} does not accept user {uid} ({TERMS_FILE_NAME})",
                        file.tenant
                    )));
                }
                renew::is_lost();
                Ok(DaemonStart::File(file))
            }
            Ok(None) => Err(wrong(&words)),
            Err(file) => Err(wrong(&format!("{words}; {file}"))),
        },
    }
}
