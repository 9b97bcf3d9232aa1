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

use crate::driver::contexts;
use crate::driver::library::DriverCall;
use crate::driver::streams::{StreamId, StreamLocation, StreamMark, WorkEnd};
use crate::ffi::lock::Lock;
use crate::ffi::sorted_map::SortedMap;
use crate::memory::allocation_records::{AllocationRecord, RecordTable};
use crate::memory::pool_entry::PoolRef;
use crate::memory::pool_registry;
use crate::memory::release::release_record;
use crate::memory::shrink_flag;
use core::ffi::c_void;
use core::ops::Bound;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use shim_sys::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUresult};
use std::collections::BTreeMap;
use vgpu_core::memory::pool::StreamKey;

/// The action at the end of a deferred free.
enum AfterFree {
    /// Release a charge of plain memory.
    Release(AllocationRecord),
    /// Tell a destroyed pool that a free is done.
    Orphan(PoolRef),
}

/// A deferred free: memory freed in stream order that the stream may still use.
struct DeferredFree {
    /// The freed address; 0: unknown.
    address: u64,
    /// The stream that the free is queued in.
    place: StreamLocation,
    /// The number of the free, in the order of the driver's answers.
    stamp: u64,
    /// The latest context epoch at which its context was known to live: see `contexts::has_ended`.
    moment: u64,
    /// The event marker behind the free, if one could be recorded.
    mark: Option<StreamMark>,
    then: AfterFree,
}

/// Frees by stream and number; and the keys of those known by address.
struct DeferredFrees {
    frees: BTreeMap<(StreamLocation, u64), DeferredFree>,
    addresses: BTreeMap<u64, (StreamLocation, u64)>,
}

impl DeferredFrees {
    const NO_FREES: DeferredFrees = DeferredFrees { frees: BTreeMap::new(), addresses: BTreeMap::new() };

    fn insert(&mut self, one: DeferredFree) {
        let key = (one.place, one.stamp);
        if one.address != 0 {
            self.addresses.insert(one.address, key);
        }
        UNMARKED_COUNT.fetch_add(usize::from(one.mark.is_none()), SeqCst);
        self.frees.insert(key, one);
        DEFERRED_COUNT.store(self.frees.len(), Release);
    }

    fn remove(&mut self, key: (StreamLocation, u64)) -> Option<DeferredFree> {
        let one = self.frees.remove(&key)?;
        if self.addresses.get(&one.address) == Some(&key) {
            self.addresses.remove(&one.address);
        }
        UNMARKED_COUNT.fetch_sub(usize::from(one.mark.is_none()), SeqCst);
        DEFERRED_COUNT.store(self.frees.len(), Release);
        Some(one)
    }
}

static DEFERRED_FREES: Lock<DeferredFrees> = Lock::new(DeferredFrees::NO_FREES);
/// Number of deferred frees.
static DEFERRED_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Number of deferred frees that have no marker.
static UNMARKED_COUNT: AtomicUsize = AtomicUsize::new(0);
/// The number of the newest free.
static LAST_FREE_NUMBER: AtomicU64 = AtomicU64::new(0);
/// Threads that are asking the driver about markers. A context that is about to end waits for them.
static MARK_READERS: AtomicUsize = AtomicUsize::new(0);

/// The next number, for a free that the driver has accepted.
pub fn next_free_number() -> u64 {
    LAST_FREE_NUMBER.fetch_add(1, SeqCst) + 1
}

/// The newest number. A wait that begins now covers that free and all earlier ones in the streams that it waits for.
///
/// # Cost
/// One load.
#[inline]
pub fn last_free_number() -> u64 {
    LAST_FREE_NUMBER.load(SeqCst)
}

/// A wait that the program has completed.
pub struct AwaitedWork {
    /// The streams that the program waited for.
    pub which: AwaitedStreams,
    /// [`last_free_number`], before the wait began.
    pub since: u64,
}

/// Streams that the program has waited for.
pub enum AwaitedStreams {
    /// The streams are unknown.
    Unknown,
    /// One stream; the context matters only for default streams.
    One(StreamKey, Option<usize>),
    /// All streams of a context.
    Context(usize),
}

impl AwaitedWork {
    /// Whether the stream has reached the free numbered `stamp`.
    pub fn covers(&self, place: StreamLocation, stamp: u64) -> bool {
        stamp <= self.since
            && match self.which {
                AwaitedStreams::Unknown => false,
                AwaitedStreams::One(key, context) => {
                    key == place.key && context.is_none_or(|context| context == place.context)
                }
                AwaitedStreams::Context(context) => context == place.context,
            }
    }
}

