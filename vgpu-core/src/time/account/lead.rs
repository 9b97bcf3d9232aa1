//! The lead: how long before a kernel the device reaches a begin marker that was recorded on an idle stream.
//!
//! A call makes its work visible to the device at some moment within it, real drivers near its end. On an idle stream
//! the device reaches the marker within the record's call, and the kernel within the launch's call. With the part `p`
//! of a call after which its work is visible, the lead is the record's time + `p` x (the launch's time - the record's).
//!
//! `p` is learned by regression. Launch calls of one function vary in length. If a call takes `d` ns longer than the
//! one before, the time between the markers grows by `p` x `d`. Until there are samples, `p` is 1.
//!
//! A kernel that ends before the device sees its end marker cannot be measured: the markers then show the calls alone.
//! In a driver whose work is visible at the end of a call these are kernels shorter than a record's call.
//!
//! Not here: markers of a busy stream, which have no lead.

use super::cost::MEASUREMENTS_OF_MEAN;
use crate::time::config::{SHORT_LAUNCH_NS, small_part};

/// The visible part, in thousandths of a call, of a driver whose work becomes visible at the end of a call.
const WHOLE_CALL: i64 = 1000;
/// Lower bound for the visible part, in thousandths. Assumed: a driver needs the first half to prepare the work.
const LEAST_PART: i64 = 500;
/// Weight of the first estimate (the whole call) in the sums below, in ns^2. It equals about 20 samples whose launch
/// calls differ by 300 ns each.
const PRIOR_WEIGHT: i64 = 2_000_000;
/// Differences between calls above this are the work of an interrupt, at an unknown moment of the call.
const MAX_DIFFERENCE_NS: u64 = SHORT_LAUNCH_NS / 2;

/// A launch that was measured from a begin marker on an idle stream.
#[derive(Clone, Copy, Debug)]
pub struct IdleSample {
    /// The launched function and shape.
    pub key: u64,
    /// Time from the begin marker to the end marker, in ns.
    pub elapsed: u64,
    /// Host time of the record's call and of the launch's call, in ns.
    pub calls: [u64; 2],
}

impl IdleSample {
    /// True if the sample is short enough to show the lead. In a longer one, kernel variation hides that of the calls.
    fn is_telling(&self) -> bool {
        small_part(self.elapsed) < self.calls[1]
    }
}

/// Estimate of the lead, from this process's own samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeadEstimate {
    last: Option<IdleSample>,
    /// Sum over successive samples: change in call length x change in elapsed time, in ns^2.
    products: i64,
    /// Sum over successive samples: squared change in call length, in ns^2.
    squares: i64,
}

impl LeadEstimate {
    /// The lead of a launch whose calls took this long, in ns: the record's, and the launch's.
    #[must_use]
    pub fn lead_of(&self, calls: [u64; 2]) -> u64 {
        let [record, launch] = calls.map(|ns| i64::try_from(ns).unwrap_or(i64::MAX));
        let lead = record.saturating_add(launch.saturating_sub(record).saturating_mul(self.part()) / WHOLE_CALL);
        u64::try_from(lead).unwrap_or(0)
    }

    /// The part of a call after which its work is visible, in thousandths.
    fn part(&self) -> i64 {
        let [products, squares] = [self.products, self.squares].map(|sum| sum.saturating_add(PRIOR_WEIGHT));
        (products.saturating_mul(WHOLE_CALL) / squares).clamp(LEAST_PART, WHOLE_CALL)
    }

    /// Learns from an undisturbed sample of one launch.
    pub fn learn(&mut self, sample: IdleSample) {
        if !sample.is_telling() {
            return;
        }
        let Some(last) = self.last.replace(sample).filter(|last| last.key == sample.key) else { return };
        let signed = |now: u64, before: u64| now.cast_signed().wrapping_sub(before.cast_signed());
        let calls = signed(sample.calls[1], last.calls[1]) - signed(sample.calls[0], last.calls[0]);
        if calls.unsigned_abs() > MAX_DIFFERENCE_NS {
            return;
        }
        let elapsed = signed(sample.elapsed, last.elapsed) - signed(sample.calls[0], last.calls[0]);
        let most = 4 * MAX_DIFFERENCE_NS.cast_signed();
        self.products = self.products.saturating_add(calls * elapsed.clamp(-most, most));
        self.squares = self.squares.saturating_add(calls * calls);
    }
}

