//! Turns an answer of the daemon into rows and devices of the view. Pure: times are arguments.

use std::time::Duration;

use vgpu_control::{DaemonStatus, DeviceStatus, MemberStatus, TenantStatus, TermsStatus};
use vgpu_core::units::uuid::is_same_device;

/// Beginning of the names of MIG instances.
const INSTANCE_PREFIX: &str = "MIG-";
/// Characters of a shortened device name.
const BRIEF_NAME_WIDTH: usize = 12;
/// Characters at the end of a MIG instance's shortened name.
const BRIEF_END_WIDTH: usize = 4;

/// Identifies a row: a tenant on a device.
pub type RowKey = (String, String);

/// A status that the daemon answered, and the time of the answer.
#[derive(Debug, Clone)]
pub struct StatusLook {
    /// Status that the daemon answered.
    pub status: DaemonStatus,
    /// Time of the answer, since the view began.
    pub at: Duration,
}

/// A row of the view: a tenant on one device, its terms and its usage.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TopRow {
    /// Name of the tenant.
    pub tenant: String,
    /// The daemon's name of the device; `*` if the terms hold for any device and the tenant has joined none.
    pub device: String,
    /// Priority class: `latency`, `normal` or `batch`.
    pub class: String,
    /// Weight for sharing the time that guaranteed shares (floors) leave.
    pub weight: u32,
    /// Floor: guaranteed share of device time, in percent; `None`: none.
    pub floor: Option<f64>,
    /// Ceiling: most device time, in percent; `None`: no limit.
    pub ceiling: Option<f64>,
    /// Percent of the last seconds in which the tenant wanted the device; `None` if it has joined none.
    pub wanted: Option<f64>,
    /// Percent of the last seconds in which the tenant had the device.
    pub got: Option<f64>,
    /// Percent of the time since the last refresh that the tenant's members waited for permission to launch, on
    /// average; `None` if unknown yet.
    pub wait: Option<f64>,
    /// Seconds waited for permission to launch since the tenant's first member joined, summed over members.
    pub waited: Option<f64>,
    /// Device time in seconds since the tenant's first member joined.
    pub gpu_seconds: Option<f64>,
    /// True if the tenant uses the device without being measured.
    pub unmeasured: bool,
    /// Bytes that the tenant holds on the device; `None`: not known.
    pub used: Option<u64>,
    /// Memory limit of the tenant on the device, in bytes; `None`: no limit.
    pub limit: Option<u64>,
    /// Members that wait at the gate for permission to launch now.
    pub waiting: usize,
    /// Number of the tenant's connected processes that are on the device, or on none yet.
    pub members: usize,
    /// State in one word, as in `vgpu explain`; `-` if unknown.
    pub state: String,
    /// True if an administrator paused the tenant.
    pub paused: bool,
}

impl TopRow {
    /// Returns the row's identity.
    #[must_use]
    pub fn row_key(&self) -> RowKey {
        (self.tenant.clone(), self.device.clone())
    }

    /// Returns the placeholder for a missing value.
    #[must_use]
    pub const fn missing_time(&self) -> &'static str {
        if self.unmeasured { "?" } else { "-" }
    }

    /// Returns the used part of the memory limit, from 0 to 1 or more.
    #[must_use]
    pub fn memory_fill(&self) -> Option<f64> {
        part_of_whole(self.used?, self.limit?)
    }
}

/// A device, as shown in the head of the view.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TopDevice {
    /// The daemon's name of the device.
    pub name: String,
    /// Model name of the device; `None`: not known.
    pub model: Option<String>,
    /// Percent of the last seconds that all tenants received; `None` if some use is not measured.
    pub busy: Option<f64>,
    /// Bytes that all tenants hold; `None` if no tenant's use is known.
    pub used: Option<u64>,
    /// Memory size of the device in bytes; `None`: not known.
    pub memory: Option<u64>,
    /// True if the device is scheduled by leases.
    pub arbitrated: bool,
    /// Tenant that holds the device now.
    pub holder: Option<String>,
}

impl TopDevice {
    /// Returns the profile of a MIG instance, like `3g.40gb`, with which the driver ends the instance's model name.
    #[must_use]
    pub fn instance_profile(&self) -> Option<&str> {
        let model = self.model.as_deref().filter(|_| self.name.starts_with(INSTANCE_PREFIX))?;
        model.rsplit_once(" MIG ").map(|(_, profile)| profile)
    }
}

