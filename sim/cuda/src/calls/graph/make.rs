//! Reads a node's work from the structures that the program passes; checked when the node is made.

use super::{INVALID_GRAPH_CALL, context_or_current};
use crate::calls::function::function_of_handle;
use crate::calls::launch::launch_duration;
use crate::context::CudaContext;
use crate::entry_points::CallFrame;
use crate::graph::node::{AllocationNode, GraphCopy, GraphFill, HostNode, KernelArguments, KernelNode, NodeKind};
use crate::objects::{EventObject, GraphId, object_of_handle};
use crate::work::kernel::LaunchShape;
use crate::work::{copy, fill};
use shim_sys::cuda::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The form of the calls without suffix: the context is that of the function.
pub(super) unsafe fn kernel_v1(d: &CallFrame, p: *const CUDA_KERNEL_NODE_PARAMS_v1) -> Result<NodeKind, CUresult> {
    if p.is_null() {
        return Err(INVALID_GRAPH_CALL);
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
    unsafe { kernel_kind(d, &raw const full) }
}

pub(super) unsafe fn kernel_kind(d: &CallFrame, p: *const CUDA_KERNEL_NODE_PARAMS) -> Result<NodeKind, CUresult> {
    if p.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let p = unsafe { p.read() };
    let named = if p.func.is_null() { CUfunction(p.kern.0) } else { p.func };
    if named.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let f = function_of_handle(d, named)?;
    let driver = d.initialised_driver()?;
    let module = driver.modules.get(f.module.load(Ordering::Relaxed) as *mut _);
    let context = match module {
        Some(m) if p.ctx.is_null() => m.context.clone(),
        _ => context_or_current(d, p.ctx)?,
    };
    let shape = LaunchShape {
        grid: [p.gridDimX, p.gridDimY, p.gridDimZ],
        block: [p.blockDimX, p.blockDimY, p.blockDimZ],
        shared: p.sharedMemBytes,
    };
    let profile = &driver.device_of_ordinal(context.device)?.profile;
    let cost = unsafe { launch_duration(profile, &f, &shape, p.kernelParams, p.extra)? };
    let arguments = unsafe { KernelArguments::read(&f, p.kernelParams, p.extra)? };
    let named = (p.func, p.kern, p.ctx);
    Ok(NodeKind::Kernel(KernelNode { f, context, named, shape, arguments, cost, attributes: BTreeMap::new() }))
}

pub(super) unsafe fn copy_kind(d: &CallFrame, p: *const CUDA_MEMCPY3D, ctx: CUcontext) -> Result<NodeKind, CUresult> {
    if p.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let params = unsafe { p.read() };
    let context = context_or_current(d, ctx)?;
    copy::prepare_3d(d.initialised_driver()?, &params)?;
    Ok(NodeKind::Copy(GraphCopy { params, context }))
}

pub(super) unsafe fn fill_kind(
    d: &CallFrame,
    p: *const CUDA_MEMSET_NODE_PARAMS,
    ctx: CUcontext,
) -> Result<NodeKind, CUresult> {
    if p.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let params = unsafe { p.read() };
    let context = context_or_current(d, ctx)?;
    if ![1, 2, 4].contains(&params.elementSize) {
        return Err(INVALID_GRAPH_CALL);
    }
    let node = GraphFill { params, context };
    let found = fill::prepare_fill(
        d.initialised_driver()?,
        params.dst,
        params.pitch,
        &node.fill_pattern(),
        params.width,
        params.height,
    )?;
    found.map(|_| NodeKind::Fill(node)).ok_or(INVALID_GRAPH_CALL)
}

pub(super) unsafe fn host_kind(p: *const CUDA_HOST_NODE_PARAMS) -> Result<NodeKind, CUresult> {
    if p.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let p = unsafe { p.read() };
    Ok(NodeKind::Host(HostNode { f: p.f.ok_or(INVALID_GRAPH_CALL)?, data: p.userData }))
}

pub(super) fn event_of_handle(d: &CallFrame, event: CUevent) -> Result<Arc<EventObject>, CUresult> {
    object_of_handle(&d.initialised_driver()?.events, event.0)
}

/// Makes a region for a node of `graph` that depends on `after`; writes its address to the parameters.
pub(super) unsafe fn alloc(
    d: &CallFrame,
    graph: GraphId,
    after: &[GraphId],
    p: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Result<NodeKind, CUresult> {
    if p.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let given = unsafe { p.read() };
    let (props, bytes) = (given.poolProps, given.bytesize as u64);
    let pinned_here = props.allocType == 1 && props.handleTypes == 0;
    if !pinned_here || props.location.kind != CU_MEM_LOCATION_TYPE_DEVICE || bytes == 0 {
        return Err(INVALID_GRAPH_CALL);
    }
    if given.accessDescCount > 0 && given.accessDescs.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let driver = d.initialised_driver()?;
    let device = props.location.id;
    driver.device_of_ordinal(device)?;
    let access: Vec<CUmemAccessDesc> =
        (0..given.accessDescCount).map(|i| unsafe { given.accessDescs.add(i).read() }).collect();
    for a in &access {
        driver.device_of_ordinal(a.location.id)?;
        if a.location.kind != CU_MEM_LOCATION_TYPE_DEVICE || a.flags != 3 {
            return Err(INVALID_GRAPH_CALL);
        }
    }
    let span = d.graph_tables()?.lock_world().free_span(graph, after, device, bytes);
    let region = d.graph_tables()?.memory.new_region(driver, device, bytes, graph, span)?;
    unsafe { (&raw mut (*p).dptr).write(region.span.at) };
    Ok(NodeKind::Alloc(AllocationNode { region, props, access: access.into() }))
}

pub(super) fn free(d: &CallFrame, graph: GraphId, at: u64) -> Result<NodeKind, CUresult> {
    d.graph_tables()?.memory.claim_region(at, graph).map(NodeKind::Free)
}

/// The handle of a context in a query.
pub(super) fn handle_of(context: &Arc<CudaContext>) -> CUcontext {
    CUcontext(crate::objects::object_handle(context))
}
