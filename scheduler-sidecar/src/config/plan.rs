//! What a configuration means: devices with their sizes, tenants with their sockets and terms on each device.
//!
//! Not here: how it was written ([`super::raw`]), how it is shown ([`super::show`]).

use std::ops::RangeInclusive;
use std::path::PathBuf;

use vgpu_core::arbiter::{self, Class};
use vgpu_core::bytes::Bytes;
use vgpu_core::limits::Mode;
use vgpu_core::share::Share;

use super::raw::{Arbitrate, OnError, OnLoss};
use super::time::Time;

/// A checked configuration: everything in it can be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The daemon itself.
    pub daemon: DaemonPlan,
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
    /// Directory of what outlives the daemon; nothing is kept there yet.
    pub state_dir: PathBuf,
    /// The administrative socket.
    pub admin: Option<PathBuf>,
    /// Most connections of a tenant.
    pub max_connections: u32,
    /// What is logged.
    pub log: String,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePlan {
    /// Its NVML number, if it is known.
    pub index: Option<u32>,
    /// Its UUID, if it is known.
    pub uuid: Option<String>,
    /// How much memory it has; `None`: nobody said.
    pub memory: Option<Bytes>,
    /// How much of it may be promised, in thousandths.
    pub overcommit: u32,
}

impl DevicePlan {
    /// As the file would name it: the number, else the UUID, else `*`.
    #[must_use]
    pub fn name(&self) -> String {
        self.index.map(|index| index.to_string()).or_else(|| self.uuid.clone()).unwrap_or_else(|| "*".into())
    }
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantPlan {
    /// Its name, which is also that of its directory.
    pub name: String,
    /// Where its members connect.
    pub socket: PathBuf,
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
