//! Kernels: attributes, and occupancy.

use crate::attributes::function_attribute;
use crate::entry_points::{CallFrame, put_if, write_output};
use crate::errors::CallResult;
use crate::objects::{FunctionObject, object_of_handle};
use shim_sys::cuda::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vgpu_sim::DeviceProfile;

pub(crate) fn function_of_handle(d: &CallFrame, f: CUfunction) -> Result<Arc<FunctionObject>, CUresult> {
    object_of_handle(&d.initialised_driver()?.functions, f.0)
}

/// Sets one of the settable attributes: dynamic shared memory, carve-out, cluster sizes.
pub(crate) fn set(p: &DeviceProfile, f: &FunctionObject, attribute: u32, value: i32) -> CallResult {
    let most = i32::try_from(p.shared_optin.saturating_sub(f.entry.shared)).unwrap_or(i32::MAX);
    let valid = match attribute {
        8 => (0..=most).contains(&value),
        9 => (-1..=100).contains(&value),
        11..=15 => value >= 0,
        _ => false,
    };
    if !valid {
        return Err(CUresult::INVALID_VALUE);
    }
    f.set.lock().insert(attribute, value);
    Ok(())
}

pub(crate) unsafe fn cuFuncGetAttribute(d: &CallFrame, value: *mut i32, attribute: u32, f: CUfunction) -> CallResult {
    let x = function_of_handle(d, f)?;
    let set = x.set.lock().get(&attribute).copied();
    let v = set.or_else(|| function_attribute(&d.current_device().ok()?.profile, &x.entry, attribute));
    unsafe { write_output(value, v.ok_or(CUresult::INVALID_VALUE)?) }
}

pub(crate) unsafe fn cuFuncSetAttribute(d: &CallFrame, f: CUfunction, attribute: u32, value: i32) -> CallResult {
    set(&d.current_device()?.profile, &*function_of_handle(d, f)?, attribute, value)
}

pub(crate) unsafe fn cuFuncSetCacheConfig(d: &CallFrame, f: CUfunction, _config: u32) -> CallResult {
    function_of_handle(d, f).map(|_| ())
}

pub(crate) unsafe fn cuFuncSetSharedMemConfig(d: &CallFrame, f: CUfunction, _config: u32) -> CallResult {
    function_of_handle(d, f).map(|_| ())
}

pub(crate) unsafe fn cuFuncGetModule(d: &CallFrame, module: *mut CUmodule, f: CUfunction) -> CallResult {
    let m = function_of_handle(d, f)?.module.load(Ordering::Relaxed);
    if m == 0 {
        return Err(CUresult::INVALID_HANDLE);
    }
    unsafe { write_output(module, CUmodule(m as *mut _)) }
}

/// Resident blocks per multiprocessor, limited by threads, blocks, shared memory and registers.
fn resident_blocks(p: &DeviceProfile, f: &FunctionObject, threads: u32, shared: u64) -> u32 {
    if threads == 0 || threads > 1024 {
        return 0;
    }
    let warps = threads.div_ceil(32);
    let by_threads = p.threads_per_sm / (warps * 32);
    let by_registers = 65_536 / (warps * 32 * f.entry.registers.next_multiple_of(8)).max(1);
    let reserved = if p.cc_major >= 8 { 1024 } else { 0 };
    let each = shared + u64::from(f.entry.shared) + reserved;
    let by_shared =
        u64::from(p.shared_per_sm).checked_div(each).map_or(u32::MAX, |n| u32::try_from(n).unwrap_or(u32::MAX));
    by_threads.min(p.blocks_per_sm).min(by_registers).min(by_shared)
}

pub(crate) unsafe fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    d: &CallFrame,
    blocks: *mut i32,
    f: CUfunction,
    block: i32,
    shared: usize,
) -> CallResult {
    let x = function_of_handle(d, f)?;
    let threads = u32::try_from(block).ok().filter(|b| *b > 0).ok_or(CUresult::INVALID_VALUE)?;
    let n = resident_blocks(&d.current_device()?.profile, &x, threads, shared as u64);
    unsafe { write_output(blocks, i32::try_from(n).unwrap_or(0)) }
}

