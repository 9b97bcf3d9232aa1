//! Memory of other APIs, by file descriptors.
//!
//! A descriptor that a simulated program exported refers to that program's memory. Any other file that is long
//! enough stands for memory of a graphics API: it counts with the process that imports it, and its bytes are the
//! file's. Arrays in such memory and other types of handles are not supported.
//! Not here: semaphores.

use crate::content::Tag;
use crate::door::{Answer, Door, put};
use shim_sys::cuda::*;

const DESCRIPTOR: u32 = 1;
const KINDS: u32 = 8;

pub(crate) unsafe fn cuImportExternalMemory(
    d: &Door,
    memory: *mut CUexternalMemory,
    desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> Answer {
    let c = d.context()?;
    if memory.is_null() || desc.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let desc = unsafe { desc.read() };
    if desc.size == 0 || desc.flags & !1 != 0 || desc.kind == 0 || desc.kind > KINDS {
        return Err(CUresult::INVALID_VALUE);
    }
    if desc.kind != DESCRIPTOR {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let [a, b, c4, d4, ..] = desc.handle[0].to_ne_bytes();
    let fd = i32::from_ne_bytes([a, b, c4, d4]);
    let driver = d.driver()?;
    let handle = driver.memory.import_external(driver, fd, desc.size, c.device, Tag(c.number))?;
    // The driver takes ownership of the descriptor.
    unsafe { libc::close(fd) };
    let handle = usize::try_from(handle).map_err(|_| CUresult::UNKNOWN)?;
    unsafe { put(memory, CUexternalMemory(core::ptr::without_provenance_mut(handle))) }
}

pub(crate) unsafe fn cuExternalMemoryGetMappedBuffer(
    d: &Door,
    dptr: *mut CUdeviceptr,
    memory: CUexternalMemory,
    desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
) -> Answer {
    d.context()?;
    if dptr.is_null() || desc.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let desc = unsafe { desc.read() };
    if desc.flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let at = d.driver()?.memory.map_external(memory.0 as u64, desc.offset, desc.size)?;
    unsafe { put(dptr, at) }
}

/// Mapped buffers keep the memory; they are freed by `cuMemFree`.
pub(crate) unsafe fn cuDestroyExternalMemory(d: &Door, memory: CUexternalMemory) -> Answer {
    d.context()?;
    let driver = d.driver()?;
    driver.memory.release_external(driver, memory.0 as u64)
}
