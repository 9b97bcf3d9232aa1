//! The gate of launches, as pure decisions: may this one go now, and if not, until when to wait.
//!
//! Precision is the time that work already submitted will take, for it cannot be withdrawn. So the gate bounds what
//! is in flight, in estimated time ([`Bounds::in_flight`]); everything else (lease, balance) is somebody else's word.
//! Refinements of "no more than D": a launch of unknown cost waits until no other unknown one is in flight, since
//! a queue of them might be a queue of seconds; of those whose cost was measured a few times only, as many may be in
//! flight together as that many measurements vouch for ([`Guess::doubt`], [`MOST_DOUBT`]); and one launch goes ahead when
//! what runs is about to end, so that the device need not wait for us between two kernels longer than half of D.
//!
//! *Liveness.* What is in flight may wait for the very launch that is held back. If nothing completed for
//! [`Bounds::drain`] beyond the time at which it was expected, one launch passes; each further one waits twice as long,
//! because a kernel that is only longer than expected would else collect a queue behind it. How much longer kernels take
//! than expected is learned ([`Keeper::took`]): beside other tenants' work that is several times. On a stream nothing can
//! wait for what comes behind it, only for what the program does after this launch: if all that is in flight is on the
//! launch's own stream (or is launches of its own function, of unknown length), the first one waits 256 times as long;
//! beside launches of unknown length, eight times. What only doubt holds back waits eight times as long, and no longer each
//! time. A forced launch that was in vain (what it was to set free went on) makes the next four times as patient where there
//! is no balance; one that helped ends that.
//!
//! In reading order: this file, when markers are recorded ([`marks`]), time on several streams ([`union`]), since when
//! work is before the device ([`presence`]), launches that one thread counts by itself ([`credit`]), what holds without the
//! daemon ([`loss`]). Not here: driver calls, clocks, futexes; the account ([`crate::account`]).

pub mod credit;
pub mod loss;
pub mod marks;
pub mod presence;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod union;

use crate::account::Admission;
use crate::account::cost::{Doubt, Guess};
use crate::arbiter::Gate;
use crate::turn::patience::Pending;

/// D of whoever has had a device to itself for long: a program that computes, or is not woken in time, leaves the device
/// without work only after so long. Whoever comes then waits for as much at most, once.
pub const ALONE_NS: u64 = 250_000_000;

/// Durations, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// D: estimated work that may be before the device.
    pub in_flight: u64,
    /// With less than this left to run, one launch goes ahead.
    pub ahead: u64,
    /// With less than this left the device can be given on: about what it takes until the next one launches.
    pub handover: u64,
    /// R: without a completion for so long, one launch passes.
    pub drain: u64,
    /// Longest wait without looking again.
    pub heartbeat: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self::of_quantum(4_000_000)
    }
}

impl Bounds {
    /// The bounds that go with leases of length `quantum`.
    #[must_use]
    pub fn of_quantum(quantum: u64) -> Self {
        Self {
            in_flight: (quantum / 2).min(2_000_000),
            ahead: 100_000,
            handover: 40_000,
            drain: (2 * quantum).max(10_000_000),
            heartbeat: 10_000_000,
        }
    }
}

/// What is asked at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What the launch is believed to cost.
    pub cost: Guess,
    /// The daemon's word, or [`Gate::Run`] without an end where there is none.
    pub gate: Gate,
    /// The account's, with what is in flight by estimate as good as paid: [`crate::account::Account::admit_beside`].
    pub admission: Admission,
    /// Something is in flight on another stream than the launch's, and it is not all launches of the same function, of
    /// unknown length: those are to show first what they cost.
    pub beside: bool,
    /// What of the work in flight does not count, for it is others' and long, and may wait for this: [`goes_beside`].
    pub aside: u64,
    /// The time.
    pub now: u64,
}

/// What the gate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Launch.
    Go,
    /// Launch although it is not allowed: what is in flight may wait for it. Not to be learned from.
    Forced,
    /// Look again at this moment, or when the gate or what is in flight changes.
    Wait(u64),
}

/// What one process has before one device, by estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keeper {
    in_flight: u64,
    doubt: Doubt,
    /// When the oldest of it can have begun to run.
    began: u64,
    /// When a completion was last seen, or a launch forced.
    progress: u64,
    forced: u32,
    ahead: bool,
    /// What was in flight when a launch was forced; 0: none was. It helped if less is, by that moment.
    held: u64,
    helps_until: u64,
    /// Forced launches in a row that did not help.
    vain: u32,
    /// How much longer than expected what completes takes, in eighths of it: of late, and for a good while.
    longer: u64,
    longest: u64,
}

