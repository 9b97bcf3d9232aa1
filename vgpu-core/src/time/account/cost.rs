//! The cost model: estimates a launch from a fixed table of averages of measured launches.
//!
//! An estimate is never a charge: it bounds the work in flight and decides when to measure. Each estimate carries a
//! confidence. A function measured once at 50 us may take a second the next time. A queue of forty launches based on
//! that one measurement could last forty seconds, and cannot be withdrawn. So an estimate starts with a
//! [`CostGuess::doubt_of`] that each further measurement halves. The gate bounds the sum of it over launches in
//! flight: 2 launches, then 4, 8 ... 64, and then as many as the time allows.
//!
//! Lock-free, with four entries for each key. A fifth function replaces another, which becomes unknown again and
//! launches one at a time. Functions that replaced each other for ever would never become certain.

use crate::sync::{AtomicU64, Ordering};
use crate::time::config::{SHORT_LAUNCH_NS, is_longer};

/// The estimate for a function that was never measured, in nanoseconds: 20 us.
pub const UNKNOWN_COST_NS: u64 = 4 * SHORT_LAUNCH_NS;

/// A mean is of about this many measurements: a new one moves an average by one part in this many of the difference.
pub const MEASUREMENTS_OF_MEAN: u64 = 8;

/// An undisturbed cost rises by one part in this many with each longer measurement. Kernels of 2 ms are measured at
/// most 500 times a second. A process that slows them unseen is detected within 3 s; until then the cost rises by at
/// most a tenth.
const SLOW_RISE_DIVISOR: u64 = 1 << 14;

/// A neighbour stretches a launch to at most this multiple of its estimate; anything longer is a wrong estimate. An
/// unseen process counts as this many sharers of the device: it queues as much as it likes, while members have at most
/// half a quantum in flight. Measured: it gets three times a member's time.
pub const MAX_STRETCH: u64 = 4;

/// True if a launch that took `ns`, estimated at `believed`, is worth learning from although others may have run
/// meanwhile.
#[inline]
#[must_use]
pub const fn is_far(ns: u64, believed: u64) -> bool {
    ns > believed.saturating_mul(MAX_STRETCH)
}

/// An estimate is one word: the nanoseconds, and above them its uncertainty.
const DOUBT_SHIFT: u32 = 48;
/// The largest estimate.
pub const MAX_GUESS_NS: u64 = (1 << DOUBT_SHIFT) - 1;
/// The uncertainty after the first measurement: each further one halves it. It is gone after six.
pub const NEW_DOUBT: u32 = 1 << 5;
/// The uncertainty of a function that was never measured: no other value can reach it.
const UNKNOWN_DOUBT: u64 = 1 << 15;

/// The estimated cost of a launch, and its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostGuess(u64);

impl CostGuess {
    /// The cost of a function that was never measured.
    pub const NEVER_MEASURED: Self = Self(UNKNOWN_DOUBT << DOUBT_SHIFT | UNKNOWN_COST_NS);

    /// The estimate of a function that was measured often enough.
    #[must_use]
    pub const fn with_certainty(ns: u64) -> Self {
        Self(if ns > MAX_GUESS_NS { MAX_GUESS_NS } else { ns })
    }

    /// The estimate in nanoseconds.
    #[inline]
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.0 & MAX_GUESS_NS
    }

    /// How uncertain the estimate is.
    #[inline]
    #[must_use]
    pub const fn doubt_of(self) -> CostDoubt {
        let doubt = (self.0 >> DOUBT_SHIFT) as u32;
        if self.is_unknown() { CostDoubt { unknown: 1, young: 0 } } else { CostDoubt { unknown: 0, young: doubt } }
    }

    /// True if the launch was never measured.
    #[inline]
    #[must_use]
    pub const fn is_unknown(self) -> bool {
        self.0 >= UNKNOWN_DOUBT << DOUBT_SHIFT
    }

    /// True if the launch was measured often enough.
    #[inline]
    #[must_use]
    pub const fn is_sure(self) -> bool {
        self.0 < 1 << DOUBT_SHIFT
    }

    /// The cost, if it was measured often enough and is less than `ns`.
    #[inline]
    #[must_use]
    pub const fn known_below(self, ns: u64) -> Option<u64> {
        if self.0 < ns { Some(self.0) } else { None }
    }
}

/// The summed uncertainty of several launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostDoubt {
    /// Launches of functions that were never measured.
    pub unknown: u32,
    /// The sum over launches of functions measured a few times: 32 each after the first measurement, 16 after the
    /// second ... 1, then 0.
    pub young: u32,
}

