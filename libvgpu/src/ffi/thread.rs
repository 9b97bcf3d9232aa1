//! Spreads counters over threads.

/// A number below `of` that mostly differs between threads, taken from the page of the caller's stack. Stacks are one
/// page more than a power of two apart, so plain address bits would be the same in all of them.
#[inline]
pub fn thread_stripe(of: usize) -> usize {
    let here = 0u8;
    vgpu_core::mix::slot_of((&raw const here as u64) >> 12, of)
}
