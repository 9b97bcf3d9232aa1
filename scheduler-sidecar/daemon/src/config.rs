//! The daemon's settings: tenants with their names, limits and socket paths.
//!
//! They come from the command line (`written`) or from the plan of a configuration file. No file is touched here.

mod written;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use vgpu_core::limits::Mode;
use vgpu_core::protocol::wire::{NOT_ITS_DEVICE, NOT_KNOWN_YET};
use vgpu_core::time::arbiter::Terms;
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;
use vgpu_core::units::uuid;

use vgpu_accounting::record::RecordSettings;
use vgpu_config::bearer::CostBearer;
use vgpu_config::plan::{ConfigPlan, LogPlan, MetricsPlan, ProofPlan, TenantPlan, TermsPlan};
pub use vgpu_config::raw::{OnError, OnLoss};
use vgpu_config::time::TimeConfig;
use vgpu_config::usage::UsagePlan;
pub use written::ConfigError;

/// Settings of the daemon.
#[derive(Debug)]
pub struct DaemonConfig {
    /// Names and sockets are distinct. May be empty: tenants can be added when the file is read again.
    pub tenants: Vec<TenantConfig>,
    /// Path of the administrative socket; `None`: there is none.
    pub admin: Option<PathBuf>,
    /// Directory of the sockets without an explicit path; `None`: all have one.
    pub run_dir: Option<PathBuf>,
    /// Most connections that one tenant may have open.
    pub max_connections: usize,
    /// How usage is recorded, and where.
    pub record: RecordSettings,
    /// Settings of GPU time sharing.
    pub time: TimeConfig,
    /// Which devices are shared by leases.
    pub arbitrate: bool,
    /// UUIDs of the devices, as far as they are known.
    pub devices: Vec<String>,
    /// Settings of the log and the audit log.
    pub log: LogPlan,
    /// Settings of the metrics server.
    pub metrics: MetricsPlan,
    /// Settings of the enforcement check; `None`: it is off.
    pub proof: Option<ProofPlan>,
}

/// A tenant and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantConfig {
    /// Name of the tenant, valid as the name of a directory.
    pub name: String,
    /// Absolute path of the socket where the tenant's members connect.
    pub socket: PathBuf,
    /// Terms on each device that the tenant may use. Empty: it may use none.
    pub on: Vec<DeviceTermsConfig>,
    /// Tells if the tenant's limits are enforced, or its use is only measured.
    pub mode: Mode,
    /// True if bypasses of the library are refused.
    pub strict: bool,
    /// Action of the tenant's members if a limit cannot be enforced.
    pub on_error: OnError,
    /// Action of the tenant's members if the daemon is gone.
    pub on_loss: OnLoss,
    /// Group and labels that the tenant's costs are charged to.
    pub bearer: CostBearer,
    /// Users that may connect; `None`: all.
    pub uids: Option<Vec<RangeInclusive<u32>>>,
    /// Gang whose tenants get their leases on all devices together; `None`: it is in no gang.
    pub gang: Option<String>,
    /// Policies that follow its use.
    pub usage: UsagePlan,
}

/// Limits of a tenant on one device, and its share and order in device time (terms).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTermsConfig {
    /// Device that these terms are for.
    pub device: DeviceName,
    /// Hard memory limit in bytes; `None`: unlimited.
    pub memory: Option<Bytes>,
    /// Floor, ceiling, weight, class and lease length.
    pub terms: Terms,
}

/// A device, as far as it is identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceName {
    /// Every device that the tenant's list does not name.
    Any,
    /// The device with this UUID, and its number if the driver reported it.
    Uuid(String, Option<u32>),
    /// The device with this number, whose UUID is not known.
    Number(u32),
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Uuid(uuid, _) => f.write_str(uuid),
            Self::Number(number) => number.fmt(f),
        }
    }
}

impl DeviceName {
    /// True if `name` is its UUID, its number, or `*` for [`Self::Any`].
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        match self {
            Self::Any => name == "*",
            Self::Uuid(uuid, number) => {
                uuid::is_same_device(uuid, name) || number.is_some_and(|number| number.to_string() == name)
            }
            Self::Number(number) => number.to_string() == name,
        }
    }
}

/// The name in the configuration file ([`vgpu_config::plan::DevicePlan::name`]).
pub(crate) fn device_name(device: &DeviceName) -> String {
    match device {
        DeviceName::Uuid(_, Some(number)) | DeviceName::Number(number) => number.to_string(),
        DeviceName::Uuid(uuid, None) => uuid.clone(),
        DeviceName::Any => "*".into(),
    }
}

impl From<&TermsPlan> for DeviceTermsConfig {
    fn from(plan: &TermsPlan) -> Self {
        let device = match (&plan.uuid, plan.device.parse()) {
            (Some(uuid), number) => DeviceName::Uuid(uuid.clone(), number.ok()),
            (None, Ok(number)) => DeviceName::Number(number),
            (None, Err(_)) => DeviceName::Any,
        };
        Self { device, memory: plan.memory, terms: plan.into() }
    }
}

/// The tenant as a configuration file would describe it.
impl From<&TenantConfig> for TenantPlan {
    fn from(tenant: &TenantConfig) -> Self {
        Self {
            name: tenant.name.clone(),
            socket: tenant.socket.clone(),
            replicas: None,
            gang: tenant.gang.clone(),
            bearer: tenant.bearer.clone(),
            uids: tenant.uids.clone(),
            mode: tenant.mode,
            strict: tenant.strict,
            on_error: tenant.on_error,
            on_loss: tenant.on_loss,
            usage: tenant.usage.clone(),
            terms: tenant.on.iter().map(TermsPlan::from).collect(),
        }
    }
}

