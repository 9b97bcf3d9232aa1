//! Counts frees in flight. The driver has already freed the memory but the ledger does not know it yet, so a reading
//! of the device's memory taken meanwhile would show a difference that is not overhead.
//!
//! The counters are spread by the caller's stack, so that threads do not contend for one cache line. Plain frees are
//! counted next to their records, which costs half as much: `allocation_records`. A pool counts the frees of its
//! blocks.

use crate::ffi::thread::thread_stripe;
use crate::memory::allocation_records;
use crate::process::mode::{ProcessMode, process_mode};
use core::sync::atomic::{AtomicU32, Ordering::*};

#[repr(align(64))]
struct StripedCount(AtomicU32);

static FREES_IN_FLIGHT: [StripedCount; 16] = [const { StripedCount(AtomicU32::new(0)) }; 16];

/// A call in flight that frees device memory; dropping the value ends it.
#[must_use]
pub struct FreeInFlight(&'static AtomicU32);

/// Records that a call begins.
///
/// # Cost
/// One load where nothing is enforced; else one atomic addition, and one when the call ends.
#[inline]
pub fn enter_free() -> Option<FreeInFlight> {
    (process_mode() == ProcessMode::On).then(count_free)
}

#[inline]
fn count_free() -> FreeInFlight {
    let count = &FREES_IN_FLIGHT[thread_stripe(FREES_IN_FLIGHT.len())].0;
    count.fetch_add(1, SeqCst);
    FreeInFlight(count)
}

impl Drop for FreeInFlight {
    #[inline]
    fn drop(&mut self) {
        // Not below zero: a forked child may have reset the counter while this call was in flight.
        let _ = self.0.fetch_update(SeqCst, Relaxed, |count| count.checked_sub(1));
    }
}

/// Whether no free is in flight, but for those that pools count.
pub fn is_now() -> bool {
    FREES_IN_FLIGHT.iter().all(|count| count.0.load(SeqCst) == 0) && allocation_records::is_quiet()
}

/// Clears the counters in a forked child, where the parent's calls never end.
pub fn reset_after_fork() {
    FREES_IN_FLIGHT.iter().for_each(|count| count.0.store(0, SeqCst));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_quiet_when_every_call_has_ended() {
        let one = count_free();
        let other = std::thread::scope(|scope| scope.spawn(count_free).join().unwrap());
        drop(one);
        assert!(!is_now());
        drop(other);
        assert!(is_now());
        let table = &allocation_records::ADDRESS_RECORDS;
        table.insert_record(4096, allocation_records::AllocationRecord::of_bytes(512, 0, 1));
        assert!(is_now());
        let (_, leaving) = table.take_to_free(4096).unwrap();
        assert!(!is_now(), "a free counted next to its record is under way");
        drop(leaving);
        assert!(is_now());
    }
}
