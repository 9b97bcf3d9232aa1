//! The lease's report to the daemon, and when the daemon's bell is rung for it. Under the governor's lock; the bell
//! is rung without it ([`Lease::takes_ring`]). Not here: the daemon's grant ([`super`]).

use super::Lease;
use crate::daemon::link::DaemonLink;
use crate::daemon::session::PagesSlot;
use core::sync::atomic::AtomicU32;
use vgpu_core::protocol::page::MemberReport;
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::config::{BASE, SHORT_NS, small_part};
use vgpu_core::time::gate::LaunchGate;

impl Lease {
    /// Reports that a launch of `cost` is about to go, with `in_flight` of work including it. False: the gate has
    /// changed meanwhile; the caller must take the report back by [`Self::withdraw_launch`].
    ///
    /// # Cost
    /// Five stores and three loads.
    #[inline]
    pub fn announce_launch(&mut self, in_flight: u64, cost: u64, now: u64) -> bool {
        let (false, Some(place)) = (self.lost, self.place) else { return true };
        self.submitted = self.submitted.saturating_add(cost);
        self.launched = self.launched.wrapping_add(1);
        if self.wants {
            self.is_content(place);
        }
        (self.last, self.done, self.idle) = (now, false, None);
        if !self.blind {
            let session = place.session;
            place.report_slot().report_launch(
                in_flight,
                self.submitted,
                session.to_daemon_clock(self.since),
                session.to_daemon_clock(now),
            );
        }
        place.board_slot().is_unchanged(self.sequence)
    }

    pub(super) fn is_content(&mut self, place: &PagesSlot) {
        (self.wants, self.rung) = (false, 0);
        place.report_slot().stop_waiting();
    }

    /// No thread of this process waits at the gate any more.
    pub fn note_none_waiting(&mut self) {
        if let (true, Some(place)) = (self.wants, self.place) {
            self.is_content(place);
        }
    }

    /// Takes back an announced launch.
    pub fn withdraw_launch(&mut self, cost: u64) {
        self.submitted = self.submitted.saturating_sub(cost);
        self.launched = self.launched.wrapping_sub(1);
    }

    /// Adds the estimates of launches that were seen complete.
    pub fn note_completed(&mut self, estimate: u64) {
        self.finished = self.finished.saturating_add(estimate);
    }

    /// Launches estimated at `estimate` were seen complete; `least` is their undisturbed cost.
    pub fn note_known_cost(&mut self, least: u64, estimate: u64) {
        self.known = self.known.saturating_add(least);
        self.last_known = (least, estimate);
    }

    /// Unmeasured launches were seen complete: they count as slowed as much as the launches measured last.
    pub fn knows_tail(&mut self, estimate: u64) {
        let (least, of) = self.last_known;
        let part = u128::from(estimate) * u128::from(least) / u128::from(of.max(1));
        let known = if of == 0 { estimate } else { u64::try_from(part).unwrap_or(estimate).min(estimate) };
        self.known = self.known.saturating_add(known);
    }

    /// How long work that ended at `at` may have run after others were admitted.
    pub fn late_ns(&self, at: u64) -> u64 {
        if self.is_on() && self.is_shut() { at.saturating_sub(self.closed) } else { 0 }
    }

    /// A thread waits at the gate, for the daemon or for the account.
    pub fn request_lease(&mut self, post: &DaemonLink, keeper: &LaunchGate, now: u64) {
        let Some(place) = self.place.filter(|_| !self.lost) else { return };
        if !self.wants {
            if keeper.in_flight() == 0 {
                self.since = now;
            }
            self.wants = true;
            self.write_report(post, keeper, now);
        }
        let first = place.report_slot().begin_waiting();
        // A request that had no effect is repeated.
        if first || self.rung == 0 || now.saturating_sub(self.rung) > 10 * BASE.heartbeat {
            (self.rung, self.ring) = (now, true);
        }
    }

    /// True if the caller must ring the bell, without the lock.
    pub fn takes_ring(&mut self) -> bool {
        core::mem::take(&mut self.ring)
    }

