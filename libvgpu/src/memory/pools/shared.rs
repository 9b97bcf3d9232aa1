//! Pools that several processes share. The charge of an exported pool is in a share of the ledger. Importers of the
//! tenant hold that share for the pointers they import. An imported pool is not charged here, because nothing is
//! allocated from it here.

use crate::ffi::lock::Lock;
use crate::ffi::sorted_map::SortedMap;
use crate::ledger::held_shares;
use crate::ledger::held_shares::LocalShare;
use crate::memory::pool_registry as registry;
use crate::memory::shares;
use shim_sys::cuda::CUmemoryPool;

/// Moves the charge of an exported pool to a share of the ledger with `identity`, or returns the share it already
/// has. From then on the pool's growth and shrinking are charged to the share. `None`: the pool is not charged here,
/// or all places for shares are taken.
pub fn share_pool(pool: CUmemoryPool, identity: impl FnOnce() -> u64) -> Option<LocalShare> {
    // An unrecorded pool stays so: its first allocation shows which device it is on.
    let entry = registry::find_noted(pool.0 as usize).flatten()?;
    let mut state = entry.lock_state();
    if state.share.is_none() {
        let share = shares::export_charge(entry.device, identity(), 0)?;
        held_shares::hand_over(share, state.account.charged());
        state.share = Some(share);
    }
    state.share
}

/// Identities of the imported pools. An imported pool holds no share; its imported pointers do, and they keep the
/// memory alive after the exporter's end.
static IMPORTED_POOLS: Lock<SortedMap<usize, u64>> = Lock::new(SortedMap::new());

/// Records a pool that another process created, and the identity that its exporter gave it, if any.
pub fn note_imported(pool: CUmemoryPool, identity: Option<u64>) {
    let pool = pool.0 as usize;
    registry::not_ours(pool);
    match identity {
        Some(identity) => IMPORTED_POOLS.lock().insert(pool, identity),
        None => IMPORTED_POOLS.lock().remove(&pool),
    };
}

/// The share of an imported pool of the same tenant, held for a pointer.
pub fn share_of_imported(pool: CUmemoryPool) -> Option<LocalShare> {
    let identity = IMPORTED_POOLS.lock().get(&(pool.0 as usize)).copied()?;
    shares::import_share(identity)
}

/// Removes an imported pool before it is destroyed, because its handle may be reused right after.
pub(super) fn take_imported(pool: usize) -> Option<u64> {
    IMPORTED_POOLS.lock().remove(&pool)
}

/// Restores the pool after the driver refused to destroy it.
pub(super) fn put_back(pool: usize, identity: u64) {
    IMPORTED_POOLS.lock().insert(pool, identity);
}

/// Clears the parent's imported pools in a forked child.
pub(super) fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { IMPORTED_POOLS.reset(SortedMap::new()) };
}
