//! Findings of the enforcement check: processes that use a device without being held to a limit.

use serde::{Deserialize, Serialize};

/// Kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingKind {
    /// The process uses a device and no limit applies to it.
    Uncontrolled,
    /// The process can reach a tenant's socket and uses a device, but has not said hello.
    Unregistered,
    /// The tenant of the process uses more memory than its ledger or its limit says, or has a ledger that cannot be
    /// valid.
    Over,
    /// The process is a member and works on a device without a lease (permission to launch) or without a report.
    Time,
}

impl FindingKind {
    /// Name of the kind in events and metrics.
    #[must_use]
    pub const fn kind_word(self) -> &'static str {
        match self {
            Self::Uncontrolled => "uncontrolled",
            Self::Unregistered => "unregistered",
            Self::Over => "over",
            Self::Time => "time",
        }
    }
}

/// A process. The start time tells it from a later process with the same ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process ID in the daemon's pid namespace.
    pub pid: u32,
    /// Start time, in ticks since boot; 0: not known.
    pub began: u64,
}

/// A process that uses a device without being held to a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Kind of the finding.
    pub what: FindingKind,
    /// The process that the finding is about.
    #[serde(flatten)]
    pub process: ProcessId,
    /// Process ID in the process's own pid namespace; `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_inside: Option<u32>,
    /// Name of the process, as it chose it.
    pub name: String,
    /// Tenant of the process, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The device, if known: a UUID or a device file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// True if the process has its own root directory and mount namespace, as in a container.
    pub contained: bool,
    /// Last part of the path of the process's control group, which container engines derive from the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Description in a sentence, with what to do.
    pub words: String,
}
