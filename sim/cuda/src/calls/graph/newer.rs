//! Calls of drivers newer than 535: nodes and edges with edge data. The data describes by which ports a kernel
//! waits for another before that one ends. Only the plain edge, all zero, is simulated.

use super::{INVALID_GRAPH_CALL, add, generic, give_list, handle_id, shape};
use crate::entry_points::CallFrame;
use crate::errors::CallResult;
use shim_sys::cuda::*;

/// Refuses edges that are not plain.
unsafe fn require_plain_edges(edges: *const CUgraphEdgeData, count: usize) -> CallResult {
    let zero = |i| unsafe { edges.add(i).read() } == CUgraphEdgeData::default();
    if edges.is_null() || (0..count).all(zero) { Ok(()) } else { Err(CUresult::NOT_SUPPORTED) }
}

/// Writes plain data for each edge that was returned.
unsafe fn write_plain_edges(edges: *mut CUgraphEdgeData, count: *const usize) -> CallResult {
    if !edges.is_null() {
        (0..unsafe { count.read() }).for_each(|i| unsafe { edges.add(i).write(CUgraphEdgeData::default()) });
    }
    Ok(())
}

pub(crate) unsafe fn cuGraphAddNode_v2(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    node: *mut CUgraphNodeParams,
) -> CallResult {
    unsafe {
        require_plain_edges(edges, count)?;
        add::add(d, out, graph, deps, count, |graph, after| generic::read(d, node, Some((graph, after))))
    }
}

pub(crate) unsafe fn cuGraphAddDependencies_v2(
    d: &CallFrame,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
) -> CallResult {
    unsafe {
        require_plain_edges(edges, count)?;
        shape::cuGraphAddDependencies(d, graph, from, to, count)
    }
}

pub(crate) unsafe fn cuGraphRemoveDependencies_v2(
    d: &CallFrame,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
) -> CallResult {
    unsafe {
        require_plain_edges(edges, count)?;
        shape::cuGraphRemoveDependencies(d, graph, from, to, count)
    }
}

pub(crate) unsafe fn cuGraphGetEdges_v2(
    d: &CallFrame,
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    count: *mut usize,
) -> CallResult {
    if from.is_null() && !edges.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    unsafe {
        shape::cuGraphGetEdges(d, graph, from, to, count)?;
        write_plain_edges(edges, count)
    }
}

pub(crate) unsafe fn cuGraphNodeGetDependencies_v2(
    d: &CallFrame,
    node: CUgraphNode,
    out: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    count: *mut usize,
) -> CallResult {
    if out.is_null() && !edges.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let after = d.graph_tables()?.lock_world().node_by_id(handle_id(node.0))?.after.clone();
    unsafe {
        give_list(out, count, &after)?;
        write_plain_edges(edges, count)
    }
}

pub(crate) unsafe fn cuGraphNodeGetDependentNodes_v2(
    d: &CallFrame,
    node: CUgraphNode,
    out: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    count: *mut usize,
) -> CallResult {
    if out.is_null() && !edges.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    unsafe {
        shape::cuGraphNodeGetDependentNodes(d, node, out, count)?;
        write_plain_edges(edges, count)
    }
}
