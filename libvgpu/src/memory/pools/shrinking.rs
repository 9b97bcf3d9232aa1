//! Tracks calls in which pools may give memory back to the driver, and calls in which they may grow. During a call of
//! the first kind the known room of a pool may be wrong; it is corrected before the call ends. If no call of the
//! second kind overlapped, a pool that holds as much as before has given nothing back.

use core::sync::atomic::{AtomicU64, Ordering::*};

/// Upper half: number of calls that began; lower half: number of calls in flight.
struct PoolCalls(AtomicU64);
const ONE_BEGAN: u64 = 1 << 32;

static SHRINKING_CALLS: PoolCalls = PoolCalls(AtomicU64::new(0));
static GROWING_CALLS: PoolCalls = PoolCalls(AtomicU64::new(0));

/// A call in flight; dropping it ends it.
#[must_use]
struct PoolCallInProgress(&'static PoolCalls);

/// A call in which pools may shrink. Drop it after the pools were checked; that ends it.
#[must_use]
pub struct ShrinkingCall {
    _under_way: PoolCallInProgress,
    before: QuietEpoch,
}

/// A call in which a pool may grow.
#[must_use]
pub(super) struct GrowingCall(#[allow(dead_code)] PoolCallInProgress);

/// The call count at a moment without such a call in flight; `None` inside: one was in flight.
#[derive(Clone, Copy)]
pub(super) struct QuietEpoch(&'static PoolCalls, Option<u64>);

/// Begins a call in which pools may shrink; to be used before the driver is called.
pub(super) fn begin_shrinking() -> ShrinkingCall {
    let _under_way = SHRINKING_CALLS.begin_call();
    ShrinkingCall { _under_way, before: GROWING_CALLS.quiet_epoch() }
}

/// Begins a call in which a pool may grow; to be used before the driver is called.
pub(super) fn begin_growing() -> GrowingCall {
    GrowingCall(GROWING_CALLS.begin_call())
}

/// The current moment, with respect to calls in which pools may shrink.
pub(super) fn now() -> QuietEpoch {
    SHRINKING_CALLS.quiet_epoch()
}

impl ShrinkingCall {
    /// Whether no pool can have grown since the call began. Then a pool that holds as much as before has given
    /// nothing back.
    pub(super) fn nothing_grew(&self) -> bool {
        self.before.is_still_quiet()
    }
}

impl PoolCalls {
    fn begin_call(&'static self) -> PoolCallInProgress {
        self.0.fetch_add(ONE_BEGAN | 1, SeqCst);
        PoolCallInProgress(self)
    }

    fn quiet_epoch(&'static self) -> QuietEpoch {
        let calls = self.0.load(SeqCst);
        QuietEpoch(self, calls.is_multiple_of(ONE_BEGAN).then_some(calls))
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
    pub(super) fn is_still_quiet(self) -> bool {
        self.1 == Some(self.0.0.load(SeqCst))
    }
}

/// Clears the counters in a forked child, where the parent's calls never end.
pub(super) fn reset_after_fork() {
    SHRINKING_CALLS.0.store(0, Relaxed);
    GROWING_CALLS.0.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_lasts_until_a_call_begins_and_is_none_beside_one() {
        static CALLS: PoolCalls = PoolCalls(AtomicU64::new(0));
        let before = CALLS.quiet_epoch();
        assert!(before.is_still_quiet());
        let call = CALLS.begin_call();
        let beside = CALLS.quiet_epoch();
        assert!(!before.is_still_quiet() && !beside.is_still_quiet());
        drop(call);
        assert!(!before.is_still_quiet() && !beside.is_still_quiet() && CALLS.quiet_epoch().is_still_quiet());
        let [one, other] = [CALLS.begin_call(), CALLS.begin_call()];
        drop(one);
        assert!(!CALLS.quiet_epoch().is_still_quiet(), "one is under way");
        drop(other);
        assert!(CALLS.quiet_epoch().is_still_quiet());
        CALLS.0.store(0, Relaxed);
        drop(PoolCallInProgress(&CALLS));
        assert!(CALLS.quiet_epoch().is_still_quiet(), "the parent's");
    }

    #[test]
    fn a_call_that_may_shrink_knows_whether_anything_grew_beside_it() {
        let alone = begin_shrinking();
        assert!(alone.nothing_grew());
        let before = begin_growing();
        let beside = begin_shrinking();
        drop(before);
        assert!(!alone.nothing_grew() && !beside.nothing_grew());
        assert!(begin_shrinking().nothing_grew());
    }
}