/// Patience is a power of two of [`Bounds::drain`]: behind one's own stream, beside launches of unknown length, and the most.
const OWN: u32 = 8;
const UNKNOWN: u32 = 3;
const MOST: u32 = 8;
/// Nothing is expected to take more than this many eighths longer.
const LONGEST: u64 = 15 * 8;

/// The doubt of launches in flight together, at most.
pub const MOST_DOUBT: u32 = 64;

/// So short a launch goes beside others without a balance for what is in flight ...
const BESIDE_NS: u64 = 100_000;
/// ... or one that is such a part of that: what it costs more than believed, because others ran, does not hold it back.
const BESIDE_PART: u64 = 16;

/// Whether a launch may go beside other streams' work as if that were not there: a short one may be what the work waits for
/// (the part of a collective that tells another device), and to hold it back until the work is over or there is a balance
/// for all of it makes the work longer, on both devices. So the account is asked as if nothing were in flight, and of what is,
/// streams that have more than D before the device do not count ([`Ask::aside`]).
#[must_use]
pub fn goes_beside(cost: Guess, in_flight: u64, beside: bool) -> bool {
    beside && !cost.is_unknown() && cost.ns() <= BESIDE_NS.max(in_flight / BESIDE_PART)
}

impl Keeper {
    /// May a launch go?
    ///
    /// # Cost
    /// A few comparisons; with an open gate one.
    #[inline]
    pub fn ask(&mut self, ask: &Ask, bounds: &Bounds) -> Verdict {
        if matches!(ask.gate, Gate::Open) { Verdict::Go } else { self.consider(ask, bounds) }
    }

    /// As [`Keeper::ask`] and [`Keeper::launched`] in one, where nothing is to be considered: beside work in flight there is
    /// room for a launch of a cost beyond doubt, and gate and account allow it. `false` says nothing.
    ///
    /// # Cost
    /// A few comparisons.
    #[inline]
    pub fn goes_on(&mut self, ask: &Ask, bounds: &Bounds) -> bool {
        let all = self.in_flight.saturating_add(ask.cost.ns());
        let word = matches!(ask.gate, Gate::Run { until, .. } if ask.now < until) || matches!(ask.gate, Gate::Open);
        let goes = word
            && ask.cost.is_sure()
            && self.in_flight > 0
            && all <= bounds.in_flight
            && ask.admission == Admission::Admit;
        if goes {
            self.in_flight = all;
        }
        goes
    }

    fn consider(&mut self, ask: &Ask, bounds: &Bounds) -> Verdict {
        let now = ask.now;
        let word = match ask.gate {
            Gate::Run { until, .. } if now < until => None,
            Gate::Cap { until } => Some(until.max(now + 1)),
            _ => Some(u64::MAX),
        };
        let balance = match ask.admission {
            Admission::Admit => None,
            // What is in flight may turn out shorter than it was counted.
            Admission::WaitUntil(until) if self.in_flight > 0 => Some(until.min(self.glance(now, until, bounds))),
            Admission::WaitUntil(until) => Some(until),
        };
        let room = self.room(ask, bounds);
        if word.is_none() && balance.is_none() && room.is_none() {
            return Verdict::Go;
        }
        let stretch = if matches!(ask.gate, Gate::Run { exclusive: true, .. }) { 1 } else { 3 };
        let doubted = self.is_held_by_doubt(ask, bounds);
        let due = self.due(stretch, ask.beside, doubted, balance.is_some(), bounds);
        if self.in_flight > 0 && now >= due {
            self.progress = now;
            self.forced = (self.forced + 1).min(4);
            if self.held == 0 {
                self.held = self.in_flight;
            }
            self.helps_until = now.saturating_add(bounds.drain).saturating_add(ask.cost.ns());
            return Verdict::Forced;
        }
        let due = if self.in_flight > 0 { due } else { u64::MAX };
        // All that holds it back must pass; a forced launch may come before.
        let until = [word, balance, room].into_iter().flatten().max().unwrap_or(now);
        Verdict::Wait(until.min(due).min(now.saturating_add(bounds.heartbeat)).max(now + 1))
    }