impl From<&DeviceTermsConfig> for TermsPlan {
    fn from(on: &DeviceTermsConfig) -> Self {
        let uuid = match &on.device {
            DeviceName::Uuid(uuid, _) => Some(uuid.clone()),
            DeviceName::Number(_) | DeviceName::Any => None,
        };
        Self {
            device: device_name(&on.device),
            uuid,
            memory: on.memory,
            ceiling: on.terms.ceiling,
            floor: on.terms.floor,
            weight: on.terms.weight,
            class: on.terms.class,
            quantum: on.terms.quantum,
        }
    }
}

impl From<&TenantPlan> for TenantConfig {
    fn from(plan: &TenantPlan) -> Self {
        Self {
            name: plan.name.clone(),
            socket: plan.socket.clone(),
            on: plan.terms.iter().map(DeviceTermsConfig::from).collect(),
            mode: plan.mode,
            strict: plan.strict,
            on_error: plan.on_error,
            on_loss: plan.on_loss,
            bearer: plan.bearer.clone(),
            uids: plan.uids.clone(),
            gang: plan.gang.clone(),
            usage: plan.usage.clone(),
        }
    }
}

impl TenantConfig {
    /// A tenant with the same limits on every device.
    #[must_use]
    pub fn on_all_devices(name: &str, socket: PathBuf, memory: Option<Bytes>, ceiling: Option<Share>) -> Self {
        let terms = Terms { ceiling, ..Terms::default() };
        let on = DeviceTermsConfig { device: DeviceName::Any, memory, terms };
        let (on_error, on_loss) = (OnError::default(), OnLoss::default());
        let (mode, strict) = (Mode::Enforce, false);
        let (bearer, usage) = (CostBearer::default(), UsagePlan::default());
        let (name, on, uids, gang) = (name.to_owned(), vec![on], None, None);
        Self { name, socket, on, mode, strict, on_error, on_loss, bearer, uids, gang, usage }
    }

    /// Returns the tenant's terms on the device with this UUID; `None`: it may not use that device.
    #[must_use]
    pub fn terms_on(&self, uuid: &str) -> Option<&DeviceTermsConfig> {
        let named = |on: &&DeviceTermsConfig| matches!(&on.device, DeviceName::Uuid(here, _) if uuid::is_same_device(here, uuid));
        self.on.iter().find(named).or_else(|| self.on.iter().find(|on| on.device == DeviceName::Any))
    }

    /// As [`Self::on`].
    ///
    /// # Errors
    /// The message for the member.
    pub fn on_device(&self, uuid: &str) -> Result<&DeviceTermsConfig, String> {
        self.terms_on(uuid).ok_or_else(|| {
            let name = &self.name;
            let numbers: Vec<String> = self
                .on
                .iter()
                .filter_map(|on| match on.device {
                    DeviceName::Number(number) => Some(number.to_string()),
                    _ => None,
                })
                .collect();
            if numbers.is_empty() {
                return format!("device {uuid} {NOT_ITS_DEVICE} {name}");
            }
            format!(
                "device {uuid} {NOT_ITS_DEVICE} {name}, {NOT_KNOWN_YET}: its driver does not answer yet, so the \
                 daemon does not know which device is {}; name devices by their UUID in tenant.devices and \
                 device.id, or start vgpud \
                 where NVML answers",
                numbers.join(", ")
            )
        })
    }

    /// The limits in a welcome, which `vgpu doctor` shows: the lowest memory limit and the lowest ceiling of all
    /// devices; none if the tenant is only observed. A member's limits are on its board, for each device.
    #[must_use]
    pub fn told_limits(&self) -> (Option<Bytes>, Option<Share>) {
        if self.mode == Mode::Enforce { (self.lowest_memory(), self.lowest_ceiling()) } else { (None, None) }
    }

    /// The lowest memory limit on any of the tenant's devices.
    #[must_use]
    pub fn lowest_memory(&self) -> Option<Bytes> {
        self.on.iter().filter_map(|on| on.memory).min()
    }

    /// The lowest ceiling (most device time) on any of the tenant's devices.
    #[must_use]
    pub fn lowest_ceiling(&self) -> Option<Share> {
        self.on.iter().filter_map(|on| on.terms.ceiling).min()
    }
}

impl From<&ConfigPlan> for DaemonConfig {
    fn from(plan: &ConfigPlan) -> Self {
        Self {
            tenants: plan.tenants.iter().map(TenantConfig::from).collect(),
            admin: plan.daemon.admin.clone(),
            run_dir: Some(plan.daemon.run_dir.clone()),
            max_connections: usize::try_from(plan.daemon.max_connections).unwrap_or(usize::MAX),
            record: RecordSettings {
                dir: plan.daemon.state_dir.clone(),
                keep: plan.daemon.keep,
                exact: plan.daemon.exact,
            },
            time: plan.time,
            arbitrate: plan.arbitrate,
            devices: plan.devices.iter().filter_map(|device| device.uuid.clone()).collect(),
            log: plan.log.clone(),
            metrics: plan.metrics.clone(),
            proof: plan.proof.clone(),
        }
    }
}
