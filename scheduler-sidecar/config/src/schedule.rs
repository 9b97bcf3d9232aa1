//! Windows and bookings of a checked configuration: terms that hold at certain times.
//!
//! The crate `vgpu-policy` decides which of them hold at a moment, and applies them.

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use vgpu_core::units::bytes::{Bytes, Size};
use vgpu_core::units::share::Share;

use super::change::TermsChange;
use super::problem::TextRange;
use super::raw::{Amount, WeekDays};
use super::value::{self, WrittenValue};

/// Minutes of a day.
pub const DAY_MINUTES: u16 = 24 * 60;

/// Terms that hold at certain times of each week.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowPlan {
    /// Name of the window.
    pub name: String,
    /// Days on which it begins.
    pub days: WeekDays,
    /// Time of day at which it begins, in minutes.
    pub from: u16,
    /// Time of day at which it ends, in minutes; not after [`Self::from`]: on the next day.
    pub to: u16,
    /// Time zone of the days and times.
    pub zone: TimeZone,
    /// Tenants and devices that it is about.
    pub subjects: Subjects,
    /// Terms that hold inside.
    pub change: TermsChange,
    /// True if its tenants may not launch.
    pub paused: bool,
    /// Place of the section in the file.
    pub place: TextRange,
}

/// The tenants and devices that a window is about. An empty list means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subjects {
    /// Names of tenants.
    pub tenants: Vec<String>,
    /// Names of groups; each stands for its subgroups too.
    pub groups: Vec<String>,
    /// Names of devices; see [`super::plan::DevicePlan::name`].
    pub devices: Vec<String>,
}

/// A part of devices that a tenant gets for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookingPlan {
    /// Name of the booking.
    pub name: String,
    /// Tenant that it is for.
    pub tenant: String,
    /// Names of the devices; empty for all of the tenant's.
    pub devices: Vec<String>,
    /// Time at which it begins, in seconds since 1970.
    pub from: i64,
    /// Time at which it ends, in seconds since 1970.
    pub until: i64,
    /// Floor that the tenant gets at least; `None`: its own.
    pub floor: Option<Share>,
    /// Memory that the tenant gets at least; `None`: its own limit.
    pub memory: Option<Amount>,
    /// Place of the section in the file.
    pub place: TextRange,
}

/// A booking that a command made, as written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenBooking {
    /// Name of the booking; empty in a request: the daemon gives it one.
    #[serde(default)]
    pub name: String,
    /// Tenant that it is for.
    pub tenant: String,
    /// Devices by number or UUID; empty for all of the tenant's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Time at which it begins, in seconds since 1970.
    pub from: i64,
    /// Time at which it ends, in seconds since 1970.
    pub until: i64,
    /// Floor that the tenant gets at least: 1 to 100 percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_request: Option<String>,
    /// Memory that the tenant gets at least: a size, or a percentage of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<String>,
    /// Reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<&BookingPlan> for WrittenBooking {
    fn from(plan: &BookingPlan) -> Self {
        let memory = |amount: Amount| match amount {
            Amount::Size(Size::Bytes(bytes)) => bytes.to_string(),
            Amount::Size(Size::Percent(percent)) => {
                // Its part of a million bytes is its number of millionths.
                let millionths = percent.part_of(Bytes(1_000_000)).get();
                format!("{}%", f64::from(u32::try_from(millionths).unwrap_or(0)) / 1e4)
            }
            Amount::Size(Size::Unlimited) => "unlimited".to_owned(),
            Amount::Slot(slots) => format!("1/{slots}"),
        };
        Self {
            name: plan.name.clone(),
            tenant: plan.tenant.clone(),
            devices: plan.devices.clone(),
            from: plan.from,
            until: plan.until,
            sm_request: plan.floor.map(|floor| floor.to_string()),
            memory_limit: plan.memory.map(memory),
            reason: None,
        }
    }
}

