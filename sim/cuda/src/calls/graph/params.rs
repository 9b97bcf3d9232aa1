//! Parameters and attributes of nodes, by type.

use super::{INVALID_GRAPH_CALL, handle_id, make};
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::graph::node::{AllocationNode, KernelNode, NodeKind};
use crate::objects::object_handle;
use core::ffi::c_void;
use shim_sys::cuda::*;

/// Kernel attributes that are stored: access window, cooperative, cluster size and policy, priority, memory
/// domains.
const KEPT_ATTRIBUTES: [u32; 7] = [1, 2, 4, 5, 8, 9, 10];

fn kind_of_node(d: &CallFrame, node: CUgraphNode) -> Result<NodeKind, CUresult> {
    Ok(d.graph_tables()?.lock_world().node_by_id(handle_id(node.0))?.kind.clone())
}

/// Replaces the work of a node by other work of the same type.
pub(super) fn set(d: &CallFrame, node: CUgraphNode, make: impl FnOnce() -> Result<NodeKind, CUresult>) -> CallResult {
    let old = kind_of_node(d, node)?;
    let mut new = make()?;
    if old.kind_number() != new.kind_number() {
        return Err(INVALID_GRAPH_CALL);
    }
    // Attributes are not parameters, so they stay.
    if let (NodeKind::Kernel(old), NodeKind::Kernel(new)) = (&old, &mut new) {
        new.attributes.clone_from(&old.attributes);
    }
    d.graph_tables()?.lock_world().node_mut(handle_id(node.0))?.kind = new;
    Ok(())
}

/// A kernel node's parameters as a query returns them.
pub(super) fn described_kernel(k: &KernelNode) -> CUDA_KERNEL_NODE_PARAMS {
    let (func, kern, ctx) = k.named;
    CUDA_KERNEL_NODE_PARAMS {
        func,
        gridDimX: k.shape.grid[0],
        gridDimY: k.shape.grid[1],
        gridDimZ: k.shape.grid[2],
        blockDimX: k.shape.block[0],
        blockDimY: k.shape.block[1],
        blockDimZ: k.shape.block[2],
        sharedMemBytes: k.shape.shared,
        kernelParams: k.arguments.argument_pointers(),
        extra: k.arguments.packed_list(),
        kern,
        ctx: if ctx.is_null() { make::handle_of(&k.context) } else { ctx },
    }
}

/// An allocation node's parameters as a query returns them.
pub(super) fn described_alloc(a: &AllocationNode) -> CUDA_MEM_ALLOC_NODE_PARAMS {
    let access = if a.access.is_empty() { core::ptr::null() } else { a.access.as_ptr() };
    CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: a.props,
        accessDescs: access,
        accessDescCount: a.access.len(),
        bytesize: usize::try_from(a.region.bytes).unwrap_or(usize::MAX),
        dptr: a.region.span.at,
    }
}

pub(crate) unsafe fn cuGraphKernelNodeGetParams(
    d: &CallFrame,
    node: CUgraphNode,
    params: *mut CUDA_KERNEL_NODE_PARAMS_v1,
) -> CallResult {
    let NodeKind::Kernel(k) = kind_of_node(d, node)? else { return Err(INVALID_GRAPH_CALL) };
    let p = described_kernel(&k);
    let old = CUDA_KERNEL_NODE_PARAMS_v1 {
        func: if p.func.is_null() { CUfunction(p.kern.0) } else { p.func },
        gridDimX: p.gridDimX,
        gridDimY: p.gridDimY,
        gridDimZ: p.gridDimZ,
        blockDimX: p.blockDimX,
        blockDimY: p.blockDimY,
        blockDimZ: p.blockDimZ,
        sharedMemBytes: p.sharedMemBytes,
        kernelParams: p.kernelParams,
        extra: p.extra,
    };
    unsafe { write_output(params, old) }
}

pub(crate) unsafe fn cuGraphKernelNodeGetParams_v2(
    d: &CallFrame,
    node: CUgraphNode,
    params: *mut CUDA_KERNEL_NODE_PARAMS,
) -> CallResult {
    let NodeKind::Kernel(k) = kind_of_node(d, node)? else { return Err(INVALID_GRAPH_CALL) };
    unsafe { write_output(params, described_kernel(&k)) }
}

