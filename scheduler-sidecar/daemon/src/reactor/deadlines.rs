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
use vgpu_policy::deadline::{DeadlineDecision, DeadlineDevice, DeadlineState, FloorSums, find_highest_ceiling};
use vgpu_policy::idle::UseSample;
use vgpu_policy::stage::PolicyStage;
use vgpu_policy::usage::{UsageChange, UsageEffect};
use vgpu_policy::words::format_time;

use super::Reactor;
use crate::config::{DeviceTermsConfig, device_name};
use crate::kept_deadlines::{DeadlineStore, KeptDeadline, KeptDeadlines};
use crate::room::TenantRoom;

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

    /// The changes of terms that were decided last.
    pub fn changes(&self) -> impl Iterator<Item = &UsageChange> {
        self.changes.iter()
    }

    /// Forgets every tenant that is not in `names`: its deadline has no effect any longer. Returns true if there was
    /// one.
    fn keep_only(&mut self, names: &BTreeSet<&str>) -> bool {
        let before = self.kept.len();
        self.kept.retain(|name, _| names.contains(name.as_str()));
        self.charged.retain(|name, _| names.contains(name.as_str()));
        self.states.retain(|name, _| names.contains(name.as_str()));
        self.kept.len() < before
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
    fn tell(&mut self, tenant: &str, state: DeadlineState, format: impl Fn(i64) -> String) {
        let Some(kept) = self.kept.get_mut(tenant) else { return };
        if !kept.is_news(state) {
            return;
        }
        let due = format(kept.due);
        match state {
            DeadlineState::OnTime => {}
            DeadlineState::AtRisk => warn!(
                kind = "deadline.at_risk",
                tenant, due, "the floor that the deadline needs is not admissible; the tenant gets what is"
            ),
            DeadlineState::Missed { since: at } => {
                let since = format(at);
                warn!(kind = "deadline.missed", tenant, due, since, "the deadline cannot be met any more");
            }
            DeadlineState::Met => {
                info!(kind = "deadline.met", tenant, due, "the work for the deadline got its device time");
            }
        }
    }
}

impl Reactor {
    /// Counts the work of deadlines, and decides the floors that they need when that is due.
    pub(super) fn follow_deadlines(&mut self, samples: &[(u64, UseSample)]) {
        let now = clock::unix_seconds();
        let follower = &mut self.policies.needs.deadlines;
        let mut followed: Vec<(&TenantRoom, DeadlinePlan)> = Vec::new();
        let mut is_new = false;
        for (id, sample) in samples {
            let Some(room) = self.rooms.get(id) else { continue };
            let (name, Some(plan)) = (&room.tenant.name, room.tenant.usage.deadline) else { continue };
            if follower.has_effect(name, &plan, now) {
                is_new |= follower.count(name, &plan, sample.charged_ns, now);
                followed.push((room, plan));
            }
        }
        // Each of them is counted, so more counts mean that some have ended, or that their tenants are not served yet.
        if follower.kept.len() > followed.len() {
            let followed = followed.iter().map(|(room, _)| room.tenant.name.as_str());
            is_new |= follower.keep_only(&followed.chain(self.added.waiting.keys().map(String::as_str)).collect());
        }
        let is_due = now >= follower.decided.saturating_add(DECISION_SECONDS) || now < follower.decided;
        if !is_new && !is_due {
            return;
        }
        let mut decided = Vec::new();
        let (mut sums, raised) = (self.floor_sums(), self.raised_floors());
        for (room, plan) in followed {
            let devices = self.deadline_devices(room, &raised);
            let name = &room.tenant.name;
            let follower = &self.policies.needs.deadlines;
            let received = follower.kept.get(name).map_or(0, |kept| kept.received_ns);
            let last = follower.states.get(name).copied().unwrap_or_default();
            let is_suspended = self.is_suspended(name);
            let is_paused_on = |device: &str| is_suspended || self.policies.is_paused_on(name, device);
            let decision = sums.decide_next(&plan, received, &devices, last, is_paused_on, now);
            decided.push((name.clone(), plan, devices, decision));
        }
        let zone = self.policies.zone.clone();
        let follower = &mut self.policies.needs.deadlines;
        follower.decided = now;
        follower.changes.clear();
        for (name, plan, devices, decision) in decided {
            follower.states.insert(name.clone(), decision.state);
            follower.tell(&name, decision.state, |at| format_time(&zone, at));
            follower.changes.extend(floor_changes(&name, &plan, &devices, &decision));
        }
        if let Some(store) = &follower.store {
            store.save(&follower.kept);
        }
    }

