//! Plain, pitched and managed memory, and frees.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::charge::{allocate_plain, allocate_small, free_address, note_charge};
use crate::driver::calls::free_allocation;
use crate::driver::library::DriverCall;
use crate::member::enforce;
use crate::memory::allocation_records::{ADDRESS_RECORDS, AllocationRecord};
use crate::process::mode::Denied;
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;
use vgpu_core::memory::charging;

pub unsafe fn cuMemAlloc_v2(real: cuda_fn::cuMemAlloc_v2, dptr: *mut CUdeviceptr, bytes: usize) -> CUresult {
    allocate_plain(bytes as u64, &mut || unsafe { real(dptr, bytes) }, &|| unsafe { *dptr })
}

pub unsafe fn cuMemAlloc(real: cuda_fn::cuMemAlloc, dptr: *mut CUdeviceptr_v1, bytes: u32) -> CUresult {
    allocate_plain(u64::from(bytes), &mut || unsafe { real(dptr, bytes) }, &|| u64::from(unsafe { *dptr }))
}

/// Managed memory is charged in full at its allocation: all of it may migrate to the device at any time, and the
/// driver does not report where its pages are. Advice, prefetches and attachments do not change that.
pub unsafe fn cuMemAllocManaged(
    real: cuda_fn::cuMemAllocManaged,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    flags: u32,
) -> CUresult {
    allocate_plain(bytes as u64, &mut || unsafe { real(dptr, bytes, flags) }, &|| unsafe { *dptr })
}

/// Pitched memory: reserved with the expected pitch, charged with the pitch that the driver returned.
fn allocate_pitched(width: u64, height: u64, real: DriverCall<'_>, answer: &dyn Fn() -> (u64, u64)) -> CUresult {
    let (context, device) = match enforce::on_current() {
        Ok(Some(current)) => current,
        Ok(None) => return real(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
    };
    let expected = charging::expected_pitch(width).and_then(|pitch| charging::charge_pitched(pitch, height));
    let Some(expected) = expected else { return real() };
    if charging::may_share_a_slab(expected) {
        return allocate_small(device, context, real, &|| answer().0);
    }
    let reservation = match device.reserve(expected) {
        Ok(reservation) => reservation,
        Err(refused) => return refused,
    };
    let moment = crate::driver::contexts::epoch();
    let result = real();
    if !result.ok() {
        return result;
    }
    let (address, pitch) = answer();
    let bytes = charging::charge_pitched(pitch, height).unwrap_or(expected);
    let more = bytes.saturating_sub(expected);
    if more > 0 {
        match device.reserve(more) {
            Ok(rest) => rest.commit(),
            Err(refused) => {
                free_allocation(address);
                return refused;
            }
        }
    }
    reservation.commit();
    if bytes < expected {
        device.release(expected - bytes);
    }
    note_charge(&ADDRESS_RECORDS, address, AllocationRecord::of_bytes(bytes, device.index, context.0 as usize), moment);
    result
}

pub unsafe fn cuMemAllocPitch_v2(
    real: cuda_fn::cuMemAllocPitch_v2,
    dptr: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> CUresult {
    let mut call = || unsafe { real(dptr, pitch, width, height, element) };
    allocate_pitched(width as u64, height as u64, &mut call, &|| unsafe { (*dptr, *pitch as u64) })
}

pub unsafe fn cuMemAllocPitch(
    real: cuda_fn::cuMemAllocPitch,
    dptr: *mut CUdeviceptr_v1,
    pitch: *mut u32,
    width: u32,
    height: u32,
    element: u32,
) -> CUresult {
    let mut call = || unsafe { real(dptr, pitch, width, height, element) };
    allocate_pitched(u64::from(width), u64::from(height), &mut call, &|| unsafe {
        (u64::from(*dptr), u64::from(*pitch))
    })
}

pub unsafe fn cuMemFree_v2(real: cuda_fn::cuMemFree_v2, dptr: CUdeviceptr) -> CUresult {
    free_address(dptr, None, &mut || unsafe { real(dptr) })
}

pub unsafe fn cuMemFree(real: cuda_fn::cuMemFree, dptr: CUdeviceptr_v1) -> CUresult {
    free_address(u64::from(dptr), None, &mut || unsafe { real(dptr) })
}
