//! Learns which processes are suspended, and holds back tenants of which all processes are.
//!
//! `vgpu-checkpoint` tells what it did ([`vgpu_control::ControlCommand::Suspensions`]). The processes are stored with
//! the decisions of administrators, so the next daemon knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tracing::info;
use vgpu_accounting::clock;
use vgpu_control::finding::ProcessId;
use vgpu_control::{SuspensionReport, SuspensionStatus};

use super::{Reactor, arbiter_number};
use crate::connection::PeerCredentials;
use crate::proof::{ListedProcesses, ProofLink, processes};
use crate::suspended::SuspendedProcess;

/// Most processes that a sentence names.
const MAX_PROCESSES_NAMED: usize = 8;

/// Pause between two looks at the suspended processes.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Pause before the next look if a suspended tenant rings its bell, which may be the first launch of another process.
/// A tenant may ring thousands of times a second.
const LOOK_PAUSE_AFTER_RING: Duration = Duration::from_millis(10);

/// Work that is due for suspended processes. [`crate::kept_changes::KeptChanges`] lists them.
#[derive(Debug)]
pub(crate) struct SuspensionState {
    /// True if members came or left, or a process was suspended or resumed, since tenants were last judged.
    is_stale: bool,
    /// True if the list changed since it was last stored.
    is_unsaved: bool,
    /// Time of the last look at the suspended processes, and the pause before the next one; `None`: none is suspended.
    looked: Option<(Instant, Duration)>,
    /// Members of the last daemon that lived at that look and had not connected again.
    prior: BTreeSet<ProcessId>,
    /// Time at which the state of each member that counts was read from the driver, in ns.
    read: BTreeMap<ProcessId, u64>,
}

impl SuspensionState {
    /// The processes of the last daemon are to be looked at.
    pub fn due_at_once() -> Self {
        let looked = Some((Instant::now(), Duration::ZERO));
        Self { is_stale: false, is_unsaved: false, looked, prior: BTreeSet::new(), read: BTreeMap::new() }
    }

    /// True if no state of the process that was read later has arrived. Two programs that change a process one after
    /// the other may be heard in the other order.
    fn is_news(&mut self, process: ProcessId, read: u64) -> bool {
        let last = self.read.entry(process).or_default();
        let is_news = read >= *last;
        *last = read.max(*last);
        is_news
    }

    /// Looks at the suspended processes soon, since a suspended tenant rings: another of its processes may launch.
    pub fn hurry_look(&mut self) {
        if let Some((_, pause)) = &mut self.looked {
            *pause = LOOK_PAUSE_AFTER_RING;
        }
    }

    /// Time until the suspended processes must be looked at.
    pub fn next_wait(&self) -> Option<Duration> {
        self.looked.map(|(looked, pause)| pause.saturating_sub(looked.elapsed()))
    }
}

impl Reactor {
    /// Takes over which processes are suspended and which run, as far as they are members, also of the last daemon.
    /// Returns how those count now.
    pub(super) fn take_suspensions(
        &mut self,
        report: &SuspensionReport,
        who: PeerCredentials,
    ) -> Vec<SuspensionStatus> {
        self.forget_ended_processes();
        self.note_resuming(&report.resuming, who);
        let tenants = self.tenants_by_process();
        let read = report_time(report.read, clock::now());
        let lists = [
            (&report.suspended, ToldState::Suspended),
            (&report.locked, ToldState::Locked),
            (&report.running, ToldState::Running),
        ];
        let mut told = Vec::new();
        let states = lists.into_iter().flat_map(|(list, state)| list.iter().map(move |process| (*process, state)));
        for (process, state) in states {
            // One of a daemon before this one may not have come back, and may run without the check that lists it.
            let tenant = tenants.get(&process).or_else(|| self.suspended_one(process).map(|one| &one.tenant));
            let Some(tenant) = tenant.cloned() else { continue };
            let is_news = self.suspensions.is_news(process, read);
            match state {
                _ if !is_news => {}
                ToldState::Suspended => self.begin_suspension(process, &tenant, false, who),
                ToldState::Locked => self.begin_suspension(process, &tenant, true, who),
                ToldState::Running => {
                    self.end_suspension(process).iter().for_each(|ended| log_resumed(ended, Some(who), None));
                }
            }
            let suspended_since = self.suspended_since(process);
            // The program of a process could not be read, or it has ended.
            if suspended_since.is_some() || !is_news || state == ToldState::Running {
                told.push(SuspensionStatus { tenant, pid: process.pid, suspended_since });
            }
        }
        self.suspensions.read.retain(|process, _| tenants.contains_key(process));
        self.look_at_suspended();
        self.settle_suspensions();
        told
    }

