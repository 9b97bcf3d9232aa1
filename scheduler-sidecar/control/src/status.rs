//! The daemon's status: its devices, tenants and members, and what each gets.
//!
//! Durations are in seconds, sizes in bytes, shares in percent of a device's time, lease lengths in nanoseconds. Null
//! is no limit, or not known. An older daemon of the same protocol omits newer fields, so those have a default.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::place::ProcessPlace;
use vgpu_config::admit::GroupLimitSums;
use vgpu_config::bearer::CostBearer;

/// Status of the daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Version of the daemon.
    pub version: String,
    /// Process ID of the daemon.
    pub pid: u32,
    /// Seconds since the daemon started.
    pub uptime_seconds: u64,
    /// The configuration file; null: there is none.
    #[serde(default)]
    pub configuration: Option<ConfigurationStatus>,
    /// State of the usage record; null: the daemon keeps none.
    #[serde(default)]
    pub record: Option<RecordStatus>,
    /// The audit log; null: it is off.
    #[serde(default)]
    pub audit: Option<AuditStatus>,
    /// Devices that the daemon knows.
    #[serde(default)]
    pub devices: Vec<DeviceStatus>,
    /// The tenants, in the order in which they were added.
    pub tenants: Vec<TenantStatus>,
    /// Cordons: devices and tenants where nobody new is let in.
    #[serde(default)]
    pub cordons: Vec<CordonStatus>,
    /// Groups of tenants, in the order of the file.
    #[serde(default)]
    pub groups: Vec<GroupStatus>,
    /// Services that do not work while limits are still enforced.
    #[serde(default)]
    pub faults: Vec<DaemonFault>,
    /// Programs that events start.
    #[serde(default)]
    pub actions: Vec<ActionStatus>,
    /// Number of tenants that wait until they fit (`vgpu tenant add --wait`).
    #[serde(default)]
    pub queued_additions: usize,
    /// Processes that use devices without being held to a limit.
    #[serde(default)]
    pub findings: Vec<super::finding::Finding>,
}

/// A cordon, and the members that are still there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CordonStatus {
    /// The device, as the configuration names it, or the tenant.
    pub subject: String,
    /// True: the subject is a tenant.
    #[serde(default)]
    pub is_tenant: bool,
    /// True if the members are asked to end.
    pub evacuates: bool,
    /// Time from which on members get SIGTERM, in seconds since 1970; absent: they get none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminate_at: Option<i64>,
    /// Time at which it began, in seconds since 1970.
    pub since: i64,
    /// Time at which it ends, in seconds since 1970; absent: a command ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// User ID of the administrator.
    pub by_uid: u32,
    /// Reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Members that are still there.
    pub members: Vec<CordonedMember>,
    /// True in the first seconds of a daemon: members of the last one may be left that have not connected again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_members: bool,
    /// Hints for the caller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A member on a cordoned device or of a cordoned tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CordonedMember {
    /// Name of its tenant.
    pub tenant: String,
    /// Process ID from the kernel; null: the process is outside the daemon's pid namespace.
    pub pid: Option<u32>,
}

/// A group of tenants: what it is due, what it used, what it gets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Name of the group, with the names of the groups above it.
    pub name: String,
    /// Weight among the groups of the same parent; null: the file gives none.
    pub weight: Option<u32>,
    /// Part of everything that the weights give it while all groups run, in percent; null: no group has a weight.
    pub share: Option<f64>,
    /// Part of all use that it had with its subgroups, recent use counting more, in percent; null: not known.
    pub used: Option<f64>,
    /// Part that its running tenants get now if all of them want time, in percent; null: no group has a weight.
    pub effective: Option<f64>,
    /// Number of tenants, with those of its subgroups.
    pub tenants: usize,
    /// Number of them that used or wanted a device in the last minute.
    pub running: usize,
    /// Sums of its tenants' memory limits and ceilings on each device, next to the group's limits; empty if it has
    /// none.
    #[serde(default)]
    pub limits: Vec<GroupLimitSums>,
    /// Quotas of the group; empty if its use is not known.
    pub quotas: Vec<QuotaStatus>,
}

