//! Contexts that end while calls for them are in flight, and contexts attached more than once.

use crate::ffi::lock::Lock;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use shim_sys::cuda::CUcontext;

/// Contexts that ended last and are remembered.
const CONTEXT_SLOTS: usize = 64;

/// Contexts that the driver is about to end, or has ended without their records being removed yet; each with the
/// epoch before.
static ENDING_CONTEXTS: Lock<Vec<(usize, u64)>> = Lock::new(Vec::new());
/// Number of entries in `ENDING_CONTEXTS`.
static ENDING_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Number of contexts that have ended: see [`context_fate`].
static ENDED_COUNT: AtomicU64 = AtomicU64::new(0);
/// The contexts that ended last, each with its number in the count [`ENDED_COUNT`].
static LAST_ENDED_CONTEXTS: Lock<[(usize, u64); CONTEXT_SLOTS]> = Lock::new([(0, 0); CONTEXT_SLOTS]);
/// Steps of 50 us that a thread waits at most for a context's end: 2 s.
const MAX_END_WAITS: u32 = 40_000;

/// The state of a context relative to a call that was in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContextFate {
    /// The context exists.
    Lives,
    /// The driver is being asked to end the context; the end comes after this epoch.
    Ending(u64),
    /// The driver has ended the context, and its records are removed.
    Ended,
}

/// Records that the driver is about to be asked to end a context.
pub fn begin_end(context: CUcontext) {
    ENDING_CONTEXTS.lock().push((context.0 as usize, epoch()));
    ENDING_COUNT.fetch_add(1, SeqCst);
}

/// Records that the driver has ended a context. A call for it that is still in flight learns this from
/// [`context_fate`].
pub fn note_ended(context: CUcontext) {
    let mut last = LAST_ENDED_CONTEXTS.lock();
    let number = ENDED_COUNT.load(Relaxed) + 1;
    last[slot_of(number)] = (context.0 as usize, number);
    ENDED_COUNT.store(number, SeqCst);
}

#[allow(clippy::cast_possible_truncation)] // reduced first
fn slot_of(number: u64) -> usize {
    (number % CONTEXT_SLOTS as u64) as usize
}

/// Records that the end is complete here, or that the context lives on.
pub fn finish_end(context: CUcontext) {
    let mut all = ENDING_CONTEXTS.lock();
    if let Some(at) = all.iter().position(|one| one.0 == context.0 as usize) {
        all.swap_remove(at);
        ENDING_COUNT.fetch_sub(1, SeqCst);
    }
}

/// Whether the end of a context with that handle is not complete yet.
pub fn is_ending(context: CUcontext) -> bool {
    ENDING_CONTEXTS.lock().iter().any(|one| one.0 == context.0 as usize)
}

/// Waits until `done` returns true, for an end to complete or a context to be created; for 2 s at most.
pub fn wait_until(done: impl Fn() -> bool) {
    for _ in 0..MAX_END_WAITS {
        if done() {
            return;
        }
        crate::ffi::clock::sleep(50_000);
    }
}

/// The current epoch, the number of contexts that have ended: see [`context_fate`].
#[inline]
pub fn epoch() -> u64 {
    ENDED_COUNT.load(Acquire)
}

/// The state of the context with that handle, relative to the epoch `moment`.
///
/// # Cost
/// Two loads.
#[inline]
pub fn context_fate(context: usize, moment: u64) -> ContextFate {
    // In this order: an ending context is recorded as ended before it is no longer recorded as ending.
    if ENDING_COUNT.load(SeqCst) == 0 && ENDED_COUNT.load(SeqCst) == moment {
        return ContextFate::Lives;
    }
    look_up(context, moment)
}

/// Whether the driver has ended the context with that handle since the epoch `moment`.
pub fn has_ended(context: usize, moment: u64) -> bool {
    let ends = ENDED_COUNT.load(SeqCst).saturating_sub(moment);
    let is = |&(handle, number): &(usize, u64)| handle == context && number > moment;
    context != 0 && ends > 0 && (ends > CONTEXT_SLOTS as u64 || LAST_ENDED_CONTEXTS.lock().iter().any(is))
}

#[cold]
fn look_up(context: usize, moment: u64) -> ContextFate {
    if context == 0 {
        return ContextFate::Lives; // no context: it outlives contexts
    }
    if let Some((_, since)) = ENDING_CONTEXTS.lock().iter().find(|one| one.0 == context) {
        return ContextFate::Ending(*since);
    }
    let ends = ENDED_COUNT.load(SeqCst) - moment;
    // More contexts ended during one call than are remembered, so any of them may have been this one.
    let is = ends > CONTEXT_SLOTS as u64
        || LAST_ENDED_CONTEXTS.lock().iter().any(|(handle, number)| *handle == context && *number > moment);
    if is { ContextFate::Ended } else { ContextFate::Lives }
}

/// Contexts attached more than once, with the number of extra attachments.
static ATTACHED_CONTEXTS: Lock<Vec<(usize, u32)>> = Lock::new(Vec::new());

/// Records one more attachment to a context.
pub fn note_attached(context: CUcontext) {
    let mut all = ATTACHED_CONTEXTS.lock();
    match all.iter_mut().find(|entry| entry.0 == context.0 as usize) {
        Some(entry) => entry.1 += 1,
        None => all.push((context.0 as usize, 1)),
    }
}

/// Removes all attachments of a context that has ended.
pub fn forget_attachments(context: CUcontext) {
    ATTACHED_CONTEXTS.lock().retain(|entry| entry.0 != context.0 as usize);
}

/// Removes one attachment. Returns whether there was an extra one, so that the context stays.
pub fn take_attachment(context: CUcontext) -> bool {
    let mut all = ATTACHED_CONTEXTS.lock();
    let Some(at) = all.iter().position(|entry| entry.0 == context.0 as usize) else { return false };
    all[at].1 -= 1;
    if all[at].1 == 0 {
        all.swap_remove(at);
    }
    true
}

/// Clears the parent's contexts and resets the locks in a forked child.
pub fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe {
        ATTACHED_CONTEXTS.reset(Vec::new());
        ENDING_CONTEXTS.reset(Vec::new());
        ENDING_COUNT.store(0, SeqCst);
        LAST_ENDED_CONTEXTS.reset([(0, 0); CONTEXT_SLOTS]);
    }
}
