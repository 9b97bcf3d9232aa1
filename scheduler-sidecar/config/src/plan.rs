//! What a configuration means: devices with their sizes, tenants with their sockets and terms on each device.
//!
//! Not here: how it was written ([`super::raw`]), how it is shown ([`super::show`]).

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use vgpu_core::arbiter::{self, Class};
use vgpu_core::bytes::Bytes;
use vgpu_core::limits::Mode;
use vgpu_core::share::Share;

use super::bearer::Bearer;
use super::raw::{Arbitrate, LogFormat, OnError, OnLoss};
use super::time::Time;

/// For how long rows are kept, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Minute by minute.
    pub fine: u64,
    /// Hour by hour.
    pub all: u64,
}

impl Default for Keep {
    fn default() -> Self {
        Self { fine: 7 * 86_400, all: 400 * 86_400 }
    }
}

/// A checked configuration: everything in it can be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The daemon itself.
    pub daemon: DaemonPlan,
    /// Where the log goes, and the audit log.
    pub log: LogPlan,
    /// Where metrics can be had.
    pub metrics: MetricsPlan,
    /// How enforcement is proved; `None`: it is not.
    pub proof: Option<ProofPlan>,
    /// The constants of device time.
    pub time: Time,
    /// Which devices are given out in leases.
    pub arbitrate: Arbitrate,
    /// By number, then by UUID, `*` last.
    pub devices: Vec<DevicePlan>,
    /// In the order of the file; names are distinct.
    pub tenants: Vec<TenantPlan>,
    /// What a reader of the plan must know: what could not be checked, what is not in force.
    pub notes: Vec<String>,
}

/// The daemon itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonPlan {
    /// Directory of the sockets; absolute.
    pub run_dir: PathBuf,
    /// Directory of what outlives the daemon; `None`: nothing does.
    pub state_dir: Option<PathBuf>,
    /// Is the time of a tenant that is alone measured too?
    pub exact: bool,
    /// For how long the record keeps its rows.
    pub keep: Keep,
    /// The administrative socket.
    pub admin: Option<PathBuf>,
    /// Most connections of a tenant.
    pub max_connections: u32,
    /// What is logged.
    pub log: String,
}

/// Where the log goes, and the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogPlan {
    /// The log's file; `None`: standard error.
    pub file: Option<PathBuf>,
    /// How its lines are written.
    pub format: LogFormat,
    /// Bytes at which either file is put aside.
    pub max_size: u64,
    /// How many files are kept beside each.
    pub keep: u32,
    /// The audit log's file.
    pub audit: Option<PathBuf>,
}

impl Default for LogPlan {
    fn default() -> Self {
        Self { file: None, format: LogFormat::default(), max_size: 16 << 20, keep: 7, audit: None }
    }
}

/// Where metrics can be had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MetricsPlan {
    /// The address of the HTTP server; `None`: there is none.
    pub listen: Option<SocketAddr>,
    /// Are they shown under HAMi's names too?
    pub hami_names: bool,
}

impl Default for MetricsPlan {
    fn default() -> Self {
        Self { listen: None, hami_names: true }
    }
}

/// How enforcement is proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofPlan {
    /// How often it is looked.
    pub interval: Duration,
    /// Files of devices, as patterns.
    pub devices: Vec<String>,
    /// Programs outside of containers that may use devices as they like.
    pub allow: Vec<PathBuf>,
    /// How many bytes more than its ledger says a process may use.
    pub slack: u64,
    /// Are processes in containers that nobody holds stopped?
    pub stop: bool,
    /// After how long.
    pub grace: Duration,
    /// Or is it only said that they would be?
    pub dry_run: bool,
    /// Is the driver asked too?
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

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePlan {
    /// Its NVML number, if it is known; a MIG instance has that of the device it is a part of.
    pub index: Option<u32>,
    /// Its UUID, if it is known.
    pub uuid: Option<String>,
    /// The UUID of the device that a MIG instance is a part of.
    pub parent: Option<String>,
    /// How much memory it has; `None`: nobody said.
    pub memory: Option<Bytes>,
    /// How much of it may be promised, in thousandths.
    pub overcommit: u32,
    /// What its maker calls it, if the driver says so.
    pub model: Option<String>,
}

