//! Deferred frees: memory freed in stream order stays charged until its stream reaches the free.
//!
//! This covers plain memory freed by `cuMemFreeAsync`, and memory of destroyed pools. The driver itself reports how
//! much living pools hold. No callback signals that a stream has reached a free, so an event marker is recorded
//! behind the free. The marker is checked in synchronising calls, before a request is refused, before free memory is
//! shown, and at the next such free. Without a marker, the free counts as done only after a wait for that very stream
//! or its context, or after the context's end. That applies to frees still pending when their pool was destroyed,
//! because the stream of an earlier call may no longer exist. A program that waits only for events is charged for
//! such frees until then.
//!
//! A stream reaches its frees in order, so only the oldest marker of each stream is checked. The younger ones are
//! checked only before a request is refused, because a stream's handle may have belonged to another stream before.

use crate::driver::Call;
use crate::holdings::{Holding, Table};
use crate::lock::Lock;
use crate::order::{End, Mark, Order, Place};
use crate::pools::{self, Entry};
use crate::sorted::Map;
use crate::{context, device};
use core::ffi::c_void;
use core::ops::Bound;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use shim_sys::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUresult};
use std::collections::BTreeMap;
use std::sync::Arc;
use vgpu_core::memory::pool::Stream;

/// The action at the end of a deferred free.
enum Then {
    /// Release a charge of plain memory.
    Release(Holding),
    /// Tell a destroyed pool that a free is done.
    Orphan(Arc<Entry>),
}

/// A deferred free: memory freed in stream order that the stream may still use.
struct Departing {
    /// The freed address; 0: unknown.
    address: u64,
    /// The stream that the free is queued in.
    place: Place,
    /// The number of the free, in the order of the driver's answers.
    stamp: u64,
    /// The latest context epoch at which its context was known to live: see `context::has_ended`.
    moment: u64,
    /// The event marker behind the free, if one could be recorded.
    mark: Option<Mark>,
    then: Then,
}

/// Frees by stream and number; and the keys of those known by address.
struct All {
    frees: BTreeMap<(Place, u64), Departing>,
    addresses: BTreeMap<u64, (Place, u64)>,
}

impl All {
    const EMPTY: All = All { frees: BTreeMap::new(), addresses: BTreeMap::new() };

    fn insert(&mut self, one: Departing) {
        let key = (one.place, one.stamp);
        if one.address != 0 {
            self.addresses.insert(one.address, key);
        }
        UNMARKED.fetch_add(usize::from(one.mark.is_none()), SeqCst);
        self.frees.insert(key, one);
        COUNT.store(self.frees.len(), Release);
    }

    fn remove(&mut self, key: (Place, u64)) -> Option<Departing> {
        let one = self.frees.remove(&key)?;
        if self.addresses.get(&one.address) == Some(&key) {
            self.addresses.remove(&one.address);
        }
        UNMARKED.fetch_sub(usize::from(one.mark.is_none()), SeqCst);
        COUNT.store(self.frees.len(), Release);
        Some(one)
    }
}

static ALL: Lock<All> = Lock::new(All::EMPTY);
/// Number of deferred frees.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Number of deferred frees that have no marker.
static UNMARKED: AtomicUsize = AtomicUsize::new(0);
/// The number of the newest free.
static STAMPS: AtomicU64 = AtomicU64::new(0);
/// Threads that are asking the driver about markers. A context that is about to end waits for them.
static ASKING: AtomicUsize = AtomicUsize::new(0);

/// The next number, for a free that the driver has accepted.
pub fn stamp() -> u64 {
    STAMPS.fetch_add(1, SeqCst) + 1
}

/// The newest number. A wait that begins now covers that free and all earlier ones in the streams that it waits for.
///
/// # Cost
/// One load.
#[inline]
pub fn newest() -> u64 {
    STAMPS.load(SeqCst)
}

/// A wait that the program has completed.
pub struct Arrived {
    /// The streams that the program waited for.
    pub which: Which,
    /// [`newest`], before the wait began.
    pub since: u64,
}

/// Streams that the program has waited for.
pub enum Which {
    /// The streams are unknown.
    Unknown,
    /// One stream; the context matters only for default streams.
    One(Stream, Option<usize>),
    /// All streams of a context.
    Context(usize),
}

