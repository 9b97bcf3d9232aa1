//! Time in which at least one stream was busy: overlapping intervals of several streams count once.
//!
//! Intervals arrive in the order of their completion, not of their time, so the last few stretches are kept. No
//! allocation. Not here: where the times come from (one base event per context, renewed every few seconds, because
//! the driver reports differences as a float of milliseconds).

/// Number of stretches of time that are kept.
const MAX_STRETCHES: usize = 16;

/// The stretches of time that were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeUnion {
    /// The stretches, in ascending order, disjoint.
    kept: [(u64, u64); MAX_STRETCHES],
    len: usize,
    /// All time before this is counted or given up.
    closed: u64,
}

impl TimeUnion {
    /// Adds an interval and returns the part that was not counted yet.
    ///
    /// # Cost
    /// At most sixteen steps.
    pub fn add(&mut self, begin: u64, end: u64) -> u64 {
        let begin = begin.max(self.closed);
        if end <= begin {
            return 0;
        }
        let mut fresh = end - begin;
        let (mut from, mut to) = (begin, end);
        let mut kept = [(0, 0); MAX_STRETCHES];
        let mut len = 0;
        for &(b, e) in &self.kept[..self.len] {
            fresh -= e.min(end).saturating_sub(b.max(begin)).min(fresh);
            if e < begin || b > end {
                kept[len] = (b, e);
                len += 1;
            } else {
                (from, to) = (from.min(b), to.max(e));
            }
        }
        if len == MAX_STRETCHES {
            // Give up the oldest gap.
            self.closed = kept[0].1;
            kept.copy_within(1.., 0);
            len -= 1;
        }
        if from < self.closed {
            from = self.closed.min(to);
        }
        let at = kept[..len].partition_point(|&(b, _)| b < from);
        kept.copy_within(at..len, at + 1);
        kept[at] = (from, to);
        (self.kept, self.len) = (kept, len + 1);
        fresh
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_two_streams_did_at_once_counts_once() {
        let mut union = TimeUnion::default();
        assert_eq!(union.add(0, 10), 10);
        assert_eq!(union.add(5, 15), 5);
        assert_eq!(union.add(2, 3), 0);
        assert_eq!(union.add(30, 40), 10);
        assert_eq!(union.add(20, 35), 10, "seen late, in a gap");
        assert_eq!(union.add(0, 50), 15);
        assert_eq!(union.add(7, 7), 0);
        assert_eq!(union.add(9, 8), 0);
    }

    proptest! {
        /// Compares with a line of cells, for intervals that arrive slightly out of order.
        #[test]
        fn it_counts_each_moment_once(steps in prop::collection::vec((0u64..20, 1u64..30), 1..200)) {
            let mut union = TimeUnion::default();
            let mut cells = vec![false; 8_000];
            let (mut base, mut sum) = (0u64, 0u64);
            for (back, length) in steps {
                let begin = base.saturating_sub(back);
                sum += union.add(begin, begin + length);
                cells[usize::try_from(begin).unwrap()..][..usize::try_from(length).unwrap()].fill(true);
                base += 15;
            }
            prop_assert_eq!(sum, cells.iter().filter(|&&busy| busy).count() as u64);
        }
    }
}
