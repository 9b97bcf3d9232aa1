//! A launch on its way to the driver: the queries it needs first, the time when it may go, and its markers.

use super::timelines::{Interval, StreamTimeline, hint_slot};
use super::{LaunchQuery, LaunchStep, MarkerPlan, PaySink, StepFindings, UsageMeter};
use crate::daemon::lease::LeaseWord;
use crate::daemon::search;
use crate::ffi::clock;
use crate::process::helper_thread;
use vgpu_core::time::account::Admission;
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::config::{BASE, BURST_NS, MARKER_INTERVAL_NS, SHORT_LAUNCH_NS};
use vgpu_core::time::gate::marks::OpenInterval;
use vgpu_core::time::gate::{GateVerdict, LaunchRequest, goes_beside};

/// Of short launches into busy streams (below [`SHORT_LAUNCH_NS`]), one in this many reads the clock.
pub(super) const LAUNCHES_PER_CLOCK_READ: u32 = 8;
/// Only while at most this many streams are busy may a short launch ignore the long work of other streams, which
/// may be waiting for it ([`goes_beside`]).
const MAX_STREAMS_IN_TURN: u32 = 8;

/// When a launch is considered.
#[derive(Clone, Copy)]
struct LaunchMoment {
    /// The time, in ns: read now, or for a short launch at one of the launches before it.
    now: u64,
    /// The clock was read.
    is_timed: bool,
    /// Since the last reading, launches without one may have found the stream idle.
    gap: bool,
}

impl UsageMeter {
    /// Counts a short launch into a busy stream, if there is nothing to ask, mark or wait for. `None` decides
    /// nothing: see [`UsageMeter::step_launch`]. Otherwise returns the timeline that counts it:
    /// [`MarkerPlan::without_marker`].
    ///
    /// # Cost
    /// About 10 ns. The clock is not read.
    #[inline]
    pub fn go_on(&mut self, wish: &LaunchQuery<'_>) -> Option<u64> {
        let cost = wish.cost.known_below(SHORT_LAUNCH_NS).filter(|_| self.untimed < LAUNCHES_PER_CLOCK_READ - 1)?;
        let place = wish.launch.stream_location();
        let at = usize::from(self.hints[hint_slot(place)]);
        let chain = self.chains.get(at)?;
        let now = self.time;
        if chain.place != place
            || now >= chain.ask_at
            || now > chain.opened + BASE.heartbeat
            || !chain.marks.goes_on(cost)
        {
            return None;
        }
        // Reading the daemon's gate takes the long path.
        let word = if self.lease.is_current(wish.post, now) { self.lease.current_word() } else { return None };
        let gate = match (word, &wish.turn, wish.gate) {
            (LeaseWord::Said(gate), ..) => gate,
            (_, Some(turn), Gate::Run { .. }) => self.turning.keep_turn(turn, now)?,
            (LeaseWord::Own, _, gate) => gate,
            (LeaseWord::Open, ..) => return None,
        };
        let admission = self.launch_admission(wish, self.keeper.in_flight(), now);
        let is_alone = matches!(gate, Gate::Open | Gate::Run { exclusive: true, .. });
        let ask = LaunchRequest { cost: wish.cost, gate, admission, beside: true, aside: 0, now };
        if !is_alone || self.turning.is_to_be_tended(gate) || !self.keeper.goes_on(&ask) {
            return None;
        }
        if self.lease.is_on() && !self.lease.announce_launch(self.keeper.in_flight(), cost, now) {
            self.keeper.undo_launch(wish.cost);
            self.take_back(cost, wish.post, now);
            return None;
        }
        let chain = self.chains.get_mut(at)?;
        self.untimed += 1;
        chain.marks.go_on(cost);
        self.due = self.due.max(now).saturating_add(cost);
        chain.keys.add(wish.launch.key, wish.cost);
        chain.launches = chain.launches.wrapping_add(1);
        self.launches = self.launches.wrapping_add(1);
        chain.ask_at += cost / 2;
        chain.over_by = now + 2 * self.keeper.in_flight() + MARKER_INTERVAL_NS;
        Some(chain.number)
    }

    /// One step of a launch towards the driver. After [`LaunchStep::Go`] it counts as launched.
    ///
    /// # Cost
    /// About 10 ns for a busy stream without anything to ask, and a clock read; for short launches one in eight.
    #[inline]
    pub fn step_launch(&mut self, wish: &LaunchQuery<'_>, seen: StepFindings, pay: impl PaySink) -> LaunchStep {
        match self.pass_launch(wish, seen, pay) {
            Ok(plan) => LaunchStep::Go(plan),
            Err(step) => step,
        }
    }

