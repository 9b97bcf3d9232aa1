//! The helper thread's work for the gate while other members wait for the turn: it sees completions when the program
//! makes no call, and passes the turn on ([`crate::watcher`]).

use super::Governor;
use crate::ledger::Joined;
use crate::meter::{Launch, Plan, markers};
use crate::order::quietly;
use crate::{clock, context, order};
use vgpu_core::time::turn::Turn;

impl Governor {
    /// Charges completed work, including tails whose estimated time has passed. For the helper thread, in any current
    /// context.
    pub fn reap_now(&self, joined: &Joined) {
        self.reap(joined, order::current());
        let mut meter = self.meter();
        let now = clock::now();
        meter.expire(now, |due, since| self.charge(joined, due, since));
        meter.report(&self.post, now);
    }

    /// Reports that the work of a preempted turn is complete, if it is. If the program makes no further call, nothing
    /// else would report it.
    pub(super) fn settle_debt(&self, joined: &Joined) {
        if self.post.place().is_some() {
            let _ = self.meter().word(&self.post, clock::now());
            self.unblind(joined);
            self.meter().report(&self.post, clock::now());
            self.tell();
        }
        if self.turns.known() != Some(true) {
            return;
        }
        let turn = joined.member().turn();
        let mut meter = self.meter();
        if meter.in_flight() == 0 && !meter.is_waited_for() && meter.turning.owes_another(&turn) {
            let _ = meter.attend(&turn, joined.member().account(), self.share(), clock::now());
        }
    }

    /// Records a marker after the launch's queued work, if that is not over, so that a look sees it end.
    #[cold]
    pub(super) fn mark_tail(&self, joined: &Joined, launch: &Launch, plan: &Plan) {
        let moment = context::moment();
        let asked = clock::now();
        let is_idle = quietly(|| markers::is_idle(launch));
        let event = if is_idle { None } else { quietly(|| markers::record(launch, plan.events[1])) };
        let at = clock::now();
        // Work that takes far longer than estimated exceeds every estimated end. The stream was busy just now, and
        // that decides.
        let is_seen = at.saturating_sub(asked) < super::AWAY_NS;
        let end = event.map(|event| (event, Some(at).filter(|_| !is_seen)));
        if context::fate(launch.context.0 as usize, moment) == context::Fate::Lives {
            let pay = |due, since| self.charge(joined, due, since);
            let unused = self.meter().recorded(plan, None, end, &self.costs, pay);
            super::destroy(unused);
            super::destroy([plan.events[1].filter(|_| is_idle)]);
        }
    }

    /// Does the follow-up work of a look at the turn. Without any lock.
    pub(super) fn tend(&self, joined: &Joined, turn: &Turn<'_>) {
        let chores = self.meter().turning.chores();
        chores.do_all(joined, turn);
    }

    /// A look of the helper thread; returns when to look again. `None`: no member waits for the turn, and this
    /// process has no work of a preempted one.
    pub fn attend(&self, joined: &Joined) -> Option<u64> {
        if self.post.is_governed()
            && let Some(look) = self.attend_lease(joined)
        {
            return Some(look);
        }
        if self.turns.known() != Some(true) {
            return None;
        }
        let turn = joined.member().turn();
        if !turn.contended(clock::now()) && !self.meter().turning.owes_another(&turn) {
            return None;
        }
        if self.meter().in_flight() > 0 {
            self.reap_now(joined);
        }
        let look = self.meter().attend(&turn, joined.member().account(), self.share(), clock::now());
        self.tend(joined, &turn);
        Some(look)
    }
}
