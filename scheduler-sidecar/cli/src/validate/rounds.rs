//! Runs the rounds: in each, every program alone and then all of them together.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::children::{self, EndedChild, RunningChild, exit_failure};
use super::programs::TenantProgram;
use crate::ledgers;
use crate::validate::line::DurationMeasure;
use crate::validate::results::{ProgramRun, ValidationResults};
use crate::validate::show;
use vgpu_output::say::{EXIT_FINDINGS, Failure};

/// Time between two checks for signals and timeouts.
const SIGNAL_POLL: Duration = Duration::from_millis(100);

/// The reason for an early end.
#[derive(Debug)]
pub enum EarlyEnd {
    /// A signal asked to stop.
    Interrupted,
    /// A program failed: the exit code, and a message with the end of its output.
    Failed(u8, String),
    /// A program reported no iterations.
    Silent(String),
}

impl From<Failure> for EarlyEnd {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.code, failure.words)
    }
}

/// The programs to run, and the channels that report their ends.
pub struct ValidationRounds<'a> {
    programs: &'a [TenantProgram],
    measure: &'a DurationMeasure,
    timeout: Duration,
    ended: Receiver<(usize, u32, Instant)>,
    tell: Sender<(usize, u32, Instant)>,
    stop: Arc<AtomicBool>,
    signals: Vec<signal_hook::SigId>,
    shows: bool,
}

impl Drop for ValidationRounds<'_> {
    fn drop(&mut self) {
        // While signals are still caught, so that a second interrupt does not leave ledgers behind.
        ledgers::sweep_own();
        self.signals.drain(..).for_each(|id| {
            signal_hook::low_level::unregister(id);
        });
    }
}

impl<'a> ValidationRounds<'a> {
    /// Creates the rounds. From now on, signals end the programs before this process.
    ///
    /// # Errors
    /// Signal handlers cannot be installed.
    pub fn new(
        programs: &'a [TenantProgram],
        measure: &'a DurationMeasure,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let (tell, ended) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let signals = [SIGINT, SIGTERM, SIGHUP].map(|signal| signal_hook::flag::register(signal, stop.clone()));
        let signals = signals
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(|why| Failure::new(EXIT_FINDINGS, format!("signals: {why}")))?;
        let shows = std::io::stderr().is_terminal();
        Ok(Self { programs, measure, timeout, ended, tell, stop, signals, shows })
    }

    /// Runs all rounds. Complete rounds are in the results even after an early end.
    ///
    /// # Errors
    /// [`EarlyEnd`]; the running programs were ended.
    pub fn run_all(&mut self, warmup: u32, results: &mut ValidationResults) -> Result<(), EarlyEnd> {
        let done = self.all(warmup, results);
        self.show_progress("");
        done
    }

    fn all(&mut self, warmup: u32, results: &mut ValidationResults) -> Result<(), EarlyEnd> {
        let warmup = warmup as usize;
        for round in 0..warmup + results.wanted {
            let name = if round < warmup {
                format!("warm-up {} of {warmup}", round + 1)
            } else {
                format!("round {} of {}", round + 1 - warmup, results.wanted)
            };
            let mut alone = Vec::new();
            for index in 0..self.programs.len() {
                self.show_progress(&format!("{name}: {} alone", self.programs[index].name));
                alone.extend(self.run_together(&[index])?);
            }
            self.show_progress(&format!("{name}: all together"));
            let everybody: Vec<usize> = (0..self.programs.len()).collect();
            let together = self.run_together(&everybody)?;
            if round >= warmup {
                for (program, (alone, together)) in results.programs.iter_mut().zip(alone.into_iter().zip(together)) {
                    program.alone.push(alone);
                    program.together.push(together);
                }
                self.tell_results(results);
            }
        }
        Ok(())
    }

    /// Runs these at the same time until each has finished once. A program that finishes earlier is restarted, so the
    /// load stays; its further runs do not count.
    fn run_together(&mut self, who: &[usize]) -> Result<Vec<ProgramRun>, EarlyEnd> {
        let mut running = Vec::new();
        let mut runs: Vec<Option<ProgramRun>> = who.iter().map(|_| None).collect();
        let done = self.wait_for_runs(who, &mut running, &mut runs);
        children::end_children(running);
        done?;
        Ok(runs.into_iter().flatten().collect())
    }

    fn wait_for_runs(
        &self,
        who: &[usize],
        running: &mut Vec<RunningChild>,
        runs: &mut [Option<ProgramRun>],
    ) -> Result<(), EarlyEnd> {
        for index in who {
            running.push(children::start(&self.programs[*index], self.measure, *index, &self.tell)?);
        }
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(EarlyEnd::Interrupted);
            }
            if running.iter().any(|one| one.running_time() > self.timeout) {
                let limit = self.timeout;
                return Err(EarlyEnd::Failed(
                    EXIT_FINDINGS,
                    format!("a program took longer than {limit:?} (--timeout), and was ended"),
                ));
            }
            let Ok((index, number, at)) = self.ended.recv_timeout(SIGNAL_POLL) else { continue };
            // Ignore a program that was ended before.
            let Some(place) = running.iter().position(|one| one.is_process(number)) else { continue };
            let ended = running.swap_remove(place).finish_child(at)?;
            let run = self.judge_run(index, ended, who.len() > 1)?;
            let Some(own) = who.iter().position(|one| *one == index) else { continue };
            runs[own].get_or_insert(run);
            if runs.iter().all(Option::is_some) {
                return Ok(());
            }
            running.push(children::start(&self.programs[index], self.measure, index, &self.tell)?);
        }
    }

    /// Checks that a run succeeded and reported its iterations.
    fn judge_run(&self, index: usize, ended: EndedChild, together: bool) -> Result<ProgramRun, EarlyEnd> {
        let name = &self.programs[index].name;
        let how = if together { "beside the others" } else { "alone" };
        let tail = ended.heard.output_tail();
        let said = if tail.is_empty() { "; it said nothing".to_owned() } else { format!("; it said last:{tail}") };
        if let Some(why) = exit_failure(ended.status) {
            return Err(EarlyEnd::Failed(EXIT_FINDINGS, format!("{name}, {how}, {why}{said}")));
        }
        let wall = ended.wall.as_secs_f64();
        let iterations = match self.measure {
            DurationMeasure::Run => vec![wall],
            _ if ended.heard.iterations.is_empty() => {
                let words = format!(
                    "{name}, {how}, said nothing of its iterations: looked for {}{said}",
                    self.measure.to_words()
                );
                return Err(EarlyEnd::Silent(words));
            }
            _ => ended.heard.iterations,
        };
        Ok(ProgramRun { wall, iterations })
    }

    /// Shows a progress line on a terminal, replacing the previous one.
    fn show_progress(&self, words: &str) {
        if self.shows {
            // Failing to show progress is harmless.
            let _ = write!(std::io::stderr(), "\r\x1b[K{words}");
            let _ = std::io::stderr().flush();
        }
    }

    fn tell_results(&self, results: &ValidationResults) {
        if !self.shows {
            return;
        }
        let words: Vec<String> = results
            .programs
            .iter()
            .filter_map(|program| Some((program, program.program_change()?)))
            .map(|(program, change)| {
                let (alone, together) =
                    (show::format_seconds(change.alone.median), show::format_seconds(change.together.median));
                format!("{} {alone} -> {together} ({})", program.name, show::format_percent(change.latency))
            })
            .collect();
        self.show_progress(&format!("round {}: {}\n", results.whole_rounds(), words.join(", ")));
    }
}