    /// While a launch waits for the balance until `until`, beside work in flight: when to look whether that took less than it
    /// was counted. The device will rest for a while before that moment anyway, so that a look within most of that time is
    /// early enough; under a low ceiling it is the only one.
    fn glance(&self, now: u64, until: u64, bounds: &Bounds) -> u64 {
        let left = self.remaining(now);
        let rest = until.saturating_sub(now).saturating_sub(left);
        now.saturating_add((left / 3).max(rest - rest / 3).max(bounds.ahead / 2))
    }

    /// When there is room for the launch in flight; `None`: now.
    fn room(&mut self, ask: &Ask, bounds: &Bounds) -> Option<u64> {
        if self.in_flight == 0 {
            return None;
        }
        let in_doubt = self.is_in_doubt(ask);
        let counts = self.in_flight.saturating_sub(ask.aside);
        if (counts == 0 || counts.saturating_add(ask.cost.ns()) <= bounds.in_flight) && !in_doubt {
            return None;
        }
        // Half of the allowance early, so that a late wake-up does not leave the device idle.
        let early = self.began.saturating_add(self.in_flight).saturating_sub(bounds.ahead);
        let known = self.doubt.unknown == 0 && !in_doubt && !self.ahead;
        if known && ask.now >= early {
            return None;
        }
        // It may be over sooner: the nearer that is, the closer the looks.
        let look = self.look(ask.now, bounds);
        Some(if known { early.min(look) } else { look })
    }

    /// Whether the launch has to wait until of those in flight one shows what it costs. What other streams' work may wait
    /// for finds room beside it once more.
    #[must_use]
    pub fn is_in_doubt(&self, ask: &Ask) -> bool {
        let (in_flight, one) = (self.doubt, ask.cost.doubt());
        let most = if ask.beside { 2 * MOST_DOUBT } else { MOST_DOUBT };
        in_flight.unknown.min(one.unknown) > 0 || one.young > 0 && in_flight.young.saturating_add(one.young) > most
    }

    /// Whether a launch of known cost is held back by nothing else. What that is to prevent is bounded, so that it goes after a
    /// while that does not grow.
    #[must_use]
    pub fn is_held_by_doubt(&self, ask: &Ask, bounds: &Bounds) -> bool {
        let allowed =
            matches!(ask.gate, Gate::Run { until, .. } if ask.now < until) && ask.admission == Admission::Admit;
        let has_room = self.in_flight.saturating_add(ask.cost.ns()) <= bounds.in_flight;
        allowed && has_room && !ask.cost.is_unknown() && self.is_in_doubt(ask)
    }

    /// When a launch is forced. `doubted`: all else would let it go; `poor`: there is no balance for it.
    fn due(&self, stretch: u64, beside: bool, doubted: bool, poor: bool, bounds: &Bounds) -> u64 {
        // Half of it more: launches of one function differ.
        let longest =
            self.by(self.longer).max(self.in_flight.saturating_mul(stretch)).saturating_add(self.in_flight / 2);
        let expected = self.began.saturating_add(longest);
        let (first, most) = match (beside, self.doubt.unknown) {
            _ if doubted => (UNKNOWN, UNKNOWN),
            (false, _) => (OWN, OWN + 2),
            (true, 0) => (0, MOST),
            (true, _) => (UNKNOWN, MOST),
        };
        let vain = if poor { 2 * self.vain } else { 0 };
        let patience = bounds.drain.saturating_mul(1 << (first + self.forced + vain).min(most));
        if self.forced == 0 {
            expected.max(self.progress).saturating_add(patience)
        } else {
            self.progress.saturating_add(patience)
        }
    }

    /// A launch went to the driver.
    #[inline]
    pub fn launched(&mut self, cost: Guess, now: u64, bounds: &Bounds) {
        if self.in_flight == 0 {
            (self.began, self.progress) = (now, now);
            (self.forced, self.ahead, self.held) = (0, false, 0);
            self.doubt = Doubt::NONE;
        }
        let beside = self.in_flight > 0;
        self.in_flight = self.in_flight.saturating_add(cost.ns());
        self.ahead |= beside && self.in_flight > bounds.in_flight;
        self.doubt = self.doubt.and(cost.doubt());
    }

    /// A launch that was announced by [`Keeper::launched`] was refused by the driver.
    pub fn withdrawn(&mut self, cost: Guess) {
        self.in_flight = self.in_flight.saturating_sub(cost.ns());
        self.doubt = self.doubt.without(cost.doubt());
    }

