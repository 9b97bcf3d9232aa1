//! The list of known pools, by the handle that the driver knows, and by the addresses of their blocks.

use super::pool_entry::{PoolEntry, PoolRef, PoolSource};
use super::shrink_flag;
use crate::device::table::{self, Device, MAX_DEVICES};
use crate::driver::own;
use crate::ffi::lock::Lock;
use crate::ffi::sorted_map::SortedMap;
use crate::ledger::held_shares;
use crate::process::device_count;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use shim_sys::cuda::*;
use vgpu_core::memory::pool::{self, POOL_PAGE_BYTES};

struct PoolRegistry {
    /// `None`: known, but not charged here: host memory, on a device without limits, or another process's.
    by_source: SortedMap<PoolSource, Option<PoolRef>>,
    by_id: SortedMap<u32, PoolRef>,
}

impl PoolRegistry {
    const NO_POOLS: PoolRegistry = PoolRegistry { by_source: SortedMap::new(), by_id: SortedMap::new() };
}

static POOL_REGISTRY: Lock<PoolRegistry> = Lock::new(PoolRegistry::NO_POOLS);
/// The entries of the devices' default pools, by device number. They are leaked, so that the usual request finds its
/// pool without a lock.
static DEFAULT_POOLS: [AtomicPtr<PoolEntry>; MAX_DEVICES] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_DEVICES];
/// Number of the newest pool. A forked child goes on counting: the numbers that its parent left in [`SLAB_POOLS`] must
/// stay without a pool.
static LAST_POOL: AtomicU32 = AtomicU32::new(0);
/// The pool that ever had a block in a slab of 2 MiB, by the slab's number; 0: none; [`SEVERAL_POOLS`]. So a look-up
/// needs no search. Written under the registry's lock.
static SLAB_POOLS: [AtomicU32; SLAB_SLOTS] = [const { AtomicU32::new(0) }; SLAB_SLOTS];
/// Slabs further apart share a slot. If these belong to several pools, their blocks take a search.
const SLAB_SLOTS: usize = 1 << 14;
/// Each pool may have blocks in the slab.
const SEVERAL_POOLS: u32 = u32::MAX;
/// Whether the program ever created a pool. Until then each device serves requests from its default pool: no other
/// pool can be made its current one, not even one that was imported. [`has_unseen_current`] finds a pool that was
/// created in a call that no hook saw.
static HAS_CREATED: AtomicBool = AtomicBool::new(false);
static POOL_WORDS: PoolWords = PoolWords { charged: AtomicUsize::new(0), usual: AtomicPtr::new(core::ptr::null_mut()) };

/// The words that each request and each free reads, in one cache line.
#[repr(align(64))]
struct PoolWords {
    /// Number of memory pools that are charged.
    charged: AtomicUsize,
    /// The entry that serves every request without a pool: the default pool of the driver's one device, until the
    /// program creates a pool.
    usual: AtomicPtr<PoolEntry>,
}
/// Number of charged pools that are graph memory.
static GRAPH_POOLS: AtomicUsize = AtomicUsize::new(0);
/// The requests of pools whose charge has ended.
static ENDED_REQUESTS: AtomicU64 = AtomicU64::new(0);

/// The default pool of the device with this number, if it is charged.
fn default_pool(device: usize) -> Option<&'static PoolEntry> {
    // SAFETY: null, or a leaked entry, to which there are only shared references.
    unsafe { DEFAULT_POOLS.get(device)?.load(Acquire).as_ref() }
}

fn is_default_pool(device: &Device, pool: usize) -> bool {
    let mut found = CUmemoryPool(core::ptr::null_mut());
    let ask = own::cuDeviceGetDefaultMemPool();
    // SAFETY: a pointer to a local.
    ask.is_some_and(|ask| unsafe { ask(&raw mut found, device.cuda()) }.ok()) && found.0 as usize == pool
}

