//! Answers the requests of administrators ([`vgpu_control`]).
//!
//! [`crate::answer`] parsed the request, and [`super::change`] carries out changes, pauses and explanations. Whether
//! a change fits is computed by [`vgpu_config::live`], with the messages of the configuration file.

use std::collections::BTreeSet;

use vgpu_core::limits::Mode;

use super::{Reactor, number};
use crate::config::{On, Tenant, Which, device_name};
use crate::connection::Peer;
use vgpu_config::change::Words;
use vgpu_config::live;
use vgpu_config::plan::{DevicePlan, TenantPlan, TermsPlan};
use vgpu_control::explain::{Explained, Facts, explained, tell_findings};
use vgpu_control::own;
use vgpu_control::{Answer, Ask, Done, Process};

const LASTS: &str = "it lasts until the configuration is read again (SIGHUP) or the daemon restarts";

impl Reactor {
    /// Answers a parsed request.
    pub(super) fn administer(&mut self, ask: &Ask, who: Peer, answer: &mut Answer) {
        let done = match ask {
            Ask::Status => return answer.status = Some(self.status()),
            Ask::Ps => return answer.members = Some(self.processes()),
            Ask::Explain { tenant } => {
                return match self.why(tenant) {
                    Ok(explained) => answer.explained = Some(explained),
                    Err(words) => answer.error = Some(words),
                };
            }
            Ask::Set { tenant, device, change } => self.set_live(tenant, device.as_deref(), change, who),
            Ask::Pause { tenant } => self.hold(tenant, true, who),
            Ask::Resume { tenant } => self.hold(tenant, false, who),
            // Sent line by line by `reactor::follow`.
            Ask::Events { .. } => return,
        };
        match done {
            Ok(done) => answer.done = Some(done),
            Err(words) => answer.error = Some(words),
        }
    }

    fn processes(&mut self) -> Vec<Process> {
        let of = |tenant: vgpu_control::TenantStatus| {
            let name = tenant.name;
            tenant.members.into_iter().map(move |member| Process { tenant: name.clone(), member })
        };
        self.status().tenants.into_iter().flat_map(of).collect()
    }

    /// Devices and tenants as in force now, including the changes of administrators.
    pub(super) fn in_force(&self) -> (Vec<DevicePlan>, Vec<TenantPlan>) {
        let planned = self.loaded.as_ref().map(|loaded| loaded.plan.devices.clone());
        let unknown =
            || vec![DevicePlan { index: None, uuid: None, parent: None, memory: None, overcommit: 1000, model: None }];
        let open = self.rooms.values().filter(|room| !room.is_removed());
        (planned.unwrap_or_else(unknown), open.map(|room| plan_of(&room.tenant)).collect())
    }

    /// The room of a tenant that is served, by its name.
    fn known(&self, name: &str) -> Result<u64, String> {
        let found = self.rooms.iter().find(|(_, room)| !room.is_removed() && room.tenant.name == name);
        found.map(|(id, _)| *id).ok_or_else(|| live::tenant(&self.in_force().1, name).err().unwrap_or_default())
    }

    fn set_live(&mut self, name: &str, device: Option<&str>, words: &Words, who: Peer) -> Result<Done, String> {
        let change = words.read(str::to_owned)?;
        let (devices, tenants) = self.in_force();
        let changed = live::changed(&devices, &tenants, name, device, &change)?;
        let id = self.known(name)?;
        if changed.tenant.mode == Mode::Observe && self.leases.is_paused(number(id)) {
            return Err(format!(
                "tenant {name} is paused, and nothing delays one that is only observed; resume it first"
            ));
        }
        let mut keys: BTreeSet<&'static str> = changed.whole.iter().copied().collect();
        keys.extend(changed.what.iter().flat_map(|(_, what)| what));
        let what = words.said(device);
        let behind = if keys.is_empty() { 0 } else { self.change(Tenant::from(&changed.tenant), &what, who)? };
        for terms in changed.tenant.terms.iter().filter(|_| !changed.whole.is_empty()) {
            let marks = self.marks.entry((name.to_owned(), terms.device.clone())).or_default();
            marks.extend(changed.whole.iter().copied());
        }
        for (device, what) in &changed.what {
            self.marks.entry((name.to_owned(), device.clone())).or_default().extend(what);
        }
        let mut notes = Vec::new();
        if !keys.is_empty() {
            notes.push(LASTS.to_owned());
        }
        if changed.whole.contains(&"strict") {
            notes.push("strict is asked for at the start: processes that run keep what they were told".to_owned());
        }
        if changed.whole.contains(&"mode") && changed.tenant.mode == Mode::Observe {
            notes.push("its processes are neither delayed nor refused anything, and take time from others".to_owned());
        }
        if behind > 0 {
            notes.push(format!(
                "{behind} of its processes use an older library and keep what they were told until they start anew"
            ));
        }
        self.done(name, keys.into_iter().map(str::to_owned).collect(), notes)
    }

