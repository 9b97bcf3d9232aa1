//! The lead: how long before a kernel the device reaches a begin marker that was recorded on an idle stream.
//!
//! A call makes its work visible to the device at some moment within it, real drivers near its end. On an idle stream
//! the device reaches the marker within the record's call, and the kernel within the launch's call. With the part `p`
//! of a call after which its work is visible, the rest of the record's call passes first, (1 - `p`) x its time, and
//! then `p` x the launch's time. Their sum is the lead.
//!
//! `p` is learned by regression. Launch calls of one function vary in length. On average a launch call that is `d` ns
//! longer adds `p` x `d` to the time between the markers. `p` begins as 1, and the first samples move it slowly.
//!
//! A kernel that is over when the device sees its end marker cannot be measured: the markers then show only how far
//! apart their calls were ([`LeadEstimate::is_unseen`]). In a driver whose work is visible at the end of a call these
//! are kernels shorter than a record's call.
//!
//! Not here: markers of a busy stream, which have no lead.

use super::cost::{MEASUREMENTS_OF_MEAN, next_average};
use crate::time::config::{is_longer, small_part};

/// The visible part, in thousandths of a call, of a driver whose work becomes visible at the end of a call.
const WHOLE_CALL: u64 = 1000;
/// Lower bound for the visible part, in thousandths. Assumed: a driver needs the first half to prepare the work.
const LEAST_PART: u64 = 500;
/// The middle of the possible visible parts, in thousandths: it is wrong by at most a quarter of a call.
const MIDDLE_PART: u64 = u64::midpoint(LEAST_PART, WHOLE_CALL);
/// Weight of the first estimate (the whole call) in the sums below, in ns^2. It equals about 45 samples whose launch
/// calls differ from their mean by 150 ns.
const PRIOR_WEIGHT: i64 = 1_000_000;
/// After a longer call the length of the fast calls rises by one part in this many of the difference.
const FAST_RISE_DIVISOR: u64 = 256;
/// Resolution of the driver's time between two markers, in ns: about 0.5 us (`cuEventElapsedTime`).
const RESOLUTION_NS: u64 = 500;

/// A launch that was measured from a begin marker on an idle stream.
#[derive(Clone, Copy, Debug)]
pub struct IdleSample {
    /// The launched function and shape.
    pub key: u64,
    /// Time from the begin marker to the end marker, in ns.
    pub elapsed: u64,
    /// Host time of the record's call and of the launch's call, in ns.
    pub calls: [u64; 2],
    /// Host time from the end of the call that recorded the begin marker to the end of that for the end marker, in ns.
    pub apart: u64,
}

impl IdleSample {
    /// True if the sample is short enough to show the lead. In a longer one the kernel's own variation hides the
    /// calls'.
    fn is_telling(&self) -> bool {
        small_part(self.elapsed) < self.calls[1]
    }
}

/// Estimate of the lead, from this process's own samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeadEstimate {
    /// The function and shape of the samples in `means`.
    key: u64,
    /// Length of the fast launch calls, in ns: their minimum, which rises slowly.
    fast: u64,
    /// Means of three times in ns: the launch's call, between the markers, between the ends of the markers' calls.
    means: [u64; 3],
    /// Sum over samples: (launch call - its mean) x (time between the markers - its mean), in ns^2.
    products: i64,
    /// Sum over samples: the squared distance of the call from its mean, in ns^2.
    squares: i64,
}

impl LeadEstimate {
    /// The lead of a launch of `key` in ns. `calls`: host time of the record's call and of the launch's, in ns;
    /// `marker`: as for [`Self::is_unseen`]. If the kernel [is unseen](Self::is_unseen), nothing shows its visible
    /// part, and the middle of the possible ones is taken.
    #[must_use]
    pub fn lead_of(&self, key: u64, calls: [u64; 2], marker: u64) -> u64 {
        let part = if self.is_unseen(key, marker) { MIDDLE_PART } else { self.part() };
        calls[0] + calls[1].saturating_sub(calls[0]).saturating_mul(part) / WHOLE_CALL
    }

