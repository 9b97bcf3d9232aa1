//! Arrays: creation, descriptors, destruction.
//!
//! Not here: copies (`copy`, `copy_array`), levels (`mipmap`), mapping (`sparse`).

use crate::arrays::{ArrayHome, ArrayStorage, ArrayView};
use crate::attributes::device_attribute;
use crate::context::CudaContext;
use crate::driver::SimulatedDriver;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::objects::{object_handle, object_of_handle};
use crate::surface::{ArrayShapeChecked, TILE_BYTES};
use shim_sys::cuda::*;
use std::sync::Arc;

/// Checks a descriptor against the current device.
pub(crate) fn check_shape(
    d: &CallFrame,
    desc: CUDA_ARRAY3D_DESCRIPTOR,
    mip: bool,
) -> Result<ArrayShapeChecked, CUresult> {
    let device = d.current_device()?;
    let value = |n| device_attribute(&device.profile, &device.identity, n).unwrap_or(0);
    ArrayShapeChecked::new(desc, mip, |n| u64::try_from(value(n)).unwrap_or(0))
}

unsafe fn make_array(d: &CallFrame, out: *mut CUarray, desc: CUDA_ARRAY3D_DESCRIPTOR) -> CallResult {
    if out.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let (driver, context) = (d.initialised_driver()?, d.current_context()?);
    let shape = check_shape(d, desc, false)?;
    let storage = ArrayStorage::new(&driver.memory, context, shape, 1)?;
    let array = Arc::new(ArrayView { storage, shape, index: 0, whole: true });
    unsafe { write_output(out, CUarray(driver.arrays.add(array))) }
}

unsafe fn read<T>(p: *const T) -> Result<T, CUresult> {
    if p.is_null() { Err(CUresult::INVALID_VALUE) } else { Ok(unsafe { p.read() }) }
}

pub(crate) unsafe fn cuArrayCreate_v2(
    d: &CallFrame,
    array: *mut CUarray,
    desc: *const CUDA_ARRAY_DESCRIPTOR,
) -> CallResult {
    d.current_context()?;
    let CUDA_ARRAY_DESCRIPTOR { Width, Height, Format, NumChannels } = unsafe { read(desc)? };
    unsafe { make_array(d, array, CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth: 0, Format, NumChannels, Flags: 0 }) }
}

pub(crate) unsafe fn cuArrayCreate(
    d: &CallFrame,
    array: *mut CUarray,
    desc: *const CUDA_ARRAY_DESCRIPTOR_v1,
) -> CallResult {
    d.current_context()?;
    let CUDA_ARRAY_DESCRIPTOR_v1 { Width, Height, Format, NumChannels } = unsafe { read(desc)? };
    let (Width, Height) = (Width as usize, Height as usize);
    unsafe { make_array(d, array, CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth: 0, Format, NumChannels, Flags: 0 }) }
}

pub(crate) unsafe fn cuArray3DCreate_v2(
    d: &CallFrame,
    array: *mut CUarray,
    desc: *const CUDA_ARRAY3D_DESCRIPTOR,
) -> CallResult {
    d.current_context()?;
    unsafe { make_array(d, array, read(desc)?) }
}

pub(crate) unsafe fn cuArray3DCreate(
    d: &CallFrame,
    array: *mut CUarray,
    desc: *const CUDA_ARRAY3D_DESCRIPTOR_v1,
) -> CallResult {
    d.current_context()?;
    let c = unsafe { read(desc)? };
    let desc = CUDA_ARRAY3D_DESCRIPTOR {
        Width: c.Width as usize,
        Height: c.Height as usize,
        Depth: c.Depth as usize,
        Format: c.Format,
        NumChannels: c.NumChannels,
        Flags: c.Flags,
    };
    unsafe { make_array(d, array, desc) }
}

