//! Follows deadlines: counts what the work gets, raises floors, and tells when a deadline is met or cannot be met.
//!
//! The decisions are [`vgpu_policy::deadline`]. The counts outlive the daemon ([`crate::kept_deadlines`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tracing::{info, warn};
use vgpu_accounting::clock;
use vgpu_config::plan::TenantPlan;
use vgpu_config::usage::DeadlinePlan;
use vgpu_control::DeadlineStatus;
use vgpu_core::units::share::Share;
use vgpu_policy::deadline::{DeadlineRoom, DeadlineState, decide_deadline, find_highest_ceiling};
use vgpu_policy::idle::UseSample;
use vgpu_policy::stage::PolicyStage;
use vgpu_policy::usage::{UsageChange, UsageEffect};

use super::Reactor;
use crate::config::{TenantConfig, device_name};
use crate::kept_deadlines::{DeadlineStore, KeptDeadline, KeptDeadlines};

/// Time between two decisions, in seconds: floors follow hours.
const DECISION_SECONDS: i64 = 10;

const NS_PER_THOUSANDTH_HOUR: u64 = 3_600_000_000;

/// Deadlines that are followed, by tenant.
#[derive(Debug)]
pub(crate) struct DeadlineFollower {
    /// `None`: there is no directory of state.
    store: Option<DeadlineStore>,
    kept: KeptDeadlines,
    states: BTreeMap<String, DeadlineState>,
    /// Device time charged at the last sample, in ns.
    charged: BTreeMap<String, u64>,
    changes: Vec<UsageChange>,
    /// Wall clock at the last decision, in seconds since 1970.
    decided: i64,
}

impl DeadlineFollower {
    pub fn below(state_dir: Option<&Path>) -> Self {
        let store = state_dir.map(DeadlineStore::below);
        let kept = store.as_ref().map(DeadlineStore::read_all).unwrap_or_default();
        let (states, charged) = (BTreeMap::new(), BTreeMap::new());
        Self { store, kept, states, charged, changes: Vec::new(), decided: i64::MIN }
    }

    /// True if nothing is counted.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// A tenant's deadline; `None`: it has none.
    #[expect(clippy::cast_precision_loss, reason = "for people: exact to the microsecond for a century")]
    pub fn status_of(&self, tenant: &str) -> Option<DeadlineStatus> {
        let kept = self.kept.get(tenant)?;
        let hours = |ns: u64| (ns / 1_000) as f64 / 3.6e9;
        let state = match self.states.get(tenant).copied().unwrap_or_default() {
            DeadlineState::OnTime => "on time",
            DeadlineState::AtRisk => "at risk",
            DeadlineState::Missed { .. } => "missed",
            DeadlineState::Met => "met",
        };
        Some(DeadlineStatus {
            due: kept.due,
            gpu_hours_needed: hours(kept.needed_ns),
            gpu_hours_received: hours(kept.received_ns),
            state: state.to_owned(),
        })
    }

    /// True if a deadline has effect: it is to come, or its work was counted before it was over.
    fn has_effect(&self, tenant: &str, plan: &DeadlinePlan, now: i64) -> bool {
        plan.due > now || self.kept.get(tenant).is_some_and(|kept| kept.due == plan.due)
    }

    /// Counts what the tenant got since its last sample. Time before the first sample is not counted: the last daemon
    /// did, or nobody.
    fn count(&mut self, tenant: &str, plan: &DeadlinePlan, charged_ns: u64, now: i64) -> bool {
        let before = self.kept.get(tenant).copied();
        let mut kept = KeptDeadline::continue_for(before.as_ref(), plan, now);
        let last = self.charged.insert(tenant.to_owned(), charged_ns).unwrap_or(charged_ns);
        kept.received_ns = kept.received_ns.saturating_add(charged_ns.saturating_sub(last));
        self.kept.insert(tenant.to_owned(), kept);
        // Another plan is decided and stored at once.
        before.is_none_or(|before| (before.due, before.needed_ns) != (kept.due, kept.needed_ns))
    }

    /// Tells a state if it is news.
    fn tell(&mut self, tenant: &str, state: DeadlineState, due: &str, since: impl Fn(i64) -> String) {
        let Some(kept) = self.kept.get_mut(tenant) else { return };
        if !kept.is_news(state) {
            return;
        }
        match state {
            DeadlineState::OnTime => {}
            DeadlineState::AtRisk => warn!(
                kind = "deadline.at_risk",
                tenant, due, "the floor that the deadline needs is not admissible; the tenant gets what is"
            ),
            DeadlineState::Missed { since: at } => {
                let since = since(at);
                warn!(kind = "deadline.missed", tenant, due, since, "the deadline cannot be met any more");
            }
            DeadlineState::Met => {
                info!(kind = "deadline.met", tenant, due, "the work for the deadline got its device time");
            }
        }
    }
}

