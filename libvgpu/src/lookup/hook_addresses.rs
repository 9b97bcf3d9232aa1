//! The addresses of the exported hooks, by row number. The exports, which lie above, define the two tables.

use super::names::HookRow;
use crate::driver::library::first_number;
use core::ffi::c_void;
use shim_sys::table::{CudaHook, NvmlHook};

/// The addresses of a library's hooks, by row number. They are stored as distances from here, so that the loader has
/// nothing to relocate.
#[repr(transparent)]
pub struct HookAddresses<const ROWS: usize>([i32; ROWS]);

impl<const ROWS: usize> HookAddresses<ROWS> {
    /// The address of a row's hook; null if there is no such row.
    #[inline]
    pub fn hook_of_row(&self, row: usize) -> *mut c_void {
        let distance = self.0.get(row);
        distance.map_or(core::ptr::null_mut(), |&far| {
            core::ptr::from_ref(self).cast_mut().cast::<c_void>().wrapping_offset(far as isize)
        })
    }
}

unsafe extern "C" {
    /// The distances to the driver's hooks.
    safe static vgpu_cuda_hooks: HookAddresses<{ CudaHook::COUNT }>;
    /// The distances to NVML's hooks.
    safe static vgpu_nvml_hooks: HookAddresses<{ NvmlHook::COUNT }>;
}

impl HookRow {
    /// The row with `number`, counted through the rows of both libraries.
    pub fn of_number(number: usize) -> Self {
        number.checked_sub(first_number::NVML).map_or(HookRow::Cuda(number), HookRow::Nvml)
    }

    /// The address of the exported hook.
    pub fn hook_address(self) -> *mut c_void {
        match self {
            HookRow::Cuda(row) => vgpu_cuda_hooks.hook_of_row(row),
            HookRow::Nvml(row) => vgpu_nvml_hooks.hook_of_row(row),
        }
    }
}
