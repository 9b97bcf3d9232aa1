//! Evacuations: asks the members of a cordoned device or tenant to end, and reports when nobody is left.
//!
//! A member is asked by an event, which may start a program (`[[on_event]]`). It gets SIGTERM only if the command said
//! so.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Signal;
use tracing::{info, warn};
use vgpu_accounting::clock;
use vgpu_policy::cordons::{Cordon, CordonSubject};

use super::Reactor;
use super::cordons::subject_fields;
use super::members::signal_process;

/// Pause between two looks at the members of evacuations.
const EVACUATION_LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Time after the start in which members of the last daemon connect again: those that hold memory or launched try it
/// every second.
const RETURN_TIMEOUT: Duration = Duration::from_secs(3);

/// Memory of what evacuations have done. It is lost with the daemon; then members are asked again.
#[derive(Debug, Default)]
pub(crate) struct EvacuationLog {
    /// Processes that were asked, or got SIGTERM, by the beginning of the cordon.
    asked: BTreeSet<(CordonSubject, u32)>,
    terminated: BTreeSet<(CordonSubject, u32)>,
    /// Evacuations whose end was reported.
    done: BTreeSet<CordonSubject>,
    /// Cordons that are over and were reported. They are forgotten at the next command: a clock that is wrong for a
    /// while must lose nothing.
    over: BTreeSet<CordonSubject>,
    /// Time of the next look at the members; `None`: nobody is to be asked.
    next_look: Option<Instant>,
}

impl EvacuationLog {
    /// A log that looks at the members at once.
    pub fn due_at_once() -> Self {
        Self { next_look: Some(Instant::now()), ..Self::default() }
    }

    /// Looks at the members at the end of this turn of the event loop.
    pub fn look_soon(&mut self) {
        self.next_look = Some(Instant::now());
    }

    pub fn forget(&mut self, subject: &CordonSubject) {
        self.asked.retain(|(of, _)| of != subject);
        self.terminated.retain(|(of, _)| of != subject);
        self.done.remove(subject);
        self.over.remove(subject);
        self.look_soon();
    }

    /// Time until the members must be looked at again.
    pub fn next_wait(&self) -> Option<Duration> {
        self.next_look.map(|next| next.saturating_duration_since(Instant::now()))
    }
}

impl Reactor {
    /// True while members of the last daemon may connect again.
    pub(super) fn awaits_members(&self) -> bool {
        self.started.elapsed() < RETURN_TIMEOUT
    }

    /// Asks the members of evacuations to end, and reports evacuations without members and cordons that are over.
    pub(super) fn follow_cordons(&mut self) {
        if self.policies.kept.cordons.is_empty() {
            self.evacuated.next_look = None;
            return;
        }
        let now = clock::unix_seconds();
        for cordon in self.policies.kept.cordons.iter().filter(|cordon| cordon.is_over(now)) {
            if !self.evacuated.over.contains(&cordon.subject) {
                self.evacuated.over.insert(cordon.subject.clone());
                let (device, tenant) = subject_fields(&cordon.subject);
                info!(kind = "cordon.ended", device, tenant, until = cordon.until, "the time of a cordon is over");
            }
        }
        let is_due = self.evacuated.next_look.is_some_and(|next| Instant::now() >= next);
        if !is_due {
            return;
        }
        let all: Vec<Cordon> = self.cordons_now().filter(|cordon| cordon.evacuates).cloned().collect();
        all.iter().for_each(|cordon| self.ask_to_end(cordon, now));
        self.end_cordons_of_removed();
        let is_over = all.iter().all(|cordon| self.evacuated.done.contains(&cordon.subject));
        let waits = !is_over || self.cordons_now().any(|cordon| self.is_of_removed(cordon));
        self.evacuated.next_look = waits.then(|| Instant::now() + EVACUATION_LOOK_PAUSE);
    }

    /// True if the cordon's tenant was removed, and no member of it is connected.
    fn is_of_removed(&self, cordon: &Cordon) -> bool {
        let CordonSubject::Tenant(name) = &cordon.subject else { return false };
        self.rooms.values().all(|room| room.tenant.name != *name) && !self.added.waiting.contains_key(name)
    }

    /// Ends the cordons of removed tenants whose last member has ended. Until then an evacuation goes on.
    fn end_cordons_of_removed(&mut self) {
        if self.awaits_members() {
            return;
        }
        let removed = self.cordons_now().filter(|cordon| self.is_of_removed(cordon)).map(|cordon| &cordon.subject);
        let empty = removed.filter(|subject| self.members_there(subject).is_empty());
        let ended: Vec<CordonSubject> = empty.cloned().collect();
        if ended.is_empty() {
            return;
        }
        self.policies.kept.cordons.retain(|cordon| !ended.contains(&cordon.subject));
        self.policies.save_or_warn();
        for subject in &ended {
            self.evacuated.forget(subject);
            let (device, tenant) = subject_fields(subject);
            info!(kind = "cordon.ended", device, tenant, "its tenant was removed");
        }
    }

    fn ask_to_end(&mut self, cordon: &Cordon, now: i64) {
        let there = self.members_there(&cordon.subject);
        let (on, until) = (self.cordon_words(cordon), cordon.terminate_at.map(|at| self.policies.format_time(at)));
        for member in &there {
            let Some(pid) = member.pid else { continue };
            let key = (cordon.subject.clone(), pid);
            let tenant = &member.tenant;
            if self.evacuated.asked.insert(key.clone()) {
                info!(kind = "evacuation.asked", %tenant, pid, why = %on, sigterm = until, "a member is asked to end");
            }
            if cordon.terminate_at.is_some_and(|at| at <= now)
                && member.is_certain
                && let Some(process) = member.process
                && self.evacuated.terminated.insert(key)
            {
                match signal_process(&process, Signal::TERM) {
                    Ok(()) => {
                        info!(kind = "evacuation.terminated", %tenant, pid, why = %on, "a member got SIGTERM")
                    }
                    Err(Errno::SRCH) => {}
                    Err(why) => warn!(%tenant, pid, %why, "a member of an evacuation cannot be signalled"),
                }
            }
        }
        if there.is_empty() {
            if !self.awaits_members() && self.evacuated.done.insert(cordon.subject.clone()) {
                let (device, tenant) = subject_fields(&cordon.subject);
                info!(kind = "evacuation.done", device, tenant, "no member is left");
            }
        } else {
            self.evacuated.done.remove(&cordon.subject);
        }
    }
}
