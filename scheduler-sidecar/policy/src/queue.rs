//! How long tenants that wait for a device will wait: the holder's rest, and the leases of those before.

/// A tenant in the queue of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePlace {
    /// Length of the tenant's lease, in ns.
    pub lease_ns: u64,
    /// Time from now before which it gets none, in ns; `None`: not known.
    pub earliest_ns: Option<u64>,
}

/// Returns the time until each place's next lease, in ns, the first of the queue first; `None`: not known.
///
/// Each tenant before a place is expected to use one whole lease, and the holder the rest of its lease. Tenants that
/// use less make it shorter. A tenant that is behind its floor, or of a higher class, may take several leases and make
/// it longer.
#[must_use]
pub fn expected_waits(holder_left_ns: u64, queue: &[QueuePlace]) -> Vec<Option<u64>> {
    let mut free = holder_left_ns;
    let expect = |place: &QueuePlace| {
        let begins = free.max(place.earliest_ns?);
        free = begins.saturating_add(place.lease_ns);
        Some(begins)
    };
    queue.iter().map(expect).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_waits_for_the_holder_and_for_one_lease_of_each_before_it() {
        let place = |lease_ns, earliest_ns| QueuePlace { lease_ns, earliest_ns };
        for (case, left, queue, expected) in [
            ("nobody waits", 5, vec![], vec![]),
            ("the first waits for the holder", 5, vec![place(4, Some(0))], vec![Some(5)]),
            (
                "each lease counts",
                1,
                vec![place(4, Some(0)), place(2, Some(0)), place(4, Some(0))],
                vec![Some(1), Some(5), Some(7)],
            ),
            (
                "a ceiling refills later",
                1,
                vec![place(4, Some(0)), place(4, Some(90)), place(4, Some(91))],
                vec![Some(1), Some(90), Some(94)],
            ),
            ("a paused one holds up nobody", 1, vec![place(4, None), place(4, Some(0))], vec![None, Some(1)]),
            (
                "nothing overflows",
                u64::MAX,
                vec![place(4, Some(0)), place(4, Some(0))],
                vec![Some(u64::MAX), Some(u64::MAX)],
            ),
        ] {
            assert_eq!(expected_waits(left, &queue), expected, "{case}");
        }
    }
}
