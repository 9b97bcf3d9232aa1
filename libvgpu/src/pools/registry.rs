//! The list of known pools, by the handle that the driver knows and by the number in allocation records.

use super::entry::{Entry, Source};
use crate::device::{self, Device};
use crate::driver::own;
use crate::lock::Lock;
use crate::sorted::Map;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use shim_sys::cuda::*;
use std::sync::Arc;

struct Registry {
    /// `None`: known, but not charged here: host memory, on a device without limits, or another process's.
    by_source: Map<Source, Option<Arc<Entry>>>,
    by_id: Map<usize, Arc<Entry>>,
    next: usize,
}

impl Registry {
    const EMPTY: Registry = Registry { by_source: Map::new(), by_id: Map::new(), next: 1 };
}

static REGISTRY: Lock<Registry> = Lock::new(Registry::EMPTY);
/// Number of memory pools that are charged.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// How many of them are graph memory.
static GRAPHS: AtomicUsize = AtomicUsize::new(0);

/// The pool behind a source, if it is charged. A new one is recorded for its `home` device. If the device is unknown,
/// nothing is recorded, because a later caller may know it.
fn entry(source: Source, home: impl FnOnce() -> Option<&'static Device>) -> Option<Arc<Entry>> {
    if let Some(known) = REGISTRY.lock().by_source.get(&source) {
        return known.clone();
    }
    note(source, None, Some(home()?))
}

/// Records a new pool. `made`: its maximum size in bytes, if the program created it. Without a device it is not
/// charged.
fn note(source: Source, made: Option<u64>, device: Option<&'static Device>) -> Option<Arc<Entry>> {
    let threshold = device.map_or(0, |_| source.threshold());
    let mut registry = REGISTRY.lock();
    if let Some(known) = registry.by_source.get(&source) {
        return known.clone(); // another thread was faster
    }
    let id = registry.next;
    registry.next += 1;
    let fresh = device.map(|device| Arc::new(Entry::new(device, id, source, made, threshold)));
    if let Some(fresh) = &fresh {
        registry.by_id.insert(id, fresh.clone());
        COUNT.store(registry.by_id.len(), Release);
        GRAPHS.fetch_add(usize::from(matches!(source, Source::Graph(_))), Relaxed);
    }
    registry.by_source.insert(source, fresh.clone());
    fresh
}

/// Records a pool that the program created with at most `max` bytes. `None`: host memory, or a device without limits.
pub fn created(pool: usize, device: Option<&'static Device>, max: u64) {
    // The handle of a destroyed pool may be reused.
    REGISTRY.lock().by_source.remove(&Source::Pool(pool));
    note(Source::Pool(pool), Some(max), device);
}

/// Records a pool that is not charged here.
pub(super) fn not_ours(pool: usize) {
    REGISTRY.lock().by_source.insert(Source::Pool(pool), None);
}

/// The pool of that handle, if it is charged. An unrecorded handle is a device's default pool; if it is no device's
/// default, it is taken for a pool of the device `otherwise`.
pub fn of_handle(pool: usize, otherwise: impl FnOnce() -> Option<&'static Device>) -> Option<Arc<Entry>> {
    entry(Source::Pool(pool), || {
        let default_of = |device: &&'static Device| {
            let mut found = CUmemoryPool(core::ptr::null_mut());
            let ask = own::cuDeviceGetDefaultMemPool();
            // SAFETY: a pointer to a local.
            ask.is_some_and(|ask| unsafe { ask(&raw mut found, device.cuda()) }.ok()) && found.0 as usize == pool
        };
        device::all().find(default_of).or_else(otherwise)
    })
}

/// The pool that serves the device's stream-ordered allocations. The driver is asked each time, so that no cached
/// copy can be stale. A device without limits needs no question, because the driver allows only a device's own pool
/// to be current on it.
pub fn current(device: &'static Device) -> Option<Arc<Entry>> {
    let mut pool = CUmemoryPool(core::ptr::null_mut());
    // SAFETY: a pointer to a local.
    if !unsafe { own::cuDeviceGetMemPool()?(&raw mut pool, device.cuda()) }.ok() {
        return None;
    }
    of_handle(pool.0 as usize, || Some(device))
}

/// The entry of the device's graph memory.
pub fn graph_memory(device: &'static Device) -> Option<Arc<Entry>> {
    entry(Source::Graph(device.cuda()), || Some(device))
}

/// Whether anything is charged as a pool.
///
/// # Cost
/// One load.
#[inline]
pub fn any() -> bool {
    COUNT.load(Acquire) > 0
}

/// Whether graph memory is charged.
pub(super) fn any_graphs() -> bool {
    GRAPHS.load(Relaxed) > 0
}

/// Every pool that is charged.
pub(super) fn all() -> Vec<Arc<Entry>> {
    REGISTRY.lock().by_id.values().cloned().collect()
}

/// The record of a handle. `None`: no record; `Some(None)`: not charged here.
pub(super) fn noted(pool: usize) -> Option<Option<Arc<Entry>>> {
    REGISTRY.lock().by_source.get(&Source::Pool(pool)).cloned()
}

/// The pool of that number.
pub(super) fn numbered(id: usize) -> Option<Arc<Entry>> {
    REGISTRY.lock().by_id.get(&id).cloned()
}

/// Removes a pool's handle. With `entry`, only if the handle still belongs to that pool: it may have been reused.
pub(super) fn forget_handle(pool: usize, entry: Option<&Entry>) {
    let mut registry = REGISTRY.lock();
    let found = registry.by_source.get(&Source::Pool(pool));
    let is_it = |of: &Entry| found.is_some_and(|found| found.as_ref().is_some_and(|found| found.id == of.id));
    if entry.is_none_or(is_it) {
        registry.by_source.remove(&Source::Pool(pool));
    }
}

/// Removes a pool whose charge has ended.
pub(super) fn forget_entry(entry: &Entry) {
    let mut registry = REGISTRY.lock();
    registry.by_id.remove(&entry.id);
    COUNT.store(registry.by_id.len(), Release);
}

/// Clears the parent's pools in a forked child.
pub(super) fn forget() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { REGISTRY.reset(Registry::EMPTY) };
    COUNT.store(0, Relaxed);
    GRAPHS.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nobody_knows_where_a_pool_lives_is_not_kept_for_good() {
        assert!(of_handle(0x1230, || None).is_none());
        assert!(noted(0x1230).is_none(), "whoever asks next may know");
        created(0x4560, None, 0);
        not_ours(0x7890);
        for pool in [0x4560, 0x7890] {
            assert!(noted(pool).is_some_and(|entry| entry.is_none()));
            assert!(of_handle(pool, || unreachable!("it is known")).is_none());
            forget_handle(pool, None);
            assert!(noted(pool).is_none());
        }
    }
}
