//! Charges pools of device memory, and graph memory, for the bytes they hold: by vgpu-core's account and the driver's
//! own number.
//!
//! A pool is tracked from its first allocation. A request that fits inside the pool is passed on. Any other request
//! first reserves the expected growth of the pool. Afterwards the driver is asked for the pool's size and the charge
//! follows. The driver is not asked if the returned address shows that the request was served from inside, nor after
//! frees in stream order. It is asked after immediate frees, trims and synchronising calls ([`note_synchronised`]),
//! because the driver takes memory back in those (`shrinking`). Memory that a pool keeps but does not use can be
//! given back: [`give_back`] does so before any request is refused for memory.
//!
//! An ordinary request takes the pool's lock before and after the driver call, and its free takes it once. The free
//! ends by one store, which the next holder of the lock takes over ([`PoolEntry::lock_state`]).
//!
//! Graph memory is treated as a pool without a handle, one per device; `graphs` decides which graphs may be launched.
//! Frees whose time only the driver knows, and pools destroyed while allocations were alive, are in `deferred_frees`.
//! The list of pools is in `pool_registry`; pools that several processes share are in `shared`. An allocation in a
//! capturing stream becomes a graph node and takes no memory, so the hook passes it on without calling this module.

mod requests;
mod shared;
mod shrinking;

use super::pool_entry::{GraphBacking, PoolEntry, PoolRef, PoolSource};
use super::pool_registry as registry;
pub use super::pool_registry::{any, current_pool, graph_memory, note_created, of_handle, usual_pool};
pub use super::shrink_flag::may_have_shrunk;
pub use shared::{note_imported, share_of_imported, share_pool};
pub use shrinking::ShrinkingCall;

use super::pool_registry::each_pool;
use super::shrink_flag::{self, expect_shrinking};
use crate::device::current;
use crate::device::table::{self, Device};
use crate::driver::contexts;
use crate::driver::library::DriverCall;
use crate::driver::streams::{self, StreamId, StreamLocation};
use crate::memory::deferred_frees;
use crate::memory::deferred_frees::{AwaitedStreams, AwaitedWork};
use crate::memory::in_flight_frees;
use core::cell::Cell;
use core::sync::atomic::Ordering::*;
use requests::PoolAllocation;
use shim_sys::cuda::*;
use shrinking::QuietEpoch;
use vgpu_core::memory::pool::{self, PendingFree};

/// A program's request to a pool.
pub struct StreamOrderedRequest<'a> {
    /// The pool.
    pub entry: &'a PoolRef,
    /// Whether the program named the pool. Otherwise it was taken for the current one.
    pub named: bool,
    /// Bytes to charge.
    pub bytes: u64,
    /// The stream of the request.
    pub order: StreamId,
    /// Calls the driver.
    pub real: DriverCall<'a>,
    /// Reads the address that the driver returned.
    pub address: &'a dyn Fn() -> u64,
    /// Frees the block at an address again.
    pub undo: &'a dyn Fn(u64),
}

/// Allocates from a pool.
pub fn allocate(mut request: StreamOrderedRequest<'_>) -> CUresult {
    let (entry, bytes, moment): (&PoolEntry, _, _) = (request.entry, request.bytes, shrinking::now());
    let mut begun = match entry.begin_inside(bytes, request.order.stream_key()) {
        Some(begun) => begun,
        // Nobody asked for the context of a request in the usual pool. Without one the driver's error is the answer.
        None if usual_pool().is_some() && current::of_stream(request.order.stream).is_none() => {
            return (request.real)();
        }
        None => match entry.begin_growing(bytes, request.order.stream_key()) {
            Ok(begun) => begun,
            Err(refused) => return refused,
        },
    };
    let result = (request.real)();
    let at = if result.ok() { (request.address)() } else { 0 };
    if result.ok() && registry::claim_slab(entry, at) {
        forget_block(at);
    }
    let served = if result.ok() { entry.serve_inside(&mut begun, at, bytes, moment) } else { Err(()) };
    let stale = match served {
        Ok(stale) => stale,
        Err(()) => match request.end_by_reading(begun, result, at, moment) {
            Ok(stale) => stale,
            Err(result) => return result,
        },
    };
    deferred_frees::came_again(at);
    // An earlier block at this address was freed by a call that no hook saw.
    if let Some(stale) = stale {
        note_freed(request.entry, stale, at, None, None);
    }
    result
}

