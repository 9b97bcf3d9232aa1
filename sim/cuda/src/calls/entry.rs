//! Initialisation, version, error texts, and the lookup of functions.

use crate::driver;
use crate::entry_points::{CallFrame, ExportTable, put_if, write_output};
use crate::errors::{CallResult, ERROR_TEXTS};
use crate::newer::NEWER_FAMILIES;
use crate::versions::{NAME_FAMILIES, NameFamily};
use core::ffi::{CStr, c_char, c_void};
use shim_sys::cuda::*;
use std::collections::HashMap;
use std::sync::OnceLock;
use vgpu_sim::release::DriverRelease;

pub(crate) unsafe fn cuInit(_: &CallFrame, flags: u32) -> CallResult {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    driver::initialise_driver()
}

pub(crate) unsafe fn cuDriverGetVersion(_: &CallFrame, version: *mut i32) -> CallResult {
    unsafe { write_output(version, DriverRelease::current().cuda) }
}

pub(crate) unsafe fn cuGetErrorName(_: &CallFrame, error: CUresult, text: *mut DriverText) -> CallResult {
    unsafe { error_text(error, text, |e| e.1) }
}

pub(crate) unsafe fn cuGetErrorString(_: &CallFrame, error: CUresult, text: *mut DriverText) -> CallResult {
    unsafe { error_text(error, text, |e| e.2) }
}

unsafe fn error_text(
    error: CUresult,
    text: *mut DriverText,
    which: fn(&(u32, &'static CStr, &'static CStr)) -> &'static CStr,
) -> CallResult {
    let found = ERROR_TEXTS.iter().find(|e| e.0 == error.0);
    unsafe { write_output(text, found.map_or(core::ptr::null(), |e| which(e).as_ptr()))? };
    found.map(|_| ()).ok_or(CUresult::INVALID_VALUE)
}

/// Private tables are not simulated.
pub(crate) unsafe fn cuGetExportTable(_: &CallFrame, table: *mut *const c_void, id: *const CUuuid) -> CallResult {
    if id.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { write_output(table, core::ptr::null())? };
    Err(CUresult::NOT_FOUND)
}

/// Result of a lookup.
enum LookupOutcome {
    At(*const c_void),
    Unknown,
    TooNew,
}

fn look_up(exports: ExportTable, symbol: &CStr, version: i32, flags: u64) -> LookupOutcome {
    static FAMILIES_BY_BASE: OnceLock<HashMap<&'static str, Vec<&'static NameFamily>>> = OnceLock::new();
    static EXPORTS_BY_NAME: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    let families = FAMILIES_BY_BASE.get_or_init(|| {
        let newer = if DriverRelease::current().is_newer() { NEWER_FAMILIES } else { &[] };
        let mut all: HashMap<_, Vec<_>> = HashMap::new();
        for f in NAME_FAMILIES.iter().chain(newer) {
            all.entry(f.base).or_default().push(f);
        }
        all
    });
    let addresses = EXPORTS_BY_NAME.get_or_init(|| exports.iter().map(|(n, e)| (*n, e.0 as usize)).collect());
    let Some(known) = symbol.to_str().ok().and_then(|s| families.get(s)) else { return LookupOutcome::Unknown };
    let per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD != 0;
    let mut variants = known.iter().flat_map(|f| f.per_thread.filter(|_| per_thread).unwrap_or(f.plain));
    // The real driver compares the version as unsigned, so -1 is newer than all.
    let newest = variants.rfind(|(since, _)| since.cast_unsigned() <= version.cast_unsigned());
    newest
        .and_then(|(_, name)| addresses.get(name))
        .map_or(LookupOutcome::TooNew, |a| LookupOutcome::At(*a as *const c_void))
}

pub(crate) unsafe fn cuGetProcAddress_v2(
    d: &CallFrame,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> CallResult {
    if symbol.is_null() || pfn.is_null() || flags > 3 {
        return Err(CUresult::INVALID_VALUE);
    }
    let (address, said) = match look_up(d.exports, unsafe { CStr::from_ptr(symbol) }, version, flags) {
        LookupOutcome::At(p) => (p, CU_GET_PROC_ADDRESS_SUCCESS),
        LookupOutcome::Unknown => (core::ptr::null(), CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
        LookupOutcome::TooNew => (core::ptr::null(), CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
    };
    unsafe {
        put_if(status, said);
        write_output(pfn, address.cast_mut())
    }
}

/// The old call reports only "not found", and then does not write the output.
pub(crate) unsafe fn cuGetProcAddress(
    d: &CallFrame,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> CallResult {
    let (mut said, mut address) = (0, core::ptr::null_mut());
    if pfn.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe {
        cuGetProcAddress_v2(d, symbol, &raw mut address, version, flags, &raw mut said)?;
    }
    if said != CU_GET_PROC_ADDRESS_SUCCESS {
        return Err(CUresult::NOT_FOUND);
    }
    unsafe { write_output(pfn, address) }
}

pub(crate) unsafe fn cuProfilerStart(_: &CallFrame) -> CallResult {
    Ok(())
}

pub(crate) unsafe fn cuProfilerStop(_: &CallFrame) -> CallResult {
    Ok(())
}
