//! Every synchronising type of this crate, so that loom can replace all of them in one place.
//!
//! No other file may name `core::sync` or `loom`.

#[cfg(not(loom))]
pub(crate) use core::hint::spin_loop;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::hint::spin_loop;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A word on which no ordering argument depends, so loom does not track it.
pub(crate) use core::sync::atomic::AtomicU64 as Aside;

/// Under loom, makes a sequentially consistent write visible before the reads that follow.
///
/// Outside loom it does nothing: write and reads are `SeqCst` accesses, which have one total order. Loom treats
/// `SeqCst` accesses as acquire and release only, and gives a total order only to fences. Without this fence it would
/// report executions that cannot happen.
#[inline(always)]
pub(crate) fn total_order() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
