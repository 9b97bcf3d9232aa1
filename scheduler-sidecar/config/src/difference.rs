//! Compares two plans: the changes that a running daemon applies, and those that need a restart.

use std::collections::{BTreeMap, BTreeSet};

use super::groups::GroupPlan;
use super::plan::{ConfigPlan, DevicePlan, TenantPlan};
use super::schedule::{BookingPlan, WindowPlan};

/// Difference between the plan in force and a new one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanDifference {
    /// New tenants, in the order of the new plan.
    pub added: Vec<TenantPlan>,
    /// Names of tenants that only the old plan has, sorted.
    pub removed: Vec<String>,
    /// Tenants that are in both plans and differ, in the order of the new plan.
    pub changed: Vec<ChangedTenant>,
    /// Number of tenants that are equal in both plans.
    pub kept: usize,
    /// Keys that a running daemon cannot change, each with its old and new value.
    pub fixed: Vec<String>,
    /// Changed keys outside of the tenants.
    pub others: Vec<&'static str>,
}

/// A tenant that differs between the plans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedTenant {
    /// The tenant in the new plan.
    pub tenant: TenantPlan,
    /// Keys of the tenant that differ, sorted.
    pub what: Vec<&'static str>,
}

impl PlanDifference {
    /// Returns true if there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty()
            && self.removed.is_empty()
            && self.changed.is_empty()
            && self.fixed.is_empty()
            && self.others.is_empty()
    }
}

/// Returns the changes that turn the old plan into the new one.
#[must_use]
pub fn compare_plans(old: &ConfigPlan, new: &ConfigPlan) -> PlanDifference {
    let before: BTreeMap<&str, &TenantPlan> = old.tenants.iter().map(|tenant| (tenant.name.as_str(), tenant)).collect();
    let after: BTreeSet<&str> = new.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    let mut difference = PlanDifference {
        removed: before.keys().filter(|name| !after.contains(**name)).map(|name| (*name).to_owned()).collect(),
        fixed: fixed_changes(old, new),
        others: other_changes(old, new),
        ..Default::default()
    };
    for tenant in &new.tenants {
        match before.get(tenant.name.as_str()) {
            None => difference.added.push(tenant.clone()),
            Some(was) if *was == tenant => difference.kept += 1,
            Some(was) => {
                difference.changed.push(ChangedTenant { tenant: tenant.clone(), what: changed_keys(was, tenant) })
            }
        }
    }
    difference
}

/// Compares the keys that are bound to sockets and files when the daemon starts.
fn fixed_changes(old: &ConfigPlan, new: &ConfigPlan) -> Vec<String> {
    let (was, is) = (&old.daemon, &new.daemon);
    let mut fixed = Vec::new();
    let mut compare = |key: &str, was: String, is: String| {
        if was != is {
            fixed.push(format!("{key} is {was} and would become {is}"));
        }
    };
    let path =
        |path: &Option<std::path::PathBuf>| path.as_ref().map_or("none".into(), |path| path.display().to_string());
    compare("daemon.run_dir", was.run_dir.display().to_string(), is.run_dir.display().to_string());
    compare("daemon.state_dir", path(&was.state_dir), path(&is.state_dir));
    compare("daemon.admin_socket", path(&was.admin), path(&is.admin));
    compare("daemon.log", was.log.clone(), is.log.clone());
    if old.log != new.log {
        fixed.push("[log] is different".to_owned());
    }
    if old.proof != new.proof {
        fixed.push("[proof] is different".to_owned());
    }
    if old.metrics != new.metrics {
        fixed.push("[metrics] is different".to_owned());
    }
    fixed
}

fn other_changes(old: &ConfigPlan, new: &ConfigPlan) -> Vec<&'static str> {
    let mut others = Vec::new();
    if old.daemon.max_connections != new.daemon.max_connections {
        others.push("daemon.max_connections");
    }
    let record = |plan: &ConfigPlan| (plan.daemon.keep, plan.daemon.exact, plan.daemon.half_life);
    if record(old) != record(new) {
        others.push("record");
    }
    if (&old.time, old.arbitrate) != (&new.time, new.arbitrate) {
        others.push("time");
    }
    let bare = |plan: &ConfigPlan| -> Vec<DevicePlan> {
        plan.devices.iter().map(|device| DevicePlan { group_limits: Vec::new(), ..device.clone() }).collect()
    };
    if bare(old) != bare(new) {
        others.push("device");
    }
    let limits = |plan: &ConfigPlan| plan.devices.first().map(|device| device.group_limits.clone());
    if limits(old) != limits(new)
        || !old.groups.iter().map(GroupPlan::without_places).eq(new.groups.iter().map(GroupPlan::without_places))
    {
        others.push("group");
    }
    if !old.windows.iter().map(WindowPlan::without_place).eq(new.windows.iter().map(WindowPlan::without_place)) {
        others.push("window");
    }
    if !old.bookings.iter().map(BookingPlan::without_place).eq(new.bookings.iter().map(BookingPlan::without_place)) {
        others.push("booking");
    }
    if old.actions != new.actions {
        others.push("on_event");
    }
    others
}

/// Returns the keys in which two tenants differ.
fn changed_keys(was: &TenantPlan, is: &TenantPlan) -> Vec<&'static str> {
    let mut what = BTreeSet::new();
    let mut compare = |key, same: bool| {
        if !same {
            what.insert(key);
        }
    };
    compare("replicas", was.replicas == is.replicas);
    compare("gang", was.gang == is.gang);
    compare("group", was.bearer.group == is.bearer.group);
    compare("labels", was.bearer.labels == is.bearer.labels);
    compare("uids", was.uids == is.uids);
    compare("mode", was.mode == is.mode);
    compare("strict", was.strict == is.strict);
    compare("on_error", was.on_error == is.on_error);
    compare("on_loss", was.on_loss == is.on_loss);
    compare("socket", was.socket == is.socket);
    compare("deadline", was.usage.deadline == is.usage.deadline);
    compare("idle_steps", was.usage.idle == is.usage.idle);
    let devices = |tenant: &TenantPlan| tenant.terms.iter().map(|terms| terms.device.clone()).collect::<Vec<_>>();
    compare("devices", devices(was) == devices(is));
    let before: BTreeMap<&str, _> = was.terms.iter().map(|terms| (terms.device.as_str(), terms)).collect();
    for (a, b) in is.terms.iter().filter_map(|b| Some((before.get(b.device.as_str())?, b))) {
        compare("memory_limit", a.memory == b.memory);
        compare("sm_limit", a.ceiling == b.ceiling);
        compare("sm_request", a.floor == b.floor);
        compare("weight", a.weight == b.weight);
        compare("class", a.class == b.class);
        compare("quantum", a.quantum == b.quantum);
    }
    what.into_iter().collect()
}