impl WrittenBooking {
    /// Parses the values. Neither the tenant nor the devices are looked up.
    ///
    /// # Errors
    /// Names the first value that is not accepted, and the accepted forms. `key` maps a key to its name where it was
    /// written.
    pub fn read(&self, key: impl Fn(&str) -> String) -> Result<BookingPlan, String> {
        fn one<T>(key: String, text: &str, reading: value::ValueReader<T>) -> Result<T, String> {
            reading(&WrittenValue::Text(text)).map_err(|wrong| {
                let shown = super::problem::escape_value(text);
                format!("{key} {shown:?} {}; accepted: {}", wrong.what, wrong.accepted)
            })
        }
        let floor =
            self.sm_request.as_deref().map(|text| one(key("sm_request"), text, value::read_floor)).transpose()?;
        let memory = self.memory_limit.as_deref().map(|text| one(key("memory_limit"), text, value::read_amount));
        let (floor, memory) = (floor.flatten(), memory.transpose()?);
        if floor.is_none() && memory.is_none() {
            return Err(format!(
                "nothing is booked; accepted: {}, {}, or both",
                key("sm_request"),
                key("memory_limit")
            ));
        }
        if self.until <= self.from {
            return Err("the booking ends before it begins; accepted: an end after the beginning".to_owned());
        }
        Ok(BookingPlan {
            name: self.name.clone(),
            tenant: self.tenant.clone(),
            devices: self.devices.clone(),
            from: self.from,
            until: self.until,
            floor,
            memory,
            place: TextRange::default(),
        })
    }
}

impl WindowPlan {
    /// Length of the window in minutes by the clock on the wall.
    #[must_use]
    pub fn length(&self) -> u16 {
        if self.to > self.from { self.to - self.from } else { DAY_MINUTES - self.from + self.to }
    }

    /// The window without its place, to compare two files.
    #[must_use]
    pub fn without_place(&self) -> Self {
        Self { place: TextRange::default(), ..self.clone() }
    }
}

impl BookingPlan {
    /// The booking without its place, to compare two files.
    #[must_use]
    pub fn without_place(&self) -> Self {
        Self { place: TextRange::default(), ..self.clone() }
    }
}

impl Subjects {
    /// True if the tenant, which is charged to `group`, is one of them.
    #[must_use]
    pub fn has_tenant(&self, tenant: &str, group: Option<&str>) -> bool {
        self.has_all_tenants()
            || self.tenants.iter().any(|name| name == tenant)
            || group.is_some_and(|group| self.groups.iter().any(|of| is_within(group, of)))
    }

    /// True if a tenant that is added later can be one of both: by its group, or because one names no tenants.
    #[must_use]
    pub fn can_share_new_tenant(&self, other: &Self) -> bool {
        let any_group = |one: &Self| one.has_all_tenants() || !one.groups.is_empty();
        let nested = |one: &String| other.groups.iter().any(|group| is_within(one, group) || is_within(group, one));
        let is_all = self.has_all_tenants() || other.has_all_tenants();
        any_group(self) && any_group(other) && (is_all || self.groups.iter().any(nested))
    }

    /// True if a device can be one of both.
    #[must_use]
    pub fn shares_device(&self, other: &Self) -> bool {
        self.devices.is_empty() || other.devices.is_empty() || self.devices.iter().any(|name| other.has_device(name))
    }

    fn has_all_tenants(&self) -> bool {
        self.tenants.is_empty() && self.groups.is_empty()
    }

    /// True if the device is one of them.
    #[must_use]
    pub fn has_device(&self, device: &str) -> bool {
        self.devices.is_empty() || self.devices.iter().any(|name| name == device)
    }
}

/// True if the group is the other one or one of its subgroups.
fn is_within(group: &str, of: &str) -> bool {
    group.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_stands_for_its_subgroups_and_for_no_group_that_only_begins_like_it() {
        let lab = Subjects { groups: vec!["lab".into()], ..Subjects::default() };
        for (group, is_one) in [
            (Some("lab"), true),
            (Some("lab/vision"), true),
            (Some("labs"), false),
            (Some("x/lab"), false),
            (None, false),
        ] {
            assert_eq!(lab.has_tenant("a", group), is_one, "{group:?}");
        }
        assert!(Subjects::default().has_tenant("a", None));
        let named = Subjects { tenants: vec!["a".into()], ..lab };
        assert!(named.has_tenant("a", None) && named.has_tenant("b", Some("lab")) && !named.has_tenant("b", None));
    }
}
