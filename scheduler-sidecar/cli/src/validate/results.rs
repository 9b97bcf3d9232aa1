//! The measurements, and the results computed from them.

use super::line::DurationMeasure;
use super::stats::{
    ConfidenceInterval, change_interval, jain_index, latency_change, median_of, order_interval, percentile_99,
    throughput_change,
};

/// One run of a program, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramRun {
    /// Wall time from start to end.
    pub wall: f64,
    /// Durations of the run's iterations: as printed by the program, or the run itself.
    pub iterations: Vec<f64>,
}

impl ProgramRun {
    /// Returns the value that represents the run: the median of its iterations.
    fn median_iteration(&self) -> f64 {
        median_of(&self.iterations).unwrap_or(self.wall)
    }
}

/// A measured program with its runs.
#[derive(Debug, Clone)]
pub struct ProgramResults {
    /// Tenant that the program ran as.
    pub name: String,
    /// Command line, quoted for a shell.
    pub command: String,
    /// Limits of the program's tenant, in words.
    pub limits: String,
    /// Runs without other programs.
    pub alone: Vec<ProgramRun>,
    /// Runs at the same time as the others.
    pub together: Vec<ProgramRun>,
}

/// All measurements of `vgpu validate`.
#[derive(Debug, Clone)]
pub struct ValidationResults {
    /// Programs in the order of the command line.
    pub programs: Vec<ProgramResults>,
    /// Source of an iteration's duration.
    pub measure: DurationMeasure,
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
pub struct LatencySummary {
    /// Median of the program's runs, each represented by its median iteration.
    pub median: f64,
    /// Confidence interval of the median.
    pub interval: Option<ConfidenceInterval>,
    /// 99th percentile of the durations of all iterations.
    pub p99: f64,
    /// Number of iterations over all runs.
    pub iterations: usize,
}

/// Comparison of a program alone and together with the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProgramChange {
    /// Durations when the program runs alone.
    pub alone: LatencySummary,
    /// Durations when the program runs at the same time as the others.
    pub together: LatencySummary,
    /// Change of the median duration, in percent.
    pub latency: f64,
    /// Confidence interval of the change of the median.
    pub latency_interval: Option<ConfidenceInterval>,
    /// Change of the throughput, in percent.
    pub throughput: f64,
    /// Change of the 99th percentile, in percent.
    pub p99: f64,
}

/// Results over all programs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CombinedResults {
    /// Combined throughput relative to running one after the other: the sum of the programs' relative speeds.
    pub combined: f64,
    /// Jain's fairness index of the relative speeds.
    pub fairness: f64,
    /// Ratio of the greatest slowdown to the least.
    pub worst: f64,
}

impl ProgramResults {
    /// Compares the runs; `None` if there are none.
    #[must_use]
    pub fn program_change(&self) -> Option<ProgramChange> {
        let values = |runs: &[ProgramRun]| runs.iter().map(ProgramRun::median_iteration).collect::<Vec<f64>>();
        let latency = |runs: &[ProgramRun]| {
            let all: Vec<f64> = runs.iter().flat_map(|run| run.iterations.iter().copied()).collect();
            let values = values(runs);
            Some(LatencySummary {
                median: median_of(&values)?,
                interval: order_interval(&values),
                p99: percentile_99(&all)?,
                iterations: all.len(),
            })
        };
        let (alone, together) = (latency(&self.alone)?, latency(&self.together)?);
        Some(ProgramChange {
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
    pub fn run_values(&self) -> (Vec<f64>, Vec<f64>) {
        (
            self.alone.iter().map(ProgramRun::median_iteration).collect(),
            self.together.iter().map(ProgramRun::median_iteration).collect(),
        )
    }
}

impl ValidationResults {
    /// Returns the number of complete rounds.
    #[must_use]
    pub fn whole_rounds(&self) -> usize {
        self.programs.iter().map(|program| program.together.len()).min().unwrap_or(0)
    }

    /// Returns the results over all programs; `None` without measurements.
    #[must_use]
    pub fn combined_results(&self) -> Option<CombinedResults> {
        let changes: Option<Vec<ProgramChange>> = self.programs.iter().map(ProgramResults::program_change).collect();
        let speeds: Vec<f64> = changes?.iter().map(|change| change.alone.median / change.together.median).collect();
        let (least, most) = speeds.iter().fold((f64::MAX, 0.0_f64), |(a, b), speed| (a.min(*speed), b.max(*speed)));
        Some(CombinedResults { combined: speeds.iter().sum(), fairness: jain_index(&speeds)?, worst: most / least })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn test_results(pairs: &[(&str, &[f64], &[f64])]) -> ValidationResults {
        let run = |seconds: &f64| ProgramRun { wall: *seconds, iterations: vec![*seconds] };
        let program = |(name, alone, together): &(&str, &[f64], &[f64])| ProgramResults {
            name: (*name).into(),
            command: "./job".into(),
            limits: "none".into(),
            alone: alone.iter().map(run).collect(),
            together: together.iter().map(run).collect(),
        };
        ValidationResults {
            programs: pairs.iter().map(program).collect(),
            measure: DurationMeasure::Run,
            wanted: pairs.first().map_or(0, |pair| pair.1.len()),
            cut: None,
            began: 0,
            facts: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_published_study_comes_out_as_it_is_and_sharing_did_more_than_taking_turns() {
        let results = test_results(&[("phi", &[0.609], &[1.227]), ("deepseek", &[1.135], &[1.778])]);
        let percent = |value: f64| format!("{value:+.2}");
        let shown: Vec<_> = results
            .programs
            .iter()
            .filter_map(ProgramResults::program_change)
            .map(|change| (percent(change.latency), percent(change.throughput)))
            .collect();
        assert_eq!(shown, [("+101.48".into(), "-50.37".into()), ("+56.65".into(), "-36.16".into())]);
        let all = results.combined_results().unwrap();
        // 0.609 / 1.227 + 1.135 / 1.778.
        assert_eq!(
            (percent((all.combined - 1.0) * 100.0), format!("{:.3}", all.fairness)),
            ("+13.47".into(), "0.985".into())
        );
    }

    #[test]
    fn a_run_stands_for_its_iterations_and_the_highest_of_all_is_not_lost() {
        let run = |iterations: &[f64]| ProgramRun { wall: 9.0, iterations: iterations.to_vec() };
        let mut results = test_results(&[("a", &[], &[])]);
        assert!(results.programs[0].program_change().is_none() && results.combined_results().is_none());
        results.programs[0].alone = vec![run(&[1.0, 1.0, 1.0]), run(&[1.0, 2.0, 9.0])];
        results.programs[0].together = vec![run(&[3.0]), run(&[3.0])];
        let change = results.programs[0].program_change().unwrap();
        assert_eq!((change.alone.median, change.alone.p99, change.alone.iterations), (1.5, 9.0, 6));
        assert_eq!((change.latency, results.whole_rounds()), (100.0, 2));
    }
}
