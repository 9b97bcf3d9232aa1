//! The launch gate of a device under a ceiling on device time: pay first, or wait.
//!
//! A launch goes when the gate's rules allow it ([`vgpu_core::time::gate::LaunchGate`]). The tenant's account, which
//! all its members share in the ledger, must have a positive balance after the work in flight, and that work must be
//! less than 2 ms by estimate. The time that a launch really took is charged when the meter sees it complete. So a long
//! kernel is paid for afterwards, and no unused time expires while work of this process is queued. Waiting is bounded
//! by progress: if nothing of this process completes for long enough, one launch is forced, because the running work
//! may be waiting for it.
//!
//! No lock is held across a call of the driver. Completion is seen when the program launches, waits or synchronises,
//! or by a caller of [`Governor::reap_now`]. In [`waiting`]: how a thread waits. In [`synchronising`]: programs that
//! wait for the device. In [`crate::time::meter`]: the work in flight.

mod helping;
mod leasing;
mod synchronising;
mod waiting;

use crate::daemon::link::DaemonLink;
use crate::daemon::search;
use crate::driver::contexts;
use crate::driver::launch::{MeteredLaunch, graph_key};
use crate::driver::streams::{self, without_captures};
use crate::ffi::clock;
use crate::ffi::lock::{Lock, LockGuard};
use crate::ledger::joined::JoinedLedger;
use crate::process::mode;
use crate::time::launch_costs::LaunchCosts;
use crate::time::meter::markers::{self, SecondMarker};
use crate::time::meter::{
    BeginMarker, DueTime, EndMarker, LaunchQuery, LaunchStep, MarkerPlan, StepFindings, UsageMeter,
};
use crate::time::turn;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use shim_sys::cuda::*;
use shim_sys::futex;
use vgpu_core::protocol::page::ContextSharing;
use vgpu_core::time::account::WorkStart;
use vgpu_core::time::account::arrears::rest_due;
use vgpu_core::time::account::cost::CostGuess;
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::config::{BASE, small_part};
use vgpu_core::time::gate::loss::AloneMode;
use vgpu_core::time::turn::Turn;
use vgpu_core::units::share::Share;

/// True once a device has a governor, or launches must be refused.
static ANY_CEILING: AtomicBool = AtomicBool::new(false);

/// True if launches must look at the gate at all.
///
/// # Cost
/// One load and a predictable branch: the whole cost of a launch without a ceiling.
#[inline]
pub fn is_active() -> bool {
    ANY_CEILING.load(Relaxed)
}

/// From now on each launch looks at its device's gate, because device time has a ceiling or launches must be refused.
pub fn activate_gates() {
    ANY_CEILING.store(true, Relaxed);
}

/// Functions of the layers above that a thread at the gate calls.
#[derive(Clone, Copy)]
pub struct CallsAbove {
    /// Starts the helper thread, which sees completions while the program makes no call.
    pub start_helper: fn(),
    /// Looks for a lost daemon, if the time for that has come.
    pub reconnect: fn(),
}

#[cfg(test)]
impl CallsAbove {
    /// For tests without the layers above.
    pub const NONE: Self = Self { start_helper: || (), reconnect: || () };
}

/// Decides for each launch of this process on one device whether it goes or waits; owns the meter and the lease.
pub struct Governor {
    /// The ceiling that this process keeps by itself, whatever the daemon grants.
    own: Option<Share>,
    /// The link to the daemon.
    pub post: DaemonLink,
    costs: Box<LaunchCosts>,
    /// Held for a few dozen instructions, never across a call of the driver.
    meter: Lock<UsageMeter>,
    /// Changes when work in flight completes or the daemon grants other terms; waiting threads sleep on it.
    bell: AtomicU32,
    /// State of the daemon's word when the helper thread last looked.
    granted: AtomicU32,
    /// True if the calls around the last measurement took long.
    vague: AtomicBool,
    /// Whether members of the tenant take turns on this device.
    turns: turn::TurnRule,
    above: CallsAbove,
}

