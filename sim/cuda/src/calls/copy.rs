//! Copies: bytes really move, in the order of submission; their duration is the model's.
//!
//! A copy between host and device waits for its end unless it is asynchronous; device to device never waits. A
//! copy's end can be an array, like host or device memory. The 32-bit calls of CUDA 2 exist for 1-D arrays
//! only; batched copies do not exist.

use crate::capture::OperationTarget;
use crate::driver::SimulatedDriver;
use crate::entry_points::CallFrame;
use crate::errors::CallResult;
use crate::graph::node;
use crate::work::copy::{CopyWay, prepare_3d};
use core::ffi::c_void;
use shim_sys::cuda::*;

/// Carries out a copy, or captures it. A copy that waits cannot be captured.
fn enqueue_copy(d: &CallFrame, stream: CUstream, params: &CUDA_MEMCPY3D, wait: bool) -> CallResult {
    let driver = d.initialised_driver()?;
    let (c, id) = match if wait {
        d.resolve_stream(stream).map(|(c, id)| OperationTarget::Run(c, id))?
    } else {
        d.target_of(stream)?
    } {
        OperationTarget::Run(c, id) => (c, id),
        OperationTarget::Capture(t) => {
            let context = t.context.clone();
            return match prepare_3d(driver, params)? {
                Some(_) => {
                    d.capture_node(&t, || Ok(node::NodeKind::Copy(node::GraphCopy { params: *params, context })))
                }
                None => Ok(()),
            };
        }
    };
    let Some(copy) = prepare_3d(driver, params)? else { return Ok(()) };
    let device = driver.device_of_ordinal(c.device)?;
    let way = copy.way;
    device.engine.enqueue_work(id, copy.copy_time(&device.profile), copy.copy_kind(), Some(move || copy.run()));
    if wait && way != CopyWay::Device {
        device.engine.stream_wait(id);
    }
    Ok(())
}

/// A copy descriptor with all fields zero.
const EMPTY_COPY: CUDA_MEMCPY3D = CUDA_MEMCPY3D {
    srcXInBytes: 0,
    srcY: 0,
    srcZ: 0,
    srcLOD: 0,
    srcMemoryType: 0,
    srcHost: core::ptr::null(),
    srcDevice: 0,
    srcArray: CUarray::NULL,
    reserved0: core::ptr::null_mut(),
    srcPitch: 0,
    srcHeight: 0,
    dstXInBytes: 0,
    dstY: 0,
    dstZ: 0,
    dstLOD: 0,
    dstMemoryType: 0,
    dstHost: core::ptr::null_mut(),
    dstDevice: 0,
    dstArray: CUarray::NULL,
    reserved1: core::ptr::null_mut(),
    dstPitch: 0,
    dstHeight: 0,
    WidthInBytes: 0,
    Height: 1,
    Depth: 1,
};

fn copy_linear(d: &CallFrame, dst: u64, src: u64, bytes: usize, stream: CUstream, wait: bool) -> CallResult {
    d.current_context()?;
    let flat = |at: u64| if d.initialised_driver().is_ok_and(|driver| driver.memory.is_device(at)) { 2 } else { 4 };
    let (srcMemoryType, dstMemoryType) = (flat(src), flat(dst));
    let one = CUDA_MEMCPY3D {
        srcMemoryType,
        srcDevice: src,
        dstMemoryType,
        dstDevice: dst,
        WidthInBytes: bytes,
        ..EMPTY_COPY
    };
    enqueue_copy(d, stream, &one, wait)
}

/// Runs a copy whose addresses in `device` must be accessible to the device: device, managed or known host memory.
fn copy_checked(d: &CallFrame, device: &[u64], go: impl FnOnce() -> CallResult, bytes: usize) -> CallResult {
    let SimulatedDriver { memory, managed, .. } = d.initialised_driver()?;
    d.current_context()?;
    if bytes > 0 && device.iter().any(|p| !memory.is_device(*p) && !memory.is_pinned(*p) && !managed.is_managed(*p)) {
        return Err(CUresult::INVALID_VALUE);
    }
    go()
}

