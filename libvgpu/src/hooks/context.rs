//! Contexts: their overhead is charged when they are created, and all they hold is released after they have ended.
//!
//! The records of a context are removed only *after* the driver has ended it, so a failed destroy, or a release that
//! is not the last, changes nothing. Until they are removed, no caller gets a new context with the same handle. A
//! call for the dying context that is still in flight in another thread releases its own charge (`contexts::fate`).
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]
// An ordinal for which `primary` returned an entry is neither negative nor large.
#![allow(clippy::cast_sign_loss)]

use crate::device::current;
use crate::device::table;
use crate::driver::contexts;
use crate::driver::library::DriverCall;
use crate::driver::own;
use crate::ffi::arch::this_thread;
use crate::ffi::clock;
use crate::ledger::file::JoinedLedger;
use crate::member::enforce;
use crate::memory::allocation_records::{ADDRESS_RECORDS, ARRAY_RECORDS, EXTERNAL_RECORDS};
use crate::memory::release::release_record;
use crate::memory::{deferred_frees, overhead};
use crate::process::mode::Denied;
use crate::time::governor::Governor;
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;

/// Primary contexts by CUDA ordinal, as the driver returned them last.
static PRIMARY_CONTEXTS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// How often the program has retained each primary context.
static RETAIN_COUNTS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// Threads that are about to retain each primary context. An end waits for them, and they wait for an end. So when
/// the driver is asked whether the context is active, the answer is about the one that was to end.
static RETAINING_THREADS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
/// The thread that has its turn at each primary context; 0: none; see [`PrimaryTurn`].
static PRIMARY_TURNS: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

