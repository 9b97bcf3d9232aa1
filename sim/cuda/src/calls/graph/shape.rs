//! Nodes and edges: lists, connection, disconnection, removal.

use super::{INVALID_GRAPH_CALL, give_list, handle_id, read_nodes};
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::graph::node::NodeKind;
use shim_sys::cuda::*;

pub(crate) unsafe fn cuGraphGetNodes(
    d: &CallFrame,
    graph: CUgraph,
    out: *mut CUgraphNode,
    count: *mut usize,
) -> CallResult {
    let world = d.graph_tables()?.lock_world();
    let all: Vec<_> = world.graph_by_id(handle_id(graph.0))?.nodes.keys().copied().collect();
    unsafe { give_list(out, count, &all) }
}

pub(crate) unsafe fn cuGraphGetRootNodes(
    d: &CallFrame,
    graph: CUgraph,
    out: *mut CUgraphNode,
    count: *mut usize,
) -> CallResult {
    let world = d.graph_tables()?.lock_world();
    let g = world.graph_by_id(handle_id(graph.0))?;
    let roots: Vec<_> = g.nodes.iter().filter(|(_, n)| n.after.is_empty()).map(|(id, _)| *id).collect();
    unsafe { give_list(out, count, &roots) }
}

pub(crate) unsafe fn cuGraphGetEdges(
    d: &CallFrame,
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: *mut usize,
) -> CallResult {
    let world = d.graph_tables()?.lock_world();
    let edges = world.graph_by_id(handle_id(graph.0))?.edges();
    if count.is_null() || from.is_null() != to.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let (firsts, seconds): (Vec<_>, Vec<_>) = edges.into_iter().unzip();
    unsafe {
        let mut room = if from.is_null() { 0 } else { count.read() };
        give_list(from, &raw mut room, &firsts)?;
        give_list(to, count, &seconds)
    }
}

pub(crate) unsafe fn cuGraphNodeGetDependencies(
    d: &CallFrame,
    node: CUgraphNode,
    out: *mut CUgraphNode,
    count: *mut usize,
) -> CallResult {
    let world = d.graph_tables()?.lock_world();
    let after = world.node_by_id(handle_id(node.0))?.after.clone();
    unsafe { give_list(out, count, &after) }
}

pub(crate) unsafe fn cuGraphNodeGetDependentNodes(
    d: &CallFrame,
    node: CUgraphNode,
    out: *mut CUgraphNode,
    count: *mut usize,
) -> CallResult {
    let world = d.graph_tables()?.lock_world();
    let home = world.graph_of_node(handle_id(node.0))?;
    let all = world.graph_by_id(home)?.nodes_after(handle_id(node.0));
    unsafe { give_list(out, count, &all) }
}

pub(crate) unsafe fn cuGraphNodeGetType(d: &CallFrame, node: CUgraphNode, kind: *mut u32) -> CallResult {
    let world = d.graph_tables()?.lock_world();
    unsafe { write_output(kind, world.node_by_id(handle_id(node.0))?.kind.kind_number()) }
}

unsafe fn list_edges(
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Result<Vec<(usize, usize)>, CUresult> {
    let (from, to) = unsafe { (read_nodes(from, count)?, read_nodes(to, count)?) };
    Ok(from.into_iter().zip(to).collect())
}

pub(crate) unsafe fn cuGraphAddDependencies(
    d: &CallFrame,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> CallResult {
    let mut world = d.graph_tables()?.lock_world();
    world.graph_by_id(handle_id(graph.0))?;
    world.add_edges(handle_id(graph.0), &unsafe { list_edges(from, to, count)? })
}

pub(crate) unsafe fn cuGraphRemoveDependencies(
    d: &CallFrame,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> CallResult {
    let mut world = d.graph_tables()?.lock_world();
    world.graph_by_id(handle_id(graph.0))?;
    world.remove_edges(handle_id(graph.0), &unsafe { list_edges(from, to, count)? })
}

pub(crate) unsafe fn cuGraphDestroyNode(d: &CallFrame, node: CUgraphNode) -> CallResult {
    let gone = d.graph_tables()?.lock_world().remove(handle_id(node.0))?;
    // Dropped outside the lock, because user objects of a child graph may call the program.
    drop(gone);
    Ok(())
}

pub(crate) unsafe fn cuGraphChildGraphNodeGetGraph(d: &CallFrame, child: CUgraphNode, out: *mut CUgraph) -> CallResult {
    let world = d.graph_tables()?.lock_world();
    let NodeKind::Child(inner) = world.node_by_id(handle_id(child.0))?.kind else { return Err(INVALID_GRAPH_CALL) };
    unsafe { write_output(out, super::graph_handle(inner)) }
}
