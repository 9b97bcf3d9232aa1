//! The turn among the tenant's members, as far as it depends on what is in flight: whose work it is that is measured.

use super::{Meter, Wish};
use crate::daemon::lease::Word;
use vgpu_core::account::{Admission, SharedAccount};
use vgpu_core::arbiter::Gate;
use vgpu_core::share::Share;
use vgpu_core::turn::{Here, Turn};

/// So much longer than expected, and half of that, the others wait for what is late.
const LATE_NS: u64 = 100_000_000;
/// And for what was never measured, until something took longer than that: a first launch is measured alone, or it is not
/// paid as it should be.
const FIRST_NS: u64 = 1_500_000_000;

impl Meter {
    /// What this process has before the device, and wants.
    fn here(&mut self, wants: bool, admission: Admission, now: u64) -> Here {
        let remaining = self.keeper.remaining(now);
        // Half of it more: launches of one function differ. What is late is waited for and measured for a while: a moment that
        // went on with the clock for ever would keep the others waiting for as long as we look.
        let due = now.saturating_add(remaining + remaining / 2);
        let is_first = self.keeper.is_unknown() && !self.waited_in_vain;
        let late = if is_first { FIRST_NS } else { LATE_NS };
        let last = self.keeper.expected().saturating_add(self.keeper.in_flight() / 2).saturating_add(late);
        self.waited_in_vain |= is_first && now > last;
        let due = due.min(last);
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
            self.waited_in_vain |= self.keeper.is_unknown();
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

    fn due(meter: &mut Meter, now: u64) -> u64 {
        meter.here(false, Admission::Admit, now).due
    }

    /// Members that wait for each other's kernels crosswise on two devices end because turns end that are not passed on.
    #[test]
    fn what_is_late_is_promised_for_a_while_and_not_anew_whenever_somebody_looks() {
        let mut meter = Meter::default();
        let bounds = meter.bounds;
        meter.keeper.launched(Guess::sure(1_000_000), 5_000_000, &bounds);
        assert_eq!(due(&mut meter, 5_000_000), 6_500_000);
        assert_eq!(due(&mut meter, 5_500_000), 6_250_000);
        for now in [6_000_000, 7_000_000, 106_500_000] {
            assert_eq!(due(&mut meter, now), now, "what was said is not taken back");
        }
        for now in [107_000_000, 900_000_000] {
            assert_eq!(due(&mut meter, now), 106_500_000, "at {now}");
        }
    }

    /// A first launch of a second is measured while the others wait. One that does not end, since they are what it waits for,
    /// keeps them for a second and a half once, and what comes first after that no longer than anything else that is late.
    #[test]
    fn what_was_never_measured_is_waited_for_until_once_that_was_in_vain() {
        let mut meter = Meter::default();
        let bounds = meter.bounds;
        let first = Guess::UNKNOWN;
        let until = |from: u64, late: u64| from + first.ns() * 3 / 2 + late;
        meter.keeper.launched(first, 5_000_000, &bounds);
        for now in [105_100_000, 1_005_000_000, until(5_000_000, FIRST_NS)] {
            assert_eq!(due(&mut meter, now), now);
        }
        for now in [1_600_000_000, 9_000_000_000] {
            assert!(due(&mut meter, now) <= until(5_000_000, FIRST_NS), "at {now}");
        }
        let (mut other, again) = (Meter { waited_in_vain: meter.waited_in_vain, ..Meter::default() }, 9_000_000_000);
        other.keeper.launched(first, again, &bounds);
        assert_eq!(due(&mut other, 10_000_000_000), until(again, LATE_NS));
    }
}