/// The pool behind a source, if it is charged. A new one is recorded for its `home` device. If the device is unknown,
/// nothing is recorded, because a later caller may know it.
fn pool_entry(source: PoolSource, home: &dyn Fn() -> Option<&'static Device>) -> Option<PoolRef> {
    if let Some(known) = POOL_REGISTRY.lock().by_source.get(&source) {
        return known.clone();
    }
    note_pool(source, None, Some(home()?))
}

/// Records a new pool. `made`: its maximum size in bytes, if the program created it. Without a device it is not
/// charged.
fn note_pool(source: PoolSource, made: Option<u64>, device: Option<&'static Device>) -> Option<PoolRef> {
    let threshold = device.map_or(0, |_| source.read_threshold());
    let default_of = match source {
        PoolSource::Pool(pool) => device.filter(|device| made.is_none() && is_default_pool(device, pool)),
        PoolSource::Graph(_) => None,
    };
    // Any other pool was created by the program, even if no hook saw that.
    let is_made = matches!(source, PoolSource::Pool(_)) && default_of.is_none();
    let made = made.or(is_made.then_some(u64::MAX));
    let mut registry = POOL_REGISTRY.lock();
    if let Some(known) = registry.by_source.get(&source) {
        return known.clone(); // another thread was faster
    }
    let id = LAST_POOL.fetch_add(1, Relaxed) + 1;
    let fresh = device.map(|device| PoolRef::new(PoolEntry::new(device, id, source, made, threshold)));
    if let Some(fresh) = &fresh {
        registry.by_id.insert(id, fresh.clone());
        POOL_WORDS.charged.store(registry.by_id.len(), Release);
        GRAPH_POOLS.fetch_add(usize::from(matches!(source, PoolSource::Graph(_))), Relaxed);
    }
    if let (Some(PoolRef::Lasting(entry)), Some(device)) = (&fresh, default_of) {
        let entry = core::ptr::from_ref(*entry).cast_mut();
        DEFAULT_POOLS[usize::from(device.index)].store(entry, Release);
        if table::is_only(device) && !HAS_CREATED.load(SeqCst) {
            POOL_WORDS.usual.store(entry, SeqCst);
        }
    }
    registry.by_source.insert(source, fresh.clone());
    fresh
}

/// Records a pool that the program created with at most `max` bytes. `None`: host memory, or a device without limits.
pub fn note_created(pool: usize, device: Option<&'static Device>, max: u64) {
    expect_others();
    // The handle of a destroyed pool may be reused.
    POOL_REGISTRY.lock().by_source.remove(&PoolSource::Pool(pool));
    note_pool(PoolSource::Pool(pool), Some(max), device);
}

/// Records a pool that is not charged here.
pub(super) fn not_ours(pool: usize) {
    POOL_REGISTRY.lock().by_source.insert(PoolSource::Pool(pool), None);
}

/// The pool of that handle, if it is charged. An unrecorded handle is a device's default pool; if it is no device's
/// default, it is taken for a pool of the device `otherwise`.
pub fn of_handle(pool: usize, otherwise: &dyn Fn() -> Option<&'static Device>) -> Option<PoolRef> {
    pool_entry(PoolSource::Pool(pool), &|| table::all().find(|device| is_default_pool(device, pool)).or_else(otherwise))
}

/// The pool that serves the process's stream-ordered allocations on any stream, if there is only one such pool.
///
/// # Cost
/// One load.
#[inline]
pub fn usual_pool() -> Option<PoolRef> {
    // SAFETY: as in `default_pool`.
    unsafe { POOL_WORDS.usual.load(Acquire).as_ref() }.map(PoolRef::Lasting)
}

/// The pool that serves the device's stream-ordered allocations. Once the program created a pool, the driver is asked
/// each time, so that no cached copy can be stale. A device without limits needs no question, because the driver allows
/// only a device's own pool to be current on it.
pub fn current_pool(device: &'static Device) -> Option<PoolRef> {
    let default = default_pool(usize::from(device.index)).map(PoolRef::Lasting);
    if default.is_some() && !HAS_CREATED.load(Acquire) {
        return default;
    }
    let pool = driver_pool(device)?;
    default.filter(|entry| entry.source == PoolSource::Pool(pool)).or_else(|| of_handle(pool, &|| Some(device)))
}

