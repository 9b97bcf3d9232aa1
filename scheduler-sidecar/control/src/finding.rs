//! What the proof of enforcement found: who uses a device without being held to a limit, as answers and events say it.

use serde::{Deserialize, Serialize};

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// It uses a device and is held to no limit by anybody.
    Uncontrolled,
    /// It has a tenant's socket, and uses a device without having said hello.
    Unregistered,
    /// Its tenant uses more memory than its ledger or its limit says, or has a ledger that says nothing sensible.
    Over,
    /// It is a member and works on a device without a lease.
    Time,
}

impl What {
    /// In one word, as events and metrics say it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Uncontrolled => "uncontrolled",
            Self::Unregistered => "unregistered",
            Self::Over => "over",
            Self::Time => "time",
        }
    }
}

/// A process, for as long as it lives: its number may be given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its number in the daemon's pid namespace.
    pub pid: u32,
    /// When it began, in ticks since boot; 0: it could not be asked.
    pub began: u64,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What.
    pub what: What,
    /// Which process.
    #[serde(flatten)]
    pub process: Process,
    /// Its number in its own pid namespace; `None`: it cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_inside: Option<u32>,
    /// What it is called, by its own word.
    pub name: String,
    /// Whose it is, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The device, if it is known: a UUID or a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Does it live in a mount namespace of its own, as containers do?
    pub contained: bool,
    /// The end of its control group there, which engines name after the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// In a sentence, with what to do.
    pub words: String,
}
