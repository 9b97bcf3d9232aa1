//! Copies: bytes really move, in the order of submission; their duration is the model's.
//!
//! A copy between host and device waits for its end unless it is asynchronous; device to device never waits. A
//! copy's end can be an array, like host or device memory. The location of an array's bytes is resolved when the
//! copy runs, because a sparse array may be mapped until then. The 32-bit calls of CUDA 2 exist for 1-D arrays
//! only; batched copies do not exist.

use crate::arrays::ArrayView;
use crate::capture::OperationTarget;
use crate::door::{CallFrame, CallResult};
use crate::driver::SimulatedDriver;
use crate::graph::node;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;
use vgpu_sim::DeviceProfile;
use vgpu_sim::engine::WorkKind;

/// Adjacent ranges of host memory. A null range is unmapped memory: reads give zero, writes have no effect.
pub(crate) type HostPieces = Vec<(*mut u8, u64)>;

/// One end of a copy.
enum CopyEnd {
    /// The pieces of each row.
    Linear(Vec<HostPieces>),
    /// A corner in an array: x in bytes, y, z.
    Array(Arc<ArrayView>, [u64; 3]),
}

/// Rows to move: `rows` of `width` bytes in each of `slices`.
pub(crate) struct RowMove {
    driver: &'static SimulatedDriver,
    width: u64,
    rows: u64,
    slices: u64,
    dst: CopyEnd,
    src: CopyEnd,
    way: CopyWay,
}

// SAFETY: the pieces are addresses of mapped memory; the bytes belong to the program, which orders its accesses by
// streams as on a real device.
unsafe impl Send for RowMove {}
// SAFETY: as above.
unsafe impl Sync for RowMove {}

impl CopyEnd {
    fn end_row(&self, m: &RowMove, y: u64, z: u64) -> HostPieces {
        match self {
            CopyEnd::Linear(rows) => {
                rows.get(usize::try_from(z * m.rows + y).unwrap_or(0)).cloned().unwrap_or_default()
            }
            CopyEnd::Array(a, [x0, y0, z0]) => a.array_row(&m.driver.memory, *x0, y0 + y, z0 + z, m.width),
        }
    }
}

impl RowMove {
    /// Copies the bytes of all rows.
    pub(crate) fn run(&self) {
        for z in 0..self.slices {
            for y in 0..self.rows {
                copy_row(&self.dst.end_row(self, y, z), &self.src.end_row(self, y, z));
            }
        }
    }

    /// The type of engine work, which decides the engine of the device.
    pub(crate) fn copy_kind(&self) -> WorkKind {
        match self.way {
            CopyWay::FromHost => WorkKind::FromHost,
            CopyWay::ToHost => WorkKind::ToHost,
            CopyWay::Device => WorkKind::Copy,
        }
    }

    /// Device time of the copy, ns.
    pub(crate) fn copy_time(&self, p: &DeviceProfile) -> u64 {
        let bytes = self.width * self.rows * self.slices;
        match self.way {
            CopyWay::FromHost | CopyWay::ToHost => p.copy_time(bytes, p.host_bytes_per_us),
            CopyWay::Device => p.copy_time(bytes, p.device_bytes_per_us / 2),
        }
    }
}

fn copy_row(dst: &HostPieces, src: &HostPieces) {
    let (mut d, mut s) = (dst.iter().copied(), src.iter().copied());
    let (mut to, mut from) = (d.next(), s.next());
    while let (Some((dp, dn)), Some((sp, sn))) = (to, from) {
        let n = dn.min(sn);
        let len = usize::try_from(n).unwrap_or(0);
        // SAFETY: ranges that `reach` returned, that an array holds or that the caller guarantees; they may overlap.
        unsafe {
            if sp.is_null() && !dp.is_null() {
                core::ptr::write_bytes(dp, 0, len);
            } else if !dp.is_null() {
                core::ptr::copy(sp, dp, len);
            }
        }
        let rest = |p: *mut u8, left: u64| Some((if p.is_null() { p } else { p.wrapping_add(len) }, left));
        to = if n == dn { d.next() } else { rest(dp, dn - n) };
        from = if n == sn { s.next() } else { rest(sp, sn - n) };
    }
}

