//! What is charged and learned when markers were reached: in the order in which they were, and only what is clean.
//!
//! One thread at a time asks the driver; it takes what is to be asked with it ([`Meter::collect`]), asks without the lock,
//! and brings the answers back ([`Meter::apply`]). Of several streams that were busy at once each
//! pays its part of the time, by what is known of all that was launched ([`Interval::own`]); where that is not known, the
//! first to be counted is taken for the one that worked ([`vgpu_core::gate::union::Union`]), and its functions for those
//! that cost so much.

use super::chains::{Chain, Interval};
use super::markers::{self, Answer, Axis, Markers, Times};
use super::{Due, Meter, Pay};
use crate::driver::own;
use shim_sys::cuda::*;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use vgpu_core::account::SharedAccount;
use vgpu_core::account::cost::{CostTable, Guess, MAX_NS, is_far};

/// Intervals asked about in one pass, and of each stream if there are several: one with a thousand keeps no other waiting.
const MOST: usize = 64;
const LEAST: usize = 4;
/// The first interval of a turn holds the device's change from one context to the other: up to here that is what it took
/// longer than expected.
const CHANGE_NS: u64 = 200_000;
/// Beside so much work of other streams, by estimate, it still can be told whose the time is.
const BESIDE_NS: u64 = 100_000;
/// Others' slices may be so much of an interval, however short that is.
const OTHERS_NS: u64 = 10_000_000;
/// After a measurement that was far off, so many tails are measured.
const AGAIN: u32 = 8;

/// What launches cost.
pub struct Costs {
    /// Learned from clean intervals.
    exact: CostTable<1024>,
    /// What launches take when nobody slows them, also unseen.
    least: CostTable<1024>,
    /// Learned while others may have been before the device: enough to bound what is in flight, not to pay by.
    rough: CostTable<1024>,
}

impl Costs {
    /// Nothing is known. Made where it stays: 32 KiB are more than some threads have left of their stacks.
    pub fn boxed() -> Box<Self> {
        let layout = Layout::new::<Self>();
        // SAFETY: the size is not zero. Two tables of atomics: all zeros are valid, and are empty tables. The box frees with
        // the layout that it was allocated with.
        unsafe {
            let at = alloc_zeroed(layout);
            if at.is_null() { handle_alloc_error(layout) } else { Box::from_raw(at.cast()) }
        }
    }

    /// Nothing is known.
    #[cfg(test)]
    pub const fn new() -> Self {
        Self { exact: CostTable::new(), least: CostTable::new(), rough: CostTable::new() }
    }

    /// What a launch is believed to cost, which is what is charged for one that is not measured.
    #[inline]
    pub fn guess(&self, key: u64) -> Guess {
        self.exact.measured(key).unwrap_or_else(|| self.rough.guess(key))
    }

    /// Whether all of these were measured while nobody else was before the device.
    fn are_exact(&self, believed: &[(u64, u64)]) -> bool {
        believed.iter().all(|&(key, _)| self.exact.measured(key).is_some())
    }

    /// Something else has that key from now on.
    pub fn forget(&self, key: u64) {
        [&self.exact, &self.least, &self.rough].into_iter().for_each(|table| table.forget(key));
    }

    /// What the first interval of a turn is charged, if all its functions are known and it took about what was expected:
    /// that, and the device's change to our context is nobody's. It teaches nothing, since nobody knows what of it is what.
    fn beside_change(&self, believed: &[(u64, u64)], estimate: u64, spent: u64) -> Option<u64> {
        let known = self.are_exact(believed);
        let usual = estimate / 2..=estimate.saturating_add(CHANGE_NS);
        (known && !believed.is_empty() && usual.contains(&spent)).then_some(spent.min(estimate))
    }

