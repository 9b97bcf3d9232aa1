//! Adds and removes tenants by command, and ends those whose process or time has ended.
//!
//! An added tenant is admitted by the arithmetic of the file ([`vgpu_config::added`]) and is then a tenant like those
//! of the file. [`crate::added`] stores it for the next daemon, and [`super::stored`] serves it again. It stays when
//! the file is read again; a file that leaves no room for it is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{info, warn};
use vgpu_accounting::clock;
use vgpu_config::added::{SectionRefusal, TenantSection};
use vgpu_config::live;
use vgpu_config::plan::{ConfigPlan, TenantPlan};
use vgpu_control::AddedStatus;
use vgpu_control::finding::ProcessId;
use vgpu_control::tenant::{DaemonRefusal, RefusalKind, TenantAnswer, TenantState};

use super::members::open_process;
use super::policies::ChangeNote;
use super::{FIRST_OWNER, Reactor};
use crate::added::{AddedStore, AddedTenant};
use crate::config::TenantConfig;
use crate::connection::PeerCredentials;
use crate::proof::processes;
use crate::room;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// The ends that a command gave a tenant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lifetime {
    /// Process with whose end the tenant is removed.
    pub pid: Option<u32>,
    /// Seconds after which the tenant is removed.
    pub seconds: Option<u64>,
}

/// An added tenant, and the process that it waits for.
pub(super) struct LiveTenant {
    pub stored: AddedTenant,
    /// Readable when the owner has ended. Dropping it ends the watch.
    owner: Option<OwnedFd>,
}

/// The tenants that commands added.
pub(super) struct AddedTenants {
    /// `None`: there is no directory of sockets.
    pub(super) store: Option<AddedStore>,
    pub(super) boot: String,
    pub(super) tenants: BTreeMap<String, LiveTenant>,
    /// Ends of tenants by the monotonic clock, in ns.
    ends: BTreeSet<(u64, String)>,
    /// Stored tenants that this daemon cannot serve yet.
    pub(super) waiting: BTreeMap<String, AddedTenant>,
    /// Removed tenants whose members may still run, with the promise that holds until these have ended.
    pub(super) leaving: BTreeMap<String, (AddedTenant, TenantPlan)>,
    /// True if a tenant was not accepted while the driver did not answer, so its devices may be the reason.
    pub(super) lacks_driver: bool,
    /// Removed tenants whose usage is not written yet, with their rooms.
    unwritten: Vec<(String, u64)>,
}

impl AddedTenants {
    pub fn below(run_dir: Option<&Path>) -> Self {
        let store = run_dir.map(AddedStore::below);
        Self {
            store,
            boot: clock::boot_id(),
            tenants: BTreeMap::new(),
            ends: BTreeSet::new(),
            waiting: BTreeMap::new(),
            leaving: BTreeMap::new(),
            lacks_driver: false,
            unwritten: Vec::new(),
        }
    }

    /// Time of the monotonic clock at which the next tenant ends, in ns.
    pub fn next_end(&self) -> Option<u64> {
        self.ends.first().map(|(ends, _)| *ends)
    }

    /// Lifetime of a tenant; `None`: it was not added by a command.
    pub fn status_of(&self, name: &str, now: u64) -> Option<AddedStatus> {
        let AddedTenant { since, owner, ends_ns, .. } = &self.tenants.get(name)?.stored;
        Some(AddedStatus {
            since: *since,
            pid: owner.map(|owner| owner.pid),
            seconds_left: ends_ns.map(|ends| ends.saturating_sub(now).div_ceil(NS_PER_SECOND)),
        })
    }

    fn insert(&mut self, stored: AddedTenant, owner: Option<OwnedFd>) {
        let name = stored.section.name.clone();
        self.take_out(&name);
        self.waiting.remove(&name);
        self.leaving.remove(&name);
        self.ends.extend(stored.ends_ns.map(|ends| (ends, name.clone())));
        self.tenants.insert(name, LiveTenant { stored, owner });
    }

    fn take_out(&mut self, name: &str) -> Option<LiveTenant> {
        let live = self.tenants.remove(name)?;
        if let Some(ends) = live.stored.ends_ns {
            self.ends.remove(&(ends, name.to_owned()));
        }
        Some(live)
    }

    /// Writes the tenant's file.
    pub(super) fn save(&self, stored: &AddedTenant) -> Result<(), DaemonRefusal> {
        let Some(store) = &self.store else {
            return Err(refuse(RefusalKind::Failed, "the daemon has no directory for its sockets"));
        };
        let failed = |why| format!("tenant {} cannot be stored for the next daemon: {why}", stored.section.name);
        store.save(stored).map_err(|why| refuse(RefusalKind::Failed, failed(why)))
    }

