//! Checks enforcement while the daemon runs: a thread looks for processes that use the devices and compares them with
//! the registered members.
//!
//! One round of the thread is a *look*. It asks the reactor for the members only if a process is at a device. A new
//! finding must be seen in two looks, [`SECOND_LOOK_PAUSE`] apart. It is then reported as an event, and is part of
//! the status until it ends. If the policy says so, processes in containers that escape the limits are stopped after
//! a grace period.
//!
//! [`processes`] reads /proc ([`image`]: the program that a process runs), and [`driver`] asks NVML. [`judge`]
//! compares both with the registered members and with the memory that tenants may hold ([`limits`]), without IO.
//! [`uncharged`] is memory that the driver reports and no ledger contains; it counts against the limits.
//! docs/threats.md names the bypasses that this check cannot see.

mod compare;
pub mod driver;
mod energy;
mod found;
pub mod image;
pub mod judge;
pub mod limits;
pub mod processes;
pub mod time;
mod times;
pub mod uncharged;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tracing::{info, warn};
use vgpu_core::protocol::page::Uncharged;

use self::found::FoundSoFar;
pub use self::found::ListedProcesses;
use super::asked::{WakeReason, read_questions};
use super::log::LineQuota;
use crate::proof::driver::{DeviceNames, ProcessOnDevice, ProofDriver};
use crate::proof::image::Image;
use crate::proof::judge::{
    ProofTolerance, RegisteredMembers, changed_images, judge_processes, memory_suspects, note_held,
};
use crate::proof::limits::MemoryBounds;
use crate::proof::processes::{DirectoryPlace, ProcessScanner, SeenProcess, THOROUGH_EVERY, directory_place};
use crate::proof::time::UnseenTimes;
use crate::proof::uncharged::{TenantDeviceKey, UnchargedExcess};
use vgpu_accounting::clock;
use vgpu_config::plan::ProofPlan;
use vgpu_control::finding::{Finding, FindingKind, ProcessId};

/// Time after the daemon's start without any finding. Members look for a lost daemon every 1 to 1.25 s and wait 0.3 s
/// for its answer, so each has tried twice in this time.
const SETTLING_TIME: Duration = Duration::from_secs(3);

/// Pause before a finding is looked at again: a process that is saying hello just now is no finding.
const SECOND_LOOK_PAUSE: Duration = Duration::from_millis(150);

/// Longest time that the checking thread waits for an answer of the daemon's event loop (reactor).
const LOOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for which a driver that does not answer is not asked again.
const DRIVER_PAUSE: Duration = Duration::from_secs(30);

/// Time that a process has to end after SIGTERM before it gets SIGKILL.
const TERMINATION_GRACE: Duration = Duration::from_secs(5);

/// Duration after which a look (one round of the check) counts as stuck: longer than any pause between looks, and than
/// any timeout within one.
const STUCK_AFTER: Duration = Duration::from_secs(90);

/// Shortest time between two requests [`ASK_ALL`], which are costly for the reactor.
const FULL_QUESTION_INTERVAL: Duration = Duration::from_secs(2);

/// Request to the reactor: send the registered members. It takes the lost devices meanwhile.
const ASK_MEMBERS: u8 = 1;
/// Request to the reactor: send members, limits and ledgers.
const ASK_ALL: u8 = 2;
/// Request to the reactor as [`ASK_ALL`], with the ledgers of suspected tenants read again first.
pub(super) const ASK_LEDGERS: u8 = 3;
/// Message to the reactor: the memory that counts in addition to the ledgers changed.
pub(super) const TELL_COUNTED: u8 = 4;

/// Longest time that the checking thread waits for a ledger to be read again.
const REREAD_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause between two checks for the ledger that is being read again.
const REREAD_POLL: Duration = Duration::from_millis(20);

/// Most findings that are kept and reported.
const MAX_FINDINGS: usize = 256;