    /// Launches of these functions, each believed to cost what stands beside it, were estimated at `estimate` together and
    /// took `spent`. What takes far longer than believed where others may have run is not learned, but it is not trusted more
    /// because of that either.
    fn learn(&self, believed: &[(u64, u64)], estimate: u64, spent: u64, clean: bool) {
        let is_far_off = spent > OTHERS_NS && is_far(spent, estimate);
        for &(key, cost) in believed {
            let scaled = u128::from(cost) * u128::from(spent) / u128::from(estimate.max(1));
            let cost = u64::try_from(scaled).unwrap_or(MAX_NS).max(1);
            self.least.learn_least(key, cost, clean);
            if clean {
                self.exact.learn(key, cost);
            } else if self.guess(key).is_unknown() {
                self.rough.learn(key, cost);
            } else if !is_far_off {
                self.ripen(key);
            }
        }
    }

    /// What launches of these functions, estimated at `estimate` together, take when nobody slows them.
    fn least(&self, believed: &[(u64, u64)], estimate: u64) -> u64 {
        let least = |&(key, cost): &(u64, u64)| self.least.measured(key).map_or(cost, Guess::ns);
        let part = |costs: &dyn Fn(&(u64, u64)) -> u64| believed.iter().map(|one| u128::from(costs(one))).sum::<u128>();
        let (least, all) = (part(&least), part(&|one| one.1));
        u64::try_from(u128::from(estimate) * least / all.max(1)).unwrap_or(estimate)
    }

    /// Launches of these functions are over, and taught nothing.
    fn ripen_all(&self, believed: &[(u64, u64)]) {
        believed.iter().for_each(|&(key, _)| self.ripen(key));
    }

    fn ripen(&self, key: u64) {
        self.exact.ripen(key);
        self.rough.ripen(key);
    }
}

struct Item {
    chain: u64,
    context: usize,
    begin: Option<CUevent>,
    /// When that was reached, by the host's clock; 0: not known.
    begun: u64,
    end: CUevent,
    answer: Answer,
}

impl Item {
    fn markers(&self) -> Markers {
        Markers { begin: self.begin.map(|begin| (begin, self.begun)), end: self.end }
    }
}

/// Intervals that the driver is asked about.
pub struct Batch {
    items: Vec<Item>,
    axes: Vec<Axis>,
    free: Vec<(usize, CUevent)>,
}

impl Batch {
    /// Asks the driver, `here` being the current context. Of a chain no more than up to the first that was not reached.
    ///
    /// # Cost
    /// A query for each, and two more calls for each that was reached.
    pub fn ask(&mut self, here: CUcontext) {
        let mut blocked = 0;
        for item in &mut self.items {
            if item.chain == blocked {
                continue;
            }
            let (axes, free) = (&mut self.axes, &mut self.free);
            let answer = within(item.context, here, || markers::ask(axes, item.context, item.markers(), free));
            item.answer = answer.unwrap_or(Answer::Lost);
            if item.answer == Answer::Pending {
                blocked = item.chain;
            }
        }
    }
}

/// Does `work` in a context of ours that may not be the current one. `None`: the context is gone.
pub fn within<T>(context: usize, here: CUcontext, work: impl FnOnce() -> T) -> Option<T> {
    if context == here.0 as usize {
        return Some(work());
    }
    let mut popped = CUcontext::NULL;
    // SAFETY: a context that the governor has not been told the end of; what was current comes back.
    unsafe {
        if !own::cuCtxPushCurrent_v2()?(CUcontext(context as *mut core::ffi::c_void)).ok() {
            return None;
        }
        let result = work();
        let _ = own::cuCtxPopCurrent_v2()?(&raw mut popped);
        Some(result)
    }
}

impl Meter {
    /// What the driver is to be asked about. `None`: nothing, or another thread is about it.
    pub fn collect(&mut self) -> Option<Batch> {
        if self.reaping {
            return None;
        }
        let mut items = Vec::new();
        let ends = |chain: &Chain| chain.pending.front().is_some_and(|interval| interval.end.is_some());
        let each = (MOST / self.chains.iter().filter(|chain| ends(chain)).count().max(1)).max(LEAST);
        let first = core::mem::take(&mut self.asked).min(self.chains.len());
        let (before, from) = self.chains.split_at(first);
        for (at, chain) in from.iter().chain(before).enumerate() {
            if items.len() >= MOST {
                // The others are the first next time.
                self.asked = (first + at) % self.chains.len();
                break;
            }
            for interval in chain.pending.iter().take(each) {
                let (Some(end), true) = (interval.end, items.len() < MOST) else { break };
                let (context, begin) = (chain.place.context, interval.begin);
                let (begun, answer) = (interval.begun, Answer::Pending);
                items.push(Item { chain: chain.number, context, begin, begun, end, answer });
            }
        }
        if items.is_empty() {
            return None;
        }
        self.reaping = true;
        Some(Batch { items, axes: core::mem::take(&mut self.axes), free: Vec::new() })
    }

