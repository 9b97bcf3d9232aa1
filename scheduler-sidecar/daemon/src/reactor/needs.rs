//! Reads the use of tenants for the policies of the stage need: idle steps and deadlines.
//!
//! Each followed tenant has a sample each second. Reports are read only where they can have changed; memory, pauses and
//! the number of processes change without a report.

use std::collections::{BTreeMap, BTreeSet};

use vgpu_accounting::clock;
use vgpu_accounting::record::ledgers::RoomDevice;
use vgpu_control::{DeadlineStatus, IdleStatus};
use vgpu_policy::idle::{ScaledUse, UseSample};

use super::deadlines::DeadlineFollower;
use super::idle::IdleFollower;
use super::{Reactor, arbiter_number};
use crate::room::TenantRoom;

/// Followed tenants.
pub(crate) struct NeedState {
    pub idle: IdleFollower,
    pub deadlines: DeadlineFollower,
    /// Use of the followed tenants at the last reading of their reports, by room.
    read: BTreeMap<u64, ReadUse>,
    /// Rooms whose use changed since their last sample.
    changed: BTreeSet<u64>,
    /// Number of readings so far.
    #[cfg(test)]
    pub readings: usize,
}

/// The part of a tenant's samples that changes only with its reports.
#[derive(Default)]
struct ReadUse {
    sample: UseSample,
    scaled: ScaledUse,
    /// Devices on which the tenant has members.
    devices: Vec<RoomDevice>,
}

impl NeedState {
    pub fn new(deadlines: DeadlineFollower) -> Self {
        Self {
            idle: IdleFollower::default(),
            deadlines,
            read: BTreeMap::new(),
            changed: BTreeSet::new(),
            #[cfg(test)]
            readings: 0,
        }
    }

    /// Forgets what was seen of the tenants' use. The counts of deadlines stay.
    pub fn forget_use(&mut self) {
        self.idle = IdleFollower::default();
        self.read.clear();
        self.changed.clear();
    }

    /// Notes that a tenant's use changed. The next sample reads its reports.
    pub fn note_changed(&mut self, room: u64) {
        if self.read.contains_key(&room) {
            self.changed.insert(room);
        }
    }
}

fn is_followed(room: &TenantRoom) -> bool {
    let usage = &room.tenant.usage;
    !room.is_removed() && (usage.idle.is_some() || usage.deadline.is_some())
}

impl Reactor {
    /// True if a tenant has idle steps or a deadline.
    pub(super) fn has_needs(&self) -> bool {
        self.rooms.values().any(is_followed) || !self.policies.needs.deadlines.is_empty()
    }

    /// Lets the policies of the stage need decide about the use of now.
    pub(super) fn follow_needs(&mut self) {
        let samples = self.sample_followed();
        self.follow_deadlines(&samples);
        self.follow_idle(&samples);
    }

    /// A sample of each followed tenant, by room.
    ///
    /// # Cost
    /// A few searches for each tenant, and [`crate::leases::LeaseBook::used_by_tenant`] for those whose reports can
    /// have changed. After a restart also [`crate::roster::MemberRoster::living_members`].
    fn sample_followed(&mut self) -> Vec<(u64, UseSample)> {
        let rooms: Vec<u64> = self.rooms.iter().filter(|(_, room)| is_followed(room)).map(|(id, _)| *id).collect();
        // A stopped process, or one without memory and launches, says no hello to the next daemon.
        let prior: BTreeSet<String> = self.roster.living_members().map(|prior| prior.tenant.clone()).collect();
        let mut all = std::mem::take(&mut self.policies.needs.read);
        let mut samples = Vec::with_capacity(rooms.len());
        for id in rooms {
            let is_new = !all.contains_key(&id);
            let read = all.entry(id).or_default();
            if is_new || self.policies.needs.changed.remove(&id) || self.leases.is_stirred(arbiter_number(id)) {
                self.read_use(id, read);
            }
            samples.extend(self.sample_use(id, &prior, read).map(|sample| (id, sample)));
        }
        if all.len() > samples.len() {
            let followed: BTreeSet<u64> = samples.iter().map(|(id, _)| *id).collect();
            all.retain(|id, _| followed.contains(id));
        }
        self.policies.needs.read = all;
        self.policies.needs.changed.clear();
        samples
    }

    /// Reads a tenant's reports.
    fn read_use(&mut self, id: u64, read: &mut ReadUse) {
        #[cfg(test)]
        {
            self.policies.needs.readings += 1;
        }
        let used = self.leases.used_by_tenant(arbiter_number(id), clock::now());
        let Some(room) = self.rooms.get(&id) else { return };
        let on = |device: &str| room.tenant.terms_on(device).map(|on| on.terms);
        let ceiling =
            |device: &str| on(device).and_then(|terms| terms.ceiling).map_or(1000, |share| share.as_permille());
        let sums = used.iter().map(|used| (used.device.as_str(), used.charged, ceiling(&used.device).into()));
        read.sample = UseSample {
            charged_ns: used.iter().map(|used| used.charged).sum(),
            scaled_ns: read.scaled.add_sums(sums),
            waited_ns: used.iter().map(|used| used.wait).sum(),
            launches: used.iter().map(|used| used.launches).sum(),
            is_unmeasured: used.iter().any(|used| used.unmeasured.now),
            ..UseSample::default()
        };
        read.devices.clear();
        read.devices.extend(used.into_iter().filter(|used| used.members > 0).map(|used| (id, used.device)));
    }

    /// The sample of now. `prior`: tenants with members of the previous daemon that have not come back to this one.
    fn sample_use(&self, id: u64, prior: &BTreeSet<String>, read: &ReadUse) -> Option<UseSample> {
        let (number, room) = (arbiter_number(id), self.rooms.get(&id)?);
        let work = self.leases.queued_work(number);
        let floor = |(_, device): &RoomDevice| room.tenant.terms_on(device)?.terms.floor;
        let floors = read.devices.iter().filter_map(floor).map(|floor| u32::from(floor.as_permille()));
        Some(UseSample {
            at: clock::now(),
            members: room.members + usize::from(prior.contains(&room.tenant.name)),
            joins: room.joins,
            in_flight: work.in_flight,
            waits: work.waits,
            memory: read.devices.iter().map(|whose| self.held_bytes(whose)).sum(),
            // Only a tenant that waits is compared with its floor.
            floor_permille: if work.waits { floors.max().unwrap_or(0) } else { 0 },
            is_paused: self.leases.is_paused(number),
            is_unmeasured: work.is_unknown || read.sample.is_unmeasured,
            ..read.sample
        })
    }

    /// How a tenant uses what it holds, and its deadline, for the status.
    pub(super) fn need_statuses(&self, tenant: &str) -> (Option<IdleStatus>, Option<DeadlineStatus>) {
        (self.policies.needs.idle.status_of(tenant), self.policies.needs.deadlines.status_of(tenant))
    }
}
