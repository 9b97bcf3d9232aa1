//! Events for clients that follow the daemon: log lines that have a kind become events.
//!
//! `info!(kind = "tenant.paused", tenant, "...")` writes a log line and an event of that kind. If the kind is an
//! audited one ([`vgpu_control::event::EVENT_KINDS`]), it also writes a line of the audit log. It may start the program
//! of an action ([`super::actions`]). The logging code needs
//! to know nothing of this, and any thread may log. A line without a kind is no event.
//!
//! The last [`EVENTS_KEPT`] events are kept. A slower reader is told how many it missed. Here: the tracing layer and
//! the ring buffer. Not here: sending events ([`super::reactor`]), the file of the audit log ([`super::audit`]).

mod layer;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{SystemTime, UNIX_EPOCH};

pub use layer::EventLayer;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;

use super::actions::ActionRunner;
use super::actions::once::OnceRun;
use super::audit::AuditLog;
use vgpu_config::action::ActionPlan;
use vgpu_control::event::{DaemonEvent, EventPosition, kind_named};
use vgpu_control::{ActionStatus, AuditStatus};

/// Number of events that are kept for administrators who ask for earlier ones.
pub const EVENTS_KEPT: usize = 4096;

/// The events since the daemon started. Clones share them.
#[derive(Clone)]
pub struct EventJournal(Arc<SharedJournal>);

struct SharedJournal {
    ring: Mutex<EventRing>,
    /// True if a reader must be woken by the next event.
    followed: AtomicBool,
    bell: Option<OwnedFd>,
    boot: u64,
}

#[derive(Default)]
struct EventRing {
    events: VecDeque<Arc<DaemonEvent>>,
    /// Number of the newest event.
    last: u64,
    /// The audit log, or why it is not written; `None`: it is off.
    audit: Option<Result<AuditLog, String>>,
    /// Runs the programs that events start; `None`: there is no file that names any.
    actions: Option<ActionRunner>,
}

impl Default for EventJournal {
    fn default() -> Self {
        Self::new()
    }
}