/// Returns `part` as a fraction of `whole`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "for a bar")]
pub fn part_of_whole(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Returns all rows in the daemon's order; `before` is the previous answer, for differences.
#[must_use]
pub fn rows_of_look(look: &StatusLook, before: Option<&StatusLook>) -> Vec<TopRow> {
    let tenants = look.status.tenants.iter();
    tenants
        .flat_map(|tenant| {
            let waits = move |here: &TermsStatus| waited_since(look, before?, tenant, here);
            let members = |here: &TermsStatus| count_members(&look.status.devices, tenant, here);
            tenant.devices.iter().map(move |here| row_of_terms(tenant, here, members(here), waits(here)))
        })
        .collect()
}

/// Counts the members on a device. A member that has joined no device counts on each.
fn count_members(devices: &[DeviceStatus], tenant: &TenantStatus, here: &TermsStatus) -> usize {
    let is_here =
        |member: &&MemberStatus| member.devices.iter().any(|on| name_same_device(devices, &on.device, &here.device));
    tenant.members.iter().filter(|member| member.devices.is_empty() || is_here(member)).count()
}

fn row_of_terms(tenant: &TenantStatus, here: &TermsStatus, members: usize, wait: Option<f64>) -> TopRow {
    let time = here.time.as_ref();
    let state = match (&tenant.unusable, tenant.paused || here.paused, tenant.removed, time) {
        (Some(_), ..) => "unserved",
        (_, true, ..) => "paused",
        (_, _, true, _) => "removed",
        (.., Some(time)) => &time.state,
        (.., None) => "-",
    };
    TopRow {
        tenant: tenant.name.clone(),
        device: here.device.clone(),
        class: here.class.clone(),
        weight: here.weight,
        floor: here.sm_request,
        ceiling: here.sm_limit,
        wanted: time.and_then(|time| time.wanted),
        got: time.and_then(|time| time.got),
        wait,
        waited: time.map(|time| time.waited_seconds),
        gpu_seconds: time.and_then(|time| time.gpu_seconds),
        unmeasured: time.is_some_and(|time| time.unmeasured),
        used: here.memory_used,
        limit: here.memory_limit,
        waiting: time.map_or(0, |time| time.waiting),
        members,
        state: state.to_owned(),
        paused: tenant.paused,
    }
}

/// Returns the percent of the time between two answers that a member waited at the gate, on average. `None` after a
/// restart of the daemon, whose counters start at zero.
fn waited_since(look: &StatusLook, before: &StatusLook, tenant: &TenantStatus, here: &TermsStatus) -> Option<f64> {
    if look.status.pid != before.status.pid {
        return None;
    }
    let old = before.status.tenants.iter().find(|old| old.name == tenant.name)?;
    let old = old.devices.iter().find(|old| old.device == here.device)?.time.as_ref()?;
    let now = here.time.as_ref()?;
    let span = look.at.checked_sub(before.at)?.as_secs_f64();
    let members = u32::try_from(now.members.max(1)).map_or(f64::INFINITY, f64::from);
    let more = now.waited_seconds - old.waited_seconds;
    (span > 0.0 && more >= 0.0).then(|| (more / span / members * 100.0).min(100.0))
}

/// Returns the daemon's devices, followed by those that tenants joined and the daemon does not list.
#[must_use]
pub fn devices_of_status(status: &DaemonStatus) -> Vec<TopDevice> {
    let mut known: Vec<DeviceStatus> = status.devices.clone();
    for here in status.tenants.iter().flat_map(|tenant| &tenant.devices) {
        if here.device != "*" && !known.iter().any(|known| is_called(known, &here.device)) {
            known.push(DeviceStatus { name: here.device.clone(), ..DeviceStatus::default() });
        }
    }
    // The line `*` for all other devices adds nothing once members have joined specific ones.
    if known.len() > 1 {
        known.retain(|device| device.name != "*");
    }
    known.iter().map(|device| device_of(device, status)).collect()
}

fn device_of(device: &DeviceStatus, status: &DaemonStatus) -> TopDevice {
    let here: Vec<&TermsStatus> = status
        .tenants
        .iter()
        .flat_map(|tenant| &tenant.devices)
        .filter(|here| is_called(device, &here.device))
        .collect();
    let used = here.iter().filter_map(|here| here.memory_used).reduce(u64::saturating_add);
    // `sum()` of no f64 is -0.0.
    let mut got = here.iter().filter_map(|here| here.time.as_ref()).map(|time| time.got);
    let busy = got.try_fold(0.0, |sum, got| Some(sum + got?));
    TopDevice {
        name: device.name.clone(),
        model: device.model.clone(),
        busy: busy.map(|busy| busy.clamp(0.0, 100.0)),
        used,
        memory: device.memory,
        arbitrated: device.arbitrated,
        holder: device.holder.clone(),
    }
}

/// Returns true if `name` is a name of this device.
#[must_use]
pub fn is_called(device: &DeviceStatus, name: &str) -> bool {
    device.name == name || device.uuid.as_deref().is_some_and(|uuid| is_same_device(uuid, name))
}

/// Returns true if both names are of one device, as far as the daemon's devices and the names themselves tell.
#[must_use]
pub fn name_same_device(devices: &[DeviceStatus], one: &str, other: &str) -> bool {
    is_same_device(one, other) || devices.iter().any(|device| is_called(device, one) && is_called(device, other))
}

/// Finds a device by number or UUID, and returns the view's name for it.
///
/// # Errors
/// A message: there is no such device, and the known ones.
pub fn device_called(status: &DaemonStatus, name: &str) -> Result<String, String> {
    let all = devices_of_status(status);
    let by_uuid = status.devices.iter().find(|device| is_called(device, name)).map(|device| device.name.as_str());
    let found = all.iter().find(|device| device.name == name || Some(device.name.as_str()) == by_uuid);
    found.map(|device| device.name.clone()).ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|device| device.name.as_str()).collect();
        let name = vgpu_config::problem::escape_value(name);
        if known.is_empty() {
            return format!(
                "--device {name:?}: the daemon knows no device yet; its file names none, and no process has joined one"
            );
        }
        format!("--device {name:?} is none of the daemon's devices; accepted: {}", known.join(", "))
    })
}

