//! Kernels: attributes, and occupancy.

use crate::attributes::function_attribute;
use crate::door::{Answer, Door, put, put_if};
use crate::driver::hold;
use crate::objects::{Function, known};
use shim_sys::cuda::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vgpu_sim::Profile;

pub(crate) fn function(d: &Door, f: CUfunction) -> Result<Arc<Function>, CUresult> {
    known(&d.driver()?.functions, f.0)
}

/// Sets one of the settable attributes: dynamic shared memory, carve-out, cluster sizes.
pub(crate) fn set(p: &Profile, f: &Function, attribute: u32, value: i32) -> Answer {
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
    hold(&f.set).insert(attribute, value);
    Ok(())
}

pub(crate) unsafe fn cuFuncGetAttribute(d: &Door, value: *mut i32, attribute: u32, f: CUfunction) -> Answer {
    let x = function(d, f)?;
    let set = hold(&x.set).get(&attribute).copied();
    let v = set.or_else(|| function_attribute(&d.device().ok()?.profile, &x.entry, attribute));
    unsafe { put(value, v.ok_or(CUresult::INVALID_VALUE)?) }
}

pub(crate) unsafe fn cuFuncSetAttribute(d: &Door, f: CUfunction, attribute: u32, value: i32) -> Answer {
    set(&d.device()?.profile, &*function(d, f)?, attribute, value)
}

pub(crate) unsafe fn cuFuncSetCacheConfig(d: &Door, f: CUfunction, _config: u32) -> Answer {
    function(d, f).map(|_| ())
}

pub(crate) unsafe fn cuFuncSetSharedMemConfig(d: &Door, f: CUfunction, _config: u32) -> Answer {
    function(d, f).map(|_| ())
}

pub(crate) unsafe fn cuFuncGetModule(d: &Door, module: *mut CUmodule, f: CUfunction) -> Answer {
    let m = function(d, f)?.module.load(Ordering::Relaxed);
    if m == 0 {
        return Err(CUresult::INVALID_HANDLE);
    }
    unsafe { put(module, CUmodule(m as *mut _)) }
}

/// Resident blocks per multiprocessor, limited by threads, blocks, shared memory and registers.
fn resident(p: &Profile, f: &Function, threads: u32, shared: u64) -> u32 {
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
    d: &Door,
    blocks: *mut i32,
    f: CUfunction,
    block: i32,
    shared: usize,
) -> Answer {
    let x = function(d, f)?;
    let threads = u32::try_from(block).ok().filter(|b| *b > 0).ok_or(CUresult::INVALID_VALUE)?;
    let n = resident(&d.device()?.profile, &x, threads, shared as u64);
    unsafe { put(blocks, i32::try_from(n).unwrap_or(0)) }
}

pub(crate) unsafe fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    d: &Door,
    blocks: *mut i32,
    f: CUfunction,
    block: i32,
    shared: usize,
    flags: u32,
) -> Answer {
    if flags > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    unsafe { cuOccupancyMaxActiveBlocksPerMultiprocessor(d, blocks, f, block, shared) }
}

pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    d: &Door,
    grid: *mut i32,
    block: *mut i32,
    f: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: i32,
    _flags: u32,
) -> Answer {
    let x = function(d, f)?;
    let p = &d.device()?.profile;
    let most = u32::try_from(limit).ok().filter(|l| *l > 0).unwrap_or(1024).min(1024);
    let mut best = (0, 0, 0);
    for threads in (1..=most.div_ceil(32)).rev().map(|w| (w * 32).min(most)) {
        let size = i32::try_from(threads).unwrap_or(0);
        // SAFETY: the program's own function, called with a block size.
        let shared = shared_of.map_or(shared, |s| unsafe { s(size) });
        let blocks = resident(p, &x, threads, shared as u64);
        if blocks * threads > best.0 {
            best = (blocks * threads, threads, blocks);
        }
    }
    unsafe {
        put_if(grid, i32::try_from(best.2 * p.sms).unwrap_or(0));
        put(block, i32::try_from(best.1).unwrap_or(0))
    }
}

pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSize(
    d: &Door,
    grid: *mut i32,
    block: *mut i32,
    f: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: i32,
) -> Answer {
    unsafe { cuOccupancyMaxPotentialBlockSizeWithFlags(d, grid, block, f, shared_of, shared, limit, 0) }
}

pub(crate) unsafe fn cuOccupancyAvailableDynamicSMemPerBlock(
    d: &Door,
    shared: *mut usize,
    f: CUfunction,
    blocks: i32,
    _block: i32,
) -> Answer {
    let x = function(d, f)?;
    let p = &d.device()?.profile;
    let n = u32::try_from(blocks).ok().filter(|n| *n > 0).ok_or(CUresult::INVALID_VALUE)?;
    let each = (p.shared_per_sm / n).min(p.shared_optin).saturating_sub(x.entry.shared);
    unsafe { put(shared, each as usize) }
}

/// Offset and size of a parameter; an index beyond the last is an invalid value.
pub(crate) unsafe fn parameter(f: &Function, index: usize, offset: *mut usize, size: *mut usize) -> Answer {
    let (at, bytes) = *f.entry.params.get(index).ok_or(CUresult::INVALID_VALUE)?;
    unsafe {
        put_if(size, bytes);
        put(offset, at)
    }
}

pub(crate) unsafe fn cuFuncGetName(d: &Door, name: *mut DriverText, f: CUfunction) -> Answer {
    unsafe { put(name, function(d, f)?.name.as_ptr()) }
}

pub(crate) unsafe fn cuFuncGetParamInfo(
    d: &Door,
    f: CUfunction,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Answer {
    unsafe { parameter(&*function(d, f)?, index, offset, size) }
}

/// A function of a module is always loaded; a kernel of a library from its first use in a context on.
pub(crate) unsafe fn cuFuncIsLoaded(d: &Door, state: *mut u32, f: CUfunction) -> Answer {
    unsafe { put(state, u32::from(super::library::has_arrived(d, &*function(d, f)?)?)) }
}

pub(crate) unsafe fn cuFuncLoad(d: &Door, f: CUfunction) -> Answer {
    super::library::arrive(d, &*function(d, f)?)
}