    /// What is to be trusted more is.
    ///
    /// # Cost
    /// A comparison where there is nothing.
    #[inline]
    pub fn ripen(&mut self, costs: &Costs) {
        if self.ripe.len > 0 {
            costs.ripen_all(core::mem::take(&mut self.ripe).all());
        }
    }

    /// Whether another thread asks the driver about markers or streams.
    pub fn is_reaping(&self) -> bool {
        self.reaping || self.lease.is_asked()
    }

    /// Charges what was reached. Whether anything was. `shared`: the account, where members take turns.
    pub fn apply(
        &mut self,
        batch: Batch,
        costs: &Costs,
        now: u64,
        shared: Option<SharedAccount<'_>>,
        pay: impl Pay,
    ) -> bool {
        self.reaping = false;
        let gone = core::mem::take(&mut self.gone);
        let lives = |context: usize| !gone.contains(&context);
        self.axes.extend(batch.axes.into_iter().filter(|axis| lives(axis.context)));
        self.spare.extend(batch.free.into_iter().filter(|spare| lives(spare.0)));
        let reached = |item: &Item| match item.answer {
            Answer::Pending => None,
            Answer::Lost => Some(0),
            Answer::Reached { times, .. } => Some(times.end),
        };
        let mut done: Vec<(u64, &Item)> = batch
            .items
            .iter()
            .filter(|item| lives(item.context))
            .filter_map(|item| Some((reached(item)?, item)))
            .collect();
        // Of one chain the older first, which stands before. The sort that is stable by itself takes 3 KB more code.
        done.sort_unstable_by_key(|&(end, item)| (end, core::ptr::from_ref(item)));
        for (_, item) in &done {
            let Some(at) = self.numbered(item.chain) else { continue };
            let pending = &mut self.chains[at].pending;
            if pending.front().is_none_or(|interval| interval.end != Some(item.end)) {
                continue;
            }
            let Some(mut interval) = pending.pop_front() else { continue };
            let (times, kept) = match item.answer {
                Answer::Reached { times, kept } => (Some(times), kept),
                _ => (None, false),
            };
            if let (Some(times), Some(account), true) = (times, shared, interval.tainted) {
                interval.beside = self.paid_beside(at, &interval, times, account);
            }
            self.done(at, &interval, times, now, &pay, costs);
            for event in [item.begin, Some(item.end).filter(|_| !kept)].into_iter().flatten() {
                self.recycle(item.context, event);
            }
        }
        !done.is_empty()
    }

    /// When an interval, taken out of its chain, began on its axis.
    fn began(&self, at: usize, interval: &Interval, times: Times) -> Option<u64> {
        times.begin.map(|begin| begin + interval.lead).or(self.chains[at].last).map(|began| began.min(times.end))
    }

    /// What of an interval other members pay for, whose work was on the device at the same time: the tenant pays for it
    /// once. Kernels of two members that wait for each other's turns would else double their waits as debts, and each debt
    /// is the other device's next wait.
    #[cold]
    fn paid_beside(&self, at: usize, interval: &Interval, times: Times, account: SharedAccount<'_>) -> u64 {
        let Some(began) = self.began(at, interval, times).filter(|_| interval.open.measured) else { return 0 };
        let on_axis = |host: u64| (times.end + host).saturating_sub(times.host);
        let (from, to) = account.cover((times.host + began).saturating_sub(times.end), times.host);
        let (mut own, mut all) = (self.union, self.union);
        all.add(on_axis(from), on_axis(to).min(times.end));
        own.add(began, times.end).saturating_sub(all.add(began, times.end))
    }

