//! Stream-ordered allocation, and its pools.
//!
//! Only a pool's own device can access its memory: there is no peer access here.
//! Not here: the memory of pools and its return (`content::pools`), pools of other processes (`calls::share`).

use super::graph::launch::stream_line;
use crate::capture::{CaptureOperation, OperationTarget};
use crate::content::pools::{PoolSetting, StreamPosition};
use crate::content::{AllocationKind, OwnerTag};
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::graph::node;
use crate::host_time::spend_host_time;
use crate::objects::{PoolHandle, object_handle, object_of_handle};
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;

/// The default pool and the current pool of a device.
fn pools_of(d: &CallFrame, dev: i32) -> Result<(Arc<PoolHandle>, Arc<PoolHandle>), CUresult> {
    let driver = d.initialised_driver()?;
    let mut state = driver.device_of_ordinal(dev)?.state.lock();
    let both = state.pools.get_or_insert_with(|| {
        let p = Arc::new(PoolHandle { device: dev, number: driver.memory.new_pool(dev, 0, 0), imported: 0 });
        driver.pools.add(p.clone());
        (p.clone(), p)
    });
    Ok(both.clone())
}

/// Finds a pool that this process made.
fn own_pool(d: &CallFrame, pool: CUmemoryPool) -> Result<Arc<PoolHandle>, CUresult> {
    let p = object_of_handle(&d.initialised_driver()?.pools, pool.0)?;
    if p.imported == 0 { Ok(p) } else { Err(CUresult::INVALID_VALUE) }
}

/// Adds an allocation as a node to a capture. The memory is the graph's, not the pool's.
unsafe fn capture_allocation(
    d: &CallFrame,
    t: &CaptureOperation,
    dptr: *mut CUdeviceptr,
    bytes: u64,
    device: CUdevice,
) -> CallResult {
    if bytes == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let span = d.graph_tables()?.lock_world().free_span(t.graph, &t.after, device, bytes);
    let region = d.graph_tables()?.memory.new_region(driver, device, bytes, t.graph, span)?;
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
    d.capture_node(t, || Ok(node::NodeKind::Alloc(node::AllocationNode { region, props, access: Vec::new().into() })))?;
    unsafe { write_output(dptr, at) }
}

unsafe fn alloc(
    d: &CallFrame,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    pool: &PoolHandle,
    stream: CUstream,
) -> CallResult {
    if dptr.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let (c, stream) = match d.target_of(stream)? {
        OperationTarget::Run(c, id) => (c, id),
        OperationTarget::Capture(t) => return unsafe { capture_allocation(d, &t, dptr, bytes as u64, pool.device) },
    };
    let driver = d.initialised_driver()?;
    let place = StreamPosition { device: c.device, stream };
    spend_host_time(driver.device_of_ordinal(c.device)?.profile.pool_host_ns);
    let at = driver.memory.alloc_from_pool(pool.number, bytes as u64, OwnerTag(c.number), place)?;
    unsafe { write_output(dptr, at) }
}

