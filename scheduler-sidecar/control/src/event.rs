//! Events: one line of JSON each, in `vgpu events` and in the audit log.
//!
//! An event is a line of the daemon's log that has a kind. [`EVENT_KINDS`] lists all kinds.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventKind {
    /// Name of the kind: a subject and what happened to it, such as `tenant.paused`.
    pub name: &'static str,
    /// True if the audit log keeps it too: joins with their limits, and every change of limits.
    pub audited: bool,
    /// Meaning of the kind in a sentence, for people.
    pub says: &'static str,
}

const fn event_kind(name: &'static str, says: &'static str) -> EventKind {
    EventKind { name, audited: false, says }
}

const fn audited_kind(name: &'static str, says: &'static str) -> EventKind {
    EventKind { name, audited: true, says }
}

/// All kinds, by subject.
pub const EVENT_KINDS: &[EventKind] = &[
    audited_kind("daemon.started", "the daemon serves"),
    audited_kind("daemon.stopping", "it was told to stop; members keep their last terms"),
    audited_kind("config.taken", "the configuration was read again and is in force"),
    audited_kind("config.refused", "the configuration was read again and changed nothing: it has errors"),
    audited_kind("tenant.added", "a tenant is served, with these limits"),
    audited_kind("tenant.removed", "a tenant was taken out of the configuration"),
    audited_kind("tenant.changed", "a tenant has other terms: by the configuration, or by an administrator"),
    audited_kind("tenant.paused", "a tenant launches nothing until it is resumed"),
    audited_kind("tenant.resumed", "a paused tenant goes on"),
    event_kind("tenant.unusable", "a tenant cannot be served: something lies in its socket's place"),
    event_kind("tenant.served", "a tenant that could not be served is"),
    audited_kind("member.joined", "a process was let in, with its tenant's limits"),
    audited_kind("member.left", "a process is gone"),
    audited_kind("member.refused", "a process was turned away"),
    audited_kind("admin.refused", "somebody who may not ask asked, or asked what is not understood"),
    event_kind("memory.refused", "allocations of a tenant were refused, as many as are said"),
    event_kind("driver.answered", "the driver, which did not answer at the start, does"),
    event_kind("record.failed", "usage cannot be written down; limits are kept all the same"),
    event_kind("record.resumed", "usage is written down again"),
    audited_kind("proof.uncontrolled", "a process uses a device without being held to a limit"),
    audited_kind(
        "proof.over",
        "a tenant uses more of a device than its ledger or its limit says, or has a ledger that cannot be read any more",
    ),
    audited_kind("proof.time", "a member works on a device without a lease"),
    audited_kind("proof.unregistered", "a container was given a socket, and uses a device without having said hello"),
    audited_kind("proof.door", "a tenant's program found a way around the library"),
    event_kind("proof.ended", "what was found is no more"),
    audited_kind("proof.stopped", "a process was stopped, or would have been, by the policy for what was found"),
    event_kind("proof.blind", "something that proves enforcement cannot be looked at"),
    event_kind("events.lost", "so many events came faster than they were read, and are not shown"),
];

/// Returns the kind with this name; `None`: there is none.
#[must_use]
pub fn kind_named(name: &str) -> Option<&'static EventKind> {
    EVENT_KINDS.iter().find(|kind| kind.name == name)
}

/// An event of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DaemonEvent {
    /// Number of the event: counts from 1 at each start of the daemon.
    pub seq: u64,
    /// Time: UTC, RFC 3339, with milliseconds.
    pub at: String,
    /// The name of its [`EventKind`].
    pub kind: String,
    /// Level: `info`, `warning` or `error`.
    pub level: String,
    /// Name of the tenant that the event is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The device: its UUID, or its name in the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Process that the event is about, by the process ID from the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u64>,
    /// The administrator who requested the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Administrator>,
    /// Description of the event in a sentence.
    pub words: String,
    /// Further fields of the event, by name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub more: Map<String, Value>,
}

/// An administrator, identified by the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Administrator {
    /// User ID of the administrator.
    pub uid: u32,
    /// Process ID; 0: the process is outside the daemon's pid namespace.
    #[serde(default)]
    pub pid: u32,
}

/// The answer line before the events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventPosition {
    /// Identifies the start of the daemon whose events these are; no two starts are equal.
    pub boot: u64,
    /// Number that the next event will get.
    pub next: u64,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn sources(dir: &Path, all: &mut String) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, all);
            } else if path.extension().is_some_and(|end| end == "rs") {
                all.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }

    #[test]
    fn every_kind_that_is_told_is_in_the_table_and_none_is_there_twice() {
        let mut all = String::new();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for crate_dir in std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path().join("src")) {
            if crate_dir.is_dir() {
                sources(&crate_dir, &mut all);
            }
        }
        let marks = all.split("kind = \"").skip(1).filter_map(|rest| rest.split('"').next());
        let told: BTreeSet<&str> = marks.filter(|name| name.contains('.')).collect();
        assert!(told.len() > 10, "{told:?}");
        for name in told {
            assert!(kind_named(name).is_some(), "{name} is told and not in KINDS");
        }
        let names: BTreeSet<&str> = EVENT_KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), EVENT_KINDS.len());
    }
}
