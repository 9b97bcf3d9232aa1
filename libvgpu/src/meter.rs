//! Device time by the driver's own events.
//!
//! Per stream a chain of intervals: a begin marker when the stream was idle, an end marker after about
//! [`MARK_NS`] of estimated work; the next interval of a busy stream begins at the last end marker. An interval is
//! charged when its end marker is seen complete. Work behind the last marker (the tail) is charged by the learned cost
//! of its launches if the stream is found idle, never by a marker recorded late. Every sixteenth short tail gets a
//! marker at once, so that the costs of programs that synchronise after each launch are learned.
//!
//! Streams that run at the same time are charged each: a tenant that overlaps streams pays more than it used, never
//! less. Only markers of the launching thread's own stream are recorded; another stream may be gone.

use crate::driver::own;
use crate::order::quietly;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use shim_sys::cuda::*;
use std::collections::VecDeque;
use vgpu_core::account::cost::{CostTable, UNKNOWN_NS};

/// Estimated work between two markers.
const MARK_NS: u64 = 250_000;
/// One short tail in so many is measured.
const SAMPLE: u32 = 16;
/// Chains kept; beyond that the longest idle one is dropped.
const MAX_CHAINS: usize = 64;
/// Functions of one interval that are learned from.
const MAX_KEYS: usize = 32;
/// Idle events kept per context.
const MAX_SPARE: usize = 64;

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
}

impl Launch {
    /// Which chain it belongs to: the stream, and the thread where streams are per thread.
    fn chain(&self) -> (CUcontext, usize, usize) {
        let own_stream = self.stream == CU_STREAM_PER_THREAD || (self.per_thread && self.stream.is_null());
        let thread = if own_stream { this_thread() } else { 0 };
        (self.context, self.stream.0 as usize, thread)
    }
}

fn this_thread() -> usize {
    thread_local!(static HERE: AtomicU8 = const { AtomicU8::new(0) });
    HERE.with(|here| {
        here.store(0, Relaxed);
        core::ptr::from_ref(here) as usize
    })
}

/// Launches between two markers.
struct Interval {
    /// Its own begin marker; `None`: the end marker before it.
    begin: Option<CUevent>,
    end: CUevent,
    estimated: u64,
    keys: Vec<u64>,
}

#[derive(Default)]
struct Open {
    begin: Option<CUevent>,
    estimated: u64,
    launches: u32,
    keys: Vec<u64>,
}

struct Chain {
    of: (CUcontext, usize, usize),
    open: Option<Open>,
    pending: VecDeque<Interval>,
    /// The last end marker seen complete, kept while the next interval needs it as its begin.
    last: Option<CUevent>,
    short: u32,
}

/// The chains of one device in this process.
#[derive(Default)]
pub struct Meter {
    chains: Vec<Chain>,
    spare: Vec<(CUcontext, CUevent)>,
}

