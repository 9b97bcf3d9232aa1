//! Charges code and its globals, and the limits of a context, as overhead. Each is measured around the call that
//! takes it. It is released when code is unloaded, a limit is lowered or the context ends. A request that does not
//! fit is undone and refused.
//!
//! A library that is loaded with its code and does not fit is unloaded again. A library loaded without its code
//! belongs to the program. If a call then brings the code into a context and it does not fit, the call is refused.
//! The memory is charged all the same, because the driver keeps it until the program unloads the library. Nothing is
//! measured without a memory limit or without a current context.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]
// A hook has its driver function's arguments.
#![allow(clippy::too_many_arguments)]

use crate::device::table::Device;
use crate::driver::calls::{context_limit, unload_library, unload_module};
use crate::driver::library::DriverCall;
use crate::member::enforce;
use crate::memory::overhead::code::{self, CodeSource, LoadedHandle};
use crate::memory::overhead::{OverheadWatch, charge_spent, figures};
use crate::process::mode::Denied;
use core::ffi::{c_char, c_void};
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;

/// `CU_LIMIT_MALLOC_HEAP_SIZE`: the only limit whose bytes are known beforehand.
const MALLOC_HEAP_LIMIT: u32 = 2;

/// The current context and its device, if memory is limited there.
fn limited_context() -> Result<Option<(CUcontext, &'static Device)>, Denied> {
    Ok(enforce::on_current()?.filter(|(_, device)| device.memory_limit() != u64::MAX || device.is_observed()))
}

