//! Initialisation, version, error texts, and the lookup of functions.

use crate::door::{Answer, Door, put, put_if};
use crate::driver;
use crate::errors::ERRORS;
use crate::newer::NEWER;
use crate::versions::{FAMILIES, Family};
use core::ffi::{CStr, c_char, c_void};
use shim_sys::cuda::*;
use std::collections::HashMap;
use std::sync::OnceLock;
use vgpu_sim::release::Release;

pub(crate) unsafe fn cuInit(_: &Door, flags: u32) -> Answer {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    driver::initialise()
}

pub(crate) unsafe fn cuDriverGetVersion(_: &Door, version: *mut i32) -> Answer {
    unsafe { put(version, Release::current().cuda) }
}

pub(crate) unsafe fn cuGetErrorName(_: &Door, error: CUresult, text: *mut DriverText) -> Answer {
    unsafe { error_text(error, text, |e| e.1) }
}

pub(crate) unsafe fn cuGetErrorString(_: &Door, error: CUresult, text: *mut DriverText) -> Answer {
    unsafe { error_text(error, text, |e| e.2) }
}

unsafe fn error_text(
    error: CUresult,
    text: *mut DriverText,
    which: fn(&(u32, &'static CStr, &'static CStr)) -> &'static CStr,
) -> Answer {
    let found = ERRORS.iter().find(|e| e.0 == error.0);
    unsafe { put(text, found.map_or(core::ptr::null(), |e| which(e).as_ptr()))? };
    found.map(|_| ()).ok_or(CUresult::INVALID_VALUE)
}

/// Private tables are not simulated.
pub(crate) unsafe fn cuGetExportTable(_: &Door, table: *mut *const c_void, id: *const CUuuid) -> Answer {
    if id.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { put(table, core::ptr::null())? };
    Err(CUresult::NOT_FOUND)
}

/// Result of a lookup.
enum Found {
    At(*const c_void),
    Unknown,
    TooNew,
}

fn look_up(symbol: &CStr, version: i32, flags: u64) -> Found {
    static BY_BASE: OnceLock<HashMap<&'static str, Vec<&'static Family>>> = OnceLock::new();
    static BY_NAME: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    let families = BY_BASE.get_or_init(|| {
        let newer = if Release::current().is_newer() { NEWER } else { &[] };
        let mut all: HashMap<_, Vec<_>> = HashMap::new();
        for f in FAMILIES.iter().chain(newer) {
            all.entry(f.base).or_default().push(f);
        }
        all
    });
    let addresses = BY_NAME.get_or_init(|| crate::EXPORTS.iter().map(|(n, e)| (*n, e.0 as usize)).collect());
    let Some(known) = symbol.to_str().ok().and_then(|s| families.get(s)) else { return Found::Unknown };
    let per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD != 0;
    let mut variants = known.iter().flat_map(|f| f.per_thread.filter(|_| per_thread).unwrap_or(f.plain));
    // The real driver compares the version as unsigned, so -1 is newer than all.
    let newest = variants.rfind(|(since, _)| since.cast_unsigned() <= version.cast_unsigned());
    newest.and_then(|(_, name)| addresses.get(name)).map_or(Found::TooNew, |a| Found::At(*a as *const c_void))
}

pub(crate) unsafe fn cuGetProcAddress_v2(
    _: &Door,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> Answer {
    if symbol.is_null() || pfn.is_null() || flags > 3 {
        return Err(CUresult::INVALID_VALUE);
    }
    let (address, said) = match look_up(unsafe { CStr::from_ptr(symbol) }, version, flags) {
        Found::At(p) => (p, CU_GET_PROC_ADDRESS_SUCCESS),
        Found::Unknown => (core::ptr::null(), CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
        Found::TooNew => (core::ptr::null(), CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
    };
    unsafe {
        put_if(status, said);
        put(pfn, address.cast_mut())
    }
}

/// The old call reports only "not found", and then does not write the output.
pub(crate) unsafe fn cuGetProcAddress(
    d: &Door,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> Answer {
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
    unsafe { put(pfn, address) }
}

pub(crate) unsafe fn cuProfilerStart(_: &Door) -> Answer {
    Ok(())
}

pub(crate) unsafe fn cuProfilerStop(_: &Door) -> Answer {
    Ok(())
}