impl StreamOrderedRequest<'_> {
    /// Ends a request by a reading of the pool's size. Returns the bytes of an earlier record at the block's address.
    ///
    /// # Errors
    /// The program's answer: the driver refused the request, it does not fit, or another pool had to serve it.
    #[inline(never)]
    fn end_by_reading(
        &mut self,
        begun: PoolAllocation,
        result: CUresult,
        at: u64,
        moment: QuietEpoch,
    ) -> Result<Option<u64>, CUresult> {
        let (entry, bytes, PoolAllocation { call, pledge }) = (self.entry, self.bytes, begun);
        let inside = pledge.is_none();
        let is_of_another = result.ok() && !self.named && registry::has_unseen_current(entry);
        let granted = result.ok() && !is_of_another;
        let change = entry.follow_reading(
            false,
            Some(moment),
            pledge,
            &|account, reading| account.end_request(call, granted, reading),
            &|state, change| {
                if granted {
                    change.grew.into_iter().for_each(|by| state.holes.note_growth(at, bytes, by));
                    state.holes.note_placed(at, bytes);
                }
                state.last_request = shrinking::calls_begun();
            },
        );
        // Unless a shrinking call may have taken the room away meanwhile.
        if inside && change.lack > 0 && moment.is_still_quiet() {
            entry.lock_state().surprised = true;
        }
        let fits = entry.charge_growth(change.lack);
        if is_of_another {
            (self.undo)(at);
            return Err(self.repeat());
        }
        if !result.ok() {
            return Err(result);
        }
        change.grew.into_iter().for_each(|by| entry.learn_step(bytes, by));
        if fits {
            return Ok(entry.lock_state().blocks.insert(at, bytes));
        }
        let free = entry.lock_state().begin_free(at, bytes);
        (self.undo)(at);
        note_freed(entry, bytes, at, Some(self.order), Some(free));
        // If the stream has not reached the free, synchronising calls try again.
        entry.trim_and_measure();
        Err(entry.device.refuse_request())
    }

    /// Repeats a request that the driver served from another pool than the one that it was charged to.
    #[cold]
    fn repeat(&mut self) -> CUresult {
        let Some(entry) = current_pool(self.entry.device) else { return (self.real)() };
        entry.trim_and_measure();
        let Self { bytes, order, address, undo, .. } = *self;
        allocate(StreamOrderedRequest { entry: &entry, named: true, bytes, order, real: self.real, address, undo })
    }
}

/// Frees a block of a pool in the order of the stream `order`; without a stream, at once. Returns `None` if no pool has
/// a block at the address.
#[inline(always)] // hot, and it has one caller
pub fn free(address: u64, order: Option<StreamId>, real: DriverCall<'_>) -> Option<CUresult> {
    let entry = registry::find_pool(address)?;
    // Before the driver is called: it may give the memory out again before it has answered.
    let (free, slot) = entry.begin_free(address, order.is_some())?;
    let result = real();
    match (slot, order) {
        (Some(slot), Some(order)) if result.ok() => entry.record_free(slot, order.stream_key()),
        _ if result.ok() => note_freed(&entry, free.bytes(), address, order, Some(free)),
        _ => entry.lock_state().cancel_free(free, slot),
    }
    Some(result)
}