/// One limit of a quota of a group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QuotaStatus {
    /// Period: `day`, `week` or `month`.
    pub per: String,
    /// Unit of limit and use: `GPU-hours` or `GiB-hours`.
    pub unit: String,
    /// Most that the group may use within the period.
    pub limit: f64,
    /// Use since the period began.
    pub used: f64,
    /// `free`, `near` from 80 % on, or `used up`.
    pub state: String,
    /// Restriction of the tenants when it is used up.
    pub then: String,
    /// End of the period, in seconds since 1970.
    pub until: i64,
}

/// A service of the daemon, other than enforcement, that does not work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonFault {
    /// Name of the service: `audit`, `metrics`, `record`, `proof`.
    pub what: String,
    /// Reason why the service does not work.
    pub words: String,
}

/// A program that events start, and its runs since it came into force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionStatus {
    /// Kinds of events, and subjects, as the file writes them.
    pub events: Vec<String>,
    /// The program and its arguments.
    pub exec: Vec<String>,
    /// Number of runs now.
    pub running: usize,
    /// Number of events that wait for a run.
    pub waiting: usize,
    /// Number of runs that ended.
    pub ended: u64,
    /// Number of ended runs that failed: another exit status than 0, a timeout, a program that cannot be started.
    pub failed: u64,
    /// Number of events that started no program, because too many waited.
    pub dropped: u64,
}

/// State of the configuration file, and result of the last reading.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConfigurationStatus {
    /// Path of the file.
    pub file: PathBuf,
    /// Number of times that the file was read again and accepted.
    pub reloads: u64,
    /// Why the last reading was refused, one line for each error; null: it was accepted.
    pub refused: Option<String>,
    /// Settings that are checked and recorded but have no effect, and settings that could not be checked.
    pub notes: Vec<String>,
}

/// State of the usage record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordStatus {
    /// True if the usage record is written, or turned off on purpose.
    pub ok: bool,
    /// The problem, or a hint; null: none.
    pub words: Option<String>,
    /// Directory of the usage record; null: the record is off.
    pub dir: Option<PathBuf>,
}

/// State of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditStatus {
    /// Path of the audit log.
    pub file: PathBuf,
    /// Hash of the last line that the daemon wrote; empty before the first line.
    pub head: String,
}

/// State of a device.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Name of the device in the configuration: the number, else the UUID, else `*`.
    pub name: String,
    /// UUID of the device; null: not known.
    pub uuid: Option<String>,
    /// Model name; null: the driver did not report it.
    #[serde(default)]
    pub model: Option<String>,
    /// Memory in bytes; null: not known.
    pub memory: Option<u64>,
    /// Factor of the device's memory up to which memory may be promised to tenants.
    pub overcommit: f64,
    /// True if the device is shared by leases (periods in which one tenant may launch).
    pub arbitrated: bool,
    /// Tenant that holds the device now.
    pub holder: Option<String>,
    /// Time since which the driver says that the device is lost, RFC 3339; null: it does not.
    #[serde(default)]
    pub lost_since: Option<String>,
}

/// Mode of tenants of daemons that do not report one.
pub(super) fn enforce() -> String {
    vgpu_core::limits::Mode::Enforce.to_string()
}

