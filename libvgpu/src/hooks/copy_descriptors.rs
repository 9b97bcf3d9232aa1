//! Copies described by structures (2D, 3D, batches): how many bytes they move on devices, or `None` if they touch the
//! host. A null pointer or garbage is the driver's error to report.
//!
//! SAFETY of every function in this file: the program's own pointers, for a driver function that reads them in the
//! same way.
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

use crate::driver::calls::is_device;
use shim_sys::cuda::*;

// Kinds of memory in the structures: `CUmemorytype`.
const KIND_DEVICE: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_UNIFIED: u32 = 4;

/// The bytes of `rows` rows of `count` elements.
pub(super) fn bytes_of_rows(count: usize, element: usize, rows: usize) -> u64 {
    (count as u64).saturating_mul(element as u64).saturating_mul(rows as u64)
}

fn on_device(kind: u32, address: u64) -> bool {
    match kind {
        KIND_DEVICE | KIND_ARRAY => true,
        KIND_UNIFIED => is_device(address),
        _ => false,
    }
}

macro_rules! described {
    ($($name:ident $params:ident $($depth:ident)?;)*) => {$(
        pub(super) unsafe fn $name(copy: *const $params) -> Option<u64> {
            let c = unsafe { copy.as_ref() }?;
            let ends = [(c.srcMemoryType, u64::from(c.srcDevice)), (c.dstMemoryType, u64::from(c.dstDevice))];
            let depth = [1 $(, c.$depth as usize)?];
            let bytes = bytes_of_rows(c.WidthInBytes as usize, c.Height as usize, depth[depth.len() - 1]);
            ends.iter().all(|(kind, at)| on_device(*kind, *at)).then_some(bytes)
        }
    )*};
}

described! {
    sheet CUDA_MEMCPY2D;
    old_sheet CUDA_MEMCPY2D_v1;
    block CUDA_MEMCPY3D Depth;
    old_block CUDA_MEMCPY3D_v1 Depth;
}

/// Copies of a batch that are inspected one by one; the rest of a longer batch is assumed to be alike.
const MAX_COPIES_READ: usize = 16;

/// Sums the bytes of a batch's copies that stay on devices, scaled up to the whole batch.
fn sum(count: usize, bytes_of: impl Fn(usize) -> Option<u64>) -> Option<u64> {
    let looked_at = count.min(MAX_COPIES_READ);
    let found = (0..looked_at).filter_map(bytes_of).reduce(u64::saturating_add)?;
    Some(found.saturating_mul(count as u64) / looked_at as u64)
}

pub(super) unsafe fn bytes_of_lines(
    to: *const CUdeviceptr,
    from: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
) -> Option<u64> {
    if to.is_null() || from.is_null() || sizes.is_null() {
        return None;
    }
    sum(count, |at| unsafe {
        let ours = is_device(to.add(at).read()) && is_device(from.add(at).read());
        ours.then(|| sizes.add(at).read() as u64)
    })
}

pub(super) unsafe fn bytes_of_operations(list: *const CUDA_MEMCPY3D_BATCH_OP, count: usize) -> Option<u64> {
    if list.is_null() {
        return None;
    }
    let ours = |end: &CUmemcpy3DOperand| end.kind != 1 || is_device(end.at);
    sum(count, |at| {
        let one = unsafe { &*list.add(at) };
        (ours(&one.src) && ours(&one.dst)).then(|| bytes_of_rows(one.extent[0], one.extent[1], one.extent[2]))
    })
}

pub(super) unsafe fn bytes_unpacked(list: *const CUmemDecompressParams, count: usize) -> Option<u64> {
    if list.is_null() {
        return None;
    }
    sum(count, |at| Some(unsafe { (*list.add(at)).dstNumBytes } as u64))
}
