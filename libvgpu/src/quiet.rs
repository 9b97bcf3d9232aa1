//! Calls under way that give memory back: the driver has freed it and the ledger does not know yet, so that a reading
//! taken beside one would show a difference that nobody owes.
//!
//! Counted in several places, by the caller's stack, so that threads do not meet on one cache line; plain frees where
//! their charges are, which costs half as much: `holdings`.

use crate::holdings;
use crate::mode::{Mode, mode};
use core::sync::atomic::{AtomicU32, Ordering::*};

#[repr(align(64))]
struct Count(AtomicU32);

static COUNTS: [Count; 16] = [const { Count(AtomicU32::new(0)) }; 16];

/// A call under way; it ends when this is dropped.
#[must_use]
pub struct UnderWay(&'static AtomicU32);

/// A call begins.
///
/// # Cost
/// One load where nothing is enforced; else one atomic addition, and one when the call ends.
#[inline]
pub fn enter() -> Option<UnderWay> {
    (mode() == Mode::On).then(count)
}

/// A number below `of` that differs between threads, mostly: by the page of the caller's stack. Stacks
/// lie a page more than a power of two apart, so that whole bits of an address would be the same in all of them.
#[inline]
pub fn stripe(of: usize) -> usize {
    let here = 0u8;
    vgpu_core::mix::slot((&raw const here as u64) >> 12, of)
}

#[inline]
fn count() -> UnderWay {
    let count = &COUNTS[stripe(COUNTS.len())].0;
    count.fetch_add(1, SeqCst);
    UnderWay(count)
}

impl Drop for UnderWay {
    #[inline]
    fn drop(&mut self) {
        // Not below nothing: a forked child may have begun anew while this was under way.
        let _ = self.0.fetch_update(SeqCst, Relaxed, |count| count.checked_sub(1));
    }
}

/// Whether none is under way.
pub fn is_now() -> bool {
    COUNTS.iter().all(|count| count.0.load(SeqCst) == 0) && holdings::is_quiet()
}

/// In a forked child the parent's calls do not end.
pub fn reborn() {
    COUNTS.iter().for_each(|count| count.0.store(0, SeqCst));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_quiet_when_every_call_has_ended() {
        let one = count();
        let other = std::thread::scope(|scope| scope.spawn(count).join().unwrap());
        drop(one);
        assert!(!is_now());
        drop(other);
        assert!(is_now());
        holdings::ADDRESSES.put(4096, holdings::Holding { bytes: 512, device: 0, context: 1 });
        assert!(is_now());
        let (_, leaving) = holdings::ADDRESSES.take_to_free(4096).unwrap();
        assert!(!is_now(), "a plain free is under way");
        drop(leaving);
        assert!(is_now());
    }
}