    /// Counts a launch that may go, and returns its markers. The error is what to do before the next step.
    #[inline]
    fn pass_launch(
        &mut self,
        wish: &LaunchQuery<'_>,
        seen: StepFindings,
        pay: impl PaySink,
    ) -> Result<MarkerPlan, LaunchStep> {
        let place = wish.launch.stream_location();
        let found = self.find(place).or_else(|| {
            // Streams whose work is over, although the program did not wait for it, make room.
            self.settle_expired(clock::now(), &pay);
            self.find(place)
        });
        let at = found.ok_or(LaunchStep::Unmeasured)?;
        let moment = self.tell_time(at, wish, seen, &pay)?;
        let now = moment.now;
        self.charge_strays(&pay);
        let word = self.granting_word(wish.post, now);
        if word == LeaseWord::Open && wish.share.is_none() && !wish.is_observing() {
            return Err(self.open(wish, now));
        }
        let idle = self.find_idle(at, wish, seen, moment, &pay)?;
        if wish.share.is_some() {
            self.presence.note_look(wish.account, self.keeper.in_flight(), now);
        }
        self.lease.note_considered(self.keeper.in_flight(), now);
        let ask = self.gate_request(at, wish, now);
        match self.keeper.ask_gate(&ask) {
            GateVerdict::Go if !self.announce_launch(wish.cost, wish.post, now) => return Err(LaunchStep::Again),
            GateVerdict::Go => {}
            GateVerdict::Forced => self.note_forced(wish, &ask),
            GateVerdict::Wait(until) => return Err(self.hold_launch(at, wish, &ask, word, until)),
        }
        self.chains[at].tainted |= !matches!(ask.gate, Gate::Open | Gate::Run { exclusive: true, .. });
        if let Gate::Run { lease, .. } = ask.gate
            && core::mem::replace(&mut self.last_lease, lease) != lease
        {
            self.chains[at].first = true;
        }
        self.presence.is_there();
        self.untimed += u32::from(!moment.is_timed);
        let mut plan = self.count_launch(at, wish, idle, now);
        plan.tend = self.turning.is_to_be_tended(ask.gate) || search::is_seeking() && !helper_thread::is_there();
        Ok(plan)
    }

    /// Reads the clock, except for a short launch soon after another.
    #[inline]
    fn tell_time(
        &mut self,
        at: usize,
        wish: &LaunchQuery<'_>,
        seen: StepFindings,
        pay: &impl PaySink,
    ) -> Result<LaunchMoment, LaunchStep> {
        let is_short = self.untimed < LAUNCHES_PER_CLOCK_READ - 1 && wish.cost.known_below(SHORT_LAUNCH_NS).is_some();
        // A repeated step has waited or asked meanwhile, and an old time is no reason to wait.
        let is_repeated = seen.stream.is_some() || seen.reaped;
        if self.chains[at].marks.must_ask() && is_short && !is_repeated {
            return Ok(LaunchMoment { now: self.time, is_timed: false, gap: false });
        }
        let now = clock::now();
        let pause = now.saturating_sub(self.time);
        let gap = self.untimed > 0 && pause > 2 * BASE.handover;
        if !is_repeated {
            self.pace = pause / (u64::from(self.untimed) + 1);
        }
        if pause > BASE.heartbeat && self.keeper.in_flight() > 0 {
            if !seen.reaped {
                return Err(LaunchStep::Reap);
            }
            self.expire_beside(at, now, pay);
            // A pause up to one burst expires no unused time. A marker in the second half may follow a stop.
            let is_long = pause > BURST_NS;
            self.is_stale = self.reaping || is_long && !self.had_work_at(now - pause / 2);
        }
        if self.is_stale && wish.share.is_some() {
            // A process that was stopped would otherwise make up for the missed time.
            self.presence.note_look(wish.account, 0, now);
        }
        (self.time, self.untimed) = (now, 0);
        self.revoke_old(now);
        Ok(LaunchMoment { now, is_timed: true, gap })
    }

    /// True if the device may have had work of a stream since `then`, by the host's clock. Either the oldest interval
    /// not seen complete has a marker from before, or work without an end marker is estimated to last longer. A thread
    /// that was stopped on its way to the driver launches after the pause, so its launch shows nothing about it.
    #[cold]
    fn had_work_at(&self, then: u64) -> bool {
        let is_there = |chain: &StreamTimeline| match chain.pending.front() {
            Some(oldest) => (1..=then).contains(&if oldest.begun > 0 { oldest.begun } else { oldest.recorded }),
            None => chain.marks.must_ask() && chain.over_by > then,
        };
        self.chains.iter().any(is_there)
    }

