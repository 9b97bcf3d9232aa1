//! Time and sleep by the kernel's monotonic clock; all other modules use these functions.

use core::sync::atomic::AtomicU32;

/// Monotonic time in ns.
pub fn now() -> u64 {
    read_clock(libc::CLOCK_MONOTONIC)
}

/// Monotonic time in ns; up to a few milliseconds late, but cheaper.
pub fn coarse_now() -> u64 {
    read_clock(libc::CLOCK_MONOTONIC_COARSE)
}

fn to_timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(ns / 1_000_000_000).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

#[allow(clippy::cast_sign_loss)] // the monotonic clock is not negative
fn read_clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer; these clocks always exist.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Yields the processor to another thread, if one is ready.
pub fn give_way() {
    // SAFETY: no preconditions.
    unsafe { libc::sched_yield() };
}

/// Sleeps until `moment` on the monotonic clock, or until `word` differs from `seen` and a thread wakes its waiters.
pub fn wait(word: &AtomicU32, seen: u32, moment: u64) {
    let time = to_timespec(moment);
    let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that is borrowed, and a valid time; any early return is allowed.
    unsafe {
        let none = core::ptr::null::<u32>();
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, seen, &raw const time, none, u32::MAX)
    };
}

/// Sleeps for at most `ns`. Uses the system call directly: the C library's function may end a thread that the program
/// has cancelled, with a lock of ours held or our frames on its stack.
pub fn sleep(ns: u64) {
    let time = to_timespec(ns);
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
            // SAFETY: this thread itself; it reaches no cancellation point of the C library until cancelling is
            // disabled.
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
