//! The administrative protocol: what `vgpu` asks the daemon, and what it answers.
//!
//! One JSON line there, one JSON line back, on the administrative socket, which only the daemon's own
//! user and root may open. Members speak [`vgpu_core::wire`] instead, on their tenant's socket; what may be asked there is [`own`].
//!
//! ```text
//! -> {"hello":2,"ask":"status"}                          <- {"hello":2,"status":{...}}
//! -> {"hello":2,"ask":"ps"}                              <- {"hello":2,"members":[...]}
//! -> {"hello":2,"ask":"set","tenant":"a","device":"0","change":{"sm_limit":"30"}}
//!                                                        <- {"hello":2,"done":{...}}
//! -> {"hello":2,"ask":"pause","tenant":"a"}              <- {"hello":2,"done":{...}}       and `resume`
//! -> {"hello":2,"ask":"explain","tenant":"a"}            <- {"hello":2,"explained":[...]}
//! -> {"hello":2,"ask":"events","since":0,"follow":true}  <- {"hello":2,"following":{...}}  and then a line for each event
//!                                                        <- {"hello":2,"error":"..."}      to any of them
//! ```
//!
//! A question of another protocol is refused with words that name both numbers, and so is an answer of another
//! protocol. What the answers hold is [`status`] and [`explain`], what a change may say [`vgpu_config::change`], what
//! the proof of enforcement found [`finding`].
#![forbid(unsafe_code)]

pub mod event;
pub mod explain;
pub mod finding;
pub mod own;
pub mod status;

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::{Deserialize, Serialize};

use vgpu_config::change::Words;

pub use explain::Explained;
pub use status::{
    AuditStatus, Configuration, DeviceStatus, Fault, MemberDevice, MemberStatus, Process, RecordStatus, Status,
    TenantStatus, TermsStatus, TimeStatus,
};

/// The number of this protocol.
pub const PROTOCOL: u64 = 2;

/// Longest answer that is read.
const MAX_ANSWER: u64 = 64 << 20;

/// A question.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Question {
    /// [`PROTOCOL`].
    pub hello: u64,
    /// What is asked.
    #[serde(flatten)]
    pub ask: Ask,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase", deny_unknown_fields)]
pub enum Ask {
    /// Everything about devices, tenants and members.
    Status,
    /// Every member.
    Ps,
    /// Change a tenant's terms until the next reading of the file.
    Set {
        /// Its name.
        tenant: String,
        /// On this device only, as the file names it or by its UUID; absent: on all of the tenant's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
        /// What.
        change: Box<Words>,
    },
    /// Let a tenant launch nothing until it is resumed.
    Pause {
        /// Its name.
        tenant: String,
    },
    /// Undo that.
    Resume {
        /// Its name.
        tenant: String,
    },
    /// Say why a tenant gets what it gets.
    Explain {
        /// Its name.
        tenant: String,
    },
    /// Say what happened, a line for each event behind the answer ([`event`]).
    Events {
        /// From this number on; 0: all that are kept.
        #[serde(default)]
        since: u64,
        /// And what happens from now on, until the connection is closed.
        #[serde(default)]
        follow: bool,
    },
}

impl Ask {
    /// The words by which something is asked.
    pub const WORDS: [&str; 7] = ["status", "ps", "set", "pause", "resume", "explain", "events"];
}

/// An answer: one of its fields is there.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Answer {
    /// The daemon's protocol.
    pub hello: u64,
    /// The answer to `status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// The answer to `ps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<Process>>,
    /// The answer to `set`, `pause` and `resume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<Done>,
    /// The answer to `explain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explained: Option<Vec<Explained>>,
    /// The answer to `events`; they follow line by line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub following: Option<event::Following>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Whose.
    pub tenant: String,
    /// The keys that are different now; none: everything was so already.
    pub changed: Vec<String>,
    /// Is it paused now?
    pub paused: bool,
    /// `enforce` or `observe`.
    #[serde(default = "status::enforce")]
    pub mode: String,
    /// Are ways around the library refused?
    #[serde(default)]
    pub strict: bool,
    /// Its terms now, those that were changed and those that were not.
    pub devices: Vec<TermsStatus>,
    /// What whoever asked should know: how long it lasts, whom it does not reach.
    pub notes: Vec<String>,
}

/// Asks the daemon behind an administrative socket.
///
/// # Errors
/// Whatever connecting, writing, reading (at most 2 s) or parsing says; an error of the daemon's becomes
/// [`io::ErrorKind::Other`] with its words.
pub fn ask(socket: &Path, ask: &Ask) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(own::PATIENCE))?;
    stream.set_write_timeout(Some(own::PATIENCE))?;
    let mut line = serde_json::to_vec(&Question { hello: PROTOCOL, ask: ask.clone() })?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream.take(MAX_ANSWER)).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon closed the connection without an answer"));
    }
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    // A refusal is read first: a caller that may not ask gets the words of members, which have no number.
    if let Some(words) = answer["error"].as_str() {
        return Err(io::Error::other(words));
    }
    // The shape of another protocol's answer is not known.
    match answer["hello"].as_u64() {
        Some(PROTOCOL) => Ok(serde_json::from_value(answer)?),
        theirs => Err(io::Error::other(format!(
            "the daemon speaks administrative protocol {}, this program speaks {PROTOCOL}; use the vgpu of its version",
            theirs.unwrap_or_default()
        ))),
    }
}

/// Asks for the status.
///
/// # Errors
/// As [`ask`].
pub fn ask_status(socket: &Path) -> io::Result<Status> {
    let answer = ask(socket, &Ask::Status)?;
    answer.status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer holds no status"))
}
