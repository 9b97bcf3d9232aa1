//! The current context and its device, for one call into the driver; and contexts that end while calls for them are
//! in flight.

use crate::device::table::{self, Device};
use crate::driver::own;
use crate::ffi::lock::Lock;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use shim_sys::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUstream};

const CONTEXT_SLOTS: usize = 64;

/// Contexts whose device is known. A context's device never changes. A context that ends is removed here before the
/// program can get another one with the same handle.
static KNOWN_CONTEXTS: [AtomicUsize; CONTEXT_SLOTS] = [const { AtomicUsize::new(0) }; CONTEXT_SLOTS];
/// The devices of `KNOWN_CONTEXTS`, by the same index: ordinal + 1 in the lower half, a write counter in the upper; 0:
/// empty.
static KNOWN_DEVICES: [AtomicU64; CONTEXT_SLOTS] = [const { AtomicU64::new(0) }; CONTEXT_SLOTS];
/// Held while `KNOWN_CONTEXTS` and `KNOWN_DEVICES` are written.
static CONTEXT_WRITERS: Lock<()> = Lock::new(());

fn context_slot(context: usize) -> usize {
    vgpu_core::mix::slot_of(context as u64 >> 4, CONTEXT_SLOTS)
}

/// The current context and its device, if there is a current context and its device has limits.
///
/// # Cost
/// One driver call and two loads; two driver calls the first time a context is seen.
#[inline]
pub fn current() -> Option<(CUcontext, &'static Device)> {
    let mut context = CUcontext::NULL;
    // SAFETY: a pointer to a local.
    if !unsafe { own::cuCtxGetCurrent()?(&raw mut context) }.ok() || context.is_null() {
        return None;
    }
    let at = context_slot(context.0 as usize);
    let word = KNOWN_DEVICES[at].load(Acquire);
    let dev = if word != 0
        && KNOWN_CONTEXTS[at].load(Acquire) == context.0 as usize
        && KNOWN_DEVICES[at].load(Acquire) == word
    {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // stored below as dev + 1
        Some((word as u32 as CUdevice) - 1)
    } else {
        ask_device(context, at)
    };
    table::by_cuda(dev?).map(|device| (context, device))
}

#[cold]
#[allow(clippy::cast_sign_loss)] // an ordinal that the driver gave
fn ask_device(context: CUcontext, at: usize) -> Option<CUdevice> {
    static WRITE_EPOCH: AtomicU64 = AtomicU64::new(0);
    let mut dev = 0;
    // SAFETY: a pointer to a local.
    if !unsafe { own::cuCtxGetDevice()?(&raw mut dev) }.ok() {
        return None;
    }
    let _writing = CONTEXT_WRITERS.lock();
    // The upper half changes with every write, so a reader never pairs one context with another's device.
    let epoch = WRITE_EPOCH.fetch_add(1, Relaxed) + 1;
    KNOWN_DEVICES[at].store(0, Release);
    KNOWN_CONTEXTS[at].store(context.0 as usize, Release);
    KNOWN_DEVICES[at].store(epoch << 32 | (dev as u64 + 1), Release);
    Some(dev)
}

/// Removes a context that has ended.
pub fn forget_context(context: CUcontext) {
    let at = context_slot(context.0 as usize);
    ATTACHED_CONTEXTS.lock().retain(|entry| entry.0 != context.0 as usize);
    let _writing = CONTEXT_WRITERS.lock();
    if KNOWN_CONTEXTS[at].load(Relaxed) == context.0 as usize {
        KNOWN_DEVICES[at].store(0, Release);
        KNOWN_CONTEXTS[at].store(0, Release);
    }
}

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
    crate::memory::deferred_frees::context_ending();
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
        CONTEXT_WRITERS.reset(());
        ATTACHED_CONTEXTS.reset(Vec::new());
        ENDING_CONTEXTS.reset(Vec::new());
        ENDING_COUNT.store(0, SeqCst);
        LAST_ENDED_CONTEXTS.reset([(0, 0); CONTEXT_SLOTS]);
    }
}

/// The context and device to which a stream's work belongs: the stream's own, which need not be the current one.
///
/// # Cost
/// One driver call more than [`current`]; further ones if the stream's context was never current.
pub fn of_stream(stream: CUstream) -> Option<(CUcontext, &'static Device)> {
    let special = stream.is_null() || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    let mut context = CUcontext::NULL;
    // SAFETY: the program's own stream, for a call that uses it; a pointer to a local.
    let asked = !special && own::cuStreamGetCtx().is_some_and(|ask| unsafe { ask(stream, &raw mut context) }.ok());
    let mut now = CUcontext::NULL;
    // SAFETY: a pointer to a local.
    let known = own::cuCtxGetCurrent().is_some_and(|ask| unsafe { ask(&raw mut now) }.ok());
    if !asked || (known && now == context) {
        return current();
    }
    // SAFETY: a context that the driver has just named; the pop restores the current one.
    unsafe {
        if !own::cuCtxPushCurrent_v2()?(context).ok() {
            return None;
        }
        let found = current();
        let _ = own::cuCtxPopCurrent_v2()?(&raw mut now);
        found
    }
}
