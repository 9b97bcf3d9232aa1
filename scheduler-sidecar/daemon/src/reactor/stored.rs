//! Stored tenants that are not served: those of the previous daemon, and the promises of removed ones.
//!
//! A stored tenant that cannot be served waits until the file is read again or the driver answers. The promise of a
//! removed tenant holds until its last member has ended, also under a daemon that was started later: members of a
//! removed tenant cannot connect to it.

use tracing::{info, warn};
use vgpu_accounting::clock;
use vgpu_config::added::SectionRefusal;
use vgpu_config::plan::TenantPlan;
use vgpu_control::TenantStatus;
use vgpu_control::finding::ProcessId;

use super::Reactor;
use super::members::open_process;
use super::tenants::{AddedTenants, is_tenant_of};
use crate::added::AddedTenant;
use crate::config::TenantConfig;
use crate::proof::image::Image;
use crate::proof::processes::read_image;
use crate::room::{TenantRoom, remove_dir};

/// True if the process still runs the program that was a member.
fn is_running(member: &Image) -> bool {
    read_image(member.process.pid) == Some(*member)
}

impl AddedTenants {
    /// Members of a removed tenant that still run, and that were members when it was removed.
    pub fn remaining_members(&self, name: &str) -> Vec<ProcessId> {
        let remaining = self.leaving.get(name).and_then(|(stored, _)| stored.remaining.as_ref());
        remaining.into_iter().flatten().filter(|member| is_running(member)).map(|member| member.process).collect()
    }
}

impl Reactor {
    /// Serves the tenants that commands added under the previous daemon.
    pub(super) fn restore_added(&mut self) {
        let Some(store) = self.added.store.as_ref() else { return };
        let (removed, served): (Vec<_>, Vec<_>) =
            store.read_all(&self.added.boot).into_iter().partition(|stored| stored.remaining.is_some());
        // Their promises count when the others are admitted.
        for stored in removed {
            self.restore_promise(stored);
        }
        for stored in served {
            self.serve_stored(stored);
        }
    }

    /// Tries again to serve the stored tenants that could not be served.
    pub(super) fn serve_waiting(&mut self) {
        self.forget_ended();
        let mut waiting: Vec<AddedTenant> = std::mem::take(&mut self.added.waiting).into_values().collect();
        waiting.sort_by(|one, other| (one.since, &one.section.name).cmp(&(other.since, &other.section.name)));
        self.added.lacks_driver = false;
        for stored in waiting {
            self.serve_stored(stored);
        }
    }

    fn serve_stored(&mut self, stored: AddedTenant) {
        let name = stored.section.name.clone();
        let owner = stored.owner.map(|owner| open_process(owner.pid).filter(|(process, _)| *process == owner));
        if owner.as_ref().is_some_and(Option::is_none) || stored.ends_ns.is_some_and(|ends| ends <= clock::now()) {
            info!(kind = "tenant.removed", tenant = %name, "its process or its time ended while it was not served");
            self.policies.forget_tenant(&name);
            self.added.remove_file(&name);
            return self.keep_promise(stored);
        }
        let resolved = match &self.loaded {
            None => Err(SectionRefusal::BadTerms("this daemon has no configuration file".to_owned())),
            Some(loaded) if is_tenant_of(&loaded.plan, &name) => {
                Err(SectionRefusal::DoesNotFit("the file has a tenant of this name".to_owned()))
            }
            Some(loaded) => {
                let resolved =
                    stored.section.resolve_tenant(&loaded.plan, &self.promised_tenants(), loaded.source.zone());
                resolved.and_then(|tenant| {
                    self.check_tenant_ahead(&tenant).map_err(SectionRefusal::DoesNotFit)?;
                    Ok(tenant)
                })
            }
        };
        match resolved {
            Ok(tenant) => {
                let fresh = TenantConfig::from(&tenant);
                let id = self.left_room(&name).unwrap_or(self.next_room);
                match self.open_door(&tenant.socket, id) {
                    Ok(door) => self.take_in(id, fresh, door),
                    Err(why) => {
                        warn!(kind = "tenant.unusable", tenant = %name, %why, "this tenant is not served; the others are");
                        self.add_unusable(fresh, why.to_string());
                    }
                }
                self.follow_added(stored, owner.flatten().map(|(_, held)| held), tenant);
            }
            // The file is kept: the tenant is served when the configuration leaves room for it.
            Err(why) => {
                warn!(kind = "tenant.unusable", tenant = %name, %why, "a tenant that a command added is not served");
                self.blame_driver(&why);
                self.added.waiting.insert(name, stored);
            }
        }
    }

