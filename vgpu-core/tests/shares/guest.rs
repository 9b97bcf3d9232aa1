//! The library's part inside a member: event markers, usage meter, gate. vgpu-core makes the decisions ([`LaunchGate`],
//! [`Marks`], [`TimeUnion`], [`CostTable`]). This file is the mechanism around them, on the model's device.

use crate::device::{Context, Kind};
use std::collections::VecDeque;
use vgpu_core::time::account::arrears::{Arrears, UsualTimes, rest_due};
use vgpu_core::time::account::cost::{CostGuess, CostTable, is_far};
use vgpu_core::time::account::lead::{IdleSample, LeadEstimate};
use vgpu_core::time::account::{Account, Admission};
use vgpu_core::time::arbiter::{Gate, MemberUsage};
use vgpu_core::time::config::{BASE, deadline};
use vgpu_core::time::gate::marks::{OpenInterval, StreamMarkers, has_kept_up};
use vgpu_core::time::gate::union::TimeUnion;
use vgpu_core::time::gate::{LaunchGate, goes_beside};
use vgpu_core::units::share::Share;

/// Time in ns after a tail's expected end when the tail counts as complete. A tail is the work after a stream's last
/// event marker.
const TAIL_SLACK: u64 = 50_000;
/// Time in ns after which a stream's next tail is measured again.
const TAIL_EVERY: u64 = 20_000_000;
/// Tails measured in a row after one whose length was far from its estimate.
const AGAIN: u32 = 8;
/// Most work in ns of other streams with which a stream's measured time still counts as its own.
const BESIDE: u64 = 100_000;
/// Resolution of an event marker's timestamp in ns.
const TICK: u64 = 500;

struct Interval {
    begin: Option<usize>,
    end: usize,
    /// End of the call that recorded the end marker.
    recorded: u64,
    open: OpenInterval,
    /// Estimated work that was launched into all streams between its markers.
    all: u64,
    /// Each launched function with its estimated cost.
    keys: Vec<(u64, u64)>,
    /// Host time of the calls that recorded the begin marker and made the first launch.
    calls: [u64; 2],
    /// End of the call that recorded the begin marker.
    begun: u64,
    /// False if other work is known to lie behind the begin marker.
    is_apart: bool,
    tainted: bool,
}

#[derive(Default)]
struct Stream {
    marks: StreamMarkers,
    begin: Option<usize>,
    calls: [u64; 2],
    begun: u64,
    is_apart: bool,
    /// Work that had been launched into all streams at the begin of the open work.
    from: u64,
    keys: Vec<(u64, u64)>,
    tainted: bool,
    pending: VecDeque<Interval>,
    last: Option<usize>,
    /// Time when a tail was measured last.
    tailed: u64,
    /// Number of further tails to measure.
    again: u32,
}

pub struct Guest {
    pub keeper: LaunchGate,
    pub gate: Gate,
    /// Time by which the work in flight had to be complete when the gate closed.
    pub closed: u64,
    pub costs: CostTable<64>,
    /// Costs learned while other members used the device. They suffice to bound the work in flight, not to pay by.
    rough: CostTable<64>,
    streams: Vec<Stream>,
    union: TimeUnion,
    /// Estimated work that was launched into all streams so far.
    launched: u64,
    /// Device time at which each event marker was reached.
    pub markers: Vec<u64>,
    pub ceiling: Option<Share>,
    pub account: Account,
    /// True if there is no daemon.
    is_alone: bool,
    /// True if this member's own account enforces the ceiling: without a daemon, and in a lease that nobody waits for.
    own: bool,
    usual: UsualTimes,
    pub arrears: Arrears,
    pub busy: u64,
    pub finished: u64,
    pub wants: bool,
    /// Time since which a launch is wanted or in flight.
    pub since: u64,
    /// True after launches through an open gate: the work in flight is unknown.
    pub blind: bool,
    /// Time when that gate closed.
    pub shut: u64,
    lead: LeadEstimate,
    /// Deliberate error: measured times are multiplied by this and divided by 1000.
    pub bias: u64,
    /// Undisturbed costs: the time of launches when no process slows them, not even an unseen one.
    pub least: CostTable<64>,
    /// Completed launches at their undisturbed cost.
    known: u64,
    /// Undisturbed cost and estimate of the launches that were measured last.
    last_known: (u64, u64),
}

pub const NEVER: u64 = u64::MAX;