    /// Puts a process on the list, if it has not ended. If it is there, notes whether its memory is on the device.
    fn begin_suspension(&mut self, process: ProcessId, tenant: &str, is_locked: bool, who: PeerCredentials) {
        let learned = clock::now();
        if let Some(known) = self.find_suspended(process) {
            (known.learned, known.resumed_by) = (learned, None);
            if std::mem::replace(&mut known.is_locked, is_locked) != is_locked {
                self.suspensions.is_unsaved = true;
                log_suspended(tenant, process, is_locked, who);
            }
            return;
        }
        let Some(image) = processes::read_image(process.pid).filter(|image| image.process == process) else { return };
        let (boot, since) = (self.added.boot.clone(), clock::unix_seconds());
        log_suspended(tenant, process, is_locked, who);
        let one =
            SuspendedProcess { image, boot, tenant: tenant.to_owned(), since, is_locked, learned, resumed_by: None };
        self.policies.kept.suspended.push(one);
        (self.suspensions.is_stale, self.suspensions.is_unsaved) = (true, true);
    }

    /// Notes that a program is about to resume these processes. The driver may list the first one before the last one
    /// is there.
    fn note_resuming(&mut self, processes: &[ProcessId], who: PeerCredentials) {
        for process in processes {
            if let Some(known) = self.find_suspended(*process) {
                known.resumed_by = Some(who);
            }
        }
    }

    /// Notes that a process did device time, as its tenant reports. A suspended process that works was resumed by
    /// another program. While the driver tells which processes are on its devices, only its list counts. It lists
    /// a locked process all the time.
    pub(super) fn note_work_of_suspended(&mut self, id: u64, pid: u32) {
        let (now, hears_driver) = (clock::now(), self.proof.as_ref().is_some_and(ProofLink::hears_driver));
        // A process that the daemon cannot see says its number itself.
        let is_it = |other: &&SuspendedProcess| {
            let is_tenant = self.rooms.get(&id).is_some_and(|room| room.tenant.name == other.tenant);
            let counts = other.is_locked || !hears_driver;
            counts && other.process().pid == pid && is_tenant && other.is_later_work(now)
        };
        if let Some(process) = self.policies.kept.suspended.iter().find(is_it).map(SuspendedProcess::process) {
            self.note_alive(process, "it works again");
        }
    }

    /// Notes the processes that the driver lists on its devices. It lists no suspended one.
    pub(super) fn note_listed_processes(&mut self, listed: &ListedProcesses) {
        let is_there = |one: &&SuspendedProcess| {
            !one.is_locked && listed.processes.contains(&one.process()) && one.was_suspended_at(listed.asked)
        };
        let there = self.policies.kept.suspended.iter().filter(is_there).map(SuspendedProcess::process);
        for process in there.collect::<Vec<_>>() {
            self.note_alive(process, "the driver lists it on a device");
        }
    }

    /// Ends a suspension of which something else than a message says that it is over.
    fn note_alive(&mut self, process: ProcessId, why: &str) {
        if let Some(ended) = self.end_suspension(process) {
            log_resumed(&ended, ended.resumed_by, Some(why).filter(|_| ended.resumed_by.is_none()));
        }
    }

