//! Decides which runs share the host: as many as probably use at most half of its cores, each on its own simulated
//! device.
//!
//! Device time is computed from timestamps, so runs only compete for the host's processors. The run delay in each run's
//! figures shows the effect, and some points are repeated alone for comparison.

use crate::host;
use crate::measure::MeasuredRun;
use crate::points::MeasuredPoint;
use std::io::{IsTerminal, Write};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A run that is to be made.
#[derive(Clone, Debug)]
pub struct ScheduledRun {
    /// The point (setting under test) to measure.
    pub point: MeasuredPoint,
    /// Length of the run in seconds if it is not the point's own.
    pub seconds: Option<u64>,
}

impl ScheduledRun {
    /// Approximate length of the run.
    fn expected_length(&self) -> Duration {
        const AROUND: u64 = 300_000_000;
        Duration::from_nanos(self.point.record_ns(self.seconds) + AROUND)
    }
}

/// Limits of runs at the same time.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleWidth {
    /// Largest number of runs at the same time.
    pub runs: usize,
    /// Estimated cores that all runs may use together. A run that needs more runs alone.
    pub cores: f64,
}

impl ScheduleWidth {
    /// Only one run at a time.
    pub const ONE_AT_A_TIME: ScheduleWidth = ScheduleWidth { runs: 1, cores: 0.0 };

    /// Limits for half of this host.
    pub fn of_host() -> ScheduleWidth {
        let cores = host::usable_cores();
        ScheduleWidth { runs: 3 * cores, cores: cores as f64 / 2.0 }
    }
}

/// Jobs that are left and jobs that are running.
struct ScheduleState {
    left: Vec<usize>,
    running: usize,
    cores: f64,
    done: usize,
    /// For each job, the largest number of runs at the same time.
    beside: Vec<usize>,
    on_their_way: Vec<usize>,
}

impl ScheduleState {
    /// Takes the first job that fits next to the running ones.
    fn take_next(&mut self, jobs: &[ScheduledRun], width: ScheduleWidth) -> Option<usize> {
        let fits = |at: &usize| self.running == 0 || self.cores + jobs[*at].point.cores_needed() <= width.cores;
        let place = self.left.iter().position(fits).filter(|_| self.running < width.runs)?;
        let at = self.left.remove(place);
        self.running += 1;
        self.cores += jobs[at].point.cores_needed();
        self.on_their_way.push(at);
        for other in &self.on_their_way {
            self.beside[*other] = self.beside[*other].max(self.running);
        }
        Some(at)
    }

    fn finish_job(&mut self, at: usize, jobs: &[ScheduledRun]) {
        self.running -= 1;
        self.cores = if self.running == 0 { 0.0 } else { self.cores - jobs[at].point.cores_needed() };
        self.on_their_way.retain(|other| *other != at);
        self.done += 1;
    }
}

/// Makes all runs and prints the progress to stderr. The answers are in the order of the jobs.
pub fn all(
    title: &str,
    jobs: &[ScheduledRun],
    width: ScheduleWidth,
    one: impl Fn(&ScheduledRun) -> Result<MeasuredRun, String> + Sync,
) -> Vec<Result<MeasuredRun, String>> {
    let mut left: Vec<usize> = (0..jobs.len()).collect();
    // The longest jobs start first, so that none of them is left for the end.
    left.sort_by_key(|at| std::cmp::Reverse(jobs[*at].expected_length()));
    let beside = vec![0; jobs.len()];
    let state = Mutex::new(ScheduleState { left, running: 0, cores: 0.0, done: 0, beside, on_their_way: Vec::new() });
    let (changed, begun) = (Condvar::new(), Instant::now());
    let answers: Vec<Mutex<Option<Result<MeasuredRun, String>>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let lock = || state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    thread::scope(|scope| {
        for _ in 0..width.runs.min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let mut now = lock();
                    let at = loop {
                        if now.left.is_empty() {
                            return;
                        }
                        if let Some(at) = now.take_next(jobs, width) {
                            break at;
                        }
                        now = changed.wait(now).unwrap_or_else(|poisoned| poisoned.into_inner());
                    };
                    drop(now);
                    let answer = one(&jobs[at]);
                    let mut now = lock();
                    now.finish_job(at, jobs);
                    let left: Duration = now.left.iter().map(|at| jobs[*at].expected_length()).sum();
                    show_progress(title, &jobs[at].point.name, now.done, jobs.len(), begun.elapsed(), left);
                    drop(now);
                    *answers[at].lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(answer);
                    changed.notify_all();
                }
            });
        }
    });
    let beside = lock().beside.clone();
    let taken = |answer: Mutex<Option<Result<MeasuredRun, String>>>| {
        let answer = answer.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        answer.unwrap_or_else(|| Err("the run was not made".into()))
    };
    let answers = answers.into_iter().map(taken).zip(beside);
    answers.map(|(answer, beside)| answer.map(|run| MeasuredRun { beside, ..run })).collect()
}

/// `left` is the length of the jobs not yet started, one after another: an upper bound.
fn show_progress(title: &str, name: &str, done: usize, of: usize, spent: Duration, left: Duration) {
    let mut err = std::io::stderr().lock();
    let (begin, end) = if err.is_terminal() { ("\r\x1b[K", if done == of { "\n" } else { "" }) } else { ("", "\n") };
    let line = format!("{title}: {done}/{of} in {} s, {} s of runs left; {name}", spent.as_secs(), left.as_secs());
    let _ = write!(err, "{begin}{line}{end}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::points::{LaunchPattern, TenantLoad};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    fn job(kernel_ns: u64) -> ScheduledRun {
        let load = TenantLoad { pattern: LaunchPattern::Sync, kernel_ns, processes: 1 };
        ScheduledRun { point: MeasuredPoint::null_control("h200", load), seconds: None }
    }

    #[test]
    fn a_run_that_needs_the_host_for_itself_has_it() {
        let jobs: Vec<ScheduledRun> = [50_000, 20_000_000, 20_000_000, 50_000, 20_000_000].map(job).into();
        let (now, most, shared) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let width = ScheduleWidth { runs: 4, cores: 0.5 };
        let answers = all("test", &jobs, width, |job| {
            let at_begin = now.fetch_add(1, SeqCst) + 1;
            most.fetch_max(at_begin, SeqCst);
            thread::sleep(Duration::from_millis(20));
            let at_end = now.fetch_sub(1, SeqCst);
            let is_shared = job.point.cores_needed() > 0.5 && (at_begin, at_end) != (1, 1);
            shared.fetch_add(usize::from(is_shared), SeqCst);
            Err(job.point.name.clone())
        });
        let names: Vec<String> = answers.into_iter().map(|answer| answer.unwrap_err()).collect();
        assert_eq!(names, jobs.iter().map(|job| job.point.name.clone()).collect::<Vec<_>>());
        assert_eq!(shared.load(SeqCst), 0, "runs shared the host with one that needs it");
        assert!((2..=4).contains(&most.load(SeqCst)), "{most:?} at once");
    }
}
