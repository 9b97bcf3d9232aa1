//! The current context and its device, for the price of one call into the driver; contexts that end while calls for them
//! are under way.

use crate::device::{self, Device};
use crate::driver::own;
use crate::lock::Lock;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use shim_sys::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUstream};

const KNOWN: usize = 64;

/// Contexts and their devices: a context's device never changes, and a context that ends is taken out here before a
/// program is told of another one with its handle.
static CONTEXTS: [AtomicUsize; KNOWN] = [const { AtomicUsize::new(0) }; KNOWN];
static DEVICES: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];
static WRITING: Lock<()> = Lock::new(());

fn slot(context: usize) -> usize {
    vgpu_core::mix::slot(context as u64 >> 4, KNOWN)
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
    let at = slot(context.0 as usize);
    let word = DEVICES[at].load(Acquire);
    let dev = if word != 0 && CONTEXTS[at].load(Acquire) == context.0 as usize && DEVICES[at].load(Acquire) == word {
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // stored below as dev + 1
        Some((word as u32 as CUdevice) - 1)
    } else {
        ask(context, at)
    };
    device::by_cuda(dev?).map(|device| (context, device))
}

#[cold]
#[allow(clippy::cast_sign_loss)] // an ordinal that the driver gave
fn ask(context: CUcontext, at: usize) -> Option<CUdevice> {
    static EPOCH: AtomicU64 = AtomicU64::new(0);
    let mut dev = 0;
    // SAFETY: a pointer to a local.
    if !unsafe { own::cuCtxGetDevice()?(&raw mut dev) }.ok() {
        return None;
    }
    let _writing = WRITING.lock();
    // The upper half changes with every write, so that a reader never pairs one context with another's device.
    let epoch = EPOCH.fetch_add(1, Relaxed) + 1;
    DEVICES[at].store(0, Release);
    CONTEXTS[at].store(context.0 as usize, Release);
    DEVICES[at].store(epoch << 32 | (dev as u64 + 1), Release);
    Some(dev)
}

/// Takes a context out that has ended.
pub fn forget(context: CUcontext) {
    let at = slot(context.0 as usize);
    ATTACHED.lock().retain(|entry| entry.0 != context.0 as usize);
    let _writing = WRITING.lock();
    if CONTEXTS[at].load(Relaxed) == context.0 as usize {
        DEVICES[at].store(0, Release);
        CONTEXTS[at].store(0, Release);
    }
}

/// Contexts that the driver is about to end, or has ended and that are not settled here, each with a moment before.
static ENDING: Lock<Vec<(usize, u64)>> = Lock::new(Vec::new());
/// How many there are.
static ENDINGS: AtomicUsize = AtomicUsize::new(0);
/// How many contexts have ended, and the last of them, each with its number: see [`fate`].
static ENDED: AtomicU64 = AtomicU64::new(0);
static LAST_ENDED: Lock<[(usize, u64); KNOWN]> = Lock::new([(0, 0); KNOWN]);
/// How long anybody waits for a context's end to be settled here, in steps of 50 us.
const PATIENCE: u32 = 40_000;

/// What became of a context while a call for it was under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is there.
    Lives,
    /// The driver was asked to end it, and was not before this moment.
    Ending(u64),
    /// The driver has ended it, and what it held is taken out.
    Ended,
}

/// The driver is asked to end a context.
pub fn ending(context: CUcontext) {
    ENDING.lock().push((context.0 as usize, moment()));
    ENDINGS.fetch_add(1, SeqCst);
    crate::departing::context_ending();
}

/// The driver has ended it: a call for it that is still under way finds out by [`fate`].
pub fn ended(context: CUcontext) {
    let mut last = LAST_ENDED.lock();
    let number = ENDED.load(Relaxed) + 1;
    last[slot_of(number)] = (context.0 as usize, number);
    ENDED.store(number, SeqCst);
}

#[allow(clippy::cast_possible_truncation)] // reduced first
fn slot_of(number: u64) -> usize {
    (number % KNOWN as u64) as usize
}