    fn is_observed(&self, name: &str) -> bool {
        let room = self.rooms.values().find(|room| !room.is_removed() && room.tenant.name == name);
        room.is_some_and(|room| room.tenant.mode == Mode::Observe)
    }

    fn hold(&mut self, name: &str, hold: bool, who: Peer) -> Result<Done, String> {
        self.known(name)?;
        let was = self.is_paused(name).unwrap_or(false);
        if hold && self.is_observed(name) {
            return Err(format!(
                "tenant {name} is only observed (mode = \"observe\"): nothing delays it; `vgpu set {name} --mode enforce` \
                 comes first"
            ));
        }
        if hold { self.pause(name, who) } else { self.resume(name, who) }?;
        let changed = if was == hold { Vec::new() } else { vec!["paused".to_owned()] };
        let mut notes = Vec::new();
        let older = self.whole(name).older;
        if hold {
            notes.push("it lasts until `vgpu resume` or a restart of the daemon".to_owned());
            if older > 0 {
                notes.push(format!("{older} of its processes use an older library, which cannot be paused"));
            }
        }
        self.done(name, changed, notes)
    }

    /// Returns the answer to a change: the tenant's terms after it, the changed keys and the notes.
    fn done(&mut self, name: &str, changed: Vec<String>, notes: Vec<String>) -> Result<Done, String> {
        let id = self.known(name)?;
        let devices = self.terms_status(id);
        let paused = self.is_paused(name).unwrap_or(false);
        let room = self.rooms.get(&id);
        let mode = room.map_or(Mode::Enforce, |room| room.tenant.mode).to_string();
        let strict = room.is_some_and(|room| room.tenant.strict);
        Ok(Done { tenant: name.to_owned(), changed, paused, mode, strict, devices, notes })
    }

    /// Why a tenant gets the time it gets, and the findings about its processes.
    fn why(&mut self, name: &str) -> Result<Vec<Explained>, String> {
        let id = self.known(name)?;
        let Some(tenant) = self.rooms.get(&id).map(|room| room.tenant.clone()) else { return Ok(Vec::new()) };
        let whole = self.whole(name);
        let said = self.explain(name)?;
        let facts = said.into_iter().map(|said| {
            let class_of = |holder: &String| {
                let room = self.rooms.values().find(|room| room.tenant.name == *holder);
                room.and_then(|room| room.tenant.on(&said.device)).map_or_else(Default::default, |on| on.terms.class)
            };
            let holder = said.holder.filter(|holder| holder != name).map(|holder| (holder.clone(), class_of(&holder)));
            let terms = tenant.on(&said.device).map(|on| on.terms).unwrap_or_default();
            Facts {
                arbitrated: said.arbitrated,
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
        let facts: Vec<Facts> = facts.collect();
        let mut all = explained(&whole, &facts);
        let (found, more) = self.proof.as_ref().map(|proof| proof.of_tenant(name, own::MOST)).unwrap_or_default();
        tell_findings(&mut all, &found, more);
        Ok(all)
    }
}

/// The tenant as a configuration file would describe it.
fn plan_of(tenant: &Tenant) -> TenantPlan {
    TenantPlan {
        name: tenant.name.clone(),
        socket: tenant.socket.clone(),
        bearer: tenant.bearer.clone(),
        uids: tenant.uids.clone(),
        mode: tenant.mode,
        strict: tenant.strict,
        on_error: tenant.on_error,
        on_loss: tenant.on_loss,
        terms: tenant.on.iter().map(terms_of).collect(),
    }
}

fn terms_of(on: &On) -> TermsPlan {
    let uuid = match &on.device {
        Which::Uuid(uuid, _) => Some(uuid.clone()),
        Which::Number(_) | Which::Any => None,
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
        has_weight: on.has_weight,
        has_class: on.has_class,
    }
}
