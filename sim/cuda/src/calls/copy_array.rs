//! Copies from and to one-dimensional arrays: offsets in bytes, whole elements.
//!
//! Not here: rows and blocks (`copy`).

use super::copy::{Flat, flat};
use crate::door::{Answer, Door};
use core::ffi::c_void;
use shim_sys::cuda::*;

const HERE: CUstream = CUstream::NULL;

pub(crate) unsafe fn cuMemcpyAtoA(
    d: &Door,
    dst: CUarray,
    dst_offset: u32,
    src: CUarray,
    src_offset: u32,
    bytes: u32,
) -> Answer {
    flat(d, &Flat::Array(dst, dst_offset as usize), &Flat::Array(src, src_offset as usize), bytes as usize, HERE, true)
}

pub(crate) unsafe fn cuMemcpyAtoD(d: &Door, dst: CUdeviceptr_v1, src: CUarray, offset: u32, bytes: u32) -> Answer {
    flat(d, &Flat::Device(u64::from(dst)), &Flat::Array(src, offset as usize), bytes as usize, HERE, true)
}

pub(crate) unsafe fn cuMemcpyDtoA(d: &Door, dst: CUarray, offset: u32, src: CUdeviceptr_v1, bytes: u32) -> Answer {
    flat(d, &Flat::Array(dst, offset as usize), &Flat::Device(u64::from(src)), bytes as usize, HERE, true)
}

pub(crate) unsafe fn cuMemcpyAtoH(d: &Door, dst: *mut c_void, src: CUarray, offset: u32, bytes: u32) -> Answer {
    flat(d, &Flat::Host(dst as u64), &Flat::Array(src, offset as usize), bytes as usize, HERE, true)
}

pub(crate) unsafe fn cuMemcpyHtoA(d: &Door, dst: CUarray, offset: u32, src: *const c_void, bytes: u32) -> Answer {
    flat(d, &Flat::Array(dst, offset as usize), &Flat::Host(src as u64), bytes as usize, HERE, true)
}

pub(crate) unsafe fn cuMemcpyAtoHAsync(
    d: &Door,
    dst: *mut c_void,
    src: CUarray,
    offset: u32,
    bytes: u32,
    stream: CUstream,
) -> Answer {
    flat(d, &Flat::Host(dst as u64), &Flat::Array(src, offset as usize), bytes as usize, stream, false)
}

pub(crate) unsafe fn cuMemcpyHtoAAsync(
    d: &Door,
    dst: CUarray,
    offset: u32,
    src: *const c_void,
    bytes: u32,
    stream: CUstream,
) -> Answer {
    flat(d, &Flat::Array(dst, offset as usize), &Flat::Host(src as u64), bytes as usize, stream, false)
}

pub(crate) unsafe fn cuMemcpyAtoA_v2(
    d: &Door,
    dst: CUarray,
    dst_offset: usize,
    src: CUarray,
    src_offset: usize,
    bytes: usize,
) -> Answer {
    flat(d, &Flat::Array(dst, dst_offset), &Flat::Array(src, src_offset), bytes, HERE, true)
}

pub(crate) unsafe fn cuMemcpyAtoD_v2(d: &Door, dst: CUdeviceptr, src: CUarray, offset: usize, bytes: usize) -> Answer {
    flat(d, &Flat::Device(dst), &Flat::Array(src, offset), bytes, HERE, true)
}

pub(crate) unsafe fn cuMemcpyDtoA_v2(d: &Door, dst: CUarray, offset: usize, src: CUdeviceptr, bytes: usize) -> Answer {
    flat(d, &Flat::Array(dst, offset), &Flat::Device(src), bytes, HERE, true)
}

pub(crate) unsafe fn cuMemcpyAtoH_v2(d: &Door, dst: *mut c_void, src: CUarray, offset: usize, bytes: usize) -> Answer {
    flat(d, &Flat::Host(dst as u64), &Flat::Array(src, offset), bytes, HERE, true)
}

pub(crate) unsafe fn cuMemcpyHtoA_v2(
    d: &Door,
    dst: CUarray,
    offset: usize,
    src: *const c_void,
    bytes: usize,
) -> Answer {
    flat(d, &Flat::Array(dst, offset), &Flat::Host(src as u64), bytes, HERE, true)
}

pub(crate) unsafe fn cuMemcpyAtoHAsync_v2(
    d: &Door,
    dst: *mut c_void,
    src: CUarray,
    offset: usize,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    flat(d, &Flat::Host(dst as u64), &Flat::Array(src, offset), bytes, stream, false)
}

pub(crate) unsafe fn cuMemcpyHtoAAsync_v2(
    d: &Door,
    dst: CUarray,
    offset: usize,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    flat(d, &Flat::Array(dst, offset), &Flat::Host(src as u64), bytes, stream, false)
}
