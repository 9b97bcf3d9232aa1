//! Futex: waits on a word of a page that processes share, and wakes the waiters.
//!
//! Each waiter waits with a set of bits; a wake reaches the waiters that share at least one bit with it. Every wait
//! has a deadline on the monotonic clock and may return early, so the caller checks the word again.

use core::sync::atomic::AtomicU32;

/// Sleeps until `moment` (monotonic nanoseconds), until `word` differs from `seen`, or until a wake with one of
/// `bits`.
///
/// # Cost
/// One system call.
pub fn wait(word: &AtomicU32, seen: u32, moment: u64, bits: u32) {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(moment / 1_000_000_000).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::try_from(moment % 1_000_000_000).unwrap_or(0),
    };
    let none = core::ptr::null::<u32>();
    // SAFETY: a word that is borrowed and a valid time. Every early return is allowed, and so is the error for no
    // bits at all.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT_BITSET, seen, &raw const time, none, bits);
    }
}

/// Wakes all waiters on `word` that wait with one of `bits`, in any process.
///
/// # Cost
/// One system call.
pub fn wake(word: &AtomicU32, bits: u32) {
    let none = core::ptr::null::<u32>();
    // SAFETY: a word that is borrowed; nothing is written.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE_BITSET, i32::MAX, none, none, bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::*;
    use std::time::{Duration, Instant};

    #[test]
    fn who_stands_there_with_the_bit_is_woken_and_nobody_waits_past_the_moment() {
        let word = AtomicU32::new(7);
        wait(&word, 8, u64::MAX, 1);
        wait(&word, 7, 1, 1); // long ago
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                while word.load(SeqCst) == 7 {
                    wait(&word, 7, u64::MAX, 2);
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            word.store(8, SeqCst);
            let begin = Instant::now();
            while !waiter.is_finished() && begin.elapsed() < Duration::from_secs(20) {
                wake(&word, 4 | 2);
                std::thread::yield_now();
            }
            assert!(waiter.is_finished());
        });
    }
}
