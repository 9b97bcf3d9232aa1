//! Green contexts: they reserve part of a device's multiprocessors for the launches in them.
//!
//! Each holds the primary context of its device, and its creation creates that context if needed. This is charged as
//! if the program had retained the primary context. A launch in a green context is charged like any other, because
//! the driver names its device. Memory allocated in one belongs to the primary context and outlives the green one.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::context::{end_metered, primary_of, release_primary, retain_primary};
use crate::device::current;
use crate::driver::calls::{self, active_primary};
use crate::driver::green_contexts::GREEN_CONTEXTS;
use crate::member::enforce;
use crate::memory::allocation_records::{ADDRESS_RECORDS, ARRAY_RECORDS, AllocationRecord, EXTERNAL_RECORDS};
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;

pub unsafe fn cuGreenCtxCreate(
    real: cuda_fn::cuGreenCtxCreate,
    green: *mut CUgreenCtx,
    desc: CUdevResourceDesc,
    dev: CUdevice,
    flags: u32,
) -> CUresult {
    let result =
        retain_primary(dev, &mut || unsafe { real(green, desc, dev, flags) }, &|| active_primary(dev), &|| {
            calls::destroy_green_context(unsafe { *green });
        });
    if result.ok() && enforce::is_enforced_for_rare_call() == Ok(true) {
        GREEN_CONTEXTS.lock().push((unsafe { *green }.0 as usize, dev));
    }
    result
}

pub unsafe fn cuGreenCtxDestroy(real: cuda_fn::cuGreenCtxDestroy, green: CUgreenCtx) -> CUresult {
    let known = GREEN_CONTEXTS.lock().iter().find(|one| one.0 == green.0 as usize).copied();
    let Some((_, dev)) = known.filter(|_| enforce::is_enforced_for_rare_call() == Ok(true)) else {
        return unsafe { real(green) };
    };
    let told = calls::context_of_green(green);
    let current = told.unwrap_or(CUcontext::NULL);
    let is_named = !current.is_null();
    if is_named {
        hand_over(current, primary_of(dev));
    }
    // Taken out before, because the handle may be reused right after.
    GREEN_CONTEXTS.lock().retain(|one| one.0 != green.0 as usize);
    let release = || release_primary(dev, &mut || unsafe { real(green) });
    let result = if is_named { end_metered(current, release) } else { release() };
    if !result.ok() {
        GREEN_CONTEXTS.lock().push((green.0 as usize, dev));
    } else if told.is_some() {
        current::forget_context(current);
    }
    result
}

/// Moves the allocation records of a green context to the primary context.
fn hand_over(from: CUcontext, to: CUcontext) {
    for table in [&ADDRESS_RECORDS, &ARRAY_RECORDS, &EXTERNAL_RECORDS] {
        for (name, holding) in table.take_of_context(from) {
            table.insert_record(name, AllocationRecord { context: to.0 as usize, ..holding });
        }
    }
}
