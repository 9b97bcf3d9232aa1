//! What this process has before one device: chains of launches, one per stream, and what is decided about them.
//!
//! Per stream a chain of intervals: a begin marker where the stream was idle, an end marker after about 250 us of
//! estimated work ([`Marks`]); the next interval of a busy stream begins at the end marker before. Work behind the last
//! marker is a tail: charged by the learned cost of its launches once the stream is known to be idle, never by a marker
//! recorded late.
//!
//! Everything here happens under the governor's lock and calls no driver. What the driver must be asked comes back as a
//! [`Step`]; the caller asks without the lock and steps again.
//!
//! [`stepping`]: a launch on its way to the driver; [`recorded`]: back from there. [`settling`]: tails. [`markers`]: the driver's part. [`reaping`]: what is charged and learned
//! when markers were reached. [`crediting`]: launches that threads count by themselves. [`ending`]: contexts and streams that end, programs that wait. [`turning`]: the tenant's other members. [`leasing`]: the daemon's lease. [`chains`]: the parts. Who waits
//! at the gate: [`crate::governor`].

mod chains;
mod crediting;
mod ending;
mod leasing;
pub mod markers;
pub mod reaping;
mod recorded;
mod settling;
mod stepping;
mod turning;

use crate::daemon::{Post, lease::Lease};
use crate::order::{Order, Place};
use crate::turn::Turning;
use chains::{Chain, Keys};
use crediting::Given;
use markers::Axis;
use shim_sys::cuda::*;
pub use stepping::SHORT_NS;
use vgpu_core::account::arrears::{Arrears, Usual};
use vgpu_core::account::cost::{Doubt, Guess};
use vgpu_core::account::{Engaged, SharedAccount};
use vgpu_core::arbiter::Gate;
use vgpu_core::gate::presence::Presence;
use vgpu_core::gate::union::Union;
use vgpu_core::gate::{Bounds, Keeper};
use vgpu_core::share::Share;
use vgpu_core::turn::Turn;
use vgpu_core::turn::patience::Patience;

/// What the cost of a launch is learned by: the function and how much of it is launched. 64-bit arithmetic: a grid may
/// have more than 2^32 blocks.
#[inline]
pub fn key(function: usize, [gx, gy, gz]: [u32; 3], [bx, by, bz]: [u32; 3]) -> u64 {
    let of = |a: u32, b: u32| u64::from(a).wrapping_mul(u64::from(b));
    let volume = of(gx, gy).wrapping_mul(of(gz, bx)).wrapping_mul(of(by, bz));
    (function as u64) ^ volume.rotate_left(32) | 1
}

/// As [`key`], of an executable graph, which is launched as a whole.
pub fn graph_key(exec: CUgraphExec) -> u64 {
    key(exec.0 as usize, [1; 3], [1; 3])
}

/// One launch, as the meter needs to know it.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// The current context.
    pub context: CUcontext,
    /// The stream.
    pub stream: CUstream,
    /// Whether the null stream means this thread's own.
    pub per_thread: bool,
    /// What the cost is learned by: function and grid.
    pub key: u64,
    /// A graph: the device may work at its first node while the call goes on.
    pub in_parts: bool,
}

impl Launch {
    /// Its stream, as calls name it.
    pub fn order(&self) -> Order {
        Order { stream: self.stream, per_thread: self.per_thread }
    }

    /// Which chain it belongs to.
    pub fn place(&self) -> Place {
        Place { key: self.order().key(), context: self.context.0 as usize }
    }
}

/// What the caller has found out since it began to step.
#[derive(Clone, Copy, Default)]
pub struct Seen {
    /// It has looked for completed markers.
    pub reaped: bool,
    /// Whether the stream was idle, when it had had so many launches.
    pub stream: Option<(bool, u32)>,
}

/// What is asked for one launch.
pub struct Wish<'a> {
    /// It.
    pub launch: &'a Launch,
    /// What it is believed to cost.
    pub cost: Guess,
    /// The word of whoever grants the device.
    pub gate: Gate,
    /// The turn among the tenant's members, where they take turns.
    pub turn: Option<Turn<'static>>,
    /// The ceiling that this process keeps by the tenant's account, if there is one.
    pub share: Option<Share>,
    /// The daemon's word about the device.
    pub post: &'a Post,
    /// The tenant's account.
    pub account: SharedAccount<'static>,
}

