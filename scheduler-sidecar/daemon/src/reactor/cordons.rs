//! Cordons: begins and ends them, and lets nobody new on their devices or into their tenants.
//!
//! [`vgpu_policy::cordons`] says what a cordon is. A process that was there when it began may connect again, also to
//! the next daemon.

use std::collections::BTreeSet;

use tracing::info;
use vgpu_accounting::clock;
use vgpu_config::live;
use vgpu_config::plan::{ConfigPlan, DevicePlan, TenantPlan, TermsPlan};
use vgpu_control::finding::ProcessId;
use vgpu_control::{ChangeLasting, CordonStatus, CordonedMember, EvacuationOptions, SubjectName};
use vgpu_core::units::uuid::is_same_device;
use vgpu_policy::cordons::{Cordon, CordonSubject, PresentProcess, add_cordon};

use super::admin::{MAX_LASTING_SECONDS, check_reason};
use super::places::{lasting_name, present_name};
use super::tenants::is_tenant_of;
use super::{Reactor, arbiter_number};
use crate::config::{DeviceName, DeviceTermsConfig};
use crate::connection::{Connection, PeerCredentials};

/// A member on a cordoned device or of a cordoned tenant.
pub(super) struct MemberThere {
    pub tenant: String,
    pub pid: Option<u32>,
    pub process: Option<ProcessId>,
    /// False for a member of the last daemon that may have joined other devices of its tenant only.
    pub is_certain: bool,
}

fn present(process: ProcessId) -> PresentProcess {
    PresentProcess { pid: process.pid, began: process.began }
}

/// The subject as the fields of an event: the device, or the tenant.
pub(super) fn subject_fields(subject: &CordonSubject) -> (Option<&str>, Option<&str>) {
    match subject {
        CordonSubject::Device(device) => (Some(device), None),
        CordonSubject::Tenant(tenant) => (None, Some(tenant)),
    }
}

impl Reactor {
    /// Begins a cordon, or replaces that of the same subject.
    ///
    /// # Errors
    /// A message: no such device or tenant, a value is not accepted, or it cannot be stored.
    pub(super) fn begin_cordon(
        &mut self,
        name: &SubjectName,
        evacuation: Option<EvacuationOptions>,
        lasting: &ChangeLasting,
        who: PeerCredentials,
    ) -> Result<CordonStatus, String> {
        check_reason(lasting.reason.as_deref())?;
        let subject = self.cordon_subject(name)?;
        let since = clock::unix_seconds();
        let moment = |seconds: Option<u64>, least: u64| match seconds {
            Some(seconds) if (least..=MAX_LASTING_SECONDS).contains(&seconds) => {
                Ok(Some(since.saturating_add_unsigned(seconds)))
            }
            Some(seconds) => Err(format!("{seconds} s is not accepted for a cordon; accepted: {least}s to 365d")),
            None => Ok(None),
        };
        let (until, terminate_at) =
            (moment(lasting.seconds, 1)?, moment(evacuation.and_then(|options| options.terminate_after), 0)?);
        let there = self.members_there(&subject);
        let present = there.iter().filter_map(|member| member.process).map(present).collect();
        let evacuates = evacuation.is_some();
        let (by_uid, reason) = (who.uid, lasting.reason.clone());
        let new = Cordon { subject: subject.clone(), evacuates, terminate_at, since, until, by_uid, reason, present };
        let mut kept = self.policies.kept.clone();
        add_cordon(&mut kept.cordons, new)?;
        self.policies.replace_kept(kept)?;
        self.evacuated.forget(&subject);
        let (device, tenant) = subject_fields(&subject);
        let reason = lasting.reason.as_deref();
        info!(
            kind = "cordon.begun",
            device,
            tenant,
            by_uid,
            by_pid = who.pid,
            evacuates,
            members = there.len(),
            until,
            terminate_at,
            reason,
            "nobody new is let in"
        );
        self.follow_cordons();
        let mut status = self.status_of_cordon(&subject).unwrap_or_default();
        status.notes.push(match until {
            Some(until) => format!("it lasts until {}", self.policies.format_time(until)),
            None => format!("it lasts until `vgpu uncordon {}`", name.name),
        });
        if !self.policies.is_stored() {
            status.notes.push("the daemon has no state_dir, so a restart of the daemon ends it too".to_owned());
        }
        Ok(status)
    }

    /// Ends a cordon.
    ///
    /// # Errors
    /// A message: there is none, or it cannot be stored.
    pub(super) fn end_cordon(&mut self, name: &SubjectName, who: PeerCredentials) -> Result<CordonStatus, String> {
        let subject = self.cordon_subject(name)?;
        let Some(status) = self.status_of_cordon(&subject) else {
            return Err(format!("there is no cordon of {}; `vgpu status` lists those in force", name.name));
        };
        let mut kept = self.policies.kept.clone();
        kept.cordons.retain(|cordon| cordon.subject != subject);
        self.policies.replace_kept(kept)?;
        self.evacuated.forget(&subject);
        let (device, tenant) = subject_fields(&subject);
        info!(
            kind = "cordon.ended",
            device,
            tenant,
            by_uid = who.uid,
            by_pid = who.pid,
            "new processes may join again"
        );
        Ok(status)
    }

