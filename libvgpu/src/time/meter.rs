//! The usage meter: this process's work on one device, as one timeline of launches per stream, and the decisions
//! about it.
//!
//! Each stream has a timeline of intervals. An interval starts with a begin marker if the stream was idle, and ends
//! with an end marker after about 250 us of estimated work
//! ([`StreamMarkers`](vgpu_core::time::gate::marks::StreamMarkers)). The next interval of a busy stream begins at
//! that end marker. Work after the last marker is a tail. A tail is charged by the learned cost of its launches once
//! the stream is known to be idle, never by a marker recorded late.
//!
//! All of this happens under the governor's lock and calls no driver. A question for the driver is returned as a
//! [`LaunchStep`]; the caller asks without the lock and steps again.
//!
//! [`stepping`]: a launch on its way to the driver; [`recorded`]: after the driver call. [`settling`]: work after a
//! stream's last marker. [`markers`]: the driver calls. [`reaping`]: charging and learning when markers were reached.
//! [`crediting`]: launches that threads count by themselves. [`ending`]: contexts and streams that end, programs that
//! wait. [`turning`]: the tenant's other members. [`leasing`]: the daemon's lease. [`timelines`]: the data. Waiting at
//! the gate: [`crate::time::governor`].

mod crediting;
mod ending;
mod leasing;
pub mod markers;
pub mod reaping;
mod recorded;
mod settling;
mod stepping;
mod timelines;
mod turning;

use crate::daemon::lease::Lease;
use crate::daemon::link::DaemonLink;
use crate::driver::launch::MeteredLaunch;
use crate::time::turn::TurnMemory;
use crediting::GrantedCredit;
use markers::{ContextAxis, SecondMarker};
use shim_sys::cuda::*;
use timelines::{LearnedFunctions, StreamTimeline};
use vgpu_core::time::account::arrears::{Arrears, UsualTimes};
use vgpu_core::time::account::cost::{CostDoubt, CostGuess};
use vgpu_core::time::account::lead::{LeadEstimate, MarkerCost};
use vgpu_core::time::account::{SharedAccount, WorkStart};
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::config::BASE;
use vgpu_core::time::gate::LaunchGate;
use vgpu_core::time::gate::presence::Presence;
use vgpu_core::time::gate::union::TimeUnion;
use vgpu_core::time::turn::Turn;
use vgpu_core::time::turn::patience::DrainDeadline;
use vgpu_core::units::share::Share;

/// The caller's findings since it began to step.
#[derive(Clone, Copy, Default)]
pub struct StepFindings {
    /// True if the caller has looked for completed markers since then.
    pub reaped: bool,
    /// Whether the stream was idle, and the number of its launches at that time.
    pub stream: Option<(bool, u32)>,
}

/// A launch's request to the gate.
pub struct LaunchQuery<'a> {
    /// The launch that asks.
    pub launch: &'a MeteredLaunch,
    /// The launch's estimated device time.
    pub cost: CostGuess,
    /// The gate where the daemon does not decide.
    pub gate: Gate,
    /// The turn among the tenant's members, if they take turns.
    pub turn: Option<Turn<'static>>,
    /// The ceiling that this process enforces by the tenant's account, if there is one.
    pub share: Option<Share>,
    /// The link to the daemon.
    pub post: &'a DaemonLink,
    /// The tenant's account: the balance of device time that launches are charged to.
    pub account: SharedAccount<'static>,
}

impl LaunchQuery<'_> {
    /// True if launches are only measured.
    fn is_observing(&self) -> bool {
        matches!(self.gate, Gate::Open)
    }
}

/// The next step of a launch.
pub enum LaunchStep {
    /// Launch now, with these markers.
    Go(MarkerPlan),
    /// Look for completed markers, and step again.
    Reap,
    /// Ask whether the stream is busy, and step again.
    Ask {
        /// The number of launches that the stream has had.
        launches: u32,
        /// True: wait briefly until it is idle.
        waits_for_idle: bool,
    },
    /// Record an end marker after the stream's queued work, and step again.
    Mark(MarkerPlan),
    /// Wait, then step again.
    Wait {
        /// When to step again at the latest.
        until: u64,
        /// True if the launch waits for other members of its tenant: the thread sleeps on the bell of the turn.
        for_others: bool,
    },
    /// Too many streams: launch, and charge the estimate.
    Unmeasured,
    /// The daemon's gate is open: launch, nothing is measured.
    Open,
    /// The daemon's gate changed at the last moment: step again.
    Again,
}

/// The markers of a launch.
#[derive(Clone, Copy)]
pub struct MarkerPlan {
    chain: u64,
    /// True: record a begin marker before the launch.
    pub begin: bool,
    /// Record an end marker, for the interval of that number.
    pub end: Option<u64>,
    /// Record a second marker behind the end marker, to measure the device time of a marker.
    pub second: bool,
    /// Events to reuse for them: begin, end, second.
    pub events: [Option<CUevent>; 3],
    /// Number of launches of this process up to this one; if it is higher later, other threads launched meanwhile.
    launches: u64,
    /// The turn has follow-up work.
    pub tend: bool,
}