/// The memories between which a copy moves, for its bandwidth and for whether it waits.
#[derive(Clone, Copy, PartialEq)]
enum CopyWay {
    FromHost,
    ToHost,
    Device,
}

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

/// One side of a copy of rows, as the program describes it.
struct CopySide {
    kind: u32,
    host: u64,
    device: u64,
    array: CUarray,
    x: usize,
    y: usize,
    z: usize,
    pitch: usize,
    height: usize,
}

fn resolve_end(
    driver: &'static SimulatedDriver,
    s: &CopySide,
    extent: [usize; 3],
    write: bool,
) -> Result<CopyEnd, CUresult> {
    let invalid = CUresult::INVALID_VALUE;
    let [width, height, depth] = extent;
    if s.kind == 3 {
        let array = driver.arrays.get(s.array.0).ok_or(CUresult::INVALID_HANDLE)?;
        let place = [s.x, s.y, s.z].map(|n| n as u64);
        array.check_box(place, extent.map(|n| n as u64))?;
        return Ok(CopyEnd::Array(array, place));
    }
    let base = match s.kind {
        1 => s.host,
        2 | 4 => s.device,
        _ => return Err(invalid),
    };
    // A pitch or height of zero means no gaps; one below the copied extent is an error.
    let or = |n: usize, least: Option<usize>| {
        let least = least?;
        if n == 0 { Some(least) } else { Some(n).filter(|n| *n >= least) }
    };
    let pitch = or(s.pitch, s.x.checked_add(width)).ok_or(invalid)?;
    let slice = if depth > 1 || s.z > 0 { or(s.height, s.y.checked_add(height)).ok_or(invalid)? } else { 0 };
    let mut rows = Vec::with_capacity(height.saturating_mul(depth).min(1 << 20));
    for z in 0..depth {
        for y in 0..height {
            let skip = (s.z + z).checked_mul(slice).and_then(|n| n.checked_add(s.y + y));
            let skip = skip.and_then(|n| n.checked_mul(pitch)).and_then(|n| n.checked_add(s.x)).ok_or(invalid)?;
            let at = base.checked_add(skip as u64).ok_or(invalid)?;
            rows.push(driver.content_or_managed(at, width as u64, write)?);
        }
    }
    Ok(CopyEnd::Linear(rows))
}

/// Checks a copy and resolves its addresses; `None` when it is empty.
fn resolve_copy(
    driver: &'static SimulatedDriver,
    src: &CopySide,
    dst: &CopySide,
    extent: [usize; 3],
) -> Result<Option<RowMove>, CUresult> {
    if extent.contains(&0) {
        return Ok(None);
    }
    let on_device = |s: &CopySide| s.kind == 3 || (s.kind != 1 && driver.memory.is_device(s.device));
    let way = match (on_device(src), on_device(dst)) {
        (true, true) => CopyWay::Device,
        (true, false) => CopyWay::ToHost,
        (false, _) => CopyWay::FromHost,
    };
    let [width, rows, slices] = extent.map(|n| n as u64);
    let (dst, src) = (resolve_end(driver, dst, extent, true)?, resolve_end(driver, src, extent, false)?);
    Ok(Some(RowMove { driver, width, rows, slices, dst, src, way }))
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

/// Checks a `CUDA_MEMCPY3D` and resolves its addresses; `None` when it is empty.
pub(crate) fn prepare_3d(driver: &'static SimulatedDriver, c: &CUDA_MEMCPY3D) -> Result<Option<RowMove>, CUresult> {
    if c.srcLOD != 0 || c.dstLOD != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let src = CopySide {
        kind: c.srcMemoryType,
        host: c.srcHost as u64,
        device: c.srcDevice,
        array: c.srcArray,
        x: c.srcXInBytes,
        y: c.srcY,
        z: c.srcZ,
        pitch: c.srcPitch,
        height: c.srcHeight,
    };
    let dst = CopySide {
        kind: c.dstMemoryType,
        host: c.dstHost as u64,
        device: c.dstDevice,
        array: c.dstArray,
        x: c.dstXInBytes,
        y: c.dstY,
        z: c.dstZ,
        pitch: c.dstPitch,
        height: c.dstHeight,
    };
    resolve_copy(driver, &src, &dst, [c.WidthInBytes, c.Height, c.Depth])
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
