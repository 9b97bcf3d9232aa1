//! Time and sleep, by the kernel's monotonic clock: the only place that asks for it.

use core::sync::atomic::AtomicU32;

/// Monotonic nanoseconds.
pub fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Monotonic nanoseconds, a few milliseconds late and cheaper.
pub fn coarse() -> u64 {
    clock(libc::CLOCK_MONOTONIC_COARSE)
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(ns / 1_000_000_000).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
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

/// Sleeps until `moment` on the monotonic clock, or until `word` is not `seen` and somebody wakes those who wait on it.
pub fn wait(word: &AtomicU32, seen: u32, moment: u64) {
    let time = timespec(moment);
    let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that is borrowed, and a valid time; any early return is allowed.
    unsafe {
        let none = core::ptr::null::<u32>();
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, seen, &raw const time, none, u32::MAX)
    };
}

/// Sleeps for `ns` or less. By the kernel's own call: the C library's may end a thread that the program has cancelled, and
/// with it a lock of ours that it waits for, or our frames on its stack.
pub fn sleep(ns: u64) {
    let time = timespec(ns);
    // SAFETY: a valid pointer; an early return by a signal is allowed.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, core::ptr::null_mut::<libc::timespec>()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_the_program_cancelled_does_not_end_in_our_sleep() {
        unsafe extern "C" {
            fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
        }
        let end = || {
            // SAFETY: this thread itself; no cancellation point of the C library until it is taken back.
            unsafe {
                libc::pthread_cancel(libc::pthread_self());
                sleep(1000);
                pthread_setcancelstate(1, core::ptr::null_mut());
            }
            now()
        };
        assert!(std::thread::scope(|scope| scope.spawn(end).join()).is_ok_and(|at| at > 0));
    }
}
