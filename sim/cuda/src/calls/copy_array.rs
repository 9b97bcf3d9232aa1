//! Copies from and to one-dimensional arrays: offsets in bytes, whole elements.
//!
//! Not here: rows and blocks (`copy`).

use super::copy::{FlatEnd, copy_flat};
use crate::entry_points::CallFrame;
use crate::errors::CallResult;
use core::ffi::c_void;
use shim_sys::cuda::*;

const CALLERS_STREAM: CUstream = CUstream::NULL;

pub(crate) unsafe fn cuMemcpyAtoA(
    d: &CallFrame,
    dst: CUarray,
    dst_offset: u32,
    src: CUarray,
    src_offset: u32,
    bytes: u32,
) -> CallResult {
    copy_flat(
        d,
        &FlatEnd::Array(dst, dst_offset as usize),
        &FlatEnd::Array(src, src_offset as usize),
        bytes as usize,
        CALLERS_STREAM,
        true,
    )
}

pub(crate) unsafe fn cuMemcpyAtoD(
    d: &CallFrame,
    dst: CUdeviceptr_v1,
    src: CUarray,
    offset: u32,
    bytes: u32,
) -> CallResult {
    copy_flat(
        d,
        &FlatEnd::Device(u64::from(dst)),
        &FlatEnd::Array(src, offset as usize),
        bytes as usize,
        CALLERS_STREAM,
        true,
    )
}

pub(crate) unsafe fn cuMemcpyDtoA(
    d: &CallFrame,
    dst: CUarray,
    offset: u32,
    src: CUdeviceptr_v1,
    bytes: u32,
) -> CallResult {
    copy_flat(
        d,
        &FlatEnd::Array(dst, offset as usize),
        &FlatEnd::Device(u64::from(src)),
        bytes as usize,
        CALLERS_STREAM,
        true,
    )
}

pub(crate) unsafe fn cuMemcpyAtoH(
    d: &CallFrame,
    dst: *mut c_void,
    src: CUarray,
    offset: u32,
    bytes: u32,
) -> CallResult {
    copy_flat(
        d,
        &FlatEnd::Host(dst as u64),
        &FlatEnd::Array(src, offset as usize),
        bytes as usize,
        CALLERS_STREAM,
        true,
    )
}

pub(crate) unsafe fn cuMemcpyHtoA(
    d: &CallFrame,
    dst: CUarray,
    offset: u32,
    src: *const c_void,
    bytes: u32,
) -> CallResult {
    copy_flat(
        d,
        &FlatEnd::Array(dst, offset as usize),
        &FlatEnd::Host(src as u64),
        bytes as usize,
        CALLERS_STREAM,
        true,
    )
}

pub(crate) unsafe fn cuMemcpyAtoHAsync(
    d: &CallFrame,
    dst: *mut c_void,
    src: CUarray,
    offset: u32,
    bytes: u32,
    stream: CUstream,
) -> CallResult {
    copy_flat(d, &FlatEnd::Host(dst as u64), &FlatEnd::Array(src, offset as usize), bytes as usize, stream, false)
}

pub(crate) unsafe fn cuMemcpyHtoAAsync(
    d: &CallFrame,
    dst: CUarray,
    offset: u32,
    src: *const c_void,
    bytes: u32,
    stream: CUstream,
) -> CallResult {
    copy_flat(d, &FlatEnd::Array(dst, offset as usize), &FlatEnd::Host(src as u64), bytes as usize, stream, false)
}

pub(crate) unsafe fn cuMemcpyAtoA_v2(
    d: &CallFrame,
    dst: CUarray,
    dst_offset: usize,
    src: CUarray,
    src_offset: usize,
    bytes: usize,
) -> CallResult {
    copy_flat(d, &FlatEnd::Array(dst, dst_offset), &FlatEnd::Array(src, src_offset), bytes, CALLERS_STREAM, true)
}

pub(crate) unsafe fn cuMemcpyAtoD_v2(
    d: &CallFrame,
    dst: CUdeviceptr,
    src: CUarray,
    offset: usize,
    bytes: usize,
) -> CallResult {
    copy_flat(d, &FlatEnd::Device(dst), &FlatEnd::Array(src, offset), bytes, CALLERS_STREAM, true)
}

pub(crate) unsafe fn cuMemcpyDtoA_v2(
    d: &CallFrame,
    dst: CUarray,
    offset: usize,
    src: CUdeviceptr,
    bytes: usize,
) -> CallResult {
    copy_flat(d, &FlatEnd::Array(dst, offset), &FlatEnd::Device(src), bytes, CALLERS_STREAM, true)
}

pub(crate) unsafe fn cuMemcpyAtoH_v2(
    d: &CallFrame,
    dst: *mut c_void,
    src: CUarray,
    offset: usize,
    bytes: usize,
) -> CallResult {
    copy_flat(d, &FlatEnd::Host(dst as u64), &FlatEnd::Array(src, offset), bytes, CALLERS_STREAM, true)
}

pub(crate) unsafe fn cuMemcpyHtoA_v2(
    d: &CallFrame,
    dst: CUarray,
    offset: usize,
    src: *const c_void,
    bytes: usize,
) -> CallResult {
    copy_flat(d, &FlatEnd::Array(dst, offset), &FlatEnd::Host(src as u64), bytes, CALLERS_STREAM, true)
}

pub(crate) unsafe fn cuMemcpyAtoHAsync_v2(
    d: &CallFrame,
    dst: *mut c_void,
    src: CUarray,
    offset: usize,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    copy_flat(d, &FlatEnd::Host(dst as u64), &FlatEnd::Array(src, offset), bytes, stream, false)
}

pub(crate) unsafe fn cuMemcpyHtoAAsync_v2(
    d: &CallFrame,
    dst: CUarray,
    offset: usize,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    copy_flat(d, &FlatEnd::Array(dst, offset), &FlatEnd::Host(src as u64), bytes, stream, false)
}
