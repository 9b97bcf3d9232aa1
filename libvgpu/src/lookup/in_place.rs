//! Hooks that replace a driver function whose name an interposer also has: each acts like the export, but skips the
//! interposer.

use super::names::HookRow;
use crate::driver::library::{begin_in_place, first_number};
use crate::ffi::arch::{ENTRY_BYTES, in_place_table};
use core::ffi::c_void;

in_place_table!(vgpu_in_place: first_number::ROWS, enter_in_place find_in_place);

/// The hook that replaces the driver's own function of row `number`.
pub fn hook_in_place(number: usize) -> *mut c_void {
    (&raw const vgpu_in_place).cast::<[u8; ENTRY_BYTES]>().wrapping_add(number).cast_mut().cast()
}

/// The export of row `number`. The row's next call on this thread calls the driver.
extern "C" fn find_in_place(number: usize) -> usize {
    begin_in_place(number);
    HookRow::of_number(number).hook_address() as usize
}