impl Guest {
    pub fn new(gate: Gate, ceiling: Option<Share>) -> Self {
        let mut account = Account::default();
        account.note_idle(0);
        Self {
            keeper: LaunchGate::default(),
            gate,
            closed: 0,
            costs: CostTable::new(),
            rough: CostTable::new(),
            streams: (0..8).map(|_| Stream::default()).collect(),
            union: TimeUnion::default(),
            launched: 0,
            markers: Vec::new(),
            ceiling,
            account,
            is_alone: ceiling.is_some(),
            own: ceiling.is_some(),
            usual: UsualTimes::default(),
            arrears: Arrears::default(),
            busy: 0,
            finished: 0,
            wants: false,
            since: 0,
            blind: false,
            shut: 0,
            lead: LeadEstimate::default(),
            bias: 1000,
            least: CostTable::new(),
            known: 0,
            last_known: (0, 0),
        }
    }

    pub fn set_gate(&mut self, gate: Gate, now: u64) {
        if let Gate::Run { ceiling: Some((share, account)), .. } = gate {
            (self.ceiling, self.account) = (Some(share), account);
        } else if let Gate::Run { ceiling: None, .. } = gate {
            self.ceiling = None;
        }
        if self.gate == Gate::Open && gate != Gate::Open {
            self.shut = now;
        }
        if matches!(gate, Gate::Wait | Gate::Cap { .. }) && !matches!(self.gate, Gate::Wait | Gate::Cap { .. }) {
            // Draining work gets its own length, half of it again, and the drain allowance.
            let left = self.keeper.cautious_remaining(now);
            self.closed = deadline(now, left, BASE.drain);
        }
        if !self.is_alone {
            self.own = matches!(gate, Gate::Run { until: u64::MAX, ceiling: Some(_), .. });
        }
        self.gate = gate;
    }

    /// Estimated cost of a launch.
    pub fn cost(&self, key: u64) -> CostGuess {
        self.costs.measured_cost(key).unwrap_or_else(|| self.rough.guess_cost(key))
    }

    fn ripen(&self, key: u64) {
        self.costs.age_doubt(key);
        self.rough.age_doubt(key);
    }

    pub fn admission(&self, cost: CostGuess, beside: bool, now: u64) -> Admission {
        let ask =
            |in_flight| self.ceiling.map_or(Admission::Admit, |share| self.account.admit_beside(in_flight, share, now));
        match ask(self.keeper.in_flight()) {
            Admission::WaitUntil(_) if self.own && goes_beside(cost, self.keeper.in_flight(), beside) => ask(0),
            admission => admission,
        }
    }

    /// The work from the open gate completed at `at`. Since the gate closed it used the device at the same time as
    /// others.
    pub fn sees(&mut self, at: u64) {
        self.blind = false;
        self.charge(at.saturating_sub(self.shut), 0);
    }

    /// Pays for `ns`, of which `excess` is far beyond the usual.
    fn charge(&mut self, ns: u64, excess: u64) {
        let [ns, excess] = [ns, excess].map(|ns| ns * self.bias / 1000);
        self.busy += ns;
        if let Some(share) = self.ceiling {
            let instalment = rest_due(self.arrears.take_instalment(ns - excess), share);
            self.arrears.defer_excess(excess);
            self.account.pay_exactly(ns - excess + instalment, share);
            self.account.pay_exactly(excess, Share::WHOLE_DEVICE);
        }
    }

    fn marker(&mut self) -> usize {
        self.markers.push(NEVER);
        self.markers.len() - 1
    }

    /// Before a launch: settles a tail. Returns the begin marker to record, if any.
    pub fn before(
        &mut self,
        stream: usize,
        cost: CostGuess,
        context: &Context,
        calls: [u64; 2],
        now: u64,
    ) -> Option<usize> {
        if self.keeper.in_flight() == 0 && !self.wants {
            self.since = now;
            self.account.note_idle(now);
        }
        self.wants = false;
        let idle = context.idle(stream) && self.streams[stream].marks.pending_intervals() == 0;
        let clear = self.clear(stream, context);
        let only = (0..self.streams.len()).all(|other| other == stream || context.idle(other));
        let here = &mut self.streams[stream];
        here.marks.sample_tail(only && now.saturating_sub(here.tailed) > TAIL_EVERY);
        let before = here.marks.before_launch(cost, idle, clear);
        if idle {
            // A sample of another stream over several launches would contain this launch as well.
            let others = self.streams.iter_mut().enumerate().filter(|(other, _)| *other != stream);
            others.filter(|(_, other)| other.marks.samples_tail()).for_each(|(_, other)| other.marks.doubt_interval());
        }
        if let Some(tail) = before.tail {
            // The tail is complete, but it was not measured.
            self.streams[stream].keys.iter().for_each(|&(key, _)| self.ripen(key));
            self.tail(stream, tail, now);
        }
        let begin = before.begin.then(|| self.marker());
        let mut others = self.streams.iter().enumerate().filter(|(other, _)| *other != stream);
        let is_apart =
            self.keeper.remaining_ns(now) <= BASE.handover || others.all(|(_, other)| other.marks.open().is_none());
        let here = &mut self.streams[stream];
        if idle {
            here.is_apart = is_apart;
            (here.begin, here.calls, here.begun) = (begin, calls, now + calls[0]);
            // The other streams' work in flight is done before the launch.
            here.from = self.launched.saturating_sub(self.keeper.remaining_ns(now));
        }
        begin
    }