/// The reactor's side of the checking thread: takes requests, sends answers, reads findings.
#[derive(Debug)]
pub struct ProofLink {
    asked: UnixStream,
    answer: SyncSender<RegisteredMembers>,
    found: Arc<Mutex<FoundSoFar>>,
    /// True if the thread asks the driver for the processes on its devices.
    asks_driver: bool,
}

impl ProofLink {
    /// Starts the thread. `names`: the UUIDs of the devices with each NVML number, as far as they are known.
    ///
    /// # Errors
    /// No thread or no pair of sockets can be created.
    pub fn start(plan: ProofPlan, names: DeviceNames) -> std::io::Result<Self> {
        let (asked, ask) = UnixStream::pair()?;
        asked.set_nonblocking(true)?;
        let (answer, answers) = sync_channel(1);
        let found = Arc::new(Mutex::new(FoundSoFar::default()));
        let asks_driver = plan.driver;
        let mut looking = ProofThread {
            processes: ProcessScanner::new(&plan.devices),
            driver: plan.driver.then(|| ProofDriver::knowing(names)),
            silent_until: None,
            ask,
            answers,
            found: found.clone(),
            since: HashMap::new(),
            known: RegisteredMembers::default(),
            places: Vec::new(),
            bounds: MemoryBounds::default(),
            looks: 0,
            quotas: HashMap::new(),
            excess: HashMap::new(),
            counted: None,
            times: UnseenTimes::default(),
            told: 0,
            plan,
        };
        thread::Builder::new().name("vgpud-proof".into()).spawn(move || looking.go_on())?;
        Ok(Self { asked, answer, found, asks_driver })
    }

    /// As [`Self::start`], without the thread: a test tells what it found.
    #[cfg(test)]
    pub fn without_thread(asks_driver: bool) -> Self {
        let ((asked, _), (answer, _)) = (UnixStream::pair().unwrap(), sync_channel(1));
        Self { asked, answer, found: Arc::default(), asks_driver }
    }

    /// Notes a look at the driver's list, and why it is incomplete.
    #[cfg(test)]
    pub fn note_look(&self, processes: &[ProcessId], blind: Option<&str>) {
        let mut found = self.found.lock();
        found.listed = ListedProcesses { asked: clock::now(), processes: processes.iter().copied().collect() };
        found.blind = blind.map(str::to_owned);
    }

    /// Reads the thread's requests: [`ASK_ALL`] asks for all data.
    pub fn take_question(&mut self) -> WakeReason {
        read_questions(&mut self.asked)
    }

    /// Notes in the status that the thread ended, so that no process is checked any more.
    pub fn is_gone(&self) {
        let mut found = self.found.lock();
        found.blind = Some("the thread that looks for processes ended; restart the daemon".into());
        found.lost.clear();
        found.listed = ListedProcesses::default();
    }

    /// Sends the registered members to the thread.
    pub fn tell_registered(&self, registered: RegisteredMembers) {
        let _ = self.answer.try_send(registered);
    }

    /// Returns the findings of the last round of the check.
    #[must_use]
    pub fn current_findings(&self) -> Vec<Finding> {
        self.found.lock().findings.clone()
    }

    /// The current findings about one tenant: at most `most`, and the number of further ones.
    #[must_use]
    pub fn of_tenant(&self, tenant: &str, most: usize) -> (Vec<Finding>, usize) {
        self.found.lock().of_tenant(tenant, most)
    }

    /// Connections to end: their process is gone, or runs another program than the one that said hello. Each is
    /// returned once.
    #[must_use]
    pub fn take_changed(&self) -> Vec<u64> {
        std::mem::take(&mut self.found.lock().changed)
    }

    /// Tenants whose ledgers must be read, at the request [`ASK_LEDGERS`].
    #[must_use]
    pub fn suspected_tenants(&self) -> Vec<String> {
        self.found.lock().suspects.clone()
    }

