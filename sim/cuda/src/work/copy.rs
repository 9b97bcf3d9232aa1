//! Copies: the rows that a copy moves, with its addresses resolved.
//!
//! The location of an array's bytes is resolved when the copy runs, because a sparse array may be mapped until then.

use crate::arrays::ArrayView;
use crate::driver::SimulatedDriver;
use shim_sys::cuda::{CUDA_MEMCPY3D, CUarray, CUresult};
use std::sync::Arc;
use vgpu_sim::DeviceProfile;
use vgpu_sim::engine::WorkKind;

/// Adjacent ranges of host memory. A null range is unmapped memory: reads give zero, writes have no effect.
type HostPieces = Vec<(*mut u8, u64)>;

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
    pub(crate) way: CopyWay,
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
pub(crate) enum CopyWay {
    FromHost,
    ToHost,
    Device,
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