impl EventJournal {
    /// A journal without events.
    #[must_use]
    pub fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let boot = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        // Without an eventfd, followers get events when something else wakes the loop.
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        let ring = Mutex::new(EventRing::default());
        Self(Arc::new(SharedJournal { ring, followed: AtomicBool::new(false), bell, boot }))
    }

    /// Writes audited kinds to this audit log from now on, or notes why that is impossible.
    pub fn audit_to(&self, audit: Result<AuditLog, String>) {
        self.0.ring.lock().audit = Some(audit);
    }

    /// Offers events to these actions from now on.
    pub fn act_by(&self, actions: ActionRunner) {
        self.0.ring.lock().actions = Some(actions);
    }

    /// Puts the actions of a file that was read again in force.
    pub fn replace_actions(&self, plans: &[ActionPlan]) {
        let actions = self.0.ring.lock().actions.clone();
        if let Some(actions) = actions {
            actions.replace_actions(plans);
        }
    }

    /// Runs a program once, for an event. False: no program can be run.
    pub fn run_once(&self, run: OnceRun) -> bool {
        let actions = self.0.ring.lock().actions.clone();
        actions.map(|actions| actions.run_once(run)).is_some()
    }

    /// Drops the runs for a tenant that wait.
    pub fn withdraw_once(&self, tenant: &str) {
        let actions = self.0.ring.lock().actions.clone();
        if let Some(actions) = actions {
            actions.withdraw_once(tenant);
        }
    }

    /// State of the actions in force.
    #[must_use]
    pub fn action_statuses(&self) -> Vec<ActionStatus> {
        let actions = self.0.ring.lock().actions.clone();
        actions.map(|actions| actions.action_statuses()).unwrap_or_default()
    }

    /// Why the audit log is not written; `None`: it is written, or off.
    #[must_use]
    pub fn audit_fault(&self) -> Option<String> {
        match self.0.ring.lock().audit.as_ref()? {
            Ok(audit) => audit.audit_fault(),
            Err(why) => Some(why.clone()),
        }
    }

    /// The file of the audit log and the hash of its last line, if it is written.
    #[must_use]
    pub fn audit_status(&self) -> Option<AuditStatus> {
        let ring = self.0.ring.lock();
        let (file, head) = ring.audit.as_ref()?.as_ref().ok()?.last_hash();
        Some(AuditStatus { file, head })
    }

    /// Waits up to 1 s until the audit log has written everything.
    pub fn finish_audit(&self) {
        let audit = self.0.ring.lock().audit.take();
        if let Some(Ok(audit)) = audit {
            audit.finish_writing();
        }
    }

    /// Adds an event and gives it its number.
    pub fn add_event(&self, mut event: DaemonEvent) {
        let mut ring = self.0.ring.lock();
        ring.last += 1;
        event.seq = ring.last;
        let event = Arc::new(event);
        if kind_named(&event.kind).is_some_and(|kind| kind.audited)
            && let Some(Ok(audit)) = &ring.audit
        {
            audit.write(&event);
        }
        if ring.events.len() == EVENTS_KEPT {
            ring.events.pop_front();
        }
        // Under the lock, so that an action gets events in their order.
        let started = ring.actions.clone().map(|actions| (actions.offer(&event), actions));
        ring.events.push_back(event);
        drop(ring);
        if let Some((threads, actions)) = started {
            actions.start_threads(&threads);
        }
        if self.0.followed.swap(false, SeqCst)
            && let Some(bell) = &self.0.bell
        {
            // An eventfd counts: one wake-up serves one event or many.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }

    /// The start of the daemon, and the number of the next event.
    #[must_use]
    pub fn event_position(&self) -> EventPosition {
        EventPosition { boot: self.0.boot, next: self.0.ring.lock().last + 1 }
    }

    /// At most `most` events from number `next` on. If some of those are no longer kept, the first event says how
    /// many.
    #[must_use]
    pub fn from(&self, next: u64, most: usize) -> Vec<Arc<DaemonEvent>> {
        let ring = self.0.ring.lock();
        let first = ring.last + 1 - ring.events.len() as u64;
        let skip = usize::try_from(next.saturating_sub(first)).unwrap_or(usize::MAX);
        let there = ring.events.iter().skip(skip).take(most).cloned();
        if next >= first {
            return there.collect();
        }
        let lost = first - next.max(1);
        let words = format!("{lost} events are not kept any more");
        let at = ring.events.front().map(|event| event.at.clone()).unwrap_or_default();
        let gap = DaemonEvent {
            seq: first - 1,
            at,
            kind: "events.lost".into(),
            level: "warning".into(),
            words,
            ..DaemonEvent::default()
        };
        let gap = (lost > 0).then(|| Arc::new(gap));
        gap.into_iter().chain(there).collect()
    }

    /// Makes [`Self::bell_descriptor`] readable at the next event. Call it before reading events, so that none is
    /// missed.
    pub fn wake_me(&self) {
        self.0.followed.store(true, SeqCst);
    }

    /// Becomes readable when an event follows [`Self::wake_me`].
    #[must_use]
    pub fn bell_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.bell.as_ref().map(OwnedFd::as_fd)
    }

    /// Makes [`Self::bell_descriptor`] unreadable until the next event.
    pub fn silence_bell(&self) {
        if let Some(bell) = &self.0.bell {
            let _ = rustix::io::read(bell, &mut [0_u8; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(journal: &EventJournal, count: usize) {
        for at in 0..count {
            journal.add_event(DaemonEvent {
                kind: "tenant.paused".into(),
                words: at.to_string(),
                ..DaemonEvent::default()
            });
        }
    }

    #[test]
    fn events_are_numbered_and_whoever_is_too_slow_is_told_how_many_are_gone() {
        let journal = EventJournal::new();
        assert!(journal.from(0, 10).is_empty() && journal.from(1, 10).is_empty());
        told(&journal, 3);
        let seqs = |next, most| journal.from(next, most).iter().map(|event| event.seq).collect::<Vec<_>>();
        assert_eq!((seqs(0, 10), seqs(1, 2), seqs(3, 10), seqs(4, 10)), (vec![1, 2, 3], vec![1, 2], vec![3], vec![]));
        assert_eq!(journal.event_position().next, 4);
        told(&journal, EVENTS_KEPT);
        let first = journal.from(2, 2);
        assert_eq!((first[0].kind.as_str(), first[0].seq, first[1].seq), ("events.lost", 3, 4));
        assert!(first[0].words.starts_with("2 events"), "{}", first[0].words);
        assert_eq!(seqs(EVENTS_KEPT as u64 + 3, 10), [EVENTS_KEPT as u64 + 3]);
    }

    #[test]
    fn who_waits_is_woken_once_by_the_next_event() {
        let journal = EventJournal::new();
        let rung = || rustix::io::read(journal.bell_descriptor().unwrap(), &mut [0_u8; 8]).is_ok();
        told(&journal, 1);
        assert!(!rung(), "nobody waits");
        journal.wake_me();
        told(&journal, 2);
        assert!(rung() && !rung());
    }
}