    /// An interval, taken out of its chain, is over: charges what it took, and learns from it.
    pub(super) fn done(
        &mut self,
        at: usize,
        interval: &Interval,
        times: Option<Times>,
        now: u64,
        pay: &impl Pay,
        costs: &Costs,
    ) {
        let open = interval.open;
        let began = times.and_then(|times| self.began(at, interval, times));
        let (mut fresh, mut excess, mut counted) = (None, 0, None);
        let mut teaches = false;
        if let (Some(times), Some(began), true) = (times, began, open.measured) {
            let spent = self.union.add(began, times.end);
            // Counted before, or two threads' markers in one stream, the other way round than their launches: nothing to
            // learn from.
            let keys = interval.keys.all();
            let usual = if interval.first { costs.beside_change(keys, open.estimate, spent) } else { None };
            let part = interval.own(times.end.saturating_sub(began), spent);
            // What runs on when others have been let in has half of that time at least, if it has not all. It teaches only
            // what takes far longer than believed, which would be let run beside others for ever: others may have come
            // sooner, or be several, and what seems half longer is theirs.
            let late = self.lease.late(times.host).min(spent);
            // What takes far longer than believed is paid as it was counted: whose of several it is cannot be told.
            let used = if late > 0 || part / 2 > open.estimate { spent } else { part };
            teaches = spent > 0 && usual.is_none();
            if teaches {
                let is_far_off = open.doubt.unknown == 0 && is_far(part.saturating_sub(late / 2), open.estimate);
                let own = match (is_far_off, late) {
                    (true, _) => spent - late / 2,
                    (false, 0) => part,
                    (false, _) => spent,
                };
                let clean = !interval.tainted && (late == 0 || is_far_off);
                costs.learn(keys, open.estimate, own, clean);
                if clean && open.doubt.unknown == 0 {
                    self.keeper.took(open.estimate, own);
                }
                let hidden = times.end.saturating_sub(began).saturating_sub(spent);
                if self.is_waited_out(at, hidden, spent, open.doubt.unknown > 0 && !clean) {
                    excess = self.excess(interval, used, clean);
                }
            }
            fresh = Some(usual.unwrap_or(used));
            // Of what others of the device took the usual is paid, and no more is missing.
            counted = Some(if usual.is_some() { fresh.unwrap_or(0) } else { spent });
        }
        if !teaches {
            costs.ripen_all(interval.keys.all());
        }
        if excess > 0 {
            (self.chains[at].tailed, self.chains[at].again) = (0, AGAIN);
        }
        let chain = &mut self.chains[at];
        chain.last = times.map(|times| times.end);
        chain.marks.completed();
        chain.unmeasured = chain.unmeasured.saturating_sub(u32::from(!open.measured));
        let (keys, exact) = (interval.keys.all(), costs.are_exact(interval.keys.all()));
        let least =
            if open.doubt.unknown == 0 { costs.least(keys, open.estimate) } else { fresh.unwrap_or(open.estimate) };
        self.lease.knows(least, open.estimate);
        self.measured(open.estimate, open.doubt, exact, times.map_or(now, |times| times.host));
        self.tally();
        // No measurement: the estimate is all there is.
        let used = fresh.unwrap_or_else(|| self.usual.unmeasured(interval.keys.id(), open.launches, open.estimate));
        let used = self.balance(counted.unwrap_or(0), used);
        let beside = interval.beside.min(used);
        let used = used - beside;
        pay(Due { beside, ..self.due(used, excess.min(used)) }, self.presence.since());
    }

    /// Whether an interval of a chain that is over was the last of its stream, the program has waited for it, and it can be
    /// told that the time was its own. What stands at the gate was waited for by nobody; where streams overlap, it cannot
    /// be told whose the time was. `hidden`: what of it others were counted for; `crossed`: it may have waited for what
    /// stands there.
    fn is_waited_out(&self, at: usize, hidden: u64, spent: u64, crossed: bool) -> bool {
        let chain = &self.chains[at];
        let most = BESIDE_NS.saturating_add(spent / 16);
        let is_last = chain.pending.is_empty() && !chain.marks.asks() && (self.waiting == 0 || crossed);
        is_last && self.beside(at).fold(hidden, u64::saturating_add) <= most
    }