impl DevicePlan {
    /// As the file would name it alone: the number, else the UUID, else `*`. A MIG instance shares its number with others.
    #[must_use]
    pub fn name(&self) -> String {
        let number = self.index.filter(|_| self.parent.is_none());
        number.map(|index| index.to_string()).or_else(|| self.uuid.clone()).unwrap_or_else(|| "*".into())
    }
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantPlan {
    /// Its name, which is also that of its directory.
    pub name: String,
    /// Where its members connect.
    pub socket: PathBuf,
    /// Who bears its cost.
    pub bearer: Bearer,
    /// Users who may connect; `None`: all.
    pub uids: Option<Vec<RangeInclusive<u32>>>,
    /// Are its limits kept, or only measured?
    pub mode: Mode,
    /// Are ways around the library refused?
    pub strict: bool,
    /// What its members do if a limit cannot be kept.
    pub on_error: OnError,
    /// What its members do if the daemon is gone.
    pub on_loss: OnLoss,
    /// Its terms, device by device.
    pub terms: Vec<TermsPlan>,
}

/// A tenant's terms on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TermsPlan {
    /// [`DevicePlan::name`].
    pub device: String,
    /// [`DevicePlan::uuid`].
    pub uuid: Option<String>,
    /// Hard limit.
    pub memory: Option<Bytes>,
    /// sm limit: the ceiling.
    pub ceiling: Option<Share>,
    /// sm request: the floor.
    pub floor: Option<Share>,
    /// Its part of what floors leave.
    pub weight: u32,
    /// Who comes first.
    pub class: Class,
    /// Length of a lease in ns; `None`: that of its class.
    pub quantum: Option<u64>,
    /// True if a weight was written, also if it is the default's.
    pub has_weight: bool,
    /// True if a class was written, also if it is the default's.
    pub has_class: bool,
}

impl TermsPlan {
    /// True if the tenant asks something of the device's time.
    #[must_use]
    pub fn asks_for_time(&self) -> bool {
        self.has_weight || self.has_class || arbiter::Terms::from(self) != arbiter::Terms::default()
    }
}

impl From<&TermsPlan> for arbiter::Terms {
    fn from(plan: &TermsPlan) -> Self {
        let TermsPlan { ceiling, floor, weight, class, quantum, .. } = plan;
        Self { class: *class, floor: *floor, ceiling: *ceiling, weight: *weight, quantum: *quantum }
    }
}

impl TenantPlan {
    /// What a member of protocol 1 is told, of memory and of time: the lowest of all its devices; nothing, where nothing is
    /// to be kept.
    #[must_use]
    pub fn told(&self) -> (Option<Bytes>, Option<Share>) {
        if self.mode == Mode::Enforce { (self.memory(), self.ceiling()) } else { (None, None) }
    }

    /// The lowest memory limit on any of its devices.
    #[must_use]
    pub fn memory(&self) -> Option<Bytes> {
        self.terms.iter().filter_map(|terms| terms.memory).min()
    }

    /// The lowest ceiling on any of its devices.
    #[must_use]
    pub fn ceiling(&self) -> Option<Share> {
        self.terms.iter().filter_map(|terms| terms.ceiling).min()
    }

    /// Would a member have to be told more than one number?
    #[must_use]
    pub fn differs_by_device(&self) -> bool {
        if self.mode != Mode::Enforce {
            return false;
        }
        let mut limits = self.terms.iter().map(|terms| (terms.memory, terms.ceiling));
        let first = limits.next();
        limits.any(|other| Some(other) != first)
    }
}