/// State of a tenant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TenantStatus {
    /// Name of the tenant.
    pub name: String,
    /// Owner of the tenant's costs: `group`, null if none was given, and `labels` by their names.
    #[serde(flatten)]
    pub bearer: CostBearer,
    /// Names of the labels that `vgpu label` set; the others are the file's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels_live: Vec<String>,
    /// Path of the socket where the tenant's members connect.
    pub socket: PathBuf,
    /// Lowest memory limit of all the tenant's devices, in bytes; null: no limit.
    pub memory_limit: Option<u64>,
    /// Lowest ceiling (most device time) of all the tenant's devices, in percent; null: no limit.
    pub sm_limit: Option<f64>,
    /// Connections refused since the start: wrong protocol, unreadable lines, silence, too many.
    pub refused: u64,
    /// True if the tenant was removed from the configuration. No new member can join, and it ends with its last member.
    #[serde(default)]
    pub removed: bool,
    /// Set for a tenant that `vgpu tenant add` added; absent for tenants of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added: Option<AddedStatus>,
    /// Reason why this tenant cannot be served while others are: the path of its socket is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
    /// True if the tenant launches nothing on any of its devices until it is resumed.
    #[serde(default)]
    pub paused: bool,
    /// True if all of the tenant's processes that use a device are suspended, so that it gets no lease and waits for
    /// none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// Gang whose tenants get their leases together; absent: it is in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<String>,
    /// `enforce`, or `observe`: it is measured, but nothing is refused or delayed.
    #[serde(default = "enforce")]
    pub mode: String,
    /// True if bypasses of the library are refused.
    #[serde(default)]
    pub strict: bool,
    /// Set for a tenant whose use is followed: keys about idle tenants in its section, its template or the defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleStatus>,
    /// Set for a tenant with a deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DeadlineStatus>,
    /// Limits and share of time (terms) on each device, and usage there.
    #[serde(default)]
    pub devices: Vec<TermsStatus>,
    /// Connected members, the longest connected first.
    pub members: Vec<MemberStatus>,
}

/// How a tenant uses what it holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IdleStatus {
    /// State in one word: `busy`, `idle`, `resident-idle`, `stalled`, `starved`, `over-used`, `suspended`.
    pub state: String,
    /// Seconds for which it has been idle or stalled; 0: it is not.
    pub idle_seconds: u64,
    /// Steps that were taken and still hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
    /// Memory of it that is marked as reclaimable, in bytes.
    pub reclaimable: u64,
    /// Memory held multiplied by time, in GiB hours, since it was told to be idle.
    pub hoarded_gib_hours: f64,
}

/// Work with a due time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeadlineStatus {
    /// Due time, in seconds since 1970.
    pub due: i64,
    /// Device time that the work needs, in hours.
    pub gpu_hours_needed: f64,
    /// Device time that it got, in hours.
    pub gpu_hours_received: f64,
    /// State in one word: `on time`, `at risk`, `missed`, `met`.
    pub state: String,
}

/// Lifetime of a tenant that a command added.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedStatus {
    /// Time when it was added, in seconds since 1970.
    pub since: i64,
    /// Process with whose end it is removed; null: none.
    pub pid: Option<u32>,
    /// Seconds until it is removed; null: no end was given.
    pub seconds_left: Option<u64>,
}

/// Terms of a tenant on a device (limits and share of time), and its usage there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TermsStatus {
    /// Name of the device; see [`DeviceStatus::name`].
    pub device: String,
    /// Memory limit of the tenant on the device, in bytes; null: no limit.
    pub memory_limit: Option<u64>,
    /// Ceiling: the most device time that the tenant may use, in percent; null: no limit.
    pub sm_limit: Option<f64>,
    /// Floor: the share of device time that the tenant is guaranteed, in percent; null: none.
    pub sm_request: Option<f64>,
    /// Weight by which the tenant shares the time that the guaranteed shares (floors) leave.
    pub weight: u32,
    /// Priority class: `latency`, `normal` or `batch`.
    pub class: String,
    /// Length of the tenant's leases in nanoseconds; null: the length of its class.
    pub quantum: Option<u64>,
    /// True if the tenant launches nothing on this device.
    #[serde(default)]
    pub paused: bool,
    /// Keys that an administrator changed since the file was read. They are lost when it is read again.
    pub changed_live: Vec<String>,
    /// Device time of the tenant; null: no member has joined the device.
    pub time: Option<TimeStatus>,
    /// Bytes that its processes hold there, by the tenant's ledger, which the tenant can write. A
    /// ledger that does not change is read every 10 s. Null: no member joined.
    #[serde(default)]
    pub memory_used: Option<u64>,
    /// Most bytes held at once, since the ledger was created.
    #[serde(default)]
    pub memory_peak: Option<u64>,
    /// The part of `memory_used` that the programs did not request: contexts, code.
    #[serde(default)]
    pub overhead: Option<u64>,
    /// Requests that were refused, since the ledger was created.
    #[serde(default)]
    pub refused_allocations: Option<u64>,
    /// Launches since the first member joined; null: not counted.
    #[serde(default)]
    pub launches: Option<u64>,
    /// Energy since the daemon started; null: the device's energy is not known.
    #[serde(default)]
    pub energy: Option<EnergyStatus>,
}

