//! The launch gate of a device under a ceiling on device time: pay first, or wait.
//!
//! A launch goes when the gate's rules allow it ([`vgpu_core::time::gate::Keeper`]). The tenant's account, which all
//! its members share in the ledger, must have a positive balance after the work in flight, and that work must be less
//! than 2 ms by estimate. The time that a launch really took is charged when the meter sees it complete. So a long
//! kernel is paid for afterwards, and no unused time expires while work of this process is queued. Waiting is bounded
//! by progress: if nothing of this process completes for long enough, one launch is forced, because the running work
//! may be waiting for it.
//!
//! No lock is held across a call of the driver. Completion is seen when the program launches, waits or synchronises,
//! or by a caller of [`Governor::reap_now`]. In [`waiting`]: how a thread waits. In [`synchronising`]: programs that
//! wait for the device. In [`crate::meter`]: the work in flight.

mod helping;
mod leasing;
mod synchronising;
mod waiting;

pub use synchronising::{Awaited, after, before, stream_ending};

use crate::daemon::{Post, renew};
use crate::ledger::Joined;
use crate::lock::{Held, Lock};
use crate::meter::markers;
use crate::meter::reaping::Costs;
use crate::meter::{Begin, Due, Launch, Meter, Plan, SHORT_NS, Seen, Step, Wish};
use crate::order::{self, quietly};
use crate::{clock, context, device, meter, mode, turn, watcher};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use shim_sys::cuda::*;
use shim_sys::futex;
use vgpu_core::time::account::Engaged;
use vgpu_core::time::account::arrears::{eased, rest};
use vgpu_core::time::account::cost::Guess;
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::gate::loss::Alone;
use vgpu_core::time::turn::{HEARTBEAT, Turn};
use vgpu_core::units::share::Share;

/// If more time than this passes between two of our calls, the thread was descheduled meanwhile.
const AWAY_NS: u64 = 50_000;
/// After this many measurements in a row that were rejected, one is accepted.
const VAGUE: u32 = 2;
/// How many times the end of a context or a stream waits 20 us for a thread that queries its markers.
const ENDING_TRIES: u32 = 5_000;

/// True once a device has a governor, or launches must be refused.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// True if launches must look at the gate at all.
///
/// # Cost
/// One load and a predictable branch: the whole cost of a launch without a ceiling.
#[inline]
pub fn active() -> bool {
    ACTIVE.load(Relaxed)
}

/// From now on each launch looks at its device's gate, because device time has a ceiling or launches must be refused.
pub fn activate() {
    ACTIVE.store(true, Relaxed);
}

/// Decides for each launch of this process on one device whether it goes or waits; owns the meter and the lease.
pub struct Governor {
    /// The ceiling that this process keeps by itself, whatever the daemon grants.
    own: Option<Share>,
    /// The link to the daemon.
    pub post: Post,
    costs: Box<Costs>,
    /// Held for a few dozen instructions, never across a call of the driver.
    meter: Lock<Meter>,
    /// Changes when work in flight completes; waiting threads sleep on it.
    bell: AtomicU32,
    /// Measurements in a row that were rejected.
    vague: AtomicU32,
    /// Whether members of the tenant take turns on this device.
    turns: turn::Rule,
}

impl Governor {
    /// Creates a gate that enforces our own ceiling, if there is one, and the daemon's decisions, if there is a
    /// daemon. When only observing it is always open and measures the launches.
    pub fn new(own: Option<Share>, post: Post) -> Self {
        activate();
        Self {
            own,
            post,
            costs: Costs::boxed(),
            meter: Lock::new(Meter::default()),
            bell: AtomicU32::new(0),
            vague: AtomicU32::new(0),
            turns: turn::Rule::new(),
        }
    }

    /// The gate where the daemon does not decide: only the account bounds a launch.
    fn gate(&self) -> Gate {
        match self.post.alone() {
            _ if self.observes() => Gate::Open,
            Some(Alone::Blocked) => Gate::Wait,
            Some(Alone::Unlimited) if self.own.is_none() => Gate::Open,
            _ => Gate::Run { lease: 0, until: u64::MAX, exclusive: true, ceiling: None, wide: false },
        }
    }

    /// The ceiling that the tenant's account enforces: our own, and while the daemon is away the one it set in
    /// advance.
    #[inline]
    fn share(&self) -> Option<Share> {
        match self.post.alone() {
            _ if self.observes() => None,
            Some(Alone::Ceiling(share)) => Some(self.own.map_or(share, |own| own.min(share))),
            _ => self.own,
        }
    }

