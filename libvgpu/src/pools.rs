//! What a pool of device memory, or graph memory, is charged: what it holds, by vgpu-core's account and the driver's own
//! number.
//!
//! A pool is watched from its first allocation. A request that fits inside is passed on; one that does not reserves what
//! the pool is expected to grow by. Afterwards the driver is asked what the pool holds now, and the charge follows; it is
//! not asked if the address shows that the request was served from inside. Nor is it after frees in stream order, only
//! after frees at once, trims and synchronising calls ([`synchronised`]), since the driver gives memory back in those
//! (`shrinking`). What a pool keeps beyond what is in use can be given back: [`give_back`] does so before anything is
//! refused for memory.
//!
//! Graph memory is a pool without a handle, one per device; what may be launched is `graphs`. Frees whose moment only
//! the driver knows, and pools that were destroyed with allocations alive, are `departing`. Which pools there are is
//! `registry`, those that several processes have are `common`. Stream capture: an allocation in a capturing stream
//! becomes a node of a graph and takes nothing, so the hook passes it on without coming here.

mod common;
mod entry;
mod registry;
mod shrinking;

pub use common::{exported, imported, share_of_imported};
pub use entry::{Backing, Entry, Source};
pub use registry::{any, created, current, graph_memory, of_handle};
pub use shrinking::Shrinking;

use crate::departing::{Arrived, Which};
use crate::device::{self, Device};
use crate::driver::Call;
use crate::holdings::{Holding, POOLED};
use crate::order::{self, Order, Place};
use crate::{context, departing, enforce, graphs, share};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use entry::Begun;
use registry::all;
use shim_sys::cuda::*;
use std::sync::Arc;
use vgpu_core::pool::{self, Leaving};

/// Whether a pool, or something that departs, may shrink at the next synchronisation.
static MAY_SHRINK: AtomicBool = AtomicBool::new(false);
/// See [`requests`].
static REQUESTS: AtomicU64 = AtomicU64::new(0);

/// Synchronising calls are to look at pools.
fn expect_shrinking() {
    if !MAY_SHRINK.load(Relaxed) {
        MAY_SHRINK.store(true, Release);
    }
}

/// Allocates from a pool: `real` asks the driver, `address` tells where, `undo` frees it again.
pub fn allocate(
    entry: &Arc<Entry>,
    bytes: u64,
    order: Order,
    real: Call<'_>,
    address: &dyn Fn() -> u64,
    undo: &dyn Fn(u64),
) -> CUresult {
    REQUESTS.fetch_add(1, SeqCst);
    let (moment, _growing) = (shrinking::now(), shrinking::growing());
    let Begun { call, mut pledge } = match entry.begin(bytes, order.key()) {
        Ok(begun) => begun,
        Err(refused) => return refused,
    };
    let inside = pledge.is_none();
    let result = real();
    let at = if result.ok() { address() } else { 0 };
    if !(result.ok() && entry.served_inside(call, &mut pledge, at, bytes, moment)) {
        let change = entry.follow(
            false,
            Some(moment),
            pledge,
            |account, reading| account.end(call, result.ok(), reading),
            |holes, change| {
                if result.ok() {
                    change.grew.into_iter().for_each(|by| holes.grew(at, bytes, by));
                    holes.placed(at, bytes);
                }
            },
        );
        // Unless its room may have been given back while it was under way.
        if inside && change.lack > 0 && moment.lasts() {
            entry.state.lock().surprised = true;
        }
        let fits = entry.cover(change.lack);
        if !result.ok() {
            return result;
        }
        change.grew.into_iter().for_each(|by| entry.learn(bytes, by));
        if !fits {
            let leaving = entry.state.lock().holes.leaving(at, bytes);
            undo(at);
            {
                let mut state = entry.state.lock();
                state.holes.freed(leaving, Some(order.key()));
                state.account.freed(bytes);
            }
            // If the stream has not come to the free, synchronising calls try again.
            entry.trim();
            return entry.device.refused();
        }
    }
    departing::came_again(at);
    entry.outstanding.fetch_add(1, Relaxed);
    let holding = Holding { bytes, device: entry.device.index, context: entry.id };
    if let Some(stale) = POOLED.put(at, holding) {
        // It was freed behind our back.
        freed(stale, at, None, None);
    }
    result
}