    /// Finds the device or the tenant of this name.
    fn cordon_subject(&self, name: &SubjectName) -> Result<CordonSubject, String> {
        let SubjectName { name, is_tenant } = name;
        let (devices, tenants) = self.in_force();
        let is_device = |plan: &&DevicePlan| {
            plan.name() == *name || plan.uuid.as_deref().is_some_and(|uuid| is_same_device(uuid, name))
        };
        let planned = devices.iter().find(is_device).map(|plan| lasting_name(&devices, &plan.name()));
        let joined = || self.leases.known_devices().into_iter().find(|(uuid, _)| is_same_device(uuid, name));
        let device = planned.or_else(|| joined().map(|(uuid, _)| uuid)).filter(|_| !is_tenant);
        let tenant = tenants.iter().any(|tenant| tenant.name == *name).then(|| CordonSubject::Tenant(name.clone()));
        // The cordon of a removed tenant can be ended.
        let cordoned = || self.cordons_now().map(|cordon| &cordon.subject).find(|of| of.is_tenant(name)).cloned();
        match (device, tenant.or_else(cordoned)) {
            (Some(_), Some(_)) => {
                Err(format!("{name} is a device and a tenant; accepted: the device's UUID, or --tenant for the tenant"))
            }
            (Some(device), None) if device == "*" => {
                Err("* stands for several devices; accepted: a device by number or UUID, or a tenant".to_owned())
            }
            (Some(device), None) => Ok(CordonSubject::Device(device)),
            (None, Some(tenant)) => Ok(tenant),
            (None, None) => {
                let names: Vec<String> = devices.iter().map(DevicePlan::name).collect();
                let names = names.iter().map(String::as_str).chain(tenants.iter().map(|tenant| tenant.name.as_str()));
                Err(live::unknown_name("device or tenant", name, names))
            }
        }
    }

    /// Members that are on the device, or that belong to the tenant.
    ///
    /// A stopped member does not connect to a new daemon, so living members of the last one count too. A
    /// member whose devices are not known may be on any device of its tenant.
    pub(super) fn members_there(&self, subject: &CordonSubject) -> Vec<MemberThere> {
        let on_device = subject.device().map(|device| self.members_on(device)).unwrap_or_default();
        let mut there = Vec::new();
        for (id, member, connection) in self.connected_members() {
            let Some(room) = self.rooms.get(&id) else { continue };
            let tenant = &room.tenant.name;
            let is_there = match subject {
                CordonSubject::Tenant(name) => name == tenant,
                CordonSubject::Device(_) => on_device.contains(&(id, member)),
            };
            if is_there {
                let (pid, process) = (connection.peer.pid, connection.process);
                there.push(MemberThere { tenant: tenant.clone(), pid, process, is_certain: true });
            }
        }
        for prior in self.roster.living_members() {
            let (is_there, is_certain) = match subject {
                CordonSubject::Tenant(name) => (*name == prior.tenant, true),
                CordonSubject::Device(device) if prior.devices.is_empty() => self.may_use(&prior.tenant, device),
                CordonSubject::Device(device) => (prior.devices.iter().any(|on| is_same_device(on, device)), true),
            };
            if is_there {
                let process = prior.image.process;
                let (tenant, pid) = (prior.tenant.clone(), Some(process.pid));
                there.push(MemberThere { tenant, pid, process: Some(process), is_certain });
            }
        }
        there.sort_by(|one, other| (&one.tenant, one.pid).cmp(&(&other.tenant, other.pid)));
        there
    }

    /// Members that joined the device: the numbers of their rooms, and their own.
    fn members_on(&self, device: &str) -> BTreeSet<(u64, u64)> {
        let of_room = |id: u64| {
            let joined = self.leases.joined_devices(arbiter_number(id)).into_iter();
            joined.filter(|(_, uuid)| is_same_device(uuid, device)).map(move |(member, _)| (id, member))
        };
        self.rooms.keys().flat_map(|id| of_room(*id)).collect()
    }

    /// True if the tenant may use the device; and true if it may use no other one.
    fn may_use(&self, tenant: &str, device: &str) -> (bool, bool) {
        let room = self.rooms.values().find(|room| room.tenant.name == tenant);
        let on = room.map_or(&[][..], |room| &room.tenant.on);
        let is_it = |on: &DeviceTermsConfig| on.device == DeviceName::Any || on.device.is_named(device);
        (on.iter().any(is_it), matches!(on, [only] if only.device.is_named(device)))
    }

    pub(super) fn cordons_now(&self) -> impl Iterator<Item = &Cordon> {
        let now = clock::unix_seconds();
        self.policies.kept.cordons.iter().filter(move |cordon| !cordon.is_over(now))
    }

    fn cordon_of_device(&self, name: &str, uuid: Option<&str>) -> Option<&Cordon> {
        self.cordons_now().find(|cordon| cordon.subject.is_device(name, uuid))
    }