fn array_descriptor(d: &CallFrame, array: CUarray) -> Result<CUDA_ARRAY3D_DESCRIPTOR, CUresult> {
    Ok(object_of_handle(&d.initialised_driver()?.arrays, array.0)?.shape.desc)
}

pub(crate) unsafe fn cuArray3DGetDescriptor_v2(
    d: &CallFrame,
    desc: *mut CUDA_ARRAY3D_DESCRIPTOR,
    array: CUarray,
) -> CallResult {
    d.current_context()?;
    unsafe { write_output(desc, array_descriptor(d, array)?) }
}

/// A size beyond 32 bits is capped.
fn cut_to_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

pub(crate) unsafe fn cuArray3DGetDescriptor(
    d: &CallFrame,
    desc: *mut CUDA_ARRAY3D_DESCRIPTOR_v1,
    array: CUarray,
) -> CallResult {
    d.current_context()?;
    let c = array_descriptor(d, array)?;
    let value = CUDA_ARRAY3D_DESCRIPTOR_v1 {
        Width: cut_to_u32(c.Width),
        Height: cut_to_u32(c.Height),
        Depth: cut_to_u32(c.Depth),
        Format: c.Format,
        NumChannels: c.NumChannels,
        Flags: c.Flags,
    };
    unsafe { write_output(desc, value) }
}

pub(crate) unsafe fn cuArrayGetDescriptor_v2(
    d: &CallFrame,
    desc: *mut CUDA_ARRAY_DESCRIPTOR,
    array: CUarray,
) -> CallResult {
    d.current_context()?;
    let c = array_descriptor(d, array)?;
    let value =
        CUDA_ARRAY_DESCRIPTOR { Width: c.Width, Height: c.Height, Format: c.Format, NumChannels: c.NumChannels };
    unsafe { write_output(desc, value) }
}

pub(crate) unsafe fn cuArrayGetDescriptor(
    d: &CallFrame,
    desc: *mut CUDA_ARRAY_DESCRIPTOR_v1,
    array: CUarray,
) -> CallResult {
    d.current_context()?;
    let c = array_descriptor(d, array)?;
    let value = CUDA_ARRAY_DESCRIPTOR_v1 {
        Width: cut_to_u32(c.Width),
        Height: cut_to_u32(c.Height),
        Format: c.Format,
        NumChannels: c.NumChannels,
    };
    unsafe { write_output(desc, value) }
}

/// The view `index` of a storage, made at the first request.
pub(crate) fn storage_view(
    d: &CallFrame,
    storage: &Arc<ArrayStorage>,
    index: u32,
    shape: ArrayShapeChecked,
) -> Result<CUarray, CUresult> {
    let driver = d.initialised_driver()?;
    let mut views = storage.views.lock();
    let array = views.entry(index).or_insert_with(|| {
        let array = Arc::new(ArrayView { storage: storage.clone(), shape, index, whole: false });
        driver.arrays.add(array.clone());
        array
    });
    Ok(CUarray(object_handle(array)))
}

/// Ends a storage: the handles of its views, its memory, and the reference cycle between them.
pub(crate) fn end_storage(d: &CallFrame, storage: &Arc<ArrayStorage>) -> CallResult {
    let driver = d.initialised_driver()?;
    // The real driver waits for the context's work before it frees.
    driver.device_of_ordinal(storage.context.device)?.engine.group_wait(storage.context.group);
    for (_, a) in storage.views.lock().drain() {
        driver.arrays.remove(object_handle(&a));
    }
    storage.free(&driver.memory);
    Ok(())
}

pub(crate) unsafe fn cuArrayGetPlane(d: &CallFrame, plane: *mut CUarray, array: CUarray, index: u32) -> CallResult {
    d.current_context()?;
    let a = object_of_handle(&d.initialised_driver()?.arrays, array.0)?;
    if plane.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let shape = a.shape.at_plane(index).ok_or(CUresult::INVALID_VALUE)?;
    unsafe { write_output(plane, storage_view(d, &a.storage, index, shape)?) }
}