/// Runs `real` and charges the code it brought. `undo` unloads it, where that is possible.
fn load_measured(real: DriverCall<'_>, made: &dyn Fn() -> LoadedHandle, undo: Option<&dyn Fn()>) -> CUresult {
    let (context, device) = match limited_context() {
        Ok(Some(current)) => current,
        Ok(None) => return real(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
    };
    let first = code::is_first(device);
    let watch = OverheadWatch::begin_growth(device);
    let result = real();
    if !result.ok() {
        watch.finish_call(device, context);
        return result;
    }
    let bytes = load_growth(&watch, device, first);
    let answer = match (device.reserve_taken(bytes), undo) {
        (Ok(reservation), _) => {
            reservation.commit_overhead();
            // In this order: code memory held while no load is recorded would be released by another thread's unload.
            code::note_loaded(made(), context, device, bytes, !watch.has_overlapped());
            code::add(CodeSource::Code, context, device, bytes);
            result
        }
        (Err(refused), Some(undo)) => {
            undo();
            watch.note_attributed(-bytes.cast_signed());
            refused
        }
        (Err(refused), None) => {
            charge_spent(device, context, bytes);
            refused
        }
    };
    watch.finish_call(device, context);
    answer
}

/// The size of a load. If other threads' requests hide it, the first code of the process counts as at least the size
/// seen before.
fn load_growth(watch: &OverheadWatch, device: &Device, first: bool) -> u64 {
    let (bytes, exact) = watch.growth_seen();
    if !first || watch.has_overlapped() {
        return bytes;
    }
    if exact {
        figures::note_first_code(device, bytes);
        return bytes;
    }
    let least = figures::first_code(device).max(bytes);
    watch.note_attributed((least - bytes).cast_signed());
    least
}

/// Runs `real`, which unloads `made`, and releases the code memory it freed, on every device with charged code. If
/// other threads' requests hide that, the measured size of the load is released.
fn unload_measured(made: LoadedHandle, real: DriverCall<'_>) -> CUresult {
    if enforce::is_enforced_for_rare_call() != Ok(true) {
        return real();
    }
    let watches: Vec<_> =
        code::devices_with_code().into_iter().map(|device| (device, OverheadWatch::begin_growth(device))).collect();
    let result = real();
    let took = if result.ok() { code::note_unloaded(made) } else { None };
    for (device, watch) in watches {
        if result.ok() {
            let gone = watch.take_shrinkage();
            let known = took.filter(|(index, _)| *index == device.index).map_or(0, |(_, bytes)| bytes);
            let returned = code::give_back(device, gone.unwrap_or(known)) + code::beyond_what_is_loaded(device);
            watch.note_attributed(gone.unwrap_or(0).cast_signed() - returned.cast_signed());
        }
        watch.finish_call(device, CUcontext::NULL);
    }
    result
}

macro_rules! loads {
    ($($name:ident($($arg:ident : $ty:ty),*);)*) => {$(
        pub unsafe fn $name(real: cuda_fn::$name, module: *mut CUmodule, $($arg: $ty),*) -> CUresult {
            let loaded = || unsafe { *module };
            let mut call = || unsafe { real(module, $($arg),*) };
            load_measured(&mut call, &|| LoadedHandle::Module(loaded().0 as usize), Some(&|| unload_module(loaded())))
        }
    )*};
}

loads! {
    cuModuleLoad(path: *const c_char);
    cuModuleLoadData(image: *const c_void);
    cuModuleLoadDataEx(image: *const c_void, count: u32, options: *mut u32, values: *mut *mut c_void);
    cuModuleLoadFatBinary(image: *const c_void);
}

pub unsafe fn cuModuleUnload(real: cuda_fn::cuModuleUnload, module: CUmodule) -> CUresult {
    unload_measured(LoadedHandle::Module(module.0 as usize), &mut || unsafe { real(module) })
}

pub unsafe fn cuLibraryUnload(real: cuda_fn::cuLibraryUnload, library: CUlibrary) -> CUresult {
    unload_measured(LoadedHandle::Library(library.0 as usize), &mut || unsafe { real(library) })
}

macro_rules! brings {
    ($($name:ident($($arg:ident : $ty:ty),*);)*) => {$(
        pub unsafe fn $name(real: cuda_fn::$name, $($arg: $ty),*) -> CUresult {
            load_measured(&mut || unsafe { real($($arg),*) }, &|| LoadedHandle::Part, None)
        }
    )*};
}

brings! {
    cuLibraryGetModule(module: *mut CUmodule, library: CUlibrary);
    cuLibraryGetGlobal(dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
    cuLibraryGetManaged(dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
    cuKernelGetFunction(f: *mut CUfunction, kernel: CUkernel);
    cuFuncLoad(f: CUfunction);
}

macro_rules! libraries {
    ($($name:ident($from:ident : $ty:ty);)*) => {$(
        /// If libraries are loaded eagerly, this call brings their code into all existing contexts.
        pub unsafe fn $name(
            real: cuda_fn::$name,
            library: *mut CUlibrary,
            $from: $ty,
            jit_options: *mut u32,
            jit_values: *mut *mut c_void,
            jit_count: u32,
            options: *mut u32,
            values: *mut *mut c_void,
            count: u32,
        ) -> CUresult {
            let made = || unsafe { *library };
            let mut call =
                || unsafe { real(library, $from, jit_options, jit_values, jit_count, options, values, count) };
            load_measured(&mut call, &|| LoadedHandle::Library(made().0 as usize), Some(&|| unload_library(made())))
        }
    )*};
}

libraries! {
    cuLibraryLoadData(code: *const c_void);
    cuLibraryLoadFromFile(path: *const c_char);
}

/// Reserves the heap's growth before the call, because the driver may take that memory only when a launch first needs
/// it.
pub unsafe fn cuCtxSetLimit(real: cuda_fn::cuCtxSetLimit, limit: u32, value: usize) -> CUresult {
    let call = || unsafe { real(limit, value) };
    let (context, device) = match limited_context() {
        Ok(Some(current)) => current,
        Ok(None) => return call(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
    };
    let Some(old) = context_limit(limit) else { return call() };
    let ahead = if limit == MALLOC_HEAP_LIMIT { (value as u64).saturating_sub(old) } else { 0 };
    device.make_room(ahead);
    let watch = OverheadWatch::begin_growth(device);
    let reserved = match device.reserve(ahead) {
        Ok(reserved) => reserved,
        Err(refused) => {
            watch.finish_call(device, context);
            return refused;
        }
    };
    let result = call();
    if !result.ok() {
        drop(reserved);
        watch.finish_call(device, context);
        return result;
    }
    watch.note_attributed(ahead.cast_signed());
    reserved.commit_overhead();
    let key = CodeSource::Limit(limit);
    code::add(key, context, device, ahead);
    // If the driver takes the memory at once, the growth is visible and the surplus is released; otherwise the whole
    // amount stays charged.
    if ahead > 0 {
        match watch.take_shrinkage() {
            Some(less) if less < ahead => {
                let returned = code::give_back_of(key, Some(context), device, less);
                watch.note_attributed((less - returned).cast_signed());
            }
            Some(unseen) => watch.note_attributed(unseen.cast_signed()),
            None => {}
        }
    }
    let more = watch.take_growth();
    let answer = match device.reserve_taken(more) {
        Ok(reservation) => {
            reservation.commit_overhead();
            code::add(key, context, device, more);
            result
        }
        Err(refused) => {
            let _ = unsafe { real(limit, usize::try_from(old).unwrap_or(usize::MAX)) };
            watch.note_attributed(-(more + code::give_back_of(key, Some(context), device, ahead)).cast_signed());
            refused
        }
    };
    if answer.ok() && (value as u64) < old {
        // Memory that the driver gave back is measured; memory that was reserved but never taken is computed from the
        // values.
        let gone = watch.take_shrinkage().unwrap_or(0);
        let returned = code::give_back_of(key, Some(context), device, gone);
        watch.note_attributed((gone - returned).cast_signed());
        if limit == MALLOC_HEAP_LIMIT && gone == 0 {
            let returned = code::give_back_of(key, Some(context), device, old - value as u64);
            watch.note_attributed(-returned.cast_signed());
        }
    }
    watch.finish_call(device, context);
    answer
}