    /// What of an interval is far beyond the usual: [`vgpu_core::account::arrears`]. Of what nobody had measured and may have
    /// waited for a launch that was held back, all but the estimate.
    fn excess(&mut self, interval: &Interval, spent: u64, clean: bool) -> u64 {
        let open = &interval.open;
        let ordinary = match (open.doubt.unknown, clean) {
            (0, _) => self.usual.ordinary(interval.keys.id(), open.launches, open.estimate, spent),
            (_, true) => spent,
            (_, false) => open.estimate,
        };
        spent.saturating_sub(ordinary)
    }

    /// What each other stream than a chain's has in flight, by estimate.
    pub(super) fn beside(&self, at: usize) -> impl Iterator<Item = u64> {
        let others = self.chains.iter().enumerate().filter(move |(other, _)| *other != at);
        others.map(|(_, chain)| chain.in_flight())
    }
}

#[cfg(test)]
mod tests {
    use super::super::chains::Keys;
    use super::*;
    use crate::order::Place;
    use core::cell::Cell;
    use vgpu_core::gate::marks::Open;

    /// What is charged for intervals of these streams, seen complete in this order.
    fn charged(intervals: &[(u64, u64, u64)]) -> Vec<u64> {
        let (mut meter, costs) = (Meter::default(), Costs::new());
        let paid = Cell::new(0);
        let mut all = Vec::new();
        for &(stream, begin, end) in intervals {
            let at = meter.find(Place { key: stream, context: 1 }).unwrap();
            let mut open = Open::default();
            (open.measured, open.estimate) = (true, 7);
            let keys = Keys::default();
            let interval = Interval {
                serial: 1,
                begin: None,
                lead: 0,
                begun: 0,
                end: None,
                open,
                all: 0,
                keys,
                tainted: false,
                beside: 0,
                first: false,
            };
            let times = Times { begin: Some(begin), end, host: end };
            paid.set(0);
            meter.done(at, &interval, Some(times), end, &|due, _| paid.set(due.used), &costs);
            all.push(paid.get());
        }
        all
    }

    /// What a member is charged for one interval in which others of its tenant had work on the device, and what of it others pay.
    fn charged_beside(account: SharedAccount<'_>, begin: u64, end: u64) -> (u64, u64) {
        let (mut meter, costs) = (Meter::default(), Costs::new());
        let at = meter.find(Place { key: 1, context: 1 }).unwrap();
        meter.chains[at].last = Some(begin);
        let event = CUevent(64 as *mut core::ffi::c_void);
        let interval = Interval { end: Some(event), tainted: true, ..of_five(None, 250_000, 250_000) };
        meter.chains[at].pending.push_back(interval);
        let answer = Answer::Reached { times: Times { begin: None, end, host: end }, kept: false };
        let item = Item { chain: meter.chains[at].number, context: 1, begin: None, begun: 0, end: event, answer };
        let batch = Batch { items: vec![item], axes: Vec::new(), free: Vec::new() };
        let charged = Cell::new((0, 0));
        meter.apply(batch, &costs, end, Some(account), |due, _| charged.set((due.used, due.beside)));
        charged.get()
    }

    #[test]
    fn members_whose_kernels_are_on_the_device_at_once_pay_for_that_time_once() {
        const MS: u64 = 1 << 20;
        let page = vgpu_core::ledger::LedgerPage::zeroed();
        let account = page.ledger().account();
        assert_eq!(charged_beside(account, 1_000 * MS, 1_300 * MS), (300 * MS, 0));
        assert_eq!(charged_beside(account, 1_100 * MS, 1_350 * MS), (50 * MS, 200 * MS));
        assert_eq!(charged_beside(account, 2_000 * MS, 2_100 * MS), (100 * MS, 0), "nobody else was there");
    }