    fn tail(&mut self, stream: usize, tail: OpenInterval, now: u64) {
        self.charge(tail.estimate, 0);
        self.finished += tail.estimate;
        let (least, of) = self.last_known;
        self.known += (tail.estimate * least).checked_div(of).unwrap_or(tail.estimate).min(tail.estimate);
        self.keeper.note_completed(tail.estimate, tail.doubt, now);
        let here = &mut self.streams[stream];
        here.keys.clear();
        // The next sample cannot start from the marker before the tail.
        (here.begin, here.last, here.tainted) = (None, None, false);
    }

    /// After a launch: returns the end marker to record, if any.
    pub fn after(&mut self, stream: usize, key: u64, cost: CostGuess, forced: bool, now: u64) -> Option<usize> {
        self.keeper.note_launch(cost, now);
        self.launched += cost.as_ns();
        let here = &mut self.streams[stream];
        if here.keys.iter().all(|one| one.0 != key) {
            here.keys.push((key, cost.as_ns()));
        }
        if forced {
            self.streams.iter_mut().for_each(|stream| stream.tainted = true);
            self.streams.iter_mut().flat_map(|stream| &mut stream.pending).for_each(|interval| interval.tainted = true);
        }
        let here = &mut self.streams[stream];
        here.tainted |= !matches!(self.gate, Gate::Run { exclusive: true, .. });
        let open = here.marks.after_launch(cost)?;
        let here = &mut self.streams[stream];
        if open.tail {
            (here.tailed, here.again) = if here.again > 0 { (0, here.again - 1) } else { (now, 0) };
        }
        Some(self.ends(stream, open))
    }

    /// Notes that the call that recorded the latest end marker returned at `at`.
    pub fn was_recorded(&mut self, stream: usize, at: u64) {
        self.streams[stream].pending.back_mut().into_iter().for_each(|interval| interval.recorded = at);
    }

    /// True if the program should wait until the stream is idle before a launch of `cost`, because that is to be
    /// measured.
    pub fn wants_idle(&self, stream: usize, cost: CostGuess) -> bool {
        self.streams[stream].marks.wants_idle(cost.as_ns())
    }

    /// A member waits for the end of uncertain work: returns the marker to record after it if there is none.
    pub fn close(&mut self, stream: usize) -> Option<usize> {
        let marks = &mut self.streams[stream].marks;
        marks.open().filter(|open| open.doubt.young > 0)?;
        let open = marks.close()?;
        Some(self.ends(stream, open))
    }

    fn ends(&mut self, stream: usize, open: OpenInterval) -> usize {
        let end = self.marker();
        let here = &mut self.streams[stream];
        here.pending.push_back(Interval {
            begin: here.begin.take(),
            end,
            recorded: 0,
            open,
            all: self.launched.saturating_sub(std::mem::replace(&mut here.from, self.launched)),
            keys: std::mem::take(&mut here.keys),
            calls: here.calls,
            begun: here.begun,
            is_apart: here.is_apart,
            tainted: std::mem::take(&mut here.tainted),
        });
        end
    }

    /// True if another stream has work in flight, unless all of it is this same function with an unknown cost.
    pub fn beside(&self, stream: usize, key: u64) -> bool {
        let unknown = self.cost(key).is_unknown();
        let busy = |other: &Stream| {
            let mut keys = other.pending.iter().flat_map(|interval| &interval.keys).chain(&other.keys);
            let differs = keys.any(|&(one, _)| one != key);
            (other.marks.pending_intervals() > 0 || other.marks.open().is_some()) && (differs || !unknown)
        };
        self.streams.iter().enumerate().any(|(at, other)| at != stream && busy(other))
    }

