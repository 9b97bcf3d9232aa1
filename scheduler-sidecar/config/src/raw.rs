//! What was written, with its places: nothing is looked up, compared or filled in yet.
//!
//! `None` is a key that was not written, or one whose value is wrong, which has been told already.

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

/// Most labels of a section, and of a tenant with those that it takes over.
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
    /// Has something in `[time]` been told as wrong? Then its values are not compared.
    pub time_is_wrong: bool,
    /// The same for `[[device]]`: then no size is missed.
    pub devices_are_wrong: bool,
}

/// `[daemon]`.
#[derive(Debug, Default)]
pub struct RawDaemon {
    /// Directory of the sockets.
    pub run_dir: Option<At<PathBuf>>,
    /// Directory of what outlives the daemon.
    pub state_dir: Option<At<Option<PathBuf>>>,
    /// The administrative socket, or `none`.
    pub admin_socket: Option<At<Option<PathBuf>>>,
    /// Most connections of a tenant.
    pub max_connections: Option<At<u32>>,
    /// What is logged.
    pub log: Option<At<&'static str>>,
}

/// `[log]`.
#[derive(Debug, Default)]
pub struct RawLog {
    /// Where the log goes instead of standard error; the value `None` is `none`.
    pub file: Option<At<Option<PathBuf>>>,
    /// How a line is written.
    pub format: Option<At<LogFormat>>,
    /// Bytes at which a file is put aside.
    pub max_size: Option<At<Bytes>>,
    /// How many files are kept beside it.
    pub keep: Option<At<u32>>,
    /// The audit log; the value `None` is `none`.
    pub audit: Option<At<Option<PathBuf>>>,
}

/// How a line of the log is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

/// `[metrics]`.
#[derive(Debug, Default)]
pub struct RawMetrics {
    /// Where they can be had by HTTP; the value `None` is `none`.
    pub listen: Option<At<Option<SocketAddr>>>,
    /// Are they shown under HAMi's names too?
    pub hami_names: Option<At<bool>>,
}

/// `[record]`: for how long, in seconds.
#[derive(Debug, Default)]
pub struct RawRecord {
    /// Hour by hour.
    pub keep: Option<At<u64>>,
    /// Minute by minute.
    pub keep_fine: Option<At<u64>>,
    /// Is the time of a tenant that is alone measured too?
    pub exact: Option<At<bool>>,
}

/// `[proof]`.
#[derive(Debug, Default)]
pub struct RawProof {
    /// Is it looked at all?
    pub enabled: Option<At<bool>>,
    /// How often, in ns.
    pub interval: Option<At<u64>>,
    /// Files of devices, as patterns.
    pub devices: Option<At<Vec<At<PathBuf>>>>,
    /// Programs that may use devices as they like.
    pub allow: Option<At<Vec<At<PathBuf>>>>,
    /// How much more than its ledger says a process may use.
    pub slack: Option<At<Bytes>>,
    /// What is done about processes in containers that nobody holds: is it to stop them?
    pub action: Option<At<bool>>,
    /// After how long, in ns.
    pub grace: Option<At<u64>>,
    /// Or only said.
    pub dry_run: Option<At<bool>>,
}

/// What a tenant may have: the keys that tenants, templates and the defaults share.
#[derive(Debug, Clone, Default)]
pub struct RawPolicy {
    /// Part of a device, in thousandths: memory and a floor of its time.
    pub gpu: Option<At<u32>>,
    /// What may be different from device to device.
    pub terms: RawTerms,
    /// Users who may connect.
    pub uids: Option<At<Vec<RangeInclusive<u32>>>>,
    /// Whether limits are kept.
    pub mode: Option<At<Mode>>,
    /// Whether ways around the library are refused.
    pub strict: Option<At<bool>>,
    /// What a member does if a limit cannot be kept.
    pub on_error: Option<At<OnError>>,
    /// What a member does if the daemon is gone.
    pub on_loss: Option<At<OnLoss>>,
    /// Whose cost it is.
    pub group: Option<At<String>>,
    /// What else reports are put together by.
    pub labels: Option<BTreeMap<String, String>>,
}

/// What may be different from device to device.
#[derive(Debug, Clone, Default)]
pub struct RawTerms {
    /// Hard limit.
    pub memory_limit: Option<At<Amount>>,
    /// Ceiling; the value `None` is `unlimited`.
    pub sm_limit: Option<At<Option<Share>>>,
    /// Floor; the value `None` is `none`.
    pub sm_request: Option<At<Option<Share>>>,
    /// Part of what floors leave.
    pub weight: Option<At<u32>>,
    /// Who comes first.
    pub class: Option<At<Class>>,
    /// Length of a lease in ns.
    pub quantum: Option<At<u64>>,
}

/// `[template.NAME]`.
#[derive(Debug)]
pub struct RawTemplate {
    /// Its name.
    pub name: String,
    /// What it gives.
    pub policy: RawPolicy,
}

/// `[[device]]`.
#[derive(Debug)]
pub struct RawDevice {
    /// Which one.
    pub id: Option<At<DeviceId>>,
    /// How much memory it has.
    pub memory: Option<At<Bytes>>,
    /// How much of it may be promised, in thousandths.
    pub overcommit: Option<At<u32>>,
}

/// `[[tenant]]`.
#[derive(Debug)]
pub struct RawTenant {
    /// The entry.
    pub place: Place,
    /// Its name.
    pub name: Option<At<String>>,
    /// Where it takes what it does not say.
    pub template: Option<At<String>>,
    /// The devices it may use; not written: all.
    pub devices: Option<Vec<At<DeviceId>>>,
    /// So many equal slots.
    pub replicas: Option<At<u32>>,
    /// What it may have.
    pub policy: RawPolicy,
    /// `[[tenant.device]]`.
    pub overrides: Vec<RawOverride>,
}

/// `[[tenant.device]]`.
#[derive(Debug)]
pub struct RawOverride {
    /// Which device.
    pub id: Option<At<DeviceId>>,
    /// What is different there.
    pub terms: RawTerms,
}

/// How a device is named.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceId {
    /// By its NVML number.
    Index(u32),
    /// By its UUID, `GPU-...` or `MIG-...`.
    Uuid(String),
    /// `*`: every one that is not named otherwise.
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

/// An amount of memory on a device whose size may not be known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// As written.
    Size(Size),
    /// One of so many equal slots.
    Slot(u32),
}

impl Amount {
    /// The bytes on a device; the inner `None` is no limit, the outer one that the device's size would have to be known.
    #[must_use]
    pub fn on(self, total: Option<Bytes>) -> Option<Option<Bytes>> {
        match self {
            Self::Size(Size::Bytes(bytes)) => Some(Some(bytes)),
            Self::Size(Size::Unlimited) => Some(None),
            Self::Size(Size::Percent(percent)) => total.map(|total| Some(percent.of(total))),
            Self::Slot(slots) => total.map(|total| Some(Bytes(total.get() / u64::from(slots.max(1))))),
        }
    }

    /// Thousandths of the device.
    #[must_use]
    pub fn thousandths(thousandths: u32) -> Self {
        let percent = Percent::from_millionths(thousandths.saturating_mul(1000)).unwrap_or(Percent::ALL);
        Self::Size(Size::Percent(percent))
    }
}

/// What a member does if a limit cannot be kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// It fails its initialisation.
    #[default]
    Closed,
    /// It warns.
    Open,
}

/// Which devices are given out in leases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arbitrate {
    /// Those of whose time some tenant asks something.
    #[default]
    Auto,
    /// All.
    Yes,
    /// Those on which a tenant has a ceiling.
    No,
}
