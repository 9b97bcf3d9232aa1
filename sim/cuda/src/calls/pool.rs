//! Stream-ordered allocation, and its pools.
//!
//! Only a pool's own device can access its memory: there is no peer access here.
//! Not here: the memory of pools and its return (`content::pools`), pools of other processes (`calls::share`).

use super::graph::launch::line;
use crate::capture::{Taking, Target};
use crate::content::pools::{Place, Setting};
use crate::content::{Kind, Tag};
use crate::door::{Answer, Door, put};
use crate::driver::hold;
use crate::graph::node;
use crate::objects::{Pool, handle, known};
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;

/// The default pool and the current pool of a device.
fn pools_of(d: &Door, dev: i32) -> Result<(Arc<Pool>, Arc<Pool>), CUresult> {
    let driver = d.driver()?;
    let mut state = hold(&driver.device(dev)?.state);
    let both = state.pools.get_or_insert_with(|| {
        let p = Arc::new(Pool { device: dev, number: driver.memory.new_pool(dev, 0, 0), imported: 0 });
        driver.pools.add(p.clone());
        (p.clone(), p)
    });
    Ok(both.clone())
}

/// Finds a pool that this process made.
fn own(d: &Door, pool: CUmemoryPool) -> Result<Arc<Pool>, CUresult> {
    let p = known(&d.driver()?.pools, pool.0)?;
    if p.imported == 0 { Ok(p) } else { Err(CUresult::INVALID_VALUE) }
}

/// Adds an allocation as a node to a capture. The memory is the graph's, not the pool's.
unsafe fn capture(d: &Door, t: &Taking, dptr: *mut CUdeviceptr, bytes: u64, device: CUdevice) -> Answer {
    if bytes == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.driver()?;
    let span = driver.graphs.world().free_span(t.graph, &t.after, device, bytes);
    let region = driver.graphs.memory.region(driver, device, bytes, t.graph, span)?;
    let at = region.span.at;
    let props = CUmemPoolProps {
        allocType: 1,
        handleTypes: 0,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: device },
        win32SecurityAttributes: core::ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    };
    d.capture(t, || Ok(node::Kind::Alloc(node::Alloc { region, props, access: Vec::new().into() })))?;
    unsafe { put(dptr, at) }
}

unsafe fn alloc(d: &Door, dptr: *mut CUdeviceptr, bytes: usize, pool: &Pool, stream: CUstream) -> Answer {
    if dptr.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let (c, stream) = match d.target(stream)? {
        Target::Run(c, id) => (c, id),
        Target::Capture(t) => return unsafe { capture(d, &t, dptr, bytes as u64, pool.device) },
    };
    let driver = d.driver()?;
    let place = Place { device: c.device, stream };
    let at = driver.memory.alloc_from_pool(driver, pool.number, bytes as u64, Tag(c.number), place)?;
    unsafe { put(dptr, at) }
}

