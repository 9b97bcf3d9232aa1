//! A job of a scheduler, as the section of a tenant.

use vgpu_config::added::TenantSection;
use vgpu_config::value::{is_label_name, is_name};

/// A part of a device: `shares` of `total` equal shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePart {
    shares: u32,
    total: u32,
}

impl DevicePart {
    /// A whole device.
    pub const WHOLE: Self = Self { shares: 1, total: 1 };

    /// Returns a part of a device.
    ///
    /// # Errors
    /// A message: it is nothing, or more than a device.
    pub fn of(shares: u32, total: u32) -> Result<Self, String> {
        match shares {
            1.. if shares <= total => Ok(Self { shares, total }),
            _ => Err(format!("{shares} of {total} shares is no part of a device")),
        }
    }

    /// Returns the part in thousandths, rounded down, so that all parts of a device always fit together.
    fn thousandths(self) -> u64 {
        u64::from(self.shares) * 1000 / u64::from(self.total)
    }
}

/// A request of a scheduler on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRequest {
    /// Name of the tenant, as [`tenant_name`] returns it.
    pub name: String,
    /// Part of each device.
    pub part: DevicePart,
    /// Most memory on each device in bytes; `None`: as large a part of the memory as of the device.
    pub memory_bytes: Option<u64>,
    /// Devices by number or UUID.
    pub devices: Vec<String>,
    /// User whose processes may connect.
    pub uid: u32,
    /// Group that reports charge the cost to.
    pub group: Option<String>,
    /// Labels for reports.
    pub labels: Vec<(&'static str, String)>,
}

/// Returns the name of a job's tenant: `slurm-7`; from the first restart on `slurm-7-r1`, so that each start has a bill
/// of its own.
///
/// # Errors
/// A message: the job's identifier cannot be part of a name.
pub fn tenant_name(engine: &str, job: &str, restarts: u32) -> Result<String, String> {
    let name = match restarts {
        0 => format!("{engine}-{job}"),
        _ => format!("{engine}-{job}-r{restarts}"),
    };
    if !job.is_empty() && is_name(&name) {
        Ok(name)
    } else {
        Err(format!("the job's identifier {job:?} cannot be part of a tenant's name"))
    }
}

impl JobRequest {
    /// Returns the section that asks vgpud for this tenant.
    #[must_use]
    pub fn to_section(&self) -> TenantSection {
        let thousandths = self.part.thousandths();
        let (gpu, memory_limit, sm_request) = match self.memory_bytes {
            None => (Some(format!("{}.{:03}", thousandths / 1000, thousandths % 1000)), None, None),
            Some(bytes) => (None, Some(bytes.to_string()), Some(format!("{}.{}", thousandths / 10, thousandths % 10))),
        };
        TenantSection {
            name: self.name.clone(),
            gpu,
            memory_limit,
            sm_request,
            weight: Some(self.part.shares.to_string()),
            devices: self.devices.clone(),
            uids: vec![self.uid.to_string()],
            group: self.group.as_deref().and_then(group_name),
            labels: self.labels.iter().filter_map(|(key, value)| Some(((*key).to_owned(), label(value)?))).collect(),
            ..TenantSection::default()
        }
    }
}

/// Returns a scheduler's name with `_` in place of each letter that no group may have; `None`: nothing is left.
fn group_name(text: &str) -> Option<String> {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "-_./".contains(letter) { letter } else { '_' };
    Some(text.chars().map(plain).take(64).collect::<String>()).filter(|name| is_label_name(name))
}

/// Returns the text as the value of a label; `None`: nothing is left.
fn label(text: &str) -> Option<String> {
    Some(text.chars().filter(|letter| !letter.is_control()).take(128).collect::<String>())
        .filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(part: DevicePart) -> JobRequest {
        JobRequest {
            name: tenant_name("slurm", "7", 0).unwrap(),
            part,
            memory_bytes: None,
            devices: vec!["0".into()],
            uid: 1000,
            group: Some("lab vision/ä".into()),
            labels: vec![("job", "7".into()), ("user", "ada\n".into()), ("empty", String::new())],
        }
    }

    #[test]
    fn shares_become_a_part_that_is_rounded_down_and_a_weight() {
        let part = |shares, total| {
            let section = request(DevicePart::of(shares, total).unwrap()).to_section();
            (section.gpu.unwrap(), section.weight.unwrap())
        };
        assert_eq!(part(1, 4), ("0.250".into(), "1".into()));
        assert_eq!(part(2, 3), ("0.666".into(), "2".into()));
        assert_eq!(part(1, 128), ("0.007".into(), "1".into()));
        assert_eq!(part(8, 8), ("1.000".into(), "8".into()));
        for (shares, total) in [(0, 4), (5, 4), (0, 0), (1, 0)] {
            assert!(DevicePart::of(shares, total).is_err(), "{shares} of {total}");
        }
    }

    #[test]
    fn the_parts_of_a_device_are_never_more_than_the_device() {
        for total in 1..=2000 {
            let one = DevicePart::of(1, total).unwrap();
            assert!(one.thousandths() * u64::from(total) <= 1000, "{total}");
            for shares in [1, total / 3, total / 2].into_iter().filter(|shares| *shares > 0) {
                let both = DevicePart::of(shares, total).unwrap().thousandths()
                    + DevicePart::of(total - shares, total).map_or(0, DevicePart::thousandths);
                assert!(both <= 1000, "{shares} of {total}");
            }
        }
    }

    #[test]
    fn asked_memory_is_the_limit_and_the_shares_are_the_floor() {
        let section =
            JobRequest { memory_bytes: Some(20 << 30), ..request(DevicePart::of(1, 3).unwrap()) }.to_section();
        assert_eq!((section.gpu, section.memory_limit.as_deref()), (None, Some("21474836480")));
        assert_eq!(section.sm_request.as_deref(), Some("33.3"));
    }

    #[test]
    fn the_section_names_the_user_the_group_and_the_labels_in_letters_that_the_daemon_accepts() {
        let section = request(DevicePart::WHOLE).to_section();
        assert_eq!((section.name.as_str(), section.uids), ("slurm-7", vec!["1000".to_owned()]));
        assert_eq!((section.gpu.as_deref(), section.group.as_deref()), (Some("1.000"), Some("lab_vision/_")));
        let labels: Vec<(&str, &str)> = section.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(labels, [("job", "7"), ("user", "ada")]);
    }

    #[test]
    fn a_restart_has_a_name_of_its_own_and_odd_identifiers_have_none() {
        assert_eq!(tenant_name("slurm", "7", 2).unwrap(), "slurm-7-r2");
        for odd in ["", "../7", "7 8", &"7".repeat(64)] {
            assert!(tenant_name("slurm", odd, 0).is_err(), "{odd:?}");
        }
    }
}
