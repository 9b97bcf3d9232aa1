//! Programs that run once for processes of a tenant: a queue, so that few run at the same time.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use vgpu_config::action::ActionPlan;
use vgpu_control::event::DaemonEvent;
use vgpu_control::finding::ProcessId;

/// Most programs of the queue that run at the same time. Each may copy the memory of a device to the host.
const MAX_RUNNING: u32 = 2;

/// One run: a program whose last arguments are the IDs of these processes.
pub struct OnceRun {
    /// The program with its first arguments.
    pub plan: ActionPlan,
    /// The processes that it is for.
    pub processes: BTreeSet<ProcessId>,
    /// The event that it is started for.
    pub event: Arc<DaemonEvent>,
}

/// Runs that wait, and the number of those that run.
#[derive(Default)]
pub(super) struct OnceQueue {
    waiting: VecDeque<OnceRun>,
    /// Number of threads.
    pub running: u32,
}

impl OnceQueue {
    /// A queue whose runs all wait.
    #[cfg(test)]
    pub fn without_threads() -> Self {
        Self { running: MAX_RUNNING, ..Self::default() }
    }

    /// The tenants of the runs that wait.
    #[cfg(test)]
    pub fn waiting_tenants(&self) -> Vec<String> {
        self.waiting.iter().filter_map(|run| run.event.tenant.clone()).collect()
    }

    /// Takes a run. Returns true if it needs a further thread.
    pub fn offer(&mut self, run: OnceRun) -> bool {
        self.waiting.push_back(run);
        let needs_thread = self.running < MAX_RUNNING;
        self.running += u32::from(needs_thread);
        needs_thread
    }

    /// Takes the next run, with the processes that are still there. A run without any is dropped.
    pub fn take_next(&mut self, is_there: impl Fn(&ProcessId) -> bool) -> Option<(ActionPlan, Arc<DaemonEvent>)> {
        loop {
            let OnceRun { mut plan, processes, event } = self.waiting.pop_front()?;
            let living: Vec<String> =
                processes.iter().filter(|process| is_there(process)).map(|process| process.pid.to_string()).collect();
            if !living.is_empty() {
                plan.exec.extend(living);
                return Some((plan, event));
            }
        }
    }

    /// Drops the waiting runs for a tenant.
    pub fn withdraw(&mut self, tenant: &str) {
        self.waiting.retain(|run| run.event.tenant.as_deref() != Some(tenant));
    }

    /// Drops all waiting runs.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn run(tenant: &str, pids: &[u32]) -> OnceRun {
        let plan = ActionPlan {
            events: Vec::new(),
            kinds: BTreeSet::new(),
            exec: vec!["suspend".into()],
            timeout: Duration::from_secs(1),
            at_once: 1,
        };
        let event = Arc::new(DaemonEvent { tenant: Some(tenant.into()), ..DaemonEvent::default() });
        OnceRun { plan, processes: pids.iter().map(|pid| ProcessId { pid: *pid, began: 1 }).collect(), event }
    }

    #[test]
    fn many_runs_of_one_moment_start_few_programs() {
        let mut queue = OnceQueue::default();
        let threads = (0..50).filter(|at| queue.offer(run("a", &[*at]))).count();
        assert_eq!(threads, MAX_RUNNING as usize);
        let taken = std::iter::from_fn(|| queue.take_next(|_| true)).count();
        assert_eq!(taken, 50, "and none is lost");
    }

    #[test]
    fn a_process_that_ended_while_it_waited_is_not_named_to_the_program() {
        let mut queue = OnceQueue::default();
        queue.offer(run("a", &[1, 2]));
        queue.offer(run("b", &[3]));
        queue.offer(run("c", &[4, 5]));
        let mut next = || queue.take_next(|process| !matches!(process.pid, 2 | 3)).map(|(plan, _)| plan.exec);
        assert_eq!(next(), Some(vec!["suspend".into(), "1".into()]));
        assert_eq!(next(), Some(vec!["suspend".into(), "4".into(), "5".into()]), "nobody of b is left");
        assert_eq!(next(), None);
    }

    #[test]
    fn a_tenant_that_works_again_while_it_waited_is_not_suspended() {
        let mut queue = OnceQueue::default();
        queue.offer(run("a", &[1]));
        queue.offer(run("b", &[2]));
        queue.withdraw("a");
        assert_eq!(queue.take_next(|_| true).map(|(plan, _)| plan.exec), Some(vec!["suspend".into(), "2".into()]));
    }
}