    /// True if there is a file of this tenant for the next daemon.
    pub fn is_stored(&self, name: &str) -> bool {
        self.tenants.contains_key(name) || self.waiting.contains_key(name) || self.leaving.contains_key(name)
    }

    /// Removes the tenant's file. If that fails, the next daemon would serve the tenant again, which is logged.
    pub(super) fn remove_file(&mut self, name: &str) {
        self.waiting.remove(name);
        if let Some(Err(why)) = self.store.as_ref().map(|store| store.remove(name)) {
            warn!(tenant = name, %why, "the file of a removed tenant cannot be removed; the next daemon would serve it again");
        }
    }
}

fn refuse(kind: RefusalKind, words: impl Into<String>) -> DaemonRefusal {
    DaemonRefusal { words: words.into(), kind: Some(kind) }
}

fn refuse_section(why: &SectionRefusal) -> DaemonRefusal {
    let kind = match why {
        SectionRefusal::BadTerms(_) => RefusalKind::BadTerms,
        SectionRefusal::DoesNotFit(_) => RefusalKind::DoesNotFit,
    };
    refuse(kind, why.to_string())
}

impl Reactor {
    /// Adds a tenant, or replaces one that a command added.
    ///
    /// # Errors
    /// A message and its kind; nothing was changed.
    pub(super) fn add_tenant(
        &mut self,
        section: &TenantSection,
        lifetime: Lifetime,
        replace: bool,
        who: PeerCredentials,
    ) -> Result<TenantAnswer, DaemonRefusal> {
        self.forget_ended();
        let name = section.name.as_str();
        let Some(loaded) = &self.loaded else {
            let words = "this daemon's tenants are on its command line; tenants can be added where vgpud runs with --config FILE";
            return Err(refuse(RefusalKind::Failed, words));
        };
        if !self.added.tenants.contains_key(name) && is_tenant_of(&loaded.plan, name) {
            let words = format!("tenant {name} is in {}; change it there", loaded.source.path.display());
            return Err(refuse(RefusalKind::InFile, words));
        }
        let owner = lifetime.pid.map(|pid| {
            let words = format!("--pid {pid} is no process here; accepted: the ID of a running process");
            open_process(pid).ok_or_else(|| refuse(RefusalKind::BadTerms, words))
        });
        let (owner_id, owner) = owner.transpose()?.unzip();
        let ends_ns =
            lifetime.seconds.map(|seconds| clock::now().saturating_add(seconds.saturating_mul(NS_PER_SECOND)));
        let mut stored = AddedTenant {
            section: section.clone(),
            since: clock::unix_seconds(),
            owner: owner_id,
            ends_ns,
            boot: self.added.boot.clone(),
            remaining: None,
        };
        let mut state = TenantState::Added;
        if let Some(live) = self.added.tenants.get(name) {
            stored.since = live.stored.since;
            let mut keys = live.stored.section.differing_keys(section);
            keys.extend((live.stored.owner != owner_id).then_some("pid"));
            if keys.is_empty() {
                // Only the end can differ: the time counts from the last request.
                self.open_again(name)?;
                self.added.save(&stored)?;
                let owner = self.added.take_out(name).and_then(|live| live.owner);
                self.added.insert(stored, owner);
                return Ok(self.tenant_answer(name, TenantState::Unchanged));
            }
            if !replace {
                let keys = keys.join(", ");
                let words = format!("tenant {name} is there with another {keys}; accepted: the same, or --replace");
                return Err(refuse(RefusalKind::Differs, words));
            }
            state = TenantState::Replaced;
        }
        let tenant = match section.resolve_tenant(&loaded.plan, &self.promised_tenants(), loaded.source.zone()) {
            Ok(tenant) => tenant,
            Err(why) => {
                self.blame_driver(&why);
                return Err(refuse_section(&why));
            }
        };
        if tenant.usage.deadline.is_some_and(|plan| plan.due <= clock::unix_seconds()) {
            let due = section.deadline.as_deref().unwrap_or_default();
            let words = format!("tenant.deadline = {due} is in the past; accepted: a time to come");
            return Err(refuse(RefusalKind::BadTerms, words));
        }
        self.check_tenant_ahead(&tenant).map_err(|why| refuse(RefusalKind::DoesNotFit, why))?;
        if !self.added.tenants.contains_key(name) {
            self.check_cordons(&tenant).map_err(|why| refuse(RefusalKind::DoesNotFit, why))?;
        }
        if state == TenantState::Replaced {
            self.open_again(name)?;
            self.added.save(&stored)?;
            let id = self.room_of(name).map_err(|why| refuse(RefusalKind::Failed, why))?;
            if let Some(room) = self.rooms.get_mut(&id) {
                room.base = TenantConfig::from(&tenant);
            }
            self.follow_usage_at_once();
        } else {
            let id = self.left_room(name).unwrap_or(self.next_room);
            // Stored first: closing a socket again would take the ledgers of a tenant with it whose processes still
            // run.
            self.added.save(&stored)?;
            let door = match self.open_door(&tenant.socket, id) {
                Ok(door) => door,
                Err(why) => {
                    self.added.remove_file(name);
                    return Err(refuse(RefusalKind::Failed, why.to_string()));
                }
            };
            let fresh = TenantConfig::from(&tenant);
            room::announce_tenant(&fresh, Some(who));
            self.take_in(id, fresh, door);
        }
        self.follow_added(stored, owner, tenant);
        // A tenant with an override begins again.
        self.policies.forget_overrides(name);
        self.apply_policies(&ChangeNote::about(name, "replaced by `vgpu tenant add`", who));
        Ok(self.tenant_answer(name, state))
    }

