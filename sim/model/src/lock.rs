//! The machine's lock: a futex word that survives the death of its holder.
//!
//! The word names the holder by slot and generation. A slot is alive while its process holds an
//! open-file-description lock on the slot's byte; the kernel drops that lock when the process dies. A waiter that
//! sees no progress for 3 ms asks the kernel about the holder, and takes the lock over from a dead one. Process
//! ids are never used, so containers with separate pid namespaces can share a machine. A *stopped* holder is
//! alive: others wait for it. Uncontended cost: one compare-exchange to take the lock, one swap to release it.

use std::sync::atomic::{AtomicU32, Ordering};

const WAITERS_BIT: u32 = 1 << 31;
const SLOT_BITS: u32 = 11;

/// Identity of a lock holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHolder(u32);

impl LockHolder {
    /// The holder of `slot` in its `generation`.
    pub fn new(slot: usize, generation: u32) -> LockHolder {
        let slot = u32::try_from(slot + 1).unwrap_or(0) & ((1 << SLOT_BITS) - 1);
        LockHolder(slot | ((generation << SLOT_BITS) & !WAITERS_BIT))
    }

    fn slot_of(word: u32) -> Option<usize> {
        (word & ((1 << SLOT_BITS) - 1)).checked_sub(1).map(|s| s as usize)
    }
}

/// State in which the lock was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// The lock was free, so the protected state is complete.
    Clean,
    /// The holder is dead: the protected state may be half changed.
    FromTheDead,
}

/// Takes the lock; `alive(slot)` asks the kernel about a holder.
pub fn lock(word: &AtomicU32, me: LockHolder, alive: impl Fn(usize) -> bool) -> LockOutcome {
    if word.compare_exchange(0, me.0, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        return LockOutcome::Clean;
    }
    lock_contended(word, me, alive)
}

#[cold]
fn lock_contended(word: &AtomicU32, me: LockHolder, alive: impl Fn(usize) -> bool) -> LockOutcome {
    for _ in 0..100 {
        if word.load(Ordering::Relaxed) == 0
            && word.compare_exchange(0, me.0, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return LockOutcome::Clean;
        }
        std::hint::spin_loop();
    }
    loop {
        let seen = word.load(Ordering::Relaxed);
        if seen == 0 {
            // Another waiter may sleep on the word, so keep the flag.
            if word.compare_exchange(0, me.0 | WAITERS_BIT, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return LockOutcome::Clean;
            }
            continue;
        }
        let waiting = seen | WAITERS_BIT;
        if seen != waiting && word.compare_exchange(seen, waiting, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            continue;
        }
        if wait(word, waiting) {
            continue;
        }
        let Some(slot) = LockHolder::slot_of(waiting) else { continue };
        let same = waiting & !WAITERS_BIT == me.0;
        if !same
            && !alive(slot)
            && word.compare_exchange(waiting, me.0 | WAITERS_BIT, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return LockOutcome::FromTheDead;
        }
    }
}

/// Takes the lock over if the previous holder of `slot` died while it had the lock. The slot's new holder calls
/// this.
pub fn inherit_lock(word: &AtomicU32, slot: usize, me: LockHolder) -> bool {
    let seen = word.load(Ordering::Relaxed);
    LockHolder::slot_of(seen) == Some(slot)
        && seen & !WAITERS_BIT != me.0
        && word.compare_exchange(seen, me.0 | WAITERS_BIT, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Releases the lock.
pub fn unlock(word: &AtomicU32) {
    if word.swap(0, Ordering::Release) & WAITERS_BIT != 0 {
        // SAFETY: the word is mapped for as long as its machine; waking needs nothing else.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
    }
}

/// Sleeps until woken (true) or for 3 ms (false).
fn wait(word: &AtomicU32, expected: u32) -> bool {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: 3_000_000 };
    // SAFETY: the word is mapped, the timeout is a live structure; the kernel only reads both.
    let rc = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const limit) };
    rc == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}
