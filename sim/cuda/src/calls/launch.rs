//! Kernel launches: they take device time and compute nothing.
//!
//! Three test kernels are known by name:
//! - `vgpu_spin_ns(ns)` takes exactly `ns`.
//! - `vgpu_wait_word(address, value)` stays on the device until the 32-bit word at `address` has the value.
//! - `vgpu_set_word(address, value, ns)` takes `ns` and then writes the word.
//!
//! Any other kernel takes the time that the profile's cost model gives for its grid and block.
//! Not here: cooperative launches (`together`).

use super::function::function_of_handle;
use crate::capture::{CaptureOperation, OperationTarget};
use crate::entry_points::CallFrame;
use crate::errors::CallResult;
use crate::graph::node::{self, KernelArguments, KernelNode};
use crate::host_time::TimedCall;
use crate::objects::{FunctionObject, TestKernel};
use crate::work::kernel::{LaunchCost, LaunchShape, packed_buffer};
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use vgpu_sim::DeviceProfile;

/// The first eight bytes of a parameter, from the array of pointers or the packed buffer.
unsafe fn parameter_value(
    f: &FunctionObject,
    i: usize,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<u64, CUresult> {
    let invalid = CUresult::INVALID_VALUE;
    let (at, size) = f.entry.params.get(i).copied().ok_or(invalid)?;
    let mut bytes = [0u8; 8];
    unsafe {
        let from: *const u8 =
            if params.is_null() { packed_buffer(extra)?.0.add(at) } else { params.add(i).read().cast() };
        if from.is_null() {
            return Err(invalid);
        }
        core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size.min(8));
    }
    Ok(u64::from_le_bytes(bytes))
}

/// The duration and effect of a launch; checks its shape, and that its parameters exist.
pub(crate) unsafe fn launch_duration(
    p: &DeviceProfile,
    x: &FunctionObject,
    shape: &LaunchShape,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<LaunchCost, CUresult> {
    let (g, b) = (shape.grid, shape.block);
    let invalid = CUresult::INVALID_VALUE;
    if g.contains(&0) || b.contains(&0) || g[0] > i32::MAX as u32 || g[1] > 65_535 || g[2] > 65_535 {
        return Err(invalid);
    }
    let threads = b.iter().try_fold(1u32, |n, d| n.checked_mul(*d)).filter(|t| *t <= 1024 && b[2] <= 64);
    let threads = threads.ok_or(invalid)?;
    let allowed = x.set.lock().get(&8).copied().unwrap_or(48 << 10);
    if i64::from(shape.shared) > i64::from(allowed) || (!params.is_null() && !extra.is_null()) {
        return Err(invalid);
    }
    if !x.entry.params.is_empty() && params.is_null() {
        let (_, size) = unsafe { packed_buffer(extra)? };
        let needed = x.entry.params.iter().map(|(at, n)| at + n).max().unwrap_or(0);
        if size < needed {
            return Err(invalid);
        }
    }
    let blocks = g.iter().map(|n| u64::from(*n)).product::<u64>();
    let value = |i| unsafe { parameter_value(x, i, params, extra) };
    // The value of a word is the lower half of its parameter.
    let half = |i| value(i).map(|v| u32::try_from(v & u64::from(u32::MAX)).unwrap_or(0));
    Ok(match x.test {
        None => LaunchCost::Time(p.kernel_time(blocks, threads)),
        Some(TestKernel::Spin) => LaunchCost::Time(value(0)?),
        Some(TestKernel::Wait) => LaunchCost::Wait(value(0)?, half(1)?),
        Some(TestKernel::Set) => LaunchCost::Set(value(0)?, half(1)?, value(2)?),
    })
}

/// Adds a launch as a node to a capture.
unsafe fn capture_launch(
    d: &CallFrame,
    f: CUfunction,
    x: &Arc<FunctionObject>,
    shape: &LaunchShape,
    t: &CaptureOperation,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<node::NodeKind, CUresult> {
    let profile = &d.initialised_driver()?.device_of_ordinal(t.context.device)?.profile;
    let cost = unsafe { launch_duration(profile, x, shape, params, extra)? };
    let arguments = unsafe { KernelArguments::read(x, params, extra)? };
    Ok(node::NodeKind::Kernel(KernelNode {
        f: x.clone(),
        context: t.context.clone(),
        named: (f, CUkernel::NULL, CUcontext::NULL),
        shape: *shape,
        arguments,
        cost,
        attributes: BTreeMap::new(),
    }))
}

pub(super) unsafe fn launch(
    d: &CallFrame,
    f: CUfunction,
    shape: &LaunchShape,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CallResult {
    static CALL: TimedCall = TimedCall::new();
    let begin = vgpu_sim::now();
    let x = function_of_handle(d, f)?;
    let (c, id) = match d.target_of(stream)? {
        OperationTarget::Capture(t) => {
            return d.capture_node(&t, || unsafe { capture_launch(d, f, &x, shape, &t, params, extra) });
        }
        OperationTarget::Run(c, id) => (c, id),
    };
    super::library::load_into_context(d, &x)?;
    let driver = d.initialised_driver()?;
    let device = driver.device_of_ordinal(c.device)?;
    let known = unsafe { launch_duration(&device.profile, &x, shape, params, extra)? }.find(driver)?;
    let started = CALL
        .run(begin, &device.profile, &device.engine, device.profile.launch_host_ns, || known.start(&device.engine, id));
    if started { Ok(()) } else { Err(CUresult::INVALID_HANDLE) }
}

pub(crate) unsafe fn cuLaunchKernel(
    d: &CallFrame,
    f: CUfunction,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CallResult {
    let shape = LaunchShape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
    unsafe { launch(d, f, &shape, stream, params, extra) }
}

/// Launch attributes (clusters, priorities, programmatic order) have no effect here.
pub(crate) unsafe fn cuLaunchKernelEx(
    d: &CallFrame,
    config: *const CUlaunchConfig,
    f: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CallResult {
    if config.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let c = unsafe { config.read() };
    let shape = LaunchShape {
        grid: [c.gridDimX, c.gridDimY, c.gridDimZ],
        block: [c.blockDimX, c.blockDimY, c.blockDimZ],
        shared: c.sharedMemBytes,
    };
    unsafe { launch(d, f, &shape, c.hStream, params, extra) }
}
