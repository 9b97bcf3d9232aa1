//! What the daemon says of itself: its devices, tenants, members, and what each gets.
//!
//! Durations are seconds, sizes bytes, shares percent of a device's time, lengths of leases nanoseconds; null is no limit,
//! or not known. Whoever reads must live without what an older daemon does not say: everything newer than protocol 1 has a
//! default.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use vgpu_config::bearer::Bearer;

/// The daemon as it is now.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// The configuration file; null if there is none.
    #[serde(default)]
    pub configuration: Option<Configuration>,
    /// How the record of usage is; null: from a daemon that keeps none.
    #[serde(default)]
    pub record: Option<RecordStatus>,
    /// The audit log; null: there is none.
    #[serde(default)]
    pub audit: Option<AuditStatus>,
    /// The devices it knows.
    #[serde(default)]
    pub devices: Vec<DeviceStatus>,
    /// In the order they were given.
    pub tenants: Vec<TenantStatus>,
    /// What the daemon cannot do, while limits are kept.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// Processes at the devices that are not as they should be.
    #[serde(default)]
    pub findings: Vec<super::finding::Finding>,
}

/// Something beside enforcement that the daemon cannot do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// `audit`, `metrics`, `record`.
    pub what: String,
    /// Why.
    pub words: String,
}

/// The configuration file of a daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Configuration {
    /// Where it is.
    pub file: PathBuf,
    /// How often it was read again and taken.
    pub reloads: u64,
    /// Why its last reading changed nothing, a line for each error; null if it was taken.
    pub refused: Option<String>,
    /// What is checked and recorded without being in force, and what could not be checked.
    pub notes: Vec<String>,
}

/// The record of usage, as it is now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordStatus {
    /// Is it written, or off because it shall be?
    pub ok: bool,
    /// What is wrong, or worth to know; null: nothing.
    pub words: Option<String>,
    /// Where it is; null: it is off.
    pub dir: Option<PathBuf>,
}

/// The audit log, as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditStatus {
    /// Its file.
    pub file: PathBuf,
    /// The hash of the last line that the daemon wrote; empty before the first one.
    pub head: String,
}

/// A device as it is now.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// As the file names it: the number, else the UUID, else `*`.
    pub name: String,
    /// Its UUID, if it is known.
    pub uuid: Option<String>,
    /// What its maker calls it; null: the driver did not say.
    #[serde(default)]
    pub model: Option<String>,
    /// How much memory it has; null: nobody said.
    pub memory: Option<u64>,
    /// How often that may be promised.
    pub overcommit: f64,
    /// Are leases given for it?
    pub arbitrated: bool,
    /// The tenant that has it now.
    pub holder: Option<String>,
}

/// What daemons did that did not say it.
pub(super) fn enforce() -> String {
    vgpu_core::limits::Mode::Enforce.to_string()
}

/// A tenant as it is now.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TenantStatus {
    /// Its name.
    pub name: String,
    /// Who bears what it costs: `group`, null if none was given, and `labels` by their names.
    #[serde(flatten)]
    pub bearer: Bearer,
    /// Where its members connect.
    pub socket: PathBuf,
    /// Bytes per device, the lowest of all; null = no limit.
    pub memory_limit: Option<u64>,
    /// Percent of a device's time, the lowest of all; null = no limit.
    pub sm_limit: Option<f64>,
    /// Connections that were turned away since the start: wrong protocol, garbage, silence, too many.
    pub refused: u64,
    /// Was it taken out of the configuration? Then nobody new comes in, and it goes with its last member.
    #[serde(default)]
    pub removed: bool,
    /// Why it cannot be served, while the others are: something lies in its socket's place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
    /// Does it launch nothing until it is resumed?
    #[serde(default)]
    pub paused: bool,
    /// `enforce`; `observe`: it is measured, and nothing is refused or delayed.
    #[serde(default = "enforce")]
    pub mode: String,
    /// Are ways around the library refused?
    #[serde(default)]
    pub strict: bool,
    /// What holds on each of its devices, and what it got there.
    #[serde(default)]
    pub devices: Vec<TermsStatus>,
    /// Members whose connection is open, longest first.
    pub members: Vec<MemberStatus>,
}

