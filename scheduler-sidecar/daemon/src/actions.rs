//! Runs the programs of `[[on_event]]` when their events happen.
//!
//! Each run has a thread of its own, so that no program delays the loop or another program. An action has at most
//! `at_once` threads; a thread takes the next waiting event when its program ended, and ends when none waits. Events
//! beyond [`MAX_EVENTS_WAITING`] are dropped, and counted. [`run`] is one run, [`program`] what the started process
//! does before it becomes the program, [`once`] the queue of programs that no action of the file starts.
//!
//! [`super::journal`] offers every event while it is logged, so nothing here logs under a lock or within an offer.

pub mod once;
mod program;
mod run;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::EventfdFlags;
use tracing::{info, warn};

use vgpu_config::action::ActionPlan;
use vgpu_control::ActionStatus;
use vgpu_control::event::DaemonEvent;
use vgpu_control::finding::ProcessId;

use crate::proof::processes;

use once::{OnceQueue, OnceRun};
pub use program::{BECOME_PROGRAM, become_program};
use run::{RunResult, run_program};

/// Most events that wait for one action.
pub const MAX_EVENTS_WAITING: usize = 64;

/// The actions in force, and their runs. Clones share them.
#[derive(Clone)]
pub struct ActionRunner(Arc<SharedActions>);

struct SharedActions {
    book: Mutex<ActionBook>,
    /// Notified when a thread ends.
    ended: Condvar,
    /// Readable when all runs must end.
    stop: Option<OwnedFd>,
    /// Variables by which programs find this daemon.
    variables: Vec<(&'static str, PathBuf)>,
}

#[derive(Default)]
struct ActionBook {
    actions: Vec<LiveAction>,
    once: OnceQueue,
    next_number: u64,
    /// True if the daemon ends: waiting events start nothing.
    is_stopping: bool,
}

/// An action, its waiting events and its counts.
struct LiveAction {
    number: u64,
    plan: Arc<ActionPlan>,
    /// True if the file has it no longer: its runs end as they are, and nothing else starts.
    is_removed: bool,
    waiting: VecDeque<Arc<DaemonEvent>>,
    /// Number of its threads.
    running: u32,
    ended: u64,
    failed: u64,
    dropped: u64,
    /// Part of `dropped` that was not logged yet.
    untold: u64,
}

impl LiveAction {
    fn new(number: u64, plan: &ActionPlan) -> Self {
        Self {
            number,
            plan: Arc::new(plan.clone()),
            is_removed: false,
            waiting: VecDeque::new(),
            running: 0,
            ended: 0,
            failed: 0,
            dropped: 0,
            untold: 0,
        }
    }

    fn drop_events(&mut self, count: usize) {
        self.dropped += count as u64;
        self.untold += count as u64;
    }

    /// Takes an event. Returns true if it needs a further thread.
    fn offer(&mut self, event: &Arc<DaemonEvent>) -> bool {
        if self.is_removed || !self.plan.kinds.contains(event.kind.as_str()) {
            return false;
        }
        if self.waiting.len() >= MAX_EVENTS_WAITING {
            self.drop_events(1);
            return false;
        }
        self.waiting.push_back(event.clone());
        if self.running == self.plan.at_once {
            return false;
        }
        self.running += 1;
        true
    }
}

impl ActionBook {
    fn find(&mut self, number: u64) -> Option<&mut LiveAction> {
        self.actions.iter_mut().find(|action| action.number == number)
    }