/// Frees memory of a pool, which the caller has taken out of [`POOLED`]; without an order, at once.
pub fn free(holding: Holding, address: u64, order: Option<Order>, real: Call<'_>) -> CUresult {
    REQUESTS.fetch_add(1, SeqCst);
    let entry = registry::numbered(holding.context);
    // Before the driver is asked, which may give it out again before it has answered.
    let leaving = entry.as_ref().map(|entry| entry.state.lock().holes.leaving(address, holding.bytes));
    let result = real();
    if result.ok() {
        freed(holding, address, order, leaving);
    } else {
        if let Some((entry, leaving)) = entry.zip(leaving) {
            entry.state.lock().holes.stays(leaving);
        }
        POOLED.put(address, holding);
    }
    result
}

/// `leaving`: the program freed it; without, it has gone, and what else has nobody knows.
fn freed(holding: Holding, address: u64, order: Option<Order>, leaving: Option<Leaving>) {
    let Some(entry) = registry::numbered(holding.context) else { return };
    // Who destroys it must know which streams have still to come to a free.
    let stands = order.filter(|_| entry.made).map(|order| (order.place(), (departing::stamp(), context::moment())));
    let may_shrink = {
        let mut state = entry.state.lock();
        state.account.freed(holding.bytes);
        match leaving {
            Some(leaving) => state.holes.freed(leaving, order.map(Order::key)),
            None => state.holes.forget(),
        }
        if let Some((place, free)) = stands {
            state.unreached.insert(place, free);
        }
        state.account.may_shrink()
    };
    if may_shrink || stands.is_some() {
        expect_shrinking();
    }
    entry.outstanding.fetch_sub(1, AcqRel);
    if entry.gone.load(SeqCst) {
        departing::orphan(address, &entry, order);
    } else if order.is_none() {
        entry.measure();
    }
}

/// The driver gave out this address as other memory: it is a pool's no more.
///
/// # Cost
/// One load where no pool is charged.
#[inline]
pub fn came_again(address: u64) {
    if any()
        && let Some(stale) = POOLED.take(address)
    {
        freed(stale, address, None, None);
    }
}

/// Launches or uploads a graph in the order of a stream (`None`: of one that nobody knows). It takes these parts of the
/// device's memory: what it frees itself, and what outlives the launch. `backing`: what it took before, see [`Backing`];
/// it says afterwards what it has taken now.
pub fn launch(
    entry: &Arc<Entry>,
    parts: [u64; 2],
    order: Option<Order>,
    backing: &mut Option<Backing>,
    real: Call<'_>,
) -> CUresult {
    REQUESTS.fetch_add(1, SeqCst);
    entry.measure();
    let stream = order.map(Order::key);
    let before = entry.backing(stream);
    let Begun { call, pledge } = match entry.begin_launch(parts, backing.filter(|backing| Some(*backing) == before)) {
        Ok(begun) => begun,
        Err(refused) => return refused,
    };
    let backed = pledge.is_none();
    let result = real();
    let least: Option<u64> = parts.into_iter().map(pool::least_growth).sum();
    let taken = Cell::new(*backing);
    let change = entry.follow(
        true,
        None, // no room is known of graph memory
        pledge,
        // What is live of it the driver says; there is no call that frees it.
        |account, reading| account.end(call, false, reading),
        |_, change| {
            if result.ok() && !backed {
                // What it did not grow by it may have taken from others.
                let all_anew = least.is_some_and(|least| change.grew.is_some_and(|by| by >= least));
                taken.set(if all_anew { before } else { entry.others_may_have_lost(stream) });
            }
        },
    );
    *backing = taken.get();
    if let (Some(by), [part, 0] | [0, part]) = (change.grew, parts) {
        entry.learn(part, by);
    }
    // What was launched cannot be taken back; what does not fit is charged all the same.
    entry.cover(change.lack);
    result
}

/// Destroys a pool. What is not in use is given back before: afterwards nobody can ask.
pub fn destroy(pool: CUmemoryPool, real: Call<'_>) -> CUresult {
    let pool = pool.0 as usize;
    let Some(Some(entry)) = registry::noted(pool) else {
        let imported = common::take_imported(pool);
        let result = real();
        if result.ok() {
            registry::forget_handle(pool, None);
        } else if let Some(identity) = imported {
            common::put_back(pool, identity);
        }
        return result;
    };
    if !entry.made {
        return real();
    }
    entry.trim();
    // From here on no other thread asks with this handle.
    // Not before all that is on its way is known.
    entry.awaits(1);
    entry.say_gone();
    let result = real();
    if !result.ok() {
        entry.gone.store(false, SeqCst);
        entry.awaited.fetch_sub(1, SeqCst);
        return result;
    }
    registry::forget_handle(pool, Some(&entry));
    let unreached = core::mem::take(&mut entry.state.lock().unreached);
    departing::orphans(&entry, unreached);
    result
}