/// Energy of a tenant on one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnergyStatus {
    /// Energy while its kernels ran, in millijoules.
    pub work_millijoules: u64,
    /// Its part of the energy of the idle device while it held memory there, in millijoules.
    pub idle_millijoules: u64,
}

impl EnergyStatus {
    /// Both uses, each with its word.
    #[must_use]
    pub fn uses(&self) -> [(&'static str, u64); 2] {
        [("work", self.work_millijoules), ("idle", self.idle_millijoules)]
    }
}

/// Device time of a tenant on one device, and its members' waiting.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeStatus {
    /// Number of the tenant's members that joined the device.
    pub members: usize,
    /// Number of members that wait at the gate, that is, for permission to launch.
    pub waiting: usize,
    /// State in one word; see [`super::DeviceExplanation::state`].
    pub state: String,
    /// Device time in seconds since the tenant's first member joined; null: none of it was measured.
    pub gpu_seconds: Option<f64>,
    /// True if processes of the tenant launch without a lease now (gate open), where usage is not measured.
    #[serde(default)]
    pub unmeasured: bool,
    /// Seconds in which the tenant waited for permission to launch (at the gate) without having the device.
    pub waited_seconds: f64,
    /// Span of `wanted` and `got`, in seconds.
    pub over_seconds: f64,
    /// Percent of the span in which it wanted the device or had work queued on it; null: not measured.
    pub wanted: Option<f64>,
    /// Percent of the span in which it had the device; null: not measured.
    pub got: Option<f64>,
    /// Promise and delivery of device time, and the times around leases.
    #[serde(default)]
    pub service: super::service::ServiceSums,
}

/// State of a member.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Process ID from the kernel; null: the process is outside the daemon's pid namespace.
    pub pid: Option<u32>,
    /// Process ID in the member's own pid namespace, as the member reports it.
    pub pid_inside: u32,
    /// User ID of the member's process.
    pub uid: u32,
    /// Group ID of the member's process.
    pub gid: u32,
    /// Version of the member's library, as the member reports it.
    pub version: String,
    /// Seconds since the member said hello.
    pub connected_seconds: u64,
    /// Time since which the process is suspended, in seconds since 1970; absent: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_since: Option<i64>,
    /// Container and pod of the process, as the daemon saw them at its hello; absent: it saw neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<ProcessPlace>,
    /// State of the member on each device that it uses.
    #[serde(default)]
    pub devices: Vec<MemberDevice>,
}

/// State of a member on a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberDevice {
    /// Name of the device; see [`DeviceStatus::name`].
    pub device: String,
    /// State of the member's gate: `open` (needs no lease), `run` (has a lease), `wait`, or `cap` (waits for the
    /// ceiling).
    pub lease: String,
    /// True if a thread of the member waits at the gate for permission to launch.
    pub waits: bool,
    /// Device time that the member reports, in seconds, as far as plausible; null: none of its usage was measured.
    pub gpu_seconds: Option<f64>,
    /// Seconds in which the member waited at the gate for permission to launch.
    pub waited_seconds: f64,
    /// Bytes that the member holds, without memory shared with others; see [`TermsStatus::memory_used`]. Null: not
    /// known, for instance because several processes of the tenant report the same process ID.
    #[serde(default)]
    pub memory_used: Option<u64>,
    /// The part of `memory_used` that the program did not request.
    #[serde(default)]
    pub overhead: Option<u64>,
}

/// A member that was named in a request `suspensions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspensionStatus {
    /// Name of its tenant.
    pub tenant: String,
    /// Process ID.
    pub pid: u32,
    /// Time since which it counts as suspended, in seconds since 1970; null: it counts as running.
    pub suspended_since: Option<i64>,
}

/// A line of `ps`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Name of the tenant.
    pub tenant: String,
    /// State of the process, a member of that tenant.
    #[serde(flatten)]
    pub member: MemberStatus,
}