impl Reactor {
    /// Counts the work of deadlines, and returns the floors that they need.
    pub(super) fn deadline_changes(&mut self, samples: &[(u64, UseSample)]) -> Vec<UsageChange> {
        let now = clock::unix_seconds();
        let mut all: Vec<(TenantConfig, DeadlinePlan)> = Vec::new();
        let mut is_new = false;
        for (id, sample) in samples {
            let Some(room) = self.rooms.get(id) else { continue };
            let Some(plan) = room.tenant.usage.deadline else { continue };
            if !self.policies.needs.deadlines.has_effect(&room.tenant.name, &plan, now) {
                continue;
            }
            is_new |= self.policies.needs.deadlines.count(&room.tenant.name, &plan, sample.charged_ns, now);
            all.push((room.tenant.clone(), plan));
        }
        let names: BTreeSet<&str> = all.iter().map(|(tenant, _)| tenant.name.as_str()).collect();
        let follower = &mut self.policies.needs.deadlines;
        let before = follower.kept.len();
        follower.kept.retain(|name, _| names.contains(name.as_str()));
        follower.charged.retain(|name, _| names.contains(name.as_str()));
        let is_due = now >= follower.decided.saturating_add(DECISION_SECONDS) || now < follower.decided;
        if !is_new && !is_due && follower.kept.len() == before {
            return follower.changes.clone();
        }
        follower.decided = now;
        let changes = all.iter().flat_map(|(tenant, plan)| self.decide_one(tenant, plan, now)).collect::<Vec<_>>();
        let follower = &mut self.policies.needs.deadlines;
        follower.changes.clone_from(&changes);
        if let Some(store) = &follower.store {
            store.save(&follower.kept);
        }
        changes
    }

    fn decide_one(&mut self, tenant: &TenantConfig, plan: &DeadlinePlan, now: i64) -> Vec<UsageChange> {
        let rooms = self.deadline_rooms(tenant);
        let due = self.policies.format_time(plan.due);
        let received = self.policies.needs.deadlines.kept.get(&tenant.name).map_or(0, |kept| kept.received_ns);
        let decision = decide_deadline(plan, received, &rooms, now);
        let zone = self.policies.zone.clone();
        let follower = &mut self.policies.needs.deadlines;
        follower.states.insert(tenant.name.clone(), decision.state);
        follower.tell(&tenant.name, decision.state, &due, |at| vgpu_policy::words::format_time(&zone, at));
        let thousandths = plan.needed_ns / NS_PER_THOUSANDTH_HOUR;
        let reason = format!("{}.{:03} GPU hours", thousandths / 1000, thousandths % 1000);
        let change = |(device, floor): (String, Share)| UsageChange {
            stage: PolicyStage::Need,
            name: "deadline".into(),
            tenant: tenant.name.clone(),
            device: Some(device),
            effect: UsageEffect::RaiseFloor(floor),
            until: Some(plan.due),
            reason: Some(reason.clone()),
        };
        let devices = tenant.on.iter().map(|on| device_name(&on.device));
        let floors = devices.zip(decision.floors).filter_map(|(device, floor)| Some((device, floor?)));
        // A paused tenant cannot use a promise.
        floors.filter(|(device, _)| !self.policies.is_paused_on(&tenant.name, device)).map(change).collect()
    }

    /// The room that a tenant's deadline has on each of its devices, next to the floors of all others.
    fn deadline_rooms(&self, tenant: &TenantConfig) -> Vec<DeadlineRoom> {
        let others = || self.rooms.values().filter(|room| room.tenant.name != tenant.name);
        let promised = |device: &str| -> u32 {
            let floors = others().flat_map(|room| &room.tenant.on).filter(|on| device_name(&on.device) == device);
            let live = floors.filter_map(|on| on.terms.floor).map(|floor| u32::from(floor.as_permille()));
            let left = self.left_promises().flat_map(|left| &left.terms).filter(|terms| terms.device == device);
            let left = left.filter_map(|terms| terms.floor).map(|floor| u32::from(floor.as_permille()));
            live.chain(left).sum()
        };
        let windows = self.loaded.as_ref().map_or(&[][..], |loaded| &loaded.plan.windows);
        let own = self.rooms.values().find(|room| !room.is_removed() && room.tenant.name == tenant.name);
        let own = TenantPlan::from(own.map_or(tenant, |room| &room.base));
        let room = |on: &crate::config::DeviceTermsConfig| {
            let device = device_name(&on.device);
            let in_force = on.terms.ceiling.map_or(1000, |share| u32::from(share.as_permille()));
            let ceiling = find_highest_ceiling(&own, &device, on.terms.ceiling, windows);
            let is_own = |change: &&UsageChange| {
                change.tenant == tenant.name && change.device.as_deref() == Some(device.as_str())
            };
            let raised =
                self.policies.needs.deadlines.changes.iter().find(is_own).map_or(0, |change| match change.effect {
                    UsageEffect::RaiseFloor(floor) => u32::from(floor.as_permille()),
                    _ => 0,
                });
            DeadlineRoom { admissible: 1000_u32.saturating_sub(promised(&device)).min(in_force), ceiling, raised }
        };
        tenant.on.iter().map(room).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_was_over_before_anything_was_counted_has_no_effect() {
        let mut follower = DeadlineFollower::below(None);
        let plan = |due| DeadlinePlan { due, needed_ns: 50 };
        assert!(!follower.has_effect("a", &plan(100), 100), "it is over, and nothing is known of its work");
        assert!(follower.has_effect("a", &plan(100), 99));
        follower.count("a", &plan(100), 0, 99);
        assert!(follower.has_effect("a", &plan(100), 100), "its count says whether it is missed or met");
        assert!(!follower.has_effect("a", &plan(98), 100), "another deadline");
    }
}