fn with_marks<T>(question: impl FnOnce() -> T) -> T {
    MARK_READERS.fetch_add(1, SeqCst);
    let answer = question();
    MARK_READERS.fetch_sub(1, SeqCst);
    answer
}

fn defer_free(address: u64, order: StreamId, moment: u64, then: AfterFree) {
    let place = order.location();
    let mark = match order.end_of_work(place) {
        WorkEnd::Passed => return DeferredFree { address, place, stamp: 0, moment, mark: None, then }.finish_free(),
        WorkEnd::Marked(mark) => Some(mark),
        WorkEnd::Unknown => None,
    };
    add(DeferredFree { address, place, stamp: next_free_number(), moment, mark, then });
    shrink_flag::expect_shrinking();
    resolve_in(place, false);
}

/// Adds a deferred free; ends it at once if its stream's context or its memory's context has ended.
fn add(mut one: DeferredFree) {
    let now = contexts::epoch();
    if one.has_ended() {
        return one.finish_free();
    }
    one.moment = one.moment.max(now);
    DEFERRED_FREES.lock().insert(one);
    if contexts::epoch() != now {
        end_all(DeferredFree::has_ended);
    }
}

/// Ends the frees that `chosen` selects.
fn end_all(chosen: impl Fn(&DeferredFree) -> bool) {
    let taken: Vec<DeferredFree> = {
        let mut all = DEFERRED_FREES.lock();
        let keys: Vec<_> = all.frees.iter().filter(|(_, one)| chosen(one)).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| all.remove(key)).collect()
    };
    taken.into_iter().for_each(DeferredFree::finish_free);
}

impl DeferredFree {
    /// Whether the context of the stream, or that of the memory, has ended.
    fn has_ended(&self) -> bool {
        let memory = match &self.then {
            AfterFree::Release(holding) => holding.context,
            AfterFree::Orphan(_) => 0,
        };
        contexts::has_ended(self.place.context, self.moment) || contexts::has_ended(memory, self.moment)
    }

    /// The marker, if the driver may be asked about it. Only inside [`with_marks`].
    fn usable_mark(&self) -> Option<&StreamMark> {
        let of = self.place.context;
        // In this order: an ending context is recorded as ended before it is no longer recorded as ending.
        let dies = contexts::is_ending(CUcontext(of as *mut c_void)) || contexts::has_ended(of, self.moment);
        self.mark.as_ref().filter(|_| !dies)
    }

    fn finish_free(self) {
        if self.mark.is_some() {
            // Only in a living context: otherwise the marker dies with its context.
            with_marks(|| self.usable_mark().into_iter().for_each(StreamMark::destroy));
        }
        match self.then {
            AfterFree::Release(holding) => release_record(holding),
            AfterFree::Orphan(entry) => pool_registry::note_awaited(&entry),
        }
    }
}

/// Frees plain memory in stream order. The caller has taken its record out of `table`; a failed free puts it back.
pub fn free(
    table: &RecordTable,
    address: u64,
    holding: AllocationRecord,
    order: StreamId,
    real: DriverCall<'_>,
) -> CUresult {
    let moment = contexts::epoch();
    let result = real();
    if result.ok() {
        defer_free(address, order, moment, AfterFree::Release(holding));
    } else {
        table.insert_record(address, holding);
    }
    result
}

/// Handles a free of a destroyed pool's memory. Without an order the memory is freed at once.
pub fn defer_orphan(address: u64, entry: &PoolRef, order: Option<StreamId>) {
    match order {
        Some(order) if entry.held_bytes() > 0 => {
            entry.await_streams(1);
            defer_free(address, order, contexts::epoch(), AfterFree::Orphan(entry.clone()));
        }
        _ => pool_registry::note_ended(entry),
    }
}

/// Handles the destruction of a pool. `frees` holds, for each stream, the number and epoch of a free that the stream
/// may not have reached. The other streams may no longer exist, so markers are recorded in the default streams only.
/// Also ends the caller's own await.
pub fn defer_orphans(entry: &PoolRef, mut frees: SortedMap<StreamLocation, (u64, u64)>) {
    if entry.held_bytes() == 0 {
        return pool_registry::note_awaited(entry);
    }
    entry.await_streams(frees.len() as u64);
    for stream in [CU_STREAM_LEGACY, CU_STREAM_PER_THREAD] {
        let order = StreamId { stream, per_thread: false };
        if let Some((_, moment)) = frees.remove(&order.location()) {
            defer_free(0, order, moment, AfterFree::Orphan(entry.clone()));
        }
    }
    let then = || AfterFree::Orphan(entry.clone());
    for (place, (stamp, moment)) in frees {
        add(DeferredFree { address: 0, place, stamp, moment, mark: None, then: then() });
    }
    shrink_flag::expect_shrinking();
    pool_registry::note_awaited(entry);
}

