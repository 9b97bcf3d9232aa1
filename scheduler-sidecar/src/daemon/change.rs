//! What an administrator changes, holds or asks about while members run.
//!
//! The words of the administrative protocol are `admin`'s; this is what they come down to.

use tracing::info;
use vgpu_core::arbiter::Class;
use vgpu_core::bytes::Bytes;
use vgpu_core::share::Share;

use super::config::{On, Tenant};
use super::pages;
use super::reactor::{Reactor, number};
use crate::config::admit::{Ask, Capacity, Refusal, refusals};
use crate::config::plan::DevicePlan;

/// What is to be different; `None`: as it is. An inner `None`: no limit, no floor, the class's own quantum.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Hard memory limit.
    pub memory: Option<Option<Bytes>>,
    /// sm limit.
    pub ceiling: Option<Option<Share>>,
    /// sm request.
    pub floor: Option<Option<Share>>,
    /// Its part of what floors leave; 1 to 10000.
    pub weight: Option<u32>,
    /// Who comes first.
    pub class: Option<Class>,
    /// Length of a lease in ns; 500 us to 50 ms.
    pub quantum: Option<Option<u64>>,
}

/// What a change did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Entries of the tenant's list of devices that are different now.
    pub devices: usize,
    /// Members of protocol 2: what changed is in force for them.
    pub members: usize,
    /// Members of protocol 1: they keep what they were told.
    pub behind: usize,
}

/// What a tenant used of a device since it was taken in, or since the daemon started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    /// The device's UUID.
    pub device: String,
    /// Members that have a slot there.
    pub members: usize,
    /// Device time charged, in ns.
    pub charged: u64,
    /// Time that its members stood at the gate, in ns, summed over members.
    pub wait: u64,
    /// Estimates of all launches, in ns of device time, by the members' own word.
    pub launches: u64,
}

/// A member on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDevice {
    /// The number of its welcome.
    pub member: u64,
    /// The device's UUID.
    pub device: String,
    /// `open`, `run`, `wait`, `cap`.
    pub gate: &'static str,
    /// Does it stand at the gate without a lease?
    pub stands: bool,
    /// Device time that it measured, in ns, as far as that is possible.
    pub busy: u64,
    /// Time that it stood at the gate, in ns.
    pub waited: u64,
}

/// Where a tenant stands on a device, for whoever asks why it does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The device's UUID.
    pub device: String,
    /// Are there leases on this device at all?
    pub arbitrated: bool,
    /// In one word: `open`, `running`, `draining`, `waiting`, `capped`, `overdue`, `idle`, `paused`.
    pub state: &'static str,
    /// The same in a sentence, with names and numbers.
    pub words: String,
    /// Whose lease it is now: a tenant's name.
    pub holder: Option<String>,
    /// What is left of its account under its ceiling, in ns of device time; negative is debt.
    pub balance: Option<i64>,
    /// When the account allows the next lease, in ns from now.
    pub refill: Option<u64>,
}

impl Change {
    /// As it would then be.
    fn on(&self, on: &On) -> On {
        let mut changed = on.clone();
        let terms = &mut changed.terms;
        changed.memory = self.memory.unwrap_or(changed.memory);
        terms.ceiling = self.ceiling.unwrap_or(terms.ceiling).filter(|ceiling| !ceiling.is_all());
        terms.floor = self.floor.unwrap_or(terms.floor);
        terms.weight = self.weight.unwrap_or(terms.weight);
        terms.class = self.class.unwrap_or(terms.class);
        terms.quantum = self.quantum.unwrap_or(terms.quantum);
        changed
    }
}

impl Reactor {
    /// The room of a tenant that is served.
    fn room_of(&self, tenant: &str) -> Result<u64, String> {
        let open = self.rooms.iter().find(|(_, room)| !room.is_removed() && room.tenant.name == tenant);
        open.map(|(id, _)| *id).ok_or_else(|| format!("there is no tenant {tenant:?}"))
    }