    /// True if the kernel is usually over when the device sees its end marker: the markers are then no further apart
    /// than their calls. `marker`: the device time of a marker behind unfinished work, in ns.
    #[must_use]
    pub fn is_unseen(&self, key: u64, marker: u64) -> bool {
        self.key == key && self.means[1] <= self.means[2].saturating_add(marker.max(RESOLUTION_NS) / 2)
    }

    /// The part of a call after which its work is visible, in thousandths.
    fn part(&self) -> u64 {
        let [products, squares] = [self.products, self.squares].map(|sum| sum.saturating_add(PRIOR_WEIGHT));
        let part = products.saturating_mul(WHOLE_CALL.cast_signed()) / squares;
        u64::try_from(part).unwrap_or(0).clamp(LEAST_PART, WHOLE_CALL)
    }

    /// Learns from an undisturbed sample of one launch. `marker`: as for [`Self::is_unseen`].
    pub fn learn(&mut self, sample: IdleSample, marker: u64) {
        if !sample.is_telling() {
            return;
        }
        let seen = [sample.calls[1], sample.elapsed, sample.apart];
        if self.key != sample.key {
            (self.key, self.fast, self.means) = (sample.key, seen[0], seen);
            return;
        }
        self.fast = seen[0].min(self.fast + seen[0].saturating_sub(self.fast) / FAST_RISE_DIVISOR);
        // A longer call was interrupted, or came after a pause. Its additional time may lie before or after the moment
        // at which its work became visible.
        if is_longer(seen[0], self.fast) {
            return;
        }
        let [call, elapsed] = [0, 1].map(|of| seen[of].cast_signed() - self.means[of].cast_signed());
        self.means = [0, 1, 2].map(|of| next_average(self.means[of], seen[of]));
        // Work of other streams was on the device too, or nothing can be seen.
        if is_longer(seen[1], self.means[1]) || self.is_unseen(sample.key, marker) {
            return;
        }
        self.products = self.products.saturating_add(call.saturating_mul(elapsed));
        self.squares = self.squares.saturating_add(call.saturating_mul(call));
    }
}

/// Most samples taken of a marker's device time. After this many attempts, one in this many is tried.
const GAPS: u32 = 64;

/// The device time that an end marker takes, which the time between two markers includes. Two markers that were
/// recorded one after the other behind unfinished work show it.
#[derive(Clone, Copy, Debug, Default)]
pub struct MarkerCost {
    /// The shortest time between two such markers, in ns.
    least: u64,
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