    /// Finds out whether the stream is idle, and settles its open work if so. The error is the question to the driver.
    #[inline]
    fn find_idle(
        &mut self,
        at: usize,
        wish: &LaunchQuery<'_>,
        seen: StepFindings,
        LaunchMoment { now, mut gap, .. }: LaunchMoment,
        pay: &impl PaySink,
    ) -> Result<bool, LaunchStep> {
        let chain = &mut self.chains[at];
        let (open, pending) = (chain.marks.must_ask(), chain.marks.pending_intervals() > 0);
        if !open {
            if !pending || !seen.reaped {
                return if pending { Err(LaunchStep::Reap) } else { Ok(true) };
            }
            if !self.reaping {
                return Ok(false);
            }
            // The thread that queries the driver may know already that the stream has become idle. An interval that
            // continued here would contain the time until this launch.
            let ask = LaunchStep::Ask { launches: chain.launches, waits_for_idle: false };
            let (was_idle, launches) = seen.stream.ok_or(ask)?;
            // An idle stream means nothing while the newest launch is still on its way to the driver.
            let is_recorded = chain.pending.back().is_some_and(|newest| newest.end.is_some());
            return Ok(was_idle && launches == chain.launches && is_recorded);
        }
        let mut idle = false;
        let waits_for_idle = chain.marks.wants_idle(wish.cost.as_ns());
        if now >= chain.ask_at || waits_for_idle {
            let ask = LaunchStep::Ask { launches: chain.launches, waits_for_idle };
            let (was_idle, launches) = seen.stream.ok_or(ask)?;
            idle = was_idle && launches == chain.launches;
            if idle && pending {
                if !seen.reaped {
                    return Err(LaunchStep::Reap);
                }
                // Another thread queries the stream's markers: the tail cannot be separated from them.
                (idle, gap) = (false, true);
            }
            if !idle {
                let left = self.keeper.remaining_ns(now);
                chain.ask_at = now + (left / 2).clamp(BASE.handover, self.keeper.limit());
            }
        }
        if idle {
            self.age_tail_doubt(at);
            self.settle_tail(at, now, pay);
        } else if gap {
            // Launches were made without reading the clock; before one of them the stream may have been idle.
            self.doubt_chain(at);
        }
        Ok(idle)
    }

    /// The question to the launch gate.
    #[inline]
    fn gate_request(&mut self, at: usize, wish: &LaunchQuery<'_>, now: u64) -> LaunchRequest {
        let beside =
            self.busy > u32::from(self.chains[at].is_busy()) && (!wish.cost.is_unknown() || self.is_beside(at, wish));
        let (mut admission, mut aside) = (self.launch_admission(wish, self.keeper.in_flight(), now), 0);
        if self.busy <= MAX_STREAMS_IN_TURN
            && goes_beside(wish.cost, self.keeper.in_flight(), beside)
            && !self.lease.is_bounded()
        {
            if admission != Admission::Admit {
                admission = self.launch_admission(wish, 0, now);
            }
            if self.keeper.in_flight() > self.keeper.limit() {
                aside = self.work_of_others(at).filter(|other| *other > self.keeper.limit()).sum();
            }
        }
        let gate = self.launch_gate(wish, admission, now);
        LaunchRequest { cost: wish.cost, gate, admission, beside, aside, now }
    }

    /// A launch goes against a rule, because the work in flight may be waiting for it. That work then teaches no costs,
    /// unless only low confidence held the launch and no work of another stream may be waiting.
    #[cold]
    fn note_forced(&mut self, wish: &LaunchQuery<'_>, ask: &LaunchRequest) {
        let _ = self.announce_launch(wish.cost, wish.post, ask.now);
        let doubted = self.keeper.is_held_by_doubt(ask);
        if doubted {
            self.ripe.add(wish.launch.key, wish.cost);
        }
        // A kernel cannot depend on later work in its own stream.
        if !doubted || ask.beside {
            self.discard_in_flight();
        }
    }

    /// The gate holds the launch back until `until`. If somebody waits for the end of the work in flight, the next step
    /// is a marker behind that work. Otherwise it is the wait.
    #[cold]
    fn hold_launch(
        &mut self,
        at: usize,
        wish: &LaunchQuery<'_>,
        ask: &LaunchRequest,
        word: LeaseWord,
        until: u64,
    ) -> LaunchStep {
        let (gate, admission, now) = (ask.gate, ask.admission, ask.now);
        if ask.beside && wish.cost.is_unknown() {
            self.hold_back_unknown();
        }
        // The launch itself waits for that work: a marker makes its end visible and measures it.
        if self.keeper.is_in_doubt(ask)
            && self.is_in_doubt(at)
            && let Some(plan) = self.close(at, wish)
        {
            return LaunchStep::Mark(plan);
        }
        // The device is another member's next, and that member waits for the end of our work.
        let (until, for_others, ends) = if matches!(word, LeaseWord::Said(_)) {
            self.request_lease(wish.post, gate, admission, now);
            let for_others = !matches!(gate, Gate::Run { until, .. } if now < until);
            (until, for_others, for_others)
        } else {
            let (until, for_others) = self.turning.next_look(gate, until, self.keeper.in_flight());
            let is_shut = !matches!(gate, Gate::Open | Gate::Run { .. });
            if is_shut {
                self.presence.is_kept_away(until);
            }
            (until, for_others, is_shut)
        };
        if (ends || self.is_unpaid(at, wish, admission))
            && let Some(plan) = self.close(at, wish)
        {
            return LaunchStep::Mark(plan);
        }
        LaunchStep::Wait { until, for_others }
    }

