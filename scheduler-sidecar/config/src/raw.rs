//! The configuration as written, with places in the text; nothing is looked up, compared or filled in yet.
//!
//! `None` is a key that is missing, or whose value is wrong and already reported.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::Serialize;
use vgpu_core::arbiter::Class;
use vgpu_core::bytes::{Bytes, Percent, Size};
pub use vgpu_core::gate::loss::OnLoss;
use vgpu_core::limits::Mode;
use vgpu_core::share::Share;

use super::problem::{At, Place};
use super::time::RawTime;

/// Most labels of a section, and of a tenant including inherited ones.
pub const MAX_LABELS: usize = 16;

/// The whole file.
#[derive(Debug, Default)]
pub struct RawFile {
    /// `[daemon]`.
    pub daemon: RawDaemon,
    /// `[log]`.
    pub log: RawLog,
    /// `[metrics]`.
    pub metrics: RawMetrics,
    /// `[proof]`.
    pub proof: RawProof,
    /// `[time]`.
    pub time: RawTime,
    /// `[record]`.
    pub record: RawRecord,
    /// `arbitrate` in `[time]`.
    pub arbitrate: Option<At<Arbitrate>>,
    /// `[defaults]`.
    pub defaults: RawPolicy,
    /// `[template.NAME]`.
    pub templates: Vec<RawTemplate>,
    /// `[[device]]`, in the order of the file.
    pub devices: Vec<RawDevice>,
    /// `[[tenant]]`, in the order of the file.
    pub tenants: Vec<RawTenant>,
    /// True if `[time]` had an error, already reported; its values are then not compared.
    pub time_is_wrong: bool,
    /// True if `[[device]]` had an error; a missing size is then not reported.
    pub devices_are_wrong: bool,
}

/// `[daemon]`.
#[derive(Debug, Default)]
pub struct RawDaemon {
    /// Directory of the sockets.
    pub run_dir: Option<At<PathBuf>>,
    /// Directory of state that outlives the daemon.
    pub state_dir: Option<At<Option<PathBuf>>>,
    /// The administrative socket; the value `None` is `none`.
    pub admin_socket: Option<At<Option<PathBuf>>>,
    /// Most connections of one tenant.
    pub max_connections: Option<At<u32>>,
    /// Log level.
    pub log: Option<At<&'static str>>,
}

/// `[log]`.
#[derive(Debug, Default)]
pub struct RawLog {
    /// The log file; the value `None` is `none` and means standard error.
    pub file: Option<At<Option<PathBuf>>>,
    /// Format of a log line.
    pub format: Option<At<LogFormat>>,
    /// File size in bytes at which a log is rotated.
    pub max_size: Option<At<Bytes>>,
    /// Rotated files kept for each log.
    pub keep: Option<At<u32>>,
    /// The audit log's file; the value `None` is `none`.
    pub audit: Option<At<Option<PathBuf>>>,
}

/// Format of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

/// `[metrics]`.
#[derive(Debug, Default)]
pub struct RawMetrics {
    /// Address of the HTTP server; the value `None` is `none`.
    pub listen: Option<At<Option<SocketAddr>>>,
    /// True if metrics are also exported under HAMi's names.
    pub hami_names: Option<At<bool>>,
}

/// `[record]`: how long rows are kept, in seconds.
#[derive(Debug, Default)]
pub struct RawRecord {
    /// Rows of one hour each.
    pub keep: Option<At<u64>>,
    /// Rows of one minute each.
    pub keep_fine: Option<At<u64>>,
    /// True if the device time of a tenant that is alone on its device is measured too.
    pub exact: Option<At<bool>>,
}

/// `[proof]`.
#[derive(Debug, Default)]
pub struct RawProof {
    /// True if device use is checked at all.
    pub enabled: Option<At<bool>>,
    /// Time between two checks, in ns.
    pub interval: Option<At<u64>>,
    /// Patterns of device files.
    pub devices: Option<At<Vec<At<PathBuf>>>>,
    /// Programs that may use devices freely.
    pub allow: Option<At<Vec<At<PathBuf>>>>,
    /// Memory by which a process may exceed its ledger.
    pub slack: Option<At<Bytes>>,
    /// True to stop processes in containers that belong to no tenant.
    pub action: Option<At<bool>>,
    /// How long such a process may run before it is stopped, in ns.
    pub grace: Option<At<u64>>,
    /// True to only log which processes would be stopped.
    pub dry_run: Option<At<bool>>,
}