    /// Memory that counts against tenants' limits in addition to their ledgers, at the message [`TELL_COUNTED`].
    #[must_use]
    pub fn uncharged_bytes(&self) -> HashMap<TenantDeviceKey, Uncharged> {
        self.found.lock().uncharged.clone()
    }

    /// True if the driver tells which processes are on its devices: the thread asks it, and the last look succeeded or
    /// the first one is still to come.
    #[must_use]
    pub fn hears_driver(&self) -> bool {
        self.asks_driver && self.why_blind().is_none()
    }

    /// The processes that the driver listed at the last look; none if it does not answer.
    #[must_use]
    pub fn listed_processes(&self) -> ListedProcesses {
        self.found.lock().listed.clone()
    }

    /// Devices that the driver says are lost, by UUID, with the time since when, as RFC 3339.
    #[must_use]
    pub fn lost_devices(&self) -> BTreeMap<String, String> {
        self.found.lock().lost.clone()
    }

    /// Why the check is incomplete; `None`: it is complete.
    #[must_use]
    pub fn why_blind(&self) -> Option<String> {
        let found = self.found.lock();
        let stuck = found.looked.is_some_and(|looked| looked.elapsed() > STUCK_AFTER);
        found
            .blind
            .clone()
            .or_else(|| stuck.then(|| "the driver, or /proc, has not answered for a long time".to_owned()))
    }
}

impl AsFd for ProofLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.asked.as_fd()
    }
}

/// Times of a finding that lasts, and the steps taken so far to stop its process.
#[derive(Debug, Clone, Copy)]
struct FindingState {
    seen: Instant,
    /// Time at which the process was sent SIGTERM, or would have been in a dry run.
    asked: Option<Instant>,
    killed: bool,
}

struct ProofThread {
    plan: ProofPlan,
    processes: ProcessScanner,
    driver: Option<ProofDriver>,
    silent_until: Option<Instant>,
    ask: UnixStream,
    answers: Receiver<RegisteredMembers>,
    found: Arc<Mutex<FoundSoFar>>,
    since: HashMap<(FindingKind, ProcessId), FindingState>,
    /// Last answer of the reactor.
    known: RegisteredMembers,
    /// Time of the reactor's last answer, in ns.
    told: u64,
    /// Location of the socket directories, with their tenants.
    places: Vec<(DirectoryPlace, String)>,
    /// Memory that a tenant may still hold on a device after its limit was lowered.
    bounds: MemoryBounds,
    looks: u32,
    /// Limits how many findings are reported for each tenant or control group.
    quotas: HashMap<String, LineQuota>,
    /// Memory of tenants that the last look (round of the check) found in addition to their ledgers.
    excess: HashMap<TenantDeviceKey, UnchargedExcess>,
    /// The part of `excess` that counts against limits; `None`: the reactor has not been told yet.
    counted: Option<HashMap<TenantDeviceKey, Uncharged>>,
    times: UnseenTimes,
}

impl ProofThread {
    fn go_on(&mut self) {
        thread::sleep(SETTLING_TIME);
        loop {
            let begun = Instant::now();
            self.found.lock().looked = Some(begun);
            if let Some(first) = self.look_once() {
                let new = |finding: &Finding| !self.since.contains_key(&(finding.what, finding.process));
                let excess = std::mem::take(&mut self.excess);
                let settled = if first.iter().any(new) || self.has_grown(&excess) {
                    thread::sleep(SECOND_LOOK_PAUSE);
                    let again = self.look_once();
                    if again.is_some() {
                        let last = std::mem::take(&mut self.excess);
                        self.count_excess(&excess, Some(&last));
                    }
                    again.map(|again| {
                        let both = |finding: &Finding| {
                            first.iter().any(|one| (one.what, one.process) == (finding.what, finding.process))
                        };
                        again.into_iter().filter(both).collect()
                    })
                } else {
                    self.count_excess(&excess, None);
                    Some(first)
                };
                if let Some(findings) = settled {
                    self.settle_findings(findings);
                }
            }
            thread::sleep(self.plan.interval.saturating_sub(begun.elapsed()).max(self.plan.interval / 4));
        }
    }

