//! Hooks that replace a driver function whose name an interposer also has: each acts like the export, but skips the
//! interposer.

use super::names::HookRow;
use crate::driver::library::{begin_in_place, first_number};
use crate::ffi::arch::{CALL_BYTES, in_place_table};
use core::ffi::c_void;

in_place_table!(vgpu_in_place: first_number::ROWS, enter_in_place find_in_place);

/// The hook that replaces the driver's own function of row `number`.
pub fn hook_in_place(number: usize) -> *mut c_void {
    (&raw const vgpu_in_place).cast::<[u8; CALL_BYTES]>().wrapping_add(number).cast_mut().cast()
}

/// The export of the row whose call instruction ends at `after`. The row's next call on this thread calls the driver.
extern "C" fn find_in_place(after: usize) -> usize {
    let number = after.wrapping_sub(hook_in_place(1) as usize) / CALL_BYTES;
    begin_in_place(number);
    HookRow::of_number(number).hook_address() as usize
}
