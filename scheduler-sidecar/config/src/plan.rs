//! The resolved configuration: devices with their sizes, tenants with their sockets and their terms on each device.
//!
//! Not here: the values as written ([`super::raw`]) and their display ([`super::show`]).

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use vgpu_core::limits::Mode;
use vgpu_core::time::arbiter::{self, Class};
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;

use super::action::ActionPlan;
use super::bearer::CostBearer;
use super::groups::{GroupPlan, is_within};
use super::raw::{Amount, LogFormat, OnError, OnLoss, RawPolicy, RawTemplate};
use super::schedule::{BookingPlan, WindowPlan};
use super::time::TimeConfig;
use super::usage::UsagePlan;

/// How long the usage record keeps its rows, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Time to keep rows of one minute each, in seconds.
    pub fine: u64,
    /// Time to keep rows of one hour each, in seconds.
    pub all: u64,
}

impl Default for Keep {
    fn default() -> Self {
        Self { fine: 7 * 86_400, all: 400 * 86_400 }
    }
}

/// A checked configuration: every promise in it can be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigPlan {
    /// Settings of the daemon itself, such as its directories and its administrative socket.
    pub daemon: DaemonPlan,
    /// Settings of the log and of the audit log: files, line format and rotation.
    pub log: LogPlan,
    /// Address of the metrics server, and names of the metrics.
    pub metrics: MetricsPlan,
    /// Settings of the check that no process uses a device past its limits; `None`: no check.
    pub proof: Option<ProofPlan>,
    /// Constants of device time sharing, such as lease lengths.
    pub time: TimeConfig,
    /// Which devices are scheduled by leases.
    pub arbitrate: bool,
    /// Devices ordered by number, then by UUID, `*` last.
    pub devices: Vec<DevicePlan>,
    /// Tenants in the order of the file; names are distinct.
    pub tenants: Vec<TenantPlan>,
    /// Groups of tenants, in the order of the file; names are distinct.
    pub groups: Vec<GroupPlan>,
    /// Windows, in the order of the file; names are distinct.
    pub windows: Vec<WindowPlan>,
    /// Bookings of the file, in its order; names are distinct.
    pub bookings: Vec<BookingPlan>,
    /// Programs that events start, in the order of the file.
    pub actions: Vec<ActionPlan>,
    /// Section `[defaults]`, for tenants that are added by command.
    pub defaults: RawPolicy,
    /// Sections `[template.NAME]`, for tenants that are added by command.
    pub templates: Vec<RawTemplate>,
    /// Notes for the reader of the plan: checks that could not be made, settings that are not in force.
    pub notes: Vec<String>,
}

/// Settings of the daemon itself, such as its directories and its administrative socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonPlan {
    /// Directory of the tenants' sockets; an absolute path.
    pub run_dir: PathBuf,
    /// Directory of state that outlives the daemon; `None` keeps no state.
    pub state_dir: Option<PathBuf>,
    /// True if the device time of a tenant that is alone on its device is measured too.
    pub exact: bool,
    /// Time after which recorded use counts half for the shares of groups, in seconds.
    pub half_life: u64,
    /// How long the record keeps its rows.
    pub keep: Keep,
    /// Path of the administrative socket; `None` for no such socket.
    pub admin: Option<PathBuf>,
    /// Most connections that one tenant may have open.
    pub max_connections: u32,
    /// Lowest level of lines that the log contains.
    pub log: String,
}

/// Settings of the log and of the audit log: files, line format and rotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogPlan {
    /// The log file; `None` is standard error.
    pub file: Option<PathBuf>,
    /// Format of the log lines.
    pub format: LogFormat,
    /// File size in bytes at which either log is rotated.
    pub max_size: u64,
    /// Rotated files kept for each log.
    pub keep: u32,
    /// Path of the audit log; `None` for no audit log.
    pub audit: Option<PathBuf>,
}

impl Default for LogPlan {
    fn default() -> Self {
        Self { file: None, format: LogFormat::default(), max_size: 16 << 20, keep: 7, audit: None }
    }
}

/// Address of the metrics server, and names of the metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MetricsPlan {
    /// Address of the HTTP server; `None` for no server.
    pub listen: Option<SocketAddr>,
    /// True if metrics are also exported under HAMi's names.
    pub hami_names: bool,
}

impl Default for MetricsPlan {
    fn default() -> Self {
        Self { listen: None, hami_names: true }
    }
}

/// How enforcement is verified against the processes that use the devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofPlan {
    /// Time between two rounds of the check.
    pub interval: Duration,
    /// Patterns of the device files whose users are checked.
    pub devices: Vec<String>,
    /// Programs outside of containers that may use devices freely.
    pub allow: Vec<PathBuf>,
    /// Bytes of memory that a process may use, by the driver's figures, beyond its ledger (the library's charges).
    pub slack: u64,
    /// True to stop processes in containers that belong to no tenant.
    pub stop: bool,
    /// Time that a process without a tenant may run before it is stopped.
    pub grace: Duration,
    /// True to only log which processes would be stopped.
    pub dry_run: bool,
    /// True to also ask the driver about memory use.
    pub driver: bool,
}

