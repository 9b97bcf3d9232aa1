//! The configuration as written, with places in the text; nothing is looked up, compared or filled in yet.
//!
//! `None` is a key that is missing, or whose value is wrong and already reported.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::Serialize;
use vgpu_core::limits::Mode;
use vgpu_core::time::arbiter::Class;
pub use vgpu_core::time::gate::loss::OnLoss;
use vgpu_core::units::bytes::{Bytes, Percent, Size};
use vgpu_core::units::share::Share;

use super::action::RawAction;
use super::groups::{QuotaEffect, QuotaPeriod};
use super::problem::{At, TextRange};
use super::time::RawTime;
use super::usage::RawIdle;

/// Most labels of a section, and of a tenant including inherited ones.
pub const MAX_LABELS: usize = 16;

/// All values of a configuration file as written, each with its place in the file.
#[derive(Debug, Default)]
pub struct RawFile {
    /// Values of section `[daemon]`.
    pub daemon: RawDaemon,
    /// Values of section `[log]`.
    pub log: RawLog,
    /// Values of section `[metrics]`.
    pub metrics: RawMetrics,
    /// Values of section `[proof]`.
    pub proof: RawProof,
    /// Values of section `[time]`, except `arbitrate`.
    pub time: RawTime,
    /// Values of section `[record]`.
    pub record: RawRecord,
    /// Key `arbitrate` of `[time]`: whether all devices are shared by leases.
    pub arbitrate: Option<At<bool>>,
    /// Section `[defaults]`: settings of tenants that neither they nor their template give.
    pub defaults: RawPolicy,
    /// Sections `[template.NAME]`: settings that tenants can take over by name.
    pub templates: Vec<RawTemplate>,
    /// Sections `[[device]]`, in the order of the file.
    pub devices: Vec<RawDevice>,
    /// Sections `[[tenant]]`, in the order of the file.
    pub tenants: Vec<RawTenant>,
    /// Sections `[[group]]`, in the order of the file.
    pub groups: Vec<RawGroup>,
    /// Sections `[[window]]`, in the order of the file.
    pub windows: Vec<RawWindow>,
    /// Sections `[[booking]]`, in the order of the file.
    pub bookings: Vec<RawBooking>,
    /// Sections `[[on_event]]`, in the order of the file.
    pub actions: Vec<RawAction>,
    /// True if `[time]` had an error, already reported; its values are then not compared.
    pub time_is_wrong: bool,
    /// True if `[[device]]` had an error; a missing size is then not reported.
    pub devices_are_wrong: bool,
}

/// Values of section `[daemon]`; `None`: the file does not give the key.
#[derive(Debug, Default)]
pub struct RawDaemon {
    /// Directory of the tenants' sockets.
    pub run_dir: Option<At<PathBuf>>,
    /// Directory of state that outlives the daemon.
    pub state_dir: Option<At<Option<PathBuf>>>,
    /// The administrative socket; the value `None` is `none`.
    pub admin_socket: Option<At<Option<PathBuf>>>,
    /// Most connections that one tenant may have open.
    pub max_connections: Option<At<u32>>,
    /// Lowest level of lines that the log contains.
    pub log: Option<At<&'static str>>,
}

/// Values of section `[log]`; `None`: the file does not give the key.
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
    /// One JSON object a line.
    Json,
}

/// Values of section `[metrics]`; `None`: the file does not give the key.
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
    /// Time to keep rows of one hour each.
    pub keep: Option<At<u64>>,
    /// Time to keep rows of one minute each.
    pub keep_fine: Option<At<u64>>,
    /// True if the device time of a tenant that is alone on its device is measured too.
    pub exact: Option<At<bool>>,
    /// Time after which use counts half for the shares of groups.
    pub half_life: Option<At<u64>>,
}

/// Values of section `[proof]`; `None`: the file does not give the key.
#[derive(Debug, Default)]
pub struct RawProof {
    /// True if device use is checked at all.
    pub enabled: Option<At<bool>>,
    /// Time between two checks, in ns.
    pub interval: Option<At<u64>>,
    /// Patterns of the device files whose users are checked.
    pub devices: Option<At<Vec<At<PathBuf>>>>,
    /// Programs that may use devices freely.
    pub allow: Option<At<Vec<At<PathBuf>>>>,
    /// Memory that a process may use, by the driver's figures, beyond its ledger (the library's charges).
    pub slack: Option<At<Bytes>>,
    /// True to stop processes in containers that belong to no tenant.
    pub action: Option<At<bool>>,
    /// Time that a process without a tenant may run before it is stopped, in ns.
    pub grace: Option<At<u64>>,
    /// True to only log which processes would be stopped.
    pub dry_run: Option<At<bool>>,
}