impl CostDoubt {
    /// No uncertainty: every estimate was measured often enough.
    pub const NO_DOUBT: Self = Self { unknown: 0, young: 0 };

    /// The sum of two uncertainties.
    #[inline]
    #[must_use]
    pub const fn add_doubt(self, other: Self) -> Self {
        Self { unknown: self.unknown.saturating_add(other.unknown), young: self.young.saturating_add(other.young) }
    }

    /// The difference: this without `other`.
    #[inline]
    #[must_use]
    pub const fn subtract_doubt(self, other: Self) -> Self {
        Self { unknown: self.unknown.saturating_sub(other.unknown), young: self.young.saturating_sub(other.young) }
    }
}

/// The next average after `actual`; the first measurement counts fully (`average` 0).
#[must_use]
pub const fn next_average(average: u64, actual: u64) -> u64 {
    let actual = if actual > MAX_GUESS_NS { MAX_GUESS_NS } else { actual };
    if average == 0 {
        // 0 means "never measured".
        return if actual == 0 { 1 } else { actual };
    }
    let next = if actual >= average {
        average.saturating_add((actual - average).div_ceil(MEASUREMENTS_OF_MEAN))
    } else {
        average - (average - actual).div_ceil(MEASUREMENTS_OF_MEAN)
    };
    if next == 0 { 1 } else { next }
}

/// Entries in a cache line: a key may occupy any of them.
const WAYS_PER_SET: usize = 4;

struct CostEntry {
    key: AtomicU64,
    /// The learned cost; 0: never measured.
    guess: AtomicU64,
}

impl CostEntry {
    /// The estimate for `key`, if this entry holds it.
    #[inline]
    fn guess_for(&self, key: u64) -> Option<CostGuess> {
        let guess = self.guess.load(Ordering::Relaxed);
        (guess > 0 && self.key.load(Ordering::Relaxed) == key).then_some(CostGuess(guess))
    }
}

/// Averages by key. A key identifies a function, and perhaps a launch shape, and is not 0.
#[repr(align(64))]
pub struct CostTable<const N: usize> {
    entries: [CostEntry; N],
}

