//! The program's entry points into the driver: `cuInit`, and the driver's own lookup of functions.
#![allow(non_snake_case, clippy::missing_safety_doc)]

use crate::driver::library::CUDA;
use crate::ffi::arch::driver_lookups;
use crate::ffi::guard;
use crate::lookup::answer::swap;
use crate::lookup::bypasses;
use crate::member::{boot, enforce};
use crate::process::mode;
use core::ffi::{c_char, c_void};
use shim_sys::cuda::*;
use shim_sys::table::{CudaHook, cuda_fn};

pub unsafe fn cuInit(real: cuda_fn::cuInit, flags: u32) -> CUresult {
    enforce::settle_child();
    if boot::configuration().is_err() || mode::process_mode() == mode::ProcessMode::Failed {
        return CUresult::NOT_PERMITTED;
    }
    // SAFETY: the program's own argument.
    let result = unsafe { real(flags) };
    if result.ok() && boot::cuda_ready().is_err() {
        return CUresult::NOT_PERMITTED;
    }
    if result.ok() && mode::process_mode() == mode::ProcessMode::On && !mode::is_observing() {
        bypasses::search_and_record();
    }
    result
}

/// The driver's lookup function and false. If an interposer behind us has it, the interposer's and true: the
/// interposer then asks through a hook itself.
fn lookup_function(row: CudaHook) -> (*mut c_void, bool) {
    let real = CUDA.call_target(row as usize);
    if real.is_null() { (CUDA.interposer(row as usize), true) } else { (real, false) }
}

driver_lookups!(ask_driver, ask_driver_v2);

/// `cuGetProcAddress`, asked by code at `caller`.
pub unsafe extern "C" fn ask_driver(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
    caller: usize,
) -> CUresult {
    let (real, is_interposer) = lookup_function(CudaHook::cuGetProcAddress);
    // SAFETY: null (None) or the function of this name, whose signature is the table's.
    let Some(real) = (unsafe { core::mem::transmute::<*mut c_void, Option<cuda_fn::cuGetProcAddress>>(real) }) else {
        return CUresult::NOT_SUPPORTED;
    };
    // SAFETY: the program's own arguments.
    let result = unsafe { real(symbol, pfn, version, flags) };
    if is_interposer {
        return result;
    }
    // SAFETY: a successful driver has read the name and written the output.
    match guard::catch_panic(|| unsafe { answer_with_hook(result, symbol, pfn, caller) }) {
        Some(Ok(())) => result,
        Some(Err(())) => CUresult::NOT_FOUND,
        None => CUresult::NOT_PERMITTED,
    }
}

/// `cuGetProcAddress_v2`, asked by code at `caller`.
pub unsafe extern "C" fn ask_driver_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
    caller: usize,
) -> CUresult {
    let (real, is_interposer) = lookup_function(CudaHook::cuGetProcAddress_v2);
    // SAFETY: as above.
    let Some(real) = (unsafe { core::mem::transmute::<*mut c_void, Option<cuda_fn::cuGetProcAddress_v2>>(real) })
    else {
        return CUresult::NOT_SUPPORTED;
    };
    // SAFETY: the program's own arguments.
    let result = unsafe { real(symbol, pfn, version, flags, status) };
    if is_interposer {
        return result;
    }
    // SAFETY: as above.
    match guard::catch_panic(|| unsafe { answer_with_hook(result, symbol, pfn, caller) }) {
        Some(Ok(())) => {}
        Some(Err(())) => {
            // SAFETY: may be null, as for the driver, which has otherwise just written through it.
            if let Some(status) = unsafe { status.as_mut() } {
                *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
            }
        }
        None => return CUresult::NOT_PERMITTED,
    }
    result
}

/// Replaces the driver's answer by our hook; `Err`: nothing is handed out.
unsafe fn answer_with_hook(
    result: CUresult,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    caller: usize,
) -> Result<(), ()> {
    if !result.ok() || pfn.is_null() {
        return Ok(());
    }
    // SAFETY: by the caller's contract the driver has just written through this pointer and read the name.
    unsafe {
        let answer = swap(symbol, *pfn, caller);
        *pfn = answer.unwrap_or(core::ptr::null_mut());
        answer.map(drop).ok_or(())
    }
}
