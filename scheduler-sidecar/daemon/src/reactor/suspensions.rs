//! Learns which processes are suspended, and holds back tenants of which all processes are.
//!
//! `vgpu-checkpoint` tells what it did ([`vgpu_control::ControlCommand::Suspensions`]). The processes are stored with
//! the decisions of administrators, so the next daemon knows them.

use std::collections::{BTreeMap, BTreeSet};

use tracing::info;
use vgpu_accounting::clock;
use vgpu_control::SuspensionStatus;
use vgpu_control::finding::ProcessId;

use super::{Reactor, arbiter_number};
use crate::connection::PeerCredentials;
use crate::proof::{ListedProcesses, processes};
use crate::suspended::{LifeSigns, SuspendedProcess};

/// Most processes that a sentence names.
const MAX_PROCESSES_NAMED: usize = 8;

/// State of suspended processes that is not stored. [`crate::kept_changes::KeptChanges`] lists the processes.
#[derive(Debug, Default)]
pub(crate) struct SuspensionState {
    signs: LifeSigns,
    /// True if members came or left, or a process was suspended or resumed, since tenants were last judged.
    is_stale: bool,
}

impl Reactor {
    /// Takes over which processes are suspended and which run, as far as they are members, also of the last daemon.
    pub(super) fn take_suspensions(
        &mut self,
        suspended: &[ProcessId],
        running: &[ProcessId],
        who: PeerCredentials,
    ) -> Vec<SuspensionStatus> {
        self.forget_ended_processes();
        let tenants = self.tenants_by_process();
        let (mut told, mut is_other) = (Vec::new(), false);
        let (by_uid, by_pid, now) = (who.uid, who.pid, clock::unix_seconds());
        for process in suspended {
            let Some(tenant) = tenants.get(process).cloned() else { continue };
            self.begin_signs(*process, &tenant);
            if self.suspended_since(*process).is_none() {
                let pid = process.pid;
                info!(kind = "process.suspended", %tenant, pid, by_uid, by_pid, "a process was moved off its devices");
                let one = SuspendedProcess { process: *process, tenant: tenant.clone(), since: now };
                self.policies.kept.suspended.push(one);
                is_other = true;
            }
            let suspended_since = self.suspended_since(*process);
            told.push(SuspensionStatus { tenant, pid: process.pid, suspended_since });
        }
        for process in running {
            // One of a daemon before this one may not have come back, and may run without the check that lists it.
            let ended = self.end_suspension(*process);
            let Some(tenant) = ended.as_ref().map(|one| &one.tenant).or(tenants.get(process)).cloned() else {
                continue;
            };
            let pid = process.pid;
            if let Some(SuspendedProcess { since, .. }) = ended {
                info!(kind = "process.resumed", %tenant, pid, by_uid, by_pid, since, "a process is on its devices again");
                is_other = true;
            }
            told.push(SuspensionStatus { tenant, pid, suspended_since: None });
        }
        if is_other {
            self.policies.save_or_warn();
            self.suspensions.is_stale = true;
            self.settle_suspensions();
        }
        told
    }

    fn begin_signs(&mut self, process: ProcessId, tenant: &str) {
        let now = clock::now();
        let times = self.room_of(tenant).map(|id| self.leases.measured_times(arbiter_number(id), now));
        let own = times.unwrap_or_default().into_iter().filter(|(_, pid, _)| *pid == process.pid);
        self.suspensions.signs.begin(process, own.map(|(device, _, busy)| (device, busy)).collect(), now);
    }

    /// Notes device time of a process, in ns. A suspended process that works was resumed by another program.
    pub(super) fn note_work_of_suspended(&mut self, id: u64, pid: u32, device: &str, busy: u64) {
        // A process that the daemon cannot see says its number itself.
        let is_it = |other: &&SuspendedProcess| {
            other.process.pid == pid && self.rooms.get(&id).is_some_and(|room| room.tenant.name == other.tenant)
        };
        let Some(process) = self.policies.kept.suspended.iter().find(is_it).map(|other| other.process) else { return };
        if self.suspensions.signs.has_worked(process, device, busy, clock::now()) {
            self.note_alive(process, "it works again");
        }
    }

    /// Notes the processes that the driver lists on its devices. It lists no suspended one.
    pub(super) fn note_listed_processes(&mut self, listed: &ListedProcesses) {
        let signs = &self.suspensions.signs;
        let is_there =
            |process: &ProcessId| listed.processes.contains(process) && signs.was_suspended_at(*process, listed.asked);
        let kept = self.policies.kept.suspended.iter().map(|one| one.process);
        for process in kept.filter(is_there).collect::<Vec<_>>() {
            self.note_alive(process, "the driver lists it on a device");
        }
    }