/// Settings of a tenant: the keys that tenants, templates and the defaults share.
#[derive(Debug, Clone, Default)]
pub struct RawPolicy {
    /// Part of a device, in thousandths: gives a memory limit and a floor.
    pub gpu: Option<At<u32>>,
    /// Settings that may differ from device to device.
    pub terms: RawTerms,
    /// User ids that may connect.
    pub uids: Option<At<Vec<RangeInclusive<u32>>>>,
    /// Limits are enforced, or use is only measured.
    pub mode: Option<At<Mode>>,
    /// True if bypasses of the library are refused.
    pub strict: Option<At<bool>>,
    /// Behaviour of a member if a limit cannot be kept.
    pub on_error: Option<At<OnError>>,
    /// Behaviour of a member if the daemon is gone.
    pub on_loss: Option<At<OnLoss>>,
    /// Group that bears the cost.
    pub group: Option<At<String>>,
    /// Further names and values by which reports group tenants.
    pub labels: Option<BTreeMap<String, String>>,
}

/// Settings that may differ from device to device.
#[derive(Debug, Clone, Default)]
pub struct RawTerms {
    /// Memory limit.
    pub memory_limit: Option<At<Amount>>,
    /// Ceiling; the value `None` is `unlimited`.
    pub sm_limit: Option<At<Option<Share>>>,
    /// Floor; the value `None` is `none`.
    pub sm_request: Option<At<Option<Share>>>,
    /// Weight for sharing the time that floors leave.
    pub weight: Option<At<u32>>,
    /// Priority class.
    pub class: Option<At<Class>>,
    /// Lease length in ns.
    pub quantum: Option<At<u64>>,
}

/// `[template.NAME]`.
#[derive(Debug)]
pub struct RawTemplate {
    /// Its name.
    pub name: String,
    /// Settings that it gives.
    pub policy: RawPolicy,
}

/// `[[device]]`.
#[derive(Debug)]
pub struct RawDevice {
    /// Which device.
    pub id: Option<At<DeviceId>>,
    /// Memory size.
    pub memory: Option<At<Bytes>>,
    /// Part of the memory that limits may add up to, in thousandths.
    pub overcommit: Option<At<u32>>,
}

/// `[[tenant]]`.
#[derive(Debug)]
pub struct RawTenant {
    /// Place of the entry.
    pub place: Place,
    /// Its name.
    pub name: Option<At<String>>,
    /// Template for the keys that the tenant does not set.
    pub template: Option<At<String>>,
    /// Devices that it may use; `None` is all.
    pub devices: Option<Vec<At<DeviceId>>>,
    /// Number of equal slots that the tenant is split into.
    pub replicas: Option<At<u32>>,
    /// Its settings.
    pub policy: RawPolicy,
    /// `[[tenant.device]]`.
    pub overrides: Vec<RawOverride>,
}

/// `[[tenant.device]]`.
#[derive(Debug)]
pub struct RawOverride {
    /// Which device.
    pub id: Option<At<DeviceId>>,
    /// Settings for that device.
    pub terms: RawTerms,
}

/// A device's name in the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceId {
    /// By its NVML number.
    Index(u32),
    /// By its UUID, `GPU-...` or `MIG-...`.
    Uuid(String),
    /// `*`: every device without a name of its own.
    Any,
}

impl std::fmt::Display for DeviceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Index(index) => index.fmt(f),
            Self::Uuid(uuid) => f.write_str(uuid),
            Self::Any => f.write_str("*"),
        }
    }
}

/// An amount of memory on a device whose size may still be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// A size or percentage as written.
    Size(Size),
    /// One of this many equal slots.
    Slot(u32),
}

impl Amount {
    /// Returns the bytes on a device. The inner `None` is no limit; the outer `None` means that the device's size is
    /// needed and unknown.
    #[must_use]
    pub fn on(self, total: Option<Bytes>) -> Option<Option<Bytes>> {
        match self {
            Self::Size(Size::Bytes(bytes)) => Some(Some(bytes)),
            Self::Size(Size::Unlimited) => Some(None),
            Self::Size(Size::Percent(percent)) => total.map(|total| Some(percent.of(total))),
            Self::Slot(slots) => total.map(|total| Some(Bytes(total.get() / u64::from(slots.max(1))))),
        }
    }

    /// An amount in thousandths of the device.
    #[must_use]
    pub fn thousandths(thousandths: u32) -> Self {
        let percent = Percent::from_millionths(thousandths.saturating_mul(1000)).unwrap_or(Percent::ALL);
        Self::Size(Size::Percent(percent))
    }
}

/// Behaviour of a member if a limit cannot be kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// Fails its initialisation.
    #[default]
    Closed,
    /// Warns and continues.
    Open,
}

/// Which devices are scheduled by leases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arbitrate {
    /// Devices on which some tenant asks for device time.
    #[default]
    Auto,
    /// All devices.
    Yes,
    /// Devices on which some tenant has a ceiling.
    No,
}