impl MarkerPlan {
    /// The plan of a launch without markers, on that timeline.
    pub fn without_marker(chain: u64) -> Self {
        Self { chain, begin: false, end: None, second: false, events: [None; 3], launches: 0, tend: false }
    }

    /// True without any marker or follow-up work.
    pub fn is_plain(&self) -> bool {
        !self.begin && self.end.is_none() && !self.tend
    }
}

/// A begin marker that was recorded.
#[derive(Clone, Copy)]
pub struct BeginMarker {
    /// The driver event that was recorded as the marker.
    pub event: CUevent,
    /// Host time in ns of the two calls: event record, then launch. Zeros: the stream was busy, so the kernel starts
    /// right after the marker. `None`: the thread was descheduled during the calls, so the lead is unknown.
    pub calls: Option<[u64; 2]>,
    /// When the device reached the marker, by the host's clock; 0: the stream was busy, so the time is unknown.
    pub at: u64,
}
/// An end marker that was recorded.
#[derive(Clone, Copy)]
pub struct EndMarker {
    /// The driver event that was recorded as the marker.
    pub event: CUevent,
    /// Host clock when the record's call returned.
    pub recorded: u64,
    /// The record may have come so late that the stream was idle before it.
    pub is_late: bool,
    /// The marker right behind it, if there is one.
    pub second: Option<SecondMarker>,
}

/// Hints by stream: one cache line of one byte each.
const HINT_SLOTS: usize = 64;

/// This process's work on one device.
pub struct UsageMeter {
    keeper: LaunchGate,
    union: TimeUnion,
    chains: Vec<StreamTimeline>,
    /// The probable index of a stream's timeline.
    hints: [u8; HINT_SLOTS],
    numbers: u64,
    /// Number of stream timelines that have work in flight.
    busy: u32,
    /// Number of timelines with unmeasured work.
    unmeasured: u32,
    axes: Vec<ContextAxis>,
    spare: Vec<(usize, CUevent)>,
    /// True while a thread queries the driver about markers.
    reaping: bool,
    /// True after a time in which no thread considered a launch, if nothing shows that the device worked in it. The
    /// work in flight by our count may have ended long ago, or begun afterwards. Ends with the driver's next answers.
    is_stale: bool,
    /// The timeline whose markers the next query of the driver begins with.
    asked: usize,
    /// Contexts that ended while a thread queried the driver about markers.
    gone: Vec<usize>,
    /// Contexts that the driver is ending, with the estimate of their work in nanoseconds and its uncertainty.
    ending: Vec<(usize, u64, CostDoubt)>,
    presence: Presence,
    /// When a launch of any stream was last measured by markers, by the host's clock.
    measured: u64,
    /// Threads that wait at the gate.
    waiting: u32,
    /// The turn among the tenant's members.
    pub turning: TurnMemory,
    /// How long the tenant's other members are asked to wait for the work in flight.
    patience: DrainDeadline,
    /// Estimate of the time from a begin marker on an idle stream to its kernel.
    lead: LeadEstimate,
    /// The device time that an end marker takes.
    marker_cost: MarkerCost,
    /// The lease of the last launch.
    last_lease: u64,
    /// The lease that the daemon granted.
    pub lease: Lease,
    /// When all launched work should be over, by the estimates.
    due: u64,
    /// Estimated total of all launched work that is no longer in flight.
    over: u64,
    /// When a launch last read the clock; `untimed` launches followed without reading it.
    time: u64,
    /// Launches since the clock was last read.
    untimed: u32,
    launches: u64,
    /// Host time between two launches, when the clock was last read.
    pace: u64,
    /// Credits of threads, and how much of each is counted.
    given: Vec<GrantedCredit>,
    /// Estimated work launched on credits whose timeline is gone; still to be charged.
    stray: u64,
    /// The usual time of intervals.
    usual: UsualTimes,
    /// The unpaid part of intervals that took far longer than usual.
    arrears: Arrears,
    /// Functions whose confidence must rise although nothing was learned of them.
    ripe: LearnedFunctions,
    /// Counted time of all streams together in this busy period, less the time charged for it:
    /// [`UsageMeter::share_among_streams`].
    short: i64,
}

