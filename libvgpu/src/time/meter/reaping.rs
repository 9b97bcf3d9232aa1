//! Charges and learns from markers that were reached, in the order in which they were; only undisturbed intervals
//! teach costs.
//!
//! One thread at a time queries the driver. It takes the intervals with it ([`UsageMeter::collect_batch`]), queries
//! without the lock, and returns the answers ([`UsageMeter::apply_batch`]). Streams that were busy at the same time
//! share the time in proportion to the estimates of all launched work
//! ([`vgpu_core::time::gate::marks::OpenInterval::own_part`]). Where the estimates are unknown, the first interval
//! counted gets the time ([`vgpu_core::time::gate::union::TimeUnion`]), and its
//! functions the cost.

use super::markers::{self, ContextAxis, IntervalMarkers, MarkerAnswer, SampleTimes, SecondMarker};
use super::timelines::{Interval, StreamTimeline};
use super::{DueTime, PaySink, UsageMeter};
use crate::driver::own;
use crate::time::launch_costs::LaunchCosts;
use shim_sys::cuda::*;
use vgpu_core::time::account::SharedAccount;
use vgpu_core::time::account::cost::MEASUREMENTS_OF_MEAN;
use vgpu_core::time::account::lead::IdleSample;
use vgpu_core::time::config::{SHORT_NS, small_part};
use vgpu_core::time::gate::marks::has_kept_up;

/// Intervals queried in one pass.
const MAX_REAPED_INTERVALS: usize = 64;

struct BatchItem {
    chain: u64,
    context: usize,
    begin: Option<CUevent>,
    /// When the interval's begin marker was reached, by the host's clock; 0: unknown.
    begun: u64,
    end: CUevent,
    second: Option<SecondMarker>,
    answer: MarkerAnswer,
}

impl BatchItem {
    fn interval_markers(&self) -> IntervalMarkers {
        IntervalMarkers { begin: self.begin.map(|begin| (begin, self.begun)), end: self.end, second: self.second }
    }
}

/// Intervals that the driver is queried about.
pub struct ReapBatch {
    items: Vec<BatchItem>,
    axes: Vec<ContextAxis>,
    free: Vec<(usize, CUevent)>,
}

impl ReapBatch {
    /// Queries the driver; `here` is the current context. Stops at the first interval of a timeline that was not
    /// reached.
    ///
    /// # Cost
    /// A query for each, and two or three more calls for each that was reached.
    pub fn ask_markers(&mut self, here: CUcontext) {
        let mut blocked = 0;
        for item in &mut self.items {
            if item.chain == blocked {
                continue;
            }
            let (axes, free) = (&mut self.axes, &mut self.free);
            let answer = in_context(item.context, here, || {
                markers::ask_interval(axes, item.context, item.interval_markers(), free)
            });
            item.answer = answer.unwrap_or(MarkerAnswer::Lost);
            if item.answer == MarkerAnswer::Pending {
                blocked = item.chain;
            }
        }
    }
}

/// Runs `work` in a context of the program that may not be the current one. `None`: the context is gone.
pub fn in_context<T>(context: usize, here: CUcontext, work: impl FnOnce() -> T) -> Option<T> {
    if context == here.0 as usize {
        return Some(work());
    }
    let mut popped = CUcontext::NULL;
    // SAFETY: a context that the governor has not been told the end of; the previously current context is restored.
    unsafe {
        if !own::cuCtxPushCurrent_v2()?(CUcontext(context as *mut core::ffi::c_void)).ok() {
            return None;
        }
        let result = work();
        let _ = own::cuCtxPopCurrent_v2()?(&raw mut popped);
        Some(result)
    }
}

impl UsageMeter {
    /// The intervals to query the driver about. `None`: there are none, or another thread is querying.
    pub fn collect_batch(&mut self) -> Option<ReapBatch> {
        if self.reaping {
            return None;
        }
        let mut items = Vec::new();
        let ends = |chain: &StreamTimeline| chain.pending.front().is_some_and(|interval| interval.end.is_some());
        // A stream with a thousand intervals delays no other.
        let each = (MAX_REAPED_INTERVALS / self.chains.iter().filter(|chain| ends(chain)).count().max(1)).max(1);
        let first = core::mem::take(&mut self.asked).min(self.chains.len());
        let (before, from) = self.chains.split_at(first);
        for (at, chain) in from.iter().chain(before).enumerate() {
            if items.len() >= MAX_REAPED_INTERVALS {
                // The batch is full: the next query begins with this stream, so that none is left out for ever.
                self.asked = (first + at) % self.chains.len();
                break;
            }
            for interval in chain.pending.iter().take(each) {
                let (Some(end), true) = (interval.end, items.len() < MAX_REAPED_INTERVALS) else { break };
                let (context, begin) = (chain.place.context, interval.begin);
                let (begun, second, answer) = (interval.begun, interval.second, MarkerAnswer::Pending);
                items.push(BatchItem { chain: chain.number, context, begin, begun, end, second, answer });
            }
        }
        if items.is_empty() {
            return None;
        }
        self.reaping = true;
        Some(ReapBatch { items, axes: core::mem::take(&mut self.axes), free: Vec::new() })
    }

