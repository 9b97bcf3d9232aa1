//! Time and sleep, by the kernel's monotonic clock: the only place that asks for it.

/// Monotonic nanoseconds.
pub fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Monotonic nanoseconds, a few milliseconds late and cheaper.
pub fn coarse() -> u64 {
    clock(libc::CLOCK_MONOTONIC_COARSE)
}

#[allow(clippy::cast_sign_loss)] // the monotonic clock is not negative
fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer; these clocks always exist.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Lets another thread have the processor, if one waits for it.
pub fn give_way() {
    // SAFETY: no preconditions.
    unsafe { libc::sched_yield() };
}

/// Sleeps for `ns` or less.
pub fn sleep(ns: u64) {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(ns / 1_000_000_000).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::try_from(ns % 1_000_000_000).unwrap_or(0),
    };
    // SAFETY: a valid pointer; an early return by a signal is allowed.
    unsafe { libc::nanosleep(&raw const time, core::ptr::null_mut()) };
}
