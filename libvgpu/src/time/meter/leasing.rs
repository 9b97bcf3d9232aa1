//! The daemon's lease in relation to the work in flight: which gate applies to a launch, and the report to the
//! daemon.

use super::crediting::GrantedCredit;
use super::{LaunchQuery, PaySink, UsageMeter};
use crate::daemon::lease::{LeaseWord, OpenStream, StreamAnswer};
use crate::daemon::link::DaemonLink;
use shim_sys::cuda::CUevent;
use vgpu_core::time::account::Admission;
use vgpu_core::time::account::cost::{CostDoubt, CostGuess};
use vgpu_core::time::arbiter::Gate;

impl UsageMeter {
    /// The gate that applies now.
    ///
    /// # Cost
    /// Without a daemon two loads, with one four.
    #[inline]
    pub fn granting_word(&mut self, post: &DaemonLink, now: u64) -> LeaseWord {
        if !self.lease.is_current(post, now) {
            self.look_at_lease(post, now);
        }
        self.lease.current_word()
    }

    #[cold]
    fn look_at_lease(&mut self, post: &DaemonLink, now: u64) {
        let changed = self.lease.read_grant(post, &mut self.keeper, now);
        if self.lease.is_on() {
            // Each launch must be announced from now on.
            self.given.iter().for_each(GrantedCredit::revoke_credit);
        }
        if changed.taints {
            self.discard_in_flight();
        }
    }

    /// Returns when the account and the lease both admit a launch. Each balance is reduced by `in_flight` ns first:
    /// work that is queued and not charged yet.
    #[inline]
    pub(super) fn launch_admission(&mut self, wish: &LaunchQuery<'_>, in_flight: u64, now: u64) -> Admission {
        let own = match wish.share {
            Some(share) => wish.account.admit_beside(in_flight, share, now),
            None => Admission::Admit,
        };
        if !self.lease.is_on() {
            return own;
        }
        match (own, self.lease.account_admission(wish.post, in_flight, now)) {
            (Admission::WaitUntil(one), Admission::WaitUntil(other)) => Admission::WaitUntil(one.max(other)),
            (Admission::Admit, other) => other,
            (own, Admission::Admit) => own,
        }
    }

    /// Announces a launch that may go. False: the gate has changed meanwhile.
    #[inline]
    pub(super) fn announce_launch(&mut self, cost: CostGuess, post: &DaemonLink, now: u64) -> bool {
        if !self.lease.is_on() {
            return true;
        }
        let cost = cost.as_ns();
        self.lease.announce_launch(self.keeper.in_flight().saturating_add(cost), cost, now)
            || self.take_back(cost, post, now)
    }

    #[cold]
    pub(super) fn take_back(&mut self, cost: u64, post: &DaemonLink, now: u64) -> bool {
        self.lease.withdraw_launch(cost);
        self.lease.write_report(post, &self.keeper, now);
        false
    }

    /// A thread begins to wait at the gate, or keeps waiting.
    pub fn request_lease(&mut self, post: &DaemonLink, gate: Gate, admission: Admission, now: u64) {
        let is_allowed = matches!(gate, Gate::Run { until, .. } if now < until);
        // While work is in flight the balance is not final.
        let is_admitted = self.keeper.in_flight() > 0 || admission == Admission::Admit;
        if !is_allowed || !is_admitted {
            self.lease.request_lease(post, &self.keeper, now);
        }
    }

    /// The streams with launches through an open gate were asked: charges the time in which they had the device since
    /// it shut. Returns marks to destroy.
    pub fn apply_answers(
        &mut self,
        answers: &[(OpenStream, StreamAnswer)],
        now: u64,
        pay: impl PaySink,
    ) -> Vec<CUevent> {
        let ((from, to), unused) = self.lease.apply_answers(answers, now);
        let fresh = self.union.add(from, to);
        if fresh > 0 {
            pay(self.split_due(fresh, 0), self.presence.engaged_since());
        }
        unused
    }

    /// Updates the report after completions.
    pub fn write_report(&mut self, post: &DaemonLink, now: u64) {
        if self.lease.is_on() {
            self.lease.write_report(post, &self.keeper, now);
        }
    }

    /// Called by the helper thread: reads the lease, reports to the daemon, and discards samples that others may
    /// disturb. Returns when to call again; `None`: nothing needs watching.
    pub fn attend_lease(&mut self, post: &DaemonLink, now: u64) -> Option<u64> {
        self.look_at_lease(post, now);
        let (look, taints) = self.lease.watch_lease(post, &self.keeper, self.waiting > 0, now)?;
        if taints {
            self.discard_in_flight();
        }
        Some(look)
    }

    /// Counts launches as complete, by their total `estimate`.
    pub(super) fn note_completed(&mut self, estimate: u64, doubt: CostDoubt, at: u64) {
        self.lease.knows_tail(estimate);
        self.note_measured(estimate, doubt, true, at);
    }

    /// As [`Self::note_completed`]. `is_exact`: their costs were learned while no other work was on the device; a
    /// rough or unknown cost is no basis for a charge.
    pub(super) fn note_measured(&mut self, estimate: u64, doubt: CostDoubt, is_exact: bool, at: u64) {
        self.over = self.over.wrapping_add(estimate);
        self.keeper.note_completed(estimate, doubt, at);
        if doubt.unknown == 0 && is_exact && self.lease.is_on() {
            self.lease.note_completed(estimate);
        }
    }
}
