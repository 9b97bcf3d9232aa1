//! Memory of other APIs, by file descriptors.
//!
//! A descriptor that a simulated program exported refers to that program's memory. Any other file that is long
//! enough stands for memory of a graphics API: it counts with the process that imports it, and its bytes are the
//! file's. Arrays in such memory and other types of handles are not supported.
//! Not here: semaphores.

use crate::content::OwnerTag;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use shim_sys::cuda::*;

const DESCRIPTOR_KIND: u32 = 1;
const HANDLE_KINDS: u32 = 8;

pub(crate) unsafe fn cuImportExternalMemory(
    d: &CallFrame,
    memory: *mut CUexternalMemory,
    desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> CallResult {
    let c = d.current_context()?;
    if memory.is_null() || desc.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let desc = unsafe { desc.read() };
    if desc.size == 0 || desc.flags & !1 != 0 || desc.kind == 0 || desc.kind > HANDLE_KINDS {
        return Err(CUresult::INVALID_VALUE);
    }
    if desc.kind != DESCRIPTOR_KIND {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let [a, b, c4, d4, ..] = desc.handle[0].to_ne_bytes();
    let fd = i32::from_ne_bytes([a, b, c4, d4]);
    let driver = d.initialised_driver()?;
    let handle = driver.memory.import_external(fd, desc.size, c.device, OwnerTag(c.number))?;
    // The driver takes ownership of the descriptor.
    unsafe { libc::close(fd) };
    let handle = usize::try_from(handle).map_err(|_| CUresult::UNKNOWN)?;
    unsafe { write_output(memory, CUexternalMemory(core::ptr::without_provenance_mut(handle))) }
}

pub(crate) unsafe fn cuExternalMemoryGetMappedBuffer(
    d: &CallFrame,
    dptr: *mut CUdeviceptr,
    memory: CUexternalMemory,
    desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
) -> CallResult {
    d.current_context()?;
    if dptr.is_null() || desc.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let desc = unsafe { desc.read() };
    if desc.flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let at = d.initialised_driver()?.memory.map_external(memory.0 as u64, desc.offset, desc.size)?;
    unsafe { write_output(dptr, at) }
}

/// Mapped buffers keep the memory; they are freed by `cuMemFree`.
pub(crate) unsafe fn cuDestroyExternalMemory(d: &CallFrame, memory: CUexternalMemory) -> CallResult {
    d.current_context()?;
    let driver = d.initialised_driver()?;
    driver.memory.release_external(memory.0 as u64)
}
