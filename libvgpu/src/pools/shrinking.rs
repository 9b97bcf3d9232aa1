//! Tracks calls in which pools may give memory back to the driver, and calls in which they may grow. During a call of
//! the first kind the known room of a pool may be wrong; it is corrected before the call ends. If no call of the
//! second kind overlapped, a pool that holds as much as before has given nothing back.

use core::sync::atomic::{AtomicU64, Ordering::*};

/// Upper half: number of calls that began; lower half: number of calls in flight.
struct Calls(AtomicU64);
const BEGAN: u64 = 1 << 32;

static SHRINKING: Calls = Calls(AtomicU64::new(0));
static GROWING: Calls = Calls(AtomicU64::new(0));

/// A call in flight; dropping it ends it.
#[must_use]
struct UnderWay(&'static Calls);

/// A call in which pools may shrink. Drop it after the pools were checked; that ends it.
#[must_use]
pub struct Shrinking {
    _under_way: UnderWay,
    before: Moment,
}

/// A call in which a pool may grow.
#[must_use]
pub(super) struct Growing(#[allow(dead_code)] UnderWay);

/// The call count at a moment without such a call in flight; `None` inside: one was in flight.
#[derive(Clone, Copy)]
pub(super) struct Moment(&'static Calls, Option<u64>);

/// Begins a call in which pools may shrink; to be used before the driver is called.
pub(super) fn begin() -> Shrinking {
    let _under_way = SHRINKING.begin();
    Shrinking { _under_way, before: GROWING.moment() }
}

/// Begins a call in which a pool may grow; to be used before the driver is called.
pub(super) fn growing() -> Growing {
    Growing(GROWING.begin())
}

/// The current moment, with respect to calls in which pools may shrink.
pub(super) fn now() -> Moment {
    SHRINKING.moment()
}

impl Shrinking {
    /// Whether no pool can have grown since the call began. Then a pool that holds as much as before has given
    /// nothing back.
    pub(super) fn nothing_grew(&self) -> bool {
        self.before.lasts()
    }
}

impl Calls {
    fn begin(&'static self) -> UnderWay {
        self.0.fetch_add(BEGAN | 1, SeqCst);
        UnderWay(self)
    }

    fn moment(&'static self) -> Moment {
        let calls = self.0.load(SeqCst);
        Moment(self, calls.is_multiple_of(BEGAN).then_some(calls))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // Not below zero: a forked child may have reset the counter while this call was in flight.
        let under_way = |calls: u64| (!calls.is_multiple_of(BEGAN)).then(|| calls - 1);
        let _ = self.0.0.fetch_update(SeqCst, Relaxed, under_way);
    }
}

impl Moment {
    /// Whether no such call was in flight at that moment or began since.
    pub(super) fn lasts(self) -> bool {
        self.1 == Some(self.0.0.load(SeqCst))
    }
}

/// Clears the counters in a forked child, where the parent's calls never end.
pub(super) fn forget() {
    SHRINKING.0.store(0, Relaxed);
    GROWING.0.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_lasts_until_a_call_begins_and_is_none_beside_one() {
        static CALLS: Calls = Calls(AtomicU64::new(0));
        let before = CALLS.moment();
        assert!(before.lasts());
        let call = CALLS.begin();
        let beside = CALLS.moment();
        assert!(!before.lasts() && !beside.lasts());
        drop(call);
        assert!(!before.lasts() && !beside.lasts() && CALLS.moment().lasts());
        let [one, other] = [CALLS.begin(), CALLS.begin()];
        drop(one);
        assert!(!CALLS.moment().lasts(), "one is under way");
        drop(other);
        assert!(CALLS.moment().lasts());
        CALLS.0.store(0, Relaxed);
        drop(UnderWay(&CALLS));
        assert!(CALLS.moment().lasts(), "the parent's");
    }

    #[test]
    fn a_call_that_may_shrink_knows_whether_anything_grew_beside_it() {
        let alone = begin();
        assert!(alone.nothing_grew());
        let before = growing();
        let beside = begin();
        drop(before);
        assert!(!alone.nothing_grew() && !beside.nothing_grew());
        assert!(begin().nothing_grew());
    }
}