impl Arrived {
    /// Whether the stream has reached the free numbered `stamp`.
    pub fn at(&self, place: Place, stamp: u64) -> bool {
        stamp <= self.since
            && match self.which {
                Which::Unknown => false,
                Which::One(key, context) => key == place.key && context.is_none_or(|context| context == place.context),
                Which::Context(context) => context == place.context,
            }
    }
}

fn asking<T>(question: impl FnOnce() -> T) -> T {
    ASKING.fetch_add(1, SeqCst);
    let answer = question();
    ASKING.fetch_sub(1, SeqCst);
    answer
}

fn depart(address: u64, order: Order, moment: u64, then: Then) {
    let place = order.place();
    let mark = match order.end(place) {
        End::Passed => return Departing { address, place, stamp: 0, moment, mark: None, then }.end(),
        End::Marked(mark) => Some(mark),
        End::Unknown => None,
    };
    add(Departing { address, place, stamp: stamp(), moment, mark, then });
    pools::expect_departure();
    resolve_in(place, false);
}

/// Adds a deferred free; ends it at once if its stream's context or its memory's context has ended.
fn add(mut one: Departing) {
    let now = context::moment();
    if one.has_ended() {
        return one.end();
    }
    one.moment = one.moment.max(now);
    ALL.lock().insert(one);
    if context::moment() != now {
        end_all(Departing::has_ended);
    }
}

/// Ends the frees that `chosen` selects.
fn end_all(chosen: impl Fn(&Departing) -> bool) {
    let taken: Vec<Departing> = {
        let mut all = ALL.lock();
        let keys: Vec<_> = all.frees.iter().filter(|(_, one)| chosen(one)).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| all.remove(key)).collect()
    };
    taken.into_iter().for_each(Departing::end);
}

impl Departing {
    /// Whether the context of the stream, or that of the memory, has ended.
    fn has_ended(&self) -> bool {
        let memory = match &self.then {
            Then::Release(holding) => holding.context,
            Then::Orphan(_) => 0,
        };
        context::has_ended(self.place.context, self.moment) || context::has_ended(memory, self.moment)
    }

    /// The marker, if the driver may be asked about it. Only inside [`asking`].
    fn living(&self) -> Option<&Mark> {
        let of = self.place.context;
        // In this order: an ending context is recorded as ended before it is no longer recorded as ending.
        let dies = context::is_ending(CUcontext(of as *mut c_void)) || context::has_ended(of, self.moment);
        self.mark.as_ref().filter(|_| !dies)
    }

    fn end(self) {
        if self.mark.is_some() {
            // Only in a living context: otherwise the marker dies with its context.
            asking(|| self.living().into_iter().for_each(Mark::end));
        }
        match self.then {
            Then::Release(holding) => device::release(holding),
            Then::Orphan(entry) => pools::awaited(&entry),
        }
    }
}

/// Frees plain memory in stream order. The caller has taken its record out of `table`; a failed free puts it back.
pub fn free(table: &Table, address: u64, holding: Holding, order: Order, real: Call<'_>) -> CUresult {
    let moment = context::moment();
    let result = real();
    if result.ok() {
        depart(address, order, moment, Then::Release(holding));
    } else {
        table.put(address, holding);
    }
    result
}

/// Handles a free of a destroyed pool's memory. Without an order the memory is freed at once.
pub fn orphan(address: u64, entry: &Arc<Entry>, order: Option<Order>) {
    match order {
        Some(order) if entry.held() > 0 => {
            entry.awaits(1);
            depart(address, order, context::moment(), Then::Orphan(entry.clone()));
        }
        _ => pools::ended(entry),
    }
}

/// Handles the destruction of a pool. `frees` holds, for each stream, the number and epoch of a free that the stream
/// may not have reached. The other streams may no longer exist, so markers are recorded in the default streams only.
/// Also ends the caller's own await.
pub fn orphans(entry: &Arc<Entry>, mut frees: Map<Place, (u64, u64)>) {
    if entry.held() == 0 {
        return pools::awaited(entry);
    }
    entry.awaits(frees.len() as u64);
    for stream in [CU_STREAM_LEGACY, CU_STREAM_PER_THREAD] {
        let order = Order { stream, per_thread: false };
        if let Some((_, moment)) = frees.remove(&order.place()) {
            depart(0, order, moment, Then::Orphan(entry.clone()));
        }
    }
    let then = || Then::Orphan(entry.clone());
    for (place, (stamp, moment)) in frees {
        add(Departing { address: 0, place, stamp, moment, mark: None, then: then() });
    }
    pools::expect_departure();
    pools::awaited(entry);
}

