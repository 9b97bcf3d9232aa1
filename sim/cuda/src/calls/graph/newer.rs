//! Calls of drivers newer than 535: nodes and edges with edge data. The data describes by which ports a kernel
//! waits for another before that one ends. Only the plain edge, all zero, is simulated.

use super::{INVALID, add, generic, give, id, shape};
use crate::door::{Answer, Door};
use shim_sys::cuda::*;

/// Refuses edges that are not plain.
unsafe fn plain(edges: *const CUgraphEdgeData, count: usize) -> Answer {
    let zero = |i| unsafe { edges.add(i).read() } == CUgraphEdgeData::default();
    if edges.is_null() || (0..count).all(zero) { Ok(()) } else { Err(CUresult::NOT_SUPPORTED) }
}

/// Writes plain data for each edge that was returned.
unsafe fn describe(edges: *mut CUgraphEdgeData, count: *const usize) -> Answer {
    if !edges.is_null() {
        (0..unsafe { count.read() }).for_each(|i| unsafe { edges.add(i).write(CUgraphEdgeData::default()) });
    }
    Ok(())
}

pub(crate) unsafe fn cuGraphAddNode_v2(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    node: *mut CUgraphNodeParams,
) -> Answer {
    unsafe {
        plain(edges, count)?;
        add::add(d, out, graph, deps, count, |graph, after| generic::read(d, node, Some((graph, after))))
    }
}

pub(crate) unsafe fn cuGraphAddDependencies_v2(
    d: &Door,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
) -> Answer {
    unsafe {
        plain(edges, count)?;
        shape::cuGraphAddDependencies(d, graph, from, to, count)
    }
}

pub(crate) unsafe fn cuGraphRemoveDependencies_v2(
    d: &Door,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
) -> Answer {
    unsafe {
        plain(edges, count)?;
        shape::cuGraphRemoveDependencies(d, graph, from, to, count)
    }
}

pub(crate) unsafe fn cuGraphGetEdges_v2(
    d: &Door,
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Answer {
    if from.is_null() && !edges.is_null() {
        return Err(INVALID);
    }
    unsafe {
        shape::cuGraphGetEdges(d, graph, from, to, count)?;
        describe(edges, count)
    }
}

pub(crate) unsafe fn cuGraphNodeGetDependencies_v2(
    d: &Door,
    node: CUgraphNode,
    out: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Answer {
    if out.is_null() && !edges.is_null() {
        return Err(INVALID);
    }
    let after = d.driver()?.graphs.world().node(id(node.0))?.after.clone();
    unsafe {
        give(out, count, &after)?;
        describe(edges, count)
    }
}

pub(crate) unsafe fn cuGraphNodeGetDependentNodes_v2(
    d: &Door,
    node: CUgraphNode,
    out: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Answer {
    if out.is_null() && !edges.is_null() {
        return Err(INVALID);
    }
    unsafe {
        shape::cuGraphNodeGetDependentNodes(d, node, out, count)?;
        describe(edges, count)
    }
}