    /// Learns from the time between two markers. Times above the shortest by more than the resolution contain a
    /// pause of the device, and are ignored.
    pub fn learn(&mut self, gap: u64) {
        if self.count == 0 || gap + RESOLUTION_NS < self.least {
            (self.least, self.sum, self.count) = (gap, 0, 0);
        }
        if gap <= self.least + RESOLUTION_NS {
            self.least = self.least.min(gap);
            (self.sum, self.count) = (self.sum.saturating_add(gap), self.count.saturating_add(1));
        }
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

    /// Samples of a kernel of `kernel` ns in a driver where work is visible after `part` thousandths of a call, and
    /// whose markers take `marker` ns behind unfinished work. Each call differs by up to a seventh; one in eight was
    /// interrupted for a microsecond, before its work was visible or after.
    fn learned(part: u64, kernel: u64, marker: u64) -> LeadEstimate {
        let mut estimate = LeadEstimate::default();
        for at in 0..2_000 {
            let below = |most: u64, salt: u64| crate::mix::spread_key(at ^ salt << 32) % most;
            let calls = [600 + below(200, 1), 1_900 + below(600, 2)];
            let lead = (calls[0] * (1000 - part) + calls[1] * part) / 1000;
            let interrupted = if at % 8 == 0 { 1_000 } else { 0 };
            // Until the device sees the end marker, by a call of 700 ns, after the rest of the launch's call.
            let seen = calls[1] * (1000 - part) / 1000 + 700 * part / 1000;
            let rest = if kernel > seen { kernel + marker } else { seen };
            let elapsed = lead + rest + interrupted * (at / 8 % 2) + below(400, 3);
            let calls = [calls[0], calls[1] + interrupted];
            estimate.learn(IdleSample { key: 1, elapsed, calls, apart: calls[1] + 700 }, marker);
        }
        estimate
    }

    #[test]
    fn the_lead_is_first_the_whole_launch_and_then_what_the_calls_own_variation_shows() {
        let calls = [700, 2_200];
        assert_eq!(LeadEstimate::default().lead_of(1, calls, 500), 2_200);
        for part in [500, 750, 1000] {
            let estimate = learned(part, 5_000, 500);
            let lead = estimate.lead_of(1, calls, 500);
            assert!(lead.abs_diff(700 + 1_500 * part / 1000) <= 150, "{part}: {lead} {estimate:?}");
            assert!(!estimate.is_unseen(1, 500), "{estimate:?}");
        }
    }

    #[test]
    fn a_few_misleading_samples_hardly_move_the_lead() {
        let mut estimate = LeadEstimate::default();
        for at in 0..6 {
            let calls = [700, 2_200 + 100 * (at % 2)];
            estimate.learn(IdleSample { key: 1, elapsed: 7_300 - 200 * (at % 2), calls, apart: 3_000 }, 500);
        }
        let lead = estimate.lead_of(1, [700, 2_200], 500);
        assert!((1_900..2_200).contains(&lead), "{lead} {estimate:?}");
    }

    #[test]
    fn a_kernel_that_is_over_before_its_end_marker_is_seen_shows_no_lead() {
        let estimate = learned(500, 1_000, 500);
        assert!(estimate.is_unseen(1, 500) && !estimate.is_unseen(2, 500), "{estimate:?}");
        assert_eq!(estimate.lead_of(1, [700, 2_200], 500), 700 + 1_500 * 3 / 4);
    }

    #[test]
    fn until_the_time_of_a_marker_is_known_the_resolution_stands_for_it() {
        let is_unseen = |elapsed, marker| {
            let mut estimate = LeadEstimate::default();
            estimate.learn(IdleSample { key: 1, elapsed, calls: [700, 2_200], apart: 2_900 }, marker);
            estimate.is_unseen(1, marker)
        };
        assert!(is_unseen(3_150, 0) && !is_unseen(3_151, 0), "half of 500 ns beyond the calls");
        assert!(is_unseen(3_300, 800) && !is_unseen(3_301, 800), "half of a marker's time");
    }

    #[test]
    fn nothing_is_learned_from_long_kernels_other_functions_or_interrupted_calls() {
        let sample = |key, launch, elapsed| IdleSample { key, elapsed, calls: [700, launch], apart: launch + 700 };
        for pairs in [
            [sample(1, 2_200, 100_000), sample(1, 2_400, 100_000)],
            [sample(1, 2_200, 7_000), sample(2, 2_400, 7_000)],
            [sample(1, 2_200, 7_000), sample(1, 9_000, 7_000)],
            [sample(1, 2_200, 7_000), sample(1, 2_400, 60_000)],
        ] {
            let mut estimate = LeadEstimate::default();
            (0..1_000).for_each(|at| estimate.learn(pairs[at % 2], 500));
            assert_eq!(estimate.lead_of(3, [700, 2_200], 500), 2_200, "{pairs:?} {estimate:?}");
        }
    }

    #[test]
    fn a_marker_costs_nothing_until_it_was_measured_several_times() {
        let mut cost = MarkerCost::default();
        (1..MEASUREMENTS_OF_MEAN).for_each(|_| cost.learn(500));
        assert_eq!(cost.as_ns(), 0);
        // Each third one contains a pause, and so does the first.
        (0..3 * GAPS).for_each(|at| cost.learn([9_000, 250, 750][at as usize % 3]));
        assert!(cost.as_ns().abs_diff(500) < 10, "{cost:?}");
        let mut late = MarkerCost::default();
        [9_000, 500, 500, 500, 500, 500, 500, 500, 500].into_iter().for_each(|gap| late.learn(gap));
        assert_eq!(late.as_ns(), 500, "{late:?}");
        assert!(!cost.wants_sample(), "it is known");
        let mut vain = MarkerCost::default();
        assert_eq!((0..10 * GAPS).filter(|_| vain.wants_sample()).count(), 73);
    }
}