    /// Forgets a suspension that another program ended.
    fn note_alive(&mut self, process: ProcessId, why: &str) {
        let Some(SuspendedProcess { tenant, since, .. }) = self.end_suspension(process) else { return };
        let pid = process.pid;
        info!(kind = "process.resumed", %tenant, pid, since, why, "a process is on its devices again");
        self.policies.save_or_warn();
    }

    /// Takes a process off the list, if it is there.
    fn end_suspension(&mut self, process: ProcessId) -> Option<SuspendedProcess> {
        let kept = &mut self.policies.kept.suspended;
        let at = kept.iter().position(|other| other.process == process)?;
        self.suspensions.signs.forget(process);
        self.suspensions.is_stale = true;
        Some(kept.remove(at))
    }

    /// Notes that a member came or left.
    pub(super) fn note_members_changed(&mut self) {
        self.suspensions.is_stale |= !self.policies.kept.suspended.is_empty();
    }

    /// Forgets suspended processes that have ended.
    pub(super) fn forget_ended_processes(&mut self) {
        let kept = &mut self.policies.kept.suspended;
        let before = kept.len();
        let signs = &mut self.suspensions.signs;
        kept.retain(|SuspendedProcess { process, .. }| {
            let lives = processes::read_process(process.pid) == Some(*process);
            if !lives {
                signs.forget(*process);
            }
            lives
        });
        if kept.len() < before {
            self.suspensions.is_stale = true;
            self.policies.save_or_warn();
        }
    }

    /// Holds back the tenants of which all connected processes are suspended now, and no others.
    ///
    /// # Cost
    /// Nothing while no process is suspended; else a look at each connection after members came or left.
    pub(super) fn settle_suspensions(&mut self) {
        if !std::mem::take(&mut self.suspensions.is_stale) {
            return;
        }
        self.forget_ended_processes();
        let suspended: BTreeSet<ProcessId> = self.policies.kept.suspended.iter().map(|one| one.process).collect();
        let mut is_whole: BTreeMap<u64, bool> = BTreeMap::new();
        for (room, _, connection) in self.connected_members() {
            let is_one = connection.process.is_some_and(|process| suspended.contains(&process));
            *is_whole.entry(room).or_insert(true) &= is_one;
        }
        let now = clock::now();
        for id in self.rooms.keys() {
            let is_suspended = is_whole.get(id).copied().unwrap_or(false);
            if self.leases.set_suspended(arbiter_number(*id), is_suspended, now) {
                self.policies.needs.note_changed(*id);
            }
        }
    }

    /// Time since which a process is suspended, in seconds since 1970; `None`: it is not.
    pub(super) fn suspended_since(&self, process: ProcessId) -> Option<i64> {
        let found = self.policies.kept.suspended.iter().find(|other| other.process == process);
        found.map(|other| other.since)
    }

    /// A sentence about the suspended processes of a tenant; `None`: it has none.
    pub(super) fn suspension_words(&self, id: u64) -> Option<String> {
        let mut all: Vec<(i64, u32)> = Vec::new();
        let mut members = 0;
        for process in self.members_of(id).map(|connection| connection.process) {
            members += 1;
            all.extend(process.and_then(|process| Some((self.suspended_since(process)?, process.pid))));
        }
        all.sort_unstable();
        let named = all.iter().take(MAX_PROCESSES_NAMED);
        let mut named: Vec<String> =
            named.map(|(since, pid)| format!("{pid} since {}", self.policies.format_time(*since))).collect();
        if all.len() > named.len() {
            named.push(format!("{} more", all.len() - named.len()));
        }
        let words = || format!("suspended processes ({} of {members}): {}", all.len(), named.join(", "));
        (!all.is_empty()).then(words)
    }

    /// The tenants of all members, and of those of the last daemon that have not come back.
    fn tenants_by_process(&self) -> BTreeMap<ProcessId, String> {
        let prior = self.roster.living_members().map(|prior| (prior.image.process, prior.tenant.clone()));
        let connected = self
            .connected_members()
            .filter_map(|(id, _, connection)| Some((connection.process?, self.rooms.get(&id)?.tenant.name.clone())));
        prior.chain(connected).collect()
    }
}
