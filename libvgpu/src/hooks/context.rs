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
use crate::driver::calls::{self, is_primary_active as is_active};
use crate::driver::contexts;
use crate::driver::library::DriverCall;
use crate::driver::primary_contexts::{
    PRIMARY_CONTEXTS, PRIMARY_TURN_TIMEOUT_NS, PRIMARY_TURNS, PrimaryTurn, RETAIN_COUNTS, RETAINING_THREADS,
};
use crate::ledger::joined::JoinedLedger;
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

fn create_context(dev: CUdevice, handle: *mut CUcontext, real: DriverCall<'_>) -> CUresult {
    match enforce::is_enforced_for_rare_call() {
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
    // Contexts that begin at once would each be charged for the others too, until one of them was measured alone.
    let turn = PRIMARY_TURNS.get(dev as usize).filter(|_| overhead::is_size_unknown(device));
    let _turn = turn.map(|turn| PrimaryTurn::wait_for_turn(turn, PRIMARY_TURN_TIMEOUT_NS));
    overhead::create_charged(device, &mut call, &|| unsafe { *handle }, &calls::destroy_context)
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
    if enforce::is_enforced_for_rare_call() != Ok(true) {
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
    if result.ok() && enforce::is_enforced_for_rare_call() == Ok(true) {
        contexts::note_attached(unsafe { *ctx });
    }
    result
}

/// Ends the context unless it was attached more often than detached. The context must be current; it no longer is if
/// this call has ended it.
pub unsafe fn cuCtxDetach(real: cuda_fn::cuCtxDetach, ctx: CUcontext) -> CUresult {
    if enforce::is_enforced_for_rare_call() != Ok(true) {
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
        (result, result.ok() && calls::current_context().is_some_and(|now| now != ctx))
    })
}

fn primary_slot(dev: CUdevice) -> Option<&'static AtomicUsize> {
    PRIMARY_CONTEXTS.get(usize::try_from(dev).ok()?)
}

/// The primary context's entry, if anything is enforced. Otherwise the driver gets only the program's own calls.
fn limited_primary(dev: CUdevice) -> Option<&'static AtomicUsize> {
    (enforce::is_enforced_for_rare_call() == Ok(true)).then(|| primary_slot(dev)).flatten()
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
    retain_primary(dev, &mut || unsafe { real(ctx, dev) }, &|| unsafe { *ctx }, &|| calls::release_primary(dev))
}

/// Makes a call that retains a primary context and creates it if needed. `handle` returns the context after success;
/// `undo` releases it again.
pub(super) fn retain_primary(
    dev: CUdevice,
    real: DriverCall<'_>,
    handle: &dyn Fn() -> CUcontext,
    undo: &dyn Fn(),
) -> CUresult {
    match enforce::is_enforced_for_rare_call() {
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
