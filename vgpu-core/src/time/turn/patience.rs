//! How long a holder asks the others to wait for the work it has queued.
//!
//! While the others wait, the work is measured alone and charged exactly. But the work may be waiting for those
//! others. Two kernels that wait for each other on two devices never end within their turns, and each wait raises the
//! estimate for the next one. So each failed wait halves the next request. After a failed wait for a first launch the
//! request shrinks to the minimum at once. Now and then the holder asks in full for a launch of known length, to see
//! whether it ends.

use super::{HEARTBEAT_NS, MAX_EXPECTED_NS};

/// Slack beyond one and a half times the estimate.
const EXTRA_WAIT_NS: u64 = 100_000_000;
/// Slack, in place of `EXTRA_WAIT_NS`, for work that was never measured: unless a first launch is measured alone, it
/// is not charged correctly.
const FIRST_LAUNCH_WAIT_NS: u64 = 1_500_000_000;
/// The request is halved at most this many times; at once after a failed wait for a first launch.
const MAX_HALVINGS: u32 = 5;
/// After this long the holder asks in full again.
const FULL_WAIT_RETRY_NS: u64 = 2_000_000_000;
/// One failed wait is forgotten after each such time without another.
const HALVING_FADE_NS: u64 = 10_000_000_000;

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

/// A process's memory of past waits for its work. One for each device.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrainDeadline {
    /// Number of times that the request for waiting is halved.
    vain: u32,
    /// When `vain` last changed.
    at: u64,
    /// Identifies the work that the others wait for: since when it is queued.
    began: u64,
    /// The holder asks for the full time.
    in_full: bool,
    /// The work has run longer than the halved request would allow, and its wait has not failed.
    outlasts: bool,
    /// The wait for this work has failed.
    is_vain: bool,
}

impl DrainDeadline {
    /// Returns until when the others should wait for the queued work; `now` if there is none. The caller announces it
    /// again at each look: overdue work is granted [`HEARTBEAT_NS`] at a time, within which the holder looks again.
    ///
    /// # Cost
    /// A few dozen instructions, without memory but its own. Not on the path of a launch that keeps its turn.
    pub fn drain_until(&mut self, pending: PendingWork, now: u64) -> u64 {
        let PendingWork { began, estimate, is_unknown } = pending;
        if began != self.began || estimate == 0 {
            self.begin_pending(pending, now);
        }
        if estimate == 0 {
            return now;
        }
        let last = began.saturating_add(self.wait_ns(pending));
        if now > last {
            self.was_in_vain(is_unknown, now);
        }
        self.outlasts |= !self.is_vain && now > began.saturating_add(in_full(pending) >> self.vain);
        let remaining = estimate.saturating_sub(now.saturating_sub(began));
        now.saturating_add(remaining.saturating_add(remaining / 2).max(HEARTBEAT_NS)).min(last)
    }

    /// Notes that the turn was preempted with work queued: its announced end was not renewed in time, or was renewed
    /// for longer than any member waits.
    pub fn note_preempted(&mut self, pending: PendingWork, now: u64) {
        self.drain_until(pending, now);
        if now.saturating_sub(pending.began) > self.wait_ns(pending) / 2 {
            self.was_in_vain(pending.is_unknown, now);
        }
        // The work now ends in another member's turn, so its end proves nothing.
        (self.is_vain, self.outlasts) = (true, false);
    }

    /// How long the others are asked to wait for `pending`, in nanoseconds from its beginning.
    const fn wait_ns(&self, pending: PendingWork) -> u64 {
        in_full(pending) >> if self.in_full { 0 } else { self.vain }
    }

    fn begin_pending(&mut self, pending: PendingWork, now: u64) {
        if self.outlasts {
            self.vain = 0;
        }
        let fades = (now.saturating_sub(self.at) / HALVING_FADE_NS).min(u64::from(self.vain));
        if fades > 0 {
            (self.vain, self.at) = (self.vain - fades as u32, now);
        }
        let in_full = !pending.is_unknown && now.saturating_sub(self.at) >= FULL_WAIT_RETRY_NS;
        (self.began, self.in_full, self.outlasts, self.is_vain) = (pending.began, in_full, false, false);
    }

    fn was_in_vain(&mut self, is_unknown: bool, now: u64) {
        if !core::mem::replace(&mut self.is_vain, true) {
            self.vain = if is_unknown { MAX_HALVINGS } else { (self.vain + 1).min(MAX_HALVINGS) };
            (self.at, self.outlasts) = (now, false);
        }
    }
}

/// How long `pending` may take before it counts as late, in nanoseconds from its beginning.
const fn in_full(pending: PendingWork) -> u64 {
    let PendingWork { estimate, is_unknown, .. } = pending;
    let slack = if is_unknown { FIRST_LAUNCH_WAIT_NS } else { EXTRA_WAIT_NS };
    let all = estimate.saturating_add(estimate / 2).saturating_add(slack);
    if all < MAX_EXPECTED_NS { all } else { MAX_EXPECTED_NS }
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
    fn what_is_in_vain_again_and_again_is_waited_for_less_and_less() {
        let mut patience = DrainDeadline::default();
        let (mut now, mut estimate, mut waited) = (1_000 * MS, MS, Vec::new());
        for _ in 0..100 {
            let ms = waits(&mut patience, pending(now, estimate));
            (now, estimate) = (now + (ms + 1) * MS, ms * MS);
            waited.push(ms);
        }
        assert!(waited.iter().sum::<u64>() < 100 * 150, "{waited:?}");
        assert!(waits(&mut patience, first(now)) <= 70);
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
        assert!(waited[0] >= 101 && waited[5..].iter().all(|ms| *ms <= 10), "{waited:?}");
    }

    /// No member waits longer than [`LONGEST`], whatever the holder announces.
    #[test]
    fn what_is_asked_for_in_full_and_taken_away_before_was_in_vain() {
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
            // A launch soon after the failed wait asks for half of the time.
            assert!(waits(&mut patience, pending(end + MS, 1_400 * MS)) <= 1_005, "{waited:?}");
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
        assert!(waits(&mut patience, pending(18_000 * MS, 1_000 * MS)) <= 70, "nothing is asked for in full yet");
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
    fn what_was_in_vain_is_forgotten_in_time() {
        let mut patience = DrainDeadline::default();
        for i in 0..9 {
            waits(&mut patience, first(1 + i * 2_000 * MS));
        }
        let later = 18_000 * MS + 6 * HALVING_FADE_NS;
        assert!(waits(&mut patience, first(later)) >= 1_500);
    }
}
