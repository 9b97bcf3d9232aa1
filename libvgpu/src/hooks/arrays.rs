//! Arrays and mipmapped arrays, charged in bytes: elements times channels times the width of a channel.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only; descriptors may be null, which is the driver's error to report.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::charge::{allocate, free};
use crate::driver::library::DriverCall;
use crate::memory::allocation_records::ARRAY_RECORDS;
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;
use vgpu_core::memory::charging::{self, ArrayShape, Texel};

/// Flags for arrays whose depth counts layers (1) or cube faces (4).
const LAYERED_FLAGS: u32 = 0x01 | 0x04;

/// The shape of a descriptor. `None`: an array without memory of its own (sparse, or mapped later).
fn array_shape(desc: &CUDA_ARRAY3D_DESCRIPTOR) -> Option<ArrayShape> {
    if desc.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) != 0 {
        return None;
    }
    Some(ArrayShape {
        width: desc.Width as u64,
        height: desc.Height as u64,
        depth: desc.Depth as u64,
        channels: desc.NumChannels,
        // An unknown format is charged as the widest element, never as zero.
        texel: Texel::of_format(desc.Format).unwrap_or(Texel::WIDEST),
        layered: desc.Flags & LAYERED_FLAGS != 0,
    })
}

fn upgrade_descriptor(desc: &CUDA_ARRAY3D_DESCRIPTOR_v1) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: desc.Width as usize,
        Height: desc.Height as usize,
        Depth: desc.Depth as usize,
        Format: desc.Format,
        NumChannels: desc.NumChannels,
        Flags: desc.Flags,
    }
}

fn flat_descriptor(width: usize, height: usize, format: u32, channels: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR { Width: width, Height: height, Depth: 0, Format: format, NumChannels: channels, Flags: 0 }
}

fn create_array(desc: Option<CUDA_ARRAY3D_DESCRIPTOR>, array: *mut CUarray, real: DriverCall<'_>) -> CUresult {
    let charge = || charging::charge_array(&array_shape(desc.as_ref()?)?);
    allocate(&ARRAY_RECORDS, &charge, real, &|| unsafe { *array }.0 as u64)
}

pub unsafe fn cuArrayCreate_v2(
    real: cuda_fn::cuArrayCreate_v2,
    handle: *mut CUarray,
    desc: *const CUDA_ARRAY_DESCRIPTOR,
) -> CUresult {
    let read = unsafe { desc.as_ref() }.map(|d| flat_descriptor(d.Width, d.Height, d.Format, d.NumChannels));
    create_array(read, handle, &mut || unsafe { real(handle, desc) })
}

pub unsafe fn cuArrayCreate(
    real: cuda_fn::cuArrayCreate,
    handle: *mut CUarray,
    desc: *const CUDA_ARRAY_DESCRIPTOR_v1,
) -> CUresult {
    let read =
        unsafe { desc.as_ref() }.map(|d| flat_descriptor(d.Width as usize, d.Height as usize, d.Format, d.NumChannels));
    create_array(read, handle, &mut || unsafe { real(handle, desc) })
}

pub unsafe fn cuArray3DCreate_v2(
    real: cuda_fn::cuArray3DCreate_v2,
    handle: *mut CUarray,
    desc: *const CUDA_ARRAY3D_DESCRIPTOR,
) -> CUresult {
    create_array(unsafe { desc.as_ref() }.copied(), handle, &mut || unsafe { real(handle, desc) })
}

pub unsafe fn cuArray3DCreate(
    real: cuda_fn::cuArray3DCreate,
    handle: *mut CUarray,
    desc: *const CUDA_ARRAY3D_DESCRIPTOR_v1,
) -> CUresult {
    create_array(unsafe { desc.as_ref() }.map(upgrade_descriptor), handle, &mut || unsafe { real(handle, desc) })
}

pub unsafe fn cuMipmappedArrayCreate(
    real: cuda_fn::cuMipmappedArrayCreate,
    handle: *mut CUmipmappedArray,
    desc: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> CUresult {
    let charge = || charging::charge_mipmapped(&array_shape(unsafe { desc.as_ref()? })?, levels);
    allocate(&ARRAY_RECORDS, &charge, &mut || unsafe { real(handle, desc, levels) }, &|| unsafe { *handle }.0 as u64)
}

pub unsafe fn cuArrayDestroy(real: cuda_fn::cuArrayDestroy, handle: CUarray) -> CUresult {
    free(&ARRAY_RECORDS, handle.0 as u64, &mut || {
        super::vmm::with_tiles(handle.0 as usize, &mut || unsafe { real(handle) })
    })
}

pub unsafe fn cuMipmappedArrayDestroy(real: cuda_fn::cuMipmappedArrayDestroy, handle: CUmipmappedArray) -> CUresult {
    free(&ARRAY_RECORDS, handle.0 as u64, &mut || {
        super::vmm::with_tiles(handle.0 as usize, &mut || unsafe { real(handle) })
    })
}