/// Settings of a tenant: the keys that tenants, templates and the defaults share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawPolicy {
    /// Part of a device, in thousandths: gives a memory limit and a floor (guaranteed share of time).
    pub gpu: Option<At<u32>>,
    /// Settings that may differ from device to device.
    pub terms: RawTerms,
    /// User IDs of processes that may connect as members.
    pub uids: Option<At<Vec<RangeInclusive<u32>>>>,
    /// Tells if the tenant's limits are enforced, or its use is only measured.
    pub mode: Option<At<Mode>>,
    /// True if bypasses of the library are refused.
    pub strict: Option<At<bool>>,
    /// Behaviour of a member if a limit cannot be kept.
    pub on_error: Option<At<OnError>>,
    /// Behaviour of a member if the daemon is gone.
    pub on_loss: Option<At<OnLoss>>,
    /// Group that reports charge the tenant's cost to.
    pub group: Option<At<String>>,
    /// Further names and values by which reports group tenants.
    pub labels: Option<BTreeMap<String, String>>,
    /// Keys about idle tenants.
    pub idle: RawIdle,
}

/// Settings that may differ from device to device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawTerms {
    /// Memory limit: bytes, or a part of the device.
    pub memory_limit: Option<At<Amount>>,
    /// Ceiling: the most device time that the tenant may use; the value `None` is `unlimited`.
    pub sm_limit: Option<At<Option<Share>>>,
    /// Floor: the share of device time that the tenant is guaranteed; the value `None` is `none`.
    pub sm_request: Option<At<Option<Share>>>,
    /// Weight by which tenants share the time that the guaranteed shares (floors) leave.
    pub weight: Option<At<u32>>,
    /// Priority class, which decides which waiting tenant gets the device first.
    pub class: Option<At<Class>>,
    /// Length of the tenant's leases (periods in which it may launch), in ns.
    pub quantum: Option<At<u64>>,
}

/// One section `[template.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTemplate {
    /// Name of the template, by which tenants refer to it.
    pub name: String,
    /// Settings that tenants with this template take over.
    pub policy: RawPolicy,
}

/// One section `[[device]]`.
#[derive(Debug)]
pub struct RawDevice {
    /// Device that the section is about, as written.
    pub id: Option<At<DeviceId>>,
    /// Memory size of the device, if the file gives it.
    pub memory: Option<At<Bytes>>,
    /// Part of the memory that limits may add up to, in thousandths.
    pub overcommit: Option<At<u32>>,
}

/// One section `[[tenant]]`.
#[derive(Debug)]
pub struct RawTenant {
    /// Place of the section in the file, named in error messages.
    pub place: TextRange,
    /// Name of the tenant.
    pub name: Option<At<String>>,
    /// Template for the keys that the tenant does not set.
    pub template: Option<At<String>>,
    /// Devices that the tenant may use; `None` is all.
    pub devices: Option<Vec<At<DeviceId>>>,
    /// Number of equal slots that the tenant is split into.
    pub replicas: Option<At<u32>>,
    /// Gang whose tenants get their leases together.
    pub gang: Option<At<String>>,
    /// Local time at which the tenant's work must be done.
    pub deadline: Option<At<DateTime>>,
    /// Device time that the work needs, in ns.
    pub gpu_hours_needed: Option<At<u64>>,
    /// Settings that the tenant's own section gives.
    pub policy: RawPolicy,
    /// Sections `[[tenant.device]]`: settings of the tenant that differ on one device.
    pub overrides: Vec<RawOverride>,
}

/// One section `[[tenant.device]]`: settings of a tenant that differ on one device.
#[derive(Debug)]
pub struct RawOverride {
    /// Device that the section is about, as written.
    pub id: Option<At<DeviceId>>,
    /// Settings of the tenant on this device.
    pub terms: RawTerms,
}

/// Days of the week: bit 0 is Monday.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeekDays(pub u8);

impl WeekDays {
    /// All seven days.
    pub const ALL: Self = Self(0x7f);

    /// True if the day, counted from Monday as 0, is one of them.
    #[must_use]
    pub const fn has(self, day: u8) -> bool {
        self.0 >> day & 1 == 1
    }
}