    /// An interval of five launches of 50 us, each believed to take that, among so much of all streams.
    fn of_five(begin: Option<CUevent>, estimate: u64, all: u64) -> Interval {
        let mut open = Open::default();
        (open.measured, open.estimate, open.launches) = (true, estimate, 5);
        let mut keys = Keys::default();
        keys.add(9, Guess::sure(50_000));
        Interval {
            serial: 1,
            begin,
            lead: 0,
            begun: 0,
            end: None,
            open,
            all,
            keys,
            tainted: false,
            beside: 0,
            first: false,
        }
    }

    /// Four streams in turn, without a wait, and a marker after five launches of each: the first to be counted has the
    /// time of all, and the others nothing but their last launch.
    #[test]
    fn streams_that_are_launched_into_in_turn_pay_their_own_and_teach_what_they_take() {
        let (mut meter, costs) = (Meter::default(), Costs::new());
        costs.exact.learn(9, 50_000);
        // Something is always before the device.
        let bounds = meter.bounds;
        meter.keeper.launched(Guess::sure(250_000), 1_000_000, &bounds);
        for n in 0..40 {
            let (stream, round) = (n % 4, n / 4);
            let at = meter.find(Place { key: stream, context: 1 }).unwrap();
            let begin = 1_000_000 + stream * 50_000 + round * 1_000_000;
            meter.keeper.launched(Guess::sure(250_000), begin, &bounds);
            meter.chains[at].last = Some(begin);
            let end = begin + 1_000_000;
            let paid = Cell::new(0);
            let times = Times { begin: None, end, host: end };
            let interval = of_five(None, 250_000, 1_000_000);
            meter.done(at, &interval, Some(times), end, &|due, _| paid.set(due.used), &costs);
            assert_eq!((paid.get(), costs.guess(9).ns()), (250_000, 50_000), "interval {n}");
        }
    }

    /// Two streams, of which one waits on the device until the other is through: what is launched in turn is not done so.
    #[test]
    fn streams_that_wait_for_each_other_on_the_device_pay_all_that_was_counted() {
        let (mut meter, costs) = (Meter::default(), Costs::new());
        costs.exact.learn(9, 50_000);
        let (mut paid, mut now, bounds) = (0, 1_000_000, meter.bounds);
        // Something is always before the device.
        meter.keeper.launched(Guess::sure(250_000), now, &bounds);
        for round in 0..400 {
            for stream in [1, 2] {
                let at = meter.find(Place { key: stream, context: 1 }).unwrap();
                // One after the other: four intervals of 250 us each, of 500 launched between their markers.
                for _ in 0..4 {
                    meter.keeper.launched(Guess::sure(250_000), now, &bounds);
                    meter.chains[at].last = Some(now);
                    now += 250_000;
                    let times = Times { begin: None, end: now, host: now };
                    let charged = Cell::new(0);
                    let interval = of_five(None, 250_000, 500_000);
                    meter.done(at, &interval, Some(times), now, &|due, _| charged.set(due.used), &costs);
                    paid += charged.get();
                }
            }
            let counted = now - 1_000_000;
            assert!(paid + 8_000_000 >= counted, "round {round}: {paid} of {counted}");
        }
    }

    /// Under a wide lease a stream may have a thousand markers.
    #[test]
    fn every_stream_is_asked_about_however_much_another_has_in_flight() {
        for streams in [2, 10, 100] {
            let mut meter = Meter::default();
            for stream in 0..streams {
                let at = meter.find(Place { key: stream, context: 1 }).unwrap();
                for _ in 0..if stream == 0 { 1000 } else { 1 } {
                    let end = Some(CUevent::NULL);
                    meter.chains[at].pending.push_back(Interval { end, ..of_five(None, 250_000, 250_000) });
                }
            }
            let numbers: Vec<u64> = meter.chains.iter().map(|chain| chain.number).collect();
            let mut asked = std::collections::BTreeSet::new();
            for _ in 0..streams / 32 + 1 {
                let batch = meter.collect().unwrap();
                assert!(batch.items.len() <= MOST);
                asked.extend(batch.items.iter().map(|item| item.chain));
                meter.reaping = false;
            }
            assert!(numbers.iter().all(|number| asked.contains(number)), "{} of {streams}", asked.len());
        }
    }