pub(crate) unsafe fn cuMemAllocAsync(
    d: &CallFrame,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CallResult {
    let (c, _) = d.raw_stream(stream)?;
    let current = pools_of(d, c.device)?.1;
    unsafe { alloc(d, dptr, bytes, &current, stream) }
}

pub(crate) unsafe fn cuMemAllocFromPoolAsync(
    d: &CallFrame,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CallResult {
    let pool = own_pool(d, pool)?;
    unsafe { alloc(d, dptr, bytes, &pool, stream) }
}

/// Memory of `cuMemAlloc` may be freed in stream order too.
pub(crate) unsafe fn cuMemFreeAsync(d: &CallFrame, dptr: CUdeviceptr, stream: CUstream) -> CallResult {
    let driver = d.initialised_driver()?;
    let (c, id) = match d.target_of(stream)? {
        OperationTarget::Run(c, id) => (c, id),
        // A graph can free only memory that a graph allocated.
        OperationTarget::Capture(t) => {
            return d
                .capture_node(&t, || d.graph_tables()?.memory.claim_region(dptr, t.graph).map(node::NodeKind::Free));
        }
    };
    if dptr == 0 {
        return Ok(());
    }
    spend_host_time(driver.device_of_ordinal(c.device)?.profile.pool_host_ns);
    if driver.memory.free_async(dptr, StreamPosition { device: c.device, stream: id }).is_some() {
        return Ok(());
    }
    if let Some(answer) = d.graph_tables()?.memory.free(driver, dptr, &stream_line(d, stream)?) {
        return answer;
    }
    if !driver.memory.is_plain(dptr) {
        return Err(CUresult::INVALID_VALUE);
    }
    let effect = move || {
        let _ = driver.memory.free(dptr, &[AllocationKind::Plain]);
    };
    driver.device_of_ordinal(c.device)?.engine.enqueue_work(id, 0, vgpu_sim::engine::WorkKind::Other, Some(effect));
    Ok(())
}

pub(crate) unsafe fn cuMemPoolCreate(
    d: &CallFrame,
    out: *mut CUmemoryPool,
    props: *const CUmemPoolProps,
) -> CallResult {
    if out.is_null() || props.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let props = unsafe { props.read() };
    if props.allocType != 1 || props.location.kind != CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    super::vmm::check_handle_types(driver, props.handleTypes)?;
    let device = props.location.id;
    driver.device_of_ordinal(device)?;
    let number = driver.memory.new_pool(device, props.maxSize as u64, props.handleTypes);
    let handle = driver.pools.add(Arc::new(PoolHandle { device, number, imported: 0 }));
    unsafe { write_output(out, CUmemoryPool(handle)) }
}

pub(crate) unsafe fn cuMemPoolDestroy(d: &CallFrame, pool: CUmemoryPool) -> CallResult {
    let driver = d.initialised_driver()?;
    let p = object_of_handle(&driver.pools, pool.0)?;
    let (default, current) = pools_of(d, p.device)?;
    if Arc::ptr_eq(&p, &default) {
        return Err(CUresult::INVALID_VALUE);
    }
    if Arc::ptr_eq(&p, &current) {
        driver.device_of_ordinal(p.device)?.state.lock().pools = Some((default.clone(), default));
    }
    // If two threads destroy the pool, only one succeeds.
    driver.pools.remove(pool.0).ok_or(CUresult::INVALID_HANDLE)?;
    match p.imported {
        0 => driver.memory.destroy_pool(p.number),
        share => driver.memory.forget_imported_pool(share),
    }
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetDefaultMemPool(d: &CallFrame, pool: *mut CUmemoryPool, dev: CUdevice) -> CallResult {
    unsafe { write_output(pool, CUmemoryPool(object_handle(&pools_of(d, dev)?.0))) }
}

pub(crate) unsafe fn cuDeviceGetMemPool(d: &CallFrame, pool: *mut CUmemoryPool, dev: CUdevice) -> CallResult {
    unsafe { write_output(pool, CUmemoryPool(object_handle(&pools_of(d, dev)?.1))) }
}

pub(crate) unsafe fn cuDeviceSetMemPool(d: &CallFrame, dev: CUdevice, pool: CUmemoryPool) -> CallResult {
    let driver = d.initialised_driver()?;
    let p = own_pool(d, pool)?;
    if p.device != dev {
        return Err(CUresult::INVALID_VALUE);
    }
    let default = pools_of(d, dev)?.0;
    driver.device_of_ordinal(dev)?.state.lock().pools = Some((default, p));
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
    d: &CallFrame,
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: u32,
) -> CallResult {
    unsafe { cuDeviceGetDefaultMemPool(d, pool, device_at(location, kind)?) }
}

pub(crate) unsafe fn cuMemGetMemPool(
    d: &CallFrame,
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: u32,
) -> CallResult {
    unsafe { cuDeviceGetMemPool(d, pool, device_at(location, kind)?) }
}

pub(crate) unsafe fn cuMemSetMemPool(
    d: &CallFrame,
    location: *mut CUmemLocation,
    kind: u32,
    pool: CUmemoryPool,
) -> CallResult {
    unsafe { cuDeviceSetMemPool(d, device_at(location, kind)?, pool) }
}

pub(crate) unsafe fn cuMemPoolTrimTo(d: &CallFrame, pool: CUmemoryPool, keep: usize) -> CallResult {
    let driver = d.initialised_driver()?;
    let p = object_of_handle(&driver.pools, pool.0)?;
    if p.imported == 0 {
        driver.memory.trim_pool(p.number, keep as u64);
    }
    Ok(())
}

/// An imported pool itself has no memory.
pub(crate) unsafe fn cuMemPoolGetAttribute(
    d: &CallFrame,
    pool: CUmemoryPool,
    attribute: u32,
    value: *mut c_void,
) -> CallResult {
    let driver = d.initialised_driver()?;
    let p = object_of_handle(&driver.pools, pool.0)?;
    spend_host_time(driver.device_of_ordinal(p.device)?.profile.query_host_ns);
    let (n, threshold, reuse) = driver.memory.pool_state(p.number).unwrap_or_default();
    let long = match attribute {
        1..=3 => return unsafe { write_output(value.cast::<u32>(), u32::from(reuse[attribute as usize - 1])) },
        4 => threshold,
        5 => n.reserved,
        6 => n.reserved_high,
        7 => n.used,
        8 => n.used_high,
        _ => return Err(CUresult::INVALID_VALUE),
    };
    unsafe { write_output(value.cast::<u64>(), long) }
}

pub(crate) unsafe fn cuMemPoolSetAttribute(
    d: &CallFrame,
    pool: CUmemoryPool,
    attribute: u32,
    value: *mut c_void,
) -> CallResult {
    let p = own_pool(d, pool)?;
    if value.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let long = || unsafe { value.cast::<u64>().read_unaligned() };
    let setting = match attribute {
        1..=3 => PoolSetting::Reuse(attribute as usize - 1, unsafe { value.cast::<u32>().read_unaligned() } != 0),
        4 => PoolSetting::Threshold(long()),
        // A highest value can only be reset to the present value.
        6 if long() == 0 => PoolSetting::ResetReserved,
        8 if long() == 0 => PoolSetting::ResetUsed,
        _ => return Err(CUresult::INVALID_VALUE),
    };
    d.initialised_driver()?.memory.set_pool(p.number, setting);
    Ok(())
}

pub(crate) unsafe fn cuMemPoolGetAccess(
    d: &CallFrame,
    flags: *mut u32,
    pool: CUmemoryPool,
    location: *mut CUmemLocation,
) -> CallResult {
    let p = object_of_handle(&d.initialised_driver()?.pools, pool.0)?;
    if location.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let l = unsafe { location.read() };
    let own = l.kind == CU_MEM_LOCATION_TYPE_DEVICE && l.id == p.device;
    unsafe { write_output(flags, if own { 3 } else { 0 }) }
}

/// Another device may be denied access, which it does not have; the pool's own device keeps its access.
pub(crate) unsafe fn cuMemPoolSetAccess(
    d: &CallFrame,
    pool: CUmemoryPool,
    map: *const CUmemAccessDesc,
    count: usize,
) -> CallResult {
    let driver = d.initialised_driver()?;
    let p = object_of_handle(&driver.pools, pool.0)?;
    if map.is_null() && count > 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    for i in 0..count {
        let one = unsafe { map.add(i).read() };
        if one.location.kind != CU_MEM_LOCATION_TYPE_DEVICE || ![0, 1, 3].contains(&one.flags) {
            return Err(CUresult::INVALID_VALUE);
        }
        driver.device_of_ordinal(one.location.id)?;
        match (one.location.id == p.device, one.flags) {
            (true, 3) | (false, 0) => {}
            (true, _) => return Err(CUresult::INVALID_VALUE),
            (false, _) => return Err(CUresult::INVALID_DEVICE),
        }
    }
    Ok(())
}
