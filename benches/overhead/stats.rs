//! Differences of medians with an interval, without an assumption about the distribution of the noise.

/// A median and its 95 % interval, by order statistics.
#[derive(Clone, Copy, Debug)]
pub struct MedianInterval {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// Median of `samples`, which this function sorts.
pub fn median_interval(samples: &mut [f64]) -> MedianInterval {
    samples.sort_by(f64::total_cmp);
    let n = samples.len();
    assert!(n > 1, "one sample has no interval");
    let at = |rank: f64| {
        let index = (0..n).find(|&i| i as f64 >= rank).unwrap_or(n - 1);
        samples[index.min(n - 1)]
    };
    let (middle, reach) = (n as f64 / 2.0, 0.98 * (n as f64).sqrt());
    MedianInterval { value: at(middle), low: at(middle - reach), high: at(middle + reach) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_holds_the_median_and_narrows_with_more_samples() {
        let spread = |n: u32| {
            let mut samples: Vec<f64> = (0..n).map(|i| f64::from(i * 7919 % n) / f64::from(n)).collect();
            let m = median_interval(&mut samples);
            assert!(m.low <= m.value && m.value <= m.high, "{m:?}");
            assert!((m.value - 0.5).abs() < 0.1, "{m:?}");
            m.high - m.low
        };
        assert!(spread(10_000) < spread(100));
    }
}
