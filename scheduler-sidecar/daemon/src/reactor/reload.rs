//! Replaces one plan by the next while members are connected, as a whole or not at all.
//!
//! A new tenant gets its socket, a removed one loses it, and members that join a changed one get the new terms.
//! Connected members keep their connections and find the new terms on their boards. Administrators' changes without an
//! end of their own end when the file is read again. They stay when the same file is resolved against devices that the
//! driver named later.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use tracing::{info, warn};

use super::policies::ChangeNote;
use super::terms_file;
use super::{Reactor, ServeError, arbiter_number};
use crate::asking::DriverInquiry;
use crate::config::TenantConfig;
use crate::connection::PeerCredentials;
use crate::door::{ListeningSocket, SocketAudience};
use crate::room::{self, TenantRoom, remove_dir};
use crate::source::{ConfigSource, PastDeadlines};
use vgpu_accounting::clock;
use vgpu_config::difference::{PlanDifference, compare_plans};
use vgpu_config::plan::ConfigPlan;
use vgpu_control as control;

/// The configuration file and the plan in force.
pub(crate) struct LoadedFile {
    pub source: ConfigSource,
    pub plan: ConfigPlan,
    /// The text from which the plan was read.
    pub text: String,
    /// How often the file was read again and accepted.
    pub reloads: u64,
    /// Why the last reading was refused; `None`: it was accepted.
    pub refused: Option<String>,
}

impl LoadedFile {
    pub fn configuration_status(&self) -> control::ConfigurationStatus {
        control::ConfigurationStatus {
            file: self.source.path.clone(),
            reloads: self.reloads,
            refused: self.refused.clone(),
            notes: self.plan.notes.clone(),
        }
    }
}

impl Reactor {
    /// Reads the file again and applies it, if all of it can be applied.
    pub(super) fn reload_file(&mut self) {
        let Some(loaded) = self.loaded.take() else { return };
        self.notifier.notify_reloading();
        let text = loaded.source.read_text().map_err(|why| why.to_string());
        self.obey_text(loaded, text, "reloaded", false);
        self.ask_driver();
    }

    /// The driver answered: the text that was last applied is resolved against its devices. The file did not change,
    /// so administrators' overrides stay.
    pub(super) fn driver_answered(&mut self) {
        let Some(inventory) = self.asking.as_mut().and_then(DriverInquiry::take_answer) else { return };
        self.asking = None;
        let Some(mut loaded) = self.loaded.take() else { return };
        let uuids: Vec<String> = inventory.found.iter().map(|found| found.uuid.clone()).collect();
        info!(kind = "driver.answered", devices = uuids.len(), "the driver answers");
        self.leases.learn_devices(&uuids, clock::now());
        loaded.source.driver_answered(inventory);
        let text = Ok(loaded.text.clone());
        self.obey_text(loaded, text, "read against the driver's devices", true);
        self.ask_driver();
        // Tenants that may use every device have ledgers of all from now on.
        self.rooms.keys().for_each(|id| self.keep_terms(*id));
    }

    /// Applies a text of the file, or logs why it cannot. `stays`: administrators' overrides are kept.
    fn obey_text(&mut self, mut loaded: LoadedFile, text: Result<String, String>, done: &str, stays: bool) {
        match text.and_then(|text| Ok((self.follow_plan(&loaded, &text)?, text))) {
            Ok(((plan, difference), text)) => {
                loaded.reloads += 1;
                loaded.refused = None;
                (loaded.plan, loaded.text) = (plan, text);
                let (file, notes) = (loaded.source.path.clone(), loaded.plan.notes.clone());
                self.loaded = Some(loaded);
                self.follow_changes(&difference, stays);
                // Told when the terms are in force.
                let summary = difference_summary(&difference);
                info!(kind = "config.taken", file = %file.display(), "{done}: {summary}");
                for note in notes {
                    warn!("{note}");
                }
                self.retry_waiting();
                return;
            }
            Err(why) => {
                warn!(kind = "config.refused", file = %loaded.source.path.display(), errors = why.lines().count(), "not {done}, nothing was changed");
                for line in why.lines() {
                    warn!("{line}");
                }
                loaded.refused = Some(why);
            }
        }
        self.loaded = Some(loaded);
        self.retry_waiting();
    }

    /// Tries again to serve the added tenants that had no room, and ends the reading.
    fn retry_waiting(&mut self) {
        self.serve_waiting();
        self.apply_policies(&ChangeNote::default());
        let is_refused = self.loaded.as_ref().is_some_and(|loaded| loaded.refused.is_some());
        let refused = if is_refused { "; the last reload was refused" } else { "" };
        self.notifier.notify_ready(&format!("{}{refused}", self.daemon_summary()));
    }

