//! How much of a device's time each tenant wanted and got in the last seconds, from cumulative sums sampled once a
//! second.
//!
//! Pure: the reactor decides when to sample.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Time between two samples.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Samples that are kept. Rates are about the time since the oldest.
const LOOKS_KEPT: usize = 5;

/// Cumulative sums of a tenant on a device, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RecentSums {
    /// Device time charged to the tenant.
    pub charged: u64,
    /// Time that the tenant's members waited at the gate for permission to launch.
    pub wait: u64,
}

/// Percent of a device's time that a tenant wanted and got.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct RecentRates {
    /// Length of the span, in seconds.
    pub over: f64,
    /// Percent of the span in which it had the device or waited for it.
    pub wanted: f64,
    /// Percent of the span in which it had the device.
    pub got: f64,
}

/// The last samples, and the sums of each tenant on each device when they changed.
#[derive(Debug, Default)]
pub(super) struct RecentUse {
    /// Times of the samples, oldest first.
    looks: VecDeque<Instant>,
    /// Changes by tenant and device, including the last one before the oldest sample.
    sums: HashMap<(String, String), VecDeque<(Instant, RecentSums)>>,
}

impl RecentUse {
    /// True if the next sample is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.looks.back().is_none_or(|last| now.saturating_duration_since(*last) >= LOOK_INTERVAL)
    }

    /// Takes a sample: these sums changed, all others did not.
    ///
    /// # Cost
    /// A search for each changed sum.
    pub fn take_look(&mut self, now: Instant, changed: impl IntoIterator<Item = ((String, String), RecentSums)>) {
        if self.looks.len() == LOOKS_KEPT {
            self.looks.pop_front();
        }
        self.looks.push_back(now);
        let oldest = self.looks.front().copied().unwrap_or(now);
        for (key, sums) in changed {
            let history = self.sums.entry(key).or_default();
            history.push_back((now, sums));
            while history.get(1).is_some_and(|(at, _)| *at <= oldest) {
                history.pop_front();
            }
        }
    }

    /// True if a tenant used or wanted a device since its last sample.
    pub fn has_grown(&self, key: &(String, String), sums: RecentSums) -> bool {
        let last = self.sums.get(key).and_then(VecDeque::back).map(|(_, last)| *last).unwrap_or_default();
        sums.charged > last.charged || sums.wait > last.wait
    }

    /// Removes the sums of a tenant that is no longer served.
    pub fn forget_tenant(&mut self, tenant: &str) {
        self.sums.retain(|(name, _), _| name != tenant);
    }

    /// Percent of a device's time that a tenant wanted and got until now. A tenant that joined during the span starts
    /// from 0.
    pub fn current_rates(&self, tenant: &str, device: &str, sums: RecentSums, now: Instant) -> RecentRates {
        // A sample just taken spans too little time.
        let old_enough = |at: &Instant| now.saturating_duration_since(*at) >= LOOK_INTERVAL / 10;
        let Some(at) = self.looks.iter().find(|at| old_enough(at)) else { return RecentRates::default() };
        let history = self.sums.get(&(tenant.to_owned(), device.to_owned()));
        let then = history.and_then(|history| history.iter().rev().find(|(changed, _)| changed <= at));
        let before = then.map(|(_, sums)| *sums).unwrap_or_default();
        let over = now.saturating_duration_since(*at).as_secs_f64();
        let part = |ns: u64| Duration::from_nanos(ns).as_secs_f64() / over * 100.0;
        let got = part(sums.charged.saturating_sub(before.charged));
        // Several members may wait at the gate at the same time; a tenant cannot want more than the whole device.
        let wanted = (got + part(sums.wait.saturating_sub(before.wait))).min(got.max(100.0));
        let tenths = |percent: f64| (percent * 10.0).round() / 10.0;
        RecentRates { over: tenths(over), wanted: tenths(wanted), got: tenths(got) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sums: RecentSums) -> [((String, String), RecentSums); 1] {
        [(("a".into(), "0".into()), sums)]
    }

    #[test]
    fn rates_are_about_the_last_seconds_and_not_about_all_time() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut recent = RecentUse::default();
        assert!(recent.is_due(start));
        assert_eq!(
            recent.current_rates("a", "0", RecentSums::default(), start),
            RecentRates::default(),
            "nothing is known yet"
        );
        // The tenant has the device for an hour, then for 30 % of 10 s, and waits at the gate for 20 % of them.
        let sums = |t: u64| RecentSums { charged: 3_600_000_000_000 + t * 300_000_000, wait: t * 200_000_000 };
        for t in 0..10_u64 {
            let now = start + second * u32::try_from(t).unwrap();
            recent.take_look(now, at(sums(t)));
            assert!(!recent.is_due(now) && recent.is_due(now + second));
        }
        let rates = recent.current_rates("a", "0", sums(10), start + second * 10);
        assert_eq!(rates, RecentRates { over: 5.0, wanted: 50.0, got: 30.0 });
        assert_eq!(
            recent.current_rates("b", "0", RecentSums { charged: 1_000_000_000, wait: 0 }, start + second * 10).got,
            20.0
        );
    }

    #[test]
    fn what_did_not_change_is_as_it_was_and_who_is_forgotten_is_gone() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut recent = RecentUse::default();
        let sums = RecentSums { charged: 3_600_000_000_000, wait: 0 };
        recent.take_look(start, at(sums));
        for t in 1..20 {
            recent.take_look(start + second * t, []);
        }
        assert_eq!(recent.current_rates("a", "0", sums, start + second * 20).got, 0.0);
        recent.take_look(start + second * 20, at(RecentSums { charged: sums.charged + 500_000_000, wait: 0 }));
        let rates = recent.current_rates(
            "a",
            "0",
            RecentSums { charged: sums.charged + 500_000_000, wait: 0 },
            start + second * 20,
        );
        assert_eq!(rates, RecentRates { over: 4.0, wanted: 12.5, got: 12.5 });
        recent.forget_tenant("a");
        assert!(recent.sums.is_empty());
    }

    #[test]
    fn members_that_wait_together_want_no_more_than_the_device() {
        let start = Instant::now();
        let mut recent = RecentUse::default();
        recent.take_look(start, at(RecentSums::default()));
        let sums = RecentSums { charged: 500_000_000, wait: 9_000_000_000 };
        let rates = recent.current_rates("a", "0", sums, start + Duration::from_secs(1));
        assert_eq!((rates.wanted, rates.got), (100.0, 50.0));
    }
}
