//! The turn among the tenant's members, as far as it depends on what is in flight: whose work it is that is measured.

use super::{Meter, Wish};
use crate::daemon::lease::Word;
use crate::device;
use vgpu_core::account::{Admission, SharedAccount};
use vgpu_core::arbiter::Gate;
use vgpu_core::share::Share;
use vgpu_core::turn::patience::Pending;
use vgpu_core::turn::{Here, Turn};

impl Meter {
    /// What the others wait for. A first launch is not waited for longer than another where there are several devices: it
    /// may wait for one that waits for its turn over there, and a ceiling has all that time paid.
    fn pending(&self) -> Pending {
        let pending = self.keeper.pending();
        Pending { is_unknown: pending.is_unknown && device::all().nth(1).is_none(), ..pending }
    }

    /// What this process has before the device, and wants.
    fn here(&mut self, wants: bool, admission: Admission, now: u64) -> Here {
        let due = self.patience.due(self.pending(), now);
        let admitted = match admission {
            Admission::Admit => now,
            Admission::WaitUntil(moment) => moment,
        };
        // Who waits for others' kernels with its own before the device would be next for ever, by its estimate.
        Here { now, wants, admitted, in_flight: self.keeper.had(now), due }
    }

    /// The gate of a launch: whoever grants the device has the first word, the tenant's members the second.
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

    /// What was in flight in another possession than the present one was not alone before the device.
    fn follow(&mut self, before: u64, now: u64) {
        if self.turning.possession() != before && self.keeper.in_flight() > 0 {
            self.patience.robbed(self.pending(), now);
            self.taint();
        }
    }

    /// A look of the thread that watches; see [`crate::turn::Turning::attend`].
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
    use vgpu_core::account::cost::Guess;

    /// Who stands at the gate behind a kernel that waits for another member's would stay next for ever, and that one wait.
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