/// Records a free. `leaving`: the program's free as begun in `holes`. Without it, the block vanished, so all knowledge
/// of room in the pool is discarded.
fn note_freed(entry: &PoolRef, bytes: u64, address: u64, order: Option<StreamId>, leaving: Option<PendingFree>) {
    // The destruction of a pool needs to know which streams have not reached a free.
    let stands = order
        .filter(|_| entry.made)
        .map(|order| (order.location(), (deferred_frees::next_free_number(), contexts::epoch())));
    let (may_shrink, gone, _under_way) = {
        let mut state = entry.lock_state();
        let gone = entry.gone.load(SeqCst);
        let mut under_way = None;
        match leaving {
            Some(leaving) => {
                if gone || order.is_none() {
                    under_way = in_flight_frees::enter_free(); // until the charge has followed
                }
                state.finish_free(leaving, order.map(StreamId::stream_key));
            }
            None => {
                state.account.note_freed(bytes);
                state.holes.forget_all();
            }
        }
        if let Some((place, free)) = stands {
            state.note_unreached(place, free);
        }
        (state.account.may_shrink(), gone, under_way)
    };
    if may_shrink || stands.is_some() {
        expect_shrinking();
    }
    if gone {
        deferred_frees::defer_orphan(address, entry, order);
    } else if order.is_none() {
        entry.measure_held();
    }
}

/// Handles an address that the driver gave out as other memory: it no longer belongs to a pool.
///
/// # Cost
/// One load where no pool is charged, two where no pool ever had a block nearby.
#[inline]
pub fn came_again(address: u64) {
    if any() {
        forget_block(address);
    }
}

/// Removes a record of the address: its block was freed by a call that no hook saw.
#[inline(never)]
fn forget_block(address: u64) {
    let Some(entry) = registry::find_pool(address) else { return };
    let stale = entry.lock_state().blocks.take(address);
    if let Some(stale) = stale {
        note_freed(&entry, stale, address, None, None);
    }
}

/// Launches or uploads a graph in the order of a stream (`None`: unknown stream). `parts` are the bytes it takes:
/// those that the graph frees itself, and those that outlive the launch. `backing`: the memory backing of its last
/// launch, see [`GraphBacking`]; replaced by that of this launch.
pub fn launch(
    entry: &PoolEntry,
    parts: [u64; 2],
    order: Option<StreamId>,
    backing: &mut Option<GraphBacking>,
    real: DriverCall<'_>,
) -> CUresult {
    entry.measure_held();
    let stream = order.map(StreamId::stream_key);
    let before = entry.graph_backing(stream);
    let PoolAllocation { call, pledge } =
        match entry.begin_launch(parts, backing.filter(|backing| Some(*backing) == before)) {
            Ok(begun) => begun,
            Err(refused) => return refused,
        };
    let backed = pledge.is_none();
    let result = real();
    let least: Option<u64> = parts.into_iter().map(pool::least_growth).sum();
    let taken = Cell::new(*backing);
    let change = entry.follow_reading(
        true,
        None, // room inside graph memory is not known
        pledge,
        // The driver reports how much of graph memory is live; no call frees it.
        &|account, reading| account.end_request(call, false, reading),
        &|state, change| {
            state.last_request = shrinking::calls_begun();
            if result.ok() && !backed {
                // If graph memory grew by less than the launch needs, the launch may have taken memory from other
                // graphs.
                let all_anew = least.is_some_and(|least| change.grew.is_some_and(|by| by >= least));
                taken.set(if all_anew { before } else { entry.others_may_have_lost(stream) });
            }
        },
    );
    *backing = taken.get();
    if let (Some(by), [part, 0] | [0, part]) = (change.grew, parts) {
        entry.learn_step(part, by);
    }
    // A launch cannot be undone, so memory that does not fit is charged all the same.
    entry.charge_growth(change.lack);
    result
}

/// Destroys a pool. Gives back its unused memory first, because afterwards the driver cannot be asked.
pub fn destroy_pool(pool: CUmemoryPool, real: DriverCall<'_>) -> CUresult {
    let pool = pool.0 as usize;
    let Some(Some(entry)) = registry::find_noted(pool) else {
        let imported = shared::take_imported(pool);
        let result = real();
        if result.ok() {
            registry::forget_handle(pool, None);
        } else if let Some(identity) = imported {
            shared::put_back(pool, identity);
        }
        return result;
    };
    if !entry.made {
        return real();
    }
    entry.trim_and_measure();
    // The charge must not end before all pending frees are recorded. From `say_gone` on no other thread uses this
    // handle.
    entry.await_streams(1);
    entry.say_gone();
    let result = real();
    if !result.ok() {
        entry.gone.store(false, SeqCst);
        entry.awaited.fetch_sub(1, SeqCst);
        return result;
    }
    registry::forget_handle(pool, Some(&entry));
    let unreached = core::mem::take(&mut entry.lock_state().unreached);
    deferred_frees::defer_orphans(&entry, unreached);
    result
}