    /// True if the daemon grants the device to one member at a time, so that the tenant's members need no turns.
    fn is_leased(&self) -> bool {
        self.post.place().is_some() && self.post.alone().is_none() && !self.post.was_open()
    }

    /// The turn among the tenant's members, if they take turns on the current device.
    #[inline]
    fn turn(&self, joined: &Joined) -> Option<Turn<'static>> {
        if self.is_leased() || self.share().is_none() {
            return None;
        }
        let turns = self.turns.known().unwrap_or_else(|| self.turns.ask());
        turns.then(|| joined.member().turn())
    }

    /// The meter, under its lock, with the launches that threads made on credit counted.
    fn meter(&self) -> Held<'_, Meter> {
        let mut meter = self.meter.lock();
        meter.count_credits();
        meter
    }

    /// True if launches are only measured: none waits, none is charged to the account, and no turns are taken.
    #[inline]
    pub fn observes(&self) -> bool {
        mode::observing()
    }

    /// The cost of a launch, if it may use a credit.
    #[inline(always)]
    pub fn short_cost(&self, key: u64) -> Option<u64> {
        self.costs.guess(key).below(SHORT_NS)
    }

    /// Takes back a launch on a credit that the driver refused.
    #[cold]
    pub fn refused_on_credit(&self, chain: u64, cost: u64) {
        self.refused(&Plan::plain(chain), Guess::sure(cost), None);
    }

    /// Passes one launch: waits for its turn, measures it, charges completed work.
    ///
    /// # Cost
    /// About 40 ns for another launch into a busy stream; most of those use a credit and do not get here. Markers and
    /// driver queries are extra: one record and one query in about 250 us of device time. A stream that may have
    /// become idle is queried every 50 us at most.
    #[inline]
    pub fn launch(&'static self, joined: &Joined, launch: Launch, real: impl FnOnce() -> CUresult) -> CUresult {
        if self.post.is_open(&launch) {
            return real();
        }
        if order::may_capture() {
            match captures(&launch) {
                Some(false) => {}
                // Recorded, not run: the graph's launch is charged.
                Some(true) => return real(),
                // The stream cannot be queried now, so the launch cannot be measured either.
                None => return self.unmeasured(joined, &launch, real),
            }
        }
        let cost = self.costs.guess(launch.key);
        let account = joined.member().account();
        let turn = self.turn(joined);
        let (gate, share, post) = (self.gate(), self.share(), &self.post);
        let mut wish = Wish { launch: &launch, cost, gate, turn, share, post, account };
        let short = self.meter().go_on(&wish);
        if let Some(chain) = short {
            let result = real();
            if !result.ok() {
                self.refused(&Plan::plain(chain), cost, None);
            }
            return result;
        }
        let plan = match self.step(joined, &wish, Seen::default()) {
            Step::Go(plan) => plan,
            Step::Open => return leasing::opened(real),
            other => match self.negotiate(joined, &mut wish, other) {
                Step::Go(plan) => plan,
                Step::Open => return leasing::opened(real),
                _ => return self.unmeasured(joined, &launch, real),
            },
        };
        if !plan.is_plain() {
            return self.marked(joined, &launch, wish.cost, &plan, real);
        }
        let result = real();
        if !result.ok() {
            self.refused(&plan, wish.cost, None);
        }
        result
    }

    #[inline(never)] // rarer than it seems: keeps the short path short
    fn step(&'static self, joined: &Joined, wish: &Wish<'_>, seen: Seen) -> Step {
        let mut meter = self.meter();
        let step = meter.step(wish, seen, |due, since| self.charge(joined, due, since));
        meter.ripen(&self.costs);
        if let Step::Go(plan) = &step
            && plan.is_plain()
        {
            meter.allow(wish, plan, self);
        }
        step
    }

    /// Does the work that the steps ask for until the launch may go: [`Step::Go`], [`Step::Open`], or
    /// [`Step::Unmeasured`].
    #[cold]
    fn negotiate(&'static self, joined: &Joined, wish: &mut Wish<'_>, first: Step) -> Step {
        let pay = |due, since| self.charge(joined, due, since);
        let mut waiting = None;
        let (mut seen, mut step, mut heard) = (Seen::default(), first, 0);
        let outcome = loop {
            match step {
                Step::Go(_) | Step::Open => break step,
                Step::Unmeasured if seen.reaped => break step,
                Step::Again => {}
                Step::Unmeasured | Step::Reap => {
                    self.reap(joined, wish.launch.context);
                    seen.reaped = true;
                }
                Step::Ask(launches) => {
                    seen.stream = Some((quietly(|| markers::is_idle(wish.launch)), launches));
                }
                Step::Mark(plan) => self.mark_tail(joined, wish.launch, &plan),
                Step::Wait { .. } if !seen.reaped => {
                    self.reap(joined, wish.launch.context);
                    seen.reaped = true;
                }
                Step::Wait { until, for_others } => {
                    let waiting = waiting.get_or_insert_with(|| waiting::Waiting::begin(self));
                    match (self.outward(joined), &wish.turn) {
                        (Some((word, seen)), _) if for_others => futex::wait(word, seen, until, u32::MAX),
                        (None, Some(turn)) => {
                            self.tend(joined, turn);
                            if for_others { turn::wait(turn, heard, until) } else { waiting.until(until) }
                        }
                        _ => waiting.until(until),
                    }
                    // The daemon may have appeared or disappeared meanwhile.
                    (wish.gate, wish.share, wish.turn) = (self.gate(), self.share(), self.turn(joined));
                    self.reap(joined, wish.launch.context);
                    self.meter().expire(clock::now(), pay);
                    seen = Seen { reaped: true, stream: None };
                }
            }
            // Completed work may have taught the cost of this launch.
            wish.cost = self.costs.guess(wish.launch.key);
            heard = wish.turn.as_ref().map_or(0, |turn| turn.bell().load(SeqCst));
            step = self.step(joined, wish, seen);
        };
        drop(waiting);
        outcome
    }

    /// A launch with markers before or after it.
    #[cold]
    fn marked(
        &self,
        joined: &Joined,
        launch: &Launch,
        cost: Guess,
        plan: &Plan,
        real: impl FnOnce() -> CUresult,
    ) -> CUresult {
        if plan.tend {
            match self.turn(joined) {
                Some(turn) if !renew::seeks() => self.tend(joined, &turn),
                _ => watcher::start(),
            }
        }
        let moment = context::moment();
        // Work that this process does not measure may be ahead in the stream, so that the marker is not reached at
        // once. The first call after a pause is slow: this query takes that, not the marker.
        let is_idle = plan.begin && quietly(|| markers::is_idle(launch));
        let asked = clock::now();
        let begin = if plan.begin { quietly(|| markers::record(launch, plan.events[0])) } else { None };
        let recorded = clock::now();
        let result = real();
        let launched = clock::now();
        // On an idle stream the device reached the marker at once, and the launch only later. Each happened at some
        // time within its call; a graph's first node starts in the first half of it. The time between is the lead. If
        // the thread was descheduled meanwhile, the lead is unknown; a launch that was never measured is measured all
        // the same.
        let (calls, launching) = (launched.saturating_sub(asked), launched.saturating_sub(recorded));
        let between = if launch.in_parts { calls - launching / 2 } else { calls };
        let lead = match (is_idle, cost.is_unknown()) {
            (false, _) => Some(0),
            (true, true) => Some(if calls < AWAY_NS { between / 2 } else { launching }),
            (true, false) => self.is_believed(calls, cost.ns()).then_some(between / 2),
        };
        let at = if is_idle { asked + (recorded - asked) / 2 } else { 0 };
        let begin = begin.map(|event| Begin { event, lead, at });
        if !result.ok() {
            self.refused(plan, cost, begin);
            return result;
        }
        let end = if plan.end.is_some() { quietly(|| markers::record(launch, plan.events[1])) } else { None };
        let at = clock::now();
        let end = end.map(|event| (event, Some(at).filter(|at| at.saturating_sub(launched) > AWAY_NS)));
        if context::fate(launch.context.0 as usize, moment) == context::Fate::Lives {
            let pay = |due, since| self.charge(joined, due, since);
            let unused = self.meter().recorded(plan, begin, end, &self.costs, pay);
            destroy(unused);
        }
        result
    }

    /// True if calls that took this long may enclose the measurement of a launch of `cost`. If they take long every
    /// time, the cause is not a descheduled thread.
    fn is_believed(&self, calls: u64, cost: u64) -> bool {
        let is_short = calls < AWAY_NS.max(cost / 16);
        let before = if is_short { self.vague.swap(0, Relaxed) } else { self.vague.fetch_add(1, Relaxed) };
        is_short || before >= VAGUE
    }

    #[cold]
    fn refused(&self, plan: &Plan, cost: Guess, begin: Option<Begin>) {
        let unused = {
            let mut meter = self.meter();
            let unused = meter.refused(plan, cost, begin);
            meter.report(&self.post, clock::now());
            unused
        };
        destroy(unused);
    }

    #[cold]
    fn unmeasured(&self, joined: &Joined, launch: &Launch, real: impl FnOnce() -> CUresult) -> CUresult {
        let account = joined.member().account();
        if !self.observes() {
            // Unmeasured work is charged by its estimate, and waits for the balance like all other work.
            let mut waiting = None;
            while let Some(until) = self.kept_until(account) {
                let waiting = waiting.get_or_insert_with(|| waiting::Waiting::begin(self));
                self.outward(joined);
                waiting.until(until.min(clock::now().saturating_add(HEARTBEAT)));
            }
        }
        let since = account.begin(clock::now());
        let result = real();
        if result.ok() {
            let used = self.costs.guess(launch.key).ns();
            self.charge(joined, Due { used, excess: 0, arrears: 0, beside: 0 }, since);
        }
        result
    }

    fn charge(&self, joined: &Joined, due: Due, since: Engaged) {
        if let Some(share) = self.share() {
            let (account, now) = (joined.member().account(), clock::now());
            let ordinary = due.used.saturating_sub(due.excess).saturating_add(rest(due.arrears, share));
            account.charge_since(ordinary, share, since, now);
            if due.excess > 0 {
                account.charge_since(due.excess, eased(share), since, now);
            }
        }
        self.post.charge(due.used);
        joined.member().add_busy(due.used.saturating_add(due.beside));
    }

    /// Charges completed work; queries the driver from the context that is current here.
    fn reap(&self, joined: &Joined, here: CUcontext) {
        let collected = self.meter().collect();
        let Some(mut batch) = collected else { return };
        quietly(|| batch.ask(here));
        let now = clock::now();
        let pay = |due, since| self.charge(joined, due, since);
        let turns = !self.is_leased() && self.turns.known().is_some_and(|turns| turns);
        let turn = turns.then(|| joined.member().turn());
        let completed = {
            let mut meter = self.meter();
            if turn.is_some_and(|turn| !meter.turning.is_clean(&turn)) {
                meter.taint();
            }
            let shared = turn.map(|_| joined.member().account());
            let completed = meter.apply(batch, &self.costs, now, shared, pay);
            meter.report(&self.post, now);
            completed
        };
        if completed {
            self.ring();
        }
    }

    /// Measures the completed work of a context that is about to end; [`Self::context_ended`] charges the rest. Waits
    /// briefly for a thread that is querying its markers.
    pub fn end_context(&self, joined: &Joined, context: CUcontext) {
        self.post.forget_stream();
        self.reap(joined, order::current());
        for _ in 0..ENDING_TRIES {
            if !self.meter().is_reaping() {
                break;
            }
            clock::sleep(20_000);
        }
        let events = self.meter().end_context(context.0 as usize);
        destroy(events.into_iter().map(Some));
    }

    /// The driver has ended a context, or refused to: charges its unmeasured work by the estimate.
    pub fn context_ended(&self, joined: &Joined, context: CUcontext) {
        let now = clock::now();
        {
            let mut meter = self.meter();
            meter.context_ended(context.0 as usize, now, |due, since| self.charge(joined, due, since));
            meter.report(&self.post, now);
        }
        self.ring();
        self.tell();
    }

    /// Resets the meter and the daemon link in a forked child.
    pub fn forget(&self) {
        // SAFETY: called in a forked child, whose only thread this is.
        unsafe { self.meter.reset(Meter::default()) };
        self.post.forget();
    }
}

/// A graph was made executable: forgets the cost of the graph that had this handle before.
pub fn graph_made(exec: CUgraphExec) {
    if active() {
        let governors = device::all().filter_map(|device| device.governor.as_ref());
        governors.for_each(|governor| governor.costs.forget(meter::graph_key(exec)));
    }
}

fn destroy(events: impl IntoIterator<Item = Option<CUevent>>) {
    for event in events.into_iter().flatten() {
        quietly(|| markers::destroy(event));
    }
}

/// True if the launch is recorded into a graph instead of run; `None`: the driver does not report it.
#[cold]
fn captures(launch: &Launch) -> Option<bool> {
    launch.order().captures()
}
