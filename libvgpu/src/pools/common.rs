//! Pools of several processes. An exported pool's charge lives in a share of the ledger, which importers of the tenant
//! hold for what they import from it; an imported pool is not charged here, nothing being allocated from it here.

use super::registry;
use crate::lock::Lock;
use crate::share::{self, Share};
use crate::sorted::Map;
use shim_sys::cuda::CUmemoryPool;

/// Moves the charge of a pool that was exported to a share of the ledger, found by `identity`, or names the share it has:
/// what the pool grows and shrinks by is charged and returned there from now on. `None`: the pool is not charged here, or
/// all places for shares are taken.
pub fn exported(pool: CUmemoryPool, identity: impl FnOnce() -> u64) -> Option<Share> {
    // One that nobody noted stays so: its first allocation says which device it is on.
    let entry = registry::noted(pool.0 as usize).flatten()?;
    let mut state = entry.state.lock();
    if state.share.is_none() {
        let share = share::export(entry.device, identity(), 0)?;
        share::hand_over(share, state.account.charged());
        state.share = Some(share);
    }
    state.share
}

/// Identities of the imported pools. An imported pool holds no share: what keeps the memory when the exporter is gone are
/// its pointers, which hold it.
static IMPORTED: Lock<Map<usize, u64>> = Lock::new(Map::new());

/// Notes a pool that another process made, and the identity that its exporter has given it, if it did.
pub fn imported(pool: CUmemoryPool, identity: Option<u64>) {
    let pool = pool.0 as usize;
    registry::not_ours(pool);
    match identity {
        Some(identity) => IMPORTED.lock().insert(pool, identity),
        None => IMPORTED.lock().remove(&pool),
    };
}

/// The share of an imported pool of the same tenant, held for a pointer.
pub fn share_of_imported(pool: CUmemoryPool) -> Option<Share> {
    let identity = IMPORTED.lock().get(&(pool.0 as usize)).copied()?;
    share::import(identity)
}

/// Takes an imported pool out before it is destroyed: afterwards its handle may come again.
pub(super) fn take_imported(pool: usize) -> Option<u64> {
    IMPORTED.lock().remove(&pool)
}

/// It was not destroyed.
pub(super) fn put_back(pool: usize, identity: u64) {
    IMPORTED.lock().insert(pool, identity);
}

/// Forgets the parent's, in a forked child.
pub(super) fn forget() {
    // SAFETY: the child's thread that settles it, before any other goes on.
    unsafe { IMPORTED.reset(Map::new()) };
}