impl Governor {
    /// Creates a gate that enforces our own ceiling, if there is one, and the daemon's decisions, if there is a
    /// daemon. When only observing it is always open and measures the launches.
    pub fn new(own: Option<Share>, post: DaemonLink, above: CallsAbove) -> Self {
        activate_gates();
        Self {
            own,
            post,
            costs: LaunchCosts::new_boxed(),
            meter: Lock::new(UsageMeter::default()),
            bell: AtomicU32::new(0),
            granted: AtomicU32::new(0),
            vague: AtomicBool::new(false),
            turns: turn::TurnRule::new(),
            above,
        }
    }

    /// The gate where the daemon does not decide: only the account bounds a launch.
    fn granted_gate(&self) -> Gate {
        match self.post.alone_terms() {
            _ if self.is_observing() => Gate::Open,
            Some(AloneMode::Blocked) => Gate::Wait,
            Some(AloneMode::Unlimited) if self.own.is_none() => Gate::Open,
            _ => Gate::Run { lease: 0, until: u64::MAX, exclusive: true, ceiling: None, wide: false },
        }
    }

    /// The ceiling that the tenant's account enforces: our own, and while the daemon is away the one it set in
    /// advance.
    #[inline]
    fn kept_ceiling(&self) -> Option<Share> {
        match self.post.alone_terms() {
            _ if self.is_observing() => None,
            Some(AloneMode::Ceiling(share)) => Some(self.own.map_or(share, |own| own.min(share))),
            _ => self.own,
        }
    }

    /// True if the daemon grants the device to one member at a time, so that the tenant's members need no turns.
    fn is_leased(&self) -> bool {
        self.post.pages_slot().is_some() && self.post.alone_terms().is_none() && !self.post.was_open()
    }

