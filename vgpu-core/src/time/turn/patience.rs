//! How long a holder asks the others to wait for the work it has queued.
//!
//! While the others wait, the work is measured alone and charged exactly. But the work may be waiting for those
//! others. Two kernels that wait for each other on two devices never end within their turns, and each wait raises the
//! estimate for the next one. So after a failed wait the holder asks for no more than [`BASE`]`.drain` beyond that
//! for some time ([`BASE`]`.stuck`). Then it asks in full again, to see whether the work ends.

use crate::time::config::{BASE, KNOWN_WAIT_NS, deadline};

/// Slack for work that was never measured: unless a first launch is measured alone, it is not charged correctly. With
/// 100 ms first kernels of 200 ms and 1 s gave 12.7 of 10 % and 76.5 of 80 %.
const FIRST_LAUNCH_WAIT_NS: u64 = BASE.stuck - BASE.stuck / 4;

/// Queued work that was not yet seen complete.
#[derive(Clone, Copy, Debug)]
pub struct PendingWork {
    /// Since when the work is pending: the last completion, or the launch.
    pub began: u64,
    /// Estimated device time of the work, in nanoseconds; 0: there is none.
    pub estimate: u64,
    /// True if some of it was never measured.
    pub is_unknown: bool,
}

/// A process's memory of its last failed wait. One for each device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrainDeadline {
    /// Work queued before this time is asked for modestly, because a wait failed.
    modest_until: u64,
}

impl DrainDeadline {
    /// Returns until when the others should wait for the queued work; `now` if there is none. The caller announces it
    /// again at each look: overdue work is granted [`BASE`]`.heartbeat` at a time, within which the holder looks again.
    ///
    /// # Cost
    /// A few dozen instructions, without memory but its own. Not on the path of a launch that keeps its turn.
    pub fn drain_until(&mut self, pending: PendingWork, now: u64) -> u64 {
        if pending.estimate == 0 {
            return now;
        }
        let last = self.last_moment(pending);
        if now > last {
            self.note_failed(pending, now);
        }
        let remaining = pending.estimate.saturating_sub(now.saturating_sub(pending.began));
        deadline(now, remaining, 0).max(now.saturating_add(BASE.heartbeat)).min(last)
    }

    /// Notes that the turn was preempted with work queued: its announced end was not renewed in time, or was renewed
    /// for longer than any member waits.
    pub fn note_preempted(&mut self, pending: PendingWork, now: u64) {
        // Before half of the time the holder was only paused.
        if now.saturating_sub(pending.began) > self.last_moment(pending).saturating_sub(pending.began) / 2 {
            self.note_failed(pending, now);
        }
    }

    /// Until when the others are asked to wait for `pending` in all.
    const fn last_moment(&self, pending: PendingWork) -> u64 {
        let PendingWork { began, estimate, is_unknown } = pending;
        let last = if began < self.modest_until {
            deadline(began, if estimate < BASE.drain { estimate } else { BASE.drain }, BASE.drain)
        } else {
            deadline(began, estimate, if is_unknown { FIRST_LAUNCH_WAIT_NS } else { KNOWN_WAIT_NS })
        };
        let most = began.saturating_add(BASE.stuck);
        if last < most { last } else { most }
    }