    /// Opens the socket of an added tenant again, if its path was taken before.
    fn open_again(&mut self, name: &str) -> Result<(), DaemonRefusal> {
        let room = self.rooms.iter().find(|(_, room)| room.tenant.name == name && room.unusable.is_some());
        let Some((id, socket)) = room.map(|(id, room)| (*id, room.tenant.socket.clone())) else { return Ok(()) };
        let door = self.open_door(&socket, id).map_err(|why| refuse(RefusalKind::Failed, why.to_string()))?;
        if let Some(room) = self.rooms.get_mut(&id) {
            (room.door, room.unusable) = (Some(door), None);
        }
        self.keep_terms(id);
        Ok(())
    }

    /// Removes a tenant that a command added. Its members keep their last terms, and its promise is free when the last
    /// of them has ended. An unknown tenant is no error. `only_look`: describes a tenant that was removed before; if
    /// its name is in use again, the answer says so and lists no members.
    ///
    /// # Errors
    /// The tenant is one of the file.
    pub(super) fn remove_tenant(
        &mut self,
        name: &str,
        only_look: bool,
        who: PeerCredentials,
    ) -> Result<TenantAnswer, DaemonRefusal> {
        self.forget_ended();
        if only_look && self.rooms.values().any(|room| room.tenant.name == name && !room.is_removed()) {
            let answer = self.tenant_answer(name, TenantState::Added);
            return Ok(TenantAnswer { members: Vec::new(), unseen_members: 0, is_recorded: true, ..answer });
        }
        let waiting = self.added.waiting.remove(name);
        let was_waiting = waiting.is_some();
        if let Some(stored) = waiting {
            self.policies.forget_tenant(name);
            self.added.remove_file(name);
            self.keep_promise(stored);
            info!(
                kind = "tenant.removed",
                tenant = name,
                by_uid = who.uid,
                by_pid = who.pid,
                "a stored tenant is removed"
            );
        }
        let since = self.added.tenants.get(name).map(|live| live.stored.since);
        if since.is_some() {
            self.end_tenant(name, "removed by an administrator", Some(who));
            return Ok(TenantAnswer { since, ..self.tenant_answer(name, TenantState::Removed) });
        }
        if let Some(loaded) = self.loaded.as_ref().filter(|loaded| is_tenant_of(&loaded.plan, name)) {
            let words = format!("tenant {name} is in {}; remove it there and reload", loaded.source.path.display());
            return Err(refuse(RefusalKind::InFile, words));
        }
        let mut answer = self.tenant_answer(name, TenantState::Ending);
        if answer.socket.is_none() && answer.is_recorded && !self.added.leaving.contains_key(name) {
            answer.state = if was_waiting { TenantState::Removed } else { TenantState::Unknown };
        }
        Ok(answer)
    }

    /// Adds the tenants of commands to the plan of a file that was read again.
    ///
    /// # Errors
    /// A message: the file leaves no room for one of them, or has a tenant of the same name.
    pub(super) fn append_added(&self, plan: &mut ConfigPlan) -> Result<(), String> {
        if self.added.tenants.is_empty() {
            return Ok(());
        }
        for (name, live) in &self.added.tenants {
            let words = |why: &str| format!("tenant {name}, which `vgpu tenant add` added: {why}");
            if is_tenant_of(plan, name) {
                return Err(words("the file has a tenant of this name; remove one of the two"));
            }
            let tenant = live
                .stored
                .section
                .resolve_tenant(plan, &[], &self.policies.zone)
                .map_err(|why| words(&why.to_string()))?;
            plan.tenants.push(tenant);
        }
        match live::find_misfits(&plan.devices, &plan.tenants).as_slice() {
            [] => Ok(()),
            misfits => Err(format!("with the tenants that `vgpu tenant add` added: {}", misfits.join("; and "))),
        }
    }

