//! The list of known pools, by the handle that the driver knows and by the number in allocation records.

use super::pool_entry::{PoolEntry, PoolRef, PoolSource};
use crate::device::table::{self, Device, MAX_DEVICES};
use crate::driver::own;
use crate::ffi::lock::Lock;
use crate::ffi::sorted_map::SortedMap;
use crate::ledger::held_shares;
use crate::memory::allocation_records::AllocationRecord;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use shim_sys::cuda::*;
use vgpu_core::memory::pool;

struct PoolRegistry {
    /// `None`: known, but not charged here: host memory, on a device without limits, or another process's.
    by_source: SortedMap<PoolSource, Option<PoolRef>>,
    by_id: SortedMap<usize, PoolRef>,
    next: usize,
}

impl PoolRegistry {
    const NO_POOLS: PoolRegistry = PoolRegistry { by_source: SortedMap::new(), by_id: SortedMap::new(), next: 1 };
}

static POOL_REGISTRY: Lock<PoolRegistry> = Lock::new(PoolRegistry::NO_POOLS);
/// The entries of the devices' default pools, by device number. They are leaked, so that the usual request finds its
/// pool without a lock.
static DEFAULT_POOLS: [AtomicPtr<PoolEntry>; MAX_DEVICES] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_DEVICES];
/// Whether the program ever created a pool. Until then each device serves requests from its default pool: no other
/// pool can be made its current one, not even one that was imported.
static HAS_CREATED: AtomicBool = AtomicBool::new(false);
/// Number of memory pools that are charged.
static CHARGED_POOLS: AtomicUsize = AtomicUsize::new(0);
/// How many of them are graph memory.
static GRAPH_POOLS: AtomicUsize = AtomicUsize::new(0);
/// The requests of pools whose charge has ended.
static ENDED_REQUESTS: AtomicU64 = AtomicU64::new(0);

/// The default pool of the device with this number, if it is charged.
fn default_pool(device: u8) -> Option<PoolRef> {
    // SAFETY: null, or a leaked entry, to which there are only shared references.
    let entry = unsafe { DEFAULT_POOLS.get(usize::from(device))?.load(Acquire).as_ref() };
    entry.map(PoolRef::Lasting)
}

fn is_default_pool(device: &Device, pool: usize) -> bool {
    let mut found = CUmemoryPool(core::ptr::null_mut());
    let ask = own::cuDeviceGetDefaultMemPool();
    // SAFETY: a pointer to a local.
    ask.is_some_and(|ask| unsafe { ask(&raw mut found, device.cuda()) }.ok()) && found.0 as usize == pool
}

/// The pool behind a source, if it is charged. A new one is recorded for its `home` device. If the device is unknown,
/// nothing is recorded, because a later caller may know it.
fn pool_entry(source: PoolSource, home: impl FnOnce() -> Option<&'static Device>) -> Option<PoolRef> {
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
    let mut registry = POOL_REGISTRY.lock();
    if let Some(known) = registry.by_source.get(&source) {
        return known.clone(); // another thread was faster
    }
    let id = registry.next;
    registry.next += 1;
    let fresh = device.map(|device| PoolRef::new(PoolEntry::new(device, id, source, made, threshold)));
    if let Some(fresh) = &fresh {
        registry.by_id.insert(id, fresh.clone());
        CHARGED_POOLS.store(registry.by_id.len(), Release);
        GRAPH_POOLS.fetch_add(usize::from(matches!(source, PoolSource::Graph(_))), Relaxed);
    }
    if let (Some(PoolRef::Lasting(entry)), Some(device)) = (&fresh, default_of) {
        DEFAULT_POOLS[usize::from(device.index)].store(core::ptr::from_ref(*entry).cast_mut(), Release);
    }
    registry.by_source.insert(source, fresh.clone());
    fresh
}

