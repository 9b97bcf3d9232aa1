//! Reads the use of tenants for the policies of the stage need: idle steps and deadlines.

use std::collections::{BTreeMap, BTreeSet};

use vgpu_accounting::clock;
use vgpu_control::{DeadlineStatus, IdleStatus};
use vgpu_policy::idle::{ScaledUse, UseSample};
use vgpu_policy::usage::UsageChange;

use super::deadlines::DeadlineFollower;
use super::idle::IdleFollower;
use super::{Reactor, arbiter_number};

/// Followed tenants, by name.
pub(crate) struct NeedState {
    pub idle: IdleFollower,
    pub deadlines: DeadlineFollower,
    scaled: BTreeMap<String, ScaledUse>,
}

impl NeedState {
    pub fn new(deadlines: DeadlineFollower) -> Self {
        Self { idle: IdleFollower::default(), deadlines, scaled: BTreeMap::new() }
    }

    /// Forgets what was seen of the tenants' use. The counts of deadlines stay.
    pub fn forget_use(&mut self) {
        self.idle = IdleFollower::default();
        self.scaled.clear();
    }
}

impl Reactor {
    /// True if a tenant has idle steps or a deadline.
    pub(super) fn has_needs(&self) -> bool {
        !self.followed_rooms().is_empty() || !self.policies.needs.deadlines.is_empty()
    }

    fn followed_rooms(&self) -> Vec<u64> {
        let is_followed =
            |tenant: &crate::config::TenantConfig| tenant.usage.idle.is_some() || tenant.usage.deadline.is_some();
        let rooms = self.rooms.iter().filter(|(_, room)| !room.is_removed() && is_followed(&room.tenant));
        rooms.map(|(id, _)| *id).collect()
    }

    /// The changes of the stage need, from the use of now.
    pub(super) fn need_changes(&mut self) -> Vec<UsageChange> {
        let rooms = self.followed_rooms();
        let samples: Vec<(u64, UseSample)> = rooms.iter().filter_map(|id| Some((*id, self.sample_use(*id)?))).collect();
        let names: BTreeSet<String> =
            rooms.iter().filter_map(|id| self.rooms.get(id)).map(|room| room.tenant.name.clone()).collect();
        self.policies.needs.scaled.retain(|name, _| names.contains(name));
        let mut changes = self.deadline_changes(&samples);
        changes.extend(self.idle_changes(&samples));
        changes
    }

    /// The sums and the state of a tenant now.
    ///
    /// # Cost
    /// As [`crate::leases::LeaseBook::used_by_tenant`]: about ten loads for each member. After a restart also as
    /// [`crate::roster::MemberRoster::has_running_prior`].
    fn sample_use(&mut self, id: u64) -> Option<UseSample> {
        let (number, now) = (arbiter_number(id), clock::now());
        let used = self.leases.used_by_tenant(number, now);
        let work = self.leases.queued_work(number);
        let held = self.held_by_device(id, &used);
        let room = self.rooms.get(&id)?;
        let on = |device: &str| room.tenant.terms_on(device).map(|on| on.terms);
        let ceiling =
            |device: &str| on(device).and_then(|terms| terms.ceiling).map_or(1000, |share| share.as_permille());
        let floor = |device: &str| on(device).and_then(|terms| terms.floor).map_or(0, |share| share.as_permille());
        let scaled = self.policies.needs.scaled.entry(room.tenant.name.clone()).or_default();
        let sums = used.iter().map(|used| (used.device.as_str(), used.charged, ceiling(&used.device).into()));
        Some(UseSample {
            at: now,
            // A stopped process, or one without memory and launches, says no hello to the next daemon.
            members: room.members + usize::from(self.roster.has_running_prior(&room.tenant.name)),
            joins: room.joins,
            charged_ns: used.iter().map(|used| used.charged).sum(),
            scaled_ns: scaled.add_sums(sums),
            waited_ns: used.iter().map(|used| used.wait).sum(),
            launches: used.iter().map(|used| used.launches).sum(),
            in_flight: work.in_flight,
            waits: work.waits,
            memory: held.values().map(|held| held.used).sum(),
            floor_permille: used.iter().map(|used| u32::from(floor(&used.device))).max().unwrap_or(0),
            is_paused: self.leases.is_paused(number),
            is_unmeasured: work.is_unknown || used.iter().any(|used| used.unmeasured.now),
        })
    }

    /// How a tenant uses what it holds, and its deadline, for the status.
    pub(super) fn need_statuses(&self, tenant: &str) -> (Option<IdleStatus>, Option<DeadlineStatus>) {
        (self.policies.needs.idle.status_of(tenant), self.policies.needs.deadlines.status_of(tenant))
    }
}
