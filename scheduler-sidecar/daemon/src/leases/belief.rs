//! Limits how long a tenant's rejoined processes can claim queued work without any measurement that confirms it.
//!
//! The arbiter judges claims that last ([`vgpu_core::time::arbiter::audit`]), and starts from zero with each new
//! claim. A process that leaves and joins again makes a new claim each time, and would never be judged. So the
//! unconfirmed time of all of a tenant's claims is summed here. Not here: claims that follow a lease, since those are
//! paid for.

use vgpu_core::time::arbiter::MemberUsage;
use vgpu_core::time::config::BASE;

/// The allowance refills at this fraction of real time: 1 ns in 8 ns.
const RESTORE_FACTOR: u64 = 8;

/// Time for which a tenant's rejoined members may still claim queued work on one device without a measurement.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClaimAllowance {
    /// Number of members that claim queued work now.
    claims: usize,
    /// Time since which at least one member claims queued work, in ns.
    since: u64,
    /// Allowance used up so far, as of `at`, in ns.
    spent: u64,
    /// Time at which `spent` was computed, in ns.
    at: u64,
}

impl ClaimAllowance {
    fn spent_ns(&self, now: u64) -> u64 {
        let (rest, claimed) = if self.claims == 0 { (now, 0) } else { (self.since, now.saturating_sub(self.since)) };
        self.spent
            .saturating_sub(rest.saturating_sub(self.at) / RESTORE_FACTOR)
            .saturating_add(claimed)
            .min(2 * BASE.stuck)
    }

    /// True if allowance is left at `now`, so that one more member may claim queued work.
    pub fn is_left(&self, now: u64) -> bool {
        self.spent_ns(now) < BASE.stuck
    }

    /// Starts a claim: a member joins again with queued work.
    pub fn begin_claim(&mut self, now: u64) {
        if self.claims == 0 {
            (self.spent, self.at, self.since) = (self.spent_ns(now), now, now);
        }
        self.claims += 1;
    }

    /// Takes the report of a member with a claim. `heard`: the device time it had measured before. Returns true if no
    /// work is queued any more, which the caller reports by [`Self::end_claim`].
    ///
    /// Measured time restores the allowance, because the member pays for it; mere completion does not. With work
    /// still queued the claim continues, whatever was measured.
    pub fn hear_claim(&mut self, usage: &MemberUsage, heard: &mut u64, now: u64) -> bool {
        let measured = usage.busy.saturating_sub(*heard);
        *heard = usage.busy;
        if measured > 0 {
            (self.spent, self.at, self.since) = (self.spent_ns(now).saturating_sub(measured), now, now);
        }
        usage.in_flight == Some(0)
    }

    /// Ends one member's claim to have queued work. With the last claim, the allowance starts to refill.
    pub fn end_claim(&mut self, now: u64) {
        if self.claims == 1 {
            (self.spent, self.at) = (self.spent_ns(now), now);
        }
        self.claims = self.claims.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn whoever_claims_again_and_again_is_believed_for_two_seconds_and_then_an_eighth_of_the_time() {
        let (mut belief, mut believed) = (ClaimAllowance::default(), 0);
        for now in (0..80 * SECOND).step_by(100_000_000) {
            if belief.is_left(now) {
                belief.begin_claim(now);
                belief.end_claim(now + 100_000_000);
                believed += 100;
            }
        }
        assert!((10_000..13_000).contains(&believed), "{believed} ms of 80 s");
    }

    #[test]
    fn claims_beside_each_other_are_one_and_those_that_come_one_after_the_other_do_not_begin_it_anew() {
        let mut belief = ClaimAllowance::default();
        for member in 0..100 {
            assert!(belief.is_left(member));
            belief.begin_claim(member);
        }
        belief.end_claim(SECOND);
        assert!(belief.is_left(SECOND));
        assert!(!belief.is_left(2 * SECOND + 1));
    }

    #[test]
    fn what_was_measured_speaks_for_as_much_of_a_claim_and_that_it_is_over_does_not() {
        let mut belief = ClaimAllowance::default();
        let usage = |busy, in_flight| MemberUsage { busy, in_flight, ..MemberUsage::default() };
        belief.begin_claim(0);
        let mut heard = 0;
        assert!(!belief.hear_claim(&usage(0, None), &mut heard, SECOND));
        assert!(belief.hear_claim(&usage(0, Some(0)), &mut heard, 3 * SECOND));
        belief.end_claim(3 * SECOND);
        assert!(!belief.is_left(3 * SECOND));
        belief.begin_claim(3 * SECOND);
        assert!(!belief.hear_claim(&usage(1, None), &mut heard, 4 * SECOND), "a nanosecond ends no claim");
        assert!(!belief.is_left(4 * SECOND));
        assert!(!belief.hear_claim(&usage(3 * SECOND, None), &mut heard, 5 * SECOND));
        assert!(belief.is_left(5 * SECOND));
        assert!(!belief.hear_claim(&usage(3 * SECOND, None), &mut heard, 8 * SECOND), "once");
        assert!(!belief.is_left(8 * SECOND));
    }
}
