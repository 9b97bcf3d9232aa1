//! Copies: bytes really move, in the order of submission; their duration is the model's.
//!
//! A copy between host and device waits for its end unless it is asynchronous; device to device never waits. A
//! copy's end can be an array, like host or device memory. The location of an array's bytes is resolved when the
//! copy runs, because a sparse array may be mapped until then. The 32-bit calls of CUDA 2 exist for 1-D arrays
//! only; batched copies do not exist.

use crate::arrays::Array;
use crate::capture::Target;
use crate::door::{Answer, Door};
use crate::driver::Driver;
use crate::graph::node;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;
use vgpu_sim::Profile;
use vgpu_sim::engine::Kind;

/// Adjacent ranges of host memory. A null range is unmapped memory: reads give zero, writes have no effect.
pub(crate) type Pieces = Vec<(*mut u8, u64)>;

/// One end of a copy.
enum End {
    /// The pieces of each row.
    Linear(Vec<Pieces>),
    /// A corner in an array: x in bytes, y, z.
    Array(Arc<Array>, [u64; 3]),
}

/// Rows to move: `rows` of `width` bytes in each of `slices`.
pub(crate) struct Move {
    driver: &'static Driver,
    width: u64,
    rows: u64,
    slices: u64,
    dst: End,
    src: End,
    way: Way,
}

// SAFETY: the pieces are addresses of mapped memory; the bytes belong to the program, which orders its accesses by
// streams as on a real device.
unsafe impl Send for Move {}
// SAFETY: as above.
unsafe impl Sync for Move {}

impl End {
    fn row(&self, m: &Move, y: u64, z: u64) -> Pieces {
        match self {
            End::Linear(rows) => rows.get(usize::try_from(z * m.rows + y).unwrap_or(0)).cloned().unwrap_or_default(),
            End::Array(a, [x0, y0, z0]) => a.row(&m.driver.memory, *x0, y0 + y, z0 + z, m.width),
        }
    }
}

impl Move {
    /// Copies the bytes of all rows.
    pub(crate) fn run(&self) {
        for z in 0..self.slices {
            for y in 0..self.rows {
                row(&self.dst.row(self, y, z), &self.src.row(self, y, z));
            }
        }
    }

    /// The type of engine work, which decides the engine of the device.
    pub(crate) fn kind(&self) -> Kind {
        match self.way {
            Way::FromHost => Kind::FromHost,
            Way::ToHost => Kind::ToHost,
            Way::Device => Kind::Copy,
        }
    }

    /// Device time of the copy, ns.
    pub(crate) fn time(&self, p: &Profile) -> u64 {
        let bytes = self.width * self.rows * self.slices;
        match self.way {
            Way::FromHost | Way::ToHost => p.copy_time(bytes, p.host_bytes_per_us),
            Way::Device => p.copy_time(bytes, p.device_bytes_per_us / 2),
        }
    }
}

