//! What a lease says of itself in the report, and when the daemon's bell is rung for it. Under the governor's lock; the bell
//! is rung without it ([`Lease::takes_ring`]). Not here: what the daemon said ([`super`]).

use super::{BEAT_NS, Lease};
use crate::daemon::{Place, Post};
use core::sync::atomic::AtomicU32;
use vgpu_core::arbiter::Gate;
use vgpu_core::gate::{Bounds, Keeper};
use vgpu_core::page::Said;

/// Holding the device with nothing in flight and no wish for so long, it is given back.
const LINGER_NS: u64 = 100_000;
/// A wish that nothing came of is rung again after so long.
const AGAIN_NS: u64 = 100_000_000;
/// Who has done nothing for so long is not watched.
const IDLE_NS: u64 = 1_000_000_000;
/// While what is in flight is not known, the open gate is looked at so often.
const OPEN_NS: u64 = 1_000_000_000;

impl Lease {
    /// Says that a launch of `cost` is about to go, with which so much is in flight. False: the gate has changed meanwhile;
    /// what was said must be taken back by [`Self::withdraw`].
    ///
    /// # Cost
    /// Five stores and three loads.
    #[inline]
    pub fn announce(&mut self, in_flight: u64, cost: u64, now: u64) -> bool {
        let (false, Some(place)) = (self.lost, self.place) else { return true };
        self.submitted = self.submitted.saturating_add(cost);
        self.launched = self.launched.wrapping_add(1);
        if self.wants {
            self.is_content(place);
        }
        (self.last, self.done, self.idle) = (now, false, None);
        if !self.blind {
            let session = place.session;
            place.report().launches(in_flight, self.submitted, session.theirs(self.since), session.theirs(now));
        }
        place.board().stands(self.sequence)
    }

    pub(super) fn is_content(&mut self, place: &Place) {
        (self.wants, self.rung) = (false, 0);
        place.report().content();
    }

    /// Nobody of ours stands at the gate any more.
    pub fn leaves(&mut self) {
        if let (true, Some(place)) = (self.wants, self.place) {
            self.is_content(place);
        }
    }

    /// A launch that was announced does not take place.
    pub fn withdraw(&mut self, cost: u64) {
        self.submitted = self.submitted.saturating_sub(cost);
        self.launched = self.launched.wrapping_sub(1);
    }

    /// Estimates of launches that were seen complete.
    pub fn complete(&mut self, estimate: u64) {
        self.finished = self.finished.saturating_add(estimate);
    }

    /// Launches estimated at `estimate` were seen complete, which take `least` when nobody slows them.
    pub fn knows(&mut self, least: u64, estimate: u64) {
        self.known = self.known.saturating_add(least);
        self.last_known = (least, estimate);
    }

    /// Launches that nobody measured were seen complete: they were slowed as much as those that were measured last.
    pub fn knows_tail(&mut self, estimate: u64) {
        let (least, of) = self.last_known;
        let part = u128::from(estimate) * u128::from(least) / u128::from(of.max(1));
        let known = if of == 0 { estimate } else { u64::try_from(part).unwrap_or(estimate).min(estimate) };
        self.known = self.known.saturating_add(known);
    }

    /// For how long what was reached at `at` may have run when others had been let in.
    pub fn late(&self, at: u64) -> u64 {
        if self.is_on() && self.is_shut() { at.saturating_sub(self.closed) } else { 0 }
    }

    /// A thread stands at the gate, and it is the daemon that it waits for, or the account.
    pub fn wishes(&mut self, post: &Post, keeper: &Keeper, bounds: &Bounds, now: u64) {
        let Some(place) = self.place.filter(|_| !self.lost) else { return };
        if !self.wants {
            if keeper.in_flight() == 0 {
                self.since = now;
            }
            self.wants = true;
            self.say(post, keeper, bounds, now);
        }
        let first = place.report().wish();
        if first || self.rung == 0 || now.saturating_sub(self.rung) > AGAIN_NS {
            (self.rung, self.ring) = (now, true);
        }
    }

    /// Whether the bell is to be rung, by the caller, without the lock.
    pub fn takes_ring(&mut self) -> bool {
        core::mem::take(&mut self.ring)
    }

    /// What to sleep for until the daemon speaks, and the state that was read.
    pub fn futex(&self) -> Option<(&'static AtomicU32, u32)> {
        self.place.filter(|_| !self.lost).map(|place| (place.board().futex(), self.sequence))
    }

    /// Says it all anew. If nothing is in flight any more and somebody waits for that, the bell is to be rung.
    pub fn say(&mut self, post: &Post, keeper: &Keeper, bounds: &Bounds, now: u64) {
        let Some(place) = self.place.filter(|_| !self.lost) else { return };
        let in_flight = if self.blind { None } else { Some(keeper.left(now, bounds)) };
        let session = place.session;
        place.report().say(&Said {
            busy: post.busy().saturating_sub(self.base),
            finished: self.finished,
            known: self.known,
            submitted: self.submitted,
            launched: self.launched.wrapping_add(post.opened().wrapping_sub(self.opened)),
            in_flight,
            last_launch: session.theirs(self.last),
            since: session.theirs(if in_flight == Some(0) && !self.wants { now } else { self.since }),
        });
        if in_flight == Some(0) && !self.done && (self.is_shut() || !place.board().stands(self.sequence)) {
            (self.done, self.ring) = (true, true);
        }
    }

    /// A look of whoever watches: when to look again; `None`: there is nothing to watch.
    pub fn attend(
        &mut self,
        post: &Post,
        keeper: &Keeper,
        bounds: &Bounds,
        waited_for: bool,
        now: u64,
    ) -> Option<(u64, bool)> {
        self.place.filter(|_| !self.lost)?;
        if self.gate == Gate::Open {
            if self.blind {
                // How many launches went through it.
                self.say(post, keeper, bounds, now);
            }
            // A program that makes no call would not see it shut, and nobody its work complete.
            return self.blind.then_some((now.saturating_add(OPEN_NS), false));
        }
        let mut taints = false;
        if keeper.in_flight() == 0 && !self.blind {
            let Gate::Run { until, .. } = self.gate else {
                self.say(post, keeper, bounds, now);
                let is_idle = !waited_for && now.saturating_sub(self.last) > IDLE_NS;
                return (!is_idle).then_some((now.saturating_add(bounds.heartbeat), false));
            };
            if until == u64::MAX {
                let is_idle = !waited_for && now.saturating_sub(self.last) > IDLE_NS;
                return (!is_idle).then_some((now.saturating_add(BEAT_NS), false));
            }
            let since = *self.idle.get_or_insert(now);
            if now < since.saturating_add(LINGER_NS) {
                return Some((since.saturating_add(LINGER_NS), false));
            }
            if !self.wants && !self.done {
                self.say(post, keeper, bounds, now);
                (self.done, self.ring) = (true, true);
            }
            return Some((now.saturating_add(10 * LINGER_NS), false));
        }
        self.idle = None;
        self.say(post, keeper, bounds, now);
        if self.is_shut() && !self.told && keeper.left(now, bounds) < bounds.handover && !self.blind {
            (self.told, self.ring, taints) = (true, true, true);
        }
        let contended = !matches!(self.gate, Gate::Run { until: u64::MAX, .. });
        let look = if self.blind {
            // Up to a sixteenth of its time is found out late.
            now.saturating_add((now.saturating_sub(self.shut) / 16).clamp(LINGER_NS, 10 * LINGER_NS))
        } else if contended {
            keeper.look(now, bounds)
        } else {
            now.saturating_add(BEAT_NS)
        };
        Some((look, taints))
    }
}