pub(crate) unsafe fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    d: &CallFrame,
    blocks: *mut i32,
    f: CUfunction,
    block: i32,
    shared: usize,
    flags: u32,
) -> CallResult {
    if flags > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { cuOccupancyMaxActiveBlocksPerMultiprocessor(d, blocks, f, block, shared) }
}

pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    d: &CallFrame,
    grid: *mut i32,
    block: *mut i32,
    f: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: i32,
    _flags: u32,
) -> CallResult {
    let x = function_of_handle(d, f)?;
    let p = &d.current_device()?.profile;
    let most = u32::try_from(limit).ok().filter(|l| *l > 0).unwrap_or(1024).min(1024);
    let mut best = (0, 0, 0);
    for threads in (1..=most.div_ceil(32)).rev().map(|w| (w * 32).min(most)) {
        let size = i32::try_from(threads).unwrap_or(0);
        // SAFETY: the program's own function, called with a block size.
        let shared = shared_of.map_or(shared, |s| unsafe { s(size) });
        let blocks = resident_blocks(p, &x, threads, shared as u64);
        if blocks * threads > best.0 {
            best = (blocks * threads, threads, blocks);
        }
    }
    unsafe {
        put_if(grid, i32::try_from(best.2 * p.sms).unwrap_or(0));
        write_output(block, i32::try_from(best.1).unwrap_or(0))
    }
}

pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSize(
    d: &CallFrame,
    grid: *mut i32,
    block: *mut i32,
    f: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: i32,
) -> CallResult {
    unsafe { cuOccupancyMaxPotentialBlockSizeWithFlags(d, grid, block, f, shared_of, shared, limit, 0) }
}

pub(crate) unsafe fn cuOccupancyAvailableDynamicSMemPerBlock(
    d: &CallFrame,
    shared: *mut usize,
    f: CUfunction,
    blocks: i32,
    _block: i32,
) -> CallResult {
    let x = function_of_handle(d, f)?;
    let p = &d.current_device()?.profile;
    let n = u32::try_from(blocks).ok().filter(|n| *n > 0).ok_or(CUresult::INVALID_VALUE)?;
    let each = (p.shared_per_sm / n).min(p.shared_optin).saturating_sub(x.entry.shared);
    unsafe { write_output(shared, each as usize) }
}

/// Offset and size of a parameter; an index beyond the last is an invalid value.
pub(crate) unsafe fn parameter_place(
    f: &FunctionObject,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CallResult {
    let (at, bytes) = *f.entry.params.get(index).ok_or(CUresult::INVALID_VALUE)?;
    unsafe {
        put_if(size, bytes);
        write_output(offset, at)
    }
}

pub(crate) unsafe fn cuFuncGetName(d: &CallFrame, name: *mut DriverText, f: CUfunction) -> CallResult {
    unsafe { write_output(name, function_of_handle(d, f)?.name.as_ptr()) }
}

pub(crate) unsafe fn cuFuncGetParamInfo(
    d: &CallFrame,
    f: CUfunction,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CallResult {
    unsafe { parameter_place(&*function_of_handle(d, f)?, index, offset, size) }
}

/// A function of a module is always loaded; a kernel of a library from its first use in a context on.
pub(crate) unsafe fn cuFuncIsLoaded(d: &CallFrame, state: *mut u32, f: CUfunction) -> CallResult {
    unsafe { write_output(state, u32::from(super::library::has_arrived(d, &*function_of_handle(d, f)?)?)) }
}

pub(crate) unsafe fn cuFuncLoad(d: &CallFrame, f: CUfunction) -> CallResult {
    super::library::load_into_context(d, &*function_of_handle(d, f)?)
}