    /// Changes a tenant's terms on a device (its UUID, its number, `*`), or on all of its devices; in force at once for
    /// members of protocol 2. Lasts until the file is read again or the daemon ends.
    ///
    /// # Errors
    /// In words: no such tenant or device, or it does not fit beside the other tenants. Nothing is changed then.
    pub fn change(&mut self, tenant: &str, device: Option<&str>, change: &Change) -> Result<Changed, String> {
        let id = self.room_of(tenant)?;
        let Some(room) = self.rooms.get(&id) else { return Err(format!("there is no tenant {tenant:?}")) };
        let mut fresh = room.tenant.clone();
        let concerned = |on: &On| device.is_none_or(|name| on.device.is(name));
        let devices = fresh.on.iter().filter(|on| concerned(on)).count();
        if devices == 0 {
            let known = fresh.on.iter().map(|on| on.device.to_string()).collect::<Vec<_>>().join(", ");
            let device = device.unwrap_or("*");
            return Err(format!("tenant {tenant} has no terms for device {device:?}; accepted: {known}"));
        }
        for on in fresh.on.iter_mut().filter(|on| concerned(on)) {
            *on = change.on(on);
        }
        self.admit(id, &fresh)?;
        let now = pages::now();
        let behind = match self.rooms.get_mut(&id) {
            Some(room) => {
                let before = room.limits();
                room.tenant = fresh.clone();
                if room.limits() == before { 0 } else { room.open - room.paged }
            }
            None => 0,
        };
        let members = self.leases.put(number(id), fresh, now);
        self.keep_terms(id);
        self.leases.tick(now);
        info!(%tenant, devices, members, behind, "tenant changed by an administrator");
        Ok(Changed { devices, members, behind })
    }

    /// Would everything fit with this tenant as it is to be?
    fn admit(&self, id: u64, fresh: &Tenant) -> Result<(), String> {
        let devices: &[DevicePlan] = self.loaded.as_ref().map_or(&[], |loaded| &loaded.plan.devices);
        let unknown = [DevicePlan { index: None, uuid: None, memory: None, overcommit: 1000 }];
        for device in if devices.is_empty() { &unknown } else { devices } {
            let name = device.name();
            let capacity = Capacity { memory: device.memory, overcommit: device.overcommit };
            let there = |tenant: &Tenant| {
                let on = tenant.on.iter().find(|on| on.device.is(&name))?;
                Some(Ask { memory: on.memory, floor: on.terms.floor, ceiling: on.terms.ceiling })
            };
            let others = self.rooms.iter().filter(|(other, room)| **other != id && !room.is_removed());
            let mut asks: Vec<Ask> = others.filter_map(|(_, room)| there(&room.tenant)).collect();
            // Last, so that what does not fit shows at it.
            let Some(own) = there(fresh) else { continue };
            asks.push(own);
            let Some(refusal) = refusals(&capacity, &asks).into_iter().next() else { continue };
            let tenant = &fresh.name;
            return Err(match refusal {
                Refusal::Alone { .. } => {
                    let total = device.memory.unwrap_or_default();
                    format!("device {name} has {total}: tenant {tenant} cannot have more")
                }
                Refusal::Memory { asked, promised, .. } => format!(
                    "the memory limits on device {name} would be {asked} bytes together, and {promised} may be promised"
                ),
                Refusal::FloorAboveCeiling { .. } => {
                    format!("the sm_request of tenant {tenant} on device {name} would be above its sm_limit")
                }
                Refusal::Floors { asked, .. } => {
                    let (whole, tenths) = (asked / 10, asked % 10);
                    format!("the requests on device {name} would be {whole}.{tenths} % together; at most 100 %")
                }
            });
        }
        Ok(())
    }

    /// Grants a tenant nothing any more: what is in flight drains, its members wait at the gate. Twice is once. Lasts until
    /// [`Self::resume`], over readings of the file too.
    ///
    /// # Errors
    /// In words: no such tenant.
    pub fn pause(&mut self, tenant: &str) -> Result<(), String> {
        let id = self.room_of(tenant)?;
        self.leases.pause(number(id), true, pages::now());
        info!(%tenant, "tenant paused");
        Ok(())
    }

    /// Ends a pause; without one nothing happens.
    ///
    /// # Errors
    /// In words: no such tenant.
    pub fn resume(&mut self, tenant: &str) -> Result<(), String> {
        let id = self.room_of(tenant)?;
        self.leases.pause(number(id), false, pages::now());
        info!(%tenant, "tenant goes on");
        Ok(())
    }

    /// Is this tenant paused? `None`: no such tenant.
    #[must_use]
    pub fn is_paused(&self, tenant: &str) -> Option<bool> {
        self.room_of(tenant).ok().map(|id| self.leases.is_paused(number(id)))
    }

    /// Where a tenant stands on each device on which it has members.
    ///
    /// # Errors
    /// In words: no such tenant.
    pub fn explain(&mut self, tenant: &str) -> Result<Vec<Explained>, String> {
        let id = self.room_of(tenant)?;
        Ok(self.leases.explain(number(id), pages::now()))
    }

    /// What a tenant used, device by device; empty for one that does not exist.
    #[must_use]
    pub fn used(&mut self, tenant: &str) -> Vec<Used> {
        match self.room_of(tenant) {
            Ok(id) => self.leases.used(number(id), pages::now()),
            Err(_) => Vec::new(),
        }
    }
}
