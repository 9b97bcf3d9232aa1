//! The launch gate, as pure decisions: may this launch go now, and if not, when to ask again.
//!
//! Submitted work cannot be withdrawn, so the accuracy of shares depends on how long it will run. The gate therefore
//! bounds the estimated work in flight ([`LaunchGate::limit`], called D). The lease and the balance are inputs that
//! others decide. Three rules refine "no more than D":
//! - A launch of unknown cost waits until no other unknown launch is in flight, because a queue of them might last
//!   seconds.
//! - Launches whose cost was measured only a few times share one allowance ([`CostGuess::doubt_of`],
//!   [`LaunchGate::is_in_doubt`]).
//! - One launch goes ahead when the running work is about to end. Otherwise the device would be idle between any two
//!   kernels longer than half of D.
//!
//! *Liveness.* Work in flight may be waiting for the very launch that the gate holds. The gate therefore forces one
//! launch if nothing completes for [`BASE`]`.drain` beyond the expected end. Each further forced launch waits twice as
//! long, until work ends while lease and balance allow a launch. Otherwise a kernel that merely runs long would collect
//! a queue behind it, and a program on two streams, whose launches are all of unknown length, would have all of them
//! forced. [`LaunchGate::learn_slowdown`] learns how much longer kernels take than expected: next to other tenants'
//! work, several times longer.
//!
//! A launch whose own stream has all the work in flight, or whose function has, at unknown cost, waits 256 times as
//! long at once. A kernel cannot depend on later work in its own stream, only on what the program does after this
//! launch. A launch that only low-confidence estimates hold back waits [`KNOWN_WAIT_NS`], and never longer.
//!
//! A forced launch fails if the work that it was meant to release kept running. Each failure makes the next wait four
//! times as long; a success resets that.
//!
//! In reading order: this file, when to record event markers ([`marks`]), time on several streams ([`union`]), since
//! when a process has had work queued ([`presence`]), launches that one thread counts by itself ([`credit`]), rules
//! for a missing daemon ([`loss`]). Not here: driver calls, clocks, futexes; the account ([`crate::time::account`]).

pub mod credit;
pub mod loss;
pub mod marks;
pub mod presence;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod union;

use crate::time::account::Admission;
use crate::time::account::cost::{CostDoubt, CostGuess, NEW_DOUBT};
use crate::time::arbiter::Gate;
use crate::time::config::{BASE, KNOWN_WAIT_NS, SHORT_NS, deadline, small_part};
use crate::time::recent_most::RecentMost;
use crate::time::turn::patience::PendingWork;

/// One question to the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchRequest {
    /// The launch's estimated device time.
    pub cost: CostGuess,
    /// The daemon's decision; [`Gate::Run`] without an end where there is no daemon.
    pub gate: Gate,
    /// The account's decision, with the balance reduced by the estimated work in flight:
    /// [`crate::time::account::Account::admit_beside`].
    pub admission: Admission,
    /// True if another stream than the launch's has work in flight. Work that is only launches of the launch's own
    /// function at unknown cost does not count: those must first be measured.
    pub beside: bool,
    /// Estimated work in flight that does not count against [`LaunchGate::limit`]: long work of other streams, which
    /// may be waiting for this launch ([`goes_beside`]).
    pub aside: u64,
    /// The current time, in ns.
    pub now: u64,
}

/// The gate's answer to a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateVerdict {
    /// The launch may go now.
    Go,
    /// Launch although a rule forbids it, because the work in flight may be waiting for it. Do not learn costs from
    /// it.
    Forced,
    /// Ask again at this time, or when the gate or the work in flight changes.
    Wait(u64),
}

/// The launch gate's state: one process's estimated work on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchGate {
    /// D: the most estimated work that may be queued on the device.
    limit: u64,
    in_flight: u64,
    doubt: CostDoubt,
    /// The earliest time at which the oldest work in flight can have started.
    began: u64,
    /// When work was last seen complete, or a launch was last forced (let through against a rule).
    progress: u64,
    /// Number of launches that were forced since work last ended while lease and balance allowed a launch.
    forced: u32,
    /// True if lease or balance held back the launch that asked last.
    is_barred: bool,
    ahead: bool,
    /// Work in flight when a launch was forced; 0: none was.
    held: u64,
    /// The forced launch helped if less than `held` is in flight by this time.
    helps_until: u64,
    /// Forced launches in a row that did not help.
    vain: u32,
    /// How much longer than expected the worst recent work took, in eighths of the estimate.
    overrun: RecentMost,
}

