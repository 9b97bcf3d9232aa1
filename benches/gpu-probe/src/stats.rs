//! Statistics of repeated measurements: pure arithmetic, no clock.

use serde_json::{Value, json};

/// Summary of a series of measurements. Percentiles are by nearest rank.
#[derive(Debug, Clone, PartialEq)]
pub struct SeriesSummary {
    pub n: usize,
    pub min: f64,
    pub median: f64,
    pub mean: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl SeriesSummary {
    /// Summarises `values`; `None` for an empty series, and for one that contains a non-finite value.
    pub fn of_series(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        Some(Self {
            n,
            min: sorted[0],
            median: median_of_sorted(&sorted),
            mean: sorted.iter().sum::<f64>() / count_to_float(n),
            p90: sorted[nearest_rank(n, 90)],
            p99: sorted[nearest_rank(n, 99)],
            max: sorted[n - 1],
        })
    }

    /// The summary in the document's form, rounded to three decimals.
    pub fn to_json(&self) -> Value {
        json!({
            "n": self.n, "min": round_figure(self.min), "median": round_figure(self.median), "mean": round_figure(self.mean),
            "p90": round_figure(self.p90), "p99": round_figure(self.p99), "max": round_figure(self.max),
        })
    }
}

/// The summary of a series in the document's form; null if there is none.
pub fn series_json(values: &[f64]) -> Value {
    SeriesSummary::of_series(values).map_or(Value::Null, |summary| summary.to_json())
}

/// Median of a series; `None` if it is empty.
pub fn series_median(values: &[f64]) -> Option<f64> {
    SeriesSummary::of_series(values).map(|summary| summary.median)
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    if n % 2 == 1 { sorted[n / 2] } else { f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]) }
}

/// The index of the nearest rank of a percentile.
fn nearest_rank(n: usize, percent: usize) -> usize {
    (n * percent).div_ceil(100).clamp(1, n) - 1
}

fn round_figure(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// A count as a float; exact up to 2^53.
#[allow(clippy::cast_precision_loss, reason = "counts here are far below 2^53")]
pub fn count_to_float(n: usize) -> f64 {
    n as f64
}

/// Nanoseconds or bytes as a float; exact up to 2^53.
#[allow(clippy::cast_precision_loss, reason = "times and sizes here are far below 2^53")]
pub fn to_float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_series_has_no_summary() {
        assert_eq!(SeriesSummary::of_series(&[]), None);
        assert_eq!(series_json(&[]), Value::Null);
    }

    #[test]
    fn a_value_that_is_not_a_number_spoils_no_figure_silently() {
        assert_eq!(SeriesSummary::of_series(&[1.0, f64::NAN]), None);
        assert_eq!(SeriesSummary::of_series(&[1.0, f64::INFINITY]), None);
    }

    #[test]
    fn the_order_of_the_values_does_not_matter() {
        let a = SeriesSummary::of_series(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!(a, SeriesSummary::of_series(&[1.0, 3.0, 5.0]).unwrap());
        assert_eq!((a.min, a.median, a.max, a.mean), (1.0, 3.0, 5.0, 3.0));
    }

    #[test]
    fn an_even_series_has_the_mean_of_its_middle_two() {
        assert_eq!(SeriesSummary::of_series(&[1.0, 2.0, 10.0, 20.0]).unwrap().median, 6.0);
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        let s = SeriesSummary::of_series(&values).unwrap();
        assert_eq!((s.p90, s.p99), (90.0, 99.0));
        let one = SeriesSummary::of_series(&[7.0]).unwrap();
        assert_eq!((one.p90, one.p99, one.median), (7.0, 7.0, 7.0));
    }
}