    /// Admits a process to a tenant, unless the tenant has a cordon and the process is new.
    ///
    /// # Errors
    /// The message for the process.
    pub(super) fn admit_to_tenant(&mut self, connection: &Connection, id: u64) -> Result<(), String> {
        if self.policies.kept.cordons.is_empty() {
            return Ok(());
        }
        // A process of before may connect again, and is then asked again.
        self.evacuated.look_soon();
        let Some(room) = self.rooms.get(&id) else { return Ok(()) };
        let cordon = self.cordons_now().find(|cordon| cordon.subject.is_tenant(&room.tenant.name));
        self.admit_past(cordon, connection)
    }

    /// Admits a member to a device, unless the device has a cordon and the process is new there.
    ///
    /// # Errors
    /// The message for the process.
    pub(super) fn admit_to_device(&mut self, connection: &Connection, uuid: &str) -> Result<(), String> {
        if self.policies.kept.cordons.is_empty() {
            return Ok(());
        }
        // The look after the hello did not find it on the device.
        self.evacuated.look_soon();
        self.admit_past(self.cordon_of_device(uuid, Some(uuid)), connection)
    }

    fn admit_past(&self, cordon: Option<&Cordon>, connection: &Connection) -> Result<(), String> {
        match cordon {
            Some(cordon) if !connection.process.is_some_and(|process| cordon.has_process(present(process))) => {
                Err(format!("{}; no new process is let in", self.cordon_words(cordon)))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a new tenant may use no device that has a cordon.
    ///
    /// # Errors
    /// A message with the device.
    pub(super) fn check_cordons(&self, tenant: &TenantPlan) -> Result<(), String> {
        let on = |terms: &TermsPlan| self.cordon_of_device(&terms.device, terms.uuid.as_deref());
        match tenant.terms.iter().find_map(on) {
            None => Ok(()),
            Some(cordon) => Err(format!(
                "{}; accepted: a tenant without this device, or `vgpu uncordon` before",
                self.cordon_words(cordon)
            )),
        }
    }

    /// Checks that a file that is read again has no new tenant on a device that has a cordon.
    ///
    /// # Errors
    /// A message with the tenant and the device.
    pub(super) fn check_new_tenants(&self, before: &ConfigPlan, plan: &ConfigPlan) -> Result<(), String> {
        let new = plan.tenants.iter().filter(|tenant| !is_tenant_of(before, &tenant.name));
        new.into_iter().try_for_each(|tenant| {
            self.check_cordons(tenant).map_err(|why| format!("tenant {} is new: {why}", tenant.name))
        })
    }

    /// Tells what the cordon is about, until when, and why.
    pub(super) fn cordon_words(&self, cordon: &Cordon) -> String {
        let what = match &cordon.subject {
            CordonSubject::Device(device) => format!("device {}", present_name(self.planned_devices(), device)),
            CordonSubject::Tenant(tenant) => format!("tenant {tenant}"),
        };
        let done = if cordon.evacuates { "evacuated" } else { "cordoned" };
        let until = cordon.until.map_or(String::new(), |until| format!(" until {}", self.policies.format_time(until)));
        let reason = cordon.reason.as_ref().map_or(String::new(), |reason| format!(": {reason:?}"));
        format!("{what} is {done}{until}{reason}")
    }

    /// A sentence about the cordon of a device, as the terms name it.
    pub(super) fn cordon_words_on(&self, device: &str) -> Option<String> {
        let planned = self.planned_devices().iter().find(|plan| plan.name() == device);
        let uuid = planned.and_then(|plan| plan.uuid.as_deref());
        self.cordon_of_device(device, uuid).map(|cordon| self.cordon_words(cordon))
    }

    /// A sentence about the cordon of a tenant.
    pub(super) fn cordon_words_of(&self, tenant: &str) -> Option<String> {
        self.cordons_now().find(|cordon| cordon.subject.is_tenant(tenant)).map(|cordon| self.cordon_words(cordon))
    }

    /// Cordons in force, with the members that are still there.
    pub(super) fn cordon_statuses(&self) -> Vec<CordonStatus> {
        self.cordons_now().map(|cordon| self.cordon_status(cordon)).collect()
    }

    fn status_of_cordon(&self, subject: &CordonSubject) -> Option<CordonStatus> {
        self.cordons_now().find(|cordon| cordon.subject == *subject).map(|cordon| self.cordon_status(cordon))
    }

    fn cordon_status(&self, cordon: &Cordon) -> CordonStatus {
        let (subject, is_tenant) = match &cordon.subject {
            CordonSubject::Device(device) => (present_name(self.planned_devices(), device), false),
            CordonSubject::Tenant(tenant) => (tenant.clone(), true),
        };
        let there = self.members_there(&cordon.subject).into_iter();
        CordonStatus {
            subject,
            is_tenant,
            evacuates: cordon.evacuates,
            terminate_at: cordon.terminate_at,
            since: cordon.since,
            until: cordon.until,
            by_uid: cordon.by_uid,
            reason: cordon.reason.clone(),
            members: there.map(|member| CordonedMember { tenant: member.tenant, pid: member.pid }).collect(),
            awaits_members: self.awaits_members(),
            notes: Vec::new(),
        }
    }
}
