//! The launch calls of CUDA 2: block, shared memory and arguments are first set on the function.

use super::function::function_of_handle;
use super::launch::launch;
use crate::entry_points::CallFrame;
use crate::errors::CallResult;
use crate::work::kernel::LaunchShape;
use core::ffi::c_void;
use shim_sys::cuda::*;

/// Most bytes of arguments that a kernel may have.
const MAX_ARGUMENT_BYTES: usize = 4096;

pub(crate) unsafe fn cuFuncSetBlockShape(d: &CallFrame, f: CUfunction, x: i32, y: i32, z: i32) -> CallResult {
    let size = |n: i32| u32::try_from(n).ok().filter(|n| *n > 0).ok_or(CUresult::INVALID_VALUE);
    function_of_handle(d, f)?.legacy.lock().block = [size(x)?, size(y)?, size(z)?];
    Ok(())
}

pub(crate) unsafe fn cuFuncSetSharedSize(d: &CallFrame, f: CUfunction, bytes: u32) -> CallResult {
    function_of_handle(d, f)?.legacy.lock().shared = bytes;
    Ok(())
}

pub(crate) unsafe fn cuParamSetSize(d: &CallFrame, f: CUfunction, bytes: u32) -> CallResult {
    let bytes = Some(bytes as usize).filter(|n| *n <= MAX_ARGUMENT_BYTES).ok_or(CUresult::INVALID_VALUE)?;
    function_of_handle(d, f)?.legacy.lock().arguments.resize(bytes, 0);
    Ok(())
}

fn set(d: &CallFrame, f: CUfunction, offset: i32, value: &[u8]) -> CallResult {
    let from = usize::try_from(offset).map_err(|_| CUresult::INVALID_VALUE)?;
    let end = from.checked_add(value.len()).filter(|end| *end <= MAX_ARGUMENT_BYTES).ok_or(CUresult::INVALID_VALUE)?;
    let x = function_of_handle(d, f)?;
    let arguments = &mut x.legacy.lock().arguments;
    if arguments.len() < end {
        arguments.resize(end, 0);
    }
    arguments[from..end].copy_from_slice(value);
    Ok(())
}

pub(crate) unsafe fn cuParamSeti(d: &CallFrame, f: CUfunction, offset: i32, value: u32) -> CallResult {
    set(d, f, offset, &value.to_ne_bytes())
}

pub(crate) unsafe fn cuParamSetf(d: &CallFrame, f: CUfunction, offset: i32, value: f32) -> CallResult {
    set(d, f, offset, &value.to_ne_bytes())
}

pub(crate) unsafe fn cuParamSetv(
    d: &CallFrame,
    f: CUfunction,
    offset: i32,
    from: *mut c_void,
    bytes: u32,
) -> CallResult {
    if from.is_null() || bytes as usize > MAX_ARGUMENT_BYTES {
        return Err(CUresult::INVALID_VALUE);
    }
    set(d, f, offset, unsafe { core::slice::from_raw_parts(from.cast(), bytes as usize) })
}

unsafe fn launch_legacy(d: &CallFrame, f: CUfunction, width: i32, height: i32, stream: CUstream) -> CallResult {
    let size = |n: i32| u32::try_from(n).map_err(|_| CUresult::INVALID_VALUE);
    let x = function_of_handle(d, f)?;
    let (shape, mut arguments) = {
        let set = x.legacy.lock();
        let shape = LaunchShape { grid: [size(width)?, size(height)?, 1], block: set.block, shared: set.shared };
        (shape, set.arguments.clone())
    };
    let mut bytes = arguments.len();
    let mut extra = [
        core::ptr::without_provenance_mut(1),
        arguments.as_mut_ptr().cast(),
        core::ptr::without_provenance_mut(2),
        (&raw mut bytes).cast(),
        core::ptr::null_mut(),
    ];
    let extra = if bytes == 0 { core::ptr::null_mut() } else { extra.as_mut_ptr() };
    unsafe { launch(d, f, &shape, stream, core::ptr::null_mut(), extra) }
}

pub(crate) unsafe fn cuLaunch(d: &CallFrame, f: CUfunction) -> CallResult {
    unsafe { launch_legacy(d, f, 1, 1, CUstream::NULL) }
}

pub(crate) unsafe fn cuLaunchGrid(d: &CallFrame, f: CUfunction, width: i32, height: i32) -> CallResult {
    unsafe { launch_legacy(d, f, width, height, CUstream::NULL) }
}

pub(crate) unsafe fn cuLaunchGridAsync(
    d: &CallFrame,
    f: CUfunction,
    width: i32,
    height: i32,
    stream: CUstream,
) -> CallResult {
    unsafe { launch_legacy(d, f, width, height, stream) }
}
