//! A mutex of one word, without thread-local data, poisoning or destructors.
//!
//! It exists because a forked child must be able to reset a lock that a thread of its parent held: [`Lock::reset`].
//! It is held for a few instructions only, never across a call into the driver or the loader. So there are no
//! wake-ups: a waiter spins first and then looks every 20 us, and the unlock is one plain store.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering::*};

const LOCK_FREE: u32 = 0;
const LOCK_HELD: u32 = 1;
/// Spins of a waiter before it sleeps: by then the holder is probably not running.
const SPINS_BEFORE_SLEEP: u32 = 100;

/// A value and the lock that guards it.
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by the holder of the lock, one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// An unlocked lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(LOCK_FREE), value: UnsafeCell::new(value) }
    }

    /// Takes the lock.
    ///
    /// # Cost
    /// One compare-exchange when it is free.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, T> {
        if self.word.compare_exchange(LOCK_FREE, LOCK_HELD, Acquire, Relaxed).is_err() {
            self.wait();
        }
        LockGuard { lock: self }
    }

    #[cold]
    fn wait(&self) {
        let mut round = 0;
        while self.word.load(Relaxed) != LOCK_FREE
            || self.word.compare_exchange(LOCK_FREE, LOCK_HELD, Acquire, Relaxed).is_err()
        {
            if round < SPINS_BEFORE_SLEEP {
                round += 1;
                core::hint::spin_loop();
            } else {
                crate::ffi::clock::sleep(20_000);
            }
        }
    }

    /// Unlocks the lock whatever its state: for a forked child, in which the holder does not exist.
    ///
    /// # Safety
    /// No other thread of this process may know the lock, as after a fork.
    pub unsafe fn reset(&self, value: T) {
        // SAFETY: by the caller's contract no other thread knows it. The parent's thread may have left the old value
        // half written, so it is forgotten, not dropped.
        unsafe { core::ptr::write(self.value.get(), value) };
        self.word.store(LOCK_FREE, Release);
    }
}

/// Guard of a held lock.
pub struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and by this value alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.word.store(LOCK_FREE, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns_and_lose_nothing() {
        static COUNT: Lock<u64> = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50_000).for_each(|_| *COUNT.lock() += 1));
            }
        });
        assert_eq!(*COUNT.lock(), 200_000);
    }

    #[test]
    fn a_lock_that_nobody_will_give_back_can_be_reset() {
        static STUCK: Lock<u32> = Lock::new(1);
        core::mem::forget(STUCK.lock());
        // SAFETY: no other thread knows the lock.
        unsafe { STUCK.reset(7) };
        assert_eq!(*STUCK.lock(), 7);
    }
}