pub(crate) unsafe fn cuMemAllocAsync(d: &Door, dptr: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> Answer {
    let (c, _) = d.raw_stream(stream)?;
    let current = pools_of(d, c.device)?.1;
    unsafe { alloc(d, dptr, bytes, &current, stream) }
}

pub(crate) unsafe fn cuMemAllocFromPoolAsync(
    d: &Door,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Answer {
    let pool = own(d, pool)?;
    unsafe { alloc(d, dptr, bytes, &pool, stream) }
}

/// Memory of `cuMemAlloc` may be freed in stream order too.
pub(crate) unsafe fn cuMemFreeAsync(d: &Door, dptr: CUdeviceptr, stream: CUstream) -> Answer {
    let driver = d.driver()?;
    let (c, id) = match d.target(stream)? {
        Target::Run(c, id) => (c, id),
        // A graph can free only memory that a graph allocated.
        Target::Capture(t) => {
            return d.capture(&t, || driver.graphs.memory.claim(dptr, t.graph).map(node::Kind::Free));
        }
    };
    if dptr == 0 {
        return Ok(());
    }
    if driver.memory.free_async(driver, dptr, Place { device: c.device, stream: id }).is_some() {
        return Ok(());
    }
    if let Some(answer) = driver.graphs.memory.free(driver, dptr, &line(d, stream)?) {
        return answer;
    }
    if !driver.memory.is_plain(dptr) {
        return Err(CUresult::INVALID_VALUE);
    }
    let effect = move || {
        let _ = driver.memory.free(driver, dptr, &[Kind::Plain]);
    };
    driver.device(c.device)?.engine.work(id, 0, vgpu_sim::engine::Kind::Other, Some(effect));
    Ok(())
}

pub(crate) unsafe fn cuMemPoolCreate(d: &Door, out: *mut CUmemoryPool, props: *const CUmemPoolProps) -> Answer {
    if out.is_null() || props.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let props = unsafe { props.read() };
    if props.allocType != 1 || props.location.kind != CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(CUresult::INVALID_VALUE);
    }
    super::vmm::check_handle_types(props.handleTypes)?;
    let driver = d.driver()?;
    let device = props.location.id;
    driver.device(device)?;
    let number = driver.memory.new_pool(device, props.maxSize as u64, props.handleTypes);
    let handle = driver.pools.add(Arc::new(Pool { device, number, imported: 0 }));
    unsafe { put(out, CUmemoryPool(handle)) }
}

pub(crate) unsafe fn cuMemPoolDestroy(d: &Door, pool: CUmemoryPool) -> Answer {
    let driver = d.driver()?;
    let p = known(&driver.pools, pool.0)?;
    let (default, current) = pools_of(d, p.device)?;
    if Arc::ptr_eq(&p, &default) {
        return Err(CUresult::INVALID_VALUE);
    }
    if Arc::ptr_eq(&p, &current) {
        hold(&driver.device(p.device)?.state).pools = Some((default.clone(), default));
    }
    // If two threads destroy the pool, only one succeeds.
    driver.pools.remove(pool.0).ok_or(CUresult::INVALID_HANDLE)?;
    match p.imported {
        0 => driver.memory.destroy_pool(driver, p.number),
        share => driver.memory.forget_imported_pool(driver, share),
    }
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetDefaultMemPool(d: &Door, pool: *mut CUmemoryPool, dev: CUdevice) -> Answer {
    unsafe { put(pool, CUmemoryPool(handle(&pools_of(d, dev)?.0))) }
}

pub(crate) unsafe fn cuDeviceGetMemPool(d: &Door, pool: *mut CUmemoryPool, dev: CUdevice) -> Answer {
    unsafe { put(pool, CUmemoryPool(handle(&pools_of(d, dev)?.1))) }
}

pub(crate) unsafe fn cuDeviceSetMemPool(d: &Door, dev: CUdevice, pool: CUmemoryPool) -> Answer {
    let driver = d.driver()?;
    let p = own(d, pool)?;
    if p.device != dev {
        return Err(CUresult::INVALID_VALUE);
    }
    let default = pools_of(d, dev)?.0;
    hold(&driver.device(dev)?.state).pools = Some((default, p));
    Ok(())
}

/// The device of a location. Pools elsewhere are not supported, nor pools of memory other than the device's own.
unsafe fn device_at(location: *mut CUmemLocation, kind: u32) -> Result<CUdevice, CUresult> {
    if location.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let l = unsafe { location.read() };
    if l.kind == CU_MEM_LOCATION_TYPE_DEVICE && kind == 1 { Ok(l.id) } else { Err(CUresult::NOT_SUPPORTED) }
}

pub(crate) unsafe fn cuMemGetDefaultMemPool(
    d: &Door,
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: u32,
) -> Answer {
    unsafe { cuDeviceGetDefaultMemPool(d, pool, device_at(location, kind)?) }
}

pub(crate) unsafe fn cuMemGetMemPool(
    d: &Door,
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: u32,
) -> Answer {
    unsafe { cuDeviceGetMemPool(d, pool, device_at(location, kind)?) }
}

pub(crate) unsafe fn cuMemSetMemPool(d: &Door, location: *mut CUmemLocation, kind: u32, pool: CUmemoryPool) -> Answer {
    unsafe { cuDeviceSetMemPool(d, device_at(location, kind)?, pool) }
}

pub(crate) unsafe fn cuMemPoolTrimTo(d: &Door, pool: CUmemoryPool, keep: usize) -> Answer {
    let driver = d.driver()?;
    let p = known(&driver.pools, pool.0)?;
    if p.imported == 0 {
        driver.memory.trim_pool(driver, p.number, keep as u64);
    }
    Ok(())
}

/// An imported pool itself has no memory.
pub(crate) unsafe fn cuMemPoolGetAttribute(d: &Door, pool: CUmemoryPool, attribute: u32, value: *mut c_void) -> Answer {
    let driver = d.driver()?;
    let p = known(&driver.pools, pool.0)?;
    let (n, threshold, reuse) = driver.memory.pool_state(p.number).unwrap_or_default();
    let long = match attribute {
        1..=3 => return unsafe { put(value.cast::<u32>(), u32::from(reuse[attribute as usize - 1])) },
        4 => threshold,
        5 => n.reserved,
        6 => n.reserved_high,
        7 => n.used,
        8 => n.used_high,
        _ => return Err(CUresult::INVALID_VALUE),
    };
    unsafe { put(value.cast::<u64>(), long) }
}

pub(crate) unsafe fn cuMemPoolSetAttribute(d: &Door, pool: CUmemoryPool, attribute: u32, value: *mut c_void) -> Answer {
    let p = own(d, pool)?;
    if value.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let long = || unsafe { value.cast::<u64>().read_unaligned() };
    let setting = match attribute {
        1..=3 => Setting::Reuse(attribute as usize - 1, unsafe { value.cast::<u32>().read_unaligned() } != 0),
        4 => Setting::Threshold(long()),
        // A highest value can only be reset to the present value.
        6 if long() == 0 => Setting::ResetReserved,
        8 if long() == 0 => Setting::ResetUsed,
        _ => return Err(CUresult::INVALID_VALUE),
    };
    d.driver()?.memory.set_pool(p.number, setting);
    Ok(())
}

pub(crate) unsafe fn cuMemPoolGetAccess(
    d: &Door,
    flags: *mut u32,
    pool: CUmemoryPool,
    location: *mut CUmemLocation,
) -> Answer {
    let p = known(&d.driver()?.pools, pool.0)?;
    if location.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let l = unsafe { location.read() };
    let own = l.kind == CU_MEM_LOCATION_TYPE_DEVICE && l.id == p.device;
    unsafe { put(flags, if own { 3 } else { 0 }) }
}

/// Another device may be denied access, which it does not have; the pool's own device keeps its access.
pub(crate) unsafe fn cuMemPoolSetAccess(
    d: &Door,
    pool: CUmemoryPool,
    map: *const CUmemAccessDesc,
    count: usize,
) -> Answer {
    let driver = d.driver()?;
    let p = known(&driver.pools, pool.0)?;
    if map.is_null() && count > 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    for i in 0..count {
        let one = unsafe { map.add(i).read() };
        if one.location.kind != CU_MEM_LOCATION_TYPE_DEVICE || ![0, 1, 3].contains(&one.flags) {
            return Err(CUresult::INVALID_VALUE);
        }
        driver.device(one.location.id)?;
        match (one.location.id == p.device, one.flags) {
            (true, 3) | (false, 0) => {}
            (true, _) => return Err(CUresult::INVALID_VALUE),
            (false, _) => return Err(CUresult::INVALID_DEVICE),
        }
    }
    Ok(())
}