// SAFETY of every driver call below: events were created by us in the launch's context, which is current; streams are
// those the program is launching into at this moment; outputs are locals.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Meter {
    fn event(&mut self, context: CUcontext) -> Option<CUevent> {
        if let Some(at) = self.spare.iter().position(|spare| spare.0 == context) {
            return Some(self.spare.swap_remove(at).1);
        }
        let mut event = CUevent::NULL;
        unsafe { own::cuEventCreate()?(&raw mut event, 0) }.ok().then_some(event)
    }

    fn recycle(&mut self, context: CUcontext, event: CUevent) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push((context, event));
        } else if let Some(destroy) = own::cuEventDestroy_v2() {
            let _ = unsafe { destroy(event) };
        }
    }

    fn record(&mut self, launch: &Launch) -> Option<CUevent> {
        let event = self.event(launch.context)?;
        let record = if launch.per_thread { own::cuEventRecord_ptsz() } else { own::cuEventRecord() }?;
        if unsafe { record(event, launch.stream) }.ok() {
            Some(event)
        } else {
            self.recycle(launch.context, event);
            None
        }
    }

    fn find(&mut self, launch: &Launch) -> usize {
        let of = launch.chain();
        if let Some(at) = self.chains.iter().position(|chain| chain.of == of) {
            return at;
        }
        if self.chains.len() >= MAX_CHAINS
            && let Some(at) = self.chains.iter().position(|chain| chain.pending.is_empty() && chain.open.is_none())
        {
            let gone = self.chains.swap_remove(at);
            if let Some(event) = gone.last {
                self.recycle(gone.of.0, event);
            }
        }
        self.chains.push(Chain { of, open: None, pending: VecDeque::new(), last: None, short: 0 });
        self.chains.len() - 1
    }

    /// Before the launch: closes a tail whose stream went idle, and begins an interval if the stream is idle.
    pub fn before(&mut self, launch: &Launch, charge: impl FnOnce(u64)) {
        quietly(|| self.begin(launch, charge));
    }

    fn begin(&mut self, launch: &Launch, charge: impl FnOnce(u64)) {
        let at = self.find(launch);
        if self.chains[at].open.is_some() {
            let query = if launch.per_thread { own::cuStreamQuery_ptsz() } else { own::cuStreamQuery() };
            let busy = query.is_some_and(|query| unsafe { query(launch.stream) } == CUresult(600));
            if busy {
                return;
            }
            if let Some(tail) = self.chains[at].open.take() {
                charge(tail.estimated);
                if let Some(event) = tail.begin {
                    self.recycle(launch.context, event);
                }
            }
        }
        let idle = self.chains[at].pending.is_empty();
        let begin = if idle { self.record(launch) } else { None };
        let chain = &mut self.chains[at];
        chain.open = Some(Open { begin, ..Open::default() });
        if idle && let Some(event) = chain.last.take() {
            self.recycle(launch.context, event);
        }
    }

    /// After the launch: adds it to its interval and ends that with a marker when it is long enough. Returns the
    /// estimated work with markers that was not seen complete.
    pub fn after(&mut self, launch: &Launch, estimate: u64, costs: &CostTable<1024>, charge: impl FnOnce(u64)) -> u64 {
        let at = self.find(launch);
        let chain = &mut self.chains[at];
        let open = chain.open.get_or_insert_default();
        open.estimated = open.estimated.saturating_add(estimate);
        open.launches += 1;
        // Once per function: each is corrected by the interval's factor, and only once.
        if open.keys.len() < MAX_KEYS && !open.keys.contains(&launch.key) {
            open.keys.push(launch.key);
        }
        let unknown = costs.estimate(launch.key) == UNKNOWN_NS;
        let mut mark = open.estimated >= MARK_NS || unknown;
        if !mark && open.launches == 1 {
            chain.short += 1;
            mark = chain.short.is_multiple_of(SAMPLE);
        }
        if mark {
            let end = quietly(|| self.record(launch));
            let open = self.chains[at].open.take().unwrap_or_default();
            match end {
                Some(end) => self.chains[at].pending.push_back(Interval {
                    begin: open.begin,
                    end,
                    estimated: open.estimated,
                    keys: open.keys,
                }),
                // No marker, no measurement: the estimate is all there is.
                None => {
                    charge(open.estimated);
                    if let Some(event) = open.begin {
                        self.recycle(launch.context, event);
                    }
                }
            }
        }
        self.in_flight()
    }

    /// Estimated work that has a marker and was not seen complete.
    pub fn in_flight(&self) -> u64 {
        self.chains.iter().flat_map(|chain| &chain.pending).map(|interval| interval.estimated).sum()
    }

    /// Charges every interval that completed and learns from it. Returns what is left in flight, and
    /// whether anything completed.
    pub fn reap(&mut self, costs: &CostTable<1024>, charge: impl Fn(u64)) -> (u64, bool) {
        if self.chains.iter().all(|chain| chain.pending.is_empty()) {
            return (0, false);
        }
        quietly(|| self.collect(costs, charge))
    }

    fn collect(&mut self, costs: &CostTable<1024>, charge: impl Fn(u64)) -> (u64, bool) {
        let mut completed = false;
        for at in 0..self.chains.len() {
            let context = self.chains[at].of.0;
            while let Some(end) = self.chains[at].pending.front().map(|interval| interval.end) {
                let state = own::cuEventQuery().map_or(CUresult::UNKNOWN, |query| unsafe { query(end) });
                if state == CUresult::NOT_READY {
                    break;
                }
                let chain = &mut self.chains[at];
                let Some(interval) = chain.pending.pop_front() else { break };
                completed = true;
                let begin = interval.begin.or(chain.last);
                let spent = if state.ok() { begin.and_then(|begin| elapsed(begin, interval.end)) } else { None };
                match spent {
                    Some(ns) => {
                        for &key in &interval.keys {
                            costs.learn_factor(key, interval.estimated, ns);
                        }
                        charge(ns);
                    }
                    // The context has a sticky error, or the marker is gone: the estimate is all there is.
                    None => charge(interval.estimated),
                }
                let old = chain.last.replace(interval.end);
                for event in [old, interval.begin].into_iter().flatten() {
                    self.recycle(context, event);
                }
            }
        }
        (self.in_flight(), completed)
    }

    /// Drops everything of a context that ends, events included: they go with it. Returns the estimated work that was not
    /// charged yet.
    pub fn forget(&mut self, context: CUcontext) -> u64 {
        let of_it = self.chains.iter().filter(|chain| chain.of.0 == context);
        let unpaid = |chain: &Chain| {
            let open = chain.open.as_ref().map_or(0, |open| open.estimated);
            chain.pending.iter().fold(open, |sum, interval| sum.saturating_add(interval.estimated))
        };
        let unpaid = of_it.map(unpaid).fold(0, u64::saturating_add);
        self.chains.retain(|chain| chain.of.0 != context);
        self.spare.retain(|spare| spare.0 != context);
        unpaid
    }
}

/// Nanoseconds between two completed markers. The driver answers in a float of milliseconds: consecutive markers are
/// close, so that nothing is lost to rounding.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked to be finite and not negative
fn elapsed(begin: CUevent, end: CUevent) -> Option<u64> {
    let mut ms = 0f32;
    // SAFETY: both events are ours and complete; the pointer is to a local.
    let known = unsafe { own::cuEventElapsedTime()?(&raw mut ms, begin, end) }.ok();
    (known && ms.is_finite() && ms >= 0.0).then(|| (f64::from(ms) * 1e6) as u64)
}
