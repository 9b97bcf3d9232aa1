//! Reads the use of tenants for the policies of the stage need: idle steps and deadlines.
//!
//! A followed tenant has a sample each second, unless it rests: while nothing of it changes, the next sample is needed
//! at the moment that its watch names ([`vgpu_policy::idle::IdleWatch::rests_until`]). Reports are read only where they
//! can have changed; memory and the number of processes change without a report.

use std::collections::{BTreeMap, BTreeSet};

use vgpu_accounting::clock;
use vgpu_accounting::record::ledgers::RoomDevice;
use vgpu_control::{DeadlineStatus, IdleStatus};
use vgpu_policy::idle::{ScaledUse, UseSample};

use super::deadlines::DeadlineFollower;
use super::idle::IdleFollower;
use super::{Reactor, arbiter_number};
use crate::journal::EventJournal;
use crate::room::TenantRoom;

/// Followed tenants.
pub(crate) struct NeedState {
    pub idle: IdleFollower,
    pub deadlines: DeadlineFollower,
    /// Use of the followed tenants at the last reading of their reports, by room.
    read: BTreeMap<u64, ReadUse>,
    /// Rooms whose use changed since their last sample.
    changed: BTreeSet<u64>,
    /// True if something changed that every tenant's samples depend on.
    has_all_changed: bool,
    /// Time of the last look at all followed tenants, in ns.
    pub looked: u64,
    /// Number of changes of held memory that the record had published at that time.
    held_changes: u64,
    /// Number of readings so far.
    #[cfg(test)]
    pub readings: usize,
    /// Number of samples so far.
    #[cfg(test)]
    pub samples: usize,
}

/// The part of a tenant's samples that changes only with its reports.
#[derive(Default)]
struct ReadUse {
    sample: UseSample,
    scaled: ScaledUse,
    /// Devices on which the tenant has members.
    devices: Vec<RoomDevice>,
    /// The last sample.
    last: UseSample,
    /// Time until which no sample is needed while nothing changes, in ns.
    rests_until: u64,
}

impl NeedState {
    pub fn new(deadlines: DeadlineFollower) -> Self {
        Self {
            idle: IdleFollower::default(),
            deadlines,
            read: BTreeMap::new(),
            changed: BTreeSet::new(),
            has_all_changed: false,
            looked: 0,
            held_changes: 0,
            #[cfg(test)]
            readings: 0,
            #[cfg(test)]
            samples: 0,
        }
    }

    /// Forgets what was seen of the tenants' use. The counts of deadlines stay.
    pub fn forget_use(&mut self, journal: &EventJournal) {
        self.idle.forget_all(journal);
        self.read.clear();
        self.changed.clear();
    }

    /// Notes that a tenant's use or terms changed. It has a sample at the next look, which reads its reports.
    pub fn note_changed(&mut self, room: u64) {
        if self.read.contains_key(&room) {
            self.changed.insert(room);
        }
    }

    /// Notes a change that may concern every tenant: each has a sample at the next look.
    pub fn note_all_changed(&mut self) {
        self.has_all_changed = true;
    }

    /// Notes until when a tenant needs no sample while nothing changes, in ns.
    pub fn note_rest(&mut self, room: u64, until: u64) {
        if let Some(read) = self.read.get_mut(&room) {
            read.rests_until = until;
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
        // Before the samples, so that a tenant with a sample of this look has rested for no time at the next one.
        let now = clock::now();
        let last_look = std::mem::replace(&mut self.policies.needs.looked, now);
        let samples = self.sample_followed(now);
        self.follow_deadlines(&samples);
        self.follow_idle(&samples, last_look);
    }

    /// A sample of each followed tenant that does not rest, by room.
    ///
    /// # Cost
    /// A search for each tenant, some more for those that do not rest, and
    /// [`crate::leases::LeaseBook::used_by_tenant`] for those whose reports can have changed. After a restart also
    /// [`crate::roster::MemberRoster::living_members`].
    fn sample_followed(&mut self, now: u64) -> Vec<(u64, UseSample)> {
        // A stopped process, or one without memory and launches, says no hello to the next daemon.
        let prior: BTreeSet<String> = self.roster.living_members().map(|prior| prior.tenant.clone()).collect();
        let held_changes = self.record.held_changes();
        let is_held_same = std::mem::replace(&mut self.policies.needs.held_changes, held_changes) == held_changes;
        let may_rest = !std::mem::take(&mut self.policies.needs.has_all_changed);
        let changed = std::mem::take(&mut self.policies.needs.changed);
        let mut all = std::mem::take(&mut self.policies.needs.read);
        let (mut due, mut followed) = (Vec::new(), 0);
        for (id, room) in self.rooms.iter().filter(|(_, room)| is_followed(room)) {
            followed += 1;
            let has_news = changed.contains(id) || self.leases.is_stirred(arbiter_number(*id));
            let rests = |read: &ReadUse| {
                may_rest && now < read.rests_until && self.is_as_sampled(room, &prior, read, is_held_same)
            };
            match all.get(id) {
                Some(read) if !has_news && rests(read) => {}
                read => due.push((*id, has_news || read.is_none())),
            }
        }
        let mut samples = Vec::with_capacity(due.len());
        for (id, is_read_again) in due {
            let read = all.entry(id).or_default();
            if is_read_again {
                self.read_use(id, read);
            }
            let Some(sample) = self.sample_use(id, &prior, read) else { continue };
            (read.last, read.rests_until) = (sample, 0);
            samples.push((id, sample));
        }
        if all.len() > followed {
            all.retain(|id, _| self.rooms.get(id).is_some_and(is_followed));
        }
        #[cfg(test)]
        {
            self.policies.needs.samples += samples.len();
        }
        self.policies.needs.read = all;
        samples
    }

    /// True if the inputs of a sample that change without a report or a note are as they were at the last one.
    fn is_as_sampled(&self, room: &TenantRoom, prior: &BTreeSet<String>, read: &ReadUse, is_held_same: bool) -> bool {
        let members = room.members + usize::from(prior.contains(&room.tenant.name));
        (members, room.joins) == (read.last.members, read.last.joins)
            && (is_held_same || self.held_on(&read.devices) == read.last.memory)
    }

    /// Bytes that a tenant holds on these devices.
    fn held_on(&self, devices: &[RoomDevice]) -> u64 {
        devices.iter().map(|whose| self.held_bytes(whose)).sum()
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
            memory: self.held_on(&read.devices),
            // Only a tenant that waits is compared with its floor.
            floor_permille: if work.waits { floors.max().unwrap_or(0) } else { 0 },
            is_paused: self.leases.is_paused(number),
            is_suspended: self.leases.is_suspended(number),
            is_unmeasured: work.is_unknown || read.sample.is_unmeasured,
            ..read.sample
        })
    }

    /// How a tenant uses what it holds, and its deadline, for the status.
    pub(super) fn need_statuses(&self, tenant: &str) -> (Option<IdleStatus>, Option<DeadlineStatus>) {
        let needs = &self.policies.needs;
        (needs.idle.status_of(tenant, needs.looked), needs.deadlines.status_of(tenant))
    }
}
