//! Reads a node's work from the structures that the program passes; checked when the node is made.

use super::{INVALID, context};
use crate::calls::function::function;
use crate::calls::launch::{Shape, duration};
use crate::calls::{copy, fill};
use crate::context::Context;
use crate::door::Door;
use crate::graph::Id;
use crate::graph::node::{Alloc, Arguments, Copy, Fill, Host, Kernel, Kind};
use crate::objects::{Event, known};
use shim_sys::cuda::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The form of the calls without suffix: the context is that of the function.
pub(super) unsafe fn kernel_v1(d: &Door, p: *const CUDA_KERNEL_NODE_PARAMS_v1) -> Result<Kind, CUresult> {
    if p.is_null() {
        return Err(INVALID);
    }
    let p = unsafe { p.read() };
    let full = CUDA_KERNEL_NODE_PARAMS {
        func: p.func,
        gridDimX: p.gridDimX,
        gridDimY: p.gridDimY,
        gridDimZ: p.gridDimZ,
        blockDimX: p.blockDimX,
        blockDimY: p.blockDimY,
        blockDimZ: p.blockDimZ,
        sharedMemBytes: p.sharedMemBytes,
        kernelParams: p.kernelParams,
        extra: p.extra,
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    };
    unsafe { kernel(d, &raw const full) }
}

pub(super) unsafe fn kernel(d: &Door, p: *const CUDA_KERNEL_NODE_PARAMS) -> Result<Kind, CUresult> {
    if p.is_null() {
        return Err(INVALID);
    }
    let p = unsafe { p.read() };
    let named = if p.func.is_null() { CUfunction(p.kern.0) } else { p.func };
    if named.is_null() {
        return Err(INVALID);
    }
    let f = function(d, named)?;
    let driver = d.driver()?;
    let module = driver.modules.get(f.module.load(Ordering::Relaxed) as *mut _);
    let context = match module {
        Some(m) if p.ctx.is_null() => m.context.clone(),
        _ => context(d, p.ctx)?,
    };
    let shape = Shape {
        grid: [p.gridDimX, p.gridDimY, p.gridDimZ],
        block: [p.blockDimX, p.blockDimY, p.blockDimZ],
        shared: p.sharedMemBytes,
    };
    let profile = &driver.device(context.device)?.profile;
    let cost = unsafe { duration(profile, &f, &shape, p.kernelParams, p.extra)? };
    let arguments = unsafe { Arguments::read(&f, p.kernelParams, p.extra)? };
    let named = (p.func, p.kern, p.ctx);
    Ok(Kind::Kernel(Kernel { f, context, named, shape, arguments, cost, attributes: BTreeMap::new() }))
}

pub(super) unsafe fn copy(d: &Door, p: *const CUDA_MEMCPY3D, ctx: CUcontext) -> Result<Kind, CUresult> {
    if p.is_null() {
        return Err(INVALID);
    }
    let params = unsafe { p.read() };
    let context = context(d, ctx)?;
    copy::prepare(d.driver()?, &params)?;
    Ok(Kind::Copy(Copy { params, context }))
}

pub(super) unsafe fn fill(d: &Door, p: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) -> Result<Kind, CUresult> {
    if p.is_null() {
        return Err(INVALID);
    }
    let params = unsafe { p.read() };
    let context = context(d, ctx)?;
    if ![1, 2, 4].contains(&params.elementSize) {
        return Err(INVALID);
    }
    let node = Fill { params, context };
    let found = fill::prepare(d.driver()?, params.dst, params.pitch, &node.pattern(), params.width, params.height)?;
    found.map(|_| Kind::Fill(node)).ok_or(INVALID)
}

pub(super) unsafe fn host(p: *const CUDA_HOST_NODE_PARAMS) -> Result<Kind, CUresult> {
    if p.is_null() {
        return Err(INVALID);
    }
    let p = unsafe { p.read() };
    Ok(Kind::Host(Host { f: p.f.ok_or(INVALID)?, data: p.userData }))
}

pub(super) fn event(d: &Door, event: CUevent) -> Result<Arc<Event>, CUresult> {
    known(&d.driver()?.events, event.0)
}

/// Makes a region for a node of `graph` that depends on `after`; writes its address to the parameters.
pub(super) unsafe fn alloc(
    d: &Door,
    graph: Id,
    after: &[Id],
    p: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Result<Kind, CUresult> {
    if p.is_null() {
        return Err(INVALID);
    }
    let given = unsafe { p.read() };
    let (props, bytes) = (given.poolProps, given.bytesize as u64);
    let pinned_here = props.allocType == 1 && props.handleTypes == 0;
    if !pinned_here || props.location.kind != CU_MEM_LOCATION_TYPE_DEVICE || bytes == 0 {
        return Err(INVALID);
    }
    if given.accessDescCount > 0 && given.accessDescs.is_null() {
        return Err(INVALID);
    }
    let driver = d.driver()?;
    let device = props.location.id;
    driver.device(device)?;
    let access: Vec<CUmemAccessDesc> =
        (0..given.accessDescCount).map(|i| unsafe { given.accessDescs.add(i).read() }).collect();
    for a in &access {
        driver.device(a.location.id)?;
        if a.location.kind != CU_MEM_LOCATION_TYPE_DEVICE || a.flags != 3 {
            return Err(INVALID);
        }
    }
    let span = driver.graphs.world().free_span(graph, after, device, bytes);
    let region = driver.graphs.memory.region(driver, device, bytes, graph, span)?;
    unsafe { (&raw mut (*p).dptr).write(region.span.at) };
    Ok(Kind::Alloc(Alloc { region, props, access: access.into() }))
}

pub(super) fn free(d: &Door, graph: Id, at: u64) -> Result<Kind, CUresult> {
    d.driver()?.graphs.memory.claim(at, graph).map(Kind::Free)
}

/// The handle of a context in a query.
pub(super) fn handle_of(context: &Arc<Context>) -> CUcontext {
    CUcontext(crate::objects::handle(context))
}
