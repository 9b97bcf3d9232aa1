//! Contexts: their overhead is charged when they begin, everything they hold is released when they have ended.
//!
//! What a context held is taken out *after* the driver has ended it, and only then: a destroy that fails, a release that
//! is not the last, change nothing. Until it is taken out, nobody is told of a new context with the same handle; a call
//! for the dying context that is still under way in another thread settles its own part (`context::fate`).
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on as they came;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]
// An ordinal for which `primary` answered is neither negative nor large.
#![allow(clippy::cast_sign_loss)]

use crate::arch::this_thread;
use crate::driver::{Call, own};
use crate::governor::Governor;
use crate::holdings::{ADDRESSES, ARRAYS, EXTERNALS};
use crate::ledger::Joined;
use crate::mode::Denied;
use crate::{clock, context, device, enforce, overhead};
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;

/// Primary contexts by CUDA ordinal, as the driver handed them out.
static PRIMARY: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// How often the program retained each of them.
static RETAINED: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// Threads that are about to retain each of them: an end waits for them, and they for an end, so that the driver's answer
/// on whether a context is active tells of the one that was to end.
static RETAINING: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// The thread that has its turn at each of them, 0: nobody; see [`Turn`].
static TURNS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

fn create(dev: CUdevice, handle: *mut CUcontext, real: Call<'_>) -> CUresult {
    match enforce::enforced() {
        Ok(false) => return real(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let Some(device) = device::by_cuda(dev) else { return real() };
    let mut call = || {
        let result = real();
        if result.ok() {
            context::wait_until(|| !context::is_ending(unsafe { *handle }));
        }
        result
    };
    overhead::around(device, &mut call, &|| unsafe { *handle }, &|context| {
        own::cuCtxDestroy_v2().is_some_and(|destroy| unsafe { destroy(context) }.ok())
    })
}

/// Asks the driver to end a context; `real` says whether it has.
fn end(handle: CUcontext, real: &mut dyn FnMut() -> (CUresult, bool)) -> CUresult {
    if handle.is_null() {
        return real().0;
    }
    context::ending(handle);
    let result = end_announced(handle, real);
    context::settled(handle);
    result
}

/// Ends a context, or a green one. The meter's events die with it, so that what they measured is read before; the rest
/// of its work is in flight until the driver has ended it.
pub(super) fn end_metered<T>(handle: CUcontext, real: impl FnOnce() -> T) -> T {
    let each = |tell: fn(&'static Governor, &Joined, CUcontext)| {
        for device in device::all() {
            if let (Some(governor), Ok(joined)) = (&device.governor, device.ledger.joined()) {
                tell(governor, joined, handle);
            }
        }
    };
    each(Governor::end_context);
    let result = real();
    each(Governor::context_ended);
    result
}

fn end_announced(handle: CUcontext, real: &mut dyn FnMut() -> (CUresult, bool)) -> CUresult {
    let mut announced = || {
        let (result, ended) = real();
        if ended {
            context::forget(handle);
            // First the mark, then the sweep: whoever has put a holding before is swept, whoever comes later sees it.
            context::ended(handle);
            let held = [&ADDRESSES, &ARRAYS, &EXTERNALS].map(|table| table.take_of_context(handle));
            held.into_iter().flatten().for_each(|(_, holding)| device::release(holding));
            crate::pools::context_ended();
        }
        (result, ended)
    };
    end_metered(handle, || overhead::ending(handle, &mut announced))
}

fn destroy(handle: CUcontext, real: Call<'_>) -> CUresult {
    if enforce::enforced() != Ok(true) {
        return real();
    }
    end(handle, &mut || {
        let result = real();
        (result, result.ok())
    })
}

macro_rules! creation {
    ($name:ident on $device:ident: $($arg:ident : $ty:ty),*) => {
        pub unsafe fn $name(real: cuda_fn::$name, ctx: *mut CUcontext, $($arg: $ty),*) -> CUresult {
            create($device, ctx, &mut || unsafe { real(ctx, $($arg),*) })
        }
    };
}

creation!(cuCtxCreate on dev: flags: u32, dev: CUdevice);
creation!(cuCtxCreate_v2 on dev: flags: u32, dev: CUdevice);
creation!(cuCtxCreate_v3 on dev: params: *mut c_void, count: i32, flags: u32, dev: CUdevice);
creation!(cuCtxCreate_v4 on dev: params: *mut CUctxCreateParams, flags: u32, dev: CUdevice);
creation!(cuGLCtxCreate on dev: flags: u32, dev: CUdevice);
creation!(cuGLCtxCreate_v2 on dev: flags: u32, dev: CUdevice);
creation!(cuVDPAUCtxCreate on dev: flags: u32, dev: CUdevice, vdp_device: u32, vdp_lookup: *mut c_void);
creation!(cuVDPAUCtxCreate_v2 on dev: flags: u32, dev: CUdevice, vdp_device: u32, vdp_lookup: *mut c_void);

pub unsafe fn cuCtxDestroy(real: cuda_fn::cuCtxDestroy, ctx: CUcontext) -> CUresult {
    destroy(ctx, &mut || unsafe { real(ctx) })
}

pub unsafe fn cuCtxDestroy_v2(real: cuda_fn::cuCtxDestroy_v2, ctx: CUcontext) -> CUresult {
    destroy(ctx, &mut || unsafe { real(ctx) })
}

pub unsafe fn cuCtxAttach(real: cuda_fn::cuCtxAttach, ctx: *mut CUcontext, flags: u32) -> CUresult {
    let result = unsafe { real(ctx, flags) };
    if result.ok() && enforce::enforced() == Ok(true) {
        context::attached(unsafe { *ctx });
    }
    result
}

/// Ends the context unless it was attached to more often than detached from. It must be the current one, and is that no
/// more if this has ended it.
pub unsafe fn cuCtxDetach(real: cuda_fn::cuCtxDetach, ctx: CUcontext) -> CUresult {
    if enforce::enforced() != Ok(true) {
        return unsafe { real(ctx) };
    }
    if context::detached(ctx) {
        let result = unsafe { real(ctx) };
        if !result.ok() {
            context::attached(ctx);
        }
        return result;
    }
    end(ctx, &mut || {
        let result = unsafe { real(ctx) };
        let mut now = CUcontext::NULL;
        let told = result.ok() && own::cuCtxGetCurrent().is_some_and(|ask| unsafe { ask(&raw mut now) }.ok());
        (result, told && now != ctx)
    })
}

fn is_active(dev: CUdevice) -> bool {
    let (mut flags, mut active) = (0, 0);
    own::cuDevicePrimaryCtxGetState()
        .is_some_and(|state| unsafe { state(dev, &raw mut flags, &raw mut active) }.ok() && active != 0)
}

fn primary(dev: CUdevice) -> Option<&'static AtomicUsize> {
    PRIMARY.get(usize::try_from(dev).ok()?)
}

/// The primary context's place, where anything is enforced: else the driver is asked nothing but what the program asks.
fn limited_primary(dev: CUdevice) -> Option<&'static AtomicUsize> {
    (enforce::enforced() == Ok(true)).then(|| primary(dev)).flatten()
}

