//! Launches that threads count by themselves, without the lock: the grant of credits, and counting their launches.
//!
//! A thread that takes the lock counts first ([`UsageMeter::count_credits`]), so all other code here sees every
//! launch. A credit is revoked with the interval it was given for. A launch made at the very moment of the revocation
//! is late. It counts in the next interval of its timeline, and is charged by its estimate if there is none.

use super::stepping::LAUNCHES_PER_CLOCK_READ;
use super::{LaunchQuery, MarkerPlan, PaySink, UsageMeter};
use crate::process::mode;
use crate::time::credit::{self, CreditPlace, CreditTerms};
use crate::time::launch_costs::LaunchCosts;
use vgpu_core::time::account::Admission;
use vgpu_core::time::account::cost::CostGuess;
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::config::{BASE, MARKER_INTERVAL_NS, SHORT_LAUNCH_NS};
use vgpu_core::time::gate::credit::CreditCount;

/// Credits that are counted: each is read whenever the lock is taken. Further threads and streams use the lock, until
/// one of these credits has not been used for a while.
const MAX_CREDITS: usize = 32;

/// A granted credit, kept after its revocation, because its owner may count late.
pub(super) struct GrantedCredit {
    place: &'static CreditPlace,
    pub chain: u64,
    /// When the credit's stream may have become idle. A thread that reads the clock after that time revokes the
    /// credit.
    until: u64,
    counted: CreditCount,
}

impl GrantedCredit {
    /// Revokes the credit: its owner counts no more launches without the lock.
    pub fn revoke_credit(&self) {
        self.place.credit.revoke_credit();
    }

    fn is_over(&self, now: u64) -> bool {
        now > self.until.saturating_add(BASE.alone) && self.unspent_ns() == 0
    }

    /// The work that its owner may still launch, by estimate.
    pub fn unspent_ns(&self) -> u64 {
        self.place.credit.unspent_work()
    }
}

impl UsageMeter {
    /// Counts the launches made on credit since the last call.
    ///
    /// # Cost
    /// A comparison where no credit was ever given; two loads for each.
    #[inline]
    pub fn count_credits(&mut self) {
        if !self.given.is_empty() {
            self.count_all();
        }
    }

    #[inline(never)] // called in many places, and the library is small
    fn count_all(&mut self) {
        for at in 0..self.given.len() {
            self.count_credit(at);
        }
    }

    fn count_credit(&mut self, at: usize) {
        let Some(given) = self.given.get_mut(at) else { return };
        let taken = given.place.credit.count_new(&mut given.counted);
        if taken.estimate == 0 && taken.launches == 0 {
            return;
        }
        let (credit, chain) = (&given.place.credit, given.chain);
        self.launches = self.launches.wrapping_add(taken.launches);
        let launches = u32::try_from(taken.launches).unwrap_or(u32::MAX);
        self.untimed = self.untimed.saturating_add(launches);
        let Some(at) = self.chains.iter().position(|one| one.number == chain) else {
            self.stray = self.stray.saturating_add(taken.estimate);
            return;
        };
        let chain = &mut self.chains[at];
        let (was_busy, was_unmeasured) = (chain.is_busy(), chain.is_unmeasured());
        let now = self.time;
        chain.marks.count_unasked(taken.estimate, launches);
        self.keeper.note_launch(CostGuess::with_certainty(taken.estimate), now);
        self.due = self.due.max(now).saturating_add(taken.estimate);
        credit.launched_functions().for_each(|(key, cost)| chain.keys.add(key, CostGuess::with_certainty(cost)));
        chain.launches = chain.launches.wrapping_add(launches);
        chain.ask_at += taken.estimate / 2;
        chain.over_by = now + 2 * self.keeper.in_flight() + MARKER_INTERVAL_NS;
        self.recount_stream(at, was_busy, was_unmeasured);
    }

    /// Revokes the credits of a timeline.
    pub(super) fn revoke_credits_of(&self, chain: u64) {
        self.given.iter().filter(|given| given.chain == chain).for_each(GrantedCredit::revoke_credit);
    }

