//! The turn among the tenant's members, as far as it depends on what is in flight: whose work it is that is measured.

use super::{Meter, Wish};
use crate::daemon::lease::Word;
use vgpu_core::account::{Admission, SharedAccount};
use vgpu_core::arbiter::Gate;
use vgpu_core::share::Share;
use vgpu_core::turn::{Here, Turn};

/// So much longer than expected, and half of that, the others wait for what is late.
const LATE_NS: u64 = 100_000_000;

impl Meter {
    /// What this process has before the device, and wants.
    fn here(&self, wants: bool, admission: Admission, now: u64) -> Here {
        let remaining = self.keeper.remaining(now);
        // Half of it more: launches of one function differ. What is late is waited for and measured for a while: a moment that
        // went on with the clock for ever would keep the others waiting for as long as we look.
        let due = now.saturating_add(remaining + remaining / 2);
        let due = due.min(self.keeper.expected().saturating_add(self.keeper.in_flight() / 2).saturating_add(LATE_NS));
        let admitted = match admission {
            Admission::Admit => now,
            Admission::WaitUntil(moment) => moment,
        };
        Here { now, wants, admitted, in_flight: self.keeper.in_flight(), due }
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
        self.follow(before);
        gate
    }

    /// What was in flight in another possession than the present one was not alone before the device.
    fn follow(&mut self, before: u64) {
        if self.turning.possession() != before && self.keeper.in_flight() > 0 {
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
        self.follow(before);
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_core::account::cost::Guess;

    /// Members that wait for each other's kernels crosswise on two devices end because turns end that are not passed on.
    #[test]
    fn what_is_late_is_promised_for_a_while_and_not_anew_whenever_somebody_looks() {
        let mut meter = Meter::default();
        let bounds = meter.bounds;
        meter.keeper.launched(Guess::sure(1_000_000), 5_000_000, &bounds);
        let due = |meter: &Meter, now| meter.here(false, Admission::Admit, now).due;
        assert_eq!(due(&meter, 5_000_000), 6_500_000);
        assert_eq!(due(&meter, 5_500_000), 6_250_000);
        for now in [6_000_000, 7_000_000, 106_500_000] {
            assert_eq!(due(&meter, now), now, "what was said is not taken back");
        }
        for now in [107_000_000, 900_000_000] {
            assert_eq!(due(&meter, now), 106_500_000, "at {now}");
        }
    }
}
