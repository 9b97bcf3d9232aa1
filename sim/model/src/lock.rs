//! The machine's lock: a futex word that survives the death of its holder.
//!
//! The word names the holder by slot and generation; a slot is alive while its process holds an open-file-description
//! lock on the slot's byte, which the kernel drops at death. A waiter that sees no progress for a few milliseconds asks
//! the kernel about the holder and takes the lock over from a dead one. Pid numbers are never used, so containers with
//! pid namespaces of their own can share a machine. A *stopped* holder is alive: others wait for it.
//! Uncontended: one compare-exchange each way.

use std::sync::atomic::{AtomicU32, Ordering};

const WAITERS: u32 = 1 << 31;
const SLOT_BITS: u32 = 11;

/// Who takes the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(u32);

impl Holder {
    /// The holder for a slot in its `generation`.
    pub fn new(slot: usize, generation: u32) -> Holder {
        let slot = u32::try_from(slot + 1).unwrap_or(0) & ((1 << SLOT_BITS) - 1);
        Holder(slot | ((generation << SLOT_BITS) & !WAITERS))
    }

    fn slot_of(word: u32) -> Option<usize> {
        (word & ((1 << SLOT_BITS) - 1)).checked_sub(1).map(|s| s as usize)
    }
}

/// How the lock was got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// From nobody.
    Clean,
    /// From a dead holder: what it protects may be half changed.
    FromTheDead,
}

/// Takes the lock; `alive(slot)` asks the kernel about a holder.
pub fn lock(word: &AtomicU32, me: Holder, alive: impl Fn(usize) -> bool) -> Taken {
    if word.compare_exchange(0, me.0, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        return Taken::Clean;
    }
    contended(word, me, alive)
}

#[cold]
fn contended(word: &AtomicU32, me: Holder, alive: impl Fn(usize) -> bool) -> Taken {
    for _ in 0..100 {
        if word.load(Ordering::Relaxed) == 0
            && word.compare_exchange(0, me.0, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return Taken::Clean;
        }
        std::hint::spin_loop();
    }
    loop {
        let seen = word.load(Ordering::Relaxed);
        if seen == 0 {
            // Another may sleep on the word, so the flag stays up.
            if word.compare_exchange(0, me.0 | WAITERS, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Taken::Clean;
            }
            continue;
        }
        let waiting = seen | WAITERS;
        if seen != waiting && word.compare_exchange(seen, waiting, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            continue;
        }
        if wait(word, waiting) {
            continue;
        }
        let Some(slot) = Holder::slot_of(waiting) else { continue };
        let same = waiting & !WAITERS == me.0;
        if !same
            && !alive(slot)
            && word.compare_exchange(waiting, me.0 | WAITERS, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return Taken::FromTheDead;
        }
    }
}

/// Takes the lock over if the previous holder of `slot` died with it. Called by a new holder of the slot.
pub fn inherit(word: &AtomicU32, slot: usize, me: Holder) -> bool {
    let seen = word.load(Ordering::Relaxed);
    Holder::slot_of(seen) == Some(slot)
        && seen & !WAITERS != me.0
        && word.compare_exchange(seen, me.0 | WAITERS, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Lets go.
pub fn unlock(word: &AtomicU32) {
    if word.swap(0, Ordering::Release) & WAITERS != 0 {
        // SAFETY: the word is mapped for as long as its machine; waking needs nothing else.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
    }
}

/// Sleeps until woken (true) or a few milliseconds have gone (false).
fn wait(word: &AtomicU32, expected: u32) -> bool {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: 3_000_000 };
    // SAFETY: the word is mapped, the timeout is a live structure; the kernel only reads both.
    let rc = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const limit) };
    rc == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}
