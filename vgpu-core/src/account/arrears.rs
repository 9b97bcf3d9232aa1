//! Time that nobody expected, paid off in parts: what an interval usually takes ([`Usual`]), and what is owed ([`Arrears`]).
//!
//! A kernel may wait for one on another device (the ranks of a collective). Whoever comes early keeps its device until the
//! other comes, and pays for it. Were that paid at the rate of a ceiling s at once, who is early by e would be held back
//! e / s, and come e / s - e later than the other, whose kernel waits as long in the next round: below a half that grows
//! without end. So what is beyond the usual costs one and a half of its time at once ([`eased`]): the ranks come nearer by
//! half each round. The rest of its price is owed, and paid in instalments beside the work that follows, which are about
//! the same for both ranks. An instalment goes by what was ordinary, never by a wait, which it would make longer.
//!
//! Up to [`MOST_NS`] nothing is forgiven. What is owed beyond is: whoever pays all of a long wait before the next round
//! parts from the other rank again. So what waits for others all the time, or varies several hundredfold from launch to
//! launch, may have up to four fifths of a device for a moment.
//!
//! *Usual* falls at once and rises by a quarter of the way: ranks that come first by turns wait every other time, and the
//! mean of that is half of a wait. What takes longer each time is usual after some measurements.
//!
//! Not here: what is measured and whether it was alone (the shim's meter), the account ([`super::SharedAccount`]).

use crate::share::Share;

/// The rate at which unexpected time is paid at once, in permille: one and a half of time for each.
const EASED: u32 = 667;
/// Unexpected time of which a part may be owed, in nanoseconds.
pub const MOST_NS: u64 = 50_000_000;
/// An instalment is this part of what is owed ...
const PART: u64 = 16;
/// ... at least so much, and at most this multiple of the work beside it.
const LEAST_NS: u64 = 10_000;
const TIMES: u64 = 2;

/// The rate at which unexpected time is paid at once under a ceiling of `share`.
#[must_use]
pub fn eased(share: Share) -> Share {
    Share::from_permille(EASED).map_or(share, |eased| eased.max(share))
}

/// What is still to be paid, at the rate of `share`, for unexpected time that was paid at the rate [`eased`].
#[must_use]
pub fn rest(excess: u64, share: Share) -> u64 {
    let paid = u128::from(excess) * u128::from(share.permille()) / u128::from(eased(share).permille());
    excess.saturating_sub(u64::try_from(paid).unwrap_or(u64::MAX))
}

/// Unexpected time of which the [`rest`] is owed, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrears {
    owed: u64,
}

impl Arrears {
    /// `excess` is being paid at the rate [`eased`].
    pub fn defer(&mut self, excess: u64) {
        self.owed = self.owed.saturating_add(excess).min(MOST_NS);
    }

    /// Of how much unexpected time the [`rest`] is to be paid beside `ns` of ordinary work.
    pub fn instalment(&mut self, ns: u64) -> u64 {
        let part = (self.owed / PART).max(LEAST_NS).min(ns.saturating_mul(TIMES)).min(self.owed);
        self.owed -= part;
        part
    }

    /// Unexpected time of which the rest is owed.
    #[must_use]
    pub const fn owed(&self) -> u64 {
        self.owed
    }
}

/// Intervals told apart; two on one place take it from each other, and begin anew.
const PLACES: usize = 32;
/// What rises comes nearer by this part of the way.
const RISE: u64 = 4;
/// Up to half more than usual and this is ordinary as well: launches of one function differ.
const SLACK_NS: u64 = 50_000;

/// Shorter estimates are paid as they are.
const LONG_NS: u64 = 1_000_000;

/// What intervals usually take for each launch, by what was launched in them.
#[derive(Clone, Debug, Default)]
pub struct Usual {
    /// Of which launches, and how long each, in nanoseconds.
    places: [(u64, u64); PLACES],
}

impl Usual {
    /// What an interval is charged that could not be measured: the estimate, unless that is long and mostly of waits. Whoever
    /// pays for a wait that was none parts from the other rank as well.
    #[must_use]
    pub fn unmeasured(&self, id: u64, launches: u32, estimate: u64) -> u64 {
        let place = self.places.iter().find(|place| place.0 == id);
        let usual = place.map_or(estimate, |place| place.1.saturating_mul(u64::from(launches.max(1))));
        if estimate > LONG_NS && usual < estimate / 4 { usual } else { estimate }
    }