    /// Revokes credits whose streams may have become idle, so that the next launch of each asks. Otherwise a stream
    /// that was idle while others kept the clock running would continue as if it had been busy, and be charged for
    /// that time.
    #[inline]
    pub(super) fn revoke_old(&self, now: u64) {
        self.given.iter().filter(|given| now >= given.until).for_each(GrantedCredit::revoke_credit);
    }

    /// Charges launches made on credits whose timeline is gone.
    pub(super) fn charge_strays(&mut self, pay: &impl PaySink) {
        if self.stray > 0 {
            let stray = core::mem::take(&mut self.stray);
            pay(self.split_due(stray, 0), self.presence.engaged_since());
        }
    }

    /// After a launch without a marker: grants this thread a credit for further launches into the stream. The credit
    /// covers as much work as would be admitted now. The markers, the limit of work in flight and the account are
    /// asked as if all of it had been launched already, including the rest of other threads' credits. The gate must
    /// be ours without an end.
    ///
    /// # Cost
    /// Some 20 ns, where launches follow each other so closely that a credit pays off; else a comparison.
    #[inline(never)]
    pub fn allow_credit(&mut self, wish: &LaunchQuery<'_>, plan: &MarkerPlan, costs: &'static LaunchCosts) {
        // Each launch must be announced to the daemon.
        if self.lease.is_on() {
            return;
        }
        // The clock must be read as often as a stream may be asked. A credit for fewer launches than go on without a
        // clock read is not worth its cost.
        let (launches, least) = (BASE.handover / self.pace.max(1), u64::from(LAUNCHES_PER_CLOCK_READ));
        let Some(cost) = wish.cost.known_below(SHORT_LAUNCH_NS).filter(|_| launches >= least) else { return };
        let now = self.time;
        // The daemon may withdraw its grants (a lease that has a number, a gate that it opened): each launch would have
        // to check its slot.
        let watch = match (&wish.turn, wish.gate) {
            (_, Gate::Open) if mode::is_observing() => None,
            (None, Gate::Run { lease: 0, until: u64::MAX, exclusive: true, .. }) => None,
            (Some(turn), Gate::Run { lease: 0, until: u64::MAX, exclusive: true, .. }) => {
                match self.turning.watch_kept(turn, now) {
                    Some(watch) => Some(watch),
                    None => return,
                }
            }
            _ => return,
        };
        let Some(at) = self.chain_of_number(plan.chain) else { return };
        let Some(room) = self.chains[at].marks.unmarked_room() else { return };
        let left = self.given.iter().fold(0u64, |all, given| all.saturating_add(given.unspent_ns()));
        let before = self.keeper.in_flight().saturating_add(left);
        let estimate = room.min(BASE.handover).min(self.keeper.limit().saturating_sub(before));
        if estimate < cost.saturating_mul(least)
            || wish.share.is_some_and(|share| {
                wish.account.admit_beside(before.saturating_add(estimate), share, now) != Admission::Admit
            })
        {
            return;
        }
        let Some(place) = credit::place_of(costs, wish.launch) else { return };
        if self.given.len() >= MAX_CREDITS {
            self.given.retain(|given| !given.is_over(now));
        }
        let until = self.chains[at].ask_at.max(now + BASE.handover);
        let is_full = self.given.len() >= MAX_CREDITS;
        match self.given.iter_mut().find(|given| core::ptr::eq(given.place, place)) {
            Some(given) => (given.chain, given.until) = (plan.chain, until),
            None => {
                if is_full {
                    return;
                }
                let mut counted = CreditCount::default();
                let _ = place.credit.count_new(&mut counted);
                self.given.push(GrantedCredit { place, chain: plan.chain, until, counted });
            }
        }
        let terms = CreditTerms { costs: Some(costs), launch: *wish.launch, chain: plan.chain, watch };
        place.grant_credit(terms, estimate, launches);
    }
}