/// Ends the frees that are done; returns whether any are left. `arrived`: the wait that the program has just
/// completed.
#[cold]
pub fn finish_passed(arrived: Option<&AwaitedWork>) -> bool {
    if let Some(arrived) = arrived
        && UNMARKED_COUNT.load(SeqCst) > 0
    {
        end_all(|one| one.mark.is_none() && arrived.covers(one.place, one.stamp));
    }
    resolve_marked(false)
}

/// As [`finish_passed`], but checks every marker: called before a request is refused.
#[cold]
pub fn resolve_all() {
    resolve_marked(true);
}

fn resolve_marked(each: bool) -> bool {
    let mut last = None;
    while DEFERRED_COUNT.load(Acquire) > 0 {
        let next = {
            let all = DEFERRED_FREES.lock();
            let after = last.map_or(Bound::Unbounded, |place| Bound::Excluded((place, u64::MAX)));
            all.frees.range((after, Bound::Unbounded)).next().map(|((place, _), _)| *place)
        };
        let Some(place) = next else { break };
        resolve_in(place, each);
        last = Some(place);
    }
    DEFERRED_COUNT.load(Acquire) > 0
}

/// Ends the frees that a stream has reached: checks markers from the oldest up to the first not reached, or every one
/// with `each`.
fn resolve_in(place: StreamLocation, each: bool) {
    let mut from = 0;
    loop {
        // Taken out of the list while the driver is asked; another thread meanwhile finds the rest.
        let next = {
            let mut all = DEFERRED_FREES.lock();
            let marked = all.frees.range((place, from)..=(place, u64::MAX)).find(|(_, one)| one.mark.is_some());
            marked.map(|(key, _)| *key).and_then(|key| all.remove(key))
        };
        let Some(one) = next else { return };
        from = one.stamp.saturating_add(1);
        if with_marks(|| one.usable_mark().is_some_and(StreamMark::is_passed)) {
            one.finish_free();
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
pub fn forget_stream(key: StreamKey) {
    let mut all = DEFERRED_FREES.lock();
    let of_it = |one: &DeferredFree| one.place.key == key && one.mark.is_none();
    let keys: Vec<_> = all.frees.iter().filter(|(_, one)| of_it(one)).map(|(key, _)| *key).collect();
    for key in keys {
        if let Some(one) = all.remove(key) {
            all.insert(DeferredFree { place: one.place.without_stream(), ..one });
        }
    }
}

/// Checks again before a number is shown.
///
/// # Cost
/// One load where no free is deferred.
#[inline]
pub fn look_again() {
    if DEFERRED_COUNT.load(Acquire) > 0 {
        finish_passed(None);
    }
}

/// Whether there is any deferred free without a marker, so that nobody knows whether the device still holds its
/// memory.
pub fn is_doubtful() -> bool {
    UNMARKED_COUNT.load(SeqCst) > 0
}

/// The driver gave out this address, so an earlier deferred free there is done.
///
/// # Cost
/// One load where no free is deferred.
#[inline(always)]
pub fn came_again(address: u64) {
    if DEFERRED_COUNT.load(Acquire) > 0 {
        end_at(address);
    }
}

#[cold]
fn end_at(address: u64) {
    let found = {
        let mut all = DEFERRED_FREES.lock();
        all.addresses.get(&address).copied().and_then(|key| all.remove(key))
    };
    found.into_iter().for_each(DeferredFree::finish_free);
}

/// A context is about to end, and the markers in its streams with it: returns when no thread asks the driver about
/// them.
pub fn context_ending() {
    if MARK_READERS.load(SeqCst) > 0 {
        contexts::wait_until(|| MARK_READERS.load(SeqCst) == 0);
    }
}

/// A context has ended, after waiting for its streams; its markers have died with it.
pub fn context_ended() {
    let now = contexts::epoch();
    end_all(DeferredFree::has_ended);
    DEFERRED_FREES.lock().frees.values_mut().for_each(|one| one.moment = one.moment.max(now));
}

/// Clears the parent's deferred frees in a forked child.
pub fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { DEFERRED_FREES.reset(DeferredFrees::NO_FREES) };
    DEFERRED_COUNT.store(0, Relaxed);
    UNMARKED_COUNT.store(0, Relaxed);
    MARK_READERS.store(0, Relaxed);
}
