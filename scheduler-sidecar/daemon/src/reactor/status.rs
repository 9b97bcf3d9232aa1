//! Builds the status report, and passes usage to the record once a second.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use vgpu_core::limits::Mode;
use vgpu_core::units::uuid::{self, uuid_key};

use super::reload::LoadedFile;
use super::time::room_number;
use super::{Reactor, TenantRoom, arbiter_number};
use crate::config::{DeviceName, DeviceTermsConfig, TenantConfig, device_name};
use crate::connection::{ConnectionSide, ConnectionState};
use crate::leases::view::{Explained, MeasuredProgress, OnDevice, Used};
use crate::promises::PromiseLook;
use crate::recent::RecentSums;
use vgpu_accounting::clock;
use vgpu_accounting::record::energy::EnergyUse;
use vgpu_accounting::record::integrate;
use vgpu_accounting::record::ledgers::{HeldMemory, RoomDevice};
use vgpu_config::show;
use vgpu_control::explain::TenantFacts;
use vgpu_control::service::ServiceSums;
use vgpu_control::{DaemonStatus, DeviceStatus, EnergyStatus, MemberDevice, MemberStatus, TermsStatus, TimeStatus};

#[expect(clippy::cast_precision_loss, reason = "for people and graphs: exact to the microsecond for a century")]
fn to_seconds(ns: u64) -> f64 {
    (ns / 1_000) as f64 / 1e6
}

/// Usage and state of a tenant at one moment, from the leases.
#[derive(Default)]
struct LeaseReading {
    used: Vec<Used>,
    /// Promise and delivery, one entry for each of `used`.
    service: Vec<ServiceSums>,
    said: Vec<Explained>,
    members: Vec<OnDevice>,
}

/// Devices of a tenant's members, by member number.
fn members_on(seen: &LeaseReading) -> BTreeMap<u64, Vec<MemberDevice>> {
    let mut on: BTreeMap<u64, Vec<MemberDevice>> = BTreeMap::new();
    for place in &seen.members {
        on.entry(place.member).or_default().push(MemberDevice {
            device: place.device.clone(),
            lease: place.gate.to_owned(),
            waits: place.stands,
            gpu_seconds: (place.busy > 0 || !place.unmeasured).then(|| to_seconds(place.busy)),
            waited_seconds: to_seconds(place.waited),
            memory_used: None,
            overhead: None,
        });
    }
    on
}