impl Wish<'_> {
    /// Whether launches are only measured.
    fn observes(&self) -> bool {
        matches!(self.gate, Gate::Open)
    }
}

/// What comes next.
pub enum Step {
    /// Launch.
    Go(Plan),
    /// Look for completed markers, and step again.
    Reap,
    /// Ask whether the stream is busy, and step again; it has had so many launches.
    Ask(u32),
    /// Record an end marker behind what the stream has in flight, and step again.
    Mark(Plan),
    /// Not before this moment.
    Wait {
        /// Then look again.
        until: u64,
        /// It is other members that it waits for: at the turn's bell.
        for_others: bool,
    },
    /// Too many streams: launch, and charge the estimate.
    Unmeasured,
    /// The daemon's gate is open: launch, nothing is measured.
    Open,
    /// The daemon's gate has changed at the last moment: step again.
    Again,
}

/// Which markers a launch gets.
#[derive(Clone, Copy)]
pub struct Plan {
    chain: u64,
    /// Record a begin marker.
    pub begin: bool,
    /// Record an end marker, for the interval of that number.
    pub end: Option<u64>,
    /// Events to record.
    pub events: [Option<CUevent>; 2],
    /// Something is to be done for the turn.
    pub tend: bool,
}

impl Plan {
    /// Of a launch of that chain without a marker.
    pub fn plain(chain: u64) -> Self {
        Self { chain, begin: false, end: None, events: [None; 2], tend: false }
    }

    /// No marker at all.
    pub fn is_plain(&self) -> bool {
        !self.begin && self.end.is_none() && !self.tend
    }
}

/// A begin marker that was recorded.
#[derive(Clone, Copy)]
pub struct Begin {
    /// It.
    pub event: CUevent,
    /// The host time from there to the launch; `None`: it cannot be told.
    pub lead: Option<u64>,
    /// When the device came to it, by the host's clock; 0: it was busy.
    pub at: u64,
}
/// An end marker that was recorded, and when, if that was late.
pub type End = (CUevent, Option<u64>);

/// So much of what was counted may be waiting to be charged while work is before the device: more than is let in flight.
const UNPAID_NS: i64 = 4_000_000;

/// Hints by place: as many as a byte each makes one cache line of.
const HINTS: usize = 64;

/// What this process has before one device.
pub struct Meter {
    keeper: Keeper,
    bounds: Bounds,
    union: Union,
    chains: Vec<Chain>,
    /// Where the chain of a place probably is.
    hints: [u8; HINTS],
    numbers: u64,
    /// How many chains are busy, and how many of them not measured.
    busy: u32,
    unmeasured: u32,
    axes: Vec<Axis>,
    spare: Vec<(usize, CUevent)>,
    /// A thread asks the driver about markers.
    reaping: bool,
    /// The chain that it is to ask about first.
    asked: usize,
    /// Contexts that ended meanwhile.
    gone: Vec<usize>,
    /// Contexts that the driver is ending, with the estimate of their work in nanoseconds and its doubt.
    ending: Vec<(usize, u64, Doubt)>,
    presence: Presence,
    /// The last launch of any stream that was measured.
    measured: u64,
    /// Threads that wait at the gate.
    waiting: u32,
    /// What is known of the turn among the tenant's members.
    pub turning: Turning,
    /// How long the tenant's others are asked to wait for what is in flight.
    patience: Patience,
    /// Under which lease the last launch went.
    last_lease: u64,
    /// And of the lease that the daemon gave.
    pub lease: Lease,
    /// When what was launched is over, by estimate.
    due: u64,
    /// Of all that was ever launched, what is not in flight any more, by estimate.
    over: u64,
    /// When the clock was last read, and launches since.
    time: u64,
    untimed: u32,
    launches: u64,
    /// Host time between two launches, when the clock was last read.
    pace: u64,
    /// Credits of threads, and what is counted of each.
    given: Vec<Given>,
    /// Launches on credit of chains that are gone, by estimate: to be charged.
    stray: u64,
    /// What intervals usually take, and what is owed of those that took far more.
    usual: Usual,
    arrears: Arrears,
    /// Functions that are to be trusted more, though nothing was learned of them.
    ripe: Keys,
    /// What was counted of all streams together in this busy period, less what was charged for it: [`Meter::balance`].
    short: i64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            keeper: Keeper::default(),
            bounds: Bounds::default(),
            union: Union::default(),
            chains: Vec::new(),
            hints: [0; HINTS],
            numbers: 0,
            busy: 0,
            unmeasured: 0,
            axes: Vec::new(),
            spare: Vec::new(),
            reaping: false,
            asked: 0,
            gone: Vec::new(),
            ending: Vec::new(),
            presence: Presence::default(),
            measured: 0,
            waiting: 0,
            turning: Turning::default(),
            patience: Patience::default(),
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
            usual: Usual::default(),
            short: 0,
            arrears: Arrears::default(),
            ripe: Keys::default(),
        }
    }
}

