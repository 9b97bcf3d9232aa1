//! Cooperative launches: grids whose blocks are all resident at the same time, on one device or on several.

use super::function::function_of_handle;
use super::graph::launch::stream_line;
use super::launch::launch;
use crate::entry_points::CallFrame;
use crate::errors::CallResult;
use crate::work::kernel::LaunchShape;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vgpu_sim::DeviceProfile;

const TOO_LARGE: CUresult = CUresult(720);
/// Flag of a cooperative launch on several devices: a device does not wait for earlier work of the others.
const NO_WAIT_BEFORE: u32 = 1;
/// Flag of a cooperative launch on several devices: later work waits only for its own device.
const NO_WAIT_AFTER: u32 = 2;

/// Checks that all blocks of a grid can be resident at the same time.
fn check_residency(p: &DeviceProfile, shape: &LaunchShape) -> CallResult {
    let product = |n: [u32; 3]| n.iter().map(|d| u64::from(*d)).product::<u64>();
    let (blocks, threads) = (product(shape.grid), product(shape.block).max(1));
    let mut per_sm = (u64::from(p.threads_per_sm) / threads).min(u64::from(p.blocks_per_sm));
    if let Some(n) = p.shared_per_sm.checked_div(shape.shared) {
        per_sm = per_sm.min(u64::from(n));
    }
    if blocks <= u64::from(p.sms) * per_sm { Ok(()) } else { Err(TOO_LARGE) }
}

/// Like an ordinary launch; refuses a grid whose blocks cannot all be resident at the same time.
pub(crate) unsafe fn cuLaunchCooperativeKernel(
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
) -> CallResult {
    let shape = LaunchShape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
    check_residency(&d.current_device()?.profile, &shape)?;
    unsafe { launch(d, f, &shape, stream, params, core::ptr::null_mut()) }
}

/// One grid on each of several devices, all of the same kernel and shape. The streams wait for each other before
/// and after the grids. Cannot be captured.
pub(crate) unsafe fn cuLaunchCooperativeKernelMultiDevice(
    d: &CallFrame,
    list: *mut CUDA_LAUNCH_PARAMS,
    count: u32,
    flags: u32,
) -> CallResult {
    let invalid = CUresult::INVALID_VALUE;
    let driver = d.initialised_driver()?;
    if list.is_null() || count == 0 || count as usize > driver.devices.all.len() || flags & !3 != 0 {
        return Err(invalid);
    }
    let all: Vec<CUDA_LAUNCH_PARAMS> = (0..count as usize).map(|i| unsafe { list.add(i).read() }).collect();
    let shape = |p: &CUDA_LAUNCH_PARAMS| LaunchShape {
        grid: [p.gridDimX, p.gridDimY, p.gridDimZ],
        block: [p.blockDimX, p.blockDimY, p.blockDimZ],
        shared: p.sharedMemBytes,
    };
    let first = &all[0];
    let name = function_of_handle(d, first.function)?.entry.name.clone();
    let mut lines = Vec::new();
    for p in &all {
        // Each launch needs a created stream, and a device that no other launch uses.
        if p.hStream.is_null() || p.hStream == CU_STREAM_LEGACY || p.hStream == CU_STREAM_PER_THREAD {
            return Err(invalid);
        }
        let l = stream_line(d, p.hStream)?;
        let twice = lines.iter().any(|o: &crate::graph::memory::DeviceStream| o.device == l.device);
        if twice || shape(p) != shape(first) || function_of_handle(d, p.function)?.entry.name != name {
            return Err(invalid);
        }
        let profile = &driver.device_of_ordinal(l.device)?.profile;
        if profile.profile_key() != driver.device_of_ordinal(lines.first().unwrap_or(&l).device)?.profile.profile_key()
        {
            return Err(invalid);
        }
        check_residency(profile, &shape(p))?;
        lines.push(l);
    }
    let meet = || {
        let marks: Vec<_> = lines.iter().map(|l| l.record_mark()).collect();
        for l in &lines {
            for m in marks.iter().filter(|m| m.device != l.device) {
                l.wait(*m, driver);
            }
        }
        // A waiting stream refers to the event until its wait is over; only then may the event be closed.
        for (l, m) in lines.iter().zip(marks) {
            let left = Arc::new(AtomicUsize::new(lines.len() - 1));
            if lines.len() == 1 {
                l.engine.close_event(m.event);
            }
            for other in lines.iter().filter(|o| o.device != l.device) {
                let (engine, left) = (l.engine.clone(), left.clone());
                other.engine.enqueue_host(other.stream, move || {
                    if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                        engine.close_event(m.event);
                    }
                });
            }
        }
    };
    if flags & NO_WAIT_BEFORE == 0 {
        meet();
    }
    for p in &all {
        unsafe { launch(d, p.function, &shape(p), p.hStream, p.kernelParams, core::ptr::null_mut())? };
    }
    if flags & NO_WAIT_AFTER == 0 {
        meet();
    }
    Ok(())
}
