//! Mipmapped arrays: all levels are in one piece of memory, own or of another API; each level is an array.

use super::array::{check_shape, end_storage, mapping_requirements, sparse_properties, storage_view};
use crate::arrays::{ArrayStorage, MipmappedArray};
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::objects::object_of_handle;
use shim_sys::cuda::*;
use std::sync::Arc;

/// A number of levels above the possible number means that number.
pub(crate) unsafe fn cuMipmappedArrayCreate(
    d: &CallFrame,
    out: *mut CUmipmappedArray,
    desc: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> CallResult {
    let context = d.current_context()?;
    if out.is_null() || desc.is_null() || levels == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let shape = check_shape(d, unsafe { desc.read() }, true)?;
    let storage = ArrayStorage::new(&driver.memory, context, shape, shape.level_count(levels))?;
    unsafe { write_output(out, CUmipmappedArray(driver.mipmaps.add(Arc::new(MipmappedArray { storage })))) }
}

pub(crate) unsafe fn cuMipmappedArrayGetLevel(
    d: &CallFrame,
    out: *mut CUarray,
    array: CUmipmappedArray,
    level: u32,
) -> CallResult {
    d.current_context()?;
    let m = object_of_handle(&d.initialised_driver()?.mipmaps, array.0)?;
    if out.is_null() || level >= m.storage.levels {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { write_output(out, storage_view(d, &m.storage, level, m.storage.shape.at_level(level))?) }
}

pub(crate) unsafe fn cuMipmappedArrayDestroy(d: &CallFrame, array: CUmipmappedArray) -> CallResult {
    d.current_context()?;
    let m = d.initialised_driver()?.mipmaps.remove(array.0).ok_or(CUresult::INVALID_HANDLE)?;
    end_storage(d, &m.storage)
}

pub(crate) unsafe fn cuMipmappedArrayGetMemoryRequirements(
    d: &CallFrame,
    out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    array: CUmipmappedArray,
    device: CUdevice,
) -> CallResult {
    let driver = d.initialised_driver()?;
    driver.device_of_ordinal(device)?;
    unsafe { write_output(out, mapping_requirements(&object_of_handle(&driver.mipmaps, array.0)?.storage)?) }
}

pub(crate) unsafe fn cuMipmappedArrayGetSparseProperties(
    d: &CallFrame,
    out: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
    array: CUmipmappedArray,
) -> CallResult {
    unsafe {
        write_output(out, sparse_properties(&object_of_handle(&d.initialised_driver()?.mipmaps, array.0)?.storage)?)
    }
}

/// The levels have the layout of an array in own memory. The array must be destroyed before its memory.
pub(crate) unsafe fn cuExternalMemoryGetMappedMipmappedArray(
    d: &CallFrame,
    out: *mut CUmipmappedArray,
    memory: CUexternalMemory,
    desc: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC,
) -> CallResult {
    let context = d.current_context()?;
    if out.is_null() || desc.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let desc = unsafe { desc.read() };
    let mapped = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    if desc.numLevels == 0 || desc.arrayDesc.Flags & mapped != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let shape = check_shape(d, desc.arrayDesc, desc.numLevels > 1)?;
    let levels = shape.level_count(desc.numLevels);
    let storage = ArrayStorage::over_external(&driver.memory, context, shape, levels, (memory.0 as u64, desc.offset))?;
    unsafe { write_output(out, CUmipmappedArray(driver.mipmaps.add(Arc::new(MipmappedArray { storage })))) }
}
