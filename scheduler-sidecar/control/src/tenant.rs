//! Answers to the requests that add and remove tenants, and the kinds of refusals.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::finding::ProcessId;

/// State of a tenant after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TenantState {
    /// Its socket listens now.
    Added,
    /// It was there already with these settings.
    Unchanged,
    /// Its settings were replaced.
    Replaced,
    /// It was removed; no new member can join.
    Removed,
    /// It was removed before, and still has members or unwritten usage.
    Ending,
    /// There is no such tenant.
    Unknown,
}

/// The answer to `add` and `remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantAnswer {
    /// Name of the tenant.
    pub name: String,
    /// State of the tenant now.
    pub state: TenantState,
    /// Path of the socket where its members connect; null: there is no such tenant.
    pub socket: Option<PathBuf>,
    /// Time when it was added, in seconds since 1970; null: not known.
    pub since: Option<i64>,
    /// Connected members.
    pub members: Vec<ProcessId>,
    /// Connected members whose process the daemon cannot name: it is in another process namespace, or it ended and
    /// left its connection to a child.
    pub unseen_members: usize,
    /// True if all usage of the tenant is in the record, so that a report shows its final sums.
    pub is_recorded: bool,
}

/// Kinds of refusals that a program can react to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// A value is not accepted; the same request will never succeed.
    BadTerms,
    /// It does not fit next to the tenants that are there now; it may fit later.
    DoesNotFit,
    /// A tenant of this name exists with other settings.
    Differs,
    /// The tenant is one of the configuration file.
    InFile,
    /// The daemon answers no further administrator now; the same request may succeed in a moment.
    Busy,
    /// The daemon cannot do it: a file cannot be written, or the daemon has no configuration file.
    Failed,
}

/// A daemon's refusal, as the cause of an [`std::io::Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonRefusal {
    /// The daemon's message.
    pub words: String,
    /// Kind of the refusal, if it has one.
    pub kind: Option<RefusalKind>,
}

impl fmt::Display for DaemonRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for DaemonRefusal {}