    /// The word to sleep on until the daemon acts, and its state when last read.
    pub fn futex_word(&self) -> Option<(&'static AtomicU32, u32)> {
        self.place.filter(|_| !self.lost).map(|place| (place.board_slot().futex_word(), self.sequence))
    }

    /// Writes the whole report again. Marks the bell to be rung if nothing is in flight any more and the daemon waits
    /// for that.
    pub fn write_report(&mut self, post: &DaemonLink, keeper: &LaunchGate, now: u64) {
        let Some(place) = self.place.filter(|_| !self.lost) else { return };
        let in_flight = if self.blind { None } else { Some(keeper.reported_remaining(now)) };
        let session = place.session;
        place.report_slot().report_contexts(post.known_contexts());
        place.report_slot().report_all(&MemberReport {
            busy: post.busy_ns().saturating_sub(self.base),
            finished: self.finished,
            known: self.known,
            submitted: self.submitted,
            launched: self.launched.wrapping_add(post.open_gate_launches().wrapping_sub(self.opened)),
            in_flight,
            last_launch: session.to_daemon_clock(self.last),
            since: session.to_daemon_clock(if in_flight == Some(0) && !self.wants { now } else { self.since }),
        });
        if in_flight == Some(0) && !self.done && (self.is_shut() || !place.board_slot().is_unchanged(self.sequence)) {
            (self.done, self.ring) = (true, true);
        }
    }

    /// Called by the helper thread: reports to the daemon. Returns when to call again, and whether others may now be
    /// admitted next to the work in flight. `None`: nothing needs watching.
    pub fn watch_lease(
        &mut self,
        post: &DaemonLink,
        keeper: &LaunchGate,
        waited_for: bool,
        now: u64,
    ) -> Option<(u64, bool)> {
        self.place.filter(|_| !self.lost)?;
        if self.gate == Gate::Open {
            if self.blind {
                // Reports the number of launches through the open gate.
                self.write_report(post, keeper, now);
            }
            // A program that makes no call would not see the gate shut, and no one would see its work complete.
            return self.blind.then_some((now.saturating_add(BASE.alone), false));
        }
        let mut taints = false;
        if keeper.in_flight() == 0 && !self.blind {
            let Gate::Run { until, .. } = self.gate else {
                self.write_report(post, keeper, now);
                // A process that has launched nothing for a second is not watched.
                let is_idle = !waited_for && now.saturating_sub(self.last) > BASE.alone;
                return (!is_idle).then_some((now.saturating_add(BASE.heartbeat), false));
            };
            if until == u64::MAX {
                let is_idle = !waited_for && now.saturating_sub(self.last) > BASE.alone;
                return (!is_idle).then_some((now.saturating_add(BASE.heartbeat), false));
            }
            // A device held this long with nothing in flight and no request is given back.
            let since = *self.idle.get_or_insert(now);
            if now < since.saturating_add(SHORT_NS) {
                return Some((since.saturating_add(SHORT_NS), false));
            }
            if !self.wants && !self.done {
                self.write_report(post, keeper, now);
                (self.done, self.ring) = (true, true);
            }
            return Some((now.saturating_add(BASE.quantum / 4), false));
        }
        self.idle = None;
        self.write_report(post, keeper, now);
        if self.is_shut() && !self.told && keeper.reported_remaining(now) < BASE.handover && !self.blind {
            (self.told, self.ring, taints) = (true, true, true);
        }
        let contended = !matches!(self.gate, Gate::Run { until: u64::MAX, .. });
        let look = if self.blind {
            // Asks the streams again after a sixteenth of the time since the gate shut: the end of their work is
            // noticed no later.
            now.saturating_add(small_part(now.saturating_sub(self.shut)).clamp(SHORT_NS, BASE.quantum / 4))
        } else if contended {
            keeper.next_look(now)
        } else {
            now.saturating_add(BASE.heartbeat)
        };
        Some((look, taints))
    }
}