/// The handle of the pool that is the device's current one.
fn driver_pool(device: &Device) -> Option<usize> {
    let mut pool = CUmemoryPool(core::ptr::null_mut());
    // SAFETY: a pointer to a local.
    unsafe { own::cuDeviceGetMemPool()?(&raw mut pool, device.cuda()) }.ok().then_some(pool.0 as usize)
}

/// Whether `entry` was wrongly taken for the device's current pool: that is one that no hook saw when it was created.
/// From then on the driver is asked for each request.
#[cold]
pub(super) fn has_unseen_current(entry: &PoolEntry) -> bool {
    // Once the program created a pool, the driver was asked before the call.
    let is_other = |pool| PoolSource::Pool(pool) != entry.source;
    let unseen = !HAS_CREATED.load(SeqCst) && driver_pool(entry.device).is_some_and(is_other);
    if unseen {
        expect_others();
    }
    unseen
}

/// Makes requests ask for the current pool from now on.
fn expect_others() {
    HAS_CREATED.store(true, SeqCst);
    let _writing = POOL_REGISTRY.lock();
    POOL_WORDS.usual.store(core::ptr::null_mut(), SeqCst);
}

/// The entry of the device's graph memory.
pub fn graph_memory(device: &'static Device) -> Option<PoolRef> {
    pool_entry(PoolSource::Graph(device.cuda()), &|| Some(device))
}

/// Whether anything is charged as a pool.
///
/// # Cost
/// One load.
#[inline]
pub fn any() -> bool {
    POOL_WORDS.charged.load(Acquire) > 0
}

/// Whether graph memory is charged.
pub(super) fn any_graphs() -> bool {
    GRAPH_POOLS.load(Relaxed) > 0
}

/// Calls `act` with every pool that is charged, without the registry's lock.
#[inline(never)]
pub(super) fn each_pool(act: &mut dyn FnMut(&PoolRef)) {
    let all: Vec<PoolRef> = POOL_REGISTRY.lock().by_id.values().cloned().collect();
    all.iter().for_each(act);
}

/// The record of a handle. `None`: no record; `Some(None)`: not charged here.
pub(super) fn find_noted(pool: usize) -> Option<Option<PoolRef>> {
    POOL_REGISTRY.lock().by_source.get(&PoolSource::Pool(pool)).cloned()
}

#[allow(clippy::cast_possible_truncation)] // the remainder of a division
fn slab_pool(address: u64) -> &'static AtomicU32 {
    &SLAB_POOLS[(address / POOL_PAGE_BYTES) as usize % SLAB_SLOTS]
}

/// The only pool that may have a block at `address`.
///
/// # Cost
/// A few loads find a device's default pool. A pool that the program created takes the list's lock too. If several
/// pools had blocks in the same slab, each of their locks is taken.
#[inline(always)] // hot, and it has two callers
pub(super) fn find_pool(address: u64) -> Option<PoolRef> {
    let id = slab_pool(address).load(Acquire);
    if id == 0 {
        return None;
    }
    for device in 0..device_count::registered_devices() {
        if let Some(entry) = default_pool(device).filter(|entry| entry.id == id) {
            return Some(PoolRef::Lasting(entry));
        }
    }
    find_created(id, address)
}

#[inline(never)]
fn find_created(id: u32, address: u64) -> Option<PoolRef> {
    let registry = POOL_REGISTRY.lock();
    let has_block = |entry: &PoolEntry| id == SEVERAL_POOLS && entry.lock_state().blocks.has(address);
    registry.by_id.values().find(|entry| entry.id == id || has_block(entry)).cloned()
}