/// Formats bytes in at most five characters, in powers of 1024: `1.2G`, `512M`, `80G`, `0`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "to two digits")]
pub fn short_bytes(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["", "K", "M", "G", "T"] {
        // A size that would show as 1000 or more uses the next unit.
        if size < 999.5 || unit == "T" {
            let text = if size < 9.95 { format!("{size:.1}") } else { format!("{size:.0}") };
            return text.trim_end_matches(".0").to_owned() + unit;
        }
        size /= 1024.0;
    }
    String::new()
}

/// Shortens a device's name to twelve characters: a number stays, a UUID keeps its first part. A MIG instance's UUID
/// keeps both ends, because the instances of one board may begin alike.
#[must_use]
pub fn brief_name(name: &str) -> String {
    let length = name.chars().count();
    if length > BRIEF_NAME_WIDTH && name.starts_with(INSTANCE_PREFIX) {
        let begin = name.chars().take(BRIEF_NAME_WIDTH - BRIEF_END_WIDTH - 1);
        return begin.chain(['~']).chain(name.chars().skip(length - BRIEF_END_WIDTH)).collect();
    }
    name.chars().take(BRIEF_NAME_WIDTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_by_its_number_and_its_uuid_and_else_is_told_which_there_are() {
        let uuid = "GPU-00000000-0000-0000-0000-00000000000a";
        let line = |devices: &str| {
            let text = format!(r#"{{"version":"1","pid":1,"uptime_seconds":1,"devices":[{devices}],"tenants":[]}}"#);
            serde_json::from_str::<DaemonStatus>(&text).unwrap()
        };
        let one = line(&format!(
            r#"{{"name":"0","uuid":"{uuid}","memory":null,"overcommit":1.0,"arbitrated":true,"holder":null}}"#
        ));
        assert_eq!(
            (device_called(&one, "0"), device_called(&one, &uuid.to_uppercase())),
            (Ok("0".into()), Ok("0".into()))
        );
        assert_eq!(
            device_called(&one, "1").unwrap_err(),
            "--device \"1\" is none of the daemon's devices; accepted: 0"
        );
        assert!(device_called(&line(""), "1").unwrap_err().contains("knows no device yet"));
    }

    #[test]
    fn a_device_without_tenants_is_busy_for_nothing_and_never_for_less() {
        let status: DaemonStatus = serde_json::from_value(serde_json::json!({
            "version": "1", "pid": 1, "uptime_seconds": 1, "tenants": [], "devices": [
                {"name": "0", "uuid": null, "memory": null, "overcommit": 1.0, "arbitrated": true, "holder": null}],
        }))
        .unwrap();
        let busy: Vec<Option<f64>> = devices_of_status(&status).iter().map(|device| device.busy).collect();
        assert_eq!(busy.iter().map(|busy| format!("{:.1}", busy.unwrap())).collect::<Vec<_>>(), ["0.0"]);
    }

    #[test]
    fn instances_of_one_board_have_different_brief_names() {
        let names = ["01", "02"].map(|end| brief_name(&format!("MIG-5ae3917e-0f6b-4c44-9c7e-5d1f2b00c0{end}")));
        assert_eq!(names, ["MIG-5ae~c001", "MIG-5ae~c002"]);
        let others = ["0", "*", "MIG-2a", "GPU-5ae3917e-0f6b-4c44-9c7e-5d1f2b00c001"].map(brief_name);
        assert_eq!(others, ["0", "*", "MIG-2a", "GPU-5ae3917e"]);
    }

    #[test]
    fn sizes_have_at_most_five_letters() {
        for (bytes, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1K"),
            (1536, "1.5K"),
            (10 << 20, "10M"),
            (1000 << 20, "1G"),
            ((6 << 30) + (300 << 20), "6.3G"),
            (80 << 30, "80G"),
            (3 << 40, "3T"),
        ] {
            assert_eq!(short_bytes(bytes), text, "{bytes}");
        }
        assert!((0..64).all(|shift| short_bytes((1 << shift) - 1).len() <= 9));
    }
}