    /// True if a launch waits because the tenant's account of device time is in debt. Work without a marker would then
    /// count as over when its estimated time has passed: for a mostly short function, a long kernel while it still
    /// runs. So a marker ends that work, and the next launch is measured, unless it is cheaper than its markers. The
    /// markers delay nothing, because the host waits anyway.
    fn is_unpaid(&mut self, at: usize, wish: &LaunchQuery<'_>, admission: Admission) -> bool {
        let is_unpaid = admission != Admission::Admit;
        if is_unpaid && !self.chains[at].marks.must_ask() && wish.cost.known_below(SHORT_LAUNCH_NS).is_none() {
            self.chains[at].marks.sample_next();
        }
        is_unpaid
    }

    /// True if other streams have work in flight other than launches of the same function at unknown cost.
    #[cold]
    fn is_beside(&self, at: usize, wish: &LaunchQuery<'_>) -> bool {
        let others = self.chains.iter().enumerate().filter(|(other, chain)| *other != at && chain.is_busy());
        let keys = |chain: &StreamTimeline| {
            let pending = chain.pending.iter().flat_map(|interval| interval.keys.all());
            pending.chain(chain.keys.all()).any(|one| one.0 != wish.launch.key)
        };
        others.map(|other| other.1).any(keys)
    }

    /// True if other streams have work without an end marker.
    #[cold]
    fn has_open_beside(&self, at: usize) -> bool {
        self.chains.iter().enumerate().any(|(other, chain)| other != at && chain.marks.must_ask())
    }

    /// True if a timeline has launches of low confidence without a marker after them.
    #[cold]
    fn is_in_doubt(&self, at: usize) -> bool {
        self.chains[at].marks.open().is_some_and(|open| open.doubt.young > 0)
    }

    /// A launch of unknown cost is held back while others of that kind are in flight. They may be waiting for it, so
    /// their times are not learned.
    #[cold]
    fn hold_back_unknown(&mut self) {
        for chain in &mut self.chains {
            chain.tainted |= chain.marks.open().is_some_and(|open| open.doubt.unknown > 0);
            let unknown = chain.pending.iter_mut().filter(|interval| interval.open.doubt.unknown > 0);
            unknown.for_each(|interval| interval.tainted = true);
        }
    }

    /// Lets a launch through the daemon's open gate, and reports that the work in flight is unknown from now on. If the
    /// gate closed meanwhile, the caller asks again.
    #[cold]
    fn open(&mut self, wish: &LaunchQuery<'_>, now: u64) -> LaunchStep {
        if !self.lease.goes_blind(wish.launch, wish.post, &self.keeper, now) {
            return LaunchStep::Again;
        }
        wish.post.opens_for(wish.launch);
        LaunchStep::Open
    }