/// What is to be charged, in nanoseconds.
#[derive(Clone, Copy)]
pub struct Due {
    /// Device time.
    pub used: u64,
    /// So much of it is far beyond the usual, and paid off in parts: [`vgpu_core::account::arrears`].
    pub excess: u64,
    /// Such time of before, of which the rest is paid now.
    pub arrears: u64,
    /// Device time beside `used` that another member pays for, whose work was on the device at the same time.
    pub beside: u64,
}

/// Receives what is to be charged, and since when the tenant's work is before the device.
pub trait Pay: Fn(Due, Engaged) {}
impl<F: Fn(Due, Engaged)> Pay for F {}

impl Meter {
    /// Nothing of what is in flight is to be learned from.
    pub fn taint(&mut self) {
        for chain in &mut self.chains {
            chain.tainted = true;
            chain.pending.iter_mut().for_each(|interval| interval.tainted = true);
        }
    }

    /// What is to be charged for `used`, of which so much is far beyond the usual.
    fn due(&mut self, used: u64, excess: u64) -> Due {
        let arrears = self.arrears.instalment(used.saturating_sub(excess));
        self.arrears.defer(excess);
        Due { used, excess, arrears, beside: 0 }
    }

    /// Streams at once pay their parts of what was counted, and what has no marker its cost. Whatever they say of each
    /// other's order, together they pay what was counted: what is missing comes with the last of a busy period, or as soon
    /// as it is more than [`UNPAID_NS`]. What was paid beyond it buys nothing. Returns what is to be charged.
    fn balance(&mut self, counted: u64, used: u64) -> u64 {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let short = self.short.saturating_add(signed(counted)).saturating_sub(signed(used)).max(-UNPAID_NS);
        let is_over = self.keeper.in_flight() == 0;
        let owed = if is_over { short.max(0) } else { short.saturating_sub(UNPAID_NS).max(0) };
        self.short = if is_over { 0 } else { short - owed };
        used.saturating_add(u64::try_from(owed).unwrap_or(0))
    }

    /// A thread begins to wait at the gate, or ends.
    pub fn wait(&mut self, begins: bool) {
        self.waiting = if begins { self.waiting + 1 } else { self.waiting.saturating_sub(1) };
    }

    /// Whether a thread waits at the gate.
    pub fn is_waited_for(&self) -> bool {
        self.waiting > 0
    }

    /// Estimated work before the device.
    pub fn in_flight(&self) -> u64 {
        self.keeper.in_flight()
    }

    /// All that was ever launched, by estimate.
    fn given_out(&self) -> u64 {
        self.over.wrapping_add(self.keeper.in_flight())
    }

    fn recount(&mut self, at: usize, was_busy: bool, was_unmeasured: bool) {
        let chain = &self.chains[at];
        let change = |count: u32, was: bool, is: bool| (count + u32::from(is)).saturating_sub(u32::from(was));
        self.busy = change(self.busy, was_busy, chain.is_busy());
        self.unmeasured = change(self.unmeasured, was_unmeasured, chain.is_unmeasured());
    }

    fn tally(&mut self) {
        let count = |is: fn(&Chain) -> bool| self.chains.iter().filter(|chain| is(chain)).count();
        let (busy, unmeasured) = (count(Chain::is_busy), count(Chain::is_unmeasured));
        (self.busy, self.unmeasured) = (u32::try_from(busy).unwrap_or(0), u32::try_from(unmeasured).unwrap_or(0));
    }

    fn spare(&mut self, context: usize) -> Option<CUevent> {
        let at = self.spare.iter().rposition(|spare| spare.0 == context)?;
        Some(self.spare.swap_remove(at).1)
    }

    /// Keeps an event for later. One is created only where none is kept, so that there are never more than were needed at
    /// once.
    fn recycle(&mut self, context: usize, event: CUevent) {
        self.spare.push((context, event));
    }
}