    /// Takes a process off the list, if it is there.
    fn end_suspension(&mut self, process: ProcessId) -> Option<SuspendedProcess> {
        let kept = &mut self.policies.kept.suspended;
        let at = kept.iter().position(|other| other.process() == process)?;
        (self.suspensions.is_stale, self.suspensions.is_unsaved) = (true, true);
        Some(kept.remove(at))
    }

    fn find_suspended(&mut self, process: ProcessId) -> Option<&mut SuspendedProcess> {
        self.policies.kept.suspended.iter_mut().find(|other| other.process() == process)
    }

    /// Notes that a member came or left, or may use a device from now on.
    pub(super) fn note_members_changed(&mut self) {
        self.suspensions.is_stale |= !self.policies.kept.suspended.is_empty();
    }

    /// Forgets suspended processes that have ended or run another program.
    fn forget_ended_processes(&mut self) {
        let kept = &mut self.policies.kept.suspended;
        let before = kept.len();
        kept.retain(|one| one.is_alive(&self.added.boot));
        if kept.len() < before {
            (self.suspensions.is_stale, self.suspensions.is_unsaved) = (true, true);
        }
    }

    /// Forgets processes that ended, learns which members of the last daemon live, and has the tenants judged.
    ///
    /// # Cost
    /// Reads /proc for each suspended process. While there is one, also
    /// [`crate::roster::MemberRoster::living_members`].
    fn look_at_suspended(&mut self) {
        self.forget_ended_processes();
        let is_any = !self.policies.kept.suspended.is_empty();
        let living = self.roster.living_members().filter(|_| is_any);
        self.suspensions.prior = living.map(|prior| prior.image.process).collect();
        self.suspensions.looked = is_any.then(|| (Instant::now(), LOOK_PAUSE));
        self.suspensions.is_stale |= is_any;
    }

    /// Holds back the tenants of which all processes that use a device are suspended now, and no others. Stores the
    /// list if it changed.
    ///
    /// # Cost
    /// Nothing while no process is suspended. Else a look at each connection once a second and after members came or
    /// left, and one more for each tenant with a suspended process.
    pub(super) fn settle_suspensions(&mut self) {
        if self.suspensions.next_wait() == Some(Duration::ZERO) {
            self.look_at_suspended();
        }
        if std::mem::take(&mut self.suspensions.is_unsaved) {
            self.policies.save_or_warn();
        }
        if !std::mem::take(&mut self.suspensions.is_stale) {
            return;
        }
        let kept = &self.policies.kept.suspended;
        let suspended: BTreeSet<ProcessId> = kept.iter().map(SuspendedProcess::process).collect();
        let tenants: BTreeSet<&str> = kept.iter().map(|one| one.tenant.as_str()).collect();
        let is_one = |process: &Option<ProcessId>| process.is_some_and(|process| suspended.contains(&process));
        let of_suspended = self.connected_members().filter(|(.., connection)| is_one(&connection.process));
        let mut concerned: BTreeSet<u64> = of_suspended.map(|(room, ..)| room).collect();
        let named = self.rooms.iter().filter(|(_, room)| tenants.contains(room.tenant.name.as_str()));
        concerned.extend(named.map(|(id, _)| *id));
        let is_suspended = |id: &u64| {
            let users = self.processes_on_devices(*id);
            !users.is_empty() && users.iter().all(is_one)
        };
        let judged: Vec<(u64, bool)> =
            self.rooms.keys().map(|id| (*id, concerned.contains(id) && is_suspended(id))).collect();
        let now = clock::now();
        for (id, is_suspended) in judged {
            if self.leases.set_suspended(arbiter_number(id), is_suspended, now) {
                self.policies.needs.note_changed(id);
            }
        }
    }

