//! The most that was measured lately: how long a launch may take again, and how much longer than its estimate.

/// Each measurement brings the remembered most one part in this many nearer to it.
const FORGET_DIVISOR: u64 = 32;

/// The largest of the recent measurements. A larger one counts at once, smaller ones make it fade slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentMost(u64);

impl RecentMost {
    /// Learns from one measurement.
    pub const fn note(&mut self, measured: u64) {
        let fades = self.0.saturating_sub(measured).div_ceil(FORGET_DIVISOR);
        self.0 = if measured > self.0 { measured } else { self.0 - fades };
    }

    /// The most, as far as it is still remembered; 0: nothing was measured.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_counts_at_once_and_fades_to_what_is_measured_now() {
        let mut most = RecentMost::default();
        most.note(3_200);
        assert_eq!(most.get(), 3_200);
        most.note(0);
        assert_eq!(most.get(), 3_100, "one part in 32");
        (0..500).for_each(|_| most.note(1_000));
        assert_eq!(most.get(), 1_000, "and not below that");
        (0..500).for_each(|_| most.note(0));
        assert_eq!(most.get(), 0, "it is forgotten wholly");
    }
}
