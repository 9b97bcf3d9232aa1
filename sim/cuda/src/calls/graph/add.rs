//! Creation of nodes.

use super::{INVALID, id, make, node, nodes};
use crate::door::{Answer, Door, put};
use crate::graph::Id;
use crate::graph::node::Kind;
use shim_sys::cuda::*;

/// Adds the node that `make` returns for the graph and the nodes it depends on.
pub(super) unsafe fn add(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    make: impl FnOnce(Id, &[Id]) -> Result<Kind, CUresult>,
) -> Answer {
    let graphs = &d.driver()?.graphs;
    let graph = id(graph.0);
    let after = unsafe { nodes(deps, count)? };
    graphs.world().can_add(graph, &after)?;
    if out.is_null() {
        return Err(INVALID);
    }
    let kind = make(graph, &after)?;
    let new = graphs.world().add(graph, &after, kind)?;
    unsafe { put(out, node(new)) }
}

/// The graph of a child node: a copy of the present state of `graph`.
pub(super) fn child(d: &Door, graph: CUgraph) -> Result<Kind, CUresult> {
    d.driver()?.graphs.world().copy(id(graph.0), true).map(Kind::Child)
}

pub(crate) unsafe fn cuGraphAddKernelNode(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Answer {
    unsafe { add(d, out, graph, deps, count, |_, _| make::kernel_v1(d, params)) }
}

pub(crate) unsafe fn cuGraphAddKernelNode_v2(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> Answer {
    unsafe { add(d, out, graph, deps, count, |_, _| make::kernel(d, params)) }
}

pub(crate) unsafe fn cuGraphAddMemcpyNode(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    copy: *const CUDA_MEMCPY3D,
    ctx: CUcontext,
) -> Answer {
    unsafe { add(d, out, graph, deps, count, |_, _| make::copy(d, copy, ctx)) }
}

pub(crate) unsafe fn cuGraphAddMemsetNode(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    fill: *const CUDA_MEMSET_NODE_PARAMS,
    ctx: CUcontext,
) -> Answer {
    unsafe { add(d, out, graph, deps, count, |_, _| make::fill(d, fill, ctx)) }
}

pub(crate) unsafe fn cuGraphAddHostNode(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> Answer {
    unsafe { add(d, out, graph, deps, count, |_, _| make::host(params)) }
}

pub(crate) unsafe fn cuGraphAddChildGraphNode(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    child_graph: CUgraph,
) -> Answer {
    unsafe { add(d, out, graph, deps, count, |_, _| child(d, child_graph)) }
}

pub(crate) unsafe fn cuGraphAddEmptyNode(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
) -> Answer {
    unsafe { add(d, out, graph, deps, count, |_, _| Ok(Kind::Empty)) }
}

pub(crate) unsafe fn cuGraphAddEventRecordNode(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    event: CUevent,
) -> Answer {
    unsafe { add(d, out, graph, deps, count, |_, _| make::event(d, event).map(Kind::Record)) }
}

pub(crate) unsafe fn cuGraphAddEventWaitNode(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    event: CUevent,
) -> Answer {
    unsafe { add(d, out, graph, deps, count, |_, _| make::event(d, event).map(Kind::Wait)) }
}

pub(crate) unsafe fn cuGraphAddMemAllocNode(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Answer {
    unsafe { add(d, out, graph, deps, count, |graph, after| make::alloc(d, graph, after, params)) }
}

pub(crate) unsafe fn cuGraphAddMemFreeNode(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    dptr: CUdeviceptr,
) -> Answer {
    unsafe { add(d, out, graph, deps, count, |graph, _| make::free(d, graph, dptr)) }
}