impl Default for LaunchGate {
    fn default() -> Self {
        Self {
            limit: BASE.in_flight,
            in_flight: 0,
            doubt: CostDoubt::NO_DOUBT,
            began: 0,
            progress: 0,
            forced: 0,
            is_barred: false,
            ahead: false,
            held: 0,
            helps_until: 0,
            vain: 0,
            overrun: RecentMost::default(),
        }
    }
}

/// Most doublings of [`BASE`]`.drain` that a launch waits, after the work in flight is late, before it is forced: 10 ms
/// become 2.6 s.
const MAX_DOUBLINGS: u32 = 8;

/// True if a launch may ignore the long work of other streams.
///
/// Other streams' work may be waiting for a short launch, such as the part of a collective that signals another
/// device. Holding that launch until the work ends, or until the balance covers all of it, makes the work longer on
/// both devices. Other work can slow a launch beyond its estimate, so a launch of at most a [`small_part`] of that work
/// counts as short too. The caller asks the account as if nothing were in flight. Streams with more than
/// [`LaunchGate::limit`] in flight do not count ([`LaunchRequest::aside`]).
#[must_use]
pub fn goes_beside(cost: CostGuess, in_flight: u64, beside: bool) -> bool {
    beside && !cost.is_unknown() && cost.as_ns() <= SHORT_NS.max(small_part(in_flight))
}

impl LaunchGate {
    /// Sets D, the most estimated work that may be queued on the device. At least 1.
    pub fn set_limit(&mut self, in_flight: u64) {
        self.limit = in_flight.max(1);
    }

    /// D: the most estimated work that may be queued on the device.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Decides whether a launch may go.
    ///
    /// # Cost
    /// A few comparisons; with an open gate one.
    #[inline]
    pub fn ask_gate(&mut self, ask: &LaunchRequest) -> GateVerdict {
        if matches!(ask.gate, Gate::Open) { GateVerdict::Go } else { self.consider_launch(ask) }
    }

    /// [`LaunchGate::ask_gate`] and [`LaunchGate::note_launch`] in one step, for the common case: other work is in
    /// flight, D has room, the cost is certain, and gate and account allow the launch. `false` decides nothing; call
    /// [`LaunchGate::ask_gate`].
    ///
    /// # Cost
    /// A few comparisons.
    #[inline]
    pub fn goes_on(&mut self, ask: &LaunchRequest) -> bool {
        let all = self.in_flight.saturating_add(ask.cost.as_ns());
        let word = matches!(ask.gate, Gate::Run { until, .. } if ask.now < until) || matches!(ask.gate, Gate::Open);
        let goes =
            word && ask.cost.is_sure() && self.in_flight > 0 && all <= self.limit && ask.admission == Admission::Admit;
        if goes {
            self.in_flight = all;
        }
        goes
    }

    fn consider_launch(&mut self, ask: &LaunchRequest) -> GateVerdict {
        let now = ask.now;
        let word = match ask.gate {
            Gate::Run { until, .. } if now < until => None,
            // After that moment the member waits for the daemon's next word, as at a closed gate.
            Gate::Cap { until } if now < until => Some(until),
            _ => Some(u64::MAX),
        };
        let balance = match ask.admission {
            Admission::Admit => None,
            // The work in flight may turn out shorter than its estimate.
            Admission::WaitUntil(until) if self.in_flight > 0 => Some(until.min(self.next_glance(now, until))),
            Admission::WaitUntil(until) => Some(until),
        };
        let room = self.room_from(ask);
        self.is_barred = word.is_some() || balance.is_some();
        if word.is_none() && balance.is_none() && room.is_none() {
            return GateVerdict::Go;
        }
        let due = self.forced_at(ask.beside, self.is_held_by_doubt(ask));
        if self.in_flight > 0 && now >= due {
            self.progress = now;
            self.forced = (self.forced + 1).min(MAX_DOUBLINGS);
            if self.held == 0 {
                self.held = self.in_flight;
            }
            self.helps_until = now.saturating_add(BASE.drain).saturating_add(ask.cost.as_ns());
            return GateVerdict::Forced;
        }
        let due = if self.in_flight > 0 { due } else { u64::MAX };
        // Every reason to wait must pass; a forced launch may come before.
        let until = [word, balance, room].into_iter().flatten().max().unwrap_or(now);
        GateVerdict::Wait(until.min(due).min(now.saturating_add(BASE.heartbeat)).max(now + 1))
    }