/// Makes the pool one that [`find_pool`] finds for `address`. Returns true if others may have a record there.
///
/// # Cost
/// One load if the pool alone had blocks in the slab.
#[inline]
pub(super) fn claim_slab(entry: &PoolEntry, address: u64) -> bool {
    slab_pool(address).load(Relaxed) != entry.id && share_slab(entry, address)
}

#[cold]
#[inline(never)]
fn share_slab(entry: &PoolEntry, address: u64) -> bool {
    let registry = POOL_REGISTRY.lock();
    let slab = slab_pool(address);
    let before = slab.load(Relaxed);
    let is_shared = before == SEVERAL_POOLS || (before != entry.id && registry.by_id.get(&before).is_some());
    slab.store(if is_shared { SEVERAL_POOLS } else { entry.id }, Release);
    is_shared
}

/// The number of requests and frees of pools whose charge has ended.
pub(super) fn ended_requests() -> u64 {
    ENDED_REQUESTS.load(SeqCst)
}

/// Removes a pool's handle. With `entry`, only if the handle still belongs to that pool: it may have been reused.
pub(super) fn forget_handle(pool: usize, entry: Option<&PoolEntry>) {
    let mut registry = POOL_REGISTRY.lock();
    let found = registry.by_source.get(&PoolSource::Pool(pool));
    let is_it = |of: &PoolEntry| found.is_some_and(|found| found.as_ref().is_some_and(|found| found.id == of.id));
    if entry.is_none_or(is_it) {
        registry.by_source.remove(&PoolSource::Pool(pool));
    }
}

/// Removes a pool whose charge has ended.
pub(super) fn forget_entry(entry: &PoolEntry) {
    let mut registry = POOL_REGISTRY.lock();
    registry.by_id.remove(&entry.id);
    POOL_WORDS.charged.store(registry.by_id.len(), Release);
}

/// A stream has reached its frees of a destroyed pool's memory.
pub fn note_awaited(entry: &PoolRef) {
    entry.awaited.fetch_sub(1, SeqCst);
    note_ended(entry);
}

/// Memory of a destroyed pool was freed; with the last of it the pool's charge ends.
pub fn note_ended(entry: &PoolRef) {
    let (bytes, share) = {
        let mut state = entry.lock_state();
        if !state.is_unheld() || entry.awaited.load(SeqCst) > 0 {
            return;
        }
        if core::mem::replace(&mut state.closed, true) {
            return; // another thread was faster
        }
        ENDED_REQUESTS.fetch_add(state.requests, SeqCst);
        // Bytes pledged for a call in flight are released by that call.
        let bytes = state.account.charged();
        state.account = pool::PoolAccount::default();
        (bytes, state.share)
    };
    match share {
        // Memory that importers hold stays charged to their share.
        Some(share) => held_shares::let_go(share),
        None => entry.release(None, bytes),
    }
    forget_entry(entry);
}

/// Clears the parent's pools in a forked child.
pub(super) fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { POOL_REGISTRY.reset(PoolRegistry::NO_POOLS) };
    DEFAULT_POOLS.iter().for_each(|pool| pool.store(core::ptr::null_mut(), Relaxed));
    POOL_WORDS.usual.store(core::ptr::null_mut(), Relaxed);
    POOL_WORDS.charged.store(0, Relaxed);
    GRAPH_POOLS.store(0, Relaxed);
    shrink_flag::expect_none();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nobody_knows_where_a_pool_lives_is_not_kept_for_good() {
        assert!(of_handle(0x1230, &|| None).is_none());
        assert!(find_noted(0x1230).is_none(), "whoever asks next may know");
        note_created(0x4560, None, 0);
        not_ours(0x7890);
        for pool in [0x4560, 0x7890] {
            assert!(find_noted(pool).is_some_and(|entry| entry.is_none()));
            assert!(of_handle(pool, &|| unreachable!("it is known")).is_none());
            forget_handle(pool, None);
            assert!(find_noted(pool).is_none());
        }
    }
}