    /// Counts the launch, and returns its markers.
    #[inline]
    fn count_launch(&mut self, at: usize, wish: &LaunchQuery<'_>, idle: bool, now: u64) -> MarkerPlan {
        let estimate = wish.cost.as_ns();
        let given_out = self.given_out();
        let chain = &mut self.chains[at];
        let (was_busy, was_unmeasured) = (chain.is_busy(), chain.is_unmeasured());
        // A stream is asked when it is launched into again: others may be over without anyone knowing yet.
        let was_due = now >= self.due;
        let is_known = self.unmeasured == u32::from(was_unmeasured) || was_due;
        // An interval that begins at a marker of before a pause contains the pause.
        let clear = is_known && (idle || !self.is_stale);
        self.due = self.due.max(now).saturating_add(estimate);
        if idle || !chain.marks.must_ask() {
            chain.opened = now;
        }
        if idle {
            // The stream is idle: the device reaches the begin marker at once, and the other streams' work in
            // flight is done before the launch.
            chain.from = given_out.wrapping_sub(self.keeper.remaining_ns(now));
        }
        if chain.measured == 0 {
            // A new stream counts as measured when any stream last was: a program may use a new one for each launch.
            chain.measured = self.measured;
        }
        // Estimates that are far too small would otherwise end no interval, and measure no stream again.
        if now.saturating_sub(if idle { chain.measured } else { chain.opened }) > BASE.heartbeat {
            chain.marks.sample_next();
        }
        // Next to other streams the time could not be attributed. And while members wait for the turn, work that
        // counts as over by its estimate lets the next one run: this kernel may be waiting for it.
        let is_only = self.busy == u32::from(was_busy);
        let is_due = is_only && now.saturating_sub(chain.tailed) > BASE.heartbeat;
        chain.marks.sample_tail(is_due && !wish.turn.as_ref().is_some_and(|turn| turn.is_contended(now)));
        let begin = chain.marks.before_launch(wish.cost, idle, clear).begin;
        if idle && !is_only {
            self.doubt_tails(at);
        }
        // Other streams' work without an end marker is in no interval of theirs. Up to a handover does not matter.
        let is_crowded = begin && self.keeper.remaining_ns(now) > BASE.handover && self.has_open_beside(at);
        let chain = &mut self.chains[at];
        if begin {
            chain.is_apart = !is_crowded;
        }
        self.keeper.note_launch(wish.cost, now);
        chain.keys.add(wish.launch.key, wish.cost);
        chain.launches = chain.launches.wrapping_add(1);
        self.launches = self.launches.wrapping_add(1);
        let soonest = if idle { now + MARKER_INTERVAL_NS } else { 0 };
        chain.ask_at = (chain.ask_at.max(now) + wish.cost.as_ns() / 2).max(soonest);
        chain.over_by = now + 2 * self.keeper.in_flight() + MARKER_INTERVAL_NS;
        let closed = chain.marks.after_launch(wish.cost);
        let mut plan = MarkerPlan { begin, launches: self.launches, ..MarkerPlan::without_marker(chain.number) };
        plan.end = closed.map(|open| self.end_behind(at, open, now));
        self.recount_stream(at, was_busy, was_unmeasured);
        plan.second = begin && plan.end.is_some() && !wish.cost.is_unknown() && self.marker_cost.wants_sample();
        if !plan.is_plain() {
            let context = wish.launch.context.0 as usize;
            plan.events = [begin, plan.end.is_some(), plan.second]
                .map(|needed| if needed { self.take_spare_event(context) } else { None });
        }
        plan
    }

    /// Turns the open work of a timeline into an interval that is to end with a marker; returns its number.
    fn end_behind(&mut self, at: usize, open: OpenInterval, now: u64) -> u64 {
        self.numbers += 1;
        self.revoke_credits_of(self.chains[at].number);
        let given_out = self.given_out();
        let chain = &mut self.chains[at];
        chain.unmeasured += u32::from(!open.measured);
        if open.measured {
            (chain.measured, self.measured) = (now, now);
        }
        if open.tail {
            (chain.tailed, chain.again) = if chain.again > 0 { (0, chain.again - 1) } else { (now, 0) };
        }
        chain.pending.push_back(Interval {
            serial: self.numbers,
            begin: chain.begin.take(),
            calls: core::mem::take(&mut chain.calls),
            begun: core::mem::take(&mut chain.begun),
            end: None,
            recorded: 0,
            second: None,
            open,
            // Less than nothing: another thread's launch was taken back.
            all: i64::try_from(given_out.wrapping_sub(core::mem::replace(&mut chain.from, given_out)))
                .map_or(0, i64::unsigned_abs),
            keys: core::mem::take(&mut chain.keys),
            tainted: core::mem::take(&mut chain.tainted),
            is_apart: chain.is_apart,
            is_late: false,
            beside: 0,
            first: core::mem::take(&mut chain.first),
        });
        self.numbers
    }