/// Ends the frees that are done; returns whether any are left. `arrived`: the wait that the program has just
/// completed.
#[cold]
pub fn resolve(arrived: Option<&Arrived>) -> bool {
    if let Some(arrived) = arrived
        && UNMARKED.load(SeqCst) > 0
    {
        end_all(|one| one.mark.is_none() && arrived.at(one.place, one.stamp));
    }
    resolve_marked(false)
}

/// As [`resolve`], but checks every marker: called before a request is refused.
#[cold]
pub fn resolve_all() {
    resolve_marked(true);
}

fn resolve_marked(each: bool) -> bool {
    let mut last = None;
    while COUNT.load(Acquire) > 0 {
        let next = {
            let all = ALL.lock();
            let after = last.map_or(Bound::Unbounded, |place| Bound::Excluded((place, u64::MAX)));
            all.frees.range((after, Bound::Unbounded)).next().map(|((place, _), _)| *place)
        };
        let Some(place) = next else { break };
        resolve_in(place, each);
        last = Some(place);
    }
    COUNT.load(Acquire) > 0
}

/// Ends the frees that a stream has reached: checks markers from the oldest up to the first not reached, or every one
/// with `each`.
fn resolve_in(place: Place, each: bool) {
    let mut from = 0;
    loop {
        // Taken out of the list while the driver is asked; another thread meanwhile finds the rest.
        let next = {
            let mut all = ALL.lock();
            let marked = all.frees.range((place, from)..=(place, u64::MAX)).find(|(_, one)| one.mark.is_some());
            marked.map(|(key, _)| *key).and_then(|key| all.remove(key))
        };
        let Some(one) = next else { return };
        from = one.stamp.saturating_add(1);
        if asking(|| one.living().is_some_and(Mark::is_passed)) {
            one.end();
        } else {
            add(one);
            if !each {
                return;
            }
        }
    }
}

/// Handles a stream that is about to be destroyed. Its frees without a marker move to a key that no later stream can
/// have, so that a wait for a new stream with the same handle does not end them.
pub fn forget_stream(key: Stream) {
    let mut all = ALL.lock();
    let of_it = |one: &Departing| one.place.key == key && one.mark.is_none();
    let keys: Vec<_> = all.frees.iter().filter(|(_, one)| of_it(one)).map(|(key, _)| *key).collect();
    for key in keys {
        if let Some(one) = all.remove(key) {
            all.insert(Departing { place: one.place.nobodys(), ..one });
        }
    }
}

/// Checks again before a number is shown.
///
/// # Cost
/// One load where no free is deferred.
#[inline]
pub fn look_again() {
    if COUNT.load(Acquire) > 0 {
        resolve(None);
    }
}

/// Whether there is any deferred free without a marker, so that nobody knows whether the device still holds its
/// memory.
pub fn is_doubtful() -> bool {
    UNMARKED.load(SeqCst) > 0
}

/// The driver gave out this address, so an earlier deferred free there is done.
///
/// # Cost
/// One load where no free is deferred.
#[inline(always)]
pub fn came_again(address: u64) {
    if COUNT.load(Acquire) > 0 {
        end_at(address);
    }
}

#[cold]
fn end_at(address: u64) {
    let found = {
        let mut all = ALL.lock();
        all.addresses.get(&address).copied().and_then(|key| all.remove(key))
    };
    found.into_iter().for_each(Departing::end);
}

/// A context is about to end, and the markers in its streams with it: returns when no thread asks the driver about
/// them.
pub fn context_ending() {
    if ASKING.load(SeqCst) > 0 {
        context::wait_until(|| ASKING.load(SeqCst) == 0);
    }
}

/// A context has ended, after waiting for its streams; its markers have died with it.
pub fn context_ended() {
    let now = context::moment();
    end_all(Departing::has_ended);
    ALL.lock().frees.values_mut().for_each(|one| one.moment = one.moment.max(now));
}

/// Clears the parent's deferred frees in a forked child.
pub fn forget() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { ALL.reset(All::EMPTY) };
    COUNT.store(0, Relaxed);
    UNMARKED.store(0, Relaxed);
    ASKING.store(0, Relaxed);
}
