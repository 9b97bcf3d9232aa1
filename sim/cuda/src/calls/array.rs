//! Arrays: creation, descriptors, destruction.
//!
//! Not here: copies (`copy`, `copy_array`), levels (`mipmap`), mapping (`sparse`).

use crate::arrays::{Array, Home, Storage};
use crate::attributes::device_attribute;
use crate::door::{Answer, Door, put};
use crate::driver::hold;
use crate::objects::{handle, known};
use crate::surface::{Shape, TILE};
use shim_sys::cuda::*;
use std::sync::Arc;

/// Checks a descriptor against the current device.
pub(crate) fn shape(d: &Door, desc: CUDA_ARRAY3D_DESCRIPTOR, mip: bool) -> Result<Shape, CUresult> {
    let device = d.device()?;
    let value = |n| device_attribute(&device.profile, &device.identity, n).unwrap_or(0);
    Shape::new(desc, mip, |n| u64::try_from(value(n)).unwrap_or(0))
}

unsafe fn make(d: &Door, out: *mut CUarray, desc: CUDA_ARRAY3D_DESCRIPTOR) -> Answer {
    if out.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let (driver, context) = (d.driver()?, d.context()?);
    let shape = shape(d, desc, false)?;
    let storage = Storage::new(driver, context, shape, 1)?;
    let array = Arc::new(Array { storage, shape, index: 0, whole: true });
    unsafe { put(out, CUarray(driver.arrays.add(array))) }
}

unsafe fn read<T>(p: *const T) -> Result<T, CUresult> {
    if p.is_null() { Err(CUresult::INVALID_VALUE) } else { Ok(unsafe { p.read() }) }
}

pub(crate) unsafe fn cuArrayCreate_v2(d: &Door, array: *mut CUarray, desc: *const CUDA_ARRAY_DESCRIPTOR) -> Answer {
    d.context()?;
    let CUDA_ARRAY_DESCRIPTOR { Width, Height, Format, NumChannels } = unsafe { read(desc)? };
    unsafe { make(d, array, CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth: 0, Format, NumChannels, Flags: 0 }) }
}

pub(crate) unsafe fn cuArrayCreate(d: &Door, array: *mut CUarray, desc: *const CUDA_ARRAY_DESCRIPTOR_v1) -> Answer {
    d.context()?;
    let CUDA_ARRAY_DESCRIPTOR_v1 { Width, Height, Format, NumChannels } = unsafe { read(desc)? };
    let (Width, Height) = (Width as usize, Height as usize);
    unsafe { make(d, array, CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth: 0, Format, NumChannels, Flags: 0 }) }
}

pub(crate) unsafe fn cuArray3DCreate_v2(d: &Door, array: *mut CUarray, desc: *const CUDA_ARRAY3D_DESCRIPTOR) -> Answer {
    d.context()?;
    unsafe { make(d, array, read(desc)?) }
}

pub(crate) unsafe fn cuArray3DCreate(d: &Door, array: *mut CUarray, desc: *const CUDA_ARRAY3D_DESCRIPTOR_v1) -> Answer {
    d.context()?;
    let c = unsafe { read(desc)? };
    let desc = CUDA_ARRAY3D_DESCRIPTOR {
        Width: c.Width as usize,
        Height: c.Height as usize,
        Depth: c.Depth as usize,
        Format: c.Format,
        NumChannels: c.NumChannels,
        Flags: c.Flags,
    };
    unsafe { make(d, array, desc) }
}

fn described(d: &Door, array: CUarray) -> Result<CUDA_ARRAY3D_DESCRIPTOR, CUresult> {
    Ok(known(&d.driver()?.arrays, array.0)?.shape.desc)
}

pub(crate) unsafe fn cuArray3DGetDescriptor_v2(d: &Door, desc: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray) -> Answer {
    d.context()?;
    unsafe { put(desc, described(d, array)?) }
}

