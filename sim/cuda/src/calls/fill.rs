//! Fills: one value over a range or over rows. No fill waits for its end, as on the real driver.

use crate::capture::{CaptureOperation, OperationTarget};
use crate::entry_points::CallFrame;
use crate::errors::CallResult;
use crate::graph::node;
use crate::work::fill::prepare_fill;
use shim_sys::cuda::*;
use vgpu_sim::engine::WorkKind;

fn fill_rows(
    d: &CallFrame,
    dst: u64,
    pitch: usize,
    value: &[u8],
    width: usize,
    height: usize,
    stream: CUstream,
) -> CallResult {
    let driver = d.initialised_driver()?;
    let (c, id) = match d.target_of(stream)? {
        OperationTarget::Run(c, id) => (c, id),
        OperationTarget::Capture(t) => return capture_fill(d, &t, dst, pitch, value, width, height),
    };
    let device = driver.device_of_ordinal(c.device)?;
    if let Some(fill) = prepare_fill(driver, dst, pitch, value, width, height)? {
        device.engine.enqueue_work(id, fill.fill_time(device), WorkKind::Copy, Some(move || fill.run()));
    }
    Ok(())
}

/// Adds a fill as a node to a capture.
fn capture_fill(
    d: &CallFrame,
    t: &CaptureOperation,
    dst: u64,
    pitch: usize,
    value: &[u8],
    width: usize,
    height: usize,
) -> CallResult {
    if prepare_fill(d.initialised_driver()?, dst, pitch, value, width, height)?.is_none() {
        return Ok(());
    }
    let mut element = [0; 4];
    element[..value.len()].copy_from_slice(value);
    let (value, elementSize) = (u32::from_le_bytes(element), u32::try_from(value.len()).unwrap_or(1));
    let params = CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, elementSize, width, height };
    let context = t.context.clone();
    d.capture_node(t, || Ok(node::NodeKind::Fill(node::GraphFill { params, context })))
}

macro_rules! fills {
    ($($name:ident $ty:ty, $name2:ident;)*) => {$(
        fn $name(d: &CallFrame, dst: u64, value: $ty, count: usize, stream: CUstream) -> CallResult {
            fill_rows(d, dst, 0, &value.to_ne_bytes(), count, 1, stream)
        }
        fn $name2(d: &CallFrame, dst: u64, pitch: usize, value: $ty, w: usize, h: usize, stream: CUstream) -> CallResult {
            fill_rows(d, dst, pitch, &value.to_ne_bytes(), w, h, stream)
        }
    )*};
}

fills! {
    fill8 u8, sheet8;
    fill16 u16, sheet16;
    fill32 u32, sheet32;
}

pub(crate) unsafe fn cuMemsetD8_v2(d: &CallFrame, dst: CUdeviceptr, value: u8, count: usize) -> CallResult {
    fill8(d, dst, value, count, CUstream::NULL)
}

pub(crate) unsafe fn cuMemsetD16_v2(d: &CallFrame, dst: CUdeviceptr, value: u16, count: usize) -> CallResult {
    fill16(d, dst, value, count, CUstream::NULL)
}

pub(crate) unsafe fn cuMemsetD32_v2(d: &CallFrame, dst: CUdeviceptr, value: u32, count: usize) -> CallResult {
    fill32(d, dst, value, count, CUstream::NULL)
}

pub(crate) unsafe fn cuMemsetD8Async(
    d: &CallFrame,
    dst: CUdeviceptr,
    value: u8,
    count: usize,
    s: CUstream,
) -> CallResult {
    fill8(d, dst, value, count, s)
}

pub(crate) unsafe fn cuMemsetD16Async(
    d: &CallFrame,
    dst: CUdeviceptr,
    value: u16,
    count: usize,
    s: CUstream,
) -> CallResult {
    fill16(d, dst, value, count, s)
}

pub(crate) unsafe fn cuMemsetD32Async(
    d: &CallFrame,
    dst: CUdeviceptr,
    value: u32,
    count: usize,
    s: CUstream,
) -> CallResult {
    fill32(d, dst, value, count, s)
}

pub(crate) unsafe fn cuMemsetD2D8_v2(
    d: &CallFrame,
    dst: CUdeviceptr,
    pitch: usize,
    v: u8,
    w: usize,
    h: usize,
) -> CallResult {
    sheet8(d, dst, pitch, v, w, h, CUstream::NULL)
}

pub(crate) unsafe fn cuMemsetD2D16_v2(
    d: &CallFrame,
    dst: CUdeviceptr,
    pitch: usize,
    v: u16,
    w: usize,
    h: usize,
) -> CallResult {
    sheet16(d, dst, pitch, v, w, h, CUstream::NULL)
}

pub(crate) unsafe fn cuMemsetD2D32_v2(
    d: &CallFrame,
    dst: CUdeviceptr,
    pitch: usize,
    v: u32,
    w: usize,
    h: usize,
) -> CallResult {
    sheet32(d, dst, pitch, v, w, h, CUstream::NULL)
}

pub(crate) unsafe fn cuMemsetD2D8Async(
    d: &CallFrame,
    dst: CUdeviceptr,
    pitch: usize,
    v: u8,
    w: usize,
    h: usize,
    s: CUstream,
) -> CallResult {
    sheet8(d, dst, pitch, v, w, h, s)
}

pub(crate) unsafe fn cuMemsetD2D16Async(
    d: &CallFrame,
    dst: CUdeviceptr,
    pitch: usize,
    v: u16,
    w: usize,
    h: usize,
    s: CUstream,
) -> CallResult {
    sheet16(d, dst, pitch, v, w, h, s)
}

pub(crate) unsafe fn cuMemsetD2D32Async(
    d: &CallFrame,
    dst: CUdeviceptr,
    pitch: usize,
    v: u32,
    w: usize,
    h: usize,
    s: CUstream,
) -> CallResult {
    sheet32(d, dst, pitch, v, w, h, s)
}
