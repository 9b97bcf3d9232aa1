//! Creation of nodes.

use super::{INVALID_GRAPH_CALL, handle_id, make, node_handle, read_nodes};
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::graph::node::NodeKind;
use crate::objects::GraphId;
use shim_sys::cuda::*;

/// Adds the node that `make` returns for the graph and the nodes it depends on.
pub(super) unsafe fn add(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    make: impl FnOnce(GraphId, &[GraphId]) -> Result<NodeKind, CUresult>,
) -> CallResult {
    let graphs = &d.graph_tables()?;
    let graph = handle_id(graph.0);
    let after = unsafe { read_nodes(deps, count)? };
    graphs.lock_world().can_add(graph, &after)?;
    if out.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let kind = make(graph, &after)?;
    let new = graphs.lock_world().add(graph, &after, kind)?;
    unsafe { write_output(out, node_handle(new)) }
}

/// The graph of a child node: a copy of the present state of `graph`.
pub(super) fn child_kind(d: &CallFrame, graph: CUgraph) -> Result<NodeKind, CUresult> {
    d.graph_tables()?.lock_world().copy_graph(handle_id(graph.0), true).map(NodeKind::Child)
}

pub(crate) unsafe fn cuGraphAddKernelNode(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> CallResult {
    unsafe { add(d, out, graph, deps, count, |_, _| make::kernel_v1(d, params)) }
}

pub(crate) unsafe fn cuGraphAddKernelNode_v2(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> CallResult {
    unsafe { add(d, out, graph, deps, count, |_, _| make::kernel_kind(d, params)) }
}

pub(crate) unsafe fn cuGraphAddMemcpyNode(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    copy: *const CUDA_MEMCPY3D,
    ctx: CUcontext,
) -> CallResult {
    unsafe { add(d, out, graph, deps, count, |_, _| make::copy_kind(d, copy, ctx)) }
}

pub(crate) unsafe fn cuGraphAddMemsetNode(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    fill: *const CUDA_MEMSET_NODE_PARAMS,
    ctx: CUcontext,
) -> CallResult {
    unsafe { add(d, out, graph, deps, count, |_, _| make::fill_kind(d, fill, ctx)) }
}

pub(crate) unsafe fn cuGraphAddHostNode(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> CallResult {
    unsafe { add(d, out, graph, deps, count, |_, _| make::host_kind(params)) }
}

pub(crate) unsafe fn cuGraphAddChildGraphNode(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    child_graph: CUgraph,
) -> CallResult {
    unsafe { add(d, out, graph, deps, count, |_, _| child_kind(d, child_graph)) }
}

pub(crate) unsafe fn cuGraphAddEmptyNode(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
) -> CallResult {
    unsafe { add(d, out, graph, deps, count, |_, _| Ok(NodeKind::Empty)) }
}

pub(crate) unsafe fn cuGraphAddEventRecordNode(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    event: CUevent,
) -> CallResult {
    unsafe { add(d, out, graph, deps, count, |_, _| make::event_of_handle(d, event).map(NodeKind::Record)) }
}

pub(crate) unsafe fn cuGraphAddEventWaitNode(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    event: CUevent,
) -> CallResult {
    unsafe { add(d, out, graph, deps, count, |_, _| make::event_of_handle(d, event).map(NodeKind::Wait)) }
}

pub(crate) unsafe fn cuGraphAddMemAllocNode(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CallResult {
    unsafe { add(d, out, graph, deps, count, |graph, after| make::alloc(d, graph, after, params)) }
}

pub(crate) unsafe fn cuGraphAddMemFreeNode(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    dptr: CUdeviceptr,
) -> CallResult {
    unsafe { add(d, out, graph, deps, count, |graph, _| make::free(d, graph, dptr)) }
}