pub(crate) unsafe fn cuMemcpy(d: &CallFrame, dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> CallResult {
    copy_linear(d, dst, src, bytes, CUstream::NULL, true)
}

pub(crate) unsafe fn cuMemcpyAsync(
    d: &CallFrame,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    copy_linear(d, dst, src, bytes, stream, false)
}

fn check_peers(d: &CallFrame, a: CUcontext, b: CUcontext) -> CallResult {
    let contexts = &d.initialised_driver()?.contexts;
    if contexts.get(a.0).is_some() && contexts.get(b.0).is_some() { Ok(()) } else { Err(CUresult::INVALID_CONTEXT) }
}

pub(crate) unsafe fn cuMemcpyPeer(
    d: &CallFrame,
    dst: CUdeviceptr,
    dst_ctx: CUcontext,
    src: CUdeviceptr,
    src_ctx: CUcontext,
    bytes: usize,
) -> CallResult {
    check_peers(d, dst_ctx, src_ctx)?;
    copy_linear(d, dst, src, bytes, CUstream::NULL, true)
}

pub(crate) unsafe fn cuMemcpyPeerAsync(
    d: &CallFrame,
    dst: CUdeviceptr,
    dst_ctx: CUcontext,
    src: CUdeviceptr,
    src_ctx: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    check_peers(d, dst_ctx, src_ctx)?;
    copy_linear(d, dst, src, bytes, stream, false)
}

pub(crate) unsafe fn cuMemcpyHtoD_v2(d: &CallFrame, dst: CUdeviceptr, src: *const c_void, bytes: usize) -> CallResult {
    copy_checked(d, &[dst], || copy_linear(d, dst, src as u64, bytes, CUstream::NULL, true), bytes)
}

pub(crate) unsafe fn cuMemcpyHtoDAsync_v2(
    d: &CallFrame,
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    copy_checked(d, &[dst], || copy_linear(d, dst, src as u64, bytes, stream, false), bytes)
}

pub(crate) unsafe fn cuMemcpyDtoH_v2(d: &CallFrame, dst: *mut c_void, src: CUdeviceptr, bytes: usize) -> CallResult {
    copy_checked(d, &[src], || copy_linear(d, dst as u64, src, bytes, CUstream::NULL, true), bytes)
}

pub(crate) unsafe fn cuMemcpyDtoHAsync_v2(
    d: &CallFrame,
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    copy_checked(d, &[src], || copy_linear(d, dst as u64, src, bytes, stream, false), bytes)
}

pub(crate) unsafe fn cuMemcpyDtoD_v2(d: &CallFrame, dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> CallResult {
    copy_checked(d, &[dst, src], || copy_linear(d, dst, src, bytes, CUstream::NULL, true), bytes)
}

pub(crate) unsafe fn cuMemcpyDtoDAsync_v2(
    d: &CallFrame,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    copy_checked(d, &[dst, src], || copy_linear(d, dst, src, bytes, stream, false), bytes)
}

/// One end of a copy of a single row.
pub(crate) enum FlatEnd {
    Host(u64),
    Device(u64),
    /// A one-dimensional array, from a byte offset on.
    Array(CUarray, usize),
}

impl FlatEnd {
    fn flat_side(&self, driver: &SimulatedDriver) -> Result<(u32, u64, CUarray, usize), CUresult> {
        Ok(match *self {
            FlatEnd::Host(p) => (1, p, CUarray::NULL, 0),
            FlatEnd::Device(p) => (2, p, CUarray::NULL, 0),
            FlatEnd::Array(a, x) => {
                let array = driver.arrays.get(a.0).ok_or(CUresult::INVALID_HANDLE)?;
                if array.shape.desc.Height != 0 || array.shape.desc.Depth != 0 {
                    return Err(CUresult::INVALID_VALUE);
                }
                (3, 0, a, x)
            }
        })
    }
}

/// A copy between a one-dimensional array and other memory.
pub(crate) fn copy_flat(
    d: &CallFrame,
    dst: &FlatEnd,
    src: &FlatEnd,
    bytes: usize,
    stream: CUstream,
    wait: bool,
) -> CallResult {
    d.current_context()?;
    let driver = d.initialised_driver()?;
    let ((to, at, dstArray, dstXInBytes), (from, source, srcArray, srcXInBytes)) =
        (dst.flat_side(driver)?, src.flat_side(driver)?);
    let one = CUDA_MEMCPY3D {
        srcMemoryType: from,
        srcHost: source as *const c_void,
        srcDevice: source,
        srcArray,
        srcXInBytes,
        dstMemoryType: to,
        dstHost: at as *mut c_void,
        dstDevice: at,
        dstArray,
        dstXInBytes,
        WidthInBytes: bytes,
        ..EMPTY_COPY
    };
    enqueue_copy(d, stream, &one, wait)
}

unsafe fn copy_2d(d: &CallFrame, copy: *const CUDA_MEMCPY2D, stream: CUstream, wait: bool) -> CallResult {
    d.current_context()?;
    if copy.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let c = unsafe { copy.read() };
    let rows = CUDA_MEMCPY3D {
        srcXInBytes: c.srcXInBytes,
        srcY: c.srcY,
        srcMemoryType: c.srcMemoryType,
        srcHost: c.srcHost,
        srcDevice: c.srcDevice,
        srcArray: c.srcArray,
        srcPitch: c.srcPitch,
        dstXInBytes: c.dstXInBytes,
        dstY: c.dstY,
        dstMemoryType: c.dstMemoryType,
        dstHost: c.dstHost,
        dstDevice: c.dstDevice,
        dstArray: c.dstArray,
        dstPitch: c.dstPitch,
        WidthInBytes: c.WidthInBytes,
        Height: c.Height,
        ..EMPTY_COPY
    };
    enqueue_copy(d, stream, &rows, wait)
}

pub(crate) unsafe fn cuMemcpy2D_v2(d: &CallFrame, copy: *const CUDA_MEMCPY2D) -> CallResult {
    unsafe { copy_2d(d, copy, CUstream::NULL, true) }
}

pub(crate) unsafe fn cuMemcpy2DUnaligned_v2(d: &CallFrame, copy: *const CUDA_MEMCPY2D) -> CallResult {
    unsafe { copy_2d(d, copy, CUstream::NULL, true) }
}

pub(crate) unsafe fn cuMemcpy2DAsync_v2(d: &CallFrame, copy: *const CUDA_MEMCPY2D, stream: CUstream) -> CallResult {
    unsafe { copy_2d(d, copy, stream, false) }
}

unsafe fn copy_3d(d: &CallFrame, copy: *const CUDA_MEMCPY3D, stream: CUstream, wait: bool) -> CallResult {
    d.current_context()?;
    if copy.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let copy = unsafe { copy.read() };
    enqueue_copy(d, stream, &copy, wait)
}

pub(crate) unsafe fn cuMemcpy3D_v2(d: &CallFrame, copy: *const CUDA_MEMCPY3D) -> CallResult {
    unsafe { copy_3d(d, copy, CUstream::NULL, true) }
}

pub(crate) unsafe fn cuMemcpy3DAsync_v2(d: &CallFrame, copy: *const CUDA_MEMCPY3D, stream: CUstream) -> CallResult {
    unsafe { copy_3d(d, copy, stream, false) }
}

unsafe fn copy_between_devices(
    d: &CallFrame,
    copy: *const CUDA_MEMCPY3D_PEER,
    stream: CUstream,
    wait: bool,
) -> CallResult {
    d.current_context()?;
    if copy.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let c = unsafe { copy.read() };
    // A null context stands for the current one.
    let named =
        |c: CUcontext| c.is_null() || d.initialised_driver().is_ok_and(|driver| driver.contexts.get(c.0).is_some());
    if !named(c.srcContext) || !named(c.dstContext) {
        return Err(CUresult::INVALID_CONTEXT);
    }
    // The two structures differ only in the contexts.
    unsafe { copy_3d(d, (&raw const c).cast(), stream, wait) }
}

pub(crate) unsafe fn cuMemcpy3DPeer(d: &CallFrame, copy: *const CUDA_MEMCPY3D_PEER) -> CallResult {
    unsafe { copy_between_devices(d, copy, CUstream::NULL, true) }
}

pub(crate) unsafe fn cuMemcpy3DPeerAsync(
    d: &CallFrame,
    copy: *const CUDA_MEMCPY3D_PEER,
    stream: CUstream,
) -> CallResult {
    unsafe { copy_between_devices(d, copy, stream, false) }
}
