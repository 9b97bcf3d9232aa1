//! Shared by the tests of arrays: descriptors, copies of boxes, the ground truth.
#![allow(dead_code)] // each test file uses its part

use crate::{cu, ok};
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::path::Path;

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;
pub const U8: u32 = 0x01;
pub const F32: u32 = 0x20;

/// Initialises the driver and makes the primary context of device 0 current.
pub fn ready(l: &Library) {
    let mut ctx = CUcontext::NULL;
    ok!(l, cuInit(0));
    ok!(l, cuDevicePrimaryCtxRetain(&mut ctx, 0));
    ok!(l, cuCtxSetCurrent(ctx));
}

pub fn desc(w: usize, h: usize, d: usize, format: u32, channels: u32, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR { Width: w, Height: h, Depth: d, Format: format, NumChannels: channels, Flags: flags }
}

pub fn array(l: &Library, desc: &CUDA_ARRAY3D_DESCRIPTOR) -> CUarray {
    let mut a = CUarray::NULL;
    ok!(l, cuArray3DCreate_v2(&mut a, desc));
    a
}

/// Requested bytes, and bytes of device memory in allocations.
pub fn truth(dir: &Path) -> (u64, u64) {
    let t = vgpu_sim::truth::read(dir).unwrap();
    t.living_process(0, std::process::id()).map_or((0, 0), |p| (p.requested_bytes, p.slab_bytes))
}

pub fn nothing() -> CUDA_MEMCPY3D {
    // SAFETY: integers and pointers, all of which may be zero.
    unsafe { std::mem::zeroed() }
}

/// Copies a box between an array and a host buffer without gaps.
pub fn boxed(l: &Library, a: CUarray, at: [usize; 3], size: [usize; 3], host: &mut [u8], write: bool) -> CUresult {
    assert_eq!(host.len(), size.iter().product::<usize>());
    let mut c = nothing();
    (c.WidthInBytes, c.Height, c.Depth) = (size[0], size[1], size[2]);
    if write {
        (c.srcMemoryType, c.srcHost, c.srcPitch, c.srcHeight) = (1, host.as_ptr().cast(), size[0], size[1]);
        (c.dstMemoryType, c.dstArray, c.dstXInBytes, c.dstY, c.dstZ) = (3, a, at[0], at[1], at[2]);
    } else {
        (c.dstMemoryType, c.dstHost, c.dstPitch, c.dstHeight) = (1, host.as_mut_ptr().cast(), size[0], size[1]);
        (c.srcMemoryType, c.srcArray, c.srcXInBytes, c.srcY, c.srcZ) = (3, a, at[0], at[1], at[2]);
    }
    cu!(l, cuMemcpy3D_v2(&c))
}

pub fn pattern(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| u8::try_from((i * 31 + i / 251 + seed * 7) % 253 + 1).unwrap()).collect()
}
