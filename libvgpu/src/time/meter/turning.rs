//! The turn among the tenant's members in relation to the work in flight: whether a measurement is this member's own.

use super::{LaunchQuery, UsageMeter};
use crate::daemon::lease::LeaseWord;
use crate::process::device_count::registered_devices;
use vgpu_core::time::account::{Admission, SharedAccount};
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::turn::patience::PendingWork;
use vgpu_core::time::turn::{LocalWork, Turn};
use vgpu_core::units::share::Share;

impl UsageMeter {
    /// The work that the others wait for. With several devices the wait for a first launch is no longer than for
    /// another. It may wait for a kernel that waits for its turn on the other device, and a ceiling charges all that
    /// time.
    fn pending_for_others(&self) -> PendingWork {
        let pending = self.keeper.pending_work();
        PendingWork { is_unknown: pending.is_unknown && registered_devices() < 2, ..pending }
    }

    /// This process's queued work and request.
    fn local_work(&mut self, wants: bool, admission: Admission, now: u64) -> LocalWork {
        let due = self.patience.drain_until(self.pending_for_others(), now);
        let admitted = match admission {
            Admission::Admit => now,
            Admission::WaitUntil(moment) => moment,
        };
        // A member whose work waits for others' kernels would be next for ever by its estimate, so the elapsed time
        // counts.
        LocalWork { now, wants, admitted, in_flight: self.keeper.device_time_by(now), due }
    }

    /// The gate of a launch: the daemon's if it decides, otherwise that of the turn among the tenant's members.
    #[inline]
    pub(super) fn launch_gate(&mut self, wish: &LaunchQuery<'_>, admission: Admission, now: u64) -> Gate {
        if let LeaseWord::Said(gate) = self.lease.current_word() {
            return gate;
        }
        let (Some(turn), Gate::Run { .. }) = (&wish.turn, wish.gate) else { return wish.gate };
        match self.turning.keep_turn(turn, now) {
            Some(gate) => gate,
            None => self.look_at_turn(turn, admission, now),
        }
    }

    #[cold]
    fn look_at_turn(&mut self, turn: &Turn<'_>, admission: Admission, now: u64) -> Gate {
        let here = self.local_work(true, admission, now);
        let before = self.turning.possession_number();
        let gate = self.turning.step_turn(turn, &here);
        self.follow_possession(before, now);
        gate
    }

    /// If the turn was passed on or preempted since `before`, the work in flight teaches no costs: it was not alone on
    /// the device.
    fn follow_possession(&mut self, before: u64, now: u64) {
        if self.turning.possession_number() != before && self.keeper.in_flight() > 0 {
            self.patience.note_preempted(self.pending_for_others(), now);
            self.discard_in_flight();
        }
    }

    /// The helper thread's look at the turn among the tenant's members; see
    /// [`crate::time::turn::TurnMemory::watch_turn`].
    pub fn watch_turn(&mut self, turn: &Turn<'_>, account: SharedAccount<'_>, share: Option<Share>, now: u64) -> u64 {
        let admit = |share| account.admit_beside(self.keeper.in_flight(), share, now);
        let admission = share.map_or(Admission::Admit, admit);
        let here = self.local_work(self.waiting > 0, admission, now);
        let before = self.turning.possession_number();
        let look = self.turning.watch_turn(turn, &here, self.keeper.next_look(now));
        self.follow_possession(before, now);
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_core::time::account::cost::CostGuess;

    /// A thread at the gate, whose member's kernel waits for another member's kernel, would keep its member next for
    /// ever; the other would never run.
    #[test]
    fn what_takes_longer_than_expected_counts_for_who_is_next() {
        let mut meter = UsageMeter::default();
        assert_eq!(meter.local_work(true, Admission::Admit, 9_000_000).in_flight, 0);
        meter.keeper.note_launch(CostGuess::with_certainty(1_000_000), 5_000_000);
        for (ms, had) in [(5, 1), (6, 1), (7, 2), (2_005, 2_000)] {
            assert_eq!(meter.local_work(true, Admission::Admit, ms * 1_000_000).in_flight, had * 1_000_000, "at {ms}");
        }
    }

    #[test]
    fn the_others_wait_longer_for_what_was_never_measured() {
        let at = 1_000_000_000;
        for (cost, waits) in [(CostGuess::with_certainty(1_000_000), false), (CostGuess::NEVER_MEASURED, true)] {
            let mut meter = UsageMeter::default();
            meter.keeper.note_launch(cost, 0);
            assert_eq!(meter.local_work(false, Admission::Admit, at).due > at, waits, "{cost:?}");
        }
    }
}