/// A tenant's terms on a device, and what it gets there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TermsStatus {
    /// [`DeviceStatus::name`].
    pub device: String,
    /// Bytes.
    pub memory_limit: Option<u64>,
    /// The ceiling, in percent.
    pub sm_limit: Option<f64>,
    /// The floor, in percent.
    pub sm_request: Option<f64>,
    /// Its part of what floors leave.
    pub weight: u32,
    /// `latency`, `normal` or `batch`.
    pub class: String,
    /// Length of its leases in nanoseconds; null: that of its class.
    pub quantum: Option<u64>,
    /// The keys that an administrator changed since the file was read; gone with the next reading.
    pub changed_live: Vec<String>,
    /// What it got; null where no member has joined the device.
    pub time: Option<TimeStatus>,
    /// Bytes that its processes hold there, as it was read a moment ago from the ledgers that its members sent, by their own
    /// word; a ledger that does not change is read every ten seconds. Null: none sent one.
    #[serde(default)]
    pub memory_used: Option<u64>,
    /// Most bytes at once, since the first of those ledgers was made.
    #[serde(default)]
    pub memory_peak: Option<u64>,
    /// Of what they hold: not the programs' own (contexts, code).
    #[serde(default)]
    pub overhead: Option<u64>,
    /// Requests that programs were refused, since then.
    #[serde(default)]
    pub refused_allocations: Option<u64>,
    /// Launches since the first member joined; null: not counted.
    #[serde(default)]
    pub launches: Option<u64>,
}

/// What a tenant gets of a device's time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeStatus {
    /// Members that joined the device.
    pub members: usize,
    /// Those of them that stand at the gate.
    pub waiting: usize,
    /// As [`super::Explained::state`].
    pub state: String,
    /// Device time, since the tenant's first member joined; null: none of it was measured.
    pub gpu_seconds: Option<f64>,
    /// Do its processes launch through open gates now, so that what they use is not measured?
    #[serde(default)]
    pub unmeasured: bool,
    /// Time in which the tenant stood at the gate and did not have the device.
    pub waited_seconds: f64,
    /// The span of the next two.
    pub over_seconds: f64,
    /// Percent of that span in which it wanted the device or had work before it; null: not measured.
    pub wanted: Option<f64>,
    /// Percent of that span that it got; null: not measured.
    pub got: Option<f64>,
}

/// A member as it is now.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The process by the kernel's word; null if it lives outside the daemon's pid namespace.
    pub pid: Option<u32>,
    /// The process by its own word, in its own pid namespace.
    pub pid_inside: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Version of its library, by its own word.
    pub version: String,
    /// Seconds since its hello.
    pub connected_seconds: u64,
    /// Was it told other limits than its tenant has now? They stay in force until it starts anew.
    #[serde(default)]
    pub earlier_terms: bool,
    /// The protocol it speaks; members of protocol 1 have no leases.
    #[serde(default)]
    pub protocol: u64,
    /// The devices it works on.
    #[serde(default)]
    pub devices: Vec<MemberDevice>,
}

/// A member on a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberDevice {
    /// [`DeviceStatus::name`].
    pub device: String,
    /// What its gate says: `open`, `run`, `wait`, `cap`.
    pub lease: String,
    /// Does a thread of it stand at the gate?
    pub waits: bool,
    /// Device time that it measured, by its own word as far as that is possible; null: it measured none of what it used.
    pub gpu_seconds: Option<f64>,
    /// Time in which it stood at the gate.
    pub waited_seconds: f64,
    /// Bytes that it holds, but for what it shares, as [`TermsStatus::memory_used`]; null: not known, as where several
    /// processes of the tenant have its number.
    #[serde(default)]
    pub memory_used: Option<u64>,
    /// Of it: not the program's own.
    #[serde(default)]
    pub overhead: Option<u64>,
}

/// A line of `ps`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Process {
    /// Whose it is.
    pub tenant: String,
    /// The rest.
    #[serde(flatten)]
    pub member: MemberStatus,
}