    /// The floors in force of all tenants, also of those that were removed and still have processes.
    fn floor_sums(&self) -> FloorSums {
        let mut sums = FloorSums::default();
        for on in self.rooms.values().flat_map(|room| &room.tenant.on) {
            sums.add_floor(&device_name(&on.device), on.terms.floor);
        }
        for terms in self.left_promises().flat_map(|left| &left.terms) {
            sums.add_floor(&terms.device, terms.floor);
        }
        // Slots that wait until processes leave count with the larger of what they have and what the file says.
        for wanted in self.slots.wanted_slots() {
            let room = self.rooms.values().find(|room| room.tenant.name == wanted.name);
            for terms in &wanted.terms {
                let has =
                    room.and_then(|room| room.tenant.on.iter().find(|on| device_name(&on.device) == terms.device));
                let has = has.and_then(|on| on.terms.floor).map_or(0, Share::as_permille);
                let wants = terms.floor.map_or(0, Share::as_permille);
                sums.add_floor(&terms.device, Share::from_permille(wants.saturating_sub(has).into()));
            }
        }
        sums
    }

    /// The floors that the last decisions raised, by tenant and device, in thousandths.
    fn raised_floors(&self) -> BTreeMap<(&str, &str), u32> {
        let raised = |change: &'_ UsageChange| match change.effect {
            UsageEffect::RaiseFloor(floor) => u32::from(floor.as_permille()),
            _ => 0,
        };
        let changes = self.policies.needs.deadlines.changes.iter();
        changes
            .filter_map(|change| Some(((change.tenant.as_str(), change.device.as_deref()?), raised(change))))
            .collect()
    }

    /// A tenant's devices with its terms there.
    fn deadline_devices(&self, room: &TenantRoom, raised: &BTreeMap<(&str, &str), u32>) -> Vec<DeadlineDevice> {
        let windows = self.loaded.as_ref().map_or(&[][..], |loaded| &loaded.plan.windows);
        let own = TenantPlan::from(&room.base);
        let device = |on: &DeviceTermsConfig| {
            let name = device_name(&on.device);
            DeadlineDevice {
                floor: on.terms.floor,
                ceiling: on.terms.ceiling,
                highest_ceiling: find_highest_ceiling(&own, &name, on.terms.ceiling, windows),
                raised: raised.get(&(room.tenant.name.as_str(), name.as_str())).copied().unwrap_or(0),
                name,
            }
        };
        room.tenant.on.iter().map(device).collect()
    }
}

/// The changes of terms that a decision makes.
fn floor_changes<'d>(
    tenant: &'d str,
    plan: &'d DeadlinePlan,
    devices: &'d [DeadlineDevice],
    decision: &'d DeadlineDecision,
) -> impl Iterator<Item = UsageChange> + 'd {
    let thousandths = plan.needed_ns / NS_PER_THOUSANDTH_HOUR;
    let reason = format!("{}.{:03} GPU hours", thousandths / 1000, thousandths % 1000);
    let floors = devices.iter().zip(&decision.floors).filter_map(|(device, floor)| Some((device, (*floor)?)));
    floors.map(move |(device, floor)| UsageChange {
        stage: PolicyStage::Need,
        name: "deadline".into(),
        tenant: tenant.to_owned(),
        device: Some(device.name.clone()),
        effect: UsageEffect::RaiseFloor(floor),
        until: Some(plan.due),
        reason: Some(reason.clone()),
    })
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
