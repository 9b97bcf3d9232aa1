//! What has one answer for every tenant: what changes a device (not permitted), what tells of the device as a whole where
//! nobody can tell what of it is the tenant's (not supported). Whoever has no limits gets the driver's own function.
//!
//! None of them needs a function of ours: each export is a jump to one way for all of them (`arch::shut`),
//! which asks [`judge_shut`] and keeps the arguments as they came.

use super::{is_tenant, limited};
use crate::driver::NVML;
use crate::{arch, door};
use shim_sys::nvml::{nvmlDevice_t, nvmlReturn_t};
use shim_sys::table::{Action, NVML_ROWS};

/// The first row that hides: those before it deny.
const HIDES: usize = {
    let mut row = 0;
    while !matches!(NVML_ROWS[row].action, Action::Hide(_)) {
        row += 1;
    }
    row
};

/// The answer's code, or where the function is that is jumped to. `first` is the call's first argument.
pub extern "C" fn judge_shut(row: usize, first: usize) -> usize {
    if !NVML.has_function(row) {
        return nvmlReturn_t::FUNCTION_NOT_FOUND.0 as usize;
    }
    let code = door::guard(|| verdict(row, first)).unwrap_or(Some(nvmlReturn_t::NO_PERMISSION));
    if let Some(code) = code {
        return code.0 as usize;
    }
    // Asked for last: `detour` takes the row from this thread's last question.
    let real = NVML.call(row) as usize;
    if real == 0 { arch::detour as *const () as usize } else { real }
}

fn verdict(row: usize, first: usize) -> Option<nvmlReturn_t> {
    if row < HIDES {
        return is_tenant().unwrap_or(true).then_some(nvmlReturn_t::NO_PERMISSION);
    }
    // All of them begin with the device, whose name the driver is asked: a word that is none is its to refuse.
    match limited(nvmlDevice_t(first as *mut _)) {
        Ok(device) => device.map(|_| nvmlReturn_t::NOT_SUPPORTED),
        Err(_) => Some(nvmlReturn_t::NO_PERMISSION),
    }
}