/// A stream has come to its frees of a destroyed pool's memory. For `departing`.
pub fn awaited(entry: &Arc<Entry>) {
    entry.awaited.fetch_sub(1, SeqCst);
    ended(entry);
}

/// Memory of a destroyed pool is gone; with the last of it its charge ends. For `departing`.
pub fn ended(entry: &Arc<Entry>) {
    if entry.outstanding.load(Acquire) > 0 || entry.awaited.load(SeqCst) > 0 {
        return;
    }
    let (bytes, share) = {
        let mut state = entry.state.lock();
        if core::mem::replace(&mut state.closed, true) {
            return; // another thread was faster
        }
        // What is pledged for a call under way goes back with the call.
        let bytes = state.account.charged();
        state.account = pool::Pool::default();
        (bytes, state.share)
    };
    match share {
        // What importers hold of it stays with them.
        Some(share) => share::let_go(share),
        None => entry.release(None, bytes),
    }
    registry::forget_entry(entry);
}

/// A call begins in which pools may give memory back, if there are any.
///
/// # Cost
/// One load where there is no pool; else one atomic addition, and one when it ends.
#[inline]
pub fn shrinking() -> Option<Shrinking> {
    any().then(shrinking::begin)
}

/// The program waited for something, and pools may have given memory back: what [`shrinking`] and
/// [`departing::newest`] said before.
///
/// # Cost
/// One branch where no pool has more than what is in use; else two questions to the driver for each that has.
#[inline]
pub fn synchronised(waited_for: Waited, since: u64, announced: Option<Shrinking>) {
    if MAY_SHRINK.load(Acquire) {
        look_again(waited_for, since, announced.as_ref());
    }
}

/// A stream is about to be destroyed, and its handle may come again as another's: what it has still to come to ends with
/// a wait for the whole context only.
///
/// # Cost
/// Two loads where nothing is charged as a pool and nothing departs.
#[inline]
pub fn stream_ending(order: Order) {
    if any() || departing::is_doubtful() {
        forget_stream(order);
    }
}

#[cold]
fn forget_stream(order: Order) {
    if order.is_special() || enforce::enforced() != Ok(true) {
        return;
    }
    let key = order.key();
    for entry in all() {
        let mut state = entry.state.lock();
        state.holes.nobodys(key);
        let of_it: Vec<Place> = state.unreached.keys().copied().filter(|place| place.key == key).collect();
        for place in of_it {
            if let Some((stamp, moment)) = state.unreached.remove(&place) {
                let all = state.unreached.or_default(place.nobodys());
                *all = (stamp.max(all.0), moment.max(all.1));
            }
        }
    }
    departing::forget_stream(key);
}

/// What the program waited for.
#[derive(Clone, Copy)]
pub enum Waited {
    /// An event, which may stand anywhere.
    Event,
    /// Everything in a stream.
    Stream(Order),
    /// Everything in the current context.
    Current,
    /// Everything in a context.
    Context(CUcontext),
}

impl Waited {
    fn which(self) -> Which {
        let current = || order::current().0 as usize;
        match self {
            Waited::Event => Which::Unknown,
            Waited::Stream(order) => Which::One(order.key(), order.is_special().then(current)),
            Waited::Context(context) if !context.is_null() => Which::Context(context.0 as usize),
            Waited::Current | Waited::Context(_) => Which::Context(current()),
        }
    }
}