    /// Runs one round of the check and returns its findings; `None`: the check was impossible.
    fn look_once(&mut self) -> Option<Vec<Finding>> {
        let holders = match self.processes.device_holders() {
            Ok(holders) => holders,
            Err(why) => {
                self.set_blind(Some(format!("processes cannot be listed: {why}")));
                return None;
            }
        };
        let (mut blind, begun, asked) = (None, Instant::now(), clock::now());
        let listed = match &mut self.driver {
            Some(driver) if self.silent_until.is_none_or(|until| Instant::now() >= until) => {
                let asked = driver.processes_on_devices();
                self.silent_until = asked.is_err().then(|| Instant::now() + DRIVER_PAUSE);
                match asked {
                    Ok(answer) => {
                        if self.note_lost(&answer.lost) {
                            self.ask_loop(ASK_MEMBERS)?;
                        }
                        answer.processes
                    }
                    Err(why) => {
                        blind = Some(format!("the driver's list of processes cannot be read: {why}"));
                        Vec::new()
                    }
                }
            }
            Some(_) => {
                blind = self.found.lock().blind.clone();
                Vec::new()
            }
            None => Vec::new(),
        };
        self.set_blind(blind);
        self.excess.clear();
        let mut at: BTreeMap<ProcessId, Option<String>> =
            holders.into_iter().map(|(process, device)| (process, Some(device))).collect();
        let mut on_devices = BTreeSet::new();
        for on in listed.iter().filter(|on| on.pid != std::process::id()) {
            if let Some(process) = self.processes.process_by_pid(on.pid) {
                at.entry(process).or_insert(None);
                on_devices.insert(process);
            }
        }
        self.found.lock().listed = ListedProcesses { asked, processes: on_devices };
        let working = self.sample();
        self.note_energy();
        if at.is_empty() {
            self.look_at_times(&BTreeMap::new(), &working);
            return Some(Vec::new());
        }
        self.ask_loop(ASK_MEMBERS)?;
        let strangers = at.keys().any(|process| !self.known.members.contains_key(&process.pid));
        if (strangers || !listed.is_empty())
            && self.known.all.is_none_or(|asked| asked.elapsed() >= FULL_QUESTION_INTERVAL)
        {
            self.ask_loop(ASK_ALL)?;
        }
        let look = |(process, device): (ProcessId, Option<String>)| {
            (process, self.processes.look_at_process(process, device, &self.places))
        };
        let seen: BTreeMap<ProcessId, SeenProcess> = at.into_iter().map(look).collect();
        self.end_changed(&seen)?;
        self.refresh_suspects(&seen, &listed, begun)?;
        self.compare_memory(&seen, &listed, begun)?;
        note_held(&seen, &listed, &self.known, &mut self.bounds, begun);
        let allowed = ProofTolerance { programs: self.plan.allow.clone(), slack: self.plan.slack };
        let mut findings = judge_processes(&seen, &listed, &self.known, &self.bounds, &allowed);
        findings.extend(self.look_at_times(&seen, &working));
        // A process that ended meanwhile is no finding.
        findings.retain(|finding| self.processes.process_by_pid(finding.process.pid) == Some(finding.process));
        findings.truncate(MAX_FINDINGS);
        Some(findings)
    }