/// Most samples taken of a marker's device time. After this many attempts, one in this many is tried.
const GAPS: u32 = 64;

/// The device time that an end marker takes, which the time between two markers includes. It is the time between two
/// markers that were recorded one after the other behind unfinished work.
#[derive(Clone, Copy, Debug, Default)]
pub struct MarkerCost {
    sum: u64,
    count: u32,
    tries: u32,
}

impl MarkerCost {
    /// True if a sample should be tried.
    pub fn wants_sample(&mut self) -> bool {
        self.tries = self.tries.wrapping_add(1);
        self.count < GAPS && (self.tries <= GAPS || self.tries.is_multiple_of(GAPS))
    }

    /// Learns from the time between two markers.
    pub fn learn(&mut self, gap: u64) {
        (self.sum, self.count) = (self.sum.saturating_add(gap), self.count.saturating_add(1));
    }

    /// The device time of a marker in ns; 0 until it is known.
    #[must_use]
    pub fn as_ns(&self) -> u64 {
        if u64::from(self.count) < MEASUREMENTS_OF_MEAN { 0 } else { self.sum / u64::from(self.count) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Samples of a kernel of `kernel` ns in a driver where work is visible after `part` thousandths of a call. Each
    /// call differs by up to a seventh.
    fn learned(part: u64, kernel: u64, samples: u64) -> LeadEstimate {
        let mut estimate = LeadEstimate::default();
        for at in 0..samples {
            let calls = [600 + at * 37 % 200, 1_900 + at * 101 % 600];
            let elapsed = calls[0] * (1000 - part) / 1000 + calls[1] * part / 1000 + kernel + at * 53 % 400;
            estimate.learn(IdleSample { key: 1, elapsed, calls });
        }
        estimate
    }

    #[test]
    fn the_lead_is_first_the_whole_launch_and_then_what_the_calls_own_variation_shows() {
        let calls = [700, 2_200];
        assert_eq!(LeadEstimate::default().lead_of(calls), 2_200);
        for part in [500, 750, 1000] {
            let lead = learned(part, 5_000, 2_000).lead_of(calls);
            assert!(lead.abs_diff(700 + 1_500 * part / 1000) <= 60, "{part}: {lead}");
        }
    }

    #[test]
    fn nothing_is_learned_from_long_kernels_other_functions_or_interrupted_calls() {
        let sample = |key, launch, elapsed| IdleSample { key, elapsed, calls: [700, launch] };
        for pairs in [
            [sample(1, 2_200, 100_000), sample(1, 2_400, 100_000)],
            [sample(1, 2_200, 7_000), sample(2, 2_400, 7_000)],
            [sample(1, 2_200, 7_000), sample(1, 9_000, 7_000)],
        ] {
            let mut estimate = LeadEstimate::default();
            (0..1_000).for_each(|at| estimate.learn(pairs[at % 2]));
            assert_eq!(estimate.lead_of([700, 2_200]), 2_200, "{pairs:?}");
        }
    }

    #[test]
    fn a_marker_costs_nothing_until_it_was_measured_several_times() {
        let mut cost = MarkerCost::default();
        (1..MEASUREMENTS_OF_MEAN).for_each(|_| cost.learn(500));
        assert_eq!(cost.as_ns(), 0);
        (0..2 * GAPS).for_each(|at| cost.learn(u64::from(at % 2) * 1_000));
        assert!(cost.as_ns().abs_diff(500) < 10, "{cost:?}");
        assert!(!cost.wants_sample(), "it is known");
        let mut vain = MarkerCost::default();
        assert_eq!((0..10 * GAPS).filter(|_| vain.wants_sample()).count(), 73);
    }
}
