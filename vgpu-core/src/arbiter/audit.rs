//! Whether what members say is true, as far as others can tell.
//!
//! [`Audit`]: what was charged against what NVML saw. Only an audit: NVML's samples come late and vanish when a process is
//! idle, so they decide nothing. [`Doubt`]: whether work that is claimed to share the device is felt by those who have it.

/// So far apart ...
pub const POINTS_PERMILLE: u64 = 100;
/// ... for so many looks in a row is work that is not accounted for.
pub const STRIKES: u32 = 3;

/// One process on one device, looked at every second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    charged: u64,
    strikes: u32,
}

impl Audit {
    /// One look: `charged` is the device time charged since the beginning, `seen` what NVML reports in thousandths
    /// (`None`: no sample, which is no opinion), `span` the time since the last look. True: unaccounted work.
    pub fn look(&mut self, charged: u64, seen: Option<u64>, span: u64) -> bool {
        let delta = charged.saturating_sub(self.charged);
        self.charged = charged;
        let (Some(seen), 1..) = (seen, span) else { return self.strikes >= STRIKES };
        let said = u64::try_from(u128::from(delta) * 1000 / u128::from(span)).unwrap_or(u64::MAX);
        // Charged more than seen is not hidden work: NVML rounds short kernels away.
        self.strikes = if seen > said.saturating_add(POINTS_PERMILLE) { self.strikes.saturating_add(1) } else { 0 };
        self.strikes >= STRIKES
    }
}

/// Device time of known cost, measured beside claims, that makes one finding about them.
const FINDING_NS: u64 = 25_000_000;
/// So many findings against claims end the belief in them.
const FINDINGS: u32 = 2;
/// And so does this time in which nothing spoke for them.
const PATIENCE_NS: u64 = 2_000_000_000;

/// Belief in members that say that their work, which was not over when its time was, shares the device with whoever has it.
///
/// If it does, whoever has the device measures for launches of known cost far more than that; if those take what they took
/// when they were alone, nothing shares it, whatever is said. Whoever has no launches of known cost says nothing about it:
/// claims are then believed for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    busy: u64,
    finished: u64,
    against: u32,
    backed: u64,
}

impl Doubt {
    /// Another claim.
    pub fn claimed(&mut self, now: u64) {
        *self = Self { backed: now, ..Self::default() };
    }

    /// Of the claimed work `paid` was paid for: that buys belief for as long as work takes that shares the device with so many,
    /// and a quarter more, as slices differ; not anew from `now` on, or a nanosecond a second would keep it.
    pub fn progress(&mut self, paid: u64, sharing: u64, now: u64) {
        let worth = paid.saturating_mul(sharing);
        self.backed = self.backed.saturating_add(worth.saturating_add(worth / 4)).min(now);
    }

    /// Who has the device measured `busy` for launches that are known to take `finished`.
    pub fn felt(&mut self, busy: u64, finished: u64, now: u64) {
        if finished == 0 {
            return;
        }
        self.busy = self.busy.saturating_add(busy);
        self.finished = self.finished.saturating_add(finished);
        if self.finished < FINDING_NS {
            return;
        }
        if self.busy <= self.finished.saturating_add(self.finished / 4) {
            self.against = self.against.saturating_add(1);
        } else {
            (self.against, self.backed) = (0, now);
        }
        (self.busy, self.finished) = (0, 0);
    }

    /// Whether the claims are not believed any more.
    #[must_use]
    pub const fn holds(&self, now: u64) -> bool {
        self.against >= FINDINGS || now.saturating_sub(self.backed) > PATIENCE_NS
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn three_seconds_ten_points_apart_are_unaccounted_work() {
        let mut audit = Audit::default();
        assert!(!audit.look(300_000_000, Some(401), SECOND));
        assert!(!audit.look(600_000_000, Some(401), SECOND));
        assert!(audit.look(900_000_000, Some(401), SECOND));
        assert!(!audit.look(1_200_000_000, Some(400), SECOND), "ten points are allowed");
    }

    #[test]
    fn claims_are_believed_for_as_long_as_what_is_measured_of_them_pays_for_and_not_for_a_nanosecond_a_second() {
        for (part, believed) in [(2, true), (4, false), (1_000_000, false)] {
            let mut doubt = Doubt::default();
            doubt.claimed(SECOND);
            for tenth in 11..100u64 {
                doubt.progress(SECOND / 10 / part, 2, tenth * SECOND / 10);
            }
            assert_eq!(!doubt.holds(10 * SECOND), believed, "a {part}th of the time");
        }
        let mut doubt = Doubt::default();
        doubt.claimed(SECOND);
        doubt.progress(u64::MAX, 2, 2 * SECOND);
        assert!(!doubt.holds(4 * SECOND) && doubt.holds(4 * SECOND + 1), "nobody buys what is to come");
    }

    #[test]
    fn one_good_second_or_a_missing_sample_accuses_nobody() {
        let mut audit = Audit::default();
        for second in 1..20u64 {
            let seen = if second % 3 == 0 { Some(0) } else { Some(1000) };
            assert!(!audit.look(0, seen, SECOND), "second {second}");
        }
        let mut audit = Audit::default();
        for _ in 0..20 {
            assert!(!audit.look(0, None, SECOND));
        }
    }
}
