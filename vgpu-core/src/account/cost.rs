//! What a launch will probably cost: a fixed table of averages, learned from what launches did cost.
//!
//! A guess, never a charge: it bounds what is in flight and says when to measure. Direct-mapped and
//! lock-free; two functions on one entry take it from each other, which costs accuracy and nothing else.

use crate::sync::{AtomicU64, Ordering};

/// For a function never measured, in nanoseconds.
pub const UNKNOWN_NS: u64 = 20_000;
/// No guess is longer: one hour.
pub const MAX_NS: u64 = 3_600_000_000_000;

/// A new measurement moves the average by an eighth of the difference.
const WEIGHT: u64 = 8;

/// The next average after `actual`; the first measurement is taken as it is (`average` 0).
#[must_use]
pub const fn ewma(average: u64, actual: u64) -> u64 {
    let actual = if actual > MAX_NS { MAX_NS } else { actual };
    if average == 0 {
        // 0 means "never measured".
        return if actual == 0 { 1 } else { actual };
    }
    let next = if actual >= average {
        average.saturating_add((actual - average).div_ceil(WEIGHT))
    } else {
        average - (average - actual).div_ceil(WEIGHT)
    };
    if next == 0 { 1 } else { next }
}

struct Entry {
    key: AtomicU64,
    average: AtomicU64,
}

/// Averages by key; a key is whatever tells functions (and perhaps launch shapes) apart, and is not 0.
pub struct CostTable<const N: usize> {
    entries: [Entry; N],
}

impl<const N: usize> Default for CostTable<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> CostTable<N> {
    /// Empty. `const`, so that it can be a static.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(N.is_power_of_two(), "the table's length is a power of two") };
        Self { entries: [const { Entry { key: AtomicU64::new(0), average: AtomicU64::new(0) } }; N] }
    }

    /// Empty.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { entries: core::array::from_fn(|_| Entry { key: AtomicU64::new(0), average: AtomicU64::new(0) }) }
    }

    /// The estimate for one launch, in nanoseconds.
    ///
    /// # Cost
    /// One multiplication and two relaxed loads.
    #[inline]
    #[must_use]
    pub fn estimate(&self, key: u64) -> u64 {
        self.measured(key).unwrap_or(UNKNOWN_NS)
    }

    /// The average, if there is one.
    #[inline]
    #[must_use]
    pub fn measured(&self, key: u64) -> Option<u64> {
        let entry = self.entry(key);
        let average = entry.average.load(Ordering::Relaxed);
        (average > 0 && entry.key.load(Ordering::Relaxed) == key).then_some(average)
    }

    /// Learns that one launch took `actual` nanoseconds.
    pub fn learn(&self, key: u64, actual: u64) {
        let entry = self.entry(key);
        let known = entry.key.load(Ordering::Relaxed) == key;
        let average = if known { entry.average.load(Ordering::Relaxed) } else { 0 };
        entry.average.store(ewma(average, actual), Ordering::Relaxed);
        entry.key.store(key, Ordering::Relaxed);
    }

    /// Knows nothing of `key` any more: what it names is something else from now on.
    pub fn forget(&self, key: u64) {
        let entry = self.entry(key);
        if entry.key.load(Ordering::Relaxed) == key {
            entry.average.store(0, Ordering::Relaxed);
        }
    }

    /// Learns from a batch measured as a whole: its launches were estimated at `estimated` together and
    /// took `actual`. Each function of the batch is corrected by the same factor.
    pub fn learn_factor(&self, key: u64, estimated: u64, actual: u64) {
        if estimated == 0 {
            return;
        }
        let scaled = u128::from(self.estimate(key)) * u128::from(actual) / u128::from(estimated);
        self.learn(key, u64::try_from(scaled).unwrap_or(MAX_NS));
    }

    #[inline]
    fn entry(&self, key: u64) -> &Entry {
        // Fibonacci hashing: function handles are aligned pointers, their low bits say nothing.
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let index = usize::try_from(mixed).unwrap_or(0) & (N - 1);
        &self.entries[index]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_unknown_costs_twenty_microseconds() {
        assert_eq!(CostTable::<64>::new().estimate(0x7f00_1000), UNKNOWN_NS);
    }

    #[test]
    fn the_first_measurement_counts_fully_and_later_ones_by_an_eighth() {
        let table = CostTable::<64>::new();
        table.learn(7, 1_000_000);
        assert_eq!(table.estimate(7), 1_000_000);
        table.learn(7, 1_800_000);
        assert_eq!(table.estimate(7), 1_100_000);
        table.learn(7, 300_000);
        assert_eq!(table.estimate(7), 1_000_000);
    }

    #[test]
    fn the_average_arrives_exactly_and_never_at_nothing() {
        for (from, to) in [(1, 1_000_003), (1_000_003, 1), (5, 0), (MAX_NS, 7)] {
            let mut average = ewma(0, from);
            for _ in 0..1000 {
                average = ewma(average, to);
            }
            assert_eq!(average, to.max(1), "{from} -> {to}");
        }
        assert_eq!(ewma(0, 0), 1);
        assert_eq!(ewma(0, u64::MAX), MAX_NS);
    }

    #[test]
    fn a_batch_corrects_each_of_its_functions_by_the_same_factor() {
        let table = CostTable::<64>::new();
        table.learn(1, 100_000);
        table.learn(2, 300_000);
        for _ in 0..200 {
            let (a, b) = (table.estimate(1), table.estimate(2));
            table.learn_factor(1, a + b, 800_000);
            table.learn_factor(2, a + b, 800_000);
        }
        let (a, b) = (table.estimate(1), table.estimate(2));
        assert!((a + b).abs_diff(800_000) < 8_000, "{a} + {b}");
        assert!(b > 2 * a && b < 4 * a, "{a} : {b}");
        table.learn_factor(1, 0, 5);
        assert_eq!(table.estimate(1), a, "nothing can be learned from nothing");
    }

    #[test]
    fn what_is_forgotten_is_unknown_and_nothing_else_is() {
        let table = CostTable::<1>::new();
        table.learn(1, 500);
        table.forget(2);
        assert_eq!(table.measured(1), Some(500), "not the one that has its place");
        table.forget(1);
        assert_eq!(table.measured(1), None);
        table.learn(1, 900);
        assert_eq!(table.measured(1), Some(900), "learned anew, not averaged with the old");
    }

    #[test]
    fn a_collision_costs_accuracy_only() {
        let table = CostTable::<1>::new();
        table.learn(1, 500);
        table.learn(2, 900);
        assert_eq!(table.estimate(2), 900);
        assert_eq!(table.estimate(1), UNKNOWN_NS);
    }
}