/// One section `[[window]]`: terms that hold at certain times of the week.
#[derive(Debug)]
pub struct RawWindow {
    /// Place of the section in the file, named in error messages.
    pub place: TextRange,
    /// Name of the window.
    pub name: Option<At<String>>,
    /// Days on which it begins; `None` is every day.
    pub days: Option<At<Vec<At<WeekDays>>>>,
    /// Time of day at which it begins, in minutes.
    pub from: Option<At<u16>>,
    /// Time of day at which it ends, in minutes; not after `from`: on the next day.
    pub to: Option<At<u16>>,
    /// Time zone of the days and times.
    pub zone: Option<At<TimeZone>>,
    /// Tenants that it is about; `None` for all.
    pub tenants: Option<At<Vec<At<String>>>>,
    /// Groups whose tenants it is about; `None` for all.
    pub groups: Option<At<Vec<At<String>>>>,
    /// Devices that it is about; `None` for all.
    pub devices: Option<At<Vec<At<DeviceId>>>>,
    /// True if its tenants may not launch.
    pub paused: Option<At<bool>>,
    /// Terms that hold inside.
    pub terms: RawTerms,
}

/// One section `[[group]]`: a group of tenants.
#[derive(Debug)]
pub struct RawGroup {
    /// Place of the section in the file, named in error messages.
    pub place: TextRange,
    /// Name of the group, with the names of the groups above it.
    pub name: Option<At<String>>,
    /// Weight among the groups of the same parent.
    pub weight: Option<At<u32>>,
    /// Largest sum of its tenants' memory limits on each device.
    pub memory_limit: Option<At<Amount>>,
    /// Largest sum of its tenants' ceilings on each device; the value `None` is `unlimited`.
    pub sm_limit: Option<At<Option<Share>>>,
    /// Sections `[[group.quota]]` of the group.
    pub quotas: Vec<RawQuota>,
}

/// One section `[[group.quota]]`: a limit on what a group may use within a period.
#[derive(Debug)]
pub struct RawQuota {
    /// Place of the section in the file, named in error messages.
    pub place: TextRange,
    /// Period after which the use counts from 0 again.
    pub period: Option<At<QuotaPeriod>>,
    /// Time zone in which the period begins.
    pub zone: Option<At<TimeZone>>,
    /// Most device time, in thousandths of an hour.
    pub gpu_hours: Option<At<u32>>,
    /// Most memory over time, in thousandths of a GiB-hour.
    pub gib_hours: Option<At<u32>>,
    /// Restriction when it is used up.
    pub effect: Option<At<QuotaEffect>>,
}

/// One section `[[booking]]`: a part of devices that a tenant gets for some time.
#[derive(Debug)]
pub struct RawBooking {
    /// Place of the section in the file, named in error messages.
    pub place: TextRange,
    /// Name of the booking.
    pub name: Option<At<String>>,
    /// Tenant that it is for.
    pub tenant: Option<At<String>>,
    /// Devices that it is about; `None` for all of the tenant's.
    pub devices: Option<At<Vec<At<DeviceId>>>>,
    /// Local time at which it begins.
    pub from: Option<At<DateTime>>,
    /// Its length in seconds.
    pub length: Option<At<u64>>,
    /// Time zone of `from`.
    pub zone: Option<At<TimeZone>>,
    /// Floor that the tenant gets.
    pub sm_request: Option<At<Option<Share>>>,
    /// Memory that the tenant gets.
    pub memory_limit: Option<At<Amount>>,
}

/// A device's name in the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceId {
    /// Number by which NVML lists the device.
    Index(u32),
    /// UUID of the device, `GPU-...` or `MIG-...`.
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
    /// One slot of a device that is split into this many equal slots.
    Slot(u32),
}

impl Amount {
    /// Returns the bytes on a device. The inner `None` is no limit; the outer `None` means that the device's size is
    /// needed and unknown.
    #[must_use]
    pub fn bytes_on(self, total: Option<Bytes>) -> Option<Option<Bytes>> {
        match self {
            Self::Size(Size::Bytes(bytes)) => Some(Some(bytes)),
            Self::Size(Size::Unlimited) => Some(None),
            Self::Size(Size::Percent(percent)) => total.map(|total| Some(percent.part_of(total))),
            Self::Slot(slots) => total.map(|total| Some(Bytes(total.get() / u64::from(slots.max(1))))),
        }
    }

    /// An amount in thousandths of the device.
    #[must_use]
    pub fn of_thousandths(thousandths: u32) -> Self {
        let percent = Percent::from_millionths(thousandths.saturating_mul(1000)).unwrap_or(Percent::WHOLE);
        Self::Size(Size::Percent(percent))
    }
}

/// Behaviour of a member if a limit cannot be kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The member's process fails its CUDA or NVML initialisation.
    #[default]
    Closed,
    /// The member's process warns, and runs on without limits.
    Open,
}
