//! The launch calls of CUDA 2: block, shared memory and arguments are first set on the function.

use super::function::function;
use super::launch::{Shape, launch};
use crate::door::{Answer, Door};
use crate::driver::hold;
use core::ffi::c_void;
use shim_sys::cuda::*;

/// Most bytes of arguments that a kernel may have.
const MOST: usize = 4096;

/// Launch settings of a function.
#[derive(Default)]
pub(crate) struct Set {
    block: [u32; 3],
    shared: u32,
    arguments: Vec<u8>,
}

pub(crate) unsafe fn cuFuncSetBlockShape(d: &Door, f: CUfunction, x: i32, y: i32, z: i32) -> Answer {
    let size = |n: i32| u32::try_from(n).ok().filter(|n| *n > 0).ok_or(CUresult::INVALID_VALUE);
    hold(&function(d, f)?.legacy).block = [size(x)?, size(y)?, size(z)?];
    Ok(())
}

pub(crate) unsafe fn cuFuncSetSharedSize(d: &Door, f: CUfunction, bytes: u32) -> Answer {
    hold(&function(d, f)?.legacy).shared = bytes;
    Ok(())
}

pub(crate) unsafe fn cuParamSetSize(d: &Door, f: CUfunction, bytes: u32) -> Answer {
    let bytes = Some(bytes as usize).filter(|n| *n <= MOST).ok_or(CUresult::INVALID_VALUE)?;
    hold(&function(d, f)?.legacy).arguments.resize(bytes, 0);
    Ok(())
}

fn set(d: &Door, f: CUfunction, offset: i32, value: &[u8]) -> Answer {
    let from = usize::try_from(offset).map_err(|_| CUresult::INVALID_VALUE)?;
    let end = from.checked_add(value.len()).filter(|end| *end <= MOST).ok_or(CUresult::INVALID_VALUE)?;
    let x = function(d, f)?;
    let arguments = &mut hold(&x.legacy).arguments;
    if arguments.len() < end {
        arguments.resize(end, 0);
    }
    arguments[from..end].copy_from_slice(value);
    Ok(())
}

pub(crate) unsafe fn cuParamSeti(d: &Door, f: CUfunction, offset: i32, value: u32) -> Answer {
    set(d, f, offset, &value.to_ne_bytes())
}

pub(crate) unsafe fn cuParamSetf(d: &Door, f: CUfunction, offset: i32, value: f32) -> Answer {
    set(d, f, offset, &value.to_ne_bytes())
}

pub(crate) unsafe fn cuParamSetv(d: &Door, f: CUfunction, offset: i32, from: *mut c_void, bytes: u32) -> Answer {
    if from.is_null() || bytes as usize > MOST {
        return Err(CUresult::INVALID_VALUE);
    }
    set(d, f, offset, unsafe { core::slice::from_raw_parts(from.cast(), bytes as usize) })
}

unsafe fn go(d: &Door, f: CUfunction, width: i32, height: i32, stream: CUstream) -> Answer {
    let size = |n: i32| u32::try_from(n).map_err(|_| CUresult::INVALID_VALUE);
    let x = function(d, f)?;
    let (shape, mut arguments) = {
        let set = hold(&x.legacy);
        let shape = Shape { grid: [size(width)?, size(height)?, 1], block: set.block, shared: set.shared };
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

pub(crate) unsafe fn cuLaunch(d: &Door, f: CUfunction) -> Answer {
    unsafe { go(d, f, 1, 1, CUstream::NULL) }
}

pub(crate) unsafe fn cuLaunchGrid(d: &Door, f: CUfunction, width: i32, height: i32) -> Answer {
    unsafe { go(d, f, width, height, CUstream::NULL) }
}

pub(crate) unsafe fn cuLaunchGridAsync(d: &Door, f: CUfunction, width: i32, height: i32, stream: CUstream) -> Answer {
    unsafe { go(d, f, width, height, stream) }
}
