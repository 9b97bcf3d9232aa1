//! The helper thread's work for the gate while other members wait for the turn: it sees completions when the program
//! makes no call, and passes the turn on ([`crate::process::helper_thread`]).

use super::Governor;
use crate::driver::launch::MeteredLaunch;
use crate::driver::streams::without_captures;
use crate::driver::{contexts, streams};
use crate::ffi::clock;
use crate::ledger::joined::JoinedLedger;
use crate::time::meter::{EndMarker, MarkerPlan, markers};
use vgpu_core::time::turn::Turn;

impl Governor {
    /// Charges completed work, including tails whose estimated time has passed. For the helper thread, in any current
    /// context.
    pub fn reap_now(&self, joined: &JoinedLedger) {
        self.reap_completed(joined, streams::current());
        let mut meter = self.lock_meter();
        let now = clock::now();
        meter.settle_expired(now, |due, since| self.charge(joined, due, since));
        meter.write_report(&self.post, now);
    }

    /// Reports that the work of a preempted turn is complete, if it is. If the program makes no further call, nothing
    /// else would report it.
    pub(super) fn settle_debt(&self, joined: &JoinedLedger) {
        if self.post.pages_slot().is_some() {
            let _ = self.lock_meter().granting_word(&self.post, clock::now());
            self.ask_open_streams(joined);
            self.lock_meter().write_report(&self.post, clock::now());
            self.ring_daemon();
        }
        if self.turns.known_rule() != Some(true) {
            return;
        }
        let turn = joined.joined_member().device_turn();
        let mut meter = self.lock_meter();
        if meter.in_flight() == 0 && !meter.is_waited_for() && meter.turning.owes_another(&turn) {
            let _ = meter.watch_turn(&turn, joined.joined_member().time_account(), self.kept_ceiling(), clock::now());
        }
    }

    /// Records a marker after the launch's queued work, if that is not over, so that a look sees it end.
    #[cold]
    pub(super) fn mark_tail(&self, joined: &JoinedLedger, launch: &MeteredLaunch, plan: &MarkerPlan) {
        let moment = contexts::epoch();
        let asked = clock::now();
        let is_idle = without_captures(|| markers::is_idle(launch));
        let event = if is_idle { None } else { without_captures(|| markers::record_event(launch, plan.events[1])) };
        let at = clock::now();
        // Work that takes far longer than estimated exceeds every estimated end. The stream was busy just now, and
        // that decides.
        let is_late = super::was_away(at.saturating_sub(asked));
        let end = event.map(|event| EndMarker { event, recorded: at, is_late, second: None });
        if contexts::context_fate(launch.context.0 as usize, moment) == contexts::ContextFate::Lives {
            let pay = |due, since| self.charge(joined, due, since);
            let unused = self.lock_meter().note_recorded(plan, None, end, &self.costs, pay);
            super::destroy_events(unused);
            super::destroy_events([plan.events[1].filter(|_| is_idle)]);
        }
    }

    /// Does the follow-up work of a look at the turn. Without any lock.
    pub(super) fn do_chores(&self, joined: &JoinedLedger, turn: &Turn<'_>) {
        let chores = self.lock_meter().turning.take_chores();
        if chores.do_all(joined, turn) {
            (self.above.start_helper)();
        }
    }

    /// A look of the helper thread; returns when to look again. `None`: no member waits for the turn, and this
    /// process has no work of a preempted one.
    pub fn watch_turn(&self, joined: &JoinedLedger) -> Option<u64> {
        if self.post.is_governed()
            && let Some(look) = self.attend_lease(joined)
        {
            return Some(look);
        }
        if self.turns.known_rule() != Some(true) {
            return None;
        }
        let turn = joined.joined_member().device_turn();
        if !turn.is_contended(clock::now()) && !self.lock_meter().turning.owes_another(&turn) {
            return None;
        }
        if self.lock_meter().in_flight() > 0 {
            self.reap_now(joined);
        }
        let look = self.lock_meter().watch_turn(
            &turn,
            joined.joined_member().time_account(),
            self.kept_ceiling(),
            clock::now(),
        );
        self.do_chores(joined, &turn);
        Some(look)
    }
}
