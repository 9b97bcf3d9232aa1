//! Medians with an interval, of a few runs and of the difference between two series. Arithmetic only.
//!
//! The range of n independent runs contains their distribution's median with probability 1 - 2^(1-n): 96.9 % for six.
//! That needs no other assumption, and every table states it. Medians of thousands of calls have an interval by order
//! statistics instead (`benches/overhead/stats.rs`).

use serde::Serialize;

/// A figure and its interval; no interval if only one number is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FigureCell {
    /// Median of the measured values.
    pub value: f64,
    /// Lowest and highest value that the median may have; `None` if only one number is known.
    pub interval: Option<(f64, f64)>,
}

impl FigureCell {
    /// A number without an interval.
    pub fn without_interval(value: f64) -> FigureCell {
        FigureCell { value, interval: None }
    }

    /// A median with its interval.
    pub fn with_interval(value: f64, low: f64, high: f64) -> FigureCell {
        FigureCell { value, interval: Some((low, high)) }
    }

    /// Median of some runs, with the range from lowest to highest if there are several; `None` without runs.
    pub fn of_runs(runs: &[f64]) -> Option<FigureCell> {
        let mut runs: Vec<f64> = runs.iter().copied().filter(|run| run.is_finite()).collect();
        runs.sort_by(f64::total_cmp);
        let (low, high) = (*runs.first()?, *runs.last()?);
        let value = (runs[(runs.len() - 1) / 2] + runs[runs.len() / 2]) / 2.0;
        Some(FigureCell { value, interval: (runs.len() > 1).then_some((low, high)) })
    }

    /// Difference to `other`, which was measured separately: the interval contains every difference that the two
    /// intervals permit.
    pub fn minus_cell(self, other: FigureCell) -> FigureCell {
        let interval = match (self.interval, other.interval) {
            (Some((low, high)), Some((least, most))) => Some((low - most, high - least)),
            _ => None,
        };
        FigureCell { value: self.value - other.value, interval }
    }

    /// True if the interval is on one side of zero.
    pub fn is_told_from_zero(self) -> bool {
        self.interval.is_some_and(|(low, high)| low > 0.0 || high < 0.0)
    }
}

/// Differences within each run, as a cell: both sides of a run had the same host conditions.
pub fn paired_differences(ours: &[f64], bare: &[f64]) -> Option<FigureCell> {
    let differences: Vec<f64> = ours.iter().zip(bare).map(|(ours, bare)| ours - bare).collect();
    FigureCell::of_runs(&differences)
}

/// Null control of repeated runs: each run against the one before it. `None` for fewer than two runs.
pub fn against_itself(runs: &[f64]) -> Option<FigureCell> {
    let differences: Vec<f64> = runs.windows(2).map(|pair| pair[1] - pair[0]).collect();
    FigureCell::of_runs(&differences)
}

/// Probability in percent that the range of `runs` runs contains the median; `None` for fewer than two runs.
pub fn range_confidence(runs: u32) -> Option<f64> {
    (runs > 1).then(|| 100.0 * (1.0 - 0.5f64.powi(runs.min(60).cast_signed() - 1)))
}

/// Jain's index of parts that should be equal: 1 if they are, 1/n if one has everything.
pub fn jain_index(parts: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (parts.iter().sum(), parts.iter().map(|part| part * part).sum());
    if squares == 0.0 { f64::NAN } else { sum * sum / (parts.len() as f64 * squares) }
}

/// Closeness of `got` to `due`, in percent of `due`; 0 if it is off by `due` or more.
pub fn accuracy_percent(got: f64, due: f64) -> f64 {
    if due == 0.0 { f64::NAN } else { (100.0 * (1.0 - (got - due).abs() / due)).max(0.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_the_median_of_its_runs_and_their_range() {
        assert_eq!(FigureCell::of_runs(&[3.0, 1.0, 2.0]), Some(FigureCell::with_interval(2.0, 1.0, 3.0)));
        assert_eq!(FigureCell::of_runs(&[4.0, 1.0, 2.0, 3.0]), Some(FigureCell::with_interval(2.5, 1.0, 4.0)));
        assert_eq!(FigureCell::of_runs(&[4.0]), Some(FigureCell::without_interval(4.0)));
        assert_eq!(FigureCell::of_runs(&[]), None);
        assert_eq!(FigureCell::of_runs(&[f64::NAN]), None);
    }

    #[test]
    fn the_range_of_six_runs_is_more_than_95_percent_and_of_one_nothing() {
        assert_eq!(range_confidence(1), None);
        assert_eq!(range_confidence(2), Some(50.0));
        assert!((range_confidence(6).unwrap() - 96.875).abs() < 1e-9);
    }

    #[test]
    fn differences_are_taken_within_a_run_and_a_drift_of_both_cancels() {
        let (bare, ours) = ([10.0, 20.0, 30.0], [11.0, 21.0, 31.0]);
        assert_eq!(paired_differences(&ours, &bare), Some(FigureCell::with_interval(1.0, 1.0, 1.0)));
        assert_eq!(against_itself(&bare), Some(FigureCell::with_interval(10.0, 10.0, 10.0)));
        assert_eq!(against_itself(&bare[..1]), None);
    }

    #[test]
    fn a_difference_of_what_was_measured_apart_holds_all_that_both_allow() {
        let difference = FigureCell::with_interval(5.0, 4.0, 7.0).minus_cell(FigureCell::with_interval(4.0, 3.0, 6.0));
        assert_eq!(difference, FigureCell::with_interval(1.0, -2.0, 4.0));
        assert!(!difference.is_told_from_zero());
        assert!(FigureCell::with_interval(1.0, 0.5, 2.0).is_told_from_zero());
        assert!(!FigureCell::without_interval(1.0).is_told_from_zero(), "one number is no evidence");
    }

    #[test]
    fn jains_index_is_one_for_equals_and_a_part_for_one_that_has_all() {
        assert!((jain_index(&[0.3, 0.3, 0.3]) - 1.0).abs() < 1e-12);
        assert!((jain_index(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
        assert!(jain_index(&[0.0, 0.0]).is_nan());
    }

    #[test]
    fn accuracy_is_the_same_above_and_below_and_never_negative() {
        assert!((accuracy_percent(45.0, 50.0) - 90.0).abs() < 1e-9);
        assert!((accuracy_percent(55.0, 50.0) - 90.0).abs() < 1e-9);
        assert_eq!(accuracy_percent(150.0, 50.0), 0.0);
    }
}