    /// When to check whether the work in flight took less than its estimate, while a launch waits for the balance
    /// until `until`. The device will be idle for a while before `until` anyway. A check after two thirds of that
    /// idle time is early enough; under a low ceiling it is the only one.
    fn next_glance(&self, now: u64, until: u64) -> u64 {
        let left = self.remaining_ns(now);
        let rest = until.saturating_sub(now).saturating_sub(left);
        now.saturating_add((left / 3).max(rest - rest / 3).max(SHORT_NS / 2))
    }

    /// When so much of the work in flight will be done that the launch fits under its bound; `None`: now.
    fn room_from(&mut self, ask: &LaunchRequest) -> Option<u64> {
        if self.in_flight == 0 {
            return None;
        }
        let in_doubt = self.is_in_doubt(ask);
        let counts = self.in_flight.saturating_sub(ask.aside);
        if (counts == 0 || counts.saturating_add(ask.cost.as_ns()) <= self.limit) && !in_doubt {
            return None;
        }
        // Early by [`SHORT_NS`], so that a late wake-up does not leave the device idle.
        let early = self.began.saturating_add(self.in_flight).saturating_sub(SHORT_NS);
        let known = self.doubt.unknown == 0 && !in_doubt && !self.ahead;
        if known && ask.now >= early {
            return None;
        }
        // The work may end sooner: check more often as the expected end comes near.
        let look = self.next_look(ask.now);
        Some(if known { early.min(look) } else { look })
    }

    /// True if the launch must wait until one of those in flight has been measured. Two launches that were measured
    /// once may be in flight together, and as many again where other streams' work may be waiting for them.
    #[must_use]
    pub fn is_in_doubt(&self, ask: &LaunchRequest) -> bool {
        let (in_flight, one) = (self.doubt, ask.cost.doubt_of());
        let most = if ask.beside { 4 * NEW_DOUBT } else { 2 * NEW_DOUBT };
        in_flight.unknown.min(one.unknown) > 0 || one.young > 0 && in_flight.young.saturating_add(one.young) > most
    }

    /// True if only low-confidence estimates hold back a launch of known cost. The harm that this wait prevents is
    /// bounded, so the launch is forced after a wait that never grows.
    #[must_use]
    pub fn is_held_by_doubt(&self, ask: &LaunchRequest) -> bool {
        let allowed =
            matches!(ask.gate, Gate::Run { until, .. } if ask.now < until) && ask.admission == Admission::Admit;
        let has_room = self.in_flight.saturating_add(ask.cost.as_ns()) <= self.limit;
        allowed && has_room && !ask.cost.is_unknown() && self.is_in_doubt(ask)
    }

    /// When a waiting launch is let through against the rules, because the work in flight may be waiting for it.
    /// `doubted`: only low confidence holds it back.
    fn forced_at(&self, beside: bool, doubted: bool) -> u64 {
        let longest = self.end_if_longer().min(self.in_flight.max(BASE.stuck));
        let doublings = if beside { self.forced + 2 * self.vain } else { MAX_DOUBLINGS };
        let patience = if doubted { KNOWN_WAIT_NS } else { BASE.drain << doublings.min(MAX_DOUBLINGS) };
        let since = if self.forced == 0 { deadline(self.began, longest, 0).max(self.progress) } else { self.progress };
        since.saturating_add(patience)
    }

    /// Counts a launch that the caller passes to the driver.
    #[inline]
    pub fn note_launch(&mut self, cost: CostGuess, now: u64) {
        if self.in_flight == 0 {
            (self.began, self.progress) = (now, now);
            (self.forced, self.ahead, self.held) = (0, false, 0);
            self.doubt = CostDoubt::NO_DOUBT;
        }
        let beside = self.in_flight > 0;
        self.in_flight = self.in_flight.saturating_add(cost.as_ns());
        self.ahead |= beside && self.in_flight > self.limit;
        self.doubt = self.doubt.add_doubt(cost.doubt_of());
    }

    /// Takes back a launch that was counted by [`LaunchGate::note_launch`] and that the driver refused.
    pub fn undo_launch(&mut self, cost: CostGuess) {
        self.in_flight = self.in_flight.saturating_sub(cost.as_ns());
        self.doubt = self.doubt.subtract_doubt(cost.doubt_of());
    }