    /// The wait for `pending` failed. Work that was asked for modestly proves nothing.
    const fn note_failed(&mut self, pending: PendingWork, now: u64) {
        if pending.began >= self.modest_until {
            self.modest_until = now.saturating_add(BASE.stuck);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn pending(began: u64, estimate: u64) -> PendingWork {
        PendingWork { began, estimate, is_unknown: false }
    }

    fn first(began: u64) -> PendingWork {
        PendingWork { is_unknown: true, ..pending(began, 20_000) }
    }

    /// How long the others wait for work that does not end, in ms, with a look every 5 ms.
    fn waits(patience: &mut DrainDeadline, pending: PendingWork) -> u64 {
        let mut now = pending.began;
        while patience.drain_until(pending, now) >= now {
            now += 5 * MS;
        }
        patience.note_preempted(pending, now);
        (now - pending.began) / MS
    }

    #[test]
    fn what_is_late_is_waited_for_by_its_estimate_and_what_was_never_measured_for_longer() {
        for (pending, least) in [(pending(7, MS), 101), (pending(7, 200 * MS), 400), (first(7), 1_500)] {
            let waited = waits(&mut DrainDeadline::default(), pending);
            assert!((least..=least + 5).contains(&waited), "{pending:?}: {waited} ms");
        }
    }

    /// Each wait for a kernel that waits for another one becomes its next estimate.
    #[test]
    fn what_is_in_vain_again_and_again_is_waited_for_in_full_now_and_then() {
        let mut patience = DrainDeadline::default();
        let (mut now, mut estimate, mut waited) = (1_000 * MS, MS, Vec::new());
        for _ in 0..100 {
            let ms = waits(&mut patience, pending(now, estimate));
            (now, estimate) = (now + (ms + 1) * MS, ms * MS);
            waited.push(ms);
        }
        assert!(waited.iter().filter(|ms| **ms > 30).count() <= 2, "{waited:?}");
        assert!(waits(&mut patience, first(now)) <= 30);
    }

    /// Each such wait is charged on the device, and that debt is the next wait on another device.
    #[test]
    fn short_kernels_that_wait_for_each_other_are_soon_waited_for_a_few_milliseconds() {
        let mut patience = DrainDeadline::default();
        let (mut now, mut waited) = (1_000 * MS, Vec::new());
        for _ in 0..20 {
            let ms = waits(&mut patience, pending(now, MS));
            now += (ms + 1) * MS;
            waited.push(ms);
        }
        assert!(waited[0] >= 101 && waited[1..].iter().all(|ms| *ms <= 15), "{waited:?}");
    }

    /// The turn is taken away at the latest 10 ms before [`BASE`]`.stuck`, and before the announced end. The next work
    /// is then waited for 30 ms at most.
    #[test]
    fn a_wait_that_ends_by_preemption_counts_as_failed() {
        let mut patience = DrainDeadline::default();
        let mut waited = Vec::new();
        for i in 1..=20 {
            let work = pending(i * 10_000 * MS, 1_400 * MS);
            let due = (0..1_990)
                .step_by(5)
                .map(|ms| work.began + ms * MS)
                .find(|now| patience.drain_until(work, *now) < *now);
            let end = due.unwrap_or(work.began + 1_990 * MS);
            patience.note_preempted(work, end);
            waited.push((end - work.began) / MS);
            assert!(waits(&mut patience, pending(end + MS, 1_400 * MS)) <= 30, "{waited:?}");
        }
    }

    #[test]
    fn a_turn_that_is_lost_to_a_pause_was_not_in_vain() {
        let mut patience = DrainDeadline::default();
        for i in 1..=20 {
            let work = first(i * 10_000 * MS);
            assert!(patience.drain_until(work, work.began) > work.began);
            patience.note_preempted(work, work.began + 30 * MS);
        }
        assert!(waits(&mut patience, first(1)) >= 1_500);
    }

    #[test]
    fn a_long_launch_that_ends_in_its_turn_is_waited_for_in_full_again() {
        let mut patience = DrainDeadline::default();
        for i in 0..9 {
            waits(&mut patience, first(1 + i * 2_000 * MS));
        }
        assert!(waits(&mut patience, pending(17_600 * MS, 1_000 * MS)) <= 30, "nothing is asked for in full yet");
        let mut ends = |began: u64| {
            let kept = (0..1_000).step_by(5).all(|ms| {
                let now = began + ms * MS;
                patience.drain_until(pending(began, 1_000 * MS), now) >= now
            });
            patience.drain_until(pending(began + 1_000 * MS, 20_000), began + 1_000 * MS);
            kept
        };
        assert!(ends(21_000 * MS), "one is, after a while");
        assert!(ends(22_500 * MS) && ends(23_600 * MS), "and those after it, since it ended");
    }

    #[test]
    fn a_failed_wait_is_forgotten_in_time() {
        let mut patience = DrainDeadline::default();
        for i in 0..9 {
            waits(&mut patience, first(1 + i * 2_000 * MS));
        }
        let later = 17_600 * MS + BASE.stuck;
        assert!(waits(&mut patience, first(later)) >= 1_500);
    }
}