/// Levels and planes cannot be destroyed separately.
pub(crate) unsafe fn cuArrayDestroy(d: &CallFrame, array: CUarray) -> CallResult {
    d.current_context()?;
    let driver = d.initialised_driver()?;
    if !object_of_handle(&driver.arrays, array.0)?.whole {
        return Err(CUresult::INVALID_HANDLE);
    }
    let a = driver.arrays.remove(array.0).ok_or(CUresult::INVALID_HANDLE)?;
    end_storage(d, &a.storage)
}

/// Size and alignment of the memory for an array with deferred mapping.
pub(crate) fn mapping_requirements(s: &ArrayStorage) -> Result<CUDA_ARRAY_MEMORY_REQUIREMENTS, CUresult> {
    if !matches!(s.home, ArrayHome::Deferred(_)) {
        return Err(CUresult::INVALID_VALUE);
    }
    let size = usize::try_from(s.bytes.next_multiple_of(TILE_BYTES)).map_err(|_| CUresult::INVALID_VALUE)?;
    Ok(CUDA_ARRAY_MEMORY_REQUIREMENTS { size, alignment: usize::try_from(TILE_BYTES).unwrap_or(0), reserved: [0; 4] })
}

pub(crate) unsafe fn cuArrayGetMemoryRequirements(
    d: &CallFrame,
    out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    array: CUarray,
    device: CUdevice,
) -> CallResult {
    let driver = d.initialised_driver()?;
    driver.device_of_ordinal(device)?;
    let a = object_of_handle(&driver.arrays, array.0)?;
    if !a.whole {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { write_output(out, mapping_requirements(&a.storage)?) }
}

/// The tile properties of a sparse array; `single`: one mip tail for all layers.
pub(crate) fn sparse_properties(s: &ArrayStorage) -> Result<CUDA_ARRAY_SPARSE_PROPERTIES, CUresult> {
    let invalid = CUresult::INVALID_VALUE;
    if !matches!(s.home, ArrayHome::Tiles(_)) {
        return Err(invalid);
    }
    let tile = s.shape.tile_extent().ok_or(invalid)?.map(|n| u32::try_from(n).unwrap_or(0));
    let first = s.shape.tail_level(s.levels);
    Ok(CUDA_ARRAY_SPARSE_PROPERTIES {
        tileWidth: tile[0],
        tileHeight: tile[1],
        tileDepth: tile[2],
        miptailFirstLevel: first,
        miptailSize: s.tail_bytes(first),
        flags: 0,
        reserved: [0; 4],
    })
}

/// For an array that is not a level. It has one level, which is tiled unless it is smaller than a tile.
pub(crate) unsafe fn cuArrayGetSparseProperties(
    d: &CallFrame,
    out: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
    array: CUarray,
) -> CallResult {
    let a = object_of_handle(&d.initialised_driver()?.arrays, array.0)?;
    if !a.whole {
        return Err(CUresult::INVALID_VALUE);
    }
    let all = sparse_properties(&a.storage)?;
    let small = all.miptailFirstLevel == 0;
    let flags = u32::from(small && a.storage.shape.layer_count() == 1);
    unsafe { write_output(out, CUDA_ARRAY_SPARSE_PROPERTIES { miptailFirstLevel: 0, flags, ..all }) }
}

/// Ends all arrays of a context; the caller waited for its work.
pub(crate) fn end_arrays(d: &SimulatedDriver, mine: impl Fn(&Arc<CudaContext>) -> bool) {
    for a in d.arrays.remove_where(|a| mine(&a.storage.context)) {
        // Breaks the reference cycle between a storage and its views.
        a.storage.views.lock().clear();
        if a.whole {
            a.storage.free(&d.memory);
        }
    }
    for m in d.mipmaps.remove_where(|m| mine(&m.storage.context)) {
        m.storage.views.lock().clear();
        m.storage.free(&d.memory);
    }
}
