//! Runs the rounds: in each, every program alone and then all of them together.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::children::{self, Ended, Running, failure};
use super::programs::Program;
use crate::validate::line::Measure;
use crate::validate::results::{Results, Run};
use crate::validate::show;
use vgpu_output::say::{FINDINGS, Failure};

/// Time between two checks for signals and timeouts.
const LOOK: Duration = Duration::from_millis(100);

/// The reason for an early end.
#[derive(Debug)]
pub enum End {
    /// A signal asked to stop.
    Interrupted,
    /// A program failed: the exit code, and a message with the end of its output.
    Failed(u8, String),
    /// A program reported no iterations.
    Silent(String),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.code, failure.words)
    }
}

/// The programs to run, and the channels that report their ends.
pub struct Rounds<'a> {
    programs: &'a [Program],
    measure: &'a Measure,
    timeout: Duration,
    ended: Receiver<(usize, u32, Instant)>,
    tell: Sender<(usize, u32, Instant)>,
    stop: Arc<AtomicBool>,
    signals: Vec<signal_hook::SigId>,
    shows: bool,
}

impl Drop for Rounds<'_> {
    fn drop(&mut self) {
        self.signals.drain(..).for_each(|id| {
            signal_hook::low_level::unregister(id);
        });
    }
}

impl<'a> Rounds<'a> {
    /// Creates the rounds. From now on, signals end the programs before this process.
    ///
    /// # Errors
    /// Signal handlers cannot be installed.
    pub fn new(programs: &'a [Program], measure: &'a Measure, timeout: Duration) -> Result<Self, Failure> {
        let (tell, ended) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let signals = [SIGINT, SIGTERM, SIGHUP].map(|signal| signal_hook::flag::register(signal, stop.clone()));
        let signals = signals
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(|why| Failure::new(FINDINGS, format!("signals: {why}")))?;
        let shows = std::io::stderr().is_terminal();
        Ok(Self { programs, measure, timeout, ended, tell, stop, signals, shows })
    }

    /// Runs all rounds. Complete rounds are in the results even after an early end.
    ///
    /// # Errors
    /// [`End`]; the running programs were ended.
    pub fn go(&mut self, warmup: u32, results: &mut Results) -> Result<(), End> {
        let done = self.all(warmup, results);
        self.progress("");
        done
    }

    fn all(&mut self, warmup: u32, results: &mut Results) -> Result<(), End> {
        let warmup = warmup as usize;
        for round in 0..warmup + results.wanted {
            let name = if round < warmup {
                format!("warm-up {} of {warmup}", round + 1)
            } else {
                format!("round {} of {}", round + 1 - warmup, results.wanted)
            };
            let mut alone = Vec::new();
            for index in 0..self.programs.len() {
                self.progress(&format!("{name}: {} alone", self.programs[index].name));
                alone.extend(self.together(&[index])?);
            }
            self.progress(&format!("{name}: all together"));
            let everybody: Vec<usize> = (0..self.programs.len()).collect();
            let together = self.together(&everybody)?;
            if round >= warmup {
                for (program, (alone, together)) in results.programs.iter_mut().zip(alone.into_iter().zip(together)) {
                    program.alone.push(alone);
                    program.together.push(together);
                }
                self.told(results);
            }
        }
        Ok(())
    }

    /// Runs these at the same time until each has finished once. A program that finishes earlier is restarted, so the
    /// load stays; its further runs do not count.
    fn together(&mut self, who: &[usize]) -> Result<Vec<Run>, End> {
        let mut running = Vec::new();
        let mut runs: Vec<Option<Run>> = who.iter().map(|_| None).collect();
        let done = self.attend(who, &mut running, &mut runs);
        children::end(running);
        done?;
        Ok(runs.into_iter().flatten().collect())
    }

    fn attend(&self, who: &[usize], running: &mut Vec<Running>, runs: &mut [Option<Run>]) -> Result<(), End> {
        for index in who {
            running.push(children::start(&self.programs[*index], self.measure, *index, &self.tell)?);
        }
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(End::Interrupted);
            }
            if running.iter().any(|one| one.runs() > self.timeout) {
                let limit = self.timeout;
                return Err(End::Failed(
                    FINDINGS,
                    format!("a program took longer than {limit:?} (--timeout), and was ended"),
                ));
            }
            let Ok((index, number, at)) = self.ended.recv_timeout(LOOK) else { continue };
            // Ignore a program that was ended before.
            let Some(place) = running.iter().position(|one| one.is(number)) else { continue };
            let ended = running.swap_remove(place).finish(at)?;
            let run = self.judged(index, ended, who.len() > 1)?;
            let Some(own) = who.iter().position(|one| *one == index) else { continue };
            runs[own].get_or_insert(run);
            if runs.iter().all(Option::is_some) {
                return Ok(());
            }
            running.push(children::start(&self.programs[index], self.measure, index, &self.tell)?);
        }
    }

    /// Checks that a run succeeded and reported its iterations.
    fn judged(&self, index: usize, ended: Ended, together: bool) -> Result<Run, End> {
        let name = &self.programs[index].name;
        let how = if together { "beside the others" } else { "alone" };
        let tail = ended.heard.tail();
        let said = if tail.is_empty() { "; it said nothing".to_owned() } else { format!("; it said last:{tail}") };
        if let Some(why) = failure(ended.status) {
            return Err(End::Failed(FINDINGS, format!("{name}, {how}, {why}{said}")));
        }
        let wall = ended.wall.as_secs_f64();
        let iterations = match self.measure {
            Measure::Run => vec![wall],
            _ if ended.heard.iterations.is_empty() => {
                let words =
                    format!("{name}, {how}, said nothing of its iterations: looked for {}{said}", self.measure.words());
                return Err(End::Silent(words));
            }
            _ => ended.heard.iterations,
        };
        Ok(Run { wall, iterations })
    }

    /// Shows a progress line on a terminal, replacing the previous one.
    fn progress(&self, words: &str) {
        if self.shows {
            // Failing to show progress is harmless.
            let _ = write!(std::io::stderr(), "\r\x1b[K{words}");
            let _ = std::io::stderr().flush();
        }
    }

    fn told(&self, results: &Results) {
        if !self.shows {
            return;
        }
        let words: Vec<String> = results
            .programs
            .iter()
            .filter_map(|program| Some((program, program.change()?)))
            .map(|(program, change)| {
                let (alone, together) = (show::seconds(change.alone.median), show::seconds(change.together.median));
                format!("{} {alone} -> {together} ({})", program.name, show::percent(change.latency))
            })
            .collect();
        self.progress(&format!("round {}: {}\n", results.rounds(), words.join(", ")));
    }
}