/// The end is settled here, or the context lives on.
pub fn settled(context: CUcontext) {
    let mut all = ENDING.lock();
    if let Some(at) = all.iter().position(|one| one.0 == context.0 as usize) {
        all.swap_remove(at);
        ENDINGS.fetch_sub(1, SeqCst);
    }
}

/// Whether the end of a context of that handle is not settled yet.
pub fn is_ending(context: CUcontext) -> bool {
    ENDING.lock().iter().any(|one| one.0 == context.0 as usize)
}

/// Waits until `done`, which settles an end or makes a context; for 2 s at most.
pub fn wait_until(done: impl Fn() -> bool) {
    for _ in 0..PATIENCE {
        if done() {
            return;
        }
        crate::clock::sleep(50_000);
    }
}

/// A moment to compare with: see [`fate`].
#[inline]
pub fn moment() -> u64 {
    ENDED.load(Acquire)
}

/// What became of the context of that handle since `moment`.
///
/// # Cost
/// Two loads.
#[inline]
pub fn fate(context: usize, moment: u64) -> Fate {
    // In this order: an end is counted as ended before it is counted off.
    if ENDINGS.load(SeqCst) == 0 && ENDED.load(SeqCst) == moment {
        return Fate::Lives;
    }
    look_up(context, moment)
}

/// Whether the driver has ended the context of that handle since `moment`.
pub fn has_ended(context: usize, moment: u64) -> bool {
    let ends = ENDED.load(SeqCst).saturating_sub(moment);
    let is = |&(handle, number): &(usize, u64)| handle == context && number > moment;
    context != 0 && ends > 0 && (ends > KNOWN as u64 || LAST_ENDED.lock().iter().any(is))
}

#[cold]
fn look_up(context: usize, moment: u64) -> Fate {
    if context == 0 {
        return Fate::Lives; // nobody's: it outlives contexts
    }
    if let Some((_, since)) = ENDING.lock().iter().find(|one| one.0 == context) {
        return Fate::Ending(*since);
    }
    let ends = ENDED.load(SeqCst) - moment;
    // More ends than are remembered during one call: any of them may have been this one's.
    let is =
        ends > KNOWN as u64 || LAST_ENDED.lock().iter().any(|(handle, number)| *handle == context && *number > moment);
    if is { Fate::Ended } else { Fate::Lives }
}

/// Contexts that were attached to more than once, and how often more.
static ATTACHED: Lock<Vec<(usize, u32)>> = Lock::new(Vec::new());

/// Notes that a context was attached to once more.
pub fn attached(context: CUcontext) {
    let mut all = ATTACHED.lock();
    match all.iter_mut().find(|entry| entry.0 == context.0 as usize) {
        Some(entry) => entry.1 += 1,
        None => all.push((context.0 as usize, 1)),
    }
}

/// Takes one attachment back; whether there was one, so that the context stays.
pub fn detached(context: CUcontext) -> bool {
    let mut all = ATTACHED.lock();
    let Some(at) = all.iter().position(|entry| entry.0 == context.0 as usize) else { return false };
    all[at].1 -= 1;
    if all[at].1 == 0 {
        all.swap_remove(at);
    }
    true
}

/// Forgets the parent's contexts and opens the locks, in a forked child.
pub fn reborn() {
    // SAFETY: the child's thread that settles it, before any other goes on.
    unsafe {
        WRITING.reset(());
        ATTACHED.reset(Vec::new());
        ENDING.reset(Vec::new());
        ENDINGS.store(0, SeqCst);
        LAST_ENDED.reset([(0, 0); KNOWN]);
    }
}

/// The context and device that a stream's work belongs to: the stream's own, which need not be the current one.
///
/// # Cost
/// One driver call beyond [`current`]; more if the stream's context was never current.
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
    // SAFETY: a context that the driver has just named; what was current comes back.
    unsafe {
        if !own::cuCtxPushCurrent_v2()?(context).ok() {
            return None;
        }
        let found = current();
        let _ = own::cuCtxPopCurrent_v2()?(&raw mut now);
        found
    }
}