    /// True if all work in flight on other streams is measured.
    fn clear(&self, stream: usize, context: &Context) -> bool {
        let unmeasured = |other: &Stream| {
            let pending = other.pending.iter().any(|interval| !interval.open.measured);
            pending || other.marks.open().is_some_and(|open| !open.measured)
        };
        !self.streams.iter().enumerate().any(|(at, other)| at != stream && unmeasured(other) && !context.idle(at))
    }

    /// Estimated work in flight of each other stream.
    fn others(&self, stream: usize) -> impl Iterator<Item = u64> {
        let of = |other: &Stream| {
            let pending: u64 = other.pending.iter().map(|interval| interval.open.estimate).sum();
            pending + other.marks.open().map_or(0, |open| open.estimate)
        };
        self.streams.iter().enumerate().filter(move |(at, _)| *at != stream).map(move |(_, other)| of(other))
    }

    /// Sum of the work in flight of those other streams that exceed the bound.
    pub fn long(&self, stream: usize) -> u64 {
        self.others(stream).filter(|&other| self.own && other > self.keeper.limit()).sum()
    }

    fn stamp(&self, marker: usize) -> u64 {
        self.markers[marker] / TICK * TICK
    }

    /// Charges completed samples in the order of completion. If several streams ran at the same time, the first one
    /// counted is taken for the one that worked, and its functions for that expensive.
    pub fn reap(&mut self) {
        loop {
            let ends = self.streams.iter().enumerate().filter_map(|(at, stream)| {
                let end = self.markers[stream.pending.front()?.end];
                (end != NEVER).then_some((end, at))
            });
            let Some((reached, stream)) = ends.min() else { return };
            let Some(interval) = self.streams[stream].pending.pop_front() else { return };
            let begin = interval.begin.or(self.streams[stream].last).filter(|_| interval.open.measured);
            let end = self.stamp(interval.end);
            let length = begin.map_or(0, |begin| end.saturating_sub(self.stamp(begin)));
            let kept_up = has_kept_up(interval.open.launches, reached.saturating_sub(interval.recorded), length);
            let begin = begin.filter(|_| !kept_up || interval.open.doubt.unknown > 0);
            let idle = IdleSample {
                key: interval.keys.first().map_or(0, |one| one.0),
                elapsed: length,
                calls: interval.calls,
                apart: interval.recorded.saturating_sub(interval.begun),
            };
            let lead = if interval.begin.is_some() { self.lead.lead_of(idle.key, interval.calls, 0) } else { 0 };
            let mut alone = false;
            let spent = begin.map(|begin| {
                // The device reached the begin marker before the following launch arrived, so the lead is not work.
                let from = (self.stamp(begin) + lead).min(end);
                let spent = self.union.add(from, end);
                alone = end - from - spent + self.others(stream).sum::<u64>() <= BESIDE + spent / 16;
                let part = interval.open.own_part(
                    interval.begin.is_some(),
                    interval.is_apart,
                    interval.all,
                    end - from,
                    spent,
                );
                (spent, part)
            });
            let id = interval.keys.iter().fold(0u64, |id, &(key, _)| id.rotate_left(7) ^ key);
            let estimate = interval.open.estimate;
            let (fresh, part) = spent.unwrap_or((estimate, estimate));
            // From the time `closed` on, the device may belong to another member. So measured time beyond it may not be
            // this member's.
            let shut = matches!(self.gate, Gate::Wait | Gate::Cap { .. });
            let late = if shut { reached.saturating_sub(self.closed) } else { 0 };
            let late = late.min(fresh);
            let bound = (interval.begin.is_some() && !interval.is_apart).then_some(length);
            let shown = interval.open.shown_cost(part, fresh, late, bound);
            let (own, spoilt) = (shown.ns, interval.tainted || shown.is_disturbed);
            if interval.begin.is_some() && bound.is_none() && interval.open.launches == 1 && alone && !spoilt {
                self.lead.learn(idle, 0);
            }
            let mut ordinary = fresh;
            // Payment of an unusual sample is deferred only where this account enforces the ceiling and no launch waits
            // at the gate. A daemon is paid at once.
            let crossed = interval.open.doubt.unknown > 0 && spoilt;
            alone &= self.own && (!self.wants || crossed) && self.streams[stream].pending.is_empty();
            alone &= !self.streams[stream].marks.must_ask();
            if alone && crossed {
                ordinary = fresh - self.arrears.take_doubtful(fresh.saturating_sub(interval.open.estimate));
            } else if alone && interval.open.doubt.unknown == 0 {
                ordinary = self.usual.split_ordinary(id, interval.open.launches, interval.open.estimate, fresh);
                if ordinary < fresh {
                    (self.streams[stream].tailed, self.streams[stream].again) = (0, AGAIN);
                }
            }
            self.charge(fresh, fresh - ordinary);
            if spent.is_some_and(|(ns, _)| ns > 0) {
                for &(key, cost) in &interval.keys {
                    let now = u128::from(cost) * u128::from(own) / u128::from(interval.open.estimate.max(1));
                    let now = u64::try_from(now).unwrap_or(NEVER).max(1);
                    self.least.learn_least(key, now, !spoilt);
                    if !spoilt {
                        self.costs.learn_cost(key, now);
                    } else if self.cost(key).is_unknown() {
                        self.rough.learn_cost(key, now);
                    } else if !is_far(own, interval.open.estimate) {
                        self.ripen(key);
                    }
                }
            } else {
                interval.keys.iter().for_each(|&(key, _)| self.ripen(key));
            }
            if spent.is_some_and(|(ns, _)| ns > 0) && !spoilt && interval.open.doubt.unknown == 0 {
                self.keeper.learn_slowdown(interval.open.estimate, own);
            }
            let least =
                if interval.open.doubt.unknown == 0 { self.least_time(&interval.keys, estimate) } else { fresh };
            self.known += least;
            self.last_known = (least, estimate);
            // A roughly known cost is no basis for payment.
            let known = interval.keys.iter().all(|&(key, _)| self.costs.measured_cost(key).is_some());
            self.finished += if known { interval.open.estimate } else { 0 };
            self.keeper.note_completed(interval.open.estimate, interval.open.doubt, reached);
            self.streams[stream].marks.complete_oldest(interval.open.launches, kept_up);
            self.streams[stream].last = Some(interval.end);
        }
    }