/// A size beyond 32 bits is capped.
fn short(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

pub(crate) unsafe fn cuArray3DGetDescriptor(d: &Door, desc: *mut CUDA_ARRAY3D_DESCRIPTOR_v1, array: CUarray) -> Answer {
    d.context()?;
    let c = described(d, array)?;
    let value = CUDA_ARRAY3D_DESCRIPTOR_v1 {
        Width: short(c.Width),
        Height: short(c.Height),
        Depth: short(c.Depth),
        Format: c.Format,
        NumChannels: c.NumChannels,
        Flags: c.Flags,
    };
    unsafe { put(desc, value) }
}

pub(crate) unsafe fn cuArrayGetDescriptor_v2(d: &Door, desc: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray) -> Answer {
    d.context()?;
    let c = described(d, array)?;
    let value =
        CUDA_ARRAY_DESCRIPTOR { Width: c.Width, Height: c.Height, Format: c.Format, NumChannels: c.NumChannels };
    unsafe { put(desc, value) }
}

pub(crate) unsafe fn cuArrayGetDescriptor(d: &Door, desc: *mut CUDA_ARRAY_DESCRIPTOR_v1, array: CUarray) -> Answer {
    d.context()?;
    let c = described(d, array)?;
    let value = CUDA_ARRAY_DESCRIPTOR_v1 {
        Width: short(c.Width),
        Height: short(c.Height),
        Format: c.Format,
        NumChannels: c.NumChannels,
    };
    unsafe { put(desc, value) }
}

/// The view `index` of a storage, made at the first request.
pub(crate) fn view(d: &Door, storage: &Arc<Storage>, index: u32, shape: Shape) -> Result<CUarray, CUresult> {
    let driver = d.driver()?;
    let mut views = hold(&storage.views);
    let array = views.entry(index).or_insert_with(|| {
        let array = Arc::new(Array { storage: storage.clone(), shape, index, whole: false });
        driver.arrays.add(array.clone());
        array
    });
    Ok(CUarray(handle(array)))
}

/// Ends a storage: the handles of its views, its memory, and the reference cycle between them.
pub(crate) fn end(d: &Door, storage: &Arc<Storage>) -> Answer {
    let driver = d.driver()?;
    // The real driver waits for the context's work before it frees.
    driver.device(storage.context.device)?.engine.group_wait(storage.context.group);
    for (_, a) in hold(&storage.views).drain() {
        driver.arrays.remove(handle(&a));
    }
    storage.free(driver);
    Ok(())
}

pub(crate) unsafe fn cuArrayGetPlane(d: &Door, plane: *mut CUarray, array: CUarray, index: u32) -> Answer {
    d.context()?;
    let a = known(&d.driver()?.arrays, array.0)?;
    if plane.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let shape = a.shape.at_plane(index).ok_or(CUresult::INVALID_VALUE)?;
    unsafe { put(plane, view(d, &a.storage, index, shape)?) }
}

/// Levels and planes cannot be destroyed separately.
pub(crate) unsafe fn cuArrayDestroy(d: &Door, array: CUarray) -> Answer {
    d.context()?;
    let driver = d.driver()?;
    if !known(&driver.arrays, array.0)?.whole {
        return Err(CUresult::INVALID_HANDLE);
    }
    let a = driver.arrays.remove(array.0).ok_or(CUresult::INVALID_HANDLE)?;
    end(d, &a.storage)
}

/// Size and alignment of the memory for an array with deferred mapping.
pub(crate) fn requirements(s: &Storage) -> Result<CUDA_ARRAY_MEMORY_REQUIREMENTS, CUresult> {
    if !matches!(s.home, Home::Deferred(_)) {
        return Err(CUresult::INVALID_VALUE);
    }
    let size = usize::try_from(s.bytes.next_multiple_of(TILE)).map_err(|_| CUresult::INVALID_VALUE)?;
    Ok(CUDA_ARRAY_MEMORY_REQUIREMENTS { size, alignment: usize::try_from(TILE).unwrap_or(0), reserved: [0; 4] })
}

pub(crate) unsafe fn cuArrayGetMemoryRequirements(
    d: &Door,
    out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    array: CUarray,
    device: CUdevice,
) -> Answer {
    let driver = d.driver()?;
    driver.device(device)?;
    let a = known(&driver.arrays, array.0)?;
    if !a.whole {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { put(out, requirements(&a.storage)?) }
}

/// The tile properties of a sparse array; `single`: one mip tail for all layers.
pub(crate) fn sparse_properties(s: &Storage) -> Result<CUDA_ARRAY_SPARSE_PROPERTIES, CUresult> {
    let invalid = CUresult::INVALID_VALUE;
    if !matches!(s.home, Home::Tiles(_)) {
        return Err(invalid);
    }
    let tile = s.shape.tile().ok_or(invalid)?.map(|n| u32::try_from(n).unwrap_or(0));
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
    d: &Door,
    out: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
    array: CUarray,
) -> Answer {
    let a = known(&d.driver()?.arrays, array.0)?;
    if !a.whole {
        return Err(CUresult::INVALID_VALUE);
    }
    let all = sparse_properties(&a.storage)?;
    let small = all.miptailFirstLevel == 0;
    let flags = u32::from(small && a.storage.shape.layers() == 1);
    unsafe { put(out, CUDA_ARRAY_SPARSE_PROPERTIES { miptailFirstLevel: 0, flags, ..all }) }
}
