//! Unexpected time, paid off in parts: the usual length of an interval ([`UsualTimes`]), and the debt beyond it
//! ([`Arrears`]).
//!
//! A kernel may wait for one on another device (the ranks of a collective). The rank that arrives early occupies its
//! device until the other arrives, and is charged for it. Were that charged at once at a ceiling of s, a rank that is
//! early by e would be held back by e / s. It would then arrive e / s - e later than the other, whose kernel waits
//! that long in the next round: below a ceiling of one half this grows without end. So time beyond the usual costs its
//! own length at once, and the ranks are level again in the next round. The rest of its price is owed. It is paid in
//! instalments with the work that follows, which are about the same for both ranks. An instalment depends on the
//! ordinary work, never on a wait, which it would lengthen.
//!
//! Debt up to [`BURST_NS`] is paid in full; debt beyond is forgiven. A rank that paid for all of a long wait
//! before the next round would drift from the other again. So a program that waits for others all the time, or varies
//! several hundredfold from launch to launch, may briefly use up to four fifths of a device.
//!
//! The *usual* length falls at once and rises by a quarter of the difference. Ranks that are early by turns wait every
//! other time, and the mean of that would be half a wait. A kernel that takes longer every time becomes usual after
//! some measurements.
//!
//! Not here: measuring, and whether the work was alone on the device (libvgpu's meter); the account
//! ([`super::SharedAccount`]).

use crate::time::config::{BURST_NS, SHORT_NS, small_part};
use crate::units::share::Share;

/// The largest instalment, as a multiple of the work it is charged with.
const MAX_INSTALMENT_TIMES: u64 = 2;

/// The part still to be paid, at the rate of `share`, for unexpected time of which its own length was charged at once.
#[must_use]
pub fn rest_due(excess: u64, share: Share) -> u64 {
    excess.saturating_sub(share.part_of(excess))
}

/// Unexpected time of which the [`rest_due`] is owed, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrears {
    owed: u64,
    /// Time of launches of unknown length that was deferred and not earned yet.
    doubtful: u64,
}

impl Arrears {
    /// Returns the part of `ns` that may be deferred: together [`BURST_NS`], which a [`small_part`] of ordinary work
    /// earns again. A launch of unknown length took that time, and may have waited for another launch or worked.
    /// Without the bound, a program whose launches are all of new functions would pay for next to nothing.
    pub fn take_doubtful(&mut self, ns: u64) -> u64 {
        let part = ns.min(BURST_NS.saturating_sub(self.doubtful));
        self.doubtful += part;
        part
    }

    /// Adds `excess`, which is being charged by its length.
    pub fn defer_excess(&mut self, excess: u64) {
        self.owed = self.owed.saturating_add(excess).min(BURST_NS);
    }

    /// Takes an instalment, a [`small_part`] of the debt, for `ns` of ordinary work: returns unexpected time of which
    /// to charge the [`rest_due`] now.
    pub fn take_instalment(&mut self, ns: u64) -> u64 {
        self.doubtful = self.doubtful.saturating_sub(small_part(ns));
        let part = small_part(self.owed).max(1).min(ns.saturating_mul(MAX_INSTALMENT_TIMES)).min(self.owed);
        self.owed -= part;
        part
    }

    /// Unexpected time of which the rest is owed.
    #[must_use]
    pub const fn owed_ns(&self) -> u64 {
        self.owed
    }
}

/// Entries. Two kinds of interval that share one replace each other, and each starts over.
const USUAL_ENTRIES: usize = 32;
/// The usual length rises by one part in this many of the difference.
const RISE_DIVISOR: u64 = 4;

/// The usual time per launch of intervals, by the functions launched in them.
#[derive(Clone, Debug, Default)]
pub struct UsualTimes {
    /// A key for the functions, and the usual time per launch in nanoseconds.
    places: [(u64, u64); USUAL_ENTRIES],
}

