//! What has one answer for every tenant: what changes a device (not permitted), what tells of the device as a whole where
//! nobody can tell what of it is the tenant's (not supported). Whoever has no limits gets the driver's own function.
//!
//! None of them needs a function of ours: each export is a jump to [`shut`], which keeps the arguments as they came.

use super::{is_tenant, limited};
use crate::door;
use crate::driver::NVML;
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

/// Less than this is a code, and no function's address.
const CODES: usize = 4096;

/// The way of everything that is shut, with the number of its row in eax.
///
/// x86-64, System V: arguments in rdi, rsi, rdx, rcx, r8, r9 and on the stack, which stays as it is; rax and r11 are free.
/// No function of NVML's takes a number that comes elsewhere.
///
/// # Safety
/// Jumped to by the export of a row that is shut, as the driver's function was called.
#[unsafe(naked)]
pub unsafe extern "C" fn shut() {
    core::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push r9",
        "push r8",
        "push rcx",
        "push rdx",
        "push rsi",
        "push rdi",
        "mov rsi, rdi",
        "mov edi, eax",
        "call {judge}",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop rcx",
        "pop r8",
        "pop r9",
        "pop rbp",
        "cmp rax, {codes}",
        "jb 2f",
        "jmp rax",
        "2:",
        "ret",
        judge = sym judge,
        codes = const CODES,
    )
}

/// The answer's code, or where the driver's function is. `first` is the call's first argument.
extern "C" fn judge(row: usize, first: usize) -> usize {
    let real = NVML.call(row) as usize;
    if real == 0 {
        return nvmlReturn_t::FUNCTION_NOT_FOUND.0 as usize;
    }
    let code = door::guard(|| verdict(row, first)).unwrap_or(Some(nvmlReturn_t::NO_PERMISSION));
    code.map_or(real, |code| code.0 as usize)
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
