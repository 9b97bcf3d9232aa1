//! Nodes and edges: lists, connection, disconnection, removal.

use super::{INVALID, give, id, nodes};
use crate::door::{Answer, Door, put};
use crate::graph::node::Kind;
use shim_sys::cuda::*;

pub(crate) unsafe fn cuGraphGetNodes(d: &Door, graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) -> Answer {
    let world = d.driver()?.graphs.world();
    let all: Vec<_> = world.graph(id(graph.0))?.nodes.keys().copied().collect();
    unsafe { give(out, count, &all) }
}

pub(crate) unsafe fn cuGraphGetRootNodes(d: &Door, graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) -> Answer {
    let world = d.driver()?.graphs.world();
    let g = world.graph(id(graph.0))?;
    let roots: Vec<_> = g.nodes.iter().filter(|(_, n)| n.after.is_empty()).map(|(id, _)| *id).collect();
    unsafe { give(out, count, &roots) }
}

pub(crate) unsafe fn cuGraphGetEdges(
    d: &Door,
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: *mut usize,
) -> Answer {
    let world = d.driver()?.graphs.world();
    let edges = world.graph(id(graph.0))?.edges();
    if count.is_null() || from.is_null() != to.is_null() {
        return Err(INVALID);
    }
    let (firsts, seconds): (Vec<_>, Vec<_>) = edges.into_iter().unzip();
    unsafe {
        let mut room = if from.is_null() { 0 } else { count.read() };
        give(from, &raw mut room, &firsts)?;
        give(to, count, &seconds)
    }
}

pub(crate) unsafe fn cuGraphNodeGetDependencies(
    d: &Door,
    node: CUgraphNode,
    out: *mut CUgraphNode,
    count: *mut usize,
) -> Answer {
    let world = d.driver()?.graphs.world();
    let after = world.node(id(node.0))?.after.clone();
    unsafe { give(out, count, &after) }
}

pub(crate) unsafe fn cuGraphNodeGetDependentNodes(
    d: &Door,
    node: CUgraphNode,
    out: *mut CUgraphNode,
    count: *mut usize,
) -> Answer {
    let world = d.driver()?.graphs.world();
    let home = world.home(id(node.0))?;
    let all = world.graph(home)?.dependents(id(node.0));
    unsafe { give(out, count, &all) }
}

pub(crate) unsafe fn cuGraphNodeGetType(d: &Door, node: CUgraphNode, kind: *mut u32) -> Answer {
    let world = d.driver()?.graphs.world();
    unsafe { put(kind, world.node(id(node.0))?.kind.number()) }
}

unsafe fn edges(
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Result<Vec<(usize, usize)>, CUresult> {
    let (from, to) = unsafe { (nodes(from, count)?, nodes(to, count)?) };
    Ok(from.into_iter().zip(to).collect())
}

pub(crate) unsafe fn cuGraphAddDependencies(
    d: &Door,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Answer {
    let mut world = d.driver()?.graphs.world();
    world.graph(id(graph.0))?;
    world.link(id(graph.0), &unsafe { edges(from, to, count)? })
}

pub(crate) unsafe fn cuGraphRemoveDependencies(
    d: &Door,
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Answer {
    let mut world = d.driver()?.graphs.world();
    world.graph(id(graph.0))?;
    world.unlink(id(graph.0), &unsafe { edges(from, to, count)? })
}

pub(crate) unsafe fn cuGraphDestroyNode(d: &Door, node: CUgraphNode) -> Answer {
    let gone = d.driver()?.graphs.world().remove(id(node.0))?;
    // Dropped outside the lock, because user objects of a child graph may call the program.
    drop(gone);
    Ok(())
}

pub(crate) unsafe fn cuGraphChildGraphNodeGetGraph(d: &Door, child: CUgraphNode, out: *mut CUgraph) -> Answer {
    let world = d.driver()?.graphs.world();
    let Kind::Child(inner) = world.node(id(child.0))?.kind else { return Err(INVALID) };
    unsafe { put(out, super::graph(inner)) }
}
