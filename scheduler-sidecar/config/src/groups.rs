//! Groups of a checked configuration: their place in the tree, their weights and their quotas.
//!
//! The name is the place: `lab/vision` is a subgroup of `lab`. The crate `vgpu-policy` computes shares and quotas.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use vgpu_core::units::share::Share;

use super::problem::TextRange;

/// Time after which recorded use counts half, if the file gives none: a week, in seconds.
pub const DEFAULT_HALF_LIFE_SECONDS: u64 = 7 * 86_400;

/// Weight of a group that gives none.
pub const DEFAULT_GROUP_WEIGHT: u32 = 1;

/// A group of tenants: department, project or team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPlan {
    /// Name of the group, with the names of the groups above it.
    pub name: String,
    /// Weight among the groups of the same parent; `None`: the section gives none.
    pub weight: Option<u32>,
    /// Quotas of the group together with its subgroups, in the order of the file.
    pub quotas: Vec<QuotaPlan>,
    /// Place of the group's name in the file.
    pub place: TextRange,
}

/// A limit on what a group may use within a day, a week or a month.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaPlan {
    /// Period after which the use counts from 0 again.
    pub period: QuotaPeriod,
    /// Time zone in which the period begins.
    pub zone: TimeZone,
    /// Most device time, in thousandths of an hour; `None`: not limited.
    pub gpu_hours: Option<u32>,
    /// Most memory over time, in thousandths of a GiB-hour; `None`: not limited.
    pub gib_hours: Option<u32>,
    /// Restriction of the group's tenants when the quota is used up.
    pub effect: QuotaEffect,
    /// Place of the section in the file.
    pub place: TextRange,
}

impl QuotaPlan {
    /// Returns start and end of the period that contains `now`, in seconds since 1970; `None`: outside of the calendar.
    #[must_use]
    pub fn bounds_at(&self, now: i64) -> Option<(i64, i64)> {
        let today = self.zone.to_datetime(Timestamp::from_second(now).ok()?).date();
        let (first, next) = match self.period {
            QuotaPeriod::Day => (today, today.tomorrow().ok()?),
            QuotaPeriod::Week => {
                let monday = today.checked_sub(i64::from(today.weekday().to_monday_zero_offset()).days()).ok()?;
                (monday, monday.checked_add(7.days()).ok()?)
            }
            QuotaPeriod::Month => {
                let first = today.first_of_month();
                (first, first.checked_add(1.month()).ok()?)
            }
        };
        let midnight = |date: Date| self.zone.to_timestamp(date.at(0, 0, 0, 0)).ok().map(Timestamp::as_second);
        Some((midnight(first)?, midnight(next)?))
    }

    /// Returns the limited resources, each with its limit in thousandths of an hour.
    pub fn limits(&self) -> impl Iterator<Item = (QuotaResource, u32)> {
        let limits = [(QuotaResource::GpuHours, self.gpu_hours), (QuotaResource::GibHours, self.gib_hours)];
        limits.into_iter().filter_map(|(resource, limit)| Some((resource, limit?)))
    }
}

/// The resource that a quota limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaResource {
    /// Device time, in GPU-hours.
    GpuHours,
    /// Memory over time, in GiB-hours.
    GibHours,
}

impl QuotaResource {
    /// The unit for people.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::GpuHours => "GPU-hours",
            Self::GibHours => "GiB-hours",
        }
    }

    /// Returns the use of the resource in whole parts, [`Self::parts_per_step`] of which are a thousandth of an hour.
    #[must_use]
    pub const fn parts_of(self, gpu_ns: u128, byte_seconds: u128) -> u128 {
        match self {
            Self::GpuHours => gpu_ns,
            Self::GibHours => byte_seconds * 5,
        }
    }

    /// Returns the number of parts in a thousandth of an hour: nanoseconds, or fifths of a byte-second.
    #[must_use]
    pub const fn parts_per_step(self) -> u128 {
        match self {
            Self::GpuHours => 3_600_000_000,
            Self::GibHours => (1 << 30) * 18,
        }
    }
}

/// A period of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaPeriod {
    /// From midnight to midnight.
    Day,
    /// From Monday to Sunday.
    Week,
    /// A month of the calendar.
    Month,
}

/// Restriction of the tenants of a group that used up a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaEffect {
    /// They fall to class batch.
    Batch,
    /// Each has at most this ceiling.
    Ceiling(Share),
    /// They may not launch; they keep their memory.
    Pause,
}

impl QuotaPeriod {
    /// The period as the file writes it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// Most seconds that the period lasts, with an hour of daylight saving time.
    #[must_use]
    pub const fn max_seconds(self) -> u64 {
        let days = match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 31,
        };
        days * 86_400 + 3_600
    }
}

impl std::fmt::Display for QuotaEffect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Batch => f.write_str("class batch"),
            Self::Ceiling(share) => write!(f, "at most {share}"),
            Self::Pause => f.write_str("paused"),
        }
    }
}

impl GroupPlan {
    /// The group without its places, to compare two files.
    #[must_use]
    pub fn without_places(&self) -> Self {
        let quotas = self.quotas.iter().map(|quota| QuotaPlan { place: TextRange::default(), ..quota.clone() });
        Self { quotas: quotas.collect(), place: TextRange::default(), ..self.clone() }
    }
}

/// Returns the name of the group above; `None`: there is none.
#[must_use]
pub fn parent_of(group: &str) -> Option<&str> {
    group.rsplit_once('/').map(|(parent, _)| parent)
}

/// True if `group` is `above` or one of its subgroups.
#[must_use]
pub fn is_within(group: &str, above: &str) -> bool {
    group.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the group of the list that a tenant of `group` belongs to: the group itself, else the nearest one above it.
#[must_use]
pub fn owner_of<'g>(groups: &'g [GroupPlan], group: Option<&str>) -> Option<&'g GroupPlan> {
    let group = group?;
    groups.iter().filter(|plan| is_within(group, &plan.name)).max_by_key(|plan| plan.name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_belongs_to_the_nearest_group_above_it() {
        let group =
            |name: &str| GroupPlan { name: name.into(), weight: None, quotas: Vec::new(), place: TextRange::default() };
        let groups = [group("lab"), group("lab/vision"), group("ops")];
        let owner = |name| owner_of(&groups, name).map(|group| group.name.as_str());
        assert_eq!(owner(Some("lab/vision/ocr")), Some("lab/vision"));
        assert_eq!((owner(Some("lab/speech")), owner(Some("labs")), owner(None)), (Some("lab"), None, None));
        assert_eq!((parent_of("lab/vision"), parent_of("lab")), (Some("lab"), None));
    }
}
