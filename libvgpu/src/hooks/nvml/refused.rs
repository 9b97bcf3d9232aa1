//! NVML functions with one answer for every tenant. Functions that change a device are not permitted. Functions that
//! report on the whole device, where no part can be attributed to the tenant, are not supported. A process without
//! limits gets the driver's own function.
//!
//! None of them has a hook function: each export jumps to one common stub ([`shut`]), which calls [`judge_shut`]
//! and keeps the arguments unchanged.

use super::{is_tenant, limited_device};
use crate::driver::library::{NVML, detour};
use crate::ffi::arch::judged_jump;
use crate::ffi::guard;
use shim_sys::nvml::{nvmlDevice_t, nvmlReturn_t};
use shim_sys::table::{NVML_ROWS, RowAction};

/// The first row that hides; the rows before it deny.
const FIRST_HIDING_ROW: usize = {
    let mut row = 0;
    while !matches!(NVML_ROWS[row].action, RowAction::Hide(_)) {
        row += 1;
    }
    row
};

judged_jump!(
    /// The target of every export that is shut, with its row number in eax: returns the code from [`judge_shut`], or
    /// jumps to the driver's function.
    ///
    /// # Safety
    /// Jumped to by the export of a row that is shut, as the driver's function was called.
    shut judge_shut
);

/// Returns an error code for the program, or the address of the function to jump to. A result below
/// [`FIRST_ADDRESS`](crate::ffi::arch::FIRST_ADDRESS) is a code. `first` is the call's first argument.
pub extern "C" fn judge_shut(row: usize, first: usize) -> usize {
    if !NVML.has_function(row) {
        return nvmlReturn_t::FUNCTION_NOT_FOUND.0 as usize;
    }
    let code = guard::catch_panic(|| shut_verdict(row, first)).unwrap_or(Some(nvmlReturn_t::NO_PERMISSION));
    if let Some(code) = code {
        return code.0 as usize;
    }
    // Called last: `detour` uses the row of this thread's last `call`.
    let real = NVML.call_target(row) as usize;
    if real == 0 { detour as *const () as usize } else { real }
}

fn shut_verdict(row: usize, first: usize) -> Option<nvmlReturn_t> {
    if row < FIRST_HIDING_ROW {
        return is_tenant().unwrap_or(true).then_some(nvmlReturn_t::NO_PERMISSION);
    }
    // All of these functions take a device first. `limited` asks the driver about it; an invalid handle is the
    // driver's to refuse.
    match limited_device(nvmlDevice_t(first as *mut _)) {
        Ok(device) => device.map(|_| nvmlReturn_t::NOT_SUPPORTED),
        Err(_) => Some(nvmlReturn_t::NO_PERMISSION),
    }
}