impl Default for UsageMeter {
    fn default() -> Self {
        Self {
            keeper: LaunchGate::default(),
            union: TimeUnion::default(),
            chains: Vec::new(),
            hints: [0; HINT_SLOTS],
            numbers: 0,
            busy: 0,
            unmeasured: 0,
            axes: Vec::new(),
            spare: Vec::new(),
            reaping: false,
            is_stale: false,
            asked: 0,
            gone: Vec::new(),
            ending: Vec::new(),
            presence: Presence::default(),
            measured: 0,
            waiting: 0,
            turning: TurnMemory::default(),
            patience: DrainDeadline::default(),
            lead: LeadEstimate::default(),
            marker_cost: MarkerCost::default(),
            last_lease: 0,
            lease: Lease::default(),
            due: 0,
            over: 0,
            time: 0,
            untimed: 0,
            launches: 0,
            pace: u64::MAX,
            given: Vec::new(),
            stray: 0,
            usual: UsualTimes::default(),
            short: 0,
            arrears: Arrears::default(),
            ripe: LearnedFunctions::default(),
        }
    }
}

/// Device time to charge to the tenant's account, in nanoseconds.
#[derive(Clone, Copy)]
pub struct DueTime {
    /// All device time to charge.
    pub used: u64,
    /// The part of it that is far beyond the usual, and paid off in parts: [`vgpu_core::time::account::arrears`].
    pub excess: u64,
    /// Earlier excess of which the rest is paid now.
    pub arrears: u64,
    /// Device time in addition to `used` that another member pays for, whose work was on the device at the same time.
    pub beside: u64,
}

/// Receives a charge, and since when the tenant's work has been queued.
pub trait PaySink: Fn(DueTime, WorkStart) {}
impl<F: Fn(DueTime, WorkStart)> PaySink for F {}

impl UsageMeter {
    /// Discards all work in flight as a source of learned costs.
    pub fn discard_in_flight(&mut self) {
        for chain in &mut self.chains {
            chain.tainted = true;
            chain.pending.iter_mut().for_each(|interval| interval.tainted = true);
        }
    }

    /// The charge for `used`, of which `excess` is far beyond the usual.
    fn split_due(&mut self, used: u64, excess: u64) -> DueTime {
        let arrears = self.arrears.take_instalment(used.saturating_sub(excess));
        self.arrears.defer_excess(excess);
        DueTime { used, excess, arrears, beside: 0 }
    }

    /// Makes the streams together pay all counted time. Streams that ran at the same time pay their parts of it, and
    /// work without a marker its estimated cost. The time missing from the counted total is charged with the last
    /// interval of a busy period, or as soon as it exceeds a quantum. An overpayment is never refunded. Returns
    /// the time to charge.
    fn share_among_streams(&mut self, counted: u64, used: u64) -> u64 {
        let most = BASE.quantum.cast_signed();
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let short = self.short.saturating_add(signed(counted)).saturating_sub(signed(used)).max(-most);
        let is_over = self.keeper.in_flight() == 0;
        let owed = if is_over { short.max(0) } else { short.saturating_sub(most).max(0) };
        self.short = if is_over { 0 } else { short - owed };
        used.saturating_add(u64::try_from(owed).unwrap_or(0))
    }

    /// A thread begins or ends its wait at the gate.
    pub fn wait(&mut self, begins: bool) {
        self.waiting = if begins { self.waiting + 1 } else { self.waiting.saturating_sub(1) };
    }

    /// True if a thread waits at the gate.
    pub fn is_waited_for(&self) -> bool {
        self.waiting > 0
    }

    /// Estimated work in flight on the device, in ns.
    pub fn in_flight(&self) -> u64 {
        self.keeper.in_flight()
    }

    /// Estimated total of all launched work.
    fn given_out(&self) -> u64 {
        self.over.wrapping_add(self.keeper.in_flight())
    }

    fn recount_stream(&mut self, at: usize, was_busy: bool, was_unmeasured: bool) {
        let chain = &self.chains[at];
        let change = |count: u32, was: bool, is: bool| (count + u32::from(is)).saturating_sub(u32::from(was));
        self.busy = change(self.busy, was_busy, chain.is_busy());
        self.unmeasured = change(self.unmeasured, was_unmeasured, chain.is_unmeasured());
    }

    fn check_tally(&mut self) {
        let count = |is: fn(&StreamTimeline) -> bool| self.chains.iter().filter(|chain| is(chain)).count();
        let (busy, unmeasured) = (count(StreamTimeline::is_busy), count(StreamTimeline::is_unmeasured));
        (self.busy, self.unmeasured) = (u32::try_from(busy).unwrap_or(0), u32::try_from(unmeasured).unwrap_or(0));
    }

    fn take_spare_event(&mut self, context: usize) -> Option<CUevent> {
        let at = self.spare.iter().rposition(|spare| spare.0 == context)?;
        Some(self.spare.swap_remove(at).1)
    }

    /// Keeps an event for reuse. A new one is created only if none is kept, so there are never more than were needed
    /// at the same time.
    fn keep_event(&mut self, context: usize, event: CUevent) {
        self.spare.push((context, event));
    }
}
