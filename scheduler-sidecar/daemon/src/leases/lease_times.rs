//! How long a tenant's members waited for leases of a device, and how long the tenant was without one.

use vgpu_control::service::TimeHistogram;

/// Times around a tenant's leases of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Times from a member's request at the gate to its lease.
    pub waits: TimeHistogram,
    /// Times from the end of a lease of the tenant to its next lease.
    pub gaps: TimeHistogram,
    /// When the tenant's last lease ended; `None`: it has one, or had none yet.
    ended: Option<u64>,
}

impl LeaseTimes {
    /// Counts a lease. `asked`: when its member asked; `None`: it did not.
    ///
    /// # Cost
    /// Twice that of [`TimeHistogram::note`].
    pub fn note_grant(&mut self, asked: Option<u64>, now: u64) {
        if let Some(asked) = asked {
            self.waits.note(now.saturating_sub(asked));
        }
        if let Some(ended) = self.ended.take() {
            self.gaps.note(now.saturating_sub(ended));
        }
    }

    /// Notes the end of a lease.
    pub fn note_end(&mut self, now: u64) {
        self.ended = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lease_counts_one_wait_and_the_time_since_the_lease_before() {
        let mut times = LeaseTimes::default();
        times.note_grant(Some(10), 15);
        assert_eq!((times.waits.total(), times.waits.sum_ns, times.gaps.total()), (1, 5, 0), "there was none before");
        times.note_end(40);
        times.note_grant(Some(50), 70);
        assert_eq!((times.waits.sum_ns, times.gaps.total(), times.gaps.sum_ns), (25, 1, 30));
        times.note_grant(None, 80);
        assert_eq!((times.waits.total(), times.gaps.total()), (2, 1), "nobody asked, and no lease ended");
    }

    /// Prints the cost of a lease's counting too, for docs/slo.md.
    #[test]
    fn each_of_many_leases_is_counted_once() {
        const LEASES: u64 = 100_000;
        let mut all = std::collections::BTreeMap::from([(0_u16, LeaseTimes::default())]);
        let begin = std::time::Instant::now();
        for lease in 0..LEASES {
            let now = std::hint::black_box(lease * 5_000_000);
            let times = all.entry(0).or_default();
            times.note_grant(Some(now - now / 3), now);
            times.note_end(now + 4_000_000);
        }
        let took = begin.elapsed().as_nanos() / u128::from(LEASES);
        println!("{took} ns for each lease");
        let totals = std::hint::black_box(&all)[&0];
        assert_eq!((totals.waits.total(), totals.gaps.total()), (LEASES, LEASES - 1));
    }
}
