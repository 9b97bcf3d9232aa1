//! Whether the next synchronising call must check the pools: memory may be given back to the driver in it.

use core::sync::atomic::{AtomicBool, Ordering::*};

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

/// True if pools or deferred frees may give memory back in a wait. The end of that wait must then be reported to the
/// pools.
///
/// # Cost
/// One load.
#[inline]
pub fn may_have_shrunk() -> bool {
    MAY_SHRINK.load(Acquire)
}
