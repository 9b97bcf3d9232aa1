//! What was freed in stream order and is still there: charged until the stream has come to the free.
//!
//! Plain memory that `cuMemFreeAsync` frees, and memory of pools that were destroyed. (Of living pools the driver says
//! what they hold.) Nobody tells when a stream comes to a free, so a mark of ours stands behind it; it is looked at in
//! synchronising calls, before a request is refused or free memory shown, and at the next such free. Where no mark can be
//! had, only a wait for that very stream or its context, or the context's end, is taken for the end: such are frees that
//! were on their way when their pool was destroyed, since a stream of an earlier call may be gone by then. A program that
//! waits for nothing but events is charged for them until then.
//!
//! A stream comes to its frees in their order: of each stream only the oldest mark is asked, and of the younger ones only
//! before something is refused (a stream's name may have been another one's before).

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
use vgpu_core::pool::Stream;

enum Then {
    Release(Holding),
    Orphan(Arc<Entry>),
}

struct Departing {
    address: u64,
    place: Place,
    stamp: u64,
    /// When its context was last known to live: see `context::has_ended`.
    moment: u64,
    mark: Option<Mark>,
    then: Then,
}

/// By stream and number of the free; and where what is known by its address is.
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
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Of them: those without a mark.
static UNMARKED: AtomicUsize = AtomicUsize::new(0);
/// The number of the newest free.
static STAMPS: AtomicU64 = AtomicU64::new(0);
/// Threads that are asking the driver of marks; a context that is about to end waits for them.
static ASKING: AtomicUsize = AtomicUsize::new(0);

/// A number for a free that the driver has been told of.
pub fn stamp() -> u64 {
    STAMPS.fetch_add(1, SeqCst) + 1
}

/// The newest number: a wait that begins now is for that free and for those before it, in the streams that it waits for.
///
/// # Cost
/// One load.
#[inline]
pub fn newest() -> u64 {
    STAMPS.load(SeqCst)
}

/// What the program has waited for.
pub struct Arrived {
    /// The streams.
    pub which: Which,
    /// [`newest`], before the wait began.
    pub since: u64,
}

/// Streams that the program has waited for.
pub enum Which {
    /// Nobody knows.
    Unknown,
    /// One; its context is of interest for default streams only.
    One(Stream, Option<usize>),
    /// All of a context.
    Context(usize),
}

impl Arrived {
    /// Whether the stream has come to the free with that number.
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

/// Notes one, unless its context, or that of its memory, has ended.
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

/// Ends what is chosen.
fn end_all(chosen: impl Fn(&Departing) -> bool) {
    let taken: Vec<Departing> = {
        let mut all = ALL.lock();
        let keys: Vec<_> = all.frees.iter().filter(|(_, one)| chosen(one)).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| all.remove(key)).collect()
    };
    taken.into_iter().for_each(Departing::end);
}

impl Departing {
    /// Whether the context whose stream it waits for has ended, or that of the memory.
    fn has_ended(&self) -> bool {
        let memory = match &self.then {
            Then::Release(holding) => holding.context,
            Then::Orphan(_) => 0,
        };
        context::has_ended(self.place.context, self.moment) || context::has_ended(memory, self.moment)
    }

    /// The mark, if the driver may be asked of it. Only while [`asking`].
    fn living(&self) -> Option<&Mark> {
        let of = self.place.context;
        // In this order: an end is counted as ended before it is counted off.
        let dies = context::is_ending(CUcontext(of as *mut c_void)) || context::has_ended(of, self.moment);
        self.mark.as_ref().filter(|_| !dies)
    }

    fn end(self) {
        if self.mark.is_some() {
            // Else it dies with its context.
            asking(|| self.living().into_iter().for_each(Mark::end));
        }
        match self.then {
            Then::Release(holding) => device::release(holding),
            Then::Orphan(entry) => pools::awaited(&entry),
        }
    }
}

/// Frees plain memory in stream order, which the caller has taken out of its table; a free that fails leaves it there.
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

/// Memory of a destroyed pool was freed; without an order, at once.
pub fn orphan(address: u64, entry: &Arc<Entry>, order: Option<Order>) {
    match order {
        Some(order) if entry.held() > 0 => {
            entry.awaits(1);
            depart(address, order, context::moment(), Then::Orphan(entry.clone()));
        }
        _ => pools::ended(entry),
    }
}

/// A pool was destroyed, and streams may still have to come to these frees, with their numbers and moments. Which of the
/// streams live nobody knows, so marks are set in the default ones only. The caller's own await ends here.
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

/// Ends what is gone; whether anything is left. `arrived`: what the program has just waited for.
#[cold]
pub fn resolve(arrived: Option<&Arrived>) -> bool {
    if let Some(arrived) = arrived
        && UNMARKED.load(SeqCst) > 0
    {
        end_all(|one| one.mark.is_none() && arrived.at(one.place, one.stamp));
    }
    resolve_marked(false)
}

/// As [`resolve`], with a question for each mark: before something is refused.
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

/// Ends what a stream has come to: asks from the oldest mark to the first that it has not come to, or of `each`.
fn resolve_in(place: Place, each: bool) {
    let mut from = 0;
    loop {
        // Out of the list while the driver is asked; who comes meanwhile finds the rest.
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

/// A stream is about to be destroyed: what has no mark in it is a stream's that nobody can name.
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

/// Looks again, for a number that is about to be shown.
///
/// # Cost
/// One load where nothing departs.
#[inline]
pub fn look_again() {
    if COUNT.load(Acquire) > 0 {
        resolve(None);
    }
}

/// Whether there is anything of which nobody knows whether the device still has it.
pub fn is_doubtful() -> bool {
    UNMARKED.load(SeqCst) > 0
}

/// The driver gave out an address: whatever was there before is gone.
///
/// # Cost
/// One load where nothing departs.
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

/// A context is about to end, and with it the marks in its streams: nobody is asking of them when this returns.
pub fn context_ending() {
    if ASKING.load(SeqCst) > 0 {
        context::wait_until(|| ASKING.load(SeqCst) == 0);
    }
}

/// A context has ended, which waits for its streams, and marks of ours have died with it.
pub fn context_ended() {
    let now = context::moment();
    end_all(Departing::has_ended);
    ALL.lock().frees.values_mut().for_each(|one| one.moment = one.moment.max(now));
}

/// Forgets the parent's, in a forked child.
pub fn forget() {
    // SAFETY: the child's thread that settles it, before any other goes on.
    unsafe { ALL.reset(All::EMPTY) };
    COUNT.store(0, Relaxed);
    UNMARKED.store(0, Relaxed);
    ASKING.store(0, Relaxed);
}