    /// Reads the new plan, opens and closes sockets as it says, and returns it with its difference to the last; or
    /// returns in words why nothing was changed.
    fn follow_plan(&mut self, loaded: &LoadedFile, text: &str) -> Result<(ConfigPlan, PlanDifference), String> {
        let mut plan =
            loaded.source.make_plan(text, PastDeadlines::InForce(&loaded.plan)).map_err(|why| why.to_string())?;
        self.append_added(&mut plan)?;
        self.check_booking_names(&plan)?;
        self.check_bookings_beside(&loaded.plan, &plan)?;
        self.check_new_tenants(&loaded.plan, &plan)?;
        let waiting = self.keep_busy_slots(&loaded.plan, &mut plan)?;
        let difference = self.apply_plan(&loaded.plan, &plan)?;
        self.wait_for_members(waiting);
        Ok((plan, difference))
    }

    /// Opens and closes sockets for a checked plan in place of `before`, and returns their difference; or returns in
    /// words why nothing was changed. [`Self::follow_changes`] then puts the terms in force.
    pub(super) fn apply_plan(&mut self, before: &ConfigPlan, plan: &ConfigPlan) -> Result<PlanDifference, String> {
        let difference = compare_plans(before, plan);
        if !difference.fixed.is_empty() {
            return Err(format!("a running daemon cannot change this, restart it: {}", difference.fixed.join("; ")));
        }
        // Steps that can fail run first.
        let mut rooms = Vec::new();
        // Directories created here. One that existed before may be mounted in a container, so it is not removed.
        let mut made = Vec::new();
        let mut next_room = self.next_room;
        for added in &difference.added {
            made.extend(added.socket.parent().filter(|dir| dir.symlink_metadata().is_err()).map(|_| &added.socket));
            let id = self.left_room(&added.name).unwrap_or(next_room);
            next_room = next_room.max(id + 1);
            match self.open_door(&added.socket, id) {
                Ok(door) => rooms.push((id, TenantConfig::from(added), door)),
                Err(why) => {
                    drop(rooms);
                    made.into_iter().for_each(|socket| remove_dir(socket));
                    return Err(why.to_string());
                }
            }
        }
        for (id, tenant, door) in rooms {
            room::announce_tenant(&tenant, None);
            self.take_in(id, tenant, door);
        }
        self.remove(&difference.removed, "no longer in the configuration", None);
        self.retry_doors();
        self.max_connections = usize::try_from(plan.daemon.max_connections).unwrap_or(usize::MAX);
        Ok(difference)
    }

    /// Opens and watches a tenant's socket. Does not wait for locks: members wait for the heartbeat meanwhile.
    pub(super) fn open_door(&self, socket: &Path, id: u64) -> Result<ListeningSocket, ServeError> {
        let mut patience = Duration::ZERO;
        let door = ListeningSocket::open(socket, SocketAudience::Members, &mut patience)?;
        self.watch_socket(&door, id)?;
        Ok(door)
    }

    /// Adds a tenant at startup.
    pub(super) fn add_room(&mut self, tenant: TenantConfig, door: ListeningSocket) -> Result<(), ServeError> {
        let id = self.next_room;
        self.watch_socket(&door, id)?;
        self.take_in(id, tenant, door);
        Ok(())
    }

    /// Adds a tenant whose socket path is unusable.
    pub(super) fn add_unusable(&mut self, tenant: TenantConfig, why: String) {
        let id = self.next_room;
        self.next_room += 1;
        self.leases.put_tenant(arbiter_number(id), tenant.clone(), clock::now());
        let limits_before = self.roster.prior_limits(&tenant.name);
        self.rooms.insert(id, TenantRoom { limits_before, ..TenantRoom::without_door(tenant, why) });
    }

