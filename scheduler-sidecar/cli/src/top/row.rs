//! What the daemon said at one moment, as rows and devices of the view. Pure: moments are given.

use std::time::Duration;

use vgpu_control::{DeviceStatus, Status, TenantStatus, TermsStatus};

/// Which row: a tenant on a device.
pub type Key = (String, String);

/// The daemon's answer and when it came.
#[derive(Debug, Clone)]
pub struct Look {
    /// What it said.
    pub status: Status,
    /// When, since the view began.
    pub at: Duration,
}

/// A tenant on a device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Its name.
    pub tenant: String,
    /// As the daemon calls the device; `*`: any, and it has joined none.
    pub device: String,
    /// `latency`, `normal`, `batch`.
    pub class: String,
    /// Its part of what floors leave.
    pub weight: u32,
    /// The floor, in percent.
    pub floor: Option<f64>,
    /// The ceiling, in percent.
    pub ceiling: Option<f64>,
    /// Percent of the last seconds in which it wanted the device; `None`: it has joined none.
    pub wanted: Option<f64>,
    /// Percent of the last seconds that it got.
    pub got: Option<f64>,
    /// Percent of the time since the look before in which its members stood at the gate, on average; `None`: not known yet.
    pub wait: Option<f64>,
    /// Seconds at the gate since its first member joined, summed over members.
    pub waited: Option<f64>,
    /// Device time in seconds since its first member joined.
    pub gpu_seconds: Option<f64>,
    /// Does it use the device without being measured?
    pub unmeasured: bool,
    /// Bytes held.
    pub used: Option<u64>,
    /// Most bytes.
    pub limit: Option<u64>,
    /// Members that stand at the gate now.
    pub waiting: usize,
    /// Processes that are connected.
    pub members: usize,
    /// One word, as `vgpu explain` has it; `-`: nothing is known.
    pub state: String,
    /// Is it paused by hand?
    pub paused: bool,
}

impl Row {
    /// Which row it is.
    #[must_use]
    pub fn key(&self) -> Key {
        (self.tenant.clone(), self.device.clone())
    }

    /// What stands for a part of time that is not there.
    #[must_use]
    pub const fn none(&self) -> &'static str {
        if self.unmeasured { "?" } else { "-" }
    }

    /// How full its memory limit is, 0 to 1 or more.
    #[must_use]
    pub fn fill(&self) -> Option<f64> {
        fraction(self.used?, self.limit?)
    }
}

/// A device, as its line in the head says it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Device {
    /// As the daemon calls it.
    pub name: String,
    /// What its maker calls it.
    pub model: Option<String>,
    /// Percent of the last seconds that all tenants together got; `None`: somebody's part is not measured.
    pub busy: Option<f64>,
    /// Bytes that all tenants hold; `None`: nobody's is known.
    pub used: Option<u64>,
    /// Bytes it has.
    pub memory: Option<u64>,
    /// Are leases given for it?
    pub arbitrated: bool,
    /// Who has it now.
    pub holder: Option<String>,
}