fn create_context(dev: CUdevice, handle: *mut CUcontext, real: DriverCall<'_>) -> CUresult {
    match enforce::is_enforced() {
        Ok(false) => return real(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let Some(device) = table::by_cuda(dev) else { return real() };
    let mut call = || {
        let result = real();
        if result.ok() {
            contexts::wait_until(|| !contexts::is_ending(unsafe { *handle }));
        }
        result
    };
    overhead::create_charged(device, &mut call, &|| unsafe { *handle }, &|context| {
        own::cuCtxDestroy_v2().is_some_and(|destroy| unsafe { destroy(context) }.ok())
    })
}

/// Asks the driver to end a context; `real` returns whether it has ended.
fn end_context(handle: CUcontext, real: &mut dyn FnMut() -> (CUresult, bool)) -> CUresult {
    if handle.is_null() {
        return real().0;
    }
    announce_end(handle);
    let result = end_announced(handle, real);
    contexts::finish_end(handle);
    result
}

/// Records that the driver is about to be asked to end a context, and with it the markers in its streams.
fn announce_end(handle: CUcontext) {
    contexts::begin_end(handle);
    deferred_frees::context_ending();
}

/// Ends a context or a green context. The meter's event markers die with it, so they are read before. The rest of its
/// work counts as in flight until the driver has ended it.
pub(super) fn end_metered<T>(handle: CUcontext, real: impl FnOnce() -> T) -> T {
    let each = |tell: fn(&'static Governor, &JoinedLedger, CUcontext)| {
        for device in table::all() {
            if let (Some(governor), Ok(joined)) = (&device.governor, device.ledger.membership()) {
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
            current::forget_context(handle);
            // First mark, then sweep: records stored before the mark are swept, and later callers see the mark.
            contexts::note_ended(handle);
            let held = [&ADDRESS_RECORDS, &ARRAY_RECORDS, &EXTERNAL_RECORDS].map(|table| table.take_of_context(handle));
            held.into_iter().flatten().for_each(|(_, holding)| release_record(holding));
            crate::memory::pools::context_ended();
        }
        (result, ended)
    };
    end_metered(handle, || overhead::end_charged(handle, &mut announced))
}

fn destroy_context(handle: CUcontext, real: DriverCall<'_>) -> CUresult {
    if enforce::is_enforced() != Ok(true) {
        return real();
    }
    end_context(handle, &mut || {
        let result = real();
        (result, result.ok())
    })
}

macro_rules! creation {
    ($name:ident on $device:ident: $($arg:ident : $ty:ty),*) => {
        pub unsafe fn $name(real: cuda_fn::$name, ctx: *mut CUcontext, $($arg: $ty),*) -> CUresult {
            create_context($device, ctx, &mut || unsafe { real(ctx, $($arg),*) })
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
    destroy_context(ctx, &mut || unsafe { real(ctx) })
}

pub unsafe fn cuCtxDestroy_v2(real: cuda_fn::cuCtxDestroy_v2, ctx: CUcontext) -> CUresult {
    destroy_context(ctx, &mut || unsafe { real(ctx) })
}

pub unsafe fn cuCtxAttach(real: cuda_fn::cuCtxAttach, ctx: *mut CUcontext, flags: u32) -> CUresult {
    let result = unsafe { real(ctx, flags) };
    if result.ok() && enforce::is_enforced() == Ok(true) {
        contexts::note_attached(unsafe { *ctx });
    }
    result
}

/// Ends the context unless it was attached more often than detached. The context must be current; it no longer is if
/// this call has ended it.
pub unsafe fn cuCtxDetach(real: cuda_fn::cuCtxDetach, ctx: CUcontext) -> CUresult {
    if enforce::is_enforced() != Ok(true) {
        return unsafe { real(ctx) };
    }
    if contexts::take_attachment(ctx) {
        let result = unsafe { real(ctx) };
        if !result.ok() {
            contexts::note_attached(ctx);
        }
        return result;
    }
    end_context(ctx, &mut || {
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

fn primary_slot(dev: CUdevice) -> Option<&'static AtomicUsize> {
    PRIMARY_CONTEXTS.get(usize::try_from(dev).ok()?)
}

/// The primary context's entry, if anything is enforced. Otherwise the driver gets only the program's own calls.
fn limited_primary(dev: CUdevice) -> Option<&'static AtomicUsize> {
    (enforce::is_enforced() == Ok(true)).then(|| primary_slot(dev)).flatten()
}

/// Clears the parent's primary contexts in a forked child.
pub fn forget_primaries() {
    for word in PRIMARY_CONTEXTS.iter().chain(&RETAIN_COUNTS).chain(&RETAINING_THREADS).chain(&PRIMARY_TURNS) {
        word.store(0, Relaxed);
    }
    super::green::reset_after_fork();
}

/// The primary context of a device, as the driver returned it last.
pub(super) fn primary_of(dev: CUdevice) -> CUcontext {
    primary_slot(dev).map_or(CUcontext::NULL, |slot| CUcontext(slot.load(Acquire) as *mut c_void))
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

/// Makes a call that retains a primary context and creates it if needed. `handle` returns the context after success;
/// `undo` releases it again.
pub(super) fn retain_primary(
    dev: CUdevice,
    real: DriverCall<'_>,
    handle: &dyn Fn() -> CUcontext,
    undo: &dyn Fn(),
) -> CUresult {
    match enforce::is_enforced() {
        Ok(false) => return real(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let (Some(device), Some(slot)) = (table::by_cuda(dev), primary_slot(dev)) else { return real() };
    let retaining = &RETAINING_THREADS[dev as usize];
    let known = || CUcontext(slot.load(SeqCst) as *mut c_void);
    // Count first, then check: if a retain and an end overlap, at least one sees the other.
    retaining.fetch_add(1, SeqCst);
    contexts::wait_until(|| {
        if !contexts::is_ending(known()) {
            return true;
        }
        retaining.fetch_sub(1, SeqCst);
        contexts::wait_until(|| !contexts::is_ending(known()));
        retaining.fetch_add(1, SeqCst);
        false
    });
    let result = retain_counted(device, dev, slot, real, handle, undo);
    retaining.fetch_sub(1, SeqCst);
    result
}

fn retain_counted(
    device: &'static table::Device,
    dev: CUdevice,
    slot: &AtomicUsize,
    real: DriverCall<'_>,
    handle: &dyn Fn() -> CUcontext,
    undo: &dyn Fn(),
) -> CUresult {
    let mut call = || {
        let result = real();
        if result.ok() {
            slot.store(handle().0 as usize, Release);
            RETAIN_COUNTS[dev as usize].fetch_add(1, AcqRel);
        }
        result
    };
    let _turn = PrimaryTurn::wait_for_turn(&PRIMARY_TURNS[dev as usize], PRIMARY_TURN_TIMEOUT_NS);
    if is_active(dev) {
        return call();
    }
    overhead::create_charged(device, &mut call, handle, &|_| {
        RETAIN_COUNTS[dev as usize].fetch_sub(1, AcqRel);
        undo();
        !is_active(dev)
    })
}

/// One thread's exclusive turn at a primary context: no other thread gets the context before its overhead is charged.
/// Otherwise a thread that gets it earlier could fill the limit meanwhile, or keep alive a context that does not fit
/// and is released again.
///
/// The turn is held during the driver call, which may call back into a hook: a thread that has the turn needs no
/// second one. `None` stands for that.
struct PrimaryTurn(Option<&'static AtomicUsize>);

/// Longer than any driver takes to create a context: 60 s.
const PRIMARY_TURN_TIMEOUT_NS: u64 = 60_000_000_000;

impl PrimaryTurn {
    /// Waits for the turn, as the driver makes threads wait for a context that another one creates. A thread that has
    /// kept its turn for `patience` nanoseconds loses it: it is assumed never to return, and later threads need not
    /// wait for it.
    fn wait_for_turn(turn: &'static AtomicUsize, patience: u64) -> PrimaryTurn {
        let me = this_thread();
        let (mut had_by, mut since) = (0, clock::now());
        loop {
            match turn.compare_exchange(0, me, SeqCst, SeqCst) {
                Ok(_) => return PrimaryTurn(Some(turn)),
                Err(owner) if owner == me => return PrimaryTurn(None),
                Err(owner) if owner != had_by => (had_by, since) = (owner, clock::now()),
                Err(owner) if clock::now().saturating_sub(since) >= patience => {
                    if turn.compare_exchange(owner, me, SeqCst, Relaxed).is_ok() {
                        return PrimaryTurn(Some(turn));
                    }
                }
                Err(_) => {}
            }
            clock::sleep(50_000);
        }
    }
}

impl Drop for PrimaryTurn {
    fn drop(&mut self) {
        // No effect if another thread has taken the turn over.
        self.0.into_iter().for_each(|turn| _ = turn.compare_exchange(this_thread(), 0, SeqCst, Relaxed));
    }
}

/// Ends a primary context if `real` really does: afterwards the driver is asked whether it is active.
fn end_primary(dev: CUdevice, handle: CUcontext, real: DriverCall<'_>) -> CUresult {
    if handle.is_null() {
        return real();
    }
    announce_end(handle);
    contexts::wait_until(|| RETAINING_THREADS[dev as usize].load(SeqCst) == 0);
    let result = end_announced(handle, &mut || {
        let result = real();
        (result, result.ok() && !is_active(dev))
    });
    contexts::finish_end(handle);
    result
}

/// Releases a primary context. Only the release that should be the last may end it, so an earlier one does not
/// disturb the measurements of a living context.
pub(super) fn release_primary(dev: CUdevice, real: DriverCall<'_>) -> CUresult {
    let Some(slot) = limited_primary(dev) else { return real() };
    let handle = CUcontext(slot.load(Acquire) as *mut c_void);
    let retained = &RETAIN_COUNTS[dev as usize];
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
        // If two threads release at once, the last to count need not be the last that the driver served.
        return if result.ok() && !is_active(dev) { end_context(handle, &mut || (result, true)) } else { result };
    }
    end_primary(dev, handle, &mut counted)
}

fn reset_primary(dev: CUdevice, real: DriverCall<'_>) -> CUresult {
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
            let _outer = PrimaryTurn::wait_for_turn(&TURN, LONG);
            drop(PrimaryTurn::wait_for_turn(&TURN, LONG));
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
        let (me, stuck) = (this_thread(), PrimaryTurn(Some(&TURN)));
        TURN.store(me, SeqCst);
        std::thread::spawn(move || {
            let taken = PrimaryTurn::wait_for_turn(&TURN, 10_000_000);
            let owner = TURN.load(SeqCst);
            assert_eq!(owner, this_thread(), "it is taken over");
            // The lost holder's drop runs on its own thread, so it is imitated here.
            assert!(TURN.compare_exchange(me, 0, SeqCst, SeqCst).is_err());
            drop(taken);
            assert_eq!(TURN.load(SeqCst), 0);
            // No thread waits for the lost holder again.
            core::mem::forget(PrimaryTurn::wait_for_turn(&TURN, LONG));
        })
        .join()
        .unwrap();
        let others = TURN.load(SeqCst);
        assert!(others != 0 && others != me);
        drop(stuck);
        assert_eq!(TURN.load(SeqCst), others, "another's turn stands");
    }
}