    /// Launches estimated at `estimate`, with so much doubt, were seen complete; the device had
    /// them done at `at`, no later than now.
    pub fn completed(&mut self, estimate: u64, doubt: Doubt, at: u64) {
        self.in_flight = self.in_flight.saturating_sub(estimate);
        self.doubt = self.doubt.without(doubt);
        self.began = self.began.max(at);
        self.progress = self.progress.max(at);
        (self.forced, self.ahead) = (0, false);
        if self.held > 0 && self.in_flight < self.held {
            self.vain = if at <= self.helps_until { 0 } else { (self.vain + 1).min(4) };
            self.held = 0;
        }
    }

    /// Launches of known cost, estimated at `estimate`, took `spent`. Whoever has neighbours learns here how much longer
    /// that makes them.
    pub fn took(&mut self, estimate: u64, spent: u64) {
        let eighths = spent.saturating_mul(8) / estimate.max(1);
        let longer = eighths.saturating_sub(8).min(LONGEST);
        let after = |was: u64, part: u64| longer.max(was - was.saturating_sub(longer).div_ceil(part));
        (self.longer, self.longest) = (after(self.longer, 8), after(self.longest, 32));
    }

    /// What is in flight, if it takes so many eighths longer than expected.
    const fn by(&self, eighths: u64) -> u64 {
        self.in_flight.saturating_add(self.in_flight.saturating_mul(eighths) / 8)
    }

    /// The doubt of launches before the device that were measured, but not often enough.
    #[inline]
    #[must_use]
    pub const fn young(&self) -> u32 {
        self.doubt.young
    }

    /// Whether something before the device was never measured.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        self.doubt.unknown > 0
    }

    /// Estimated work before the device.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// What it has of the device by `now`, seen complete or not: what was estimated, or as long as it has been there.
    #[must_use]
    pub const fn had(&self, now: u64) -> u64 {
        let lasted = now.saturating_sub(self.began);
        if self.in_flight > 0 && lasted > self.in_flight { lasted } else { self.in_flight }
    }

    /// What of it is left at `now`, if the device works for nobody else.
    #[must_use]
    pub const fn remaining(&self, now: u64) -> u64 {
        self.in_flight.saturating_sub(now.saturating_sub(self.began))
    }

    /// What the tenant's other members wait for.
    #[must_use]
    pub const fn pending(&self) -> Pending {
        Pending { began: self.began, estimate: self.in_flight, is_unknown: self.is_unknown() }
    }

    /// When the work before the device should be over, by estimate, if the device works for nobody else.
    #[must_use]
    pub const fn expected(&self) -> u64 {
        self.began.saturating_add(self.in_flight)
    }

    /// What is left of it at `now`, believing that long launches take as long as the longest did for a good while.
    #[must_use]
    pub fn lasts(&self, now: u64, bounds: &Bounds) -> u64 {
        let all = if self.in_flight > bounds.in_flight { self.by(self.longest) } else { self.in_flight };
        all.saturating_sub(now.saturating_sub(self.began))
    }

    /// What is said of it to the daemon: 0 only if all was seen complete, `u64::MAX` if it takes longer than expected.
    /// The end of a long launch cannot be foretold to the microsecond, so that it never counts as about to end.
    #[must_use]
    pub fn left(&self, now: u64, bounds: &Bounds) -> u64 {
        match (self.in_flight, self.lasts(now, bounds)) {
            (0, _) => 0,
            (_, 0) => u64::MAX,
            (all, left) if all > bounds.in_flight => left.max(bounds.handover),
            (_, left) => left,
        }
    }

    /// While somebody waits for the device: when to look whether the work is done.
    #[must_use]
    pub fn look(&self, now: u64, bounds: &Bounds) -> u64 {
        // Launches of one function differ: the nearer the end, the closer the looks. What takes longer than expected is
        // looked at less and less: up to a sixteenth of its time is found out late.
        let late = now.saturating_sub(self.began.saturating_add(self.in_flight));
        if late > 0 {
            return now.saturating_add((late / 16).clamp(bounds.ahead / 4, 1_000_000));
        }
        let left = self.remaining(now);
        let pause = if left > bounds.ahead {
            (left / 4).clamp(bounds.ahead / 2, 1_000_000).saturating_sub(bounds.handover / 2).max(bounds.ahead / 4)
        } else if left >= bounds.handover {
            // As soon as it counts as about to end: who wakes up late is still in time to say so.
            (left - bounds.handover).saturating_add(bounds.handover / 16)
        } else {
            left.saturating_sub(bounds.handover / 2).max(bounds.ahead / 4)
        };
        now.saturating_add(pause)
    }
}