    /// Plans a marker after the tail of the launch's stream. The device is another member's next, or the launch waits
    /// to learn the cost of the work before it. With a marker a look sees the end, instead of waiting until the
    /// estimated time has passed.
    #[cold]
    fn close(&mut self, at: usize, wish: &LaunchQuery<'_>) -> Option<MarkerPlan> {
        let chain = &mut self.chains[at];
        let (was_busy, was_unmeasured) = (chain.is_busy(), chain.is_unmeasured());
        let open = chain.marks.close()?;
        let end = Some(self.end_behind(at, open, self.time));
        self.recount_stream(at, was_busy, was_unmeasured);
        let event = self.take_spare_event(wish.launch.context.0 as usize);
        Some(MarkerPlan { end, events: [None, event, None], ..MarkerPlan::without_marker(self.chains[at].number) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::crediting::GrantedCredit;
    use super::*;
    use crate::daemon::link::DaemonLink;
    use crate::daemon::test_pages::StandIn;
    use crate::driver::launch::MeteredLaunch;
    use crate::time::launch_costs::LaunchCosts;
    use crate::time::meter::markers::SampleTimes;
    use crate::time::meter::{BeginMarker, EndMarker};
    use shim_sys::cuda::{CUcontext, CUevent, CUstream};
    use std::sync::LazyLock;
    use vgpu_core::memory::ledger::LedgerPage;
    use vgpu_core::time::account::cost::CostGuess;
    use vgpu_core::time::gate::marks::StreamMarkers;
    use vgpu_core::units::share::Share;

    const COST: u64 = 10_000;

    /// Steps a launch into a stream of its own.
    fn launch(meter: &mut UsageMeter, stream: usize, cost: CostGuess) -> MarkerPlan {
        launch_and(meter, stream, cost, |_, _, _| {})
    }

    fn launch_and(
        meter: &mut UsageMeter,
        stream: usize,
        cost: CostGuess,
        then: impl FnOnce(&mut UsageMeter, &LaunchQuery<'_>, &MarkerPlan),
    ) -> MarkerPlan {
        static PAGE: LazyLock<Box<LedgerPage>> = LazyLock::new(LedgerPage::zeroed);
        let [context, stream] = [1 << 12, (stream + 1) << 12].map(|word| word as *mut core::ffi::c_void);
        let (context, stream) = (CUcontext(context), CUstream(stream));
        let launch = MeteredLaunch { context, stream, per_thread: false, key: 1, in_parts: false };
        let gate = Gate::Run { lease: 0, until: u64::MAX, exclusive: true, ceiling: None, wide: false };
        let account = PAGE.as_ledger().time_account();
        let share = Some(Share::WHOLE_DEVICE);
        let wish = LaunchQuery {
            launch: &launch,
            cost,
            gate,
            turn: None,
            share,
            post: &DaemonLink::without_daemon(),
            account,
        };
        let mut seen = StepFindings::default();
        loop {
            match meter.step_launch(&wish, seen, |_, _| {}) {
                LaunchStep::Go(plan) => {
                    then(meter, &wish, &plan);
                    return plan;
                }
                LaunchStep::Reap => seen.reaped = true,
                // The driver says that the stream is busy.
                LaunchStep::Ask { launches, .. } => seen.stream = Some((false, launches)),
                _ => panic!("nothing holds it back"),
            }
        }
    }

    /// Number of markers that a launch of a known, short cost gets in its own new stream.
    fn markers(meter: &mut UsageMeter, stream: usize) -> u32 {
        let plan = launch(meter, stream, CostGuess::with_certainty(COST));
        u32::from(plan.begin) + u32::from(plan.end.is_some())
    }

    /// Without a marker the end would be seen only after twice the estimated time, while the next member waits for
    /// the device.
    #[test]
    fn what_is_behind_the_last_marker_gets_one_when_the_daemon_shuts_the_gate() {
        static PAGE: LazyLock<Box<LedgerPage>> = LazyLock::new(LedgerPage::zeroed);
        let daemon = StandIn::new();
        let post = DaemonLink::with_slot(daemon.pages_slot());
        let mut meter = UsageMeter::default();
        let word = |word: usize| (word << 12) as *mut core::ffi::c_void;
        let launch = MeteredLaunch {
            context: CUcontext(word(1)),
            stream: CUstream(word(2)),
            per_thread: false,
            key: 1,
            in_parts: false,
        };
        let gate = Gate::Run { lease: 0, until: u64::MAX, exclusive: true, ceiling: None, wide: false };
        let account = PAGE.as_ledger().time_account();
        let wish = LaunchQuery {
            launch: &launch,
            cost: CostGuess::with_certainty(COST),
            gate,
            turn: None,
            share: None,
            post: &post,
            account,
        };
        let mut step = |seen| meter.step_launch(&wish, seen, |_, _| {});
        let busy = StepFindings { reaped: true, stream: Some((false, 0)) };
        assert!(matches!(step(busy), LaunchStep::Wait { for_others: true, .. }), "nothing to mark, and no lease");
        daemon.set_gate(Gate::Run { lease: 1, until: u64::MAX, exclusive: true, ceiling: None, wide: false });
        assert!(matches!(step(busy), LaunchStep::Go(_)));
        assert!(matches!(step(busy), LaunchStep::Go(plan) if plan.end.is_none()), "too short for a marker");
        daemon.set_gate(Gate::Wait);
        assert!(matches!(step(busy), LaunchStep::Mark(plan) if plan.end.is_some()));
        assert!(matches!(step(busy), LaunchStep::Wait { for_others: true, .. }), "once");
    }

    /// Another thread's work without an end marker would be in the time of the launch, whether it was launched before
    /// the markers or between them.
    #[test]
    fn a_begin_marker_tells_a_launch_from_work_with_markers_only() {
        let event = |word: usize| CUevent(word as *mut core::ffi::c_void);
        for (before, between, is_apart) in
            [(false, None, true), (true, None, false), (false, Some(1), false), (false, Some(0), false)]
        {
            let mut meter = UsageMeter::default();
            let mark = |meter: &mut UsageMeter, plan: &MarkerPlan| {
                let begin = BeginMarker { event: event(64), calls: Some([0; 2]), at: 0 };
                let end = EndMarker { event: event(128), recorded: clock::now(), is_late: false, second: None };
                meter.note_recorded(plan, Some(begin), Some(end), &LaunchCosts::new(), |_, _| {});
            };
            let first = launch(&mut meter, 1, CostGuess::with_certainty(COST));
            mark(&mut meter, &first);
            if before {
                assert!(launch(&mut meter, 1, CostGuess::with_certainty(10 * COST)).is_plain());
            }
            let plan = launch(&mut meter, 0, CostGuess::with_certainty(1_000_000));
            if let Some(stream) = between {
                launch(&mut meter, stream, CostGuess::with_certainty(COST));
            }
            mark(&mut meter, &plan);
            let interval = meter.chains[1].pending.front().expect("the measured launch");
            assert_eq!((plan.begin, interval.is_apart), (true, is_apart), "{before}, {between:?}");
            assert_eq!(meter.chains[1].tainted, between == Some(0), "the next interval lacks what this one has");
        }
    }

    /// The thread that queries the driver about markers has not told its answers yet.
    #[test]
    fn no_interval_continues_on_a_stream_that_may_have_become_idle() {
        static PAGE: LazyLock<Box<LedgerPage>> = LazyLock::new(LedgerPage::zeroed);
        for is_idle in [true, false] {
            let mut meter = UsageMeter::default();
            let plan = launch(&mut meter, 0, CostGuess::NEVER_MEASURED);
            let end = EndMarker { event: CUevent(64 as *mut _), recorded: clock::now(), is_late: false, second: None };
            meter.note_recorded(&plan, None, Some(end), &LaunchCosts::new(), |_, _| {});
            meter.reaping = true;
            let mut asked = false;
            let word = |word: usize| (word << 12) as *mut core::ffi::c_void;
            let (context, stream) = (CUcontext(word(1)), CUstream(word(1)));
            let launch = MeteredLaunch { context, stream, per_thread: false, key: 1, in_parts: false };
            let wish = LaunchQuery {
                launch: &launch,
                cost: CostGuess::with_certainty(COST),
                gate: Gate::Run { lease: 0, until: u64::MAX, exclusive: true, ceiling: None, wide: false },
                turn: None,
                share: None,
                post: &DaemonLink::without_daemon(),
                account: PAGE.as_ledger().time_account(),
            };
            let mut seen = StepFindings { reaped: true, stream: None };
            loop {
                match meter.step_launch(&wish, seen, |_, _| {}) {
                    LaunchStep::Ask { launches, .. } => (asked, seen.stream) = (true, Some((is_idle, launches))),
                    LaunchStep::Go(_) => break,
                    _ => panic!("nothing holds it back"),
                }
            }
            let continues = meter.chains[0].marks.open().expect("the launch").measured;
            assert_eq!((asked, continues), (true, !is_idle));
        }
    }

    /// The thread is descheduled between the launch and its end marker. The estimate was short, but the launch may
    /// run for a second.
    #[test]
    fn a_late_marker_behind_an_unknown_launch_measures_it_all_the_same() {
        for (cost, measured) in [(CostGuess::NEVER_MEASURED, true), (CostGuess::with_certainty(1_000_000), false)] {
            let mut meter = UsageMeter::default();
            let plan = launch(&mut meter, 0, cost);
            let event = |word: usize| CUevent(word as *mut core::ffi::c_void);
            let begin = BeginMarker { event: event(64), calls: Some([0; 2]), at: 0 };
            let end = EndMarker { event: event(128), recorded: clock::now() + 5_000_000, is_late: true, second: None };
            meter.note_recorded(&plan, Some(begin), Some(end), &LaunchCosts::new(), |_, _| {});
            let interval = meter.chains[0].pending.pop_front().unwrap();
            assert_eq!((interval.open.measured, interval.is_late), (measured, true), "{cost:?}");
            if !measured {
                continue;
            }
            // All of that second is due at once: nobody was held back who could have ended it sooner.
            let (costs, due) = (LaunchCosts::new(), core::cell::Cell::new((0, 0)));
            let times = SampleTimes { begin: Some(1), end: 1_000_000_001, host: clock::now() };
            let pay = |paid: crate::time::meter::DueTime, _| due.set((paid.used, paid.excess));
            meter.finish_interval(0, &interval, Some(times), clock::now(), &pay, &costs);
            assert_eq!(due.get(), (1_000_000_000, 0));
            assert!(costs.exact.guess_cost(1).is_unknown() && !costs.guess_cost(1).is_unknown(), "roughly known");
        }
    }

    /// No thread considers a launch for a second. Unused time expires, unless the device may have had work meanwhile.
    #[test]
    fn unused_time_outlasts_a_pause_only_if_the_device_may_have_had_work_in_it() {
        const PAUSE: u64 = 1_000_000_000;
        // The interval's markers, from before the pause or after it; whether another thread queries the driver.
        let cases = [
            ((None, true), false, true),
            ((Some(true), false), false, true), // a graph whose launch call ended late
            ((None, false), false, false),
            ((Some(false), false), false, false), // stopped on its way to the driver
            ((None, true), true, false),
        ];
        for ((begun, recorded), reaping, kept) in cases {
            let mut meter = UsageMeter::default();
            let plan = launch(&mut meter, 0, CostGuess::NEVER_MEASURED);
            let since = meter.presence.engaged_since();
            let at = |is_before: bool| meter.time - if is_before { PAUSE } else { 0 };
            let event = |word: usize| CUevent(word as *mut core::ffi::c_void);
            let begin = begun.map(|begun| BeginMarker { event: event(64), calls: Some([0; 2]), at: at(begun) });
            let end = EndMarker { event: event(128), recorded: at(recorded), is_late: false, second: None };
            meter.note_recorded(&plan, begin, Some(end), &LaunchCosts::new(), |_, _| {});
            (meter.time, meter.reaping) = (meter.time - PAUSE, reaping);
            launch(&mut meter, 1, CostGuess::with_certainty(COST));
            let is_kept = meter.presence.engaged_since() == since;
            assert_eq!(is_kept, kept, "begun and recorded before: {begun:?}, {recorded}; another asks: {reaping}");
        }
    }

    #[test]
    fn a_new_stream_is_measured_no_sooner_than_an_old_one() {
        let (mut meter, begun) = (UsageMeter::default(), clock::now());
        assert_eq!(markers(&mut meter, 0), 2, "the very first one is");
        let recorded: u32 = (1..80).map(|stream| markers(&mut meter, stream)).sum();
        // On a busy host 20 ms may pass meanwhile.
        let due = u32::try_from((clock::now() - begun) / BASE.heartbeat).unwrap() * 2;
        assert!(recorded <= due, "{recorded} of {due} markers for 79 streams");
        clock::sleep(BASE.heartbeat + 1_000_000);
        assert_eq!(markers(&mut meter, 80), 2, "no belief lasts for ever");
    }

    /// A tail that once waited for another device has a long estimate; if it ends sooner it is not charged that much.
    #[test]
    fn a_tail_is_charged_no_more_than_the_time_since_it_was_launched() {
        const BELIEVED: u64 = 20_000_000_000;
        let (mut meter, paid) = (UsageMeter::default(), core::cell::Cell::new(0));
        launch(&mut meter, 0, CostGuess::with_certainty(COST));
        let chain = &mut meter.chains[0];
        chain.marks = StreamMarkers::default();
        chain.marks.count_unasked(BELIEVED, 1);
        clock::sleep(1_000_000);
        meter.settle_tail(0, clock::now(), &|due: crate::time::meter::DueTime, _| paid.set(due.used));
        assert!((1_000_000..BELIEVED).contains(&paid.get()), "{}", paid.get());
    }

    #[test]
    fn a_credit_ends_when_its_stream_may_be_idle_while_others_go_on() {
        let costs: &'static LaunchCosts = Box::leak(LaunchCosts::new_boxed());
        let mut meter = UsageMeter::default();
        let left = |meter: &UsageMeter| meter.given.iter().map(GrantedCredit::unspent_ns).sum::<u64>();
        // Repeat until launches follow each other closely, which a busy host may delay.
        for _ in 0..10_000 {
            let goes = |meter: &mut UsageMeter, wish: &LaunchQuery<'_>, plan: &MarkerPlan| {
                meter.allow_credit(wish, plan, costs)
            };
            launch_and(&mut meter, 0, CostGuess::with_certainty(100), goes);
            if left(&meter) > 0 {
                break;
            }
        }
        assert!(left(&meter) > 0, "a thread that launches again and again has a credit");
        clock::sleep(20 * BASE.handover);
        launch(&mut meter, 1, CostGuess::with_certainty(COST));
        assert_eq!(left(&meter), 0, "nobody has asked since whether the first stream rests");
    }

    #[test]
    fn a_program_of_many_streams_looks_at_few_credits_whenever_it_locks() {
        let costs: &'static LaunchCosts = Box::leak(LaunchCosts::new_boxed());
        let mut meter = UsageMeter::default();
        for stream in (0..100).flat_map(|stream| [stream; 20]) {
            // Short enough that the credits do not fill the limit of work in flight.
            launch_and(&mut meter, stream, CostGuess::with_certainty(10), |meter, wish, plan| {
                meter.allow_credit(wish, plan, costs)
            });
        }
        assert!((1..=32).contains(&meter.given.len()), "{}", meter.given.len());
    }
}
