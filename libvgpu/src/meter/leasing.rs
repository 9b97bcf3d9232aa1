//! The daemon's lease in relation to the work in flight: which gate applies to a launch, and the report to the
//! daemon.

use super::crediting::Given;
use super::{Meter, Pay, Wish};
use crate::daemon::Post;
use crate::daemon::lease::{Answer, Stream, Word};
use shim_sys::cuda::CUevent;
use vgpu_core::time::account::Admission;
use vgpu_core::time::account::cost::{Doubt, Guess};
use vgpu_core::time::arbiter::Gate;

impl Meter {
    /// The gate that applies now.
    ///
    /// # Cost
    /// Without a daemon two loads, with one four.
    #[inline]
    pub fn word(&mut self, post: &Post, now: u64) -> Word {
        if !self.lease.stands(post, now) {
            self.look_at_lease(post, now);
        }
        self.lease.word()
    }

    #[cold]
    fn look_at_lease(&mut self, post: &Post, now: u64) {
        let changed = self.lease.look(post, &self.keeper, &mut self.bounds, now);
        if self.lease.is_on() {
            // Each launch must be announced from now on.
            self.given.iter().for_each(Given::revoke);
        }
        if changed.taints {
            self.taint();
        }
    }

    /// The answer of account and lease to a launch, given the work in flight.
    #[inline]
    pub(super) fn admission(&mut self, wish: &Wish<'_>, now: u64) -> Admission {
        let in_flight = self.keeper.in_flight();
        let own = match wish.share {
            Some(share) => wish.account.admit_beside(in_flight, share, now),
            None => Admission::Admit,
        };
        if !self.lease.is_on() {
            return own;
        }
        match (own, self.lease.admission(wish.post, in_flight, now)) {
            (Admission::WaitUntil(one), Admission::WaitUntil(other)) => Admission::WaitUntil(one.max(other)),
            (Admission::Admit, other) => other,
            (own, Admission::Admit) => own,
        }
    }

    /// Announces a launch that may go. False: the gate has changed meanwhile.
    #[inline]
    pub(super) fn announce(&mut self, cost: Guess, post: &Post, now: u64) -> bool {
        if !self.lease.is_on() {
            return true;
        }
        let cost = cost.ns();
        self.lease.announce(self.keeper.in_flight().saturating_add(cost), cost, now) || self.take_back(cost, post, now)
    }

    #[cold]
    pub(super) fn take_back(&mut self, cost: u64, post: &Post, now: u64) -> bool {
        self.lease.withdraw(cost);
        self.lease.say(post, &self.keeper, &self.bounds, now);
        false
    }

    /// A thread begins to wait at the gate, or keeps waiting.
    pub fn wishes(&mut self, post: &Post, gate: Gate, admission: Admission, now: u64) {
        let is_allowed = matches!(gate, Gate::Run { until, .. } if now < until);
        // While work is in flight the balance is not final.
        let is_admitted = self.keeper.in_flight() > 0 || admission == Admission::Admit;
        if !is_allowed || !is_admitted {
            self.lease.wishes(post, &self.keeper, &self.bounds, now);
        }
    }

    /// The streams with launches through an open gate were asked: charges the time in which they had the device since
    /// it shut. Returns marks to destroy.
    pub fn sees(&mut self, answers: &[(Stream, Answer)], now: u64, pay: impl Pay) -> Vec<CUevent> {
        let ((from, to), unused) = self.lease.sees(answers, now);
        let fresh = self.union.add(from, to);
        if fresh > 0 {
            pay(self.due(fresh, 0), self.presence.since());
        }
        unused
    }

    /// Updates the report after completions.
    pub fn report(&mut self, post: &Post, now: u64) {
        if self.lease.is_on() {
            self.lease.say(post, &self.keeper, &self.bounds, now);
        }
    }

    /// A look of the helper thread; returns when to look again.
    pub fn attend_lease(&mut self, post: &Post, now: u64) -> Option<u64> {
        self.look_at_lease(post, now);
        let (look, taints) = self.lease.attend(post, &self.keeper, &self.bounds, self.waiting > 0, now)?;
        if taints {
            self.taint();
        }
        Some(look)
    }

    /// Counts launches as complete, by their total `estimate`.
    pub(super) fn completed(&mut self, estimate: u64, doubt: Doubt, at: u64) {
        self.lease.knows_tail(estimate);
        self.measured(estimate, doubt, true, at);
    }

    /// As [`Self::completed`]. `is_exact`: their costs were learned while no other work was on the device; a rough or
    /// unknown cost is no basis for a charge.
    pub(super) fn measured(&mut self, estimate: u64, doubt: Doubt, is_exact: bool, at: u64) {
        self.over = self.over.wrapping_add(estimate);
        self.keeper.completed(estimate, doubt, at);
        if doubt.unknown == 0 && is_exact && self.lease.is_on() {
            self.lease.complete(estimate);
        }
    }
}