    /// Raises the confidence in functions that are due for it.
    ///
    /// # Cost
    /// A comparison where there is nothing.
    #[inline]
    pub fn age_doubts(&mut self, costs: &LaunchCosts) {
        if self.ripe.len > 0 {
            costs.ripen_all(core::mem::take(&mut self.ripe).all());
        }
    }

    /// True if another thread queries the driver about markers or streams.
    pub fn is_reaping(&self) -> bool {
        self.reaping || self.lease.is_asked()
    }

    /// Charges the intervals that were reached. Returns whether there were any. `shared`: the account, where members
    /// take turns.
    pub fn apply_batch(
        &mut self,
        batch: ReapBatch,
        costs: &LaunchCosts,
        now: u64,
        shared: Option<SharedAccount<'_>>,
        pay: impl PaySink,
    ) -> bool {
        (self.reaping, self.is_stale) = (false, false);
        let gone = core::mem::take(&mut self.gone);
        let lives = |context: usize| !gone.contains(&context);
        self.axes.extend(batch.axes.into_iter().filter(|axis| lives(axis.context)));
        self.spare.extend(batch.free.into_iter().filter(|spare| lives(spare.0)));
        let reached = |item: &BatchItem| match item.answer {
            MarkerAnswer::Pending => None,
            MarkerAnswer::Lost => Some(0),
            MarkerAnswer::Reached { times, .. } => Some(times.end),
        };
        let mut done: Vec<(u64, &BatchItem)> = batch
            .items
            .iter()
            .filter(|item| lives(item.context))
            .filter_map(|item| Some((reached(item)?, item)))
            .collect();
        // By end time. At equal times the item with the lower address comes first: the batch lists a timeline's
        // intervals from the oldest on. A stable sort would add 3 KB of code.
        done.sort_unstable_by_key(|&(end, item)| (end, core::ptr::from_ref(item)));
        for (_, item) in &done {
            let Some(at) = self.chain_of_number(item.chain) else { continue };
            let pending = &mut self.chains[at].pending;
            if pending.front().is_none_or(|interval| interval.end != Some(item.end)) {
                continue;
            }
            let Some(mut interval) = pending.pop_front() else { continue };
            let (times, kept) = match item.answer {
                MarkerAnswer::Reached { times, kept, marker } => {
                    marker.into_iter().for_each(|ns| self.marker_cost.learn(ns));
                    (Some(times), kept)
                }
                _ => (None, false),
            };
            if let (Some(times), Some(account), true) = (times, shared, interval.tainted) {
                interval.beside = self.paid_beside(at, &interval, times, account);
            }
            self.finish_interval(at, &interval, times, now, &pay, costs);
            let second = item.second.map(|second| second.event);
            for event in [item.begin, Some(item.end).filter(|_| !kept), second].into_iter().flatten() {
                self.keep_event(item.context, event);
            }
        }
        !done.is_empty()
    }

    /// When an interval, already taken out of its timeline, began on its context's time axis.
    fn begin_of_interval(&self, at: usize, interval: &Interval, times: SampleTimes) -> Option<u64> {
        let (key, marker) = (interval.keys.id_of_keys(), self.marker_cost.as_ns());
        let led = |begin: u64| begin + self.lead.lead_of(key, interval.calls, marker);
        times.begin.map(led).or(self.chains[at].last).map(|began| began.min(times.end))
    }

    /// The time of an interval that other members pay for, because their work was on the device at the same time: the
    /// tenant pays for it once. Otherwise kernels of two members that wait for each other's turns would double their
    /// waits as debts, and each debt is the other device's next wait.
    #[cold]
    fn paid_beside(&self, at: usize, interval: &Interval, times: SampleTimes, account: SharedAccount<'_>) -> u64 {
        let Some(began) = self.begin_of_interval(at, interval, times).filter(|_| interval.open.measured) else {
            return 0;
        };
        let on_axis = |host: u64| (times.end + host).saturating_sub(times.host);
        let (from, to) = account.note_paid((times.host + began).saturating_sub(times.end), times.host);
        let (mut own, mut all) = (self.union, self.union);
        all.add(on_axis(from), on_axis(to).min(times.end));
        own.add(began, times.end).saturating_sub(all.add(began, times.end))
    }

