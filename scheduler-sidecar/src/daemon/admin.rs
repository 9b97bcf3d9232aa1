//! What administrators ask, answered: the verbs of [`crate::control`] on the daemon at work.
//!
//! What is asked was understood by [`super::answer`]; what a change, a pause and an explanation come down to is
//! [`super::change`]'s; whether a change fits is computed by [`crate::config::live`], in the words of the file.

use std::collections::{BTreeMap, BTreeSet};

use super::change::Change;
use super::config::{On, Tenant, Which};
use super::reactor::Reactor;
use crate::config::live;
use crate::config::plan::{DevicePlan, TenantPlan, TermsPlan};
use crate::control::change::Words;
use crate::control::explain::{Explained, Facts, explained};
use crate::control::{Answer, Ask, Done, Process};

/// What was changed live since the file was read: by tenant and device, the keys.
pub(super) type Marks = BTreeMap<(String, String), BTreeSet<&'static str>>;

const LASTS: &str = "it lasts until the configuration is read again (SIGHUP) or the daemon restarts";

impl Reactor {
    /// Answers a question that was understood.
    pub(super) fn administer(&mut self, ask: &Ask, answer: &mut Answer) {
        let done = match ask {
            Ask::Status => return answer.status = Some(self.status()),
            Ask::Ps => return answer.members = Some(self.processes()),
            Ask::Explain { tenant } => {
                return match self.why(tenant) {
                    Ok(explained) => answer.explained = Some(explained),
                    Err(words) => answer.error = Some(words),
                };
            }
            Ask::Set { tenant, device, change } => self.set_live(tenant, device.as_deref(), change),
            Ask::Pause { tenant } => self.hold(tenant, true),
            Ask::Resume { tenant } => self.hold(tenant, false),
        };
        match done {
            Ok(done) => answer.done = Some(done),
            Err(words) => answer.error = Some(words),
        }
    }

    fn processes(&mut self) -> Vec<Process> {
        let of = |tenant: crate::control::TenantStatus| {
            let name = tenant.name;
            tenant.members.into_iter().map(move |member| Process { tenant: name.clone(), member })
        };
        self.status().tenants.into_iter().flat_map(of).collect()
    }

    /// Devices and tenants as they are in force, changes of administrators among them.
    fn in_force(&self) -> (Vec<DevicePlan>, Vec<TenantPlan>) {
        let planned = self.loaded.as_ref().map(|loaded| loaded.plan.devices.clone());
        let unknown = || vec![DevicePlan { index: None, uuid: None, memory: None, overcommit: 1000 }];
        let open = self.rooms.values().filter(|room| !room.is_removed());
        (planned.unwrap_or_else(unknown), open.map(|room| plan_of(&room.tenant)).collect())
    }

    /// The room of the tenant of that name, if it is served.
    fn known(&self, name: &str) -> Result<u64, String> {
        let found = self.rooms.iter().find(|(_, room)| !room.is_removed() && room.tenant.name == name);
        found.map(|(id, _)| *id).ok_or_else(|| live::tenant(&self.in_force().1, name).err().unwrap_or_default())
    }

    fn set_live(&mut self, name: &str, device: Option<&str>, words: &Words) -> Result<Done, String> {
        let change = words.read(str::to_owned)?;
        let (devices, tenants) = self.in_force();
        let changed = live::changed(&devices, &tenants, name, device, &change)?;
        let mut keys = BTreeSet::new();
        let mut behind = 0;
        for (device, what) in &changed.what {
            let Some(terms) = changed.tenant.terms.iter().find(|terms| terms.device == *device) else { continue };
            behind = behind.max(self.change(name, Some(device), &change_to(terms, what))?.behind);
            keys.extend(what.iter().copied());
            self.marks.entry((name.to_owned(), device.clone())).or_default().extend(what);
        }
        let mut notes = Vec::new();
        if !keys.is_empty() {
            notes.push(LASTS.to_owned());
        }
        if behind > 0 {
            notes.push(format!(
                "{behind} of its processes use an older library and keep what they were told until they start anew"
            ));
        }
        self.done(name, keys.into_iter().map(str::to_owned).collect(), notes)
    }

    fn hold(&mut self, name: &str, hold: bool) -> Result<Done, String> {
        self.known(name)?;
        let was = self.is_paused(name).unwrap_or(false);
        if hold { self.pause(name) } else { self.resume(name) }?;
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

    /// What holds for a tenant now.
    fn done(&mut self, name: &str, changed: Vec<String>, notes: Vec<String>) -> Result<Done, String> {
        let id = self.known(name)?;
        let devices = self.terms_status(id);
        let paused = self.is_paused(name).unwrap_or(false);
        Ok(Done { tenant: name.to_owned(), changed, paused, devices, notes })
    }

    /// Why a tenant gets what it gets.
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
        Ok(explained(&whole, &facts))
    }
}

/// As a file would say it.
fn plan_of(tenant: &Tenant) -> TenantPlan {
    TenantPlan {
        name: tenant.name.clone(),
        socket: tenant.socket.clone(),
        uids: tenant.uids.clone(),
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
    }
}

/// As the file names it ([`DevicePlan::name`]).
pub(super) fn device_name(device: &Which) -> String {
    match device {
        Which::Uuid(_, Some(number)) | Which::Number(number) => number.to_string(),
        Which::Uuid(uuid, None) => uuid.clone(),
        Which::Any => "*".into(),
    }
}

/// What has to be changed to get there; `what` are the keys that are different.
fn change_to(terms: &TermsPlan, what: &[&'static str]) -> Change {
    let has = |key: &str| what.contains(&key);
    Change {
        memory: has("memory_limit").then_some(terms.memory),
        ceiling: has("sm_limit").then_some(terms.ceiling),
        floor: has("sm_request").then_some(terms.floor),
        weight: has("weight").then_some(terms.weight),
        class: has("class").then_some(terms.class),
        quantum: has("quantum").then_some(terms.quantum),
    }
}
