//! Tracks calls in which pools may give memory back to the driver. During such a call the known room of a pool may be
//! wrong; it is corrected before the call ends. A pool that holds as much as before has given nothing back, unless one
//! of its own requests overlapped the call. So each pool keeps the time of its last request on the clock of these
//! calls ([`ShrinkingCall::began_after`]).

use crate::memory::pool_entry::PoolState;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// Upper half: number of calls that began; lower half: number of calls in flight.
struct PoolCalls(AtomicU64);
const ONE_BEGAN: u64 = 1 << 32;

static SHRINKING_CALLS: PoolCalls = PoolCalls(AtomicU64::new(0));

/// A call in flight; dropping it ends it.
#[must_use]
struct PoolCallInProgress(&'static PoolCalls);

/// A call in which pools may shrink. Drop it after the pools were checked; that ends it.
#[must_use]
pub struct ShrinkingCall {
    _under_way: PoolCallInProgress,
    /// Number of such calls that had begun, with this one.
    number: u32,
}

impl PoolState {
    /// Whether no request of the pool was in progress at any time since the call began. Then a pool that holds as
    /// much as before has given nothing back.
    pub(super) fn is_unused_since(&self, call: &ShrinkingCall) -> bool {
        !self.account.is_busy() && call.began_after(self.last_request)
    }
}

/// The counts at a moment.
#[derive(Clone, Copy)]
pub(super) struct QuietEpoch(&'static PoolCalls, u64);

/// Begins a call in which pools may shrink; to be used before the driver is called.
pub(super) fn begin_shrinking() -> ShrinkingCall {
    let (_under_way, number) = SHRINKING_CALLS.begin_call();
    ShrinkingCall { _under_way, number }
}

/// Number of calls that have begun in which pools may shrink; it wraps around.
pub(super) fn calls_begun() -> u32 {
    SHRINKING_CALLS.begun()
}

/// The current moment, with respect to calls in which pools may shrink.
pub(super) fn now() -> QuietEpoch {
    SHRINKING_CALLS.quiet_epoch()
}

impl ShrinkingCall {
    /// Whether the call began after the time at which [`calls_begun`] returned `time`. False if 2^31 calls or more
    /// began in between.
    pub(super) fn began_after(&self, time: u32) -> bool {
        self.number.wrapping_sub(time).wrapping_sub(1) < 1 << 31
    }
}

impl PoolCalls {
    fn begin_call(&'static self) -> (PoolCallInProgress, u32) {
        let before = self.0.fetch_add(ONE_BEGAN | 1, SeqCst);
        (PoolCallInProgress(self), ((before >> 32) as u32).wrapping_add(1))
    }

    fn begun(&self) -> u32 {
        (self.0.load(SeqCst) >> 32) as u32
    }

    fn quiet_epoch(&'static self) -> QuietEpoch {
        QuietEpoch(self, self.0.load(SeqCst))
    }
}

impl Drop for PoolCallInProgress {
    fn drop(&mut self) {
        // Not below zero: a forked child may have reset the counter while this call was in flight.
        let under_way = |calls: u64| (!calls.is_multiple_of(ONE_BEGAN)).then(|| calls - 1);
        let _ = self.0.0.fetch_update(SeqCst, Relaxed, under_way);
    }
}

impl QuietEpoch {
    /// Whether no such call was in flight at that moment or began since.
    #[inline]
    pub(super) fn is_still_quiet(self) -> bool {
        self.1.is_multiple_of(ONE_BEGAN) && self.1 == self.0.0.load(SeqCst)
    }
}

/// Clears the counters in a forked child, where the parent's calls never end.
pub(super) fn reset_after_fork() {
    SHRINKING_CALLS.0.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_lasts_until_a_call_begins_and_is_none_beside_one() {
        static CALLS: PoolCalls = PoolCalls(AtomicU64::new(0));
        let before = CALLS.quiet_epoch();
        assert!(before.is_still_quiet());
        let (call, _) = CALLS.begin_call();
        let beside = CALLS.quiet_epoch();
        assert!(!before.is_still_quiet() && !beside.is_still_quiet());
        drop(call);
        assert!(!before.is_still_quiet() && !beside.is_still_quiet() && CALLS.quiet_epoch().is_still_quiet());
        let [(one, _), (other, _)] = [CALLS.begin_call(), CALLS.begin_call()];
        drop(one);
        assert!(!CALLS.quiet_epoch().is_still_quiet(), "one is under way");
        drop(other);
        assert!(CALLS.quiet_epoch().is_still_quiet());
        CALLS.0.store(0, Relaxed);
        drop(PoolCallInProgress(&CALLS));
        assert!(CALLS.quiet_epoch().is_still_quiet(), "the parent's");
    }

    #[test]
    fn a_call_that_may_shrink_knows_which_requests_ended_before_it() {
        let call = |number| ShrinkingCall { _under_way: SHRINKING_CALLS.begin_call().0, number };
        for first in [0u32, 1 << 31, u32::MAX - 1] {
            let at = |steps: u32| first.wrapping_add(steps);
            assert!(call(at(1)).began_after(first) && call(at(2)).began_after(first));
            assert!(!call(first).began_after(first) && !call(first).began_after(at(1)), "it overlapped the request");
            assert!(!call(at(1 << 31 | 1)).began_after(first), "unknown after so many calls");
        }
        let before = calls_begun();
        let begun = begin_shrinking();
        assert!(begun.began_after(before) && !begun.began_after(calls_begun()));
    }

    #[test]
    fn a_pool_is_unused_during_a_call_only_if_no_request_of_it_overlapped() {
        let mut state = PoolState { last_request: calls_begun(), ..PoolState::default() };
        let call = begin_shrinking();
        assert!(state.is_unused_since(&call));
        let request = state.account.begin_pledged(1, 0);
        assert!(!state.is_unused_since(&call), "a request is in progress");
        let _ = state.account.end_inside(request);
        state.last_request = calls_begun();
        assert!(!state.is_unused_since(&call), "a request ended during the call");
        assert!(state.is_unused_since(&begin_shrinking()));
    }
}