    /// An interval, taken out of its timeline, is over: charges its time, and learns from it.
    pub(super) fn finish_interval(
        &mut self,
        at: usize,
        interval: &Interval,
        times: Option<SampleTimes>,
        now: u64,
        pay: &impl PaySink,
        costs: &LaunchCosts,
    ) {
        let open = interval.open;
        let began = times.and_then(|times| self.begin_of_interval(at, interval, times));
        let kept_up = times.zip(began).is_some_and(|(times, began)| {
            let after = times.host.saturating_sub(interval.recorded);
            interval.recorded > 0 && has_kept_up(open.launches, after, times.end.saturating_sub(began))
        });
        let (mut fresh, mut excess, mut counted) = (None, 0, None);
        let mut teaches = false;
        let is_measured = open.measured && (!kept_up || open.doubt.unknown > 0);
        if let (Some(times), Some(began), true) = (times, began, is_measured) {
            let spent = self.union.add(began, times.end);
            // The time was counted before, or two threads recorded their markers in one stream in another order than
            // their launches: nothing to learn.
            let keys = interval.keys.all();
            let usual = if interval.first { costs.beside_change(keys, open.estimate, spent) } else { None };
            let length = times.end.saturating_sub(began);
            let bound = (interval.begin.is_some() && !interval.is_apart).then_some(length);
            let part = open.own_part(interval.begin.is_some(), interval.is_apart, interval.all, length, spent);
            let late = self.lease.late_ns(times.host).min(spent);
            // Work that took far longer than estimated pays its counted time: with several streams the cause cannot
            // be identified.
            let used = if late > 0 || part / 2 > open.estimate { spent } else { part };
            teaches = spent > 0 && usual.is_none();
            if teaches {
                let shown = open.shown_cost(part, spent, late, bound);
                let (key, marker) = (interval.keys.id_of_keys(), self.marker_cost.as_ns());
                let is_unseen = times.begin.is_some() && self.lead.is_unseen(key, marker);
                let own = shown.ns.saturating_sub(if is_unseen { 0 } else { marker }).max(1);
                let is_disturbed = interval.tainted || shown.is_disturbed;
                let clean = !is_disturbed && !interval.is_late;
                costs.learn_costs(keys, open.estimate, own, clean);
                if clean && open.doubt.unknown == 0 {
                    self.keeper.learn_slowdown(open.estimate, own);
                }
                let hidden = length.saturating_sub(spent);
                if let (true, 1, Some(begin)) =
                    (clean && bound.is_none() && hidden == 0 && !interval.first, open.launches, times.begin)
                {
                    let (elapsed, calls) = (times.end.saturating_sub(begin), interval.calls);
                    let apart = interval.recorded.saturating_sub(interval.begun + calls[0] / 2);
                    self.lead.learn(IdleSample { key, elapsed, calls, apart }, marker);
                }
                let crossed = open.doubt.unknown > 0 && is_disturbed;
                if self.is_waited_out(at, hidden, spent, crossed) {
                    excess = self.excess_of(interval, used, crossed);
                }
            }
            fresh = Some(usual.unwrap_or(used));
            // For a context switch only the usual time is paid, and the rest is not missing.
            counted = Some(if usual.is_some() { fresh.unwrap_or(0) } else { spent });
        }
        if !teaches {
            costs.ripen_all(interval.keys.all());
        }
        if excess > 0 {
            // The next tails are measured, for a new mean.
            (self.chains[at].tailed, self.chains[at].again) = (0, MEASUREMENTS_OF_MEAN);
        }
        let chain = &mut self.chains[at];
        chain.last = times.map(|times| times.end);
        chain.marks.complete_oldest(open.launches, kept_up);
        chain.unmeasured = chain.unmeasured.saturating_sub(u32::from(!open.measured));
        let (keys, exact) = (interval.keys.all(), costs.are_exact(interval.keys.all()));
        let least = if open.doubt.unknown == 0 {
            costs.least_time(keys, open.estimate)
        } else {
            fresh.unwrap_or(open.estimate)
        };
        self.lease.note_known_cost(least, open.estimate);
        self.note_measured(open.estimate, open.doubt, exact, times.map_or(now, |times| times.host));
        self.check_tally();
        // Without a measurement the estimate is all there is.
        let used = fresh.unwrap_or(open.estimate);
        let used = self.share_among_streams(counted.unwrap_or(0), used);
        let beside = interval.beside.min(used);
        let used = used - beside;
        pay(DueTime { beside, ..self.split_due(used, excess.min(used)) }, self.presence.engaged_since());
    }