impl Default for ProofPlan {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(400),
            devices: vec!["/dev/nvidia[0-9]*".into(), "/dev/nvidia-uvm".into()],
            allow: Vec::new(),
            slack: 256 << 20,
            stop: false,
            grace: Duration::from_secs(10),
            dry_run: false,
            driver: true,
        }
    }
}

/// A device that tenants may be given, and the memory that may be promised on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePlan {
    /// NVML number, if known; a MIG instance has the number of its device.
    pub index: Option<u32>,
    /// UUID of the device, if known.
    pub uuid: Option<String>,
    /// UUID of the device that a MIG instance belongs to.
    pub parent: Option<String>,
    /// Memory size; `None` if neither the file nor the driver gives it.
    pub memory: Option<Bytes>,
    /// Part of the memory that limits may add up to, in thousandths.
    pub overcommit: u32,
    /// Model name, if the driver reports one.
    pub model: Option<String>,
    /// Limits of groups on the device, in the order of the file; groups without one are left out.
    pub group_limits: Vec<GroupLimit>,
}

/// Limits on the sums of what the tenants of a group, with its subgroups, are promised on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupLimit {
    /// Name of the group.
    pub group: String,
    /// Largest sum of memory limits; `None`: no limit.
    pub memory: Option<Amount>,
    /// Largest sum of ceilings; `None`: no limit.
    pub ceilings: Option<Share>,
}

impl GroupLimit {
    /// True if the tenant belongs to the group or to one of its subgroups.
    #[must_use]
    pub fn has_tenant(&self, tenant: &TenantPlan) -> bool {
        tenant.bearer.group.as_deref().is_some_and(|group| is_within(group, &self.group))
    }
}

impl DevicePlan {
    /// Returns the shortest name that the file would use: the number, else the UUID, else `*`. A MIG instance is
    /// never named by its number, which it shares with other instances.
    #[must_use]
    pub fn name(&self) -> String {
        let number = self.index.filter(|_| self.parent.is_none());
        number.map(|index| index.to_string()).or_else(|| self.uuid.clone()).unwrap_or_else(|| "*".into())
    }
}

/// A tenant: who may connect, and its limits on each device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantPlan {
    /// Name of the tenant, which is also the name of its socket's directory.
    pub name: String,
    /// Socket that the tenant's members connect to.
    pub socket: PathBuf,
    /// Number of slots of its `[[tenant]]` section; `None`: the tenant is no slot.
    pub replicas: Option<u32>,
    /// Gang whose tenants get their leases on all devices together; `None`: it is in no gang.
    pub gang: Option<String>,
    /// Group and labels by which reports charge the tenant's cost.
    pub bearer: CostBearer,
    /// User IDs of processes that may connect as members; `None` allows all.
    pub uids: Option<Vec<RangeInclusive<u32>>>,
    /// Tells if the tenant's limits are enforced, or its use is only measured.
    pub mode: Mode,
    /// True if bypasses of the library are refused.
    pub strict: bool,
    /// Behaviour of the tenant's members if the library cannot keep a limit.
    pub on_error: OnError,
    /// Behaviour of the tenant's members if the daemon is gone.
    pub on_loss: OnLoss,
    /// Policies that follow the tenant's use.
    pub usage: UsagePlan,
    /// Limits and share of time (terms) on each of the tenant's devices.
    pub terms: Vec<TermsPlan>,
}

impl TenantPlan {
    /// Raises each memory limit and floor to that of `other`, where that is larger.
    pub fn raise_promise(&mut self, other: &Self) {
        for terms in &mut self.terms {
            if let Some(other) = other.terms.iter().find(|other| other.device == terms.device) {
                // No memory limit is the whole device.
                terms.memory = terms.memory.zip(other.memory).map(|(memory, other)| memory.max(other));
                terms.floor = terms.floor.max(other.floor);
            }
        }
    }

    /// True if `other` is promised more than this plan on a device.
    #[must_use]
    pub fn is_raised_by(&self, other: &Self) -> bool {
        let mut raised = self.clone();
        raised.raise_promise(other);
        raised != *self
    }
}

/// Terms of a tenant on one device: memory limit, and its share and order in device time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TermsPlan {
    /// Name of the device; see [`DevicePlan::name`].
    pub device: String,
    /// UUID of the device; see [`DevicePlan::uuid`].
    pub uuid: Option<String>,
    /// Memory limit in bytes; `None` for no limit.
    pub memory: Option<Bytes>,
    /// Ceiling (`sm_limit`): the most device time that the tenant may use; `None` for no limit.
    pub ceiling: Option<Share>,
    /// Floor (`sm_request`): the share of device time that the tenant is guaranteed; `None` for none.
    pub floor: Option<Share>,
    /// Weight by which tenants share the time that the guaranteed shares (floors) leave.
    pub weight: u32,
    /// Priority class, which decides which waiting tenant gets the device first.
    pub class: Class,
    /// Lease length in ns; `None` is the default of the class.
    pub quantum: Option<u64>,
}

impl From<&TermsPlan> for arbiter::Terms {
    fn from(plan: &TermsPlan) -> Self {
        let TermsPlan { ceiling, floor, weight, class, quantum, .. } = plan;
        Self { class: *class, floor: *floor, ceiling: *ceiling, weight: *weight, quantum: *quantum }
    }
}
