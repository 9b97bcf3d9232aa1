//! Promises and their delivery: device time of tenants while they wanted it, and the times around their leases.
//!
//! The daemon counts them ([`ServiceSums`]), status and metrics show the sums, and the record stores the increments
//! minute by minute.

use serde::{Deserialize, Serialize};

/// Upper bounds of the buckets of a [`TimeHistogram`], in ns: powers of 4 from 62.5 us to 16.4 s.
pub const BUCKET_BOUNDS_NS: [u64; BUCKET_COUNT - 1] = {
    let mut bounds = [FIRST_BOUND_NS; BUCKET_COUNT - 1];
    let mut at = 1;
    while at < bounds.len() {
        bounds[at] = bounds[at - 1] * 4;
        at += 1;
    }
    bounds
};

/// Number of buckets of a [`TimeHistogram`]. The last one has no upper bound.
pub const BUCKET_COUNT: usize = 11;

const FIRST_BOUND_NS: u64 = 62_500;

/// A minute keeps its promise if at least this part of the promised device time was delivered, in thousandths. The
/// rest is left to the device's changes of hands.
pub const KEPT_PERMILLE: u64 = 950;

/// Times, counted by their length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeHistogram {
    /// Number of times in each bucket: at most [`BUCKET_BOUNDS_NS`] of it, and more than that of the bucket before.
    pub counts: [u64; BUCKET_COUNT],
    /// All times together, in ns.
    pub sum_ns: u64,
}

impl TimeHistogram {
    /// Counts one time.
    ///
    /// # Cost
    /// A division by a constant, a count of leading zeros and two additions.
    pub fn note(&mut self, ns: u64) {
        self.counts[bucket_of(ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Adds the times of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Returns the times that were counted after `before`, an earlier state of this histogram.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let counts = std::array::from_fn(|at| self.counts[at].saturating_sub(before.counts[at]));
        Self { counts, sum_ns: self.sum_ns.saturating_sub(before.sum_ns) }
    }

    /// Returns the number of times.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the bucket that holds the time at this part of all, in thousandths; `None` without times.
    #[must_use]
    pub fn bucket_at(&self, permille: u64) -> Option<usize> {
        let total = u128::from(self.total());
        let rank = (total * u128::from(permille)).div_ceil(1000).max(1);
        let mut below = 0;
        self.counts.iter().position(|count| {
            below += u128::from(*count);
            below >= rank
        })
    }
}

fn bucket_of(ns: u64) -> usize {
    match ns.saturating_sub(1) / FIRST_BOUND_NS {
        0 => 0,
        more => (more.ilog2() as usize / 2 + 1).min(BUCKET_COUNT - 1),
    }
}

/// Promise and delivery of a tenant on a device, since the daemon started or the tenant was added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSums {
    /// Time in which the tenant wanted the device: it waited without the device, or used it. In ns.
    pub wanted_ns: u64,
    /// Device time that it was promised in the wanted time, in ns.
    pub promised_ns: u64,
    /// Device time that it got, in ns.
    pub delivered_ns: u64,
    /// Minutes that are over in which something was promised.
    pub minutes: u64,
    /// Those of them that kept the promise: [`is_kept`].
    pub minutes_kept: u64,
    /// Times from a member's request at the gate to its lease.
    pub waits: TimeHistogram,
    /// Times from the end of a lease of the tenant to its next lease.
    pub gaps: TimeHistogram,
}

impl ServiceSums {
    /// Returns what was added after `before`, an earlier state of these sums.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            wanted_ns: self.wanted_ns.saturating_sub(before.wanted_ns),
            promised_ns: self.promised_ns.saturating_sub(before.promised_ns),
            delivered_ns: self.delivered_ns.saturating_sub(before.delivered_ns),
            minutes: self.minutes.saturating_sub(before.minutes),
            minutes_kept: self.minutes_kept.saturating_sub(before.minutes_kept),
            waits: self.waits.since(&before.waits),
            gaps: self.gaps.since(&before.gaps),
        }
    }

    /// Adds other sums.
    pub fn add(&mut self, more: &Self) {
        let pairs = [
            (&mut self.wanted_ns, more.wanted_ns),
            (&mut self.promised_ns, more.promised_ns),
            (&mut self.delivered_ns, more.delivered_ns),
            (&mut self.minutes, more.minutes),
            (&mut self.minutes_kept, more.minutes_kept),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(more);
        }
        self.waits.add(&more.waits);
        self.gaps.add(&more.gaps);
    }
}

/// Returns true if a minute with these amounts of device time kept its promise.
#[must_use]
pub fn is_kept(delivered_ns: u64, promised_ns: u64) -> bool {
    u128::from(delivered_ns) * 1000 >= u128::from(promised_ns) * u128::from(KEPT_PERMILLE)
}

/// A tenant that waits for a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QueuedTenant {
    /// Name of the device; see [`super::DeviceStatus::name`].
    pub device: String,
    /// Position in the device's queue, from 1.
    pub position: usize,
    /// Name of the tenant.
    pub tenant: String,
    /// Number of its members that wait.
    pub members: usize,
    /// Seconds for which it has waited.
    pub waiting_seconds: f64,
    /// Seconds until its next lease by the leases before it; null: not known.
    pub expected_seconds: Option<f64>,
    /// Tenant that has the device; null: nobody.
    pub holder: Option<String>,
    /// Reason of the wait in one word: `waiting`, `capped`, `paused`, `overdue`.
    pub state: String,
}

/// A tenant that does not fit now, and for which `vgpu tenant add --wait` waits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QueuedAddition {
    /// Position, from 1: the longest waiting first.
    pub position: usize,
    /// Name of the tenant.
    pub tenant: String,
    /// Seconds since its first request.
    pub waiting_seconds: f64,
    /// Seconds until the next tenant with an end leaves; null: no tenant has an end.
    pub expected_seconds: Option<f64>,
    /// Why it does not fit.
    pub words: String,
}

/// The queues for device time and for room.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueAnswer {
    /// Tenants that wait for device time, by device and position.
    pub time: Vec<QueuedTenant>,
    /// Tenants that wait until they fit.
    pub additions: Vec<QueuedAddition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_the_first_bucket_that_is_not_below_it() {
        for (at, bound) in BUCKET_BOUNDS_NS.into_iter().enumerate() {
            assert_eq!((bucket_of(bound - 1), bucket_of(bound), bucket_of(bound + 1)), (at, at, at + 1), "{bound}");
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKET_COUNT - 1));
        assert_eq!((BUCKET_BOUNDS_NS[0], BUCKET_BOUNDS_NS[9]), (62_500, 16_384_000_000));
    }

    #[test]
    fn a_histogram_holds_each_time_once_and_knows_where_the_middle_is() {
        let mut times = TimeHistogram::default();
        assert_eq!(times.bucket_at(500), None);
        for ns in [1, 2, 3, 300_000, u64::MAX] {
            times.note(ns);
        }
        assert_eq!((times.total(), times.sum_ns), (5, u64::MAX));
        assert_eq!(
            [1, 500, 600, 601, 800, 801, 1000].map(|part| times.bucket_at(part).unwrap()),
            [0, 0, 0, 2, 2, 10, 10]
        );
        let before = times;
        times.note(70_000);
        let mut again = before;
        again.add(&times.since(&before));
        assert_eq!((times.since(&before).total(), again.counts), (1, times.counts));
    }
}