    /// The process with whose end a tenant is removed has ended.
    pub(super) fn owner_ended(&mut self, id: u64) {
        let Some(name) = self.rooms.get(&id).map(|room| room.tenant.name.clone()) else { return };
        let Some(live) = self.added.tenants.get(&name) else { return };
        let (Some(owner), Some(held)) = (live.stored.owner, &live.owner) else { return };
        // The event may be that of an owner who was replaced meanwhile.
        let mut ended = [PollFd::new(held, PollFlags::IN)];
        if poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count == 0) {
            return;
        }
        self.end_tenant(&name, &format!("process {} ended", owner.pid), None);
    }

    /// Removes the tenants whose time is over.
    pub(super) fn remove_expired(&mut self) {
        while let Some((ends, name)) = self.added.ends.first().cloned() {
            if ends > clock::now() {
                return;
            }
            self.end_tenant(&name, "its time is over", None);
        }
    }

    /// Puts an added tenant under the watch of its ends, and into the plan in force.
    pub(super) fn follow_added(&mut self, stored: AddedTenant, owner: Option<OwnedFd>, tenant: TenantPlan) {
        let name = &stored.section.name;
        let room = self.rooms.iter().find(|(_, room)| !room.is_removed() && room.tenant.name == *name);
        if let (Some((id, _)), Some(owner)) = (room, &owner) {
            // Without the watch the tenant stays until it is removed, which its file and its status still say.
            let watched = epoll::add(
                &self.epoll,
                owner,
                EventData::new_u64(FIRST_OWNER + id),
                EventFlags::IN | EventFlags::ONESHOT,
            );
            if let Err(why) = watched {
                warn!(tenant = %name, %why, "the end of its process is not noticed");
            }
        }
        if let Some(loaded) = &mut self.loaded {
            loaded.plan.tenants.retain(|other| other.name != *name);
            loaded.plan.tenants.push(tenant);
        }
        self.added.insert(stored, owner);
    }

    fn end_tenant(&mut self, name: &str, why: &str, who: Option<PeerCredentials>) {
        self.added.remove_file(name);
        if let Some(live) = self.added.take_out(name) {
            self.keep_promise(live.stored);
        }
        let rooms = self.rooms.iter().filter(|(_, room)| !room.is_removed() && room.tenant.name == name);
        let rooms: Vec<(String, u64)> = rooms.map(|(id, _)| (name.to_owned(), *id)).collect();
        self.added.unwritten.extend(rooms);
        if let Some(loaded) = &mut self.loaded {
            loaded.plan.tenants.retain(|tenant| tenant.name != name);
        }
        self.policies.forget_tenant(name);
        self.remove(&[name.to_owned()], why, who);
        self.apply_policies(&ChangeNote::default());
    }

    /// Describes a tenant after a request.
    fn tenant_answer(&mut self, name: &str, state: TenantState) -> TenantAnswer {
        let (rooms, record) = (&self.rooms, &self.record);
        self.added.unwritten.retain(|(_, id)| rooms.contains_key(id) || !record.is_written(*id));
        let room = self.rooms.iter().find(|(_, room)| room.tenant.name == name);
        let members = room.into_iter().flat_map(|(id, _)| self.members_of(*id));
        // A process whose ID now belongs to another one is no member. The process that holds its connection is not
        // known.
        let living = |process: &ProcessId| processes::read_process(process.pid) == Some(*process);
        let members: Vec<Option<ProcessId>> = members.map(|connection| connection.process.filter(living)).collect();
        let unseen_members = members.iter().filter(|member| member.is_none()).count();
        let mut members: Vec<ProcessId> = members.into_iter().flatten().collect();
        // Members of an earlier daemon have no connection to this one.
        for member in self.added.remaining_members(name) {
            if !members.contains(&member) {
                members.push(member);
            }
        }
        let is_left = self.added.leaving.contains_key(name);
        TenantAnswer {
            name: name.to_owned(),
            state,
            socket: room.map(|(_, room)| room.tenant.socket.clone()),
            since: self.added.tenants.get(name).map(|live| live.stored.since),
            unseen_members,
            members,
            is_recorded: room.is_none() && !is_left && !self.added.unwritten.iter().any(|(of, _)| of == name),
        }
    }
}

pub(super) fn is_tenant_of(plan: &ConfigPlan, name: &str) -> bool {
    plan.tenants.iter().any(|tenant| tenant.name == name)
}
