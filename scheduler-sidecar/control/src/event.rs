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
    audited_kind("daemon.started", "the daemon started and serves its tenants"),
    audited_kind("daemon.stopping", "the daemon was told to stop; members keep their last terms"),
    audited_kind("config.taken", "the configuration was read again and is in force"),
    audited_kind(
        "config.refused",
        "the configuration was read again and refused because of its errors; nothing \
         changed",
    ),
    audited_kind("tenant.added", "a tenant was added, with these limits"),
    audited_kind("tenant.removed", "a tenant was removed, and why"),
    audited_kind("tenant.changed", "the configuration or an administrator changed a tenant's terms"),
    audited_kind("tenant.paused", "a tenant was paused: it launches nothing until it is resumed"),
    audited_kind("tenant.resumed", "a paused tenant was resumed"),
    audited_kind("tenant.exclusive", "a tenant has its devices alone: the others there are paused"),
    audited_kind("booking.made", "an administrator booked a part of devices for a tenant"),
    audited_kind("booking.cancelled", "an administrator cancelled a booking"),
    audited_kind(
        "cordon.begun",
        "an administrator lets nobody new on a device or into a tenant, and may ask its members to end",
    ),
    audited_kind("cordon.ended", "new processes may join a device or a tenant again"),
    audited_kind("evacuation.asked", "a member is asked to end, because its device or its tenant is evacuated"),
    audited_kind("evacuation.terminated", "a member of an evacuation got SIGTERM"),
    event_kind("evacuation.done", "no member is left on an evacuated device or of an evacuated tenant"),
    event_kind(
        "policy.refused",
        "a window, a booking or a value has no effect: it does not fit, or cannot be computed",
    ),
    event_kind(
        "policy.unmatched",
        "the device of an override, a booking or a cordon is not here, so that has no effect",
    ),
    event_kind("quota.near", "a group used 80 % of a quota; `quota` and `used` say which and how much"),
    audited_kind("quota.used_up", "a group used up a quota: until it ends, its tenants are held as `then` says"),
    audited_kind("quota.ended", "a group that had used up a quota has its own terms again"),
    event_kind("idle.began", "a tenant uses less than its idle_threshold; it holds no memory, or still launches"),
    event_kind("idle.resident", "a tenant holds memory and launches nothing (resident-idle, hoarding)"),
    event_kind("idle.stalled", "queued work of a tenant makes no progress"),
    audited_kind(
        "idle.step",
        "an idle step was taken against a tenant, or with idle_dry_run or in mode observe would have been",
    ),
    event_kind("idle.ended", "an idle or stalled tenant is busy again, paused, suspended or without processes"),
    event_kind("starved.began", "a tenant waits for a device and gets less than its floor, or nothing"),
    event_kind("starved.ended", "a starved tenant gets its floor again, or does not wait any longer"),
    event_kind("over-used.began", "a tenant uses its over_threshold of what it may, or more, for over_minutes"),
    event_kind("over-used.ended", "a tenant uses less than its over_threshold again"),
    event_kind("deadline.at_risk", "the floor that a deadline needs is not admissible; the tenant gets what is"),
    event_kind("deadline.missed", "a deadline cannot be met any more; `since` says from when on"),
    event_kind("deadline.met", "the work for a deadline got the device time that it needs"),
    event_kind("tenant.unusable", "a tenant cannot be served: the path of its socket is taken"),
    event_kind("tenant.served", "a tenant that could not be served is served now"),
    audited_kind("member.joined", "a process joined its tenant and got the tenant's limits"),
    audited_kind("member.left", "a process ended or disconnected"),
    audited_kind("member.refused", "a process was refused"),
    audited_kind(
        "admin.refused",
        "an administrative request was refused: its user may not ask, or the daemon does \
         not understand it",
    ),
    audited_kind(
        "process.suspended",
        "a process was moved off its devices (vgpu-checkpoint), or stays `locked` on them, and launches nothing",
    ),
    audited_kind(
        "process.resumed",
        "a suspended process is on its devices again; `why` says it if nobody resumed it here",
    ),
    event_kind("memory.refused", "allocations of a tenant were refused; `refused` is their number"),
    audited_kind("device.lost", "the driver has lost a device: calls on it fail until it is reset"),
    audited_kind("device.back", "a lost device answers again; `since` is the time of its loss"),
    event_kind("driver.answered", "the driver, which did not answer at the daemon's start, answers now"),
    event_kind("record.failed", "usage cannot be recorded; limits are still enforced"),
    event_kind("record.resumed", "usage is recorded again"),
    audited_kind("proof.uncontrolled", "a process uses a device without being held to a limit"),
    audited_kind(
        "proof.over",
        "a tenant uses more of a device than its ledger or its limit says, or has a ledger that cannot be read any more",
    ),
    audited_kind("proof.time", "a member works on a device without a lease or a report"),
    audited_kind(
        "proof.unregistered",
        "a container has a tenant's socket, and a process in it uses a device without \
         being connected",
    ),
    audited_kind("proof.bypass", "a tenant's program found a bypass of the library"),
    event_kind("proof.ended", "a finding ended"),
    audited_kind("proof.stopped", "the process of a finding was stopped, or with proof.dry_run would have been"),
    event_kind(
        "proof.blind",
        "enforcement cannot be fully proved: the daemon cannot read something that the proof \
         needs",
    ),
    event_kind(
        "action.ended",
        "the program of an action ended, was stopped at its timeout, or cannot be started; `result` says which",
    ),
    event_kind("action.dropped", "events started no program, because too many waited for their action"),
    event_kind("events.lost", "events came faster than they were read; some are not shown"),
];

/// Returns the kind with this name; `None`: there is none.
#[must_use]
pub fn kind_named(name: &str) -> Option<&'static EventKind> {
    EVENT_KINDS.iter().find(|kind| kind.name == name)
}

/// Kinds that may start the program of an action (`[[on_event]]`). An event about actions starts none, so that no
/// action starts itself. Losses are told to a reader of events, and are no events of the daemon.
#[must_use]
pub fn triggering_kinds() -> Vec<&'static str> {
    let starts_none = |name: &str| name.starts_with("action.") || name.starts_with("events.");
    EVENT_KINDS.iter().map(|kind| kind.name).filter(|name| !starts_none(name)).collect()
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
