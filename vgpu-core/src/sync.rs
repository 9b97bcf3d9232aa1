//! Every synchronising type of this crate, so that loom can stand in for all of them at once.
//!
//! Nothing else may name `core::sync` or `loom`.

#[cfg(not(loom))]
pub(crate) use core::hint::spin_loop;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::hint::spin_loop;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A word that no argument about order rests on, which loom need not see.
pub(crate) use core::sync::atomic::AtomicU64 as Aside;

/// Makes a sequentially consistent write visible before the reads that follow, under loom.
///
/// Outside loom there is nothing to do: write and reads are `SeqCst` accesses, and all of those have
/// one total order. Loom treats a `SeqCst` access as acquire and release only, and knows the total
/// order of fences alone; without this it would report executions that cannot happen.
#[inline(always)]
pub(crate) fn total_order() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