impl UsualTimes {
    /// An interval of `launches` launches `id`, estimated at `estimate`, took `spent`. Returns the ordinary part of
    /// that: all, unless it is more than half longer than usual, and by more than [`SHORT_NS`].
    ///
    /// # Cost
    /// Two divisions.
    pub fn split_ordinary(&mut self, id: u64, launches: u32, estimate: u64, spent: u64) -> u64 {
        let Some(place) = self.places.get_mut(crate::mix::slot_of(id, USUAL_ENTRIES)) else { return spent };
        let launches = u64::from(launches.max(1));
        if place.0 != id {
            *place = (id, estimate / launches);
        }
        let (usual, each) = (place.1.saturating_mul(launches), spent / launches);
        place.1 = if each > place.1 { place.1 + (each - place.1).div_ceil(RISE_DIVISOR) } else { each };
        if spent > usual.saturating_add(usual / 2).saturating_add(SHORT_NS) { usual } else { spent }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::time::account::Account;

    #[test]
    fn time_that_may_have_been_a_wait_is_deferred_up_to_a_burst_and_earned_by_work() {
        let mut arrears = Arrears::default();
        assert_eq!([30, 30, 30].map(|ms| arrears.take_doubtful(ms * MS)), [30 * MS, BURST_NS - 30 * MS, 0]);
        arrears.take_instalment(160 * MS);
        assert_eq!(arrears.take_doubtful(30 * MS), 10 * MS, "a sixteenth of the work");
    }

    const MS: u64 = 1_000_000;
    const START: u64 = 3_600_000 * MS;

    fn percent(n: u32) -> Share {
        Share::from_percent(n).unwrap()
    }

    /// Simulates two ranks under 30 % with a millisecond of work each, one of them `early` in the first round.
    /// Returns how far apart they are after `rounds`, and the total wall time. `pays` charges a rank for its wait.
    fn ranks(early: u64, rounds: u32, mut pays: impl FnMut(&mut Account, usize, u64)) -> (u64, u64) {
        let share = percent(30);
        let mut accounts = [Account::default(); 2];
        let mut last = START;
        for (account, moment) in accounts.iter_mut().zip([START, START + early]) {
            account.note_idle(moment + BURST_NS);
        }
        let mut apart = 0;
        for _ in 0..rounds {
            let arrivals = accounts.map(|account| account.when_balance_is(0, share).max(last) + MS);
            last = arrivals[0].max(arrivals[1]);
            apart = last - arrivals[0].min(arrivals[1]);
            for rank in 0..2 {
                accounts[rank].pay_exactly(MS, share);
                pays(&mut accounts[rank], rank, last - arrivals[rank]);
            }
        }
        (apart, last - START)
    }

    #[test]
    fn ranks_that_pay_for_each_others_waits_come_together_again() {
        let share = percent(30);
        for early in [50_000, MS, 20 * MS] {
            let (apart, _) = ranks(early, 12, |account, _, wait| account.pay_exactly(wait, share));
            assert!(apart > 100 * MS, "paid at once they part: {apart}");
            let mut owed = [Arrears::default(); 2];
            let mut usual = [UsualTimes::default(), UsualTimes::default()];
            let (apart, wall) = ranks(early, 100, |account, rank, wait| {
                let ordinary = usual[rank].split_ordinary(1, 1, MS, wait).min(wait);
                account.pay_exactly(ordinary + rest_due(owed[rank].take_instalment(MS + ordinary), share), share);
                account.pay_exactly(wait - ordinary, Share::WHOLE_DEVICE);
                owed[rank].defer_excess(wait - ordinary);
            });
            assert!(apart < MS, "{early}: {apart}");
            assert!(wall < 100 * 6 * MS + 20 * early, "{early}: {wall}");
        }
    }

    #[test]
    fn what_is_deferred_is_paid_in_full_up_to_a_bound() {
        for limit in [5, 30, 50, 66, 80] {
            let share = percent(limit);
            let mut arrears = Arrears::default();
            let mut account = Account::default();
            let begin = account.when_balance_is(0, share);
            account.pay_exactly(5 * MS, Share::WHOLE_DEVICE);
            arrears.defer_excess(5 * MS);
            while arrears.owed_ns() > 0 {
                let part = arrears.take_instalment(100_000);
                assert!(part <= 200_000, "by the work beside it");
                account.pay_exactly(rest_due(part, share), share);
            }
            let (wall, due) = (account.when_balance_is(0, share) - begin, 5 * MS * 100 / u64::from(limit));
            assert!(wall.abs_diff(due) < 10_000, "{limit} %: {wall} of {due}");
            arrears.defer_excess(3_600_000 * MS);
            assert!(arrears.owed_ns() <= BURST_NS);
        }
    }

    #[test]
    fn who_waits_by_turns_is_never_taken_for_slow_and_who_is_slow_each_time_is() {
        let mut usual = UsualTimes::default();
        for at in 0..100 {
            let spent = if at % 2 == 0 { 3 * MS } else { 0 };
            let ordinary = usual.split_ordinary(7, 1, 1_500_000, spent);
            assert!(at < 2 || ordinary == 0, "{at}: {ordinary}");
        }
        let mut usual = UsualTimes::default();
        let far = (0..100).take_while(|_| usual.split_ordinary(7, 2, 100_000, MS) < MS).count();
        assert!((1..=16).contains(&far), "{far}");
    }

    #[test]
    fn what_varies_a_little_is_ordinary() {
        let mut usual = UsualTimes::default();
        for at in 0..1000u64 {
            let spent = 800_000 + at * 7919 % 400_000;
            assert_eq!(usual.split_ordinary(at % 3 + 1, 3, MS, spent), spent);
        }
    }
}