    /// The turn among the tenant's members, if they take turns on the current device.
    #[inline]
    fn turn_of_members(&self, joined: &JoinedLedger) -> Option<Turn<'static>> {
        let takes_turns = self.takes_turns();
        if self.is_leased() || self.kept_ceiling().is_none() {
            return None;
        }
        takes_turns.then(|| joined.joined_member().device_turn())
    }

    /// True if the contexts of different processes take turns on the current device. At the first launch this asks the
    /// driver and tells the daemon.
    #[inline]
    fn takes_turns(&self) -> bool {
        self.turns.known_rule().unwrap_or_else(|| {
            let turns = self.turns.ask_driver();
            self.post.note_contexts(if turns { ContextSharing::TimeSliced } else { ContextSharing::Mps });
            turns
        })
    }

    /// The meter, under its lock, with the launches that threads made on credit counted.
    fn lock_meter(&self) -> LockGuard<'_, UsageMeter> {
        let mut meter = self.meter.lock();
        meter.count_credits();
        meter
    }

    /// True if launches are only measured: none waits, none is charged to the account, and no turns are taken.
    #[inline]
    pub fn is_observing(&self) -> bool {
        mode::is_observing()
    }

    /// Whether these are the costs that this governor learns.
    pub fn has_costs(&self, costs: &LaunchCosts) -> bool {
        core::ptr::eq(&raw const *self.costs, costs)
    }

    /// Takes back a launch on a credit that the driver refused.
    #[cold]
    pub fn refused_on_credit(&self, chain: u64, cost: u64) {
        self.undo_refused(&MarkerPlan::without_marker(chain), CostGuess::with_certainty(cost), None);
    }

    /// Passes one launch: waits for its turn, measures it, charges completed work.
    ///
    /// # Cost
    /// About 40 ns for another launch into a busy stream; most of those use a credit and do not get here. Markers and
    /// driver queries are extra: one record and one query in about 250 us of device time. A stream that may have
    /// become idle is queried every 50 us at most.
    #[inline]
    pub fn launch(
        &'static self,
        joined: &JoinedLedger,
        launch: MeteredLaunch,
        real: impl FnOnce() -> CUresult,
    ) -> CUresult {
        if self.post.is_open(&launch) {
            return real();
        }
        if streams::may_capture() {
            match is_capturing(&launch) {
                Some(false) => {}
                // Recorded, not run: the graph's launch is charged.
                Some(true) => return real(),
                // The stream cannot be queried now, so the launch cannot be measured either.
                None => return self.launch_unmeasured(joined, &launch, real),
            }
        }
        let mut wish = self.query_of(joined, &launch);
        let short = self.lock_meter().go_on(&wish);
        if let Some(chain) = short {
            let result = real();
            if !result.ok() {
                self.undo_refused(&MarkerPlan::without_marker(chain), wish.cost, None);
            }
            return result;
        }
        let plan = match self.step_launch(joined, &wish, StepFindings::default()) {
            LaunchStep::Go(plan) => plan,
            LaunchStep::Open => return self.launch_through_open_gate(real),
            other => match self.negotiate_launch(joined, &mut wish, other) {
                LaunchStep::Go(plan) => plan,
                LaunchStep::Open => return self.launch_through_open_gate(real),
                _ => return self.launch_unmeasured(joined, &launch, real),
            },
        };
        if !plan.is_plain() {
            return self.launch_with_markers(joined, &launch, wish.cost, &plan, real);
        }
        let result = real();
        if !result.ok() {
            self.undo_refused(&plan, wish.cost, None);
        }
        result
    }

    /// The request of a launch, by what is known of it now.
    #[inline]
    fn query_of<'a>(&'a self, joined: &'a JoinedLedger, launch: &'a MeteredLaunch) -> LaunchQuery<'a> {
        LaunchQuery {
            launch,
            cost: self.costs.guess_cost(launch.key),
            gate: self.granted_gate(),
            turn: self.turn_of_members(joined),
            share: self.kept_ceiling(),
            post: &self.post,
            account: joined.joined_member().time_account(),
        }
    }

    /// Waits until this launch may go, and does not launch. A call that works on several devices waits at each gate
    /// first: a wait behind a gate that was passed would be measured as work on that gate's device.
    pub fn wait_at_gate(&'static self, joined: &JoinedLedger, launch: &MeteredLaunch) {
        if self.post.is_open(launch) || streams::may_capture() && is_capturing(launch) != Some(false) {
            return;
        }
        let mut wish = self.query_of(joined, launch);
        let first = self.step_launch(joined, &wish, StepFindings::default());
        if let LaunchStep::Go(plan) = self.negotiate_launch(joined, &mut wish, first) {
            self.undo_refused(&plan, wish.cost, None);
            destroy_events([plan.events[0].filter(|_| plan.begin)]);
        }
    }

    #[inline(never)] // rarer than it seems: keeps the short path short
    fn step_launch(&'static self, joined: &JoinedLedger, wish: &LaunchQuery<'_>, seen: StepFindings) -> LaunchStep {
        let mut meter = self.lock_meter();
        let step = meter.step_launch(wish, seen, |due, since| self.charge(joined, due, since));
        meter.age_doubts(&self.costs);
        if let LaunchStep::Go(plan) = &step
            && plan.is_plain()
        {
            meter.allow_credit(wish, plan, &self.costs);
        }
        step
    }

    /// Does the work that the steps ask for until the launch may go: [`LaunchStep::Go`], [`LaunchStep::Open`], or
    /// [`LaunchStep::Unmeasured`].
    #[cold]
    fn negotiate_launch(
        &'static self,
        joined: &JoinedLedger,
        wish: &mut LaunchQuery<'_>,
        first: LaunchStep,
    ) -> LaunchStep {
        let pay = |due, since| self.charge(joined, due, since);
        let mut waiting = None;
        let (mut seen, mut step, mut heard, mut own_bell) = (StepFindings::default(), first, 0, 0);
        let outcome = loop {
            match step {
                LaunchStep::Go(_) | LaunchStep::Open => break step,
                LaunchStep::Unmeasured if seen.reaped => break step,
                LaunchStep::Again => {}
                LaunchStep::Unmeasured | LaunchStep::Reap => {
                    self.reap_completed(joined, wish.launch.context);
                    seen.reaped = true;
                }
                LaunchStep::Ask { launches, waits_for_idle } => {
                    let until = if waits_for_idle { clock::now() + BASE.handover } else { 0 };
                    let mut is_idle = without_captures(|| markers::is_idle(wish.launch));
                    while waits_for_idle && !is_idle && clock::now() < until {
                        is_idle = without_captures(|| markers::is_idle(wish.launch));
                    }
                    seen.stream = Some((is_idle, launches));
                }
                LaunchStep::Mark(plan) => self.mark_tail(joined, wish.launch, &plan),
                LaunchStep::Wait { .. } if !seen.reaped => {
                    self.reap_completed(joined, wish.launch.context);
                    seen.reaped = true;
                }
                LaunchStep::Wait { until, for_others } => {
                    let waiting = waiting.get_or_insert_with(|| waiting::WaitingThread::begin_waiting(self));
                    match (self.ring_before_wait(joined), &wish.turn) {
                        (Some((word, seen)), _) if for_others => futex::wait(word, seen, until, u32::MAX),
                        (None, Some(turn)) => {
                            self.do_chores(joined, turn);
                            if for_others {
                                turn::wait(turn, heard, until)
                            } else {
                                waiting.wait_until(own_bell, until)
                            }
                        }
                        _ => waiting.wait_until(own_bell, until),
                    }
                    // The daemon may have appeared or disappeared meanwhile.
                    (wish.gate, wish.share, wish.turn) =
                        (self.granted_gate(), self.kept_ceiling(), self.turn_of_members(joined));
                    self.reap_completed(joined, wish.launch.context);
                    self.lock_meter().settle_expired(clock::now(), pay);
                    seen = StepFindings { reaped: true, stream: None };
                }
            }
            // Completed work may have taught the cost of this launch.
            wish.cost = self.costs.guess_cost(wish.launch.key);
            heard = wish.turn.as_ref().map_or(0, |turn| turn.bell_word().load(SeqCst));
            own_bell = self.hear_bell();
            step = self.step_launch(joined, wish, seen);
        };
        drop(waiting);
        outcome
    }

    /// A launch with markers before or after it.
    #[cold]
    fn launch_with_markers(
        &self,
        joined: &JoinedLedger,
        launch: &MeteredLaunch,
        cost: CostGuess,
        plan: &MarkerPlan,
        real: impl FnOnce() -> CUresult,
    ) -> CUresult {
        if plan.tend {
            match self.turn_of_members(joined) {
                Some(turn) if !search::is_seeking() => self.do_chores(joined, &turn),
                _ => (self.above.start_helper)(),
            }
        }
        let moment = contexts::epoch();
        // Work that this process does not measure may be ahead in the stream, so that the marker is not reached at
        // once. The first call after a pause is slow, and that is this query.
        let is_idle = plan.begin && without_captures(|| markers::is_idle(launch));
        let timed_record = || {
            // After a pause the first record is slow too. On an idle stream the event is recorded twice, and the second
            // one counts.
            let warm = if is_idle { markers::record_event(launch, plan.events[0]) } else { plan.events[0] };
            let asked = clock::now();
            (asked, markers::record_event(launch, warm), clock::now())
        };
        let (asked, begin, recorded) =
            if plan.begin { without_captures(timed_record) } else { (0, None, clock::now()) };
        let result = real();
        let launched = clock::now();
        // On an idle stream the device waits between the marker and the kernel. Both calls' host times go to the lead
        // estimate. A graph's first node starts before the launch call ends, so half of that call counts. If the thread
        // was descheduled during the calls, the lead is unknown and the sample is dropped. A function that was never
        // measured needs any sample, so it uses the launch call alone.
        let (recording, launching) = (recorded.saturating_sub(asked), launched.saturating_sub(recorded));
        let calls = [recording, if launch.in_parts { launching / 2 } else { launching }];
        let both = recording + launching;
        let calls = match (is_idle, cost.is_unknown()) {
            (false, _) => Some([0; 2]),
            (true, true) => Some(if was_away(both) { [0, launching] } else { calls }),
            (true, false) => self.is_believed(both, cost.as_ns()).then_some(calls),
        };
        let at = if is_idle { asked + (recorded - asked) / 2 } else { 0 };
        let begin = begin.map(|event| BeginMarker { event, calls, at });
        if !result.ok() {
            self.undo_refused(plan, cost, begin);
            return result;
        }
        let end =
            if plan.end.is_some() { without_captures(|| markers::record_event(launch, plan.events[1])) } else { None };
        let at = clock::now();
        let second = |first| SecondMarker::record(launch, plan.events[2], first);
        let second = end.filter(|_| plan.second).and_then(|first| without_captures(|| second(first)));
        let is_late = was_away(at.saturating_sub(launched));
        let end = end.map(|event| EndMarker { event, recorded: at, is_late, second });
        if contexts::context_fate(launch.context.0 as usize, moment) == contexts::ContextFate::Lives {
            let pay = |due, since| self.charge(joined, due, since);
            let unused = self.lock_meter().note_recorded(plan, begin, end, &self.costs, pay);
            destroy_events(unused);
        }
        result
    }

    /// True if calls that took this long may enclose the measurement of a launch of `cost`. If they took long the time
    /// before, too, the cause is not a descheduled thread.
    fn is_believed(&self, calls: u64, cost: u64) -> bool {
        let is_short = !was_away(calls) || calls < small_part(cost);
        let was_vague = self.vague.swap(!is_short, Relaxed);
        is_short || was_vague
    }

    #[cold]
    fn undo_refused(&self, plan: &MarkerPlan, cost: CostGuess, begin: Option<BeginMarker>) {
        let unused = {
            let mut meter = self.lock_meter();
            let unused = meter.undo_refused(plan, cost, begin);
            meter.write_report(&self.post, clock::now());
            unused
        };
        destroy_events(unused);
    }

    #[cold]
    fn launch_unmeasured(
        &self,
        joined: &JoinedLedger,
        launch: &MeteredLaunch,
        real: impl FnOnce() -> CUresult,
    ) -> CUresult {
        let account = joined.joined_member().time_account();
        if !self.is_observing() {
            // Unmeasured work is charged by its estimate, and waits for the balance like all other work.
            let mut waiting = None;
            loop {
                let heard = self.hear_bell();
                let Some(until) = self.kept_until(account) else { break };
                let waiting = waiting.get_or_insert_with(|| waiting::WaitingThread::begin_waiting(self));
                self.ring_before_wait(joined);
                waiting.wait_until(heard, until.min(clock::now().saturating_add(BASE.heartbeat)));
            }
        }
        let since = account.begin_work(clock::now());
        let result = real();
        if result.ok() {
            let used = self.costs.guess_cost(launch.key).as_ns();
            self.charge(joined, DueTime { used, excess: 0, arrears: 0, beside: 0 }, since);
        }
        result
    }

    fn charge(&self, joined: &JoinedLedger, due: DueTime, since: WorkStart) {
        if let Some(share) = self.kept_ceiling() {
            let (account, now) = (joined.joined_member().time_account(), clock::now());
            let ordinary = due.used.saturating_sub(due.excess).saturating_add(rest_due(due.arrears, share));
            account.charge_since(ordinary, share, since, now);
            if due.excess > 0 {
                account.charge_since(due.excess, Share::WHOLE_DEVICE, since, now);
            }
        }
        self.post.charge(due.used, due.excess.cast_signed().wrapping_sub(due.arrears.cast_signed()));
        joined.joined_member().add_busy(due.used.saturating_add(due.beside));
    }

    /// Charges completed work; queries the driver from the context that is current here.
    fn reap_completed(&self, joined: &JoinedLedger, here: CUcontext) {
        let collected = self.lock_meter().collect_batch();
        let Some(mut batch) = collected else { return };
        without_captures(|| batch.ask_markers(here));
        let now = clock::now();
        let pay = |due, since| self.charge(joined, due, since);
        let turns = !self.is_leased() && self.turns.known_rule().is_some_and(|turns| turns);
        let turn = turns.then(|| joined.joined_member().device_turn());
        let completed = {
            let mut meter = self.lock_meter();
            if turn.is_some_and(|turn| !meter.turning.is_clean(&turn)) {
                meter.discard_in_flight();
            }
            let shared = turn.map(|_| joined.joined_member().time_account());
            let completed = meter.apply_batch(batch, &self.costs, now, shared, pay);
            meter.write_report(&self.post, now);
            completed
        };
        if completed {
            self.ring_waiters();
        }
    }

    /// Measures the completed work of a context that is about to end; [`Self::context_ended`] charges the rest. Waits
    /// briefly for a thread that is querying its markers.
    pub fn end_context(&self, joined: &JoinedLedger, context: CUcontext) {
        self.post.forget_stream();
        self.reap_completed(joined, streams::current());
        let until = clock::now() + BASE.stuck;
        while self.lock_meter().is_reaping() && clock::now() < until {
            clock::sleep(BASE.handover);
        }
        let events = self.lock_meter().end_context(context.0 as usize);
        destroy_events(events.into_iter().map(Some));
    }

    /// The driver has ended a context, or refused to: charges its unmeasured work by the estimate.
    pub fn context_ended(&self, joined: &JoinedLedger, context: CUcontext) {
        let now = clock::now();
        {
            let mut meter = self.lock_meter();
            meter.context_ended(context.0 as usize, now, |due, since| self.charge(joined, due, since));
            meter.write_report(&self.post, now);
        }
        self.ring_waiters();
        self.ring_daemon();
    }

    /// A graph was made executable: forgets the cost of the graph that had this handle before.
    pub fn forget_graph(&self, exec: CUgraphExec) {
        self.costs.forget_key(graph_key(exec));
    }

    /// Resets the meter and the daemon link in a forked child.
    pub fn forget_all(&self) {
        // SAFETY: called in a forked child, whose only thread this is.
        unsafe { self.meter.reset(UsageMeter::default()) };
        self.post.forget_slot();
    }
}

/// True if so much time between two of our calls shows that the thread was descheduled meanwhile.
fn was_away(ns: u64) -> bool {
    ns > BASE.handover
}

fn destroy_events(events: impl IntoIterator<Item = Option<CUevent>>) {
    for event in events.into_iter().flatten() {
        without_captures(|| markers::destroy_event(event));
    }
}

/// True if the launch is recorded into a graph instead of run; `None`: the driver does not report it.
#[cold]
fn is_capturing(launch: &MeteredLaunch) -> Option<bool> {
    launch.stream_id().capture_status()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_measurement_between_long_calls_is_rejected_and_the_next_is_believed() {
        let governor = Governor::new(None, DaemonLink::without_daemon(), CallsAbove::NONE);
        let (cost, long) = (50_000, 10 * BASE.handover);
        for _ in 0..3 {
            assert!(governor.is_believed(BASE.handover, cost), "no call was interrupted");
            assert!(!governor.is_believed(long, cost), "the thread was away");
            assert!(governor.is_believed(long, cost), "calls take that long here");
            assert!(governor.is_believed(long, cost));
        }
        assert!(governor.is_believed(long, 100 * long), "it does not matter next to such a launch");
    }
}
