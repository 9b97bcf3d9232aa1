//! Waiting on a word of a page that processes share, and waking those who do.
//!
//! Each waiter stands at the word with some bits; a wake reaches those of whose bits it names one. Every wait has an end
//! on the monotonic clock and may return early: whoever waits looks again.

use core::sync::atomic::AtomicU32;

/// Sleeps until `moment` (monotonic nanoseconds), or until `word` is not `seen`, or until it is woken by one of `bits`.
///
/// # Cost
/// One system call.
pub fn wait(word: &AtomicU32, seen: u32, moment: u64, bits: u32) {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(moment / 1_000_000_000).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::try_from(moment % 1_000_000_000).unwrap_or(0),
    };
    let none = core::ptr::null::<u32>();
    // SAFETY: a word that is borrowed and a valid time; every early return is allowed, no bits at all is an error too.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT_BITSET, seen, &raw const time, none, bits);
    }
}

/// Wakes everybody who waits at `word` with one of `bits`, in whatever process.
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
