//! Quotas of groups: the period of each, whether it is used up, and the restriction of its tenants.
//!
//! A quota counts what the record has of its group and of all subgroups since the period began. All sums and limits
//! are integers: a quota is used up at exactly its limit.

use std::collections::{BTreeMap, BTreeSet};

use vgpu_config::groups::{GroupPlan, QuotaEffect, QuotaPeriod, QuotaResource, is_within};

use crate::stage::PolicyStage;
use crate::usage::{Restriction, UsageChange, UsageEffect};

/// Use of a group within a period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeriodUse {
    /// Device time, in ns.
    pub gpu_ns: u64,
    /// Bytes held, multiplied by the seconds for which they were held.
    pub byte_seconds: u64,
}

/// Use by the start of a period, and there by the group's name in the record.
pub type UseByPeriod = BTreeMap<i64, BTreeMap<String, PeriodUse>>;

/// How much of a quota is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaLevel {
    /// Less than 80 %.
    Free,
    /// At least 80 %.
    Near,
    /// All of it: the group is restricted.
    UsedUp,
}

/// One limit of one quota, now.
#[derive(Debug, Clone, PartialEq)]
pub struct QuotaState {
    /// Name of the group.
    pub group: String,
    /// Period of the quota.
    pub period: QuotaPeriod,
    /// Restriction when it is used up.
    pub effect: QuotaEffect,
    /// The limited resource.
    pub resource: QuotaResource,
    /// The limit, in thousandths of an hour.
    pub limit: u32,
    /// Use since the period began, in hours.
    pub used_hours: f64,
    /// How much is used.
    pub level: QuotaLevel,
    /// Start of the period, in seconds since 1970.
    pub start: i64,
    /// End of the period, in seconds since 1970.
    pub end: i64,
}

impl QuotaState {
    /// The limit in words: `40 GPU-hours a week`.
    #[must_use]
    pub fn limit_words(&self) -> String {
        format!("{} {} a {}", f64::from(self.limit) / 1000.0, self.resource.unit(), self.period.word())
    }
}

/// Returns the starts of all periods that contain `now`.
#[must_use]
pub fn period_starts(groups: &[GroupPlan], now: i64) -> BTreeSet<i64> {
    let quotas = groups.iter().flat_map(|group| &group.quotas);
    quotas.filter_map(|quota| quota.bounds_at(now)).map(|(start, _)| start).collect()
}

/// Returns the state of each limit of each quota at `now`.
#[must_use]
pub fn judge_quotas(groups: &[GroupPlan], used: &UseByPeriod, now: i64) -> Vec<QuotaState> {
    let mut states = Vec::new();
    for group in groups {
        for quota in &group.quotas {
            let Some((start, end)) = quota.bounds_at(now) else { continue };
            let of_group = used.get(&start).into_iter().flatten().filter(|(name, _)| is_within(name, &group.name));
            let sum = of_group.fold((0_u128, 0_u128), |sum, (_, used)| {
                (sum.0 + u128::from(used.gpu_ns), sum.1 + u128::from(used.byte_seconds))
            });
            states.extend(quota.limits().map(|(resource, limit)| {
                let (used, step) = (resource.parts_of(sum.0, sum.1), resource.parts_per_step());
                let (period, effect, name) = (quota.period, quota.effect, group.name.clone());
                let (level, used_hours) = (level_of(used, u128::from(limit) * step), to_hours(used, step));
                QuotaState { group: name, period, effect, resource, limit, used_hours, level, start, end }
            }));
        }
    }
    states
}

/// Returns the state of each limit at `now`, where `last` were the states before. After another file or at the end of a
/// period the record needs a moment to sum up the use since the new start. Until it has that, the last states stay
/// until their periods end: unknown use is not no use.
#[must_use]
pub fn follow_quotas<'a>(
    groups: &[GroupPlan],
    used: &UseByPeriod,
    last: impl IntoIterator<Item = &'a QuotaState>,
    now: i64,
) -> Vec<QuotaState> {
    if period_starts(groups, now).iter().all(|start| used.contains_key(start)) {
        return judge_quotas(groups, used, now);
    }
    last.into_iter().filter(|state| state.end > now).cloned().collect()
}

fn level_of(used: u128, limit: u128) -> QuotaLevel {
    match (used >= limit, used * 5 >= limit * 4) {
        (true, _) => QuotaLevel::UsedUp,
        (false, true) => QuotaLevel::Near,
        (false, false) => QuotaLevel::Free,
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people; the comparison is exact")]
fn to_hours(used: u128, step: u128) -> f64 {
    used as f64 / step as f64 / 1000.0
}

/// Returns the restrictions of the tenants whose group, or a group above it, used up a quota. A tenant is its name and
/// its group.
#[must_use]
pub fn quota_changes<'t>(
    tenants: impl IntoIterator<Item = (&'t str, Option<&'t str>)>,
    states: &[QuotaState],
) -> Vec<UsageChange> {
    let used_up: Vec<&QuotaState> = states.iter().filter(|state| state.level == QuotaLevel::UsedUp).collect();
    let mut changes = Vec::new();
    for (tenant, group) in tenants {
        let Some(group) = group.filter(|_| !used_up.is_empty()) else { continue };
        let of_tenant = used_up.iter().filter(|state| is_within(group, &state.group));
        changes.extend(of_tenant.map(|state| UsageChange {
            stage: PolicyStage::Group,
            name: state.group.clone(),
            tenant: tenant.to_owned(),
            device: None,
            effect: UsageEffect::Restrict(restriction_of(state.effect)),
            until: Some(state.end),
            reason: Some(format!("its quota of {} is used up", state.limit_words())),
        }));
    }
    changes
}

fn restriction_of(effect: QuotaEffect) -> Restriction {
    match effect {
        QuotaEffect::Batch => Restriction { is_batch: true, ..Restriction::default() },
        QuotaEffect::Ceiling(share) => Restriction { ceiling: Some(share), ..Restriction::default() },
        QuotaEffect::Pause => Restriction { is_paused: true, ..Restriction::default() },
    }
}