/// Forgets the parent's primary contexts, in a forked child.
pub fn forget_primaries() {
    for word in PRIMARY.iter().chain(&RETAINED).chain(&RETAINING).chain(&TURNS) {
        word.store(0, Relaxed);
    }
    super::green::forget();
}

/// The primary context of a device, as the driver handed it out last.
pub(super) fn primary_of(dev: CUdevice) -> CUcontext {
    primary(dev).map_or(CUcontext::NULL, |slot| CUcontext(slot.load(Acquire) as *mut c_void))
}

pub unsafe fn cuDevicePrimaryCtxRetain(
    real: cuda_fn::cuDevicePrimaryCtxRetain,
    ctx: *mut CUcontext,
    dev: CUdevice,
) -> CUresult {
    retain_primary(dev, &mut || unsafe { real(ctx, dev) }, &|| unsafe { *ctx }, &|| {
        if let Some(release) = own::cuDevicePrimaryCtxRelease_v2() {
            let _ = unsafe { release(dev) };
        }
    })
}

/// A call that retains a primary context, and makes it if there is none. `handle`: the context, once it succeeded;
/// `undo` takes it back.
pub(super) fn retain_primary(
    dev: CUdevice,
    real: Call<'_>,
    handle: &dyn Fn() -> CUcontext,
    undo: &dyn Fn(),
) -> CUresult {
    match enforce::enforced() {
        Ok(false) => return real(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let (Some(device), Some(slot)) = (device::by_cuda(dev), primary(dev)) else { return real() };
    let retaining = &RETAINING[dev as usize];
    let known = || CUcontext(slot.load(SeqCst) as *mut c_void);
    // Counted first, then looked: of a retain and an end that meet, one sees the other.
    retaining.fetch_add(1, SeqCst);
    context::wait_until(|| {
        if !context::is_ending(known()) {
            return true;
        }
        retaining.fetch_sub(1, SeqCst);
        context::wait_until(|| !context::is_ending(known()));
        retaining.fetch_add(1, SeqCst);
        false
    });
    let result = retain(device, dev, slot, real, handle, undo);
    retaining.fetch_sub(1, SeqCst);
    result
}

fn retain(
    device: &'static device::Device,
    dev: CUdevice,
    slot: &AtomicUsize,
    real: Call<'_>,
    handle: &dyn Fn() -> CUcontext,
    undo: &dyn Fn(),
) -> CUresult {
    let mut call = || {
        let result = real();
        if result.ok() {
            slot.store(handle().0 as usize, Release);
            RETAINED[dev as usize].fetch_add(1, AcqRel);
        }
        result
    };
    let _turn = Turn::take(&TURNS[dev as usize], TURN_PATIENCE_NS);
    if is_active(dev) {
        return call();
    }
    overhead::around(device, &mut call, handle, &|_| {
        RETAINED[dev as usize].fetch_sub(1, AcqRel);
        undo();
        !is_active(dev)
    })
}

/// The turn of one thread at a primary context: nobody else is handed it before what it takes is charged. Who had it
/// earlier would fill the limit meanwhile, and keep the context alive where it does not fit and is taken back.
///
/// It is held while the driver works, which may call back: a thread that has it needs none. `None` stands for that.
struct Turn(Option<&'static AtomicUsize>);

/// Longer than any driver makes a context.
const TURN_PATIENCE_NS: u64 = 60_000_000_000;

impl Turn {
    /// Waits for it, as the driver lets threads wait for a context that another one makes. From a thread that has kept it
    /// for `patience` nanoseconds it is taken: that one does not come back, and those who come later need not wait for it.
    fn take(turn: &'static AtomicUsize, patience: u64) -> Turn {
        let me = this_thread();
        let (mut had_by, mut since) = (0, clock::now());
        loop {
            match turn.compare_exchange(0, me, SeqCst, SeqCst) {
                Ok(_) => return Turn(Some(turn)),
                Err(owner) if owner == me => return Turn(None),
                Err(owner) if owner != had_by => (had_by, since) = (owner, clock::now()),
                Err(owner) if clock::now().saturating_sub(since) >= patience => {
                    if turn.compare_exchange(owner, me, SeqCst, Relaxed).is_ok() {
                        return Turn(Some(turn));
                    }
                }
                Err(_) => {}
            }
            clock::sleep(50_000);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Another thread's by now: it was taken from this one.
        self.0.into_iter().for_each(|turn| _ = turn.compare_exchange(this_thread(), 0, SeqCst, Relaxed));
    }
}

/// Ends a primary context, if `real` really does: the driver is asked whether it is active afterwards.
fn end_primary(dev: CUdevice, handle: CUcontext, real: Call<'_>) -> CUresult {
    if handle.is_null() {
        return real();
    }
    context::ending(handle);
    context::wait_until(|| RETAINING[dev as usize].load(SeqCst) == 0);
    let result = end_announced(handle, &mut || {
        let result = real();
        (result, result.ok() && !is_active(dev))
    });
    context::settled(handle);
    result
}

/// Releases a primary context. Only what should be the last release may end it: an earlier one leaves the measurements of
/// a living context alone.
pub(super) fn release_primary(dev: CUdevice, real: Call<'_>) -> CUresult {
    let Some(slot) = limited_primary(dev) else { return real() };
    let handle = CUcontext(slot.load(Acquire) as *mut c_void);
    let retained = &RETAINED[dev as usize];
    let fewer = |count: usize| count.checked_sub(1);
    let before = retained.fetch_update(AcqRel, Acquire, fewer).unwrap_or(0);
    let mut counted = || {
        let result = real();
        if !result.ok() && before > 0 {
            retained.fetch_add(1, AcqRel);
        }
        result
    };
    if before > 1 {
        let result = counted();
        // Of two threads the one that counted last need not be the one that the driver served last.
        return if result.ok() && !is_active(dev) { end(handle, &mut || (result, true)) } else { result };
    }
    end_primary(dev, handle, &mut counted)
}

fn reset_primary(dev: CUdevice, real: Call<'_>) -> CUresult {
    match limited_primary(dev) {
        Some(slot) => end_primary(dev, CUcontext(slot.load(Acquire) as *mut c_void), real),
        None => real(),
    }
}

pub unsafe fn cuDevicePrimaryCtxRelease(real: cuda_fn::cuDevicePrimaryCtxRelease, dev: CUdevice) -> CUresult {
    release_primary(dev, &mut || unsafe { real(dev) })
}

pub unsafe fn cuDevicePrimaryCtxRelease_v2(real: cuda_fn::cuDevicePrimaryCtxRelease_v2, dev: CUdevice) -> CUresult {
    release_primary(dev, &mut || unsafe { real(dev) })
}

pub unsafe fn cuDevicePrimaryCtxReset(real: cuda_fn::cuDevicePrimaryCtxReset, dev: CUdevice) -> CUresult {
    reset_primary(dev, &mut || unsafe { real(dev) })
}

pub unsafe fn cuDevicePrimaryCtxReset_v2(real: cuda_fn::cuDevicePrimaryCtxReset_v2, dev: CUdevice) -> CUresult {
    reset_primary(dev, &mut || unsafe { real(dev) })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // threads of a test's own
mod tests {
    use super::*;

    const LONG: u64 = 3_600_000_000_000;

    #[test]
    fn a_thread_that_retains_inside_its_own_retain_does_not_wait_for_itself() {
        static TURN: AtomicUsize = AtomicUsize::new(0);
        let done = std::sync::Arc::new(AtomicUsize::new(0));
        let inside = done.clone();
        let thread = std::thread::spawn(move || {
            let _outer = Turn::take(&TURN, LONG);
            drop(Turn::take(&TURN, LONG));
            inside.store(TURN.load(SeqCst), SeqCst);
            this_thread()
        });
        let begin = clock::now();
        while !thread.is_finished() {
            assert!(clock::now() - begin < 20_000_000_000, "it waits for itself");
            clock::sleep(1_000_000);
        }
        assert_eq!(done.load(SeqCst), thread.join().unwrap(), "the outer one keeps the turn");
        assert_eq!(TURN.load(SeqCst), 0);
    }

    #[test]
    fn a_holder_that_never_returns_is_waited_for_once_and_clears_nobody_elses_turn() {
        static TURN: AtomicUsize = AtomicUsize::new(0);
        let (me, stuck) = (this_thread(), Turn(Some(&TURN)));
        TURN.store(me, SeqCst);
        std::thread::spawn(move || {
            let taken = Turn::take(&TURN, 10_000_000);
            let owner = TURN.load(SeqCst);
            assert_eq!(owner, this_thread(), "it is taken over");
            // What the lost holder does when it returns after all is done by its own thread.
            assert!(TURN.compare_exchange(me, 0, SeqCst, SeqCst).is_err());
            drop(taken);
            assert_eq!(TURN.load(SeqCst), 0);
            // Nobody waits for the lost one again.
            core::mem::forget(Turn::take(&TURN, LONG));
        })
        .join()
        .unwrap();
        let others = TURN.load(SeqCst);
        assert!(others != 0 && others != me);
        drop(stuck);
        assert_eq!(TURN.load(SeqCst), others, "another's turn stands");
    }
}