/// Begins a call in which pools may give memory back to the driver, if there are any pools.
///
/// # Cost
/// One load where there is no pool; else one atomic addition, and another when the call ends.
#[inline]
pub fn begin_shrinking() -> Option<ShrinkingCall> {
    any().then(shrinking::begin_shrinking)
}

/// Whether the end of a stream must be noted.
///
/// # Cost
/// Reads two atomics.
#[inline]
pub fn any_in_streams() -> bool {
    any() || deferred_frees::is_doubtful()
}

/// Handles a stream that is about to be destroyed and whose handle may be reused. The frees it has not reached then
/// count as done only after a wait for the whole context.
pub fn forget_stream(order: StreamId) {
    let key = order.stream_key();
    each_pool(&mut |entry| {
        let mut state = entry.lock_state();
        state.holes.forget_stream(key);
        let of_it: Vec<StreamLocation> = state.unreached.keys().copied().filter(|place| place.key == key).collect();
        for place in of_it {
            if let Some(free) = state.unreached.remove(&place) {
                state.note_unreached(place.without_stream(), free);
            }
        }
    });
    deferred_frees::forget_stream(key);
}

/// The object of a wait by the program.
#[derive(Clone, Copy)]
pub enum WaitedFor {
    /// An event, whose stream is unknown.
    Event,
    /// The program waited for everything in a stream.
    Stream(StreamId),
    /// Everything in the current context.
    Current,
    /// The program waited for everything in a context.
    Context(CUcontext),
}

impl WaitedFor {
    fn to_streams(self) -> AwaitedStreams {
        let current = || streams::current().0 as usize;
        match self {
            WaitedFor::Event => AwaitedStreams::Unknown,
            WaitedFor::Stream(order) => AwaitedStreams::One(order.stream_key(), order.is_special().then(current)),
            WaitedFor::Context(context) if !context.is_null() => AwaitedStreams::Context(context.0 as usize),
            WaitedFor::Current | WaitedFor::Context(_) => AwaitedStreams::Context(current()),
        }
    }
}

/// Handles the end of a wait, in which pools may have given memory back. `since` and `announced` are the results of
/// [`deferred_frees::last_free_number`] and [`begin_shrinking`] from before the wait.
///
/// # Cost
/// Two questions to the driver for each pool that holds unused memory.
pub fn note_synchronised(waited_for: WaitedFor, since: u64, announced: Option<&ShrinkingCall>) {
    // Any slack found from here on sets the flag again.
    shrink_flag::expect_none();
    let arrived = AwaitedWork { which: waited_for.to_streams(), since };
    each_pool(&mut |entry| {
        let mut state = entry.lock_state();
        match waited_for {
            WaitedFor::Stream(order) => state.holes.pass_frees(Some(order.stream_key())),
            WaitedFor::Current | WaitedFor::Context(_) => state.holes.pass_frees(None),
            WaitedFor::Event => {}
        }
        state.unreached.retain(|place, (stamp, _)| !arrived.covers(*place, *stamp));
        // A free in flight may have set the flag before this call cleared it.
        if !state.unreached.is_empty() || state.frees_in_flight > 0 {
            expect_shrinking();
        }
        if announced.is_none() {
            state.holes.forget_all(); // the first pool appeared during the call
        }
        let may_shrink = state.account.may_shrink();
        let may_trim = state.account.held() > entry.threshold.load(Relaxed);
        drop(state);
        if may_shrink {
            // A pool that has shrunk shows it. One that has not may have shrunk and grown by the same amount, so its
            // known room is discarded.
            entry.measure_after(&|state| may_trim && !announced.is_some_and(|call| state.is_unused_since(call)));
        }
    });
    if deferred_frees::finish_passed(Some(&arrived)) {
        expect_shrinking();
    }
    // Memory that could not be taken back at once when unforeseen growth did not fit.
    for device in table::all().filter(|device| !device.fits_limit()) {
        give_back(device);
    }
}