    /// The undisturbed time of launches of these functions, estimated at `estimate` together.
    fn least_time(&self, keys: &[(u64, u64)], estimate: u64) -> u64 {
        let least: u64 =
            keys.iter().map(|&(key, cost)| self.least.measured_cost(key).map_or(cost, CostGuess::as_ns)).sum();
        estimate * least / keys.iter().map(|one| one.1).sum::<u64>().max(1)
    }

    /// Treats tails as complete when their expected time has passed. Only the helper thread does this, while others
    /// wait.
    pub fn expire(&mut self, now: u64) {
        let pending = self.streams.iter().any(|stream| !stream.pending.is_empty());
        if pending || self.keeper.in_flight() == 0 || self.keeper.remaining_ns(now.saturating_sub(TAIL_SLACK)) > 0 {
            return;
        }
        for stream in 0..self.streams.len() {
            if let Some(tail) = self.streams[stream].marks.expire_open() {
                self.tail(stream, tail, now);
            }
        }
    }

    /// The launch of a function of unknown length is held back while other such functions are in flight, and those may
    /// wait for it. Their samples are discarded.
    pub fn crosses(&mut self) {
        for stream in &mut self.streams {
            stream.tainted |= stream.marks.open().is_some_and(|open| open.doubt.unknown > 0);
            let unknown = stream.pending.iter_mut().filter(|interval| interval.open.doubt.unknown > 0);
            unknown.for_each(|interval| interval.tainted = true);
        }
    }

    /// Work in flight may end at the same time as the next holder's work, so nothing is learned from its samples.
    pub fn taint(&mut self) {
        self.streams.iter_mut().flat_map(|stream| &mut stream.pending).for_each(|interval| interval.tainted = true);
    }

    /// The member's page as the daemon reads it.
    pub fn usage(&self, now: u64) -> MemberUsage {
        let in_flight = (!self.blind).then(|| self.keeper.reported_remaining(now));
        let since = if self.wants || in_flight != Some(0) { self.since } else { now };
        MemberUsage { busy: self.busy, finished: self.finished, known: self.known, in_flight, wants: self.wants, since }
    }
}

/// Records the time at which an event marker was reached.
pub fn reached(guest: &mut Guest, kind: Kind, at: u64) {
    if let Kind::Marker(marker) = kind {
        guest.markers[marker] = at;
    }
}