impl Reactor {
    /// The complete status.
    ///
    /// # Cost
    /// Reads every member's report once and formats the tenants' sums: a few microseconds for each member.
    pub(crate) fn full_status(&mut self) -> DaemonStatus {
        let (now, groups) = (Instant::now(), self.group_statuses());
        let rooms: Vec<u64> = self.rooms.keys().copied().collect();
        let mut members = self.members_by_room(now);
        let mut tenants = Vec::new();
        let mut holders = BTreeMap::new();
        for id in rooms {
            let seen = self.read_leases(id);
            let Some(room) = self.rooms.get(&id) else { continue };
            let mut status = room.tenant_status();
            let on = members_on(&seen);
            let held = self.held_by_device(id, &seen.used);
            status.devices = self.terms_rows(id, room, &seen, &held);
            holders.extend(seen.said.into_iter().map(|said| (said.device, said.holder)));
            (status.idle, status.deadline) = self.need_statuses(&status.name);
            status.labels_live = self.live_labels(&status.name);
            status.paused = self.leases.is_paused(arbiter_number(id));
            status.suspended = self.leases.is_suspended(arbiter_number(id));
            status.added = self.added.status_of(&status.name, clock::now()).filter(|_| !status.removed);
            status.members = members
                .remove(&id)
                .unwrap_or_default()
                .into_iter()
                .map(|(member, mut status)| {
                    status.devices = on.get(&member).cloned().unwrap_or_default();
                    for device in &mut status.devices {
                        let part = held.get(&device.device).and_then(|held| held.part_of(status.pid_inside));
                        (device.memory_used, device.overhead) =
                            (part.map(|part| part.used), part.map(|part| part.overhead));
                    }
                    status
                })
                .collect();
            status.members.sort_by_key(|member| (std::cmp::Reverse(member.connected_seconds), member.pid));
            tenants.push(status);
        }
        self.forget_ended();
        tenants.extend(self.left_statuses());
        DaemonStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: now.duration_since(self.started).as_secs(),
            configuration: self.loaded.as_ref().map(LoadedFile::configuration_status),
            record: Some(self.record.record_status()),
            audit: self.journal.audit_status(),
            devices: self.devices_status(&holders),
            tenants,
            cordons: self.cordon_statuses(),
            groups,
            faults: self.daemon_faults(),
            actions: self.journal.action_statuses(),
            queued_additions: self.additions.waiting(clock::now()).len(),
            findings: self.proof.as_ref().map(|proof| proof.current_findings()).unwrap_or_default(),
        }
    }

    /// Members of each room, each with its number.
    fn members_by_room(&self, now: Instant) -> BTreeMap<u64, Vec<(u64, MemberStatus)>> {
        let mut members: BTreeMap<u64, Vec<(u64, MemberStatus)>> = BTreeMap::new();
        for connection in self.connections.values() {
            let (ConnectionSide::Member(id), ConnectionState::Registered(hello, since)) =
                (connection.side, &connection.state)
            else {
                continue;
            };
            let Some(member) = connection.member else { continue };
            let status = MemberStatus {
                pid: connection.peer.pid,
                pid_inside: hello.pid,
                uid: connection.peer.uid,
                gid: connection.peer.gid,
                version: hello.version.clone(),
                connected_seconds: now.duration_since(*since).as_secs(),
                suspended_since: connection.process.and_then(|process| self.suspended_since(process)),
                place: connection.place.as_deref().cloned(),
                devices: Vec::new(),
            };
            members.entry(id).or_default().push((member, status));
        }
        members
    }

    /// Memory that a tenant holds on each device that it used, by UUID, including memory that its ledgers do not
    /// contain.
    pub(super) fn held_by_device(&self, id: u64, used: &[Used]) -> BTreeMap<String, HeldMemory> {
        let on = |used: &Used| {
            let mut held = self.record.held_by(&(id, used.device.clone()))?;
            if used.members == 0 {
                // The ledgers were read before the last member left. The record reads them again within a second.
                (held.used, held.overhead) = (0, 0);
                held.parts.clear();
                return Some((used.device.clone(), held));
            }
            let beside = self.leases.uncharged_bytes(arbiter_number(id), &used.device).unexplained_bytes(held.overhead);
            (held.used, held.overhead) = (held.used.saturating_add(beside), held.overhead.saturating_add(beside));
            Some((used.device.clone(), held))
        };
        used.iter().filter_map(on).collect()
    }

    /// Bytes that a tenant with members on a device holds there, including memory that its ledger does not contain.
    pub(super) fn held_bytes(&self, whose: &RoomDevice) -> u64 {
        let Some((used, overhead)) = self.record.held_bytes(whose) else { return 0 };
        used.saturating_add(self.leases.uncharged_bytes(arbiter_number(whose.0), &whose.1).unexplained_bytes(overhead))
    }

    /// State of a tenant now, from the leases. For a tenant without pages no report is read; most tenants have none.
    fn read_leases(&mut self, id: u64) -> LeaseReading {
        let (number, now) = (arbiter_number(id), clock::now());
        if self.rooms.get(&id).is_none_or(|room| room.members == 0) {
            let used = self.leases.used_by_tenant(number, now);
            return LeaseReading { service: self.all_service_sums(id, &used), used, ..LeaseReading::default() };
        }
        let (used, said, members) = self.leases.read_tenant(number, now);
        LeaseReading { service: self.all_service_sums(id, &used), used, said, members }
    }

    /// The number of a tenant's processes, and whether it is paused.
    pub(crate) fn tenant_facts(&self, name: &str) -> TenantFacts {
        let room = self.rooms.values().find(|room| !room.is_removed() && room.tenant.name == name);
        let Some(room) = room else { return TenantFacts::default() };
        let paused = self.is_paused(name).unwrap_or(false);
        TenantFacts { connected: room.members, paused, observed: room.tenant.mode == Mode::Observe }
    }

    /// A tenant's terms, one row for each device: those that the configuration names, and for `*` those that members
    /// joined.
    pub(crate) fn terms_status(&mut self, id: u64) -> Vec<TermsStatus> {
        let seen = self.read_leases(id);
        let held = self.held_by_device(id, &seen.used);
        self.rooms.get(&id).map(|room| self.terms_rows(id, room, &seen, &held)).unwrap_or_default()
    }

    fn terms_rows(
        &self,
        id: u64,
        room: &TenantRoom,
        seen: &LeaseReading,
        held: &BTreeMap<String, HeldMemory>,
    ) -> Vec<TermsStatus> {
        let (tenant, LeaseReading { used, service, said, members }, now) = (&room.tenant, seen, Instant::now());
        let named: BTreeSet<String> = tenant.on.iter().filter_map(uuid_of).map(uuid_key).collect();
        let mut rows = Vec::new();
        for on in &tenant.on {
            let here = used.iter().zip(service).filter(|(used, _)| match uuid_of(on) {
                Some(uuid) => uuid::is_same_device(&used.device, uuid),
                None => on.device == DeviceName::Any && !named.contains(&uuid_key(&used.device)),
            });
            let before = rows.len();
            for (used, service) in here {
                let said = said.iter().find(|said| said.device == used.device);
                let state = said.map_or("absent", |said| match tenant.mode {
                    Mode::Observe => "observed",
                    Mode::Enforce | Mode::Off => said.state,
                });
                let sums = RecentSums { charged: used.charged, wait: used.wait };
                let rates = self.recent.current_rates(&tenant.name, &used.device, sums, now);
                let device = if on.device == DeviceName::Any { used.device.clone() } else { device_name(&on.device) };
                let time = TimeStatus {
                    members: used.members,
                    waiting: members.iter().filter(|place| place.stands && place.device == used.device).count(),
                    state: state.to_owned(),
                    gpu_seconds: measured_ns(used).map(to_seconds),
                    unmeasured: used.unmeasured.now,
                    waited_seconds: to_seconds(used.wait),
                    over_seconds: rates.over,
                    wanted: (!used.unmeasured.now).then_some(rates.wanted),
                    got: (!used.unmeasured.now).then_some(rates.got),
                    service: *service,
                };
                let held = held.get(&used.device);
                let none = (used.members == 0).then_some(0);
                rows.push(TermsStatus {
                    memory_used: held.map(|held| held.used).or(none),
                    memory_peak: held.map(|held| held.peak),
                    overhead: held.map(|held| held.overhead).or(none),
                    refused_allocations: held.map(|held| held.refused),
                    launches: Some(used.launches),
                    energy: self.record.energy_of(&(id, used.device.clone())).map(energy_status),
                    ..self.terms_row(tenant, on, device, Some(time))
                });
            }
            if rows.len() == before {
                rows.push(TermsStatus {
                    memory_used: Some(0),
                    overhead: Some(0),
                    launches: Some(0),
                    ..self.terms_row(tenant, on, device_name(&on.device), None)
                });
            }
        }
        rows
    }

    fn terms_row(
        &self,
        tenant: &TenantConfig,
        on: &DeviceTermsConfig,
        device: String,
        time: Option<TimeStatus>,
    ) -> TermsStatus {
        let percent = |share: vgpu_core::units::share::Share| f64::from(share.as_permille()) / 10.0;
        TermsStatus {
            device,
            memory_limit: on.memory.map(u64::from),
            sm_limit: on.terms.ceiling.map(percent),
            sm_request: on.terms.floor.map(percent),
            weight: on.terms.weight,
            class: show::class_word(on.terms.class).to_owned(),
            quantum: on.terms.quantum,
            paused: self.policies.is_paused_on(&tenant.name, &device_name(&on.device)),
            changed_live: self.policies.overridden_keys(&tenant.name, &device_name(&on.device)),
            time,
            ..TermsStatus::default()
        }
    }

    /// Devices of the configuration, then devices that members joined beyond those.
    fn devices_status(&self, holders: &BTreeMap<String, Option<String>>) -> Vec<DeviceStatus> {
        let known = self.leases.known_devices();
        let planned = self.loaded.iter().flat_map(|loaded| &loaded.plan.devices);
        let mut devices: Vec<DeviceStatus> = planned
            .map(|plan| DeviceStatus {
                name: plan.name(),
                uuid: plan.uuid.clone(),
                model: plan.model.clone(),
                memory: plan.memory.map(u64::from),
                overcommit: f64::from(plan.overcommit) / 1000.0,
                ..DeviceStatus::default()
            })
            .collect();
        for (uuid, arbitrated) in known {
            let same =
                |device: &&mut DeviceStatus| device.uuid.as_ref().is_some_and(|here| uuid::is_same_device(here, &uuid));
            let holder = holders.get(&uuid).cloned().flatten();
            match devices.iter_mut().find(same) {
                Some(device) => (device.arbitrated, device.holder) = (arbitrated, holder),
                None => devices.push(DeviceStatus {
                    name: uuid.clone(),
                    uuid: Some(uuid),
                    overcommit: 1.0,
                    arbitrated,
                    holder,
                    ..DeviceStatus::default()
                }),
            }
        }
        for (lost, since) in self.proof.iter().flat_map(|proof| proof.lost_devices()) {
            let is_it = |device: &&mut DeviceStatus| {
                device.name == lost || device.uuid.as_ref().is_some_and(|uuid| uuid::is_same_device(uuid, &lost))
            };
            match devices.iter_mut().find(is_it) {
                Some(device) => device.lost_since = Some(since),
                // A device that was lost before the daemon began has no name but its number.
                None => devices.push(DeviceStatus {
                    name: lost,
                    overcommit: 1.0,
                    lost_since: Some(since),
                    ..Default::default()
                }),
            }
        }
        devices
    }

    /// Passes changed usage to the record: once a second while there are members, and once after the
    /// last left.
    ///
    /// # Cost
    /// About ten loads for each member of active tenants; nothing for the others.
    pub(super) fn look_back(&mut self) {
        let now = Instant::now();
        if self.members == 0 && !self.owes || self.members > 0 && !self.recent.is_due(now) {
            return;
        }
        self.owes = false;
        let mut sums = Vec::new();
        let mut changed = Vec::new();
        // Includes tenants whose members have left, for their last usage.
        for tenant in self.leases.stirred_tenants() {
            let Some(used) = self.leases.used_since(tenant, clock::now()) else { continue };
            let id = room_number(tenant);
            let Some(room) = self.rooms.get(&id) else { continue };
            let mut has_grown = false;
            for used in &used {
                let key = (room.tenant.name.clone(), used.device.clone());
                let now_used = RecentSums { charged: used.charged, wait: used.wait };
                has_grown |= self.recent.has_grown(&key, now_used);
                sums.push((key, now_used));
            }
            if has_grown {
                self.note_running(id, now);
            }
            self.policies.needs.note_changed(id);
            changed.push((id, used));
        }
        self.note_all_use(changed);
        self.recent.take_look(now, sums);
        self.note_energy();
        self.owes = !self.record.hand_over();
    }

    /// Adds the usage of these tenants to the data that the record gets next, after a look at their promises.
    fn note_all_use(&mut self, changed: Vec<(u64, Vec<Used>)>) {
        let looks = changed.iter().flat_map(|(id, used)| used.iter().filter_map(|used| self.promise_look(*id, used)));
        let looks = looks.collect();
        self.promises.take_looks(looks, clock::now(), clock::unix_seconds());
        for (id, used) in changed {
            self.note_use(id, used);
        }
    }

    /// The sums of a tenant on a device that the promises follow.
    fn promise_look(&self, id: u64, used: &Used) -> Option<PromiseLook> {
        let tenant = &self.rooms.get(&id)?.tenant;
        let is_promised = |on: &&DeviceTermsConfig| {
            used.leased
                && !used.unmeasured.now
                && tenant.mode == Mode::Enforce
                && !self.leases.is_suspended(arbiter_number(id))
                && !self.policies.is_paused_by_plan(&tenant.name, &device_name(&on.device))
        };
        let terms = tenant.terms_on(&used.device).filter(is_promised).map(|on| on.terms);
        Some(PromiseLook { whose: (id, used.device.clone()), terms, waited: used.wanting, charged: used.charged })
    }

    /// Promise and delivery of a tenant on each device, and the times around its leases.
    fn all_service_sums(&mut self, id: u64, used: &[Used]) -> Vec<ServiceSums> {
        let wall = clock::unix_seconds();
        let of = |used: &Used| ServiceSums {
            waits: used.times.waits,
            gaps: used.times.gaps,
            ..self.promises.sums_of(&(id, used.device.clone()), wall)
        };
        used.iter().map(of).collect()
    }

    /// Adds a tenant's usage to the data that the record gets next.
    pub(crate) fn note_use(&mut self, id: u64, used: Vec<Used>) {
        let service = self.all_service_sums(id, &used);
        let in_flight = self.leases.queued_work(arbiter_number(id)).in_flight;
        let progress = self.leases.take_progress(arbiter_number(id));
        if !self.policies.kept.suspended.is_empty() {
            let worked = progress.iter().filter(|progress| progress.is_recent);
            worked.for_each(|progress| self.note_work_of_suspended(id, progress.process));
        }
        let Some(room) = self.rooms.get(&id) else { return };
        let next = self.record.next_batch();
        for MeasuredProgress { device, process, busy, .. } in progress {
            next.marks.insert(((id, device), process), busy);
        }
        for (used, service) in used.into_iter().zip(service) {
            let on = room.tenant.terms_on(&used.device);
            let sums = integrate::UsageSums {
                tenant: room.tenant.name.clone(),
                bearer: room.cost_bearer(),
                gpu_ns: used.charged.saturating_add(used.before),
                wait_ns: used.wait,
                launches: Some(used.launches),
                unmeasured: used.unmeasured.now,
                in_flight,
                members: used.members as u64,
                memory_limit: on.and_then(|on| on.memory).map(u64::from),
                sm_limit: on.and_then(|on| on.terms.ceiling).map(|share| u64::from(share.as_permille())),
                service,
            };
            next.sums.insert((id, used.device), sums);
        }
    }

    /// Adds the last usage of all tenants, when the daemon ends.
    pub(super) fn note_all(&mut self) {
        let mut all = Vec::new();
        for id in self.rooms.keys().copied().collect::<Vec<_>>() {
            all.push((id, self.leases.used_by_tenant(arbiter_number(id), clock::now())));
        }
        self.note_all_use(all);
        self.note_energy();
    }

    /// Puts the last reading of each device's energy into the next batch for the usage record.
    fn note_energy(&mut self) {
        if let Some(proof) = &self.proof {
            self.record.next_batch().energy = proof.energy_readings();
        }
    }

    /// Hands a tenant's usage until now to the record, before its group or its labels change, and after it.
    pub(super) fn hand_over_use(&mut self, id: u64) {
        let used = self.leases.used_by_tenant(arbiter_number(id), clock::now());
        self.note_all_use(vec![(id, used)]);
        self.record.hand_over_at_once();
    }

    /// Adds the last usage of a tenant that is about to be removed.
    pub(crate) fn note_last(&mut self, id: u64) {
        let used = self.leases.used_by_tenant(arbiter_number(id), clock::now());
        self.note_use(id, used);
        self.record.note_gone(id);
        self.owes = true;
    }
}

/// Device time in ns; `None`: all launches passed an open gate (no lease needed), where nothing is measured.
fn measured_ns(used: &Used) -> Option<u64> {
    let sum = used.charged.saturating_add(used.before);
    (sum > 0 || !used.unmeasured.ever).then_some(sum)
}

fn energy_status(energy: EnergyUse) -> EnergyStatus {
    EnergyStatus { work_millijoules: energy.work_mj, idle_millijoules: energy.idle_mj }
}

fn uuid_of(on: &DeviceTermsConfig) -> Option<&str> {
    match &on.device {
        DeviceName::Uuid(uuid, _) => Some(uuid),
        DeviceName::Number(_) | DeviceName::Any => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leases::view::Unmeasured;

    #[test]
    fn device_time_of_which_nothing_was_measured_is_not_nil_but_not_known() {
        let used = |charged, now, ever| Used { charged, unmeasured: Unmeasured { now, ever }, ..Used::default() };
        let all = [used(0, false, false), used(5, true, true), used(0, true, true), used(0, false, true)];
        assert_eq!(all.map(|used| measured_ns(&used)), [Some(0), Some(5), None, None]);
    }
}
