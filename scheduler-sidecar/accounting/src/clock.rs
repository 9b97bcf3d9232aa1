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

/// Returns the wall clock in seconds since 1970.
#[must_use]
pub fn unix_seconds() -> i64 {
    i64::try_from(nanoseconds(ClockId::Realtime) / 1_000_000_000).unwrap_or(i64::MAX)
}

/// Identifies this boot of the host. Process IDs and the monotonic clock mean something else after the next one.
#[must_use]
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