    /// True if an interval was the last of its stream, the program has waited for it, and its time was its own. While
    /// a thread waits at the gate, the program has not waited. Where streams overlap, the time cannot be attributed.
    /// `hidden`: its time that was counted for others; `crossed`: it may have waited for the launch at the gate.
    fn is_waited_out(&self, at: usize, hidden: u64, spent: u64, crossed: bool) -> bool {
        let chain = &self.chains[at];
        let most = SHORT_NS.saturating_add(small_part(spent));
        let is_last = chain.pending.is_empty() && !chain.marks.must_ask() && (self.waiting == 0 || crossed);
        is_last && self.work_of_others(at).fold(hidden, u64::saturating_add) <= most
    }

    /// The time of an interval far beyond the usual: [`vgpu_core::time::account::arrears`]. For work that was never
    /// measured and may have waited for a launch held at the gate (`crossed`), time beyond the estimate, as far as
    /// [`vgpu_core::time::account::arrears::Arrears::take_doubtful`] allows.
    fn excess_of(&mut self, interval: &Interval, spent: u64, crossed: bool) -> u64 {
        let open = &interval.open;
        let ordinary = match (open.doubt.unknown, crossed) {
            (0, _) => self.usual.split_ordinary(interval.keys.id_of_keys(), open.launches, open.estimate, spent),
            (_, true) => spent - self.arrears.take_doubtful(spent.saturating_sub(open.estimate)),
            (_, false) => spent,
        };
        spent.saturating_sub(ordinary)
    }

    /// The estimated work in flight, in ns, of each stream except the one at index `at`.
    pub(super) fn work_of_others(&self, at: usize) -> impl Iterator<Item = u64> {
        let others = self.chains.iter().enumerate().filter(move |(other, _)| *other != at);
        others.map(|(_, chain)| chain.in_flight())
    }
}

#[cfg(test)]
mod tests {
    use super::super::timelines::LearnedFunctions;
    use super::*;
    use crate::driver::streams::StreamLocation;
    use core::cell::Cell;
    use vgpu_core::time::account::cost::CostGuess;
    use vgpu_core::time::gate::marks::OpenInterval;

    /// The charges for intervals of these streams, seen complete in this order.
    fn charged(intervals: &[(u64, u64, u64)]) -> Vec<u64> {
        let (mut meter, costs) = (UsageMeter::default(), LaunchCosts::new());
        let paid = Cell::new(0);
        let mut all = Vec::new();
        for &(stream, begin, end) in intervals {
            let at = meter.find(StreamLocation { key: stream, context: 1 }).unwrap();
            let mut open = OpenInterval::default();
            (open.measured, open.estimate) = (true, 7);
            let keys = LearnedFunctions::default();
            let interval = Interval {
                serial: 1,
                begin: None,
                calls: [0; 2],
                begun: 0,
                end: None,
                recorded: 0,
                second: None,
                open,
                all: 0,
                keys,
                tainted: false,
                is_apart: true,
                is_late: false,
                beside: 0,
                first: false,
            };
            let times = SampleTimes { begin: Some(begin), end, host: end };
            paid.set(0);
            meter.finish_interval(at, &interval, Some(times), end, &|due, _| paid.set(due.used), &costs);
            all.push(paid.get());
        }
        all
    }

    /// A member's charge for one interval in which others of its tenant had work on the device, and the part that
    /// others pay.
    fn charged_beside(account: SharedAccount<'_>, begin: u64, end: u64) -> (u64, u64) {
        let (mut meter, costs) = (UsageMeter::default(), LaunchCosts::new());
        let at = meter.find(StreamLocation { key: 1, context: 1 }).unwrap();
        meter.chains[at].last = Some(begin);
        let event = CUevent(64 as *mut core::ffi::c_void);
        let interval = Interval { end: Some(event), tainted: true, ..of_five(None, 250_000, 250_000) };
        meter.chains[at].pending.push_back(interval);
        let answer =
            MarkerAnswer::Reached { times: SampleTimes { begin: None, end, host: end }, kept: false, marker: None };
        let item = BatchItem {
            chain: meter.chains[at].number,
            context: 1,
            begin: None,
            begun: 0,
            end: event,
            second: None,
            answer,
        };
        let batch = ReapBatch { items: vec![item], axes: Vec::new(), free: Vec::new() };
        let charged = Cell::new((0, 0));
        meter.apply_batch(batch, &costs, end, Some(account), |due, _| charged.set((due.used, due.beside)));
        charged.get()
    }