    /// Tells the reactor of connections whose process runs another program than the one that said hello. Every
    /// [`THOROUGH_EVERY`] looks this includes processes at no device, since a child may keep the connection of a
    /// process that is gone.
    fn end_changed(&mut self, seen: &BTreeMap<ProcessId, SeenProcess>) -> Option<()> {
        let mut ended = changed_images(seen, &self.known);
        if self.looks.is_multiple_of(THOROUGH_EVERY) {
            let elsewhere =
                self.known.members.values().flatten().filter_map(|member| Some((member.image?, member.connection?)));
            let is_other = |(said, _): &(Image, u64)| match self.processes.image_of(said.process.pid) {
                Some(now) => now != *said,
                None => self.processes.process_by_pid(said.process.pid) != Some(said.process),
            };
            ended.extend(elsewhere.filter(is_other).map(|(_, connection)| connection));
        }
        self.looks = self.looks.wrapping_add(1);
        if ended.is_empty() {
            return Some(());
        }
        self.found.lock().changed = ended;
        self.ask_loop(ASK_MEMBERS)
    }

    /// Reads ledgers and limits of suspects again: a member may have allocated memory since they were read. A ledger
    /// that is not read in time is treated as unknown.
    fn refresh_suspects(
        &mut self,
        seen: &BTreeMap<ProcessId, SeenProcess>,
        listed: &[ProcessOnDevice],
        begun: Instant,
    ) -> Option<()> {
        let slack = self.plan.slack;
        let mut stale = memory_suspects(seen, listed, &self.known, &self.bounds, slack, begun);
        let mut question = ASK_LEDGERS;
        let end = Instant::now() + REREAD_TIMEOUT;
        while !stale.is_empty() && Instant::now() < end {
            self.found.lock().suspects = stale.iter().map(|(tenant, _)| tenant.clone()).collect();
            self.ask_loop(std::mem::replace(&mut question, ASK_ALL))?;
            stale = memory_suspects(seen, listed, &self.known, &self.bounds, slack, begun);
            if !stale.is_empty() {
                thread::sleep(REREAD_POLL);
            }
        }
        for key in stale {
            self.known.ledgers.remove(&key);
        }
        Some(())
    }

    /// Sends a request to the reactor and takes its answer; `None`: it does not answer.
    fn ask_loop(&mut self, what: u8) -> Option<()> {
        while self.answers.try_recv().is_ok() {}
        self.ask.write_all(&[what]).ok()?;
        let said = self.answers.recv_timeout(LOOP_TIMEOUT).ok()?;
        if said.all.is_some() {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let place = |(dir, tenant): &(PathBuf, String)| Some((directory_place(&mounts, dir)?, tenant.clone()));
            self.places = said.dirs.iter().filter_map(place).collect();
            self.known = said;
        } else {
            (self.known.members, self.known.had) = (said.members, said.had);
            self.known.silent_ns = said.silent_ns;
        }
        self.told = clock::now();
        Some(())
    }

    /// Reports devices that the driver has lost since the last look, and those that are back. False: there are none.
    fn note_lost(&self, lost: &BTreeSet<String>) -> bool {
        let mut found = self.found.lock();
        let known = &mut found.lost;
        let has_changed = known.keys().ne(lost);
        for device in lost.iter().filter(|device| !known.contains_key(*device)).collect::<Vec<_>>() {
            let since = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
            warn!(kind = "device.lost", device, "the driver has lost the device; end its processes and reset it");
            known.insert(device.clone(), since);
        }
        known.retain(|device, since| {
            let stays = lost.contains(device);
            if !stays {
                info!(kind = "device.back", device, since, "the device answers again; new processes are served");
            }
            stays
        });
        has_changed
    }

    fn set_blind(&self, words: Option<String>) {
        let mut found = self.found.lock();
        if found.blind.is_none()
            && let Some(why) = &words
        {
            warn!(kind = "proof.blind", %why, "enforcement cannot be fully proved; limits are still enforced");
        }
        found.blind = words;
    }