    /// Tries again to open the sockets of tenants whose path was unusable.
    fn retry_doors(&mut self) {
        let ids: Vec<u64> = self.rooms.iter().filter(|(_, room)| room.unusable.is_some()).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(socket) = self.rooms.get(&id).map(|room| room.tenant.socket.clone()) else { continue };
            let opened = self.open_door(&socket, id);
            let Some(room) = self.rooms.get_mut(&id) else { continue };
            let tenant = &room.tenant.name;
            match opened {
                Ok(door) => {
                    info!(kind = "tenant.served", %tenant, "this tenant is served now");
                    (room.door, room.unusable) = (Some(door), None);
                    self.keep_terms(id);
                }
                Err(why) => {
                    warn!(kind = "tenant.unusable", %tenant, %why, "this tenant is not served; the others are");
                    room.unusable = Some(why.to_string());
                }
            }
        }
    }

    /// The room of a removed tenant of that name that still has members.
    pub(super) fn left_room(&self, name: &str) -> Option<u64> {
        let left = self.rooms.iter().find(|(_, room)| room.is_removed() && room.tenant.name == name);
        left.map(|(id, _)| *id)
    }

    /// Adds a tenant, or a removed one again. The listener is watched with that number as token.
    pub(super) fn take_in(&mut self, id: u64, tenant: TenantConfig, door: ListeningSocket) {
        match self.rooms.get_mut(&id) {
            Some(room) => {
                self.policies.needs.note_changed(id);
                room.take_terms(tenant.clone());
                (room.base, room.door) = (tenant.clone(), Some(door));
            }
            None => {
                let limits_before = self.roster.prior_limits(&tenant.name);
                self.rooms.insert(id, TenantRoom { limits_before, ..TenantRoom::new(tenant.clone(), door) });
                self.next_room = self.next_room.max(id + 1);
            }
        }
        self.leases.put_tenant(arbiter_number(id), tenant, clock::now());
        self.keep_terms(id);
        self.keep_limits(id);
        self.groups.weigh_again();
        self.follow_usage_at_once();
    }

    /// Closes the sockets of these tenants. Their members keep their last terms until they end.
    pub(super) fn remove(&mut self, names: &[String], why: &str, who: Option<PeerCredentials>) {
        for name in names {
            self.policies.forget_tenant(name);
        }
        let now = clock::now();
        for (id, room) in self.rooms.iter_mut() {
            if !names.contains(&room.tenant.name) || room.is_removed() {
                continue;
            }
            // Nobody could resume it any more, and its processes would wait for ever.
            self.leases.set_pauses(arbiter_number(*id), BTreeSet::new(), now);
            room.close();
            terms_file::remove(&room.tenant.socket);
            let (tenant, members) = (&room.tenant.name, room.members);
            let (by_uid, by_pid) = (who.map(|who| who.uid), who.and_then(|who| who.pid));
            info!(kind = "tenant.removed", %tenant, members, why, by_uid, by_pid, "tenant removed; its members keep their last terms");
        }
        self.forget_rooms();
    }

    /// Removes the rooms of removed tenants without connections, and their directories.
    pub(super) fn forget_rooms(&mut self) {
        for id in self.rooms.iter().filter(|(_, room)| room.is_over()).map(|(id, _)| *id).collect::<Vec<_>>() {
            self.note_last(id);
        }
        let (leases, recent, slots) = (&mut self.leases, &mut self.recent, &mut self.slots);
        let (promises, groups) = (&mut self.promises, &mut self.groups);
        let now = clock::now();
        let before = self.rooms.len();
        self.rooms.retain(|id, room| {
            if room.is_over() {
                slots.note_emptied();
                remove_dir(&room.tenant.socket);
                leases.remove(arbiter_number(*id), now);
                recent.forget_tenant(&room.tenant.name);
                groups.forget_tenant(&room.tenant.name);
                promises.forget_room(*id);
            }
            !room.is_over()
        });
        if self.rooms.len() < before {
            self.evacuated.look_soon();
            self.groups.forget_schedule();
        }
        // A window or a booking that did not fit may fit now. It is not decided here, because rooms are also forgotten
        // while no plan is in force, between an old one and its successor.
        if self.rooms.len() < before && !self.policies.refused.is_empty() {
            self.policies.decide_soon();
        }
        self.forget_ended();
    }

    /// Gives every tenant the terms of the plan in force, which its members get at once. `stays`: administrators'
    /// changes without an end stay; otherwise they end, because the file is in force.
    pub(super) fn follow_changes(&mut self, difference: &PlanDifference, stays: bool) {
        if stays {
            self.rename_changed_devices();
        } else {
            self.policies.end_with_the_file();
        }
        self.follow_usage_at_once();
        let Some(plan) = self.loaded.as_ref().map(|loaded| &loaded.plan) else { return };
        for planned in &plan.tenants {
            let mut open = self.rooms.values_mut().filter(|room| !room.is_removed());
            if let Some(room) = open.find(|room| room.tenant.name == planned.name) {
                room.base = TenantConfig::from(planned);
            }
        }
        self.groups.weigh_again();
        self.journal.replace_actions(&plan.actions);
        let (keep, exact, time, arbitrate) = (plan.daemon.keep, plan.daemon.exact, plan.time, plan.arbitrate);
        self.record.set_keep(keep);
        self.heart.set_interval(time.heartbeat);
        self.leases.change_constants(time, arbitrate, clock::now());
        self.leases.measure_all(exact);
        let changed = difference.changed.iter();
        let what: BTreeMap<_, _> =
            changed.map(|changed| (changed.tenant.name.clone(), changed.what.join(", "))).collect();
        self.apply_policies(&ChangeNote { what, ..ChangeNote::default() });
        self.warn_of_misfits();
    }

    /// Returns the state of the daemon in one line, for the service manager.
    pub(super) fn daemon_summary(&self) -> String {
        let tenants = self.rooms.values().filter(|room| room.door.is_some()).count();
        format!("serving {tenants} tenant{}", if tenants == 1 { "" } else { "s" })
    }
}

pub(super) fn difference_summary(difference: &PlanDifference) -> String {
    if difference.is_empty() {
        return "nothing changed".into();
    }
    let PlanDifference { added, removed, changed, kept, others, .. } = difference;
    let mut words =
        format!("{} added, {} removed, {} changed, {kept} as before", added.len(), removed.len(), changed.len());
    if !others.is_empty() {
        words.push_str(&format!("; {} changed", others.join(", ")));
    }
    words
}