/// Gives back the unused memory of pools and graph memory on the device. Returns whether that lowered the charge.
#[cold]
pub fn give_back(device: &Device) -> bool {
    let used = || device.ledger.membership().map_or(0, |joined| joined.joined_member().used_bytes());
    let before = used();
    let mut came = 0;
    streams::without_captures(|| {
        each_pool(&mut |entry| {
            if entry.device.index == device.index {
                came += entry.trim_and_measure();
            }
        });
    });
    deferred_frees::resolve_all();
    came > 0 || used() < before
}

/// Updates the charges of a device's pools to the driver's numbers and ends deferred frees that are done. Returns
/// whether a request is in flight or a deferred free is left without a marker.
///
/// # Cost
/// Two loads where no pool is charged and no free is deferred; else two questions to the driver for each pool that
/// may have shrunk.
pub fn settle_device(device: &Device) -> bool {
    let mut busy = false;
    if any() {
        each_pool(&mut |entry| {
            if entry.device.index != device.index {
                return;
            }
            let may_shrink = {
                let state = entry.lock_state();
                busy |= state.account.is_busy();
                state.account.may_shrink()
            };
            if may_shrink {
                entry.measure_held();
            }
        });
    }
    deferred_frees::look_again();
    busy || deferred_frees::is_doubtful()
}

/// Number of requests and frees that pools have seen, and whether no free of device memory is in flight. A pool that
/// gives memory back and takes it again leaves no other trace than the number.
pub fn activity() -> (u64, bool) {
    let mut activity = (registry::ended_requests(), true);
    each_pool(&mut |entry| {
        let state = entry.lock_state();
        activity = (activity.0.wrapping_add(state.requests), activity.1 && state.frees_in_flight == 0);
    });
    // Last: a free that a pool no longer counts, and whose charge has not followed, is among these.
    (activity.0, activity.1 && in_flight_frees::is_now())
}

/// Measures a pool again after a trim, or after its threshold was set.
pub fn remeasure_pool(pool: CUmemoryPool, threshold: Option<u64>) {
    if let Some(entry) = registry::find_noted(pool.0 as usize).flatten() {
        match threshold {
            Some(threshold) => entry.threshold.store(threshold, Relaxed),
            None => entry.lock_state().holes.note_trim(),
        }
        entry.measure_held();
    }
}

/// Measures graph memory again, if there is any, after a free of an address that has no record.
pub fn graphs_changed() {
    if registry::any_graphs() {
        each_pool(&mut |entry| {
            if matches!(entry.source, PoolSource::Graph(_)) {
                entry.measure_held();
            }
        });
    }
}

/// Handles a trim of a device's graph memory.
pub fn graphs_trimmed(device: &'static Device) {
    if registry::any_graphs()
        && let Some(entry) = graph_memory(device)
    {
        _ = entry.others_may_have_lost(None);
        entry.measure_held();
    }
}

/// Handles the end of a context and of the allocations made in it.
#[cold]
pub fn context_ended() {
    let now = contexts::epoch();
    deferred_frees::context_ended();
    each_pool(&mut |entry| {
        entry.measure_held();
        let mut state = entry.lock_state();
        state.account.forget_allocations();
        // Blocks ended without a free.
        state.holes.forget_all();
        state.unreached.retain(|place, (_, moment)| {
            let stays = !contexts::has_ended(place.context, *moment);
            *moment = now.max(*moment);
            stays
        });
        // Memory that the driver took away is never freed by the program, and its addresses may be reused, so its
        // records are removed.
        if state.account.live() == 0 && !state.account.is_busy() {
            state.blocks.clear();
        }
    });
}

/// Clears the parent's pools in a forked child.
pub fn reset_after_fork() {
    shared::reset_after_fork();
    shrinking::reset_after_fork();
}

#[cfg(test)]
mod tests;
