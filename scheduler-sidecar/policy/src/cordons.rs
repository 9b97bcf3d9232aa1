//! Cordons: nobody new on a device or in a tenant, by the command of an administrator. An evacuation is a cordon that
//! also asks the members to end.
//!
//! A cordon changes no terms, so it is no stage of the chain.

use serde::{Deserialize, Serialize};
use vgpu_core::units::uuid::is_same_device;

/// Largest number of cordons at the same time.
pub const MAX_CORDONS: usize = 1024;

/// The device or the tenant of a cordon.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CordonSubject {
    /// A device, by its UUID where it is known.
    Device(String),
    /// A tenant, by its name.
    Tenant(String),
}

/// A process that was a member when the cordon began, so it may connect again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresentProcess {
    /// Process ID.
    pub pid: u32,
    /// Start of the process, in the kernel's unit; another process with the same ID has another.
    pub began: u64,
}

/// One cordon, while it is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cordon {
    /// The device or the tenant.
    pub subject: CordonSubject,
    /// True if the members are asked to end.
    #[serde(default)]
    pub evacuates: bool,
    /// Time from which on members get SIGTERM, in seconds since 1970; `None`: they get none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminate_at: Option<i64>,
    /// Time of the command, in seconds since 1970.
    pub since: i64,
    /// Time at which it ends, in seconds since 1970; `None`: a command ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// User ID of the administrator.
    pub by_uid: u32,
    /// Reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Members when it began.
    #[serde(default)]
    pub present: Vec<PresentProcess>,
}

impl CordonSubject {
    /// True if it is this device, by number or UUID.
    #[must_use]
    pub fn is_device(&self, name: &str, uuid: Option<&str>) -> bool {
        let Self::Device(own) = self else { return false };
        own == name || uuid.is_some_and(|uuid| is_same_device(own, uuid))
    }

    /// The device, as it is stored.
    #[must_use]
    pub fn device(&self) -> Option<&String> {
        if let Self::Device(device) = self { Some(device) } else { None }
    }

    /// Stores another name of the device.
    pub fn rename_device(&mut self, name: impl Fn(&str) -> String) {
        if let Self::Device(device) = self {
            *device = name(device);
        }
    }

    /// True if it is this tenant.
    #[must_use]
    pub fn is_tenant(&self, name: &str) -> bool {
        matches!(self, Self::Tenant(own) if own == name)
    }
}

impl Cordon {
    /// True if the cordon is over.
    #[must_use]
    pub fn is_over(&self, now: i64) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// True if the process was a member when the cordon began.
    #[must_use]
    pub fn has_process(&self, process: PresentProcess) -> bool {
        self.present.contains(&process)
    }

    /// The next moment after `now` at which something is due.
    #[must_use]
    pub fn next_moment(&self, now: i64) -> Option<i64> {
        self.until.into_iter().chain(self.terminate_at).filter(|at| *at > now).min()
    }
}

/// Adds a cordon in place of an earlier one of the same subject. Members of the earlier one may still connect again.
///
/// # Errors
/// A message: there are [`MAX_CORDONS`] already.
pub fn add_cordon(all: &mut Vec<Cordon>, mut new: Cordon) -> Result<(), String> {
    if let Some(at) = all.iter().position(|other| other.subject == new.subject) {
        let before = all.remove(at);
        let more = before.present.into_iter().filter(|process| !new.present.contains(process));
        new.present.extend(more.collect::<Vec<_>>());
    }
    if all.len() >= MAX_CORDONS {
        return Err(format!("{MAX_CORDONS} cordons are in force; accepted: fewer, see `vgpu uncordon`"));
    }
    all.push(new);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cordon(subject: CordonSubject, pid: u32) -> Cordon {
        Cordon {
            subject,
            evacuates: false,
            terminate_at: None,
            since: 1,
            until: Some(9),
            by_uid: 0,
            reason: None,
            present: vec![PresentProcess { pid, began: 1 }],
        }
    }

    #[test]
    fn a_second_cordon_of_a_device_replaces_the_first_and_shuts_no_member_out() {
        let mut all = Vec::new();
        let device = CordonSubject::Device("GPU-1".into());
        add_cordon(&mut all, cordon(device.clone(), 1)).unwrap();
        add_cordon(&mut all, cordon(CordonSubject::Tenant("a".into()), 1)).unwrap();
        add_cordon(&mut all, Cordon { terminate_at: Some(5), ..cordon(device.clone(), 2) }).unwrap();
        assert_eq!(all.len(), 2);
        let both = [2, 1].map(|pid| PresentProcess { pid, began: 1 });
        assert_eq!(all[1].present, both);
        assert!(!all[1].has_process(PresentProcess { pid: 1, began: 2 }), "a later process with the same ID");
        assert_eq!([0, 5, 9].map(|now| all[1].next_moment(now)), [Some(5), Some(9), None]);
        assert!(device.is_device("0", Some("gpu-1")) && !device.is_device("0", None) && !device.is_tenant("GPU-1"));
        assert!(all[1].is_over(9) && !all[1].is_over(8));
    }

    #[test]
    fn there_is_a_bound() {
        let mut all = Vec::new();
        for at in 0..MAX_CORDONS {
            add_cordon(&mut all, cordon(CordonSubject::Tenant(at.to_string()), 1)).unwrap();
        }
        assert!(add_cordon(&mut all, cordon(CordonSubject::Tenant("x".into()), 1)).unwrap_err().contains("fewer"));
        add_cordon(&mut all, cordon(CordonSubject::Tenant("7".into()), 1)).unwrap();
    }
}