    #[test]
    fn members_whose_kernels_are_on_the_device_at_once_pay_for_that_time_once() {
        const MS: u64 = 1 << 20;
        let page = vgpu_core::memory::ledger::LedgerPage::zeroed();
        let account = page.as_ledger().time_account();
        assert_eq!(charged_beside(account, 1_000 * MS, 1_300 * MS), (300 * MS, 0));
        assert_eq!(charged_beside(account, 1_100 * MS, 1_350 * MS), (50 * MS, 200 * MS));
        assert_eq!(charged_beside(account, 2_000 * MS, 2_100 * MS), (100 * MS, 0), "nobody else was there");
    }

    /// A measured interval of five launches, of `estimate` ns together. `all`: estimated work of all streams in that
    /// time, in ns.
    fn of_five(begin: Option<CUevent>, estimate: u64, all: u64) -> Interval {
        let mut open = OpenInterval::default();
        (open.measured, open.estimate, open.launches) = (true, estimate, 5);
        let mut keys = LearnedFunctions::default();
        keys.add(9, CostGuess::with_certainty(50_000));
        Interval {
            serial: 1,
            begin,
            calls: [0; 2],
            begun: 0,
            end: None,
            recorded: 0,
            second: None,
            open,
            all,
            keys,
            tainted: false,
            is_apart: true,
            is_late: false,
            beside: 0,
            first: false,
        }
    }

    /// Four streams in turn, without a wait, and a marker after five launches of each. The first one counted gets the
    /// time of all; the others get only their last launch.
    #[test]
    fn streams_that_are_launched_into_in_turn_pay_their_own_and_teach_what_they_take() {
        let (mut meter, costs) = (UsageMeter::default(), LaunchCosts::new());
        costs.exact.learn_cost(9, 50_000);
        // The meter counts work in flight all the time, as for a program that never lets the device become idle.
        meter.keeper.note_launch(CostGuess::with_certainty(250_000), 1_000_000);
        for n in 0..40 {
            let (stream, round) = (n % 4, n / 4);
            let at = meter.find(StreamLocation { key: stream, context: 1 }).unwrap();
            let begin = 1_000_000 + stream * 50_000 + round * 1_000_000;
            meter.keeper.note_launch(CostGuess::with_certainty(250_000), begin);
            meter.chains[at].last = Some(begin);
            let end = begin + 1_000_000;
            let paid = Cell::new(0);
            let times = SampleTimes { begin: None, end, host: end };
            let interval = of_five(None, 250_000, 1_000_000);
            meter.finish_interval(at, &interval, Some(times), end, &|due, _| paid.set(due.used), &costs);
            assert_eq!((paid.get(), costs.guess_cost(9).as_ns()), (250_000, 50_000), "interval {n}");
        }
    }

    /// Two streams; on the device one waits until the other is done. Launches made in turn do not run in turn.
    #[test]
    fn streams_that_wait_for_each_other_on_the_device_pay_all_that_was_counted() {
        let (mut meter, costs) = (UsageMeter::default(), LaunchCosts::new());
        costs.exact.learn_cost(9, 50_000);
        let (mut paid, mut now) = (0, 1_000_000);
        // Some work is always in flight.
        meter.keeper.note_launch(CostGuess::with_certainty(250_000), now);
        for round in 0..400 {
            for stream in [1, 2] {
                let at = meter.find(StreamLocation { key: stream, context: 1 }).unwrap();
                // One after the other: four intervals of 250 us each, of 500 launched between their markers.
                for _ in 0..4 {
                    meter.keeper.note_launch(CostGuess::with_certainty(250_000), now);
                    meter.chains[at].last = Some(now);
                    now += 250_000;
                    let times = SampleTimes { begin: None, end: now, host: now };
                    let charged = Cell::new(0);
                    let interval = of_five(None, 250_000, 500_000);
                    meter.finish_interval(at, &interval, Some(times), now, &|due, _| charged.set(due.used), &costs);
                    paid += charged.get();
                }
            }
            let counted = now - 1_000_000;
            assert!(paid + 8_000_000 >= counted, "round {round}: {paid} of {counted}");
        }
    }

