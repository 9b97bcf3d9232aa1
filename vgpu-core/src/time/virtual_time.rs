//! Virtual time: the rules that the arbiter (between tenants) and the turn (between the members of one tenant) share.
//!
//! Virtual time is the device time that one used, by weight; the one with the least is next. Both schedulers keep a
//! clock of it, from which those that come back or are new begin. The unit is the caller's. Not here: where the times
//! are kept (the arbiter's search trees, the turn's words in a shared page), and charges.

/// The clock moved on to the least virtual time among those that want or hold the device now. It never goes back, so
/// that one that comes back to an idle device gains nothing by the others' rest.
#[must_use]
pub fn advance_clock(clock: u64, wanting: impl Iterator<Item = u64>) -> u64 {
    clock.max(wanting.min().unwrap_or(0))
}

/// The virtual time with which one that has `own` wants the device again: at most `credit` behind the clock. Rest earns
/// no more device time than that, and one that returns briefly now and then goes first. Debts stay. A rest raises the
/// virtual time by no more than its own length, `pause`; `u64::MAX` if that is not known.
#[must_use]
pub const fn rejoin_time(own: u64, clock: u64, credit: u64, pause: u64) -> u64 {
    let (behind, rested) = (clock.saturating_sub(credit), own.saturating_add(pause));
    let least = if behind < rested { behind } else { rested };
    if own > least { own } else { least }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_follows_the_least_that_wants_and_never_goes_back() {
        assert_eq!(advance_clock(10, [30, 20].into_iter()), 20);
        assert_eq!(advance_clock(25, [30, 20].into_iter()), 25);
        assert_eq!(advance_clock(25, core::iter::empty()), 25);
    }

    #[test]
    fn rest_earns_a_credit_and_no_more_than_its_length_is_lost_by_it_and_debts_stay() {
        assert_eq!(rejoin_time(0, 1_000, 40, u64::MAX), 960, "a newcomer");
        assert_eq!(rejoin_time(990, 1_000, 40, u64::MAX), 990, "less than the credit behind");
        assert_eq!(rejoin_time(5_000, 1_000, 40, u64::MAX), 5_000, "a debt");
        assert_eq!(rejoin_time(100, 1_000, 40, 7), 107, "a short pause");
        assert_eq!(rejoin_time(3, 10, 40, u64::MAX), 3, "the clock has just begun");
    }
}