    /// Reports findings that are new and findings that ended, and acts as the policy says.
    fn settle_findings(&mut self, findings: Vec<Finding>) {
        for finding in &findings {
            let key = (finding.what, finding.process);
            let quotas = &mut self.quotas;
            self.since.entry(key).or_insert_with(|| {
                if quotas.len() > MAX_FINDINGS {
                    quotas.clear();
                }
                let whose = finding.tenant.clone().or_else(|| finding.container.clone()).unwrap_or_default();
                // Reports are limited, so that a tenant cannot flush earlier events out of the journal and the audit
                // log.
                if quotas.entry(whose).or_default().allow_line(Instant::now()).is_some() {
                    tell_finding(finding);
                }
                FindingState { seen: Instant::now(), asked: None, killed: false }
            });
            self.act_on_finding(finding);
        }
        let before = std::mem::take(&mut self.found.lock().findings);
        for gone in before {
            let key = (gone.what, gone.process);
            if findings.iter().all(|finding| (finding.what, finding.process) != key) {
                self.since.remove(&key);
                let (what, pid, name) = (gone.what.kind_word(), gone.process.pid, gone.name);
                info!(
                    kind = "proof.ended",
                    tenant = gone.tenant.unwrap_or_default(),
                    what,
                    pid,
                    ?name,
                    "a finding ended"
                );
            }
        }
        self.found.lock().findings = findings;
    }

    /// Stops a process in a container that escapes the limits, if the policy says so.
    fn act_on_finding(&mut self, finding: &Finding) {
        if !self.plan.stop || matches!(finding.what, FindingKind::Over | FindingKind::Time) || !finding.contained {
            return;
        }
        let Some(since) = self.since.get_mut(&(finding.what, finding.process)) else { return };
        if since.seen.elapsed() < self.plan.grace {
            return;
        }
        let (what, pid, name) = (finding.what.kind_word(), finding.process.pid, finding.name.clone());
        let tenant = finding.tenant.clone().unwrap_or_default();
        match since.asked {
            None => {
                since.asked = Some(Instant::now());
                if self.plan.dry_run {
                    warn!(
                        kind = "proof.stopped",
                        tenant,
                        what,
                        pid,
                        ?name,
                        dry_run = true,
                        "the process would be stopped now (proof.dry_run)"
                    );
                } else if signal_process(&self.processes, finding.process, Signal::TERM) {
                    warn!(
                        kind = "proof.stopped",
                        tenant,
                        what,
                        pid,
                        ?name,
                        "the process was asked to end, as proof.action says"
                    );
                }
            }
            Some(asked) if !since.killed && !self.plan.dry_run && asked.elapsed() >= TERMINATION_GRACE => {
                since.killed = true;
                if signal_process(&self.processes, finding.process, Signal::KILL) {
                    warn!(
                        kind = "proof.stopped",
                        tenant,
                        what,
                        pid,
                        ?name,
                        "the process was killed: it did not end within 5 s of being asked to"
                    );
                }
            }
            Some(_) => {}
        }
    }
}

fn tell_finding(finding: &Finding) {
    let (pid, name, words) = (finding.process.pid, &finding.name, &finding.words);
    let tenant = finding.tenant.clone().unwrap_or_default();
    let device = finding.device.clone().unwrap_or_default();
    let container = finding.container.clone().unwrap_or_default();
    match finding.what {
        FindingKind::Uncontrolled => {
            warn!(kind = "proof.uncontrolled", tenant, device, pid, ?name, container, "{words}")
        }
        FindingKind::Unregistered => {
            warn!(kind = "proof.unregistered", tenant, device, pid, ?name, container, "{words}")
        }
        FindingKind::Over => warn!(kind = "proof.over", tenant, device, pid, ?name, container, "{words}"),
        FindingKind::Time => warn!(kind = "proof.time", tenant, device, pid, ?name, container, "{words}"),
    }
}

/// Sends a signal to this process, but never to a later one with the same process ID. False: it is gone.
fn signal_process(processes: &ProcessScanner, process: ProcessId, signal: Signal) -> bool {
    let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { return false };
    let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // The pidfd holds the process, so the ID cannot change its meaning before the signal is sent.
    processes.process_by_pid(process.pid) == Some(process) && pidfd_send_signal(&held, signal).is_ok()
}