    /// Under a wide lease (more may be in flight) a stream may have a thousand markers.
    #[test]
    fn every_stream_is_asked_about_however_much_another_has_in_flight() {
        for streams in [2, 10, 100] {
            let mut meter = UsageMeter::default();
            for stream in 0..streams {
                let at = meter.find(StreamLocation { key: stream, context: 1 }).unwrap();
                for _ in 0..if stream == 0 { 1000 } else { 1 } {
                    let end = Some(CUevent::NULL);
                    meter.chains[at].pending.push_back(Interval { end, ..of_five(None, 250_000, 250_000) });
                }
            }
            let numbers: Vec<u64> = meter.chains.iter().map(|chain| chain.number).collect();
            let mut asked = std::collections::BTreeSet::new();
            for _ in 0..streams / 32 + 1 {
                let batch = meter.collect_batch().unwrap();
                assert!(batch.items.len() <= MAX_REAPED_INTERVALS);
                asked.extend(batch.items.iter().map(|item| item.chain));
                meter.reaping = false;
            }
            assert!(numbers.iter().all(|number| asked.contains(number)), "{} of {streams}", asked.len());
        }
    }

    /// A launch measured once at 50 us takes 200 ms whenever others run. Its own part of that is unknown, but a flood
    /// of such launches must not go.
    #[test]
    fn what_takes_far_longer_beside_others_is_not_trusted_more_and_not_learned() {
        let costs = LaunchCosts::new();
        let beside =
            |spent| costs.learn_costs(&[(9, costs.guess_cost(9).as_ns())], costs.guess_cost(9).as_ns(), spent, false);
        let guess = || (costs.guess_cost(9).as_ns(), costs.guess_cost(9).doubt_of().young);
        costs.learn_costs(&[(9, 20_000)], 20_000, 50_000, true);
        (0..10).for_each(|_| beside(200_000_000));
        assert_eq!(guess(), (50_000, 32));
        beside(150_000);
        assert_eq!(guess(), (50_000, 16), "others make it so long");
        costs.learn_costs(&[(9, 50_000)], 50_000, 200_000_000, true);
        assert_eq!(guess(), (25_043_750, 8), "alone it is learned");
        costs.forget_key(9);
        assert!(costs.guess_cost(9).is_unknown());
        beside(200_000_000);
        assert_eq!(guess(), (200_000_000, 32), "all there is");
        (0..10).for_each(|_| beside(50_000));
        assert_eq!(costs.guess_cost(9), CostGuess::with_certainty(200_000_000));
    }

    /// A launch whose time cannot be attributed is not held back for ever because of that.
    #[test]
    fn what_is_over_is_trusted_more_though_it_taught_nothing() {
        let (mut meter, costs) = (UsageMeter::default(), LaunchCosts::new());
        costs.learn_costs(&[(9, 20_000)], 20_000, 50_000, true);
        let at = meter.find(StreamLocation { key: 1, context: 1 }).unwrap();
        for young in [16, 8, 4, 2, 1, 0, 0] {
            meter.finish_interval(at, &of_five(None, 250_000, 250_000), None, 1_000_000, &|_, _| {}, &costs);
            assert_eq!((costs.guess_cost(9).as_ns(), costs.guess_cost(9).doubt_of().young), (50_000, young));
        }
    }

    #[test]
    fn what_takes_far_longer_than_believed_beside_others_is_paid_in_full() {
        let (mut meter, costs) = (UsageMeter::default(), LaunchCosts::new());
        costs.exact.learn_cost(9, 50_000);
        let at = meter.find(StreamLocation { key: 1, context: 1 }).unwrap();
        meter.chains[at].last = Some(1_000);
        let end = 1_000_001_000;
        let paid = Cell::new(0);
        let times = SampleTimes { begin: None, end, host: end };
        meter.finish_interval(
            at,
            &of_five(None, 50_000, 300_000),
            Some(times),
            end,
            &|due, _| paid.set(due.used),
            &costs,
        );
        assert_eq!(paid.get(), 1_000_000_000);
    }

    #[test]
    fn what_two_streams_did_at_once_is_charged_once() {
        assert_eq!(charged(&[(1, 1000, 2000), (2, 1500, 2500), (1, 2600, 2700)]), [1000, 500, 100]);
        assert_eq!(charged(&[(1, 1000, 2000), (2, 1200, 1900)]), [1000, 0]);
    }
}