impl<const N: usize> Default for CostTable<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> CostTable<N> {
    /// Creates an empty table; `const`, so that it can be a static.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(N.is_power_of_two(), "the table's length is a power of two") };
        Self { entries: [const { CostEntry { key: AtomicU64::new(0), guess: AtomicU64::new(0) } }; N] }
    }

    /// Creates an empty table.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { entries: core::array::from_fn(|_| CostEntry { key: AtomicU64::new(0), guess: AtomicU64::new(0) }) }
    }

    /// The estimated cost of one launch.
    ///
    /// # Cost
    /// One multiplication and two relaxed loads; up to six more in the same cache line for a key that does not have
    /// its first entry.
    #[inline]
    #[must_use]
    pub fn guess_cost(&self, key: u64) -> CostGuess {
        self.measured_cost(key).unwrap_or(CostGuess::NEVER_MEASURED)
    }

    /// As [`Self::guess_cost`], if the function was ever measured.
    #[inline]
    #[must_use]
    pub fn measured_cost(&self, key: u64) -> Option<CostGuess> {
        self.ways_of(key).find_map(|entry| entry.guess_for(key))
    }

    /// Learns that one launch took `actual` nanoseconds.
    pub fn learn_cost(&self, key: u64, actual: u64) {
        let (average, doubt) = match self.measured_cost(key) {
            Some(known) => (known.as_ns(), u64::from(known.doubt_of().young) / 2),
            None => (0, NEW_DOUBT.into()),
        };
        let is_own = |entry: &&CostEntry| entry.guess_for(key).is_some();
        let is_free = |entry: &&CostEntry| entry.guess.load(Ordering::Relaxed) == 0;
        let kept = self.ways_of(key).find(is_own).or_else(|| self.ways_of(key).find(is_free));
        if let Some(entry) = kept.or_else(|| self.ways_of(key).next()) {
            entry.guess.store(doubt << DOUBT_SHIFT | next_average(average, actual), Ordering::Relaxed);
            entry.key.store(key, Ordering::Relaxed);
        }
    }

    /// As [`Self::learn_cost`], for launches that an unseen process may have slowed. A measurement that exceeds the
    /// estimate by more than a quarter raises it by one part in [`SLOW_RISE_DIVISOR`] only, and not at all unless
    /// `rises`.
    pub fn learn_least(&self, key: u64, actual: u64, rises: bool) {
        let most = self.measured_cost(key).map_or(u64::MAX, |known| match (is_longer(actual, known.as_ns()), rises) {
            (true, true) => {
                known.as_ns().saturating_add(known.as_ns().div_ceil(SLOW_RISE_DIVISOR / MEASUREMENTS_OF_MEAN))
            }
            (true, false) => known.as_ns(),
            (false, _) => actual,
        });
        self.learn_cost(key, actual.min(most));
    }

    /// Raises the confidence in `key` after launches that completed without a usable measurement, so that no launch
    /// is held back for ever.
    pub fn age_doubt(&self, key: u64) {
        for entry in self.ways_of(key) {
            if let Some(known) = entry.guess_for(key).filter(|known| !known.is_sure()) {
                let doubt = u64::from(known.doubt_of().young) / 2;
                entry.guess.store(doubt << DOUBT_SHIFT | known.as_ns(), Ordering::Relaxed);
            }
        }
    }

    /// Forgets `key`, which names something else from now on.
    pub fn forget_key(&self, key: u64) {
        let own = self.ways_of(key).filter(|entry| entry.guess_for(key).is_some());
        own.for_each(|entry| entry.guess.store(0, Ordering::Relaxed));
    }

    /// The entries that `key` may occupy, its first choice first.
    #[inline]
    fn ways_of(&self, key: u64) -> impl Iterator<Item = &CostEntry> {
        let index = crate::mix::slot_of(key, N) & (N - 1);
        (0..WAYS_PER_SET.min(N)).filter_map(move |way| self.entries.get(index ^ way))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_unknown_costs_twenty_microseconds() {
        let guess = CostTable::<64>::new().guess_cost(0x7f00_1000);
        assert!(guess.is_unknown() && guess.as_ns() == UNKNOWN_COST_NS);
        assert_eq!(guess.doubt_of(), CostDoubt { unknown: 1, young: 0 });
    }

    #[test]
    fn the_first_measurement_counts_fully_and_later_ones_by_an_eighth() {
        let table = CostTable::<64>::new();
        table.learn_cost(7, 1_000_000);
        assert_eq!(table.guess_cost(7).as_ns(), 1_000_000);
        table.learn_cost(7, 1_800_000);
        assert_eq!(table.guess_cost(7).as_ns(), 1_100_000);
        table.learn_cost(7, 300_000);
        assert_eq!(table.guess_cost(7).as_ns(), 1_000_000);
    }

    #[test]
    fn the_average_arrives_exactly_and_never_at_nothing() {
        for (from, to) in [(1, 1_000_003), (1_000_003, 1), (5, 0), (MAX_GUESS_NS, 7)] {
            let mut average = next_average(0, from);
            for _ in 0..1000 {
                average = next_average(average, to);
            }
            assert_eq!(average, to.max(1), "{from} -> {to}");
        }
        assert_eq!(next_average(0, 0), 1);
        assert_eq!(next_average(0, u64::MAX), MAX_GUESS_NS);
    }

    #[test]
    fn each_measurement_halves_the_doubt_and_what_teaches_nothing_as_well() {
        let table = CostTable::<64>::new();
        let young = || table.guess_cost(7).doubt_of().young;
        table.age_doubt(7);
        assert!(table.guess_cost(7).is_unknown(), "there is nothing to be trusted");
        table.learn_cost(7, 2_000);
        assert_eq!((young(), table.guess_cost(7).known_below(5_000)), (32, None), "short it may be, but who knows");
        table.learn_cost(7, 2_000);
        table.age_doubt(7);
        assert_eq!((young(), table.guess_cost(7).as_ns()), (8, 2_000));
        let rest: Vec<u32> = (0..5).map(|_| (table.learn_cost(7, 2_000), young()).1).collect();
        assert_eq!(rest, [4, 2, 1, 0, 0]);
        assert_eq!(
            (table.guess_cost(7).known_below(2_001), table.guess_cost(7).known_below(2_000)),
            (Some(2_000), None)
        );
        assert_eq!(table.guess_cost(7), CostGuess::with_certainty(2_000));
        table.forget_key(7);
        table.learn_cost(7, MAX_GUESS_NS);
        assert_eq!((young(), table.guess_cost(7).as_ns()), (32, MAX_GUESS_NS), "as new");
    }

    /// A kernel of 2 ms, measured at 4 ms while an unseen process runs.
    #[test]
    fn an_undisturbed_cost_falls_at_once_and_rises_by_a_tenth_in_three_seconds_at_most() {
        let table = CostTable::<64>::new();
        (0..40).for_each(|_| table.learn_least(7, 4_000_000, true));
        assert_eq!(table.guess_cost(7).as_ns(), 4_000_000, "all that is known");
        (0..80).for_each(|_| table.learn_least(7, 2_000_000, true));
        assert!(table.guess_cost(7).as_ns() <= 2_001_000, "{:?}", table.guess_cost(7));
        (0..750).for_each(|_| table.learn_least(7, 4_000_000, true));
        assert!((2_010_000..2_200_000).contains(&table.guess_cost(7).as_ns()), "{:?}", table.guess_cost(7));
        let before = table.guess_cost(7).as_ns();
        (0..10_000).for_each(|_| table.learn_least(7, 4_000_000, false));
        assert_eq!(table.guess_cost(7).as_ns(), before);
        (0..200).for_each(|_| table.learn_least(7, before + before / 9, true));
        assert!(table.guess_cost(7).as_ns() > before + before / 10, "what differs by little is learned as ever");
    }

    #[test]
    fn doubts_are_added_up_and_never_less_than_none() {
        let (one, two) = (CostGuess::NEVER_MEASURED.doubt_of(), CostDoubt { unknown: 0, young: 32 });
        assert_eq!(one.add_doubt(two).add_doubt(two), CostDoubt { unknown: 1, young: 64 });
        assert_eq!(one.add_doubt(two).subtract_doubt(two), one);
        assert_eq!(two.subtract_doubt(one).subtract_doubt(two).subtract_doubt(two), CostDoubt::NO_DOUBT);
    }

    #[test]
    fn what_is_forgotten_is_unknown_and_nothing_else_is() {
        let table = CostTable::<1>::new();
        table.learn_cost(1, 500);
        table.forget_key(2);
        assert_eq!(table.measured_cost(1).map(CostGuess::as_ns), Some(500), "not the one that has its place");
        table.forget_key(1);
        assert_eq!(table.measured_cost(1), None);
        table.learn_cost(1, 900);
        assert_eq!(table.measured_cost(1).map(CostGuess::as_ns), Some(900), "learned anew, not averaged with the old");
    }

    /// A key is a function's address with the launch's size from bit 32 on.
    #[test]
    fn sizes_of_one_function_have_places_of_their_own() {
        for block in [32, 64, 128, 256, 512, 1024u64] {
            let table = CostTable::<1024>::new();
            let keys = (1..=200).map(|grid: u64| 0x7f00_1230 ^ (grid * 8 * block).rotate_left(32) | 1);
            keys.clone().for_each(|key| table.learn_cost(key, 7));
            let kept = keys.filter(|&key| table.measured_cost(key).is_some()).count();
            assert!(kept >= 190, "blocks of {block}: {kept} of 200");
        }
    }

    #[test]
    fn functions_whose_places_are_taken_are_known_beside_those_who_have_them() {
        // All these keys have the same first choice of a place in the table.
        let (table, [a, b, c, d, e, f]) = (CostTable::<4>::new(), [1, 6, 9, 14, 17, 19]);
        (0..7).for_each(|_| [a, b, c, d].iter().for_each(|&key| table.learn_cost(key, 100 * key)));
        assert_eq!(
            [a, b, c, d].map(|key| table.guess_cost(key)),
            [100, 600, 900, 1_400].map(CostGuess::with_certainty)
        );
        table.learn_cost(e, 500);
        let kept = || [a, b, c, d, e].into_iter().filter(|&key| table.measured_cost(key).is_some()).count();
        assert!(kept() == 4 && table.measured_cost(e).is_some(), "one makes room");
        table.forget_key(e);
        table.age_doubt(e);
        assert_eq!(kept(), 3);
        table.learn_cost(f, 600);
        assert_eq!(kept(), 3, "what was forgotten makes room");
        assert_eq!((table.guess_cost(f).as_ns(), table.guess_cost(f).doubt_of().young), (600, 32));
    }

    #[test]
    fn a_collision_costs_accuracy_only() {
        let table = CostTable::<1>::new();
        table.learn_cost(1, 500);
        table.learn_cost(2, 900);
        assert_eq!(table.guess_cost(2).as_ns(), 900);
        assert_eq!(table.guess_cost(1), CostGuess::NEVER_MEASURED);
    }
}