pub(crate) unsafe fn cuGraphKernelNodeSetParams(
    d: &CallFrame,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> CallResult {
    set(d, node, || unsafe { make::kernel_v1(d, params) })
}

pub(crate) unsafe fn cuGraphKernelNodeSetParams_v2(
    d: &CallFrame,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> CallResult {
    set(d, node, || unsafe { make::kernel_kind(d, params) })
}

pub(crate) unsafe fn cuGraphKernelNodeGetAttribute(
    d: &CallFrame,
    node: CUgraphNode,
    attribute: u32,
    value: *mut c_void,
) -> CallResult {
    let NodeKind::Kernel(k) = kind_of_node(d, node)? else { return Err(INVALID_GRAPH_CALL) };
    if !KEPT_ATTRIBUTES.contains(&attribute) {
        return Err(INVALID_GRAPH_CALL);
    }
    unsafe { write_output(value.cast(), k.attributes.get(&attribute).copied().unwrap_or([0u8; 64])) }
}

pub(crate) unsafe fn cuGraphKernelNodeSetAttribute(
    d: &CallFrame,
    node: CUgraphNode,
    attribute: u32,
    value: *const c_void,
) -> CallResult {
    let mut world = d.graph_tables()?.lock_world();
    let NodeKind::Kernel(k) = &mut world.node_mut(handle_id(node.0))?.kind else { return Err(INVALID_GRAPH_CALL) };
    if value.is_null() || !KEPT_ATTRIBUTES.contains(&attribute) {
        return Err(INVALID_GRAPH_CALL);
    }
    k.attributes.insert(attribute, unsafe { value.cast::<[u8; 64]>().read_unaligned() });
    Ok(())
}

pub(crate) unsafe fn cuGraphKernelNodeCopyAttributes(d: &CallFrame, dst: CUgraphNode, src: CUgraphNode) -> CallResult {
    let NodeKind::Kernel(from) = kind_of_node(d, src)? else { return Err(INVALID_GRAPH_CALL) };
    let mut world = d.graph_tables()?.lock_world();
    let NodeKind::Kernel(to) = &mut world.node_mut(handle_id(dst.0))?.kind else { return Err(INVALID_GRAPH_CALL) };
    to.attributes = from.attributes;
    Ok(())
}

pub(crate) unsafe fn cuGraphMemcpyNodeGetParams(
    d: &CallFrame,
    node: CUgraphNode,
    params: *mut CUDA_MEMCPY3D,
) -> CallResult {
    let NodeKind::Copy(c) = kind_of_node(d, node)? else { return Err(INVALID_GRAPH_CALL) };
    unsafe { write_output(params, c.params) }
}

/// The context does not change.
pub(crate) unsafe fn cuGraphMemcpyNodeSetParams(
    d: &CallFrame,
    node: CUgraphNode,
    params: *const CUDA_MEMCPY3D,
) -> CallResult {
    let NodeKind::Copy(c) = kind_of_node(d, node)? else { return Err(INVALID_GRAPH_CALL) };
    set(d, node, || unsafe { make::copy_kind(d, params, make::handle_of(&c.context)) })
}

pub(crate) unsafe fn cuGraphMemsetNodeGetParams(
    d: &CallFrame,
    node: CUgraphNode,
    params: *mut CUDA_MEMSET_NODE_PARAMS,
) -> CallResult {
    let NodeKind::Fill(f) = kind_of_node(d, node)? else { return Err(INVALID_GRAPH_CALL) };
    unsafe { write_output(params, f.params) }
}

/// The context does not change.
pub(crate) unsafe fn cuGraphMemsetNodeSetParams(
    d: &CallFrame,
    node: CUgraphNode,
    params: *const CUDA_MEMSET_NODE_PARAMS,
) -> CallResult {
    let NodeKind::Fill(f) = kind_of_node(d, node)? else { return Err(INVALID_GRAPH_CALL) };
    set(d, node, || unsafe { make::fill_kind(d, params, make::handle_of(&f.context)) })
}

pub(crate) unsafe fn cuGraphHostNodeGetParams(
    d: &CallFrame,
    node: CUgraphNode,
    params: *mut CUDA_HOST_NODE_PARAMS,
) -> CallResult {
    let NodeKind::Host(h) = kind_of_node(d, node)? else { return Err(INVALID_GRAPH_CALL) };
    unsafe { write_output(params, CUDA_HOST_NODE_PARAMS { f: Some(h.f), userData: h.data }) }
}

pub(crate) unsafe fn cuGraphHostNodeSetParams(
    d: &CallFrame,
    node: CUgraphNode,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> CallResult {
    set(d, node, || unsafe { make::host_kind(params) })
}

pub(crate) unsafe fn cuGraphEventRecordNodeGetEvent(
    d: &CallFrame,
    node: CUgraphNode,
    event: *mut CUevent,
) -> CallResult {
    let NodeKind::Record(e) = kind_of_node(d, node)? else { return Err(INVALID_GRAPH_CALL) };
    unsafe { write_output(event, CUevent(object_handle(&e))) }
}

pub(crate) unsafe fn cuGraphEventRecordNodeSetEvent(d: &CallFrame, node: CUgraphNode, event: CUevent) -> CallResult {
    set(d, node, || make::event_of_handle(d, event).map(NodeKind::Record))
}

pub(crate) unsafe fn cuGraphEventWaitNodeGetEvent(d: &CallFrame, node: CUgraphNode, event: *mut CUevent) -> CallResult {
    let NodeKind::Wait(e) = kind_of_node(d, node)? else { return Err(INVALID_GRAPH_CALL) };
    unsafe { write_output(event, CUevent(object_handle(&e))) }
}

pub(crate) unsafe fn cuGraphEventWaitNodeSetEvent(d: &CallFrame, node: CUgraphNode, event: CUevent) -> CallResult {
    set(d, node, || make::event_of_handle(d, event).map(NodeKind::Wait))
}

pub(crate) unsafe fn cuGraphMemAllocNodeGetParams(
    d: &CallFrame,
    node: CUgraphNode,
    params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CallResult {
    let NodeKind::Alloc(a) = kind_of_node(d, node)? else { return Err(INVALID_GRAPH_CALL) };
    unsafe { write_output(params, described_alloc(&a)) }
}

pub(crate) unsafe fn cuGraphMemFreeNodeGetParams(
    d: &CallFrame,
    node: CUgraphNode,
    dptr: *mut CUdeviceptr,
) -> CallResult {
    let NodeKind::Free(r) = kind_of_node(d, node)? else { return Err(INVALID_GRAPH_CALL) };
    unsafe { write_output(dptr, r.span.at) }
}
