//! Mipmapped arrays: all levels are in one piece of memory, own or of another API; each level is an array.

use super::array::{end, requirements, shape, sparse_properties, view};
use crate::arrays::{Mipmap, Storage};
use crate::door::{Answer, Door, put};
use crate::objects::known;
use shim_sys::cuda::*;
use std::sync::Arc;

/// A number of levels above the possible number means that number.
pub(crate) unsafe fn cuMipmappedArrayCreate(
    d: &Door,
    out: *mut CUmipmappedArray,
    desc: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> Answer {
    let context = d.context()?;
    if out.is_null() || desc.is_null() || levels == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let shape = shape(d, unsafe { desc.read() }, true)?;
    let storage = Storage::new(driver, context, shape, shape.levels(levels))?;
    unsafe { put(out, CUmipmappedArray(driver.mipmaps.add(Arc::new(Mipmap { storage })))) }
}

pub(crate) unsafe fn cuMipmappedArrayGetLevel(
    d: &Door,
    out: *mut CUarray,
    array: CUmipmappedArray,
    level: u32,
) -> Answer {
    d.context()?;
    let m = known(&d.driver()?.mipmaps, array.0)?;
    if out.is_null() || level >= m.storage.levels {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { put(out, view(d, &m.storage, level, m.storage.shape.at_level(level))?) }
}

pub(crate) unsafe fn cuMipmappedArrayDestroy(d: &Door, array: CUmipmappedArray) -> Answer {
    d.context()?;
    let m = d.driver()?.mipmaps.remove(array.0).ok_or(CUresult::INVALID_HANDLE)?;
    end(d, &m.storage)
}

pub(crate) unsafe fn cuMipmappedArrayGetMemoryRequirements(
    d: &Door,
    out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    array: CUmipmappedArray,
    device: CUdevice,
) -> Answer {
    let driver = d.driver()?;
    driver.device(device)?;
    unsafe { put(out, requirements(&known(&driver.mipmaps, array.0)?.storage)?) }
}

pub(crate) unsafe fn cuMipmappedArrayGetSparseProperties(
    d: &Door,
    out: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
    array: CUmipmappedArray,
) -> Answer {
    unsafe { put(out, sparse_properties(&known(&d.driver()?.mipmaps, array.0)?.storage)?) }
}

/// The levels have the layout of an array in own memory. The array must be destroyed before its memory.
pub(crate) unsafe fn cuExternalMemoryGetMappedMipmappedArray(
    d: &Door,
    out: *mut CUmipmappedArray,
    memory: CUexternalMemory,
    desc: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC,
) -> Answer {
    let context = d.context()?;
    if out.is_null() || desc.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let desc = unsafe { desc.read() };
    let mapped = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    if desc.numLevels == 0 || desc.arrayDesc.Flags & mapped != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let shape = shape(d, desc.arrayDesc, desc.numLevels > 1)?;
    let levels = shape.levels(desc.numLevels);
    let storage = Storage::outside(driver, context, shape, levels, (memory.0 as u64, desc.offset))?;
    unsafe { put(out, CUmipmappedArray(driver.mipmaps.add(Arc::new(Mipmap { storage })))) }
}