    /// Counts launches as complete: `estimate` of work with this `doubt`. The device finished them at `at`, which is
    /// not in the future.
    pub fn note_completed(&mut self, estimate: u64, doubt: CostDoubt, at: u64) {
        self.in_flight = self.in_flight.saturating_sub(estimate);
        self.doubt = self.doubt.subtract_doubt(doubt);
        self.began = self.began.max(at);
        self.progress = self.progress.max(at);
        self.ahead = false;
        if !self.is_barred {
            self.forced = 0;
        }
        if self.held > 0 && self.in_flight < self.held {
            self.vain = if at <= self.helps_until { 0 } else { (self.vain + 1).min(4) };
            self.held = 0;
        }
    }

    /// Learns how much longer than their `estimate` launches of known cost took (`spent`). Neighbours on the device
    /// cause that.
    pub fn learn_slowdown(&mut self, estimate: u64, spent: u64) {
        let eighths = spent.saturating_mul(8) / estimate.max(1);
        self.overrun.note(eighths.saturating_sub(8));
    }

    /// The work in flight, if it overruns as much as the worst recent work did.
    const fn end_if_longer(&self) -> u64 {
        self.in_flight.saturating_add(self.in_flight.saturating_mul(self.overrun.get()) / 8)
    }

    /// The sum of [`CostDoubt::young`] over launches in flight: those measured, but not often enough.
    #[inline]
    #[must_use]
    pub const fn young_doubt(&self) -> u32 {
        self.doubt.young
    }

    /// True if a launch in flight was never measured.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        self.doubt.unknown > 0
    }

    /// Estimated work in flight of this process on the device, in ns.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Device time that the work in flight had by `now`: its estimate, or the time since it started if that is
    /// longer.
    #[must_use]
    pub const fn device_time_by(&self, now: u64) -> u64 {
        let lasted = now.saturating_sub(self.began);
        if self.in_flight > 0 && lasted > self.in_flight { lasted } else { self.in_flight }
    }

    /// Estimated work left at `now`, if the device serves nobody else.
    #[must_use]
    pub const fn remaining_ns(&self, now: u64) -> u64 {
        self.in_flight.saturating_sub(now.saturating_sub(self.began))
    }

    /// The work that the tenant's other members wait for.
    #[must_use]
    pub const fn pending_work(&self) -> PendingWork {
        PendingWork { began: self.began, estimate: self.in_flight, is_unknown: self.is_unknown() }
    }

    /// When the work in flight should end by estimate, if the device serves nobody else.
    #[must_use]
    pub const fn expected_end(&self) -> u64 {
        self.began.saturating_add(self.in_flight)
    }

    /// Work left at `now`. Above D it assumes that launches overrun as much as the worst recent ones did.
    #[must_use]
    pub fn cautious_remaining(&self, now: u64) -> u64 {
        let all = if self.in_flight > self.limit { self.end_if_longer() } else { self.in_flight };
        all.saturating_sub(now.saturating_sub(self.began))
    }

    /// The work left as reported to the daemon: 0 only if all was seen complete, `u64::MAX` if it takes longer than
    /// expected. The end of a long launch cannot be predicted to the microsecond, so above D the answer is never less
    /// than [`BASE`]`.handover`.
    #[must_use]
    pub fn reported_remaining(&self, now: u64) -> u64 {
        match (self.in_flight, self.cautious_remaining(now)) {
            (0, _) => 0,
            (_, 0) => u64::MAX,
            (all, left) if all > self.limit => left.max(BASE.handover),
            (_, left) => left,
        }
    }

    /// While others wait for the device: when to check whether the work is done.
    #[must_use]
    pub fn next_look(&self, now: u64) -> u64 {
        // Launches of one function differ: check more often as the expected end comes near. Check overdue work less
        // and less often: at most a sixteenth of its overrun is noticed late.
        let (least, most) = (SHORT_NS / 4, BASE.quantum / 4);
        let late = now.saturating_sub(self.began.saturating_add(self.in_flight));
        if late > 0 {
            return now.saturating_add(small_part(late).clamp(least, most));
        }
        let left = self.remaining_ns(now);
        let pause = if left > SHORT_NS {
            (left / 4).clamp(SHORT_NS / 2, most).saturating_sub(BASE.handover / 2).max(least)
        } else if left >= BASE.handover {
            // The moment the work counts as about to end: a thread that wakes up late can still report that in time.
            (left - BASE.handover).saturating_add(small_part(BASE.handover))
        } else {
            left.saturating_sub(BASE.handover / 2).max(least)
        };
        now.saturating_add(pause)
    }
}