fn row(dst: &Pieces, src: &Pieces) {
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
enum Way {
    FromHost,
    ToHost,
    Device,
}

/// Carries out a copy, or captures it. A copy that waits cannot be captured.
fn enqueue(d: &Door, stream: CUstream, params: &CUDA_MEMCPY3D, wait: bool) -> Answer {
    let driver = d.driver()?;
    let (c, id) = match if wait { d.stream(stream).map(|(c, id)| Target::Run(c, id))? } else { d.target(stream)? } {
        Target::Run(c, id) => (c, id),
        Target::Capture(t) => {
            let context = t.context.clone();
            return match prepare(driver, params)? {
                Some(_) => d.capture(&t, || Ok(node::Kind::Copy(node::Copy { params: *params, context }))),
                None => Ok(()),
            };
        }
    };
    let Some(copy) = prepare(driver, params)? else { return Ok(()) };
    let device = driver.device(c.device)?;
    let way = copy.way;
    device.engine.work(id, copy.time(&device.profile), copy.kind(), Some(move || copy.run()));
    if wait && way != Way::Device {
        device.engine.stream_wait(id);
    }
    Ok(())
}

/// A copy descriptor with all fields zero.
const EMPTY: CUDA_MEMCPY3D = CUDA_MEMCPY3D {
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

fn line(d: &Door, dst: u64, src: u64, bytes: usize, stream: CUstream, wait: bool) -> Answer {
    d.context()?;
    let flat = |at: u64| if d.driver().is_ok_and(|driver| driver.memory.is_device(at)) { 2 } else { 4 };
    let (srcMemoryType, dstMemoryType) = (flat(src), flat(dst));
    let one =
        CUDA_MEMCPY3D { srcMemoryType, srcDevice: src, dstMemoryType, dstDevice: dst, WidthInBytes: bytes, ..EMPTY };
    enqueue(d, stream, &one, wait)
}

/// Runs a copy whose addresses in `device` must be accessible to the device: device, managed or known host memory.
fn checked(d: &Door, device: &[u64], go: impl FnOnce() -> Answer, bytes: usize) -> Answer {
    let Driver { memory, managed, .. } = d.driver()?;
    d.context()?;
    if bytes > 0 && device.iter().any(|p| !memory.is_device(*p) && !memory.is_pinned(*p) && !managed.holds(*p)) {
        return Err(CUresult::INVALID_VALUE);
    }
    go()
}

pub(crate) unsafe fn cuMemcpy(d: &Door, dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> Answer {
    line(d, dst, src, bytes, CUstream::NULL, true)
}

pub(crate) unsafe fn cuMemcpyAsync(
    d: &Door,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    line(d, dst, src, bytes, stream, false)
}

fn peers(d: &Door, a: CUcontext, b: CUcontext) -> Answer {
    let contexts = &d.driver()?.contexts;
    if contexts.get(a.0).is_some() && contexts.get(b.0).is_some() { Ok(()) } else { Err(CUresult::INVALID_CONTEXT) }
}

pub(crate) unsafe fn cuMemcpyPeer(
    d: &Door,
    dst: CUdeviceptr,
    dst_ctx: CUcontext,
    src: CUdeviceptr,
    src_ctx: CUcontext,
    bytes: usize,
) -> Answer {
    peers(d, dst_ctx, src_ctx)?;
    line(d, dst, src, bytes, CUstream::NULL, true)
}

pub(crate) unsafe fn cuMemcpyPeerAsync(
    d: &Door,
    dst: CUdeviceptr,
    dst_ctx: CUcontext,
    src: CUdeviceptr,
    src_ctx: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    peers(d, dst_ctx, src_ctx)?;
    line(d, dst, src, bytes, stream, false)
}

pub(crate) unsafe fn cuMemcpyHtoD_v2(d: &Door, dst: CUdeviceptr, src: *const c_void, bytes: usize) -> Answer {
    checked(d, &[dst], || line(d, dst, src as u64, bytes, CUstream::NULL, true), bytes)
}

pub(crate) unsafe fn cuMemcpyHtoDAsync_v2(
    d: &Door,
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    checked(d, &[dst], || line(d, dst, src as u64, bytes, stream, false), bytes)
}

pub(crate) unsafe fn cuMemcpyDtoH_v2(d: &Door, dst: *mut c_void, src: CUdeviceptr, bytes: usize) -> Answer {
    checked(d, &[src], || line(d, dst as u64, src, bytes, CUstream::NULL, true), bytes)
}

pub(crate) unsafe fn cuMemcpyDtoHAsync_v2(
    d: &Door,
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    checked(d, &[src], || line(d, dst as u64, src, bytes, stream, false), bytes)
}

pub(crate) unsafe fn cuMemcpyDtoD_v2(d: &Door, dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> Answer {
    checked(d, &[dst, src], || line(d, dst, src, bytes, CUstream::NULL, true), bytes)
}

pub(crate) unsafe fn cuMemcpyDtoDAsync_v2(
    d: &Door,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    checked(d, &[dst, src], || line(d, dst, src, bytes, stream, false), bytes)
}

/// One side of a copy of rows, as the program describes it.
struct Side {
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

fn end(driver: &'static Driver, s: &Side, extent: [usize; 3], write: bool) -> Result<End, CUresult> {
    let invalid = CUresult::INVALID_VALUE;
    let [width, height, depth] = extent;
    if s.kind == 3 {
        let array = driver.arrays.get(s.array.0).ok_or(CUresult::INVALID_HANDLE)?;
        let place = [s.x, s.y, s.z].map(|n| n as u64);
        array.holds(place, extent.map(|n| n as u64))?;
        return Ok(End::Array(array, place));
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
            rows.push(driver.reach(at, width as u64, write)?);
        }
    }
    Ok(End::Linear(rows))
}

/// Checks a copy and resolves its addresses; `None` when it is empty.
fn solid(driver: &'static Driver, src: &Side, dst: &Side, extent: [usize; 3]) -> Result<Option<Move>, CUresult> {
    if extent.contains(&0) {
        return Ok(None);
    }
    let on_device = |s: &Side| s.kind == 3 || (s.kind != 1 && driver.memory.is_device(s.device));
    let way = match (on_device(src), on_device(dst)) {
        (true, true) => Way::Device,
        (true, false) => Way::ToHost,
        (false, _) => Way::FromHost,
    };
    let [width, rows, slices] = extent.map(|n| n as u64);
    let (dst, src) = (end(driver, dst, extent, true)?, end(driver, src, extent, false)?);
    Ok(Some(Move { driver, width, rows, slices, dst, src, way }))
}

/// One end of a copy of a single row.
pub(crate) enum Flat {
    Host(u64),
    Device(u64),
    /// A one-dimensional array, from a byte offset on.
    Array(CUarray, usize),
}

impl Flat {
    fn side(&self, driver: &Driver) -> Result<(u32, u64, CUarray, usize), CUresult> {
        Ok(match *self {
            Flat::Host(p) => (1, p, CUarray::NULL, 0),
            Flat::Device(p) => (2, p, CUarray::NULL, 0),
            Flat::Array(a, x) => {
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
pub(crate) fn flat(d: &Door, dst: &Flat, src: &Flat, bytes: usize, stream: CUstream, wait: bool) -> Answer {
    d.context()?;
    let driver = d.driver()?;
    let ((to, at, dstArray, dstXInBytes), (from, source, srcArray, srcXInBytes)) =
        (dst.side(driver)?, src.side(driver)?);
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
        ..EMPTY
    };
    enqueue(d, stream, &one, wait)
}

/// Checks a `CUDA_MEMCPY3D` and resolves its addresses; `None` when it is empty.
pub(crate) fn prepare(driver: &'static Driver, c: &CUDA_MEMCPY3D) -> Result<Option<Move>, CUresult> {
    if c.srcLOD != 0 || c.dstLOD != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let src = Side {
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
    let dst = Side {
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
    solid(driver, &src, &dst, [c.WidthInBytes, c.Height, c.Depth])
}

unsafe fn sheet(d: &Door, copy: *const CUDA_MEMCPY2D, stream: CUstream, wait: bool) -> Answer {
    d.context()?;
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
        ..EMPTY
    };
    enqueue(d, stream, &rows, wait)
}

pub(crate) unsafe fn cuMemcpy2D_v2(d: &Door, copy: *const CUDA_MEMCPY2D) -> Answer {
    unsafe { sheet(d, copy, CUstream::NULL, true) }
}

pub(crate) unsafe fn cuMemcpy2DUnaligned_v2(d: &Door, copy: *const CUDA_MEMCPY2D) -> Answer {
    unsafe { sheet(d, copy, CUstream::NULL, true) }
}

pub(crate) unsafe fn cuMemcpy2DAsync_v2(d: &Door, copy: *const CUDA_MEMCPY2D, stream: CUstream) -> Answer {
    unsafe { sheet(d, copy, stream, false) }
}

unsafe fn block(d: &Door, copy: *const CUDA_MEMCPY3D, stream: CUstream, wait: bool) -> Answer {
    d.context()?;
    if copy.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let copy = unsafe { copy.read() };
    enqueue(d, stream, &copy, wait)
}

pub(crate) unsafe fn cuMemcpy3D_v2(d: &Door, copy: *const CUDA_MEMCPY3D) -> Answer {
    unsafe { block(d, copy, CUstream::NULL, true) }
}

pub(crate) unsafe fn cuMemcpy3DAsync_v2(d: &Door, copy: *const CUDA_MEMCPY3D, stream: CUstream) -> Answer {
    unsafe { block(d, copy, stream, false) }
}

unsafe fn between(d: &Door, copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream, wait: bool) -> Answer {
    d.context()?;
    if copy.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let c = unsafe { copy.read() };
    // A null context stands for the current one.
    let named = |c: CUcontext| c.is_null() || d.driver().is_ok_and(|driver| driver.contexts.get(c.0).is_some());
    if !named(c.srcContext) || !named(c.dstContext) {
        return Err(CUresult::INVALID_CONTEXT);
    }
    // The two structures differ only in the contexts.
    unsafe { block(d, (&raw const c).cast(), stream, wait) }
}

pub(crate) unsafe fn cuMemcpy3DPeer(d: &Door, copy: *const CUDA_MEMCPY3D_PEER) -> Answer {
    unsafe { between(d, copy, CUstream::NULL, true) }
}

pub(crate) unsafe fn cuMemcpy3DPeerAsync(d: &Door, copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream) -> Answer {
    unsafe { between(d, copy, stream, false) }
}