    /// An interval of so many of the launches `id`, estimated at `estimate`, took `spent`. Returns what of it is ordinary:
    /// all, unless it is far off.
    ///
    /// # Cost
    /// Two divisions.
    pub fn ordinary(&mut self, id: u64, launches: u32, estimate: u64, spent: u64) -> u64 {
        let Some(place) = self.places.get_mut(crate::mix::slot(id, PLACES)) else { return spent };
        let launches = u64::from(launches.max(1));
        if place.0 != id {
            *place = (id, estimate / launches);
        }
        let (usual, each) = (place.1.saturating_mul(launches), spent / launches);
        place.1 = if each > place.1 { place.1 + (each - place.1).div_ceil(RISE) } else { each };
        if spent > usual.saturating_add(usual / 2).saturating_add(SLACK_NS) { usual } else { spent }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::account::{Account, BURST_NS};

    const MS: u64 = 1_000_000;
    const START: u64 = 3_600_000 * MS;

    fn percent(n: u32) -> Share {
        Share::from_percent(n).unwrap()
    }

    /// Two ranks under 30 % with a millisecond of work each, one of them `early` in the first round. How far apart they are
    /// after `rounds`, and the wall time of all. `pays`: what a rank pays for its wait.
    fn ranks(early: u64, rounds: u32, mut pays: impl FnMut(&mut Account, usize, u64)) -> (u64, u64) {
        let share = percent(30);
        let mut accounts = [Account::default(); 2];
        let mut last = START;
        for (account, moment) in accounts.iter_mut().zip([START, START + early]) {
            account.rest(moment + BURST_NS);
        }
        let mut apart = 0;
        for _ in 0..rounds {
            let arrivals = accounts.map(|account| account.when(0, share).max(last) + MS);
            last = arrivals[0].max(arrivals[1]);
            apart = last - arrivals[0].min(arrivals[1]);
            for rank in 0..2 {
                accounts[rank].spend(MS, share);
                pays(&mut accounts[rank], rank, last - arrivals[rank]);
            }
        }
        (apart, last - START)
    }

    #[test]
    fn ranks_that_pay_for_each_others_waits_come_together_again() {
        let share = percent(30);
        for early in [50_000, MS, 20 * MS] {
            let (apart, _) = ranks(early, 12, |account, _, wait| account.spend(wait, share));
            assert!(apart > 100 * MS, "paid at once they part: {apart}");
            let mut owed = [Arrears::default(); 2];
            let mut usual = [Usual::default(), Usual::default()];
            let (apart, wall) = ranks(early, 100, |account, rank, wait| {
                let ordinary = usual[rank].ordinary(1, 1, MS, wait).min(wait);
                account.spend(ordinary + rest(owed[rank].instalment(MS + ordinary), share), share);
                account.spend(wait - ordinary, eased(share));
                owed[rank].defer(wait - ordinary);
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
            let begin = account.when(0, share);
            account.spend(5 * MS, eased(share));
            arrears.defer(5 * MS);
            while arrears.owed() > 0 {
                let part = arrears.instalment(100_000);
                assert!(part <= 200_000, "by the work beside it");
                account.spend(rest(part, share), share);
            }
            let (wall, due) = (account.when(0, share) - begin, 5 * MS * 100 / u64::from(limit));
            assert!(wall.abs_diff(due) < 1_000, "{limit} %: {wall} of {due}");
            arrears.defer(3_600_000 * MS);
            assert!(arrears.owed() <= MOST_NS);
        }
    }

    #[test]
    fn who_waits_by_turns_is_never_taken_for_slow_and_who_is_slow_each_time_is() {
        let mut usual = Usual::default();
        for at in 0..100 {
            let spent = if at % 2 == 0 { 3 * MS } else { 0 };
            let ordinary = usual.ordinary(7, 1, 1_500_000, spent);
            assert!(at < 2 || ordinary <= SLACK_NS, "{at}: {ordinary}");
        }
        let mut usual = Usual::default();
        let far = (0..100).take_while(|_| usual.ordinary(7, 2, 100_000, MS) < MS).count();
        assert!((1..=16).contains(&far), "{far}");
    }

    #[test]
    fn what_varies_a_little_is_ordinary() {
        let mut usual = Usual::default();
        for at in 0..1000u64 {
            let spent = 800_000 + at * 7919 % 400_000;
            assert_eq!(usual.ordinary(at % 3 + 1, 3, MS, spent), spent);
        }
    }
}