/// Records a pool that the program created with at most `max` bytes. `None`: host memory, or a device without limits.
pub fn note_created(pool: usize, device: Option<&'static Device>, max: u64) {
    HAS_CREATED.store(true, Release);
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
pub fn of_handle(pool: usize, otherwise: impl FnOnce() -> Option<&'static Device>) -> Option<PoolRef> {
    pool_entry(PoolSource::Pool(pool), || table::all().find(|device| is_default_pool(device, pool)).or_else(otherwise))
}

/// The pool that serves the device's stream-ordered allocations. Once the program created a pool, the driver is asked
/// each time, so that no cached copy can be stale. A device without limits needs no question, because the driver allows
/// only a device's own pool to be current on it.
pub fn current(device: &'static Device) -> Option<PoolRef> {
    let default = default_pool(device.index);
    if default.is_some() && !HAS_CREATED.load(Acquire) {
        return default;
    }
    let mut pool = CUmemoryPool(core::ptr::null_mut());
    // SAFETY: a pointer to a local.
    if !unsafe { own::cuDeviceGetMemPool()?(&raw mut pool, device.cuda()) }.ok() {
        return None;
    }
    let pool = pool.0 as usize;
    default.filter(|entry| entry.source == PoolSource::Pool(pool)).or_else(|| of_handle(pool, || Some(device)))
}

/// The entry of the device's graph memory.
pub fn graph_memory(device: &'static Device) -> Option<PoolRef> {
    pool_entry(PoolSource::Graph(device.cuda()), || Some(device))
}

/// Whether anything is charged as a pool.
///
/// # Cost
/// One load.
#[inline]
pub fn any() -> bool {
    CHARGED_POOLS.load(Acquire) > 0
}

/// Whether graph memory is charged.
pub(super) fn any_graphs() -> bool {
    GRAPH_POOLS.load(Relaxed) > 0
}

/// Every pool that is charged.
pub(super) fn all() -> Vec<PoolRef> {
    POOL_REGISTRY.lock().by_id.values().cloned().collect()
}

/// The record of a handle. `None`: no record; `Some(None)`: not charged here.
pub(super) fn find_noted(pool: usize) -> Option<Option<PoolRef>> {
    POOL_REGISTRY.lock().by_source.get(&PoolSource::Pool(pool)).cloned()
}

/// The pool that an allocation is recorded for.
pub(super) fn of_record(holding: AllocationRecord) -> Option<PoolRef> {
    let (id, default) = (holding.context, holding.own_bytes().and_then(|(_, device)| default_pool(device)));
    default.filter(|entry| entry.id == id).or_else(|| POOL_REGISTRY.lock().by_id.get(&id).cloned())
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
    CHARGED_POOLS.store(registry.by_id.len(), Release);
}

/// A stream has reached its frees of a destroyed pool's memory.
pub fn note_awaited(entry: &PoolRef) {
    entry.awaited.fetch_sub(1, SeqCst);
    note_ended(entry);
}

/// Memory of a destroyed pool was freed; with the last of it the pool's charge ends.
pub fn note_ended(entry: &PoolRef) {
    let (bytes, share) = {
        let mut state = entry.state.lock();
        if state.outstanding > 0 || entry.awaited.load(SeqCst) > 0 {
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

/// Whether a pool, or a deferred free, may release memory at the next synchronisation.
static MAY_SHRINK: AtomicBool = AtomicBool::new(false);
/// Makes the next synchronising call check pools.
pub(super) fn expect_shrinking() {
    if !MAY_SHRINK.load(Relaxed) {
        MAY_SHRINK.store(true, Release);
    }
}

/// A synchronising call checks pools now: those that it leaves unused memory in are expected again.
pub(super) fn expect_none() {
    MAY_SHRINK.store(false, Release);
}

/// Whether the end of a wait must be noted: pools, or deferred frees, may have given memory back in it.
///
/// # Cost
/// One load.
#[inline]
pub fn may_have_shrunk() -> bool {
    MAY_SHRINK.load(Acquire)
}

/// Clears the parent's pools in a forked child.
pub(super) fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { POOL_REGISTRY.reset(PoolRegistry::NO_POOLS) };
    DEFAULT_POOLS.iter().for_each(|pool| pool.store(core::ptr::null_mut(), Relaxed));
    CHARGED_POOLS.store(0, Relaxed);
    GRAPH_POOLS.store(0, Relaxed);
    MAY_SHRINK.store(false, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nobody_knows_where_a_pool_lives_is_not_kept_for_good() {
        assert!(of_handle(0x1230, || None).is_none());
        assert!(find_noted(0x1230).is_none(), "whoever asks next may know");
        note_created(0x4560, None, 0);
        not_ours(0x7890);
        for pool in [0x4560, 0x7890] {
            assert!(find_noted(pool).is_some_and(|entry| entry.is_none()));
            assert!(of_handle(pool, || unreachable!("it is known")).is_none());
            forget_handle(pool, None);
            assert!(find_noted(pool).is_none());
        }
    }
}
