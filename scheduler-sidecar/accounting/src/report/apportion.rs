//! Divides a total into parts so that the rounded parts sum to the rounded total.

/// Divides `total` in proportion to `weights` by the largest remainder. Each part is its exact value rounded down;
/// the rest is given out one by one to the largest remainders, the earlier one first if equal.
///
/// The parts sum to `total`, and each differs from its exact value by less than one. If all weights are zero, so are
/// the parts.
#[must_use]
pub fn apportion_total(total: u128, weights: &[u128]) -> Vec<u128> {
    let mut weights = weights.to_vec();
    // Weights too large for any real device lose their lowest bits, to avoid overflow.
    let fits = |weights: &[u128]| {
        let sum = weights.iter().try_fold(0_u128, |sum, weight| sum.checked_add(*weight));
        sum.is_some_and(|sum| sum.checked_mul(total.max(1)).is_some())
    };
    while !fits(&weights) {
        weights.iter_mut().for_each(|weight| *weight >>= 1);
    }
    let sum: u128 = weights.iter().sum();
    if sum == 0 {
        return vec![0; weights.len()];
    }
    let mut parts: Vec<u128> = weights.iter().map(|weight| total * weight / sum).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(total * weights[*index] % sum));
    let left = total - parts.iter().sum::<u128>();
    for index in order.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        parts[index] += 1;
    }
    parts
}

/// Returns `value / unit`, rounded half up.
#[must_use]
pub fn round_half_up(value: u128, unit: u128) -> u128 {
    let unit = unit.max(1);
    let rest = value % unit;
    value / unit + u128::from(rest >= unit - rest)
}

/// Formats a number of units with `digits` decimals: 1234 with 2 is `12.34`.
#[must_use]
pub fn format_decimal(value: u128, digits: u32) -> String {
    match digits {
        0 => value.to_string(),
        _ => {
            let whole = 10_u128.pow(digits);
            format!("{}.{:0width$}", value / whole, value % whole, width = digits as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn remainders_decide_and_equal_ones_in_their_order() {
        assert_eq!(apportion_total(1000, &[1, 1, 1]), [334, 333, 333]);
        assert_eq!(apportion_total(100, &[500, 499, 1]), [50, 50, 0]);
        assert_eq!(apportion_total(7, &[0, 0]), [0, 0]);
        assert_eq!(apportion_total(0, &[3, 4]), [0, 0]);
        assert_eq!(apportion_total(5, &[]), [0; 0]);
    }

    #[test]
    fn decimals_are_written_whole() {
        assert_eq!(
            (format_decimal(1234, 2), format_decimal(5, 3), format_decimal(7, 0)),
            ("12.34".into(), "0.005".into(), "7".into())
        );
        assert_eq!(
            (round_half_up(15, 10), round_half_up(14, 10), round_half_up(0, 10), round_half_up(u128::MAX, 1)),
            (2, 1, 0, u128::MAX)
        );
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_total_and_are_less_than_one_away_from_exact(
            total in 0_u64..=u64::MAX,
            weights in prop::collection::vec(prop_oneof![Just(0_u64), 0_u64..1000, any::<u64>()], 1..40),
        ) {
            let weights: Vec<u128> = weights.into_iter().map(|weight| u128::from(weight >> 6)).collect();
            let sum: u128 = weights.iter().sum();
            let parts = apportion_total(total.into(), &weights);
            prop_assert_eq!(parts.iter().sum::<u128>(), if sum == 0 { 0 } else { total.into() });
            for (part, weight) in parts.iter().zip(&weights) {
                let exact = u128::from(total) * weight;
                prop_assert!(sum == 0 || (part * sum).abs_diff(exact) < sum);
            }
        }

        #[test]
        fn whatever_the_numbers_are_nothing_overflows_and_nothing_is_lost(
            total in any::<u128>(),
            weights in prop::collection::vec(any::<u128>(), 1..10),
        ) {
            let parts = apportion_total(total, &weights);
            prop_assert!(parts.iter().sum::<u128>() == total || parts.iter().all(|part| *part == 0));
        }
    }
}