    /// Asks a driver that does not answer again, if a tenant was not accepted: without the driver the devices and their
    /// memory may not be known.
    pub(super) fn blame_driver(&mut self, why: &SectionRefusal) {
        if matches!(why, SectionRefusal::BadTerms(_)) {
            self.added.lacks_driver = true;
            self.ask_driver();
        }
    }

    /// Keeps the promise of a tenant that is removed while its members run: here, and in its file for the next daemon.
    pub(super) fn keep_promise(&mut self, mut stored: AddedTenant) {
        let name = stored.section.name.clone();
        let is_of_tenant = |id: u64| self.rooms.get(&id).is_some_and(|room| room.tenant.name == name);
        let connected = self.connected_members().filter(|(id, ..)| is_of_tenant(*id));
        let connected = connected.filter_map(|(.., connection)| connection.image.or_else(|| connection.read_image()));
        // Members of the previous daemon that have not come back to this one.
        let prior = self.roster.prior_members().filter(|prior| prior.tenant == name).map(|prior| prior.image);
        let mut remaining: Vec<Image> = Vec::new();
        for member in connected.chain(prior) {
            if is_running(&member) && !remaining.contains(&member) {
                remaining.push(member);
            }
        }
        if remaining.is_empty() {
            return;
        }
        stored.remaining = Some(remaining);
        if let Err(why) = self.added.save(&stored) {
            warn!(tenant = %name, why = %why.words, "a daemon that starts later would not count its promise");
        }
        self.restore_promise(stored);
    }

    /// Counts the promise of a removed tenant until its last member has ended.
    fn restore_promise(&mut self, stored: AddedTenant) {
        let name = stored.section.name.clone();
        let planned = match &self.loaded {
            None => Err("this daemon has no configuration file".to_owned()),
            Some(loaded) => stored.section.resolve_alone(&loaded.plan, loaded.source.zone()),
        };
        match planned {
            Ok(plan) => drop(self.added.leaving.insert(name, (stored, plan))),
            Err(why) => {
                warn!(tenant = %name, %why, "the promise of this removed tenant is not counted, although its processes run");
                self.added.remove_file(&name);
            }
        }
        self.forget_ended();
    }

    /// Forgets the removed tenants whose last member has ended.
    pub(super) fn forget_ended(&mut self) {
        let is_over = |(stored, _): &(AddedTenant, TenantPlan)| {
            stored.remaining.as_ref().is_none_or(|remaining| !remaining.iter().any(is_running))
        };
        let ended = self.added.leaving.iter().filter(|(_, left)| is_over(left)).map(|(name, _)| name.clone());
        for name in ended.collect::<Vec<_>>() {
            let Some((_, plan)) = self.added.leaving.remove(&name) else { continue };
            // A window or a booking that did not fit may fit now.
            self.policies.decide_soon();
            self.added.remove_file(&name);
            if !self.rooms.values().any(|room| room.tenant.name == name) {
                remove_dir(&plan.socket);
            }
        }
    }

    /// The promises of removed tenants that have no connection to this daemon.
    pub(super) fn left_promises(&self) -> impl Iterator<Item = &TenantPlan> {
        let left = self.added.leaving.iter();
        left.filter(|(name, _)| !self.rooms.values().any(|room| room.tenant.name == **name)).map(|(_, (_, plan))| plan)
    }

    /// Status of the removed tenants that have no connection to this daemon. Their members are not listed.
    pub(super) fn left_statuses(&self) -> Vec<TenantStatus> {
        self.left_promises().map(|plan| TenantRoom::without_socket(TenantConfig::from(plan)).tenant_status()).collect()
    }
}