/// Part of a whole.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "for a bar")]
pub fn fraction(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// All rows, in the daemon's order; `before` is the look before, for what is counted since then.
#[must_use]
pub fn rows(look: &Look, before: Option<&Look>) -> Vec<Row> {
    let tenants = look.status.tenants.iter();
    tenants
        .flat_map(|tenant| {
            let waits = move |here: &TermsStatus| waited_since(look, before?, tenant, here);
            // A daemon of protocol 1 says nothing of devices.
            let whole = tenant.devices.is_empty().then(|| TermsStatus {
                device: "*".into(),
                memory_limit: tenant.memory_limit,
                sm_limit: tenant.sm_limit,
                ..TermsStatus::default()
            });
            let all: Vec<_> = tenant.devices.iter().cloned().chain(whole).collect();
            all.into_iter().map(move |here| row(tenant, &here, waits(&here)))
        })
        .collect()
}

fn row(tenant: &TenantStatus, here: &TermsStatus, wait: Option<f64>) -> Row {
    let time = here.time.as_ref();
    let state = match (&tenant.unusable, tenant.paused, tenant.removed, time) {
        (Some(_), ..) => "unserved",
        (_, true, ..) => "paused",
        (_, _, true, _) => "removed",
        (.., Some(time)) => &time.state,
        (.., None) => "-",
    };
    Row {
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
        members: tenant.members.len(),
        state: state.to_owned(),
        paused: tenant.paused,
    }
}

/// How much of the time between two looks a member stood at the gate on average, in percent. A daemon that restarted counts
/// anew: then nothing is known.
fn waited_since(look: &Look, before: &Look, tenant: &TenantStatus, here: &TermsStatus) -> Option<f64> {
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

/// The devices, the daemon's first, then what tenants joined that it has no line for.
#[must_use]
pub fn devices(status: &Status) -> Vec<Device> {
    let mut known: Vec<DeviceStatus> = status.devices.clone();
    for here in status.tenants.iter().flat_map(|tenant| &tenant.devices) {
        if here.device != "*" && !known.iter().any(|known| is(known, &here.device)) {
            known.push(DeviceStatus { name: here.device.clone(), ..DeviceStatus::default() });
        }
    }
    // Where members joined what the file does not name, its line for all others says nothing that is not said there.
    if known.len() > 1 {
        known.retain(|device| device.name != "*");
    }
    known.iter().map(|device| device_of(device, status)).collect()
}

fn device_of(device: &DeviceStatus, status: &Status) -> Device {
    let here: Vec<&TermsStatus> =
        status.tenants.iter().flat_map(|tenant| &tenant.devices).filter(|here| is(device, &here.device)).collect();
    let used = here.iter().filter_map(|here| here.memory_used).reduce(u64::saturating_add);
    let busy: Option<f64> = here.iter().filter_map(|here| here.time.as_ref()).map(|time| time.got).sum();
    Device {
        name: device.name.clone(),
        model: device.model.clone(),
        busy: busy.map(|busy| busy.clamp(0.0, 100.0)),
        used,
        memory: device.memory,
        arbitrated: device.arbitrated,
        holder: device.holder.clone(),
    }
}

/// Is it this device that is called so?
#[must_use]
pub fn is(device: &DeviceStatus, name: &str) -> bool {
    device.name == name || device.uuid.as_deref().is_some_and(|uuid| vgpu_core::uuid::same(uuid, name))
}

/// The device that is called so, by its number or its UUID, as the view calls it.
///
/// # Errors
/// In words: there is none; and which there are.
pub fn device_called(status: &Status, name: &str) -> Result<String, String> {
    let all = devices(status);
    let by_uuid = status.devices.iter().find(|device| is(device, name)).map(|device| device.name.as_str());
    let found = all.iter().find(|device| device.name == name || Some(device.name.as_str()) == by_uuid);
    found.map(|device| device.name.clone()).ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|device| device.name.as_str()).collect();
        let name = vgpu_config::problem::shown(name);
        if known.is_empty() {
            return format!(
                "--device {name:?}: the daemon knows no device yet; its file names none, and nobody has joined one"
            );
        }
        format!("--device {name:?} is none of the daemon's devices; accepted: {}", known.join(", "))
    })
}

/// Bytes in at most five letters, in powers of 1024: `1.2G`, `512M`, `80G`, `0`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "to two digits")]
pub fn short(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["", "K", "M", "G", "T"] {
        // What is shown as 1000 or more has its next unit.
        if size < 999.5 || unit == "T" {
            let text = if size < 9.95 { format!("{size:.1}") } else { format!("{size:.0}") };
            return text.trim_end_matches(".0").to_owned() + unit;
        }
        size /= 1024.0;
    }
    String::new()
}

/// A device's name in at most twelve letters: numbers as they are, of a UUID its first part.
#[must_use]
pub fn brief(name: &str) -> String {
    name.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_by_its_number_and_its_uuid_and_else_is_told_which_there_are() {
        let uuid = "GPU-00000000-0000-0000-0000-00000000000a";
        let line = |devices: &str| {
            let text = format!(r#"{{"version":"1","pid":1,"uptime_seconds":1,"devices":[{devices}],"tenants":[]}}"#);
            serde_json::from_str::<Status>(&text).unwrap()
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
            assert_eq!(short(bytes), text, "{bytes}");
        }
        assert!((0..64).all(|shift| short((1 << shift) - 1).len() <= 9));
    }
}