    /// The processes of a tenant that use a device; `None`: one that the daemon cannot see. Suspended ones belong to it
    /// before they have connected to this daemon, and so do all living members of the last one.
    fn processes_on_devices(&self, id: u64) -> BTreeSet<Option<ProcessId>> {
        let Some(name) = self.rooms.get(&id).map(|room| room.tenant.name.as_str()) else { return BTreeSet::new() };
        let connected: BTreeSet<ProcessId> =
            self.connected_members().filter_map(|(.., connection)| connection.process).collect();
        let kept = self.policies.kept.suspended.iter().filter(|one| one.tenant == name).map(SuspendedProcess::process);
        let prior = self.roster.prior_members().filter(|prior| prior.tenant == name).map(|prior| prior.image.process);
        let prior = prior.filter(|process| self.suspensions.prior.contains(process));
        let away = kept.chain(prior).filter(|process| !connected.contains(process));
        self.device_users(id).map(|connection| connection.process).chain(away.map(Some)).collect()
    }

    /// Time since which a process is suspended, in seconds since 1970; `None`: it is not.
    pub(super) fn suspended_since(&self, process: ProcessId) -> Option<i64> {
        self.suspended_one(process).map(|one| one.since)
    }

    fn suspended_one(&self, process: ProcessId) -> Option<&SuspendedProcess> {
        self.policies.kept.suspended.iter().find(|one| one.process() == process)
    }

    /// A sentence about the suspended processes of a tenant; `None`: it has none.
    pub(super) fn suspension_words(&self, id: u64) -> Option<String> {
        let members = self.processes_on_devices(id);
        let named = members.iter().flatten();
        let mut all: Vec<&SuspendedProcess> = named.filter_map(|process| self.suspended_one(*process)).collect();
        all.sort_unstable_by_key(|one| (one.since, one.process()));
        let named = all.iter().take(MAX_PROCESSES_NAMED);
        let mut named: Vec<String> = named
            .map(|one| {
                format!(
                    "{} since {}{}",
                    one.process().pid,
                    self.policies.format_time(one.since),
                    if one.is_locked { " (locked)" } else { "" }
                )
            })
            .collect();
        if all.len() > named.len() {
            named.push(format!("{} more", all.len() - named.len()));
        }
        let words = || format!("suspended processes ({} of {}): {}", all.len(), members.len(), named.join(", "));
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

/// State of a process in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToldState {
    /// Its memory is on the host and its calls wait.
    Suspended,
    /// Its calls wait.
    Locked,
    /// Its calls are answered.
    Running,
}

/// Tells that a process makes no calls any more, and whether its memory stayed on its devices.
fn log_suspended(tenant: &str, process: ProcessId, is_locked: bool, who: PeerCredentials) {
    let (pid, by_uid, by_pid, locked) = (process.pid, who.uid, who.pid, is_locked.then_some(true));
    let words = if is_locked { "a process stays locked on its devices" } else { "a process was moved off its devices" };
    info!(kind = "process.suspended", tenant, pid, by_uid, by_pid, locked, "{words}");
}

/// The time at which states were read, as reported at `now`, in ns. A program in another time namespace may be ahead,
/// and must not outdate the next report.
fn report_time(read: u64, now: u64) -> u64 {
    if read == 0 { now } else { read.min(now) }
}

/// Tells that a process is on its devices again. `who` resumed it; else `why` says how the daemon knows it.
fn log_resumed(ended: &SuspendedProcess, who: Option<PeerCredentials>, why: Option<&str>) {
    let SuspendedProcess { tenant, since, .. } = ended;
    let (pid, by_uid, by_pid) = (ended.process().pid, who.map(|who| who.uid), who.and_then(|who| who.pid));
    info!(kind = "process.resumed", %tenant, pid, by_uid, by_pid, since, why, "a process is on its devices again");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each look reads /proc.
    #[test]
    fn a_suspended_tenant_that_rings_without_end_causes_few_looks() {
        let last = Instant::now() + Duration::from_secs(3_600);
        let mut state = SuspensionState { looked: Some((last, LOOK_PAUSE)), ..SuspensionState::due_at_once() };
        assert_eq!((state.next_wait(), state.is_stale), (Some(LOOK_PAUSE), false));
        for _ in 0..100 {
            state.hurry_look();
            assert_eq!((state.next_wait(), state.is_stale), (Some(LOOK_PAUSE_AFTER_RING), false));
        }
    }
}
