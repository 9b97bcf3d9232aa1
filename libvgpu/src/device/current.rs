//! The current context and its device, for one call into the driver.

use super::table::{self, Device};
use crate::driver::contexts::forget_attachments;
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
    forget_attachments(context);
    let _writing = CONTEXT_WRITERS.lock();
    if KNOWN_CONTEXTS[at].load(Relaxed) == context.0 as usize {
        KNOWN_DEVICES[at].store(0, Release);
        KNOWN_CONTEXTS[at].store(0, Release);
    }
}

/// Resets the lock in a forked child.
pub fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { CONTEXT_WRITERS.reset(()) };
}

/// The context and device to which a stream's work belongs: the stream's own, which need not be the current one.
///
/// # Cost
/// As [`current`] for a default stream, else two driver calls more; further ones if the stream's context was never
/// current.
pub fn of_stream(stream: CUstream) -> Option<(CUcontext, &'static Device)> {
    let special = stream.is_null() || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    let mut context = CUcontext::NULL;
    // SAFETY: the program's own stream, for a call that uses it; a pointer to a local.
    let asked = !special && own::cuStreamGetCtx().is_some_and(|ask| unsafe { ask(stream, &raw mut context) }.ok());
    if !asked {
        return current();
    }
    let mut now = CUcontext::NULL;
    // SAFETY: a pointer to a local.
    let known = own::cuCtxGetCurrent().is_some_and(|ask| unsafe { ask(&raw mut now) }.ok());
    if known && now == context {
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
