//! The turn among the tenant's members in relation to the work in flight: whether a measurement is this member's own.

use super::{Meter, Wish};
use crate::daemon::lease::Word;
use crate::device;
use vgpu_core::time::account::{Admission, SharedAccount};
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::turn::patience::Pending;
use vgpu_core::time::turn::{Here, Turn};
use vgpu_core::units::share::Share;

impl Meter {
    /// The work that the others wait for. With several devices the wait for a first launch is no longer than for
    /// another. It may wait for a kernel that waits for its turn on the other device, and a ceiling charges all that
    /// time.
    fn pending(&self) -> Pending {
        let pending = self.keeper.pending();
        Pending { is_unknown: pending.is_unknown && device::all().nth(1).is_none(), ..pending }
    }

    /// This process's queued work and request.
    fn here(&mut self, wants: bool, admission: Admission, now: u64) -> Here {
        let due = self.patience.due(self.pending(), now);
        let admitted = match admission {
            Admission::Admit => now,
            Admission::WaitUntil(moment) => moment,
        };
        // A member whose work waits for others' kernels would be next for ever by its estimate, so the elapsed time
        // counts.
        Here { now, wants, admitted, in_flight: self.keeper.had(now), due }
    }

    /// The gate of a launch: the daemon's if it decides, otherwise that of the turn among the tenant's members.
    #[inline]
    pub(super) fn gate(&mut self, wish: &Wish<'_>, admission: Admission, now: u64) -> Gate {
        if let Word::Said(gate) = self.lease.word() {
            return gate;
        }
        let (Some(turn), Gate::Run { .. }) = (&wish.turn, wish.gate) else { return wish.gate };
        match self.turning.keeps(turn, now) {
            Some(gate) => gate,
            None => self.look(turn, admission, now),
        }
    }

    #[cold]
    fn look(&mut self, turn: &Turn<'_>, admission: Admission, now: u64) -> Gate {
        let here = self.here(true, admission, now);
        let before = self.turning.possession();
        let gate = self.turning.step(turn, &here);
        self.follow(before, now);
        gate
    }

    /// If the turn was passed on or preempted meanwhile, the work in flight was not alone on the device.
    fn follow(&mut self, before: u64, now: u64) {
        if self.turning.possession() != before && self.keeper.in_flight() > 0 {
            self.patience.robbed(self.pending(), now);
            self.taint();
        }
    }

    /// The helper thread's look at the turn among the tenant's members; see [`crate::turn::Turning::attend`].
    pub fn attend(&mut self, turn: &Turn<'_>, account: SharedAccount<'_>, share: Option<Share>, now: u64) -> u64 {
        let admit = |share| account.admit_beside(self.keeper.in_flight(), share, now);
        let admission = share.map_or(Admission::Admit, admit);
        let here = self.here(self.waiting > 0, admission, now);
        let before = self.turning.possession();
        let (remaining, expected) = (self.keeper.remaining(now), self.keeper.look(now, &self.bounds));
        let look = self.turning.attend(turn, &here, remaining, expected);
        self.follow(before, now);
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_core::time::account::cost::Guess;

    /// A thread at the gate, whose member's kernel waits for another member's kernel, would keep its member next for
    /// ever; the other would never run.
    #[test]
    fn what_takes_longer_than_expected_counts_for_who_is_next() {
        let mut meter = Meter::default();
        let bounds = meter.bounds;
        assert_eq!(meter.here(true, Admission::Admit, 9_000_000).in_flight, 0);
        meter.keeper.launched(Guess::sure(1_000_000), 5_000_000, &bounds);
        for (ms, had) in [(5, 1), (6, 1), (7, 2), (2_005, 2_000)] {
            assert_eq!(meter.here(true, Admission::Admit, ms * 1_000_000).in_flight, had * 1_000_000, "at {ms}");
        }
    }

    #[test]
    fn the_others_wait_longer_for_what_was_never_measured() {
        let at = 1_000_000_000;
        for (cost, waits) in [(Guess::sure(1_000_000), false), (Guess::UNKNOWN, true)] {
            let mut meter = Meter::default();
            let bounds = meter.bounds;
            meter.keeper.launched(cost, 0, &bounds);
            assert_eq!(meter.here(false, Admission::Admit, at).due > at, waits, "{cost:?}");
        }
    }
}