    /// Puts these actions in force. An action that is there already keeps its runs and its waiting events. Returns the
    /// events that no longer start anything, with their programs.
    fn replace(&mut self, plans: &[ActionPlan]) -> Vec<(String, u64)> {
        let mut before = std::mem::take(&mut self.actions);
        for plan in plans {
            let kept = before.iter().position(|action| !action.is_removed && *action.plan == *plan);
            self.actions.push(match kept {
                Some(at) => before.remove(at),
                None => {
                    self.next_number += 1;
                    LiveAction::new(self.next_number, plan)
                }
            });
        }
        let mut lost = Vec::new();
        for mut action in before {
            let waited = action.waiting.len();
            action.waiting.clear();
            if waited > 0 {
                lost.push((action.plan.exec[0].clone(), waited as u64));
            }
            action.is_removed = true;
            if action.running > 0 {
                self.actions.push(action);
            }
        }
        lost
    }
}

impl ActionRunner {
    /// A runner with these actions, whose programs find the daemon by these variables. Nothing starts before an event
    /// is offered.
    #[must_use]
    pub fn new(plans: &[ActionPlan], variables: Vec<(&'static str, PathBuf)>) -> Self {
        let mut book = ActionBook::default();
        book.replace(plans);
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        Self(Arc::new(SharedActions { book: Mutex::new(book), ended: Condvar::new(), stop, variables }))
    }

    /// Puts the actions of a file that was read again in force. Runs of removed ones end as they are.
    pub fn replace_actions(&self, plans: &[ActionPlan]) {
        let lost = self.0.book.lock().replace(plans);
        for (action, dropped) in lost {
            tell_dropped(&action, dropped, "their action is no longer in the configuration");
        }
    }

    /// Takes an event for each action that it starts. Returns the actions that need a further thread, for
    /// [`Self::start_threads`]. Does not wait, and logs nothing.
    pub fn offer(&self, event: &Arc<DaemonEvent>) -> Vec<u64> {
        let mut book = self.0.book.lock();
        if book.is_stopping {
            return Vec::new();
        }
        book.actions.iter_mut().filter_map(|action| action.offer(event).then_some(action.number)).collect()
    }

    /// Runs a program once, next to the actions of the file, when few others of its kind run.
    pub fn run_once(&self, run: OnceRun) {
        let mut book = self.0.book.lock();
        if book.is_stopping || !book.once.offer(run) {
            return;
        }
        drop(book);
        let runner = self.clone();
        let thread = thread::Builder::new().name("vgpud-once".into()).spawn(move || runner.work_once());
        if thread.is_err() {
            // The run waits for a later thread.
            self.0.book.lock().once.running -= 1;
        }
    }

    /// Drops the runs for a tenant that wait.
    pub fn withdraw_once(&self, tenant: &str) {
        self.0.book.lock().once.withdraw(tenant);
    }

    /// A runner without threads: every run stays in the queue.
    #[cfg(test)]
    pub fn without_threads() -> Self {
        let runner = Self::new(&[], Vec::new());
        runner.0.book.lock().once = OnceQueue::without_threads();
        runner
    }

    /// The tenants of the runs that wait.
    #[cfg(test)]
    pub fn waiting_tenants(&self) -> Vec<String> {
        self.0.book.lock().once.waiting_tenants()
    }

    /// A thread of the queue of runs: one program after the other.
    fn work_once(&self) {
        while let Some((plan, event)) = self.take_once() {
            let result = run_program(&plan, &event, &self.0.variables, self.0.stop.as_ref());
            tell_ended(&plan, &event, &result);
        }
    }

    /// Takes the next run; `None`: none waits, and the thread is no longer counted.
    fn take_once(&self) -> Option<(ActionPlan, Arc<DaemonEvent>)> {
        let is_there = |process: &ProcessId| processes::read_process(process.pid) == Some(*process);
        let mut book = self.0.book.lock();
        if book.is_stopping {
            book.once.clear();
        }
        let next = book.once.take_next(is_there);
        if next.is_none() {
            book.once.running -= 1;
            self.0.ended.notify_all();
        }
        next
    }

    /// Starts a thread for each of these actions. Where none can be started, the event waits for a later thread.
    pub fn start_threads(&self, actions: &[u64]) {
        for &number in actions {
            let runner = self.clone();
            let thread = thread::Builder::new().name("vgpud-action".into()).spawn(move || runner.work(number));
            if thread.is_err() {
                self.leave(&mut self.0.book.lock(), number);
            }
        }
    }

    /// State of the actions in force, in the order of the file.
    #[must_use]
    pub fn action_statuses(&self) -> Vec<ActionStatus> {
        let book = self.0.book.lock();
        let in_force = book.actions.iter().filter(|action| !action.is_removed);
        let status = |action: &LiveAction| ActionStatus {
            events: action.plan.events.clone(),
            exec: action.plan.exec.clone(),
            running: action.running as usize,
            waiting: action.waiting.len(),
            ended: action.ended,
            failed: action.failed,
            dropped: action.dropped,
        };
        in_force.map(status).collect()
    }

    /// Waits until all runs have ended, at most for `patience`; then kills those that are left and drops the events
    /// that wait. For the end of the daemon.
    pub fn finish_runs(&self, patience: Duration) {
        let mut book = self.0.book.lock();
        let mut wait = |patience: Duration| {
            let end = Instant::now() + patience;
            while book.once.running > 0 || book.actions.iter().any(|action| action.running > 0) {
                if self.0.ended.wait_until(&mut book, end).timed_out() {
                    break;
                }
            }
            std::mem::replace(&mut book.is_stopping, true)
        };
        wait(patience);
        if let Some(stop) = &self.0.stop {
            let _ = rustix::io::write(stop, &1_u64.to_ne_bytes());
        }
        // A killed program ends at once, unless the kernel holds it.
        wait(patience);
        let left: Vec<(String, u64)> = book.replace(&[]);
        drop(book);
        for (action, dropped) in left {
            tell_dropped(&action, dropped, "the daemon ends");
        }
    }

    /// A thread of an action: runs its program for one waiting event after the other.
    fn work(&self, number: u64) {
        while let Some((plan, event)) = self.take_event(number) {
            let result = run_program(&plan, &event, &self.0.variables, self.0.stop.as_ref());
            tell_ended(&plan, &event, &result);
            let mut book = self.0.book.lock();
            let Some(action) = book.find(number) else { continue };
            action.ended += 1;
            action.failed += u64::from(!result.is_success());
            let untold = std::mem::take(&mut action.untold);
            drop(book);
            if untold > 0 {
                tell_dropped(&plan.exec[0], untold, "too many events waited for their action");
            }
        }
    }

    /// Takes the next waiting event; `None`: none waits, and the thread is no longer counted.
    fn take_event(&self, number: u64) -> Option<(Arc<ActionPlan>, Arc<DaemonEvent>)> {
        let mut book = self.0.book.lock();
        let stops = book.is_stopping;
        let action = book.find(number)?;
        if let Some(event) = if stops { None } else { action.waiting.pop_front() } {
            return Some((action.plan.clone(), event));
        }
        self.leave(&mut book, number);
        None
    }

    /// Counts a thread of an action no longer.
    fn leave(&self, book: &mut ActionBook, number: u64) {
        if let Some(action) = book.find(number) {
            action.running -= 1;
        }
        book.actions.retain(|action| !action.is_removed || action.running > 0);
        self.0.ended.notify_all();
    }
}

fn tell_ended(plan: &ActionPlan, event: &DaemonEvent, result: &RunResult) {
    let (action, tenant, event) = (plan.exec[0].as_str(), event.tenant.as_deref(), event.seq);
    let words = result.to_string();
    if result.is_success() {
        info!(kind = "action.ended", action, event, tenant, result = words, "the program of an action ended");
    } else {
        warn!(kind = "action.ended", action, event, tenant, result = words, "the program of an action failed");
    }
}

fn tell_dropped(action: &str, dropped: u64, why: &str) {
    warn!(kind = "action.dropped", action, dropped, why, "events started no program");
}
