//! Reads the host's clocks.

use rustix::time::{ClockId, clock_gettime};

/// Returns the host's monotonic clock in nanoseconds.
#[must_use]
pub fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Returns the time of a clock in nanoseconds.
#[must_use]
pub fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}
