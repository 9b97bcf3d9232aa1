//! Sections `[[on_event]]`: programs that the daemon runs when an event happens.
//!
//! The kinds of events are no part of this crate. [`super::resolve::Surroundings::event_kinds`] has those that may
//! start a program. Not here: running the programs (the daemon does).

use std::collections::BTreeSet;
use std::time::Duration;

use super::problem::{At, TextRange};

/// Most sections `[[on_event]]` of a file.
pub const MAX_ACTIONS: usize = 64;

/// Time after which a program is killed, if the section gives none.
pub const DEFAULT_ACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Most runs of one action at the same time, if the section gives none.
pub const DEFAULT_RUNS_AT_ONCE: u32 = 4;

/// One section `[[on_event]]`; `None`: the key is missing, or its value is wrong and already reported.
#[derive(Debug)]
pub struct RawAction {
    /// Place of the section in the file, named in error messages.
    pub place: TextRange,
    /// Kinds of events, and subjects, as written.
    pub events: Option<Vec<At<String>>>,
    /// The program and its arguments.
    pub exec: Option<Vec<At<String>>>,
    /// Time after which the program is killed, in ns.
    pub timeout: Option<At<u64>>,
    /// Most runs at the same time.
    pub at_once: Option<At<u32>>,
}

/// A program that the daemon runs when an event happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionPlan {
    /// Kinds of events, and subjects, as written.
    pub events: Vec<String>,
    /// All kinds that start the program.
    pub kinds: BTreeSet<&'static str>,
    /// The program and its arguments; the program is an absolute path.
    pub exec: Vec<String>,
    /// Time after which the program is killed.
    pub timeout: Duration,
    /// Most runs of this action at the same time.
    pub at_once: u32,
}