    /// What was measured once in 50 us and then takes 200 ms whenever others are there: nobody can tell how much of that is
    /// its own, but a flood of it is not to be launched.
    #[test]
    fn what_takes_far_longer_beside_others_is_not_trusted_more_and_not_learned() {
        let costs = Costs::new();
        let beside = |spent| costs.learn(&[(9, costs.guess(9).ns())], costs.guess(9).ns(), spent, false);
        let guess = || (costs.guess(9).ns(), costs.guess(9).doubt().young);
        costs.learn(&[(9, 20_000)], 20_000, 50_000, true);
        (0..10).for_each(|_| beside(200_000_000));
        assert_eq!(guess(), (50_000, 32));
        beside(150_000);
        assert_eq!(guess(), (50_000, 16), "others make it so long");
        costs.learn(&[(9, 50_000)], 50_000, 200_000_000, true);
        assert_eq!(guess(), (25_043_750, 8), "alone it is learned");
        costs.forget(9);
        assert!(costs.guess(9).is_unknown());
        beside(200_000_000);
        assert_eq!(guess(), (200_000_000, 32), "all there is");
        (0..10).for_each(|_| beside(50_000));
        assert_eq!(costs.guess(9), Guess::sure(200_000_000));
    }

    /// Whose time nobody can tell is not held back for ever because of that.
    #[test]
    fn what_is_over_is_trusted_more_though_it_taught_nothing() {
        let (mut meter, costs) = (Meter::default(), Costs::new());
        costs.learn(&[(9, 20_000)], 20_000, 50_000, true);
        let at = meter.find(Place { key: 1, context: 1 }).unwrap();
        for young in [16, 8, 4, 2, 1, 0, 0] {
            meter.done(at, &of_five(None, 250_000, 250_000), None, 1_000_000, &|_, _| {}, &costs);
            assert_eq!((costs.guess(9).ns(), costs.guess(9).doubt().young), (50_000, young));
        }
    }

    #[test]
    fn what_takes_far_longer_than_believed_beside_others_is_paid_in_full() {
        let (mut meter, costs) = (Meter::default(), Costs::new());
        costs.exact.learn(9, 50_000);
        let at = meter.find(Place { key: 1, context: 1 }).unwrap();
        meter.chains[at].last = Some(1_000);
        let end = 1_000_001_000;
        let paid = Cell::new(0);
        let times = Times { begin: None, end, host: end };
        meter.done(at, &of_five(None, 50_000, 300_000), Some(times), end, &|due, _| paid.set(due.used), &costs);
        assert_eq!(paid.get(), 1_000_000_000);
    }

    #[test]
    fn what_is_launched_beside_others_pays_its_part_only_where_that_can_be_told() {
        let own = |begin: bool, estimate, all, length, spent| {
            of_five(begin.then_some(CUevent::NULL), estimate, all).own(length, spent)
        };
        assert_eq!(own(false, 250, 250, 400, 400), 400, "alone it is what was counted");
        assert_eq!(own(false, 250, 1000, 1200, 900), 300, "a fifth longer than believed, as all of them");
        assert_eq!(own(true, 50, 90, 120, 51), 51, "behind a marker of its own the others are counted for themselves");
        assert_eq!(own(true, 50, 100, 120, 0), 50, "or for it");
        assert_eq!(own(false, 20, 1_300_000, 25, 25), 20, "what runs beside a wait is no part of that");
        assert_eq!(own(false, 1000, 1020, 1_000_000, 999_990), 980_392, "and a wait is no part of what runs beside it");
    }

    #[test]
    fn what_two_streams_did_at_once_is_charged_once() {
        assert_eq!(charged(&[(1, 1000, 2000), (2, 1500, 2500), (1, 2600, 2700)]), [1000, 500, 100]);
        assert_eq!(charged(&[(1, 1000, 2000), (2, 1200, 1900)]), [1000, 0]);
    }
}
