//! Answers the requests of administrators ([`vgpu_control`]).
//!
//! [`crate::answer`] parsed the request, and [`super::change`] carries out changes, pauses and explanations. Whether
//! a change fits is computed by [`vgpu_config::live`], with the messages of the configuration file.

use std::collections::BTreeSet;

use vgpu_core::limits::Mode;

use super::tenants::Lifetime;
use super::{Reactor, arbiter_number};
use crate::config::{DeviceName, DeviceTermsConfig, TenantConfig, device_name};
use crate::connection::PeerCredentials;
use vgpu_config::change::WrittenChange;
use vgpu_config::live;
use vgpu_config::plan::{DevicePlan, TenantPlan, TermsPlan};
use vgpu_control::explain::{DeviceExplanation, DeviceStanding, explain_tenant, tell_findings};
use vgpu_control::own;
use vgpu_control::{ChangeResult, ControlAnswer, ControlCommand, ProcessStatus};

const LASTS_WORDS: &str = "it lasts until the configuration is read again (SIGHUP) or the daemon restarts";

impl Reactor {
    /// Answers a parsed request.
    pub(super) fn answer_command(&mut self, ask: &ControlCommand, who: PeerCredentials, answer: &mut ControlAnswer) {
        let done = match ask {
            ControlCommand::Status => return answer.status = Some(self.full_status()),
            ControlCommand::Ps => return answer.members = Some(self.list_processes()),
            ControlCommand::Explain { tenant } => {
                return match self.explanation_answer(tenant) {
                    Ok(explained) => answer.explained = Some(explained),
                    Err(words) => answer.error = Some(words),
                };
            }
            ControlCommand::Add { section, pid, seconds, replace } => {
                let lifetime = Lifetime { pid: *pid, seconds: *seconds };
                return match self.add_tenant(section, lifetime, *replace, who) {
                    Ok(added) => answer.tenant = Some(added),
                    Err(why) => (answer.error, answer.refusal) = (Some(why.words), why.kind),
                };
            }
            ControlCommand::Remove { tenant, only_look } => {
                return match self.remove_tenant(tenant, *only_look, who) {
                    Ok(removed) => answer.tenant = Some(removed),
                    Err(why) => (answer.error, answer.refusal) = (Some(why.words), why.kind),
                };
            }
            ControlCommand::Set { tenant, device, change } => self.set_live(tenant, device.as_deref(), change, who),
            ControlCommand::Pause { tenant } => self.set_pause(tenant, true, who),
            ControlCommand::Resume { tenant } => self.set_pause(tenant, false, who),
            // Sent line by line by `reactor::follow`.
            ControlCommand::Events { .. } => return,
        };
        match done {
            Ok(done) => answer.done = Some(done),
            Err(words) => answer.error = Some(words),
        }
    }

    fn list_processes(&mut self) -> Vec<ProcessStatus> {
        let of = |tenant: vgpu_control::TenantStatus| {
            let name = tenant.name;
            tenant.members.into_iter().map(move |member| ProcessStatus { tenant: name.clone(), member })
        };
        self.full_status().tenants.into_iter().flat_map(of).collect()
    }

    /// Devices and tenants as in force now, including the changes of administrators.
    pub(super) fn in_force(&self) -> (Vec<DevicePlan>, Vec<TenantPlan>) {
        let planned = self.loaded.as_ref().map(|loaded| loaded.plan.devices.clone());
        let unknown =
            || vec![DevicePlan { index: None, uuid: None, parent: None, memory: None, overcommit: 1000, model: None }];
        let open = self.rooms.values().filter(|room| !room.is_removed());
        (planned.unwrap_or_else(unknown), open.map(|room| plan_of(&room.tenant)).collect())
    }

    /// Tenants whose promises are in force, and those that were removed and still have members. Slots that wait for
    /// members to leave count with the larger of what they have and what the file says.
    pub(super) fn promised_tenants(&self) -> Vec<TenantPlan> {
        let mut promised: Vec<TenantPlan> = self.rooms.values().map(|room| plan_of(&room.tenant)).collect();
        for wanted in self.slots.wanted_slots() {
            match promised.iter_mut().find(|tenant| tenant.name == wanted.name) {
                Some(tenant) => tenant.raise_promise(wanted),
                None => promised.push(wanted.clone()),
            }
        }
        promised
    }

    /// The room of a tenant that is served, by its name.
    fn known_room(&self, name: &str) -> Result<u64, String> {
        let found = self.rooms.iter().find(|(_, room)| !room.is_removed() && room.tenant.name == name);
        found.map(|(id, _)| *id).ok_or_else(|| live::find_tenant(&self.in_force().1, name).err().unwrap_or_default())
    }

