//! What was measured, and what it means.

use super::line::Measure;
use super::stats::{Interval, change_interval, jain, latency_change, median, order_interval, p99, throughput_change};

/// A run of a program: all values in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// From its start to its end.
    pub wall: f64,
    /// Its iterations: what it said, or the run itself.
    pub iterations: Vec<f64>,
}

impl Run {
    /// What stands for it: the median of its iterations.
    fn value(&self) -> f64 {
        median(&self.iterations).unwrap_or(self.wall)
    }
}

/// A program and its runs.
#[derive(Debug, Clone)]
pub struct Program {
    /// The tenant that it ran as.
    pub name: String,
    /// What was run, as a shell reads it.
    pub command: String,
    /// What it was held to, in words.
    pub limits: String,
    /// By itself.
    pub alone: Vec<Run>,
    /// Beside the others.
    pub together: Vec<Run>,
}

/// All that was measured.
#[derive(Debug, Clone)]
pub struct Results {
    /// In the order in which they were given.
    pub programs: Vec<Program>,
    /// How an iteration's duration was got.
    pub measure: Measure,
    /// Rounds that were asked for.
    pub wanted: usize,
    /// Why there are fewer; `None`: there are not.
    pub cut: Option<String>,
    /// When it began, in seconds since 1970.
    pub began: i64,
    /// Where, and with what.
    pub facts: Vec<(String, String)>,
    /// What a reader must know of this measurement.
    pub notes: Vec<String>,
}

/// A program in one situation; seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// Of its runs.
    pub median: f64,
    /// Where that lies.
    pub interval: Option<Interval>,
    /// Of all its iterations.
    pub p99: f64,
    /// How many those are.
    pub iterations: usize,
}

/// A program alone and together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// By itself.
    pub alone: Latency,
    /// Beside the others.
    pub together: Latency,
    /// In percent.
    pub latency: f64,
    /// Where that lies.
    pub latency_interval: Option<Interval>,
    /// In percent.
    pub throughput: f64,
    /// In percent.
    pub p99: f64,
}

/// What holds for all of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Together {
    /// What all do in the time in which, one after the other, they do 1: the sum of the parts of their own speed.
    pub combined: f64,
    /// Jain's index of those parts.
    pub fairness: f64,
    /// The most slowed down beside the least.
    pub worst: f64,
}

impl Program {
    /// What its runs say; `None`: there are none.
    #[must_use]
    pub fn change(&self) -> Option<Change> {
        let values = |runs: &[Run]| runs.iter().map(Run::value).collect::<Vec<f64>>();
        let latency = |runs: &[Run]| {
            let all: Vec<f64> = runs.iter().flat_map(|run| run.iterations.iter().copied()).collect();
            let values = values(runs);
            Some(Latency {
                median: median(&values)?,
                interval: order_interval(&values),
                p99: p99(&all)?,
                iterations: all.len(),
            })
        };
        let (alone, together) = (latency(&self.alone)?, latency(&self.together)?);
        Some(Change {
            alone,
            together,
            latency: latency_change(alone.median, together.median),
            latency_interval: change_interval(&values(&self.alone), &values(&self.together)),
            throughput: throughput_change(alone.median, together.median),
            p99: latency_change(alone.p99, together.p99),
        })
    }

    /// What stands for each run, alone and together.
    #[must_use]
    pub fn values(&self) -> (Vec<f64>, Vec<f64>) {
        (self.alone.iter().map(Run::value).collect(), self.together.iter().map(Run::value).collect())
    }
}

impl Results {
    /// Rounds that are whole.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.programs.iter().map(|program| program.together.len()).min().unwrap_or(0)
    }

    /// What holds for all; `None`: nothing was measured.
    #[must_use]
    pub fn together(&self) -> Option<Together> {
        let changes: Option<Vec<Change>> = self.programs.iter().map(Program::change).collect();
        let speeds: Vec<f64> = changes?.iter().map(|change| change.alone.median / change.together.median).collect();
        let (least, most) = speeds.iter().fold((f64::MAX, 0.0_f64), |(a, b), speed| (a.min(*speed), b.max(*speed)));
        Some(Together { combined: speeds.iter().sum(), fairness: jain(&speeds)?, worst: most / least })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn results(pairs: &[(&str, &[f64], &[f64])]) -> Results {
        let run = |seconds: &f64| Run { wall: *seconds, iterations: vec![*seconds] };
        let program = |(name, alone, together): &(&str, &[f64], &[f64])| Program {
            name: (*name).into(),
            command: "./job".into(),
            limits: "none".into(),
            alone: alone.iter().map(run).collect(),
            together: together.iter().map(run).collect(),
        };
        Results {
            programs: pairs.iter().map(program).collect(),
            measure: Measure::Run,
            wanted: pairs.first().map_or(0, |pair| pair.1.len()),
            cut: None,
            began: 0,
            facts: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_published_study_comes_out_as_it_is_and_sharing_did_more_than_taking_turns() {
        let results = results(&[("phi", &[0.609], &[1.227]), ("deepseek", &[1.135], &[1.778])]);
        let percent = |value: f64| format!("{value:+.2}");
        let shown: Vec<_> = results
            .programs
            .iter()
            .filter_map(Program::change)
            .map(|change| (percent(change.latency), percent(change.throughput)))
            .collect();
        assert_eq!(shown, [("+101.48".into(), "-50.37".into()), ("+56.65".into(), "-36.16".into())]);
        let all = results.together().unwrap();
        // 0.609 / 1.227 + 1.135 / 1.778.
        assert_eq!(
            (percent((all.combined - 1.0) * 100.0), format!("{:.3}", all.fairness)),
            ("+13.47".into(), "0.985".into())
        );
    }

    #[test]
    fn a_run_stands_for_its_iterations_and_the_highest_of_all_is_not_lost() {
        let run = |iterations: &[f64]| Run { wall: 9.0, iterations: iterations.to_vec() };
        let mut results = results(&[("a", &[], &[])]);
        assert!(results.programs[0].change().is_none() && results.together().is_none());
        results.programs[0].alone = vec![run(&[1.0, 1.0, 1.0]), run(&[1.0, 2.0, 9.0])];
        results.programs[0].together = vec![run(&[3.0]), run(&[3.0])];
        let change = results.programs[0].change().unwrap();
        assert_eq!((change.alone.median, change.alone.p99, change.alone.iterations), (1.5, 9.0, 6));
        assert_eq!((change.latency, results.rounds()), (100.0, 2));
    }
}