#[cold]
fn look_again(waited_for: Waited, since: u64, announced: Option<&Shrinking>) {
    // A forked child has no pools.
    if enforce::enforced() != Ok(true) {
        return;
    }
    // Whoever finds slack from now on says so again.
    MAY_SHRINK.store(false, Release);
    let arrived = Arrived { which: waited_for.which(), since };
    for entry in all() {
        let mut state = entry.state.lock();
        match waited_for {
            Waited::Stream(order) => state.holes.arrived(Some(order.key())),
            Waited::Current | Waited::Context(_) => state.holes.arrived(None),
            Waited::Event => {}
        }
        state.unreached.retain(|place, (stamp, _)| !arrived.at(*place, *stamp));
        if !state.unreached.is_empty() {
            expect_shrinking();
        }
        if announced.is_none() {
            state.holes.forget(); // the first pool came while it was under way
        }
        let may_shrink = state.account.may_shrink();
        let may_trim = state.account.held() > entry.threshold.load(Relaxed);
        drop(state);
        if may_shrink {
            // Where the pool has shrunk, that is seen. Else it may have, and grown by as much.
            entry.measure_after(|| may_trim && !announced.is_some_and(Shrinking::nothing_grew));
        }
    }
    if departing::resolve(Some(&arrived)) {
        MAY_SHRINK.store(true, Release);
    }
    // What could not be taken back at once, when growth that nobody foresaw did not fit.
    for device in device::all().filter(|device| !device.fits()) {
        give_back(device);
    }
}

/// Something departs: synchronising calls are to look for its end.
pub fn expect_departure() {
    expect_shrinking();
}

/// Gives back what pools and graph memory on the device hold and do not use; whether anything came of it.
#[cold]
pub fn give_back(device: &Device) -> bool {
    let used = || device.ledger.joined().map_or(0, |joined| joined.member().used());
    let before = used();
    let mut came = 0;
    order::quietly(|| {
        for entry in all() {
            if entry.device.index == device.index {
                came += entry.trim();
            }
        }
    });
    departing::resolve_all();
    came > 0 || used() < before
}

/// Brings the charges of a device's pools up to what the driver says, and ends what has departed; whether anything is
/// left of which nobody knows whether the device still has it, or under way.
///
/// # Cost
/// Two loads where nothing is charged as a pool and nothing departs; else two questions to the driver for each pool that
/// may have shrunk.
pub fn settle(device: &Device) -> bool {
    let mut busy = false;
    if any() {
        for entry in all().into_iter().filter(|entry| entry.device.index == device.index) {
            let may_shrink = {
                let state = entry.state.lock();
                busy |= state.account.is_busy();
                state.account.may_shrink()
            };
            if may_shrink {
                entry.measure();
            }
        }
    }
    departing::look_again();
    busy || departing::is_doubtful()
}

/// How many requests and frees pools have seen: what one gives back to the driver and takes again leaves no other trace.
pub fn requests() -> u64 {
    REQUESTS.load(SeqCst)
}

/// Asks again after a trim, or after a threshold was set.
pub fn changed(pool: CUmemoryPool, threshold: Option<u64>) {
    if let Some(entry) = registry::noted(pool.0 as usize).flatten() {
        match threshold {
            Some(threshold) => entry.threshold.store(threshold, Relaxed),
            None => entry.state.lock().holes.trimmed(),
        }
        entry.measure();
    }
}

/// Asks again what graph memory holds, where there is any: after a free of an address that nobody noted.
pub fn graphs_changed() {
    if registry::any_graphs() {
        for entry in all() {
            if matches!(entry.source, Source::Graph(_)) {
                entry.measure();
            }
        }
    }
}

/// A device's graph memory was trimmed.
pub fn graphs_trimmed(device: &'static Device) {
    if registry::any_graphs()
        && let Some(entry) = graph_memory(device)
    {
        _ = entry.others_may_have_lost(None);
        entry.measure();
    }
}

/// A context ended, and what was allocated in it.
#[cold]
pub fn context_ended() {
    let now = context::moment();
    departing::context_ended();
    for entry in all() {
        entry.measure();
        let empty = {
            let mut state = entry.state.lock();
            state.account.emptied();
            // Blocks went that nobody has freed.
            state.holes.forget();
            state.unreached.retain(|place, (_, moment)| {
                let stays = !context::has_ended(place.context, *moment);
                *moment = now.max(*moment);
                stays
            });
            state.account.live() == 0 && !state.account.is_busy()
        };
        // What the driver has taken away nobody frees: its addresses may come again as somebody else's.
        if empty {
            let taken = POOLED.take_of_context(CUcontext(core::ptr::without_provenance_mut(entry.id)));
            entry.outstanding.fetch_sub(taken.len() as u64, AcqRel);
        }
    }
}

/// Forgets the parent's pools, in a forked child.
pub fn forget() {
    registry::forget();
    common::forget();
    shrinking::forget();
    MAY_SHRINK.store(false, Relaxed);
    departing::forget();
    graphs::forget();
}

#[cfg(test)]
mod tests;
