//! The measurements, and the results computed from them.

use super::line::Measure;
use super::stats::{Interval, change_interval, jain, latency_change, median, order_interval, p99, throughput_change};

/// One run of a program, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Wall time from start to end.
    pub wall: f64,
    /// Durations of the run's iterations: as printed by the program, or the run itself.
    pub iterations: Vec<f64>,
}

impl Run {
    /// Returns the value that represents the run: the median of its iterations.
    fn value(&self) -> f64 {
        median(&self.iterations).unwrap_or(self.wall)
    }
}

/// A measured program with its runs.
#[derive(Debug, Clone)]
pub struct Program {
    /// Tenant that the program ran as.
    pub name: String,
    /// Command line, quoted for a shell.
    pub command: String,
    /// Limits of the program's tenant, in words.
    pub limits: String,
    /// Runs without other programs.
    pub alone: Vec<Run>,
    /// Runs at the same time as the others.
    pub together: Vec<Run>,
}

/// All measurements of `vgpu validate`.
#[derive(Debug, Clone)]
pub struct Results {
    /// Programs in the order of the command line.
    pub programs: Vec<Program>,
    /// Source of an iteration's duration.
    pub measure: Measure,
    /// Number of rounds of measurement that were requested.
    pub wanted: usize,
    /// Why fewer rounds were made; `None` if all were.
    pub cut: Option<String>,
    /// Start of the measurement, in seconds since 1970.
    pub began: i64,
    /// Facts about the machine and the software.
    pub facts: Vec<(String, String)>,
    /// Notes for the reader of the report.
    pub notes: Vec<String>,
}

/// Durations of a program in one situation, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// Median of the program's runs, each represented by its median iteration.
    pub median: f64,
    /// Confidence interval of the median.
    pub interval: Option<Interval>,
    /// 99th percentile of the durations of all iterations.
    pub p99: f64,
    /// Number of iterations over all runs.
    pub iterations: usize,
}

/// Comparison of a program alone and together with the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// Durations when the program runs alone.
    pub alone: Latency,
    /// Durations when the program runs at the same time as the others.
    pub together: Latency,
    /// Change of the median duration, in percent.
    pub latency: f64,
    /// Confidence interval of the change of the median.
    pub latency_interval: Option<Interval>,
    /// Change of the throughput, in percent.
    pub throughput: f64,
    /// Change of the 99th percentile, in percent.
    pub p99: f64,
}

/// Results over all programs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Together {
    /// Combined throughput relative to running one after the other: the sum of the programs' relative speeds.
    pub combined: f64,
    /// Jain's fairness index of the relative speeds.
    pub fairness: f64,
    /// Ratio of the greatest slowdown to the least.
    pub worst: f64,
}

impl Program {
    /// Compares the runs; `None` if there are none.
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

    /// Returns the value of each run, alone and together.
    #[must_use]
    pub fn values(&self) -> (Vec<f64>, Vec<f64>) {
        (self.alone.iter().map(Run::value).collect(), self.together.iter().map(Run::value).collect())
    }
}

impl Results {
    /// Returns the number of complete rounds.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.programs.iter().map(|program| program.together.len()).min().unwrap_or(0)
    }

    /// Returns the results over all programs; `None` without measurements.
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
