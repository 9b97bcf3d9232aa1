//! Statistics: medians, their confidence intervals, differences of two medians, and fairness.
//!
//! All values are durations in the same unit; shorter is better.

/// Least coverage of an interval: the part of cases in which it contains the true value.
pub const INTERVAL_COVERAGE: f64 = 0.95;
/// Number of resamplings for a bootstrap.
const BOOTSTRAP_DRAWS: usize = 10_000;

/// A confidence interval of a median or of a change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConfidenceInterval {
    /// Lower bound of the interval.
    pub low: f64,
    /// Upper bound of the interval.
    pub high: f64,
    /// Least probability that the interval contains the true value.
    pub coverage: f64,
}

fn sort_values(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the middle value, or the mean of the two middle ones. `None` without values.
#[must_use]
pub fn median_of(values: &[f64]) -> Option<f64> {
    middle_value(&sort_values(values))
}

fn middle_value(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    let high = *sorted.get(half)?;
    Some(if sorted.len() % 2 == 1 { high } else { f64::midpoint(*sorted.get(half.wrapping_sub(1))?, high) })
}

/// Returns the 99th percentile by nearest rank: the highest of fewer than 100 values.
#[must_use]
pub fn percentile_99(values: &[f64]) -> Option<f64> {
    let sorted = sort_values(values);
    let rank = (sorted.len() * 99).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// Returns the confidence interval of the population's median by order statistics, exact for any distribution. `None`
/// for fewer than six values, which do not reach 95 % coverage.
#[must_use]
pub fn order_interval(values: &[f64]) -> Option<ConfidenceInterval> {
    let sorted = sort_values(values);
    let n = sorted.len();
    // Probability that fewer than `k` of n values are on one side of the median, for each k from 1 on.
    let mut term = 0.5_f64.powi(i32::try_from(n).ok()?);
    let (mut below, mut found) = (0.0, None);
    for k in 1..=n / 2 {
        below += term;
        let coverage = 1.0 - 2.0 * below;
        if coverage < INTERVAL_COVERAGE {
            break;
        }
        found = Some(ConfidenceInterval { low: sorted[k - 1], high: sorted[n - k], coverage });
        #[allow(clippy::cast_precision_loss)] // a number of runs
        let next = (n - k + 1) as f64 / k as f64;
        term *= next;
    }
    found
}

/// Returns how much longer it takes together than alone, in percent.
#[must_use]
pub fn latency_change(alone: f64, together: f64) -> f64 {
    (together / alone - 1.0) * 100.0
}

/// Returns how much more is done in the same time together than alone, in percent.
#[must_use]
pub fn throughput_change(alone: f64, together: f64) -> f64 {
    (alone / together - 1.0) * 100.0
}

/// Returns the confidence interval of the median's change in percent, by the bootstrap (percentile method, 10,000
/// draws, always the same ones). `None` for fewer than six values on a side.
#[must_use]
pub fn change_interval(alone: &[f64], together: &[f64]) -> Option<ConfidenceInterval> {
    if alone.len() < 6 || together.len() < 6 {
        return None;
    }
    let mut draw = fastrand::Rng::with_seed(1);
    let mut resampled = |values: &[f64]| {
        let drawn: Vec<f64> = values.iter().map(|_| values[draw.usize(..values.len())]).collect();
        median_of(&drawn)
    };
    let mut changes = Vec::with_capacity(BOOTSTRAP_DRAWS);
    for _ in 0..BOOTSTRAP_DRAWS {
        changes.push(latency_change(resampled(alone)?, resampled(together)?));
    }
    changes.sort_by(f64::total_cmp);
    let cut = BOOTSTRAP_DRAWS / 40;
    Some(ConfidenceInterval {
        low: changes[cut],
        high: changes[BOOTSTRAP_DRAWS - 1 - cut],
        coverage: INTERVAL_COVERAGE,
    })
}

/// Returns Jain's fairness index: 1 if all values are equal, 1/n if one is everything. `None` without values, or if
/// all are zero.
#[must_use]
pub fn jain_index(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    #[allow(clippy::cast_precision_loss)] // a number of programs
    let n = values.len() as f64;
    (squares > 0.0).then(|| sum * sum / (n * squares))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 0.005
    }

    #[test]
    fn changes_are_those_of_the_published_study_to_a_hundredth() {
        for (alone, together, latency, throughput) in [(0.609, 1.227, 101.48, -50.37), (1.135, 1.778, 56.65, -36.16)] {
            assert!(close(latency_change(alone, together), latency), "{}", latency_change(alone, together));
            assert!(close(throughput_change(alone, together), throughput), "{}", throughput_change(alone, together));
        }
    }

    #[test]
    fn the_interval_of_a_median_is_by_ranks_and_needs_six_values() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(median_of(&values), Some(5.5));
        let interval = order_interval(&values).unwrap();
        // The second and the ninth: 1 - 2 (1 + 10) / 1024.
        assert_eq!((interval.low, interval.high, interval.coverage), (2.0, 9.0, 1.0 - 22.0 / 1024.0));
        assert!(order_interval(&values[..5]).is_none());
        assert_eq!(order_interval(&values[..6]).map(|found| (found.low, found.high)), Some((1.0, 6.0)));
        // From tables: of 100 values the 40th and the 61st.
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(order_interval(&hundred).map(|found| (found.low, found.high)), Some((40.0, 61.0)));
        assert_eq!(
            (percentile_99(&hundred), percentile_99(&values), percentile_99(&[])),
            (Some(99.0), Some(10.0), None)
        );
    }

    #[test]
    fn fairness_is_one_where_all_are_slowed_alike_and_a_part_where_one_has_it_all() {
        assert_eq!(
            (jain_index(&[0.5, 0.5, 0.5]), jain_index(&[1.0, 0.0]), jain_index(&[]), jain_index(&[0.0])),
            (Some(1.0), Some(0.5), None, None)
        );
        assert!(close(jain_index(&[0.609 / 1.227, 1.135 / 1.778]).unwrap(), 0.9846));
    }

    proptest! {
        // Few cases, because each resamples twenty thousand times.
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn an_interval_holds_its_median_and_does_not_depend_on_the_order(
            values in prop::collection::vec(0.001_f64..100.0, 6..40),
            other in prop::collection::vec(0.001_f64..100.0, 6..20),
        ) {
            let mut reversed = values.clone();
            reversed.reverse();
            let (found, middle) = (order_interval(&values).unwrap(), median_of(&values).unwrap());
            prop_assert_eq!(order_interval(&reversed), Some(found));
            prop_assert!(found.low <= middle && middle <= found.high && found.coverage >= INTERVAL_COVERAGE);
            let change = change_interval(&values[..6], &other[..6]).unwrap();
            prop_assert!(change.low <= change.high);
            let jain = jain_index(&values).unwrap();
            prop_assert!(jain <= 1.0 + 1e-9 && jain * values.len() as f64 >= 1.0 - 1e-9);
        }
    }
}