    fn set_live(
        &mut self,
        name: &str,
        device: Option<&str>,
        words: &WrittenChange,
        who: PeerCredentials,
    ) -> Result<ChangeResult, String> {
        let change = words.read(str::to_owned)?;
        let (devices, tenants) = self.in_force();
        let changed = live::apply_change(&devices, &tenants, name, device, &change)?;
        let id = self.known_room(name)?;
        if changed.tenant.mode == Mode::Observe && self.leases.is_paused(arbiter_number(id)) {
            return Err(format!("tenant {name} is paused, and a pause has no effect in mode observe; resume it first"));
        }
        let mut keys: BTreeSet<&'static str> = changed.whole.iter().copied().collect();
        keys.extend(changed.what.iter().flat_map(|(_, what)| what));
        let what = words.to_command_words(device);
        if !keys.is_empty() {
            self.change_tenant(TenantConfig::from(&changed.tenant), &what, who)?;
        }
        for terms in changed.tenant.terms.iter().filter(|_| !changed.whole.is_empty()) {
            let marks = self.marks.entry((name.to_owned(), terms.device.clone())).or_default();
            marks.extend(changed.whole.iter().copied());
        }
        for (device, what) in &changed.what {
            self.marks.entry((name.to_owned(), device.clone())).or_default().extend(what);
        }
        let mut notes = Vec::new();
        if !keys.is_empty() {
            notes.push(LASTS_WORDS.to_owned());
        }
        if changed.whole.contains(&"strict") {
            notes
                .push("strict takes effect when a process starts: running processes keep the earlier value".to_owned());
        }
        if changed.whole.contains(&"mode") && changed.tenant.mode == Mode::Observe {
            notes.push("its processes are neither delayed nor refused anything, and take time from others".to_owned());
        }
        self.change_result(name, keys.into_iter().map(str::to_owned).collect(), notes)
    }

    fn is_observed(&self, name: &str) -> bool {
        let room = self.rooms.values().find(|room| !room.is_removed() && room.tenant.name == name);
        room.is_some_and(|room| room.tenant.mode == Mode::Observe)
    }

    fn set_pause(&mut self, name: &str, hold: bool, who: PeerCredentials) -> Result<ChangeResult, String> {
        self.known_room(name)?;
        let was = self.is_paused(name).unwrap_or(false);
        if hold && self.is_observed(name) {
            return Err(format!(
                "tenant {name} is only observed (mode = \"observe\"), so a pause has no effect; use `vgpu set {name} \
                 --mode enforce` first"
            ));
        }
        if hold { self.pause_tenant(name, who) } else { self.resume_tenant(name, who) }?;
        let changed = if was == hold { Vec::new() } else { vec!["paused".to_owned()] };
        let mut notes = Vec::new();
        if hold {
            notes.push("it lasts until `vgpu resume` or a restart of the daemon".to_owned());
        }
        self.change_result(name, changed, notes)
    }

    /// Returns the answer to a change: the tenant's terms after it, the changed keys and the notes.
    fn change_result(&mut self, name: &str, changed: Vec<String>, notes: Vec<String>) -> Result<ChangeResult, String> {
        let id = self.known_room(name)?;
        let devices = self.terms_status(id);
        let paused = self.is_paused(name).unwrap_or(false);
        let room = self.rooms.get(&id);
        let mode = room.map_or(Mode::Enforce, |room| room.tenant.mode).to_string();
        let strict = room.is_some_and(|room| room.tenant.strict);
        Ok(ChangeResult { tenant: name.to_owned(), changed, paused, mode, strict, devices, notes })
    }

    /// Why a tenant gets the time it gets, and the findings about its processes.
    fn explanation_answer(&mut self, name: &str) -> Result<Vec<DeviceExplanation>, String> {
        let id = self.known_room(name)?;
        let Some(tenant) = self.rooms.get(&id).map(|room| room.tenant.clone()) else { return Ok(Vec::new()) };
        let whole = self.tenant_facts(name);
        let said = self.explain_tenant(name)?;
        let facts = said.into_iter().map(|said| {
            let class_of = |holder: &String| {
                let room = self.rooms.values().find(|room| room.tenant.name == *holder);
                room.and_then(|room| room.tenant.terms_on(&said.device))
                    .map_or_else(Default::default, |on| on.terms.class)
            };
            let holder = said.holder.filter(|holder| holder != name).map(|holder| (holder.clone(), class_of(&holder)));
            let terms = tenant.terms_on(&said.device).map(|on| on.terms).unwrap_or_default();
            DeviceStanding {
                class: terms.class,
                floor: terms.floor,
                ceiling: terms.ceiling,
                state: said.state,
                words: said.words,
                holder,
                refill: said.refill,
                device: said.device,
            }
        });
        let facts: Vec<DeviceStanding> = facts.collect();
        let mut all = explain_tenant(&whole, &facts);
        let (found, more) =
            self.proof.as_ref().map(|proof| proof.of_tenant(name, own::MAX_FINDINGS_TOLD)).unwrap_or_default();
        tell_findings(&mut all, &found, more);
        Ok(all)
    }
}

/// The tenant as a configuration file would describe it.
pub(super) fn plan_of(tenant: &TenantConfig) -> TenantPlan {
    TenantPlan {
        name: tenant.name.clone(),
        socket: tenant.socket.clone(),
        replicas: None,
        bearer: tenant.bearer.clone(),
        uids: tenant.uids.clone(),
        mode: tenant.mode,
        strict: tenant.strict,
        on_error: tenant.on_error,
        on_loss: tenant.on_loss,
        terms: tenant.on.iter().map(terms_of).collect(),
    }
}

fn terms_of(on: &DeviceTermsConfig) -> TermsPlan {
    let uuid = match &on.device {
        DeviceName::Uuid(uuid, _) => Some(uuid.clone()),
        DeviceName::Number(_) | DeviceName::Any => None,
    };
    TermsPlan {
        device: device_name(&on.device),
        uuid,
        memory: on.memory,
        ceiling: on.terms.ceiling,
        floor: on.terms.floor,
        weight: on.terms.weight,
        class: on.terms.class,
        quantum: on.terms.quantum,
    }
}
