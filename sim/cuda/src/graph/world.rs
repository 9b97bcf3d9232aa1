//! The graphs of this process and their nodes: structure, and which changes are allowed.
//!
//! A graph with a cycle can be described; instantiation refuses it (`exec`).

use super::memory::{AddressSpan, GraphRegion};
use super::node::NodeKind;
use super::object::HeldObjects;
use crate::objects::GraphId;
use shim_sys::cuda::CUresult;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

const INVALID_WORLD_CALL: CUresult = CUresult::INVALID_VALUE;

/// A node of a graph, with its dependencies.
pub(crate) struct GraphNode {
    pub(crate) kind: NodeKind,
    /// Nodes that this node depends on.
    pub(crate) after: Vec<GraphId>,
    /// The node from which this one was cloned.
    pub(crate) source: Option<GraphId>,
}

/// A graph that can be changed and instantiated.
#[derive(Default)]
pub(crate) struct GraphRecord {
    /// The nodes, sorted by creation.
    pub(crate) nodes: BTreeMap<GraphId, GraphNode>,
    /// True if the graph belongs to a child node and ends with it.
    pub(crate) embedded: bool,
    /// True while a capture adds to the graph: it may not be destroyed, shrunk or instantiated meanwhile.
    pub(crate) capturing: bool,
    /// Number of live executable graphs made from this graph.
    pub(crate) instances: usize,
    pub(crate) objects: HeldObjects,
}

impl GraphRecord {
    /// True if the graph has nodes that allocate or free: it may not be cloned, embedded or shrunk.
    pub(crate) fn has_memory(&self) -> bool {
        self.nodes.values().any(|n| matches!(n.kind, NodeKind::Alloc(_) | NodeKind::Free(_)))
    }

    /// The edges as pairs (from, to).
    pub(crate) fn edges(&self) -> Vec<(GraphId, GraphId)> {
        self.nodes.iter().flat_map(|(id, n)| n.after.iter().map(move |a| (*a, *id))).collect()
    }

    /// Nodes that depend on `node`.
    pub(crate) fn nodes_after(&self, node: GraphId) -> Vec<GraphId> {
        self.nodes.iter().filter(|(_, n)| n.after.contains(&node)).map(|(id, _)| *id).collect()
    }

    fn only_known(&self, nodes: &[GraphId]) -> Result<(), CUresult> {
        let mut seen = HashSet::new();
        if nodes.iter().all(|n| self.nodes.contains_key(n) && seen.insert(*n)) {
            Ok(())
        } else {
            Err(INVALID_WORLD_CALL)
        }
    }
}

/// All graphs of this process.
pub(crate) struct GraphWorld {
    graphs: HashMap<GraphId, GraphRecord>,
    /// The graph of each node.
    homes: HashMap<GraphId, GraphId>,
    next: GraphId,
}

impl Default for GraphWorld {
    fn default() -> Self {
        GraphWorld { graphs: HashMap::new(), homes: HashMap::new(), next: 0x6A00_0000_0000 }
    }
}

impl GraphWorld {
    fn next_id(&mut self) -> GraphId {
        self.next += 64;
        self.next
    }

    /// Makes a graph without nodes.
    pub(crate) fn create_graph(&mut self) -> GraphId {
        let id = self.next_id();
        self.graphs.insert(id, GraphRecord::default());
        id
    }

    pub(crate) fn graph_by_id(&self, id: GraphId) -> Result<&GraphRecord, CUresult> {
        self.graphs.get(&id).ok_or(INVALID_WORLD_CALL)
    }

    pub(crate) fn graph_mut(&mut self, id: GraphId) -> Result<&mut GraphRecord, CUresult> {
        self.graphs.get_mut(&id).ok_or(INVALID_WORLD_CALL)
    }

    /// The graph that includes a node.
    pub(crate) fn graph_of_node(&self, node: GraphId) -> Result<GraphId, CUresult> {
        self.homes.get(&node).copied().ok_or(INVALID_WORLD_CALL)
    }

    pub(crate) fn node_by_id(&self, id: GraphId) -> Result<&GraphNode, CUresult> {
        self.graph_by_id(self.graph_of_node(id)?)?.nodes.get(&id).ok_or(INVALID_WORLD_CALL)
    }

    pub(crate) fn node_mut(&mut self, id: GraphId) -> Result<&mut GraphNode, CUresult> {
        let home = self.graph_of_node(id)?;
        self.graph_mut(home)?.nodes.get_mut(&id).ok_or(INVALID_WORLD_CALL)
    }

    /// Checks that a node that depends on `after` can be added to `graph`.
    pub(crate) fn can_add(&self, graph: GraphId, after: &[GraphId]) -> Result<(), CUresult> {
        self.graph_by_id(graph)?.only_known(after)
    }

    /// Adds a node that depends on `after` to the graph.
    pub(crate) fn add(&mut self, graph: GraphId, after: &[GraphId], kind: NodeKind) -> Result<GraphId, CUresult> {
        self.can_add(graph, after)?;
        let id = self.next_id();
        let node = GraphNode { kind, after: after.to_vec(), source: None };
        self.graph_mut(graph)?.nodes.insert(id, node);
        self.homes.insert(id, graph);
        Ok(id)
    }

    /// Adds all edges or none.
    pub(crate) fn add_edges(&mut self, graph: GraphId, edges: &[(GraphId, GraphId)]) -> Result<(), CUresult> {
        let g = self.graph_mut(graph)?;
        let mut seen: HashSet<(GraphId, GraphId)> = g.edges().into_iter().collect();
        for (from, to) in edges {
            let known = g.nodes.contains_key(from) && g.nodes.contains_key(to);
            if !known || from == to || !seen.insert((*from, *to)) {
                return Err(INVALID_WORLD_CALL);
            }
        }
        for (from, to) in edges {
            if let Some(n) = g.nodes.get_mut(to) {
                n.after.push(*from);
            }
        }
        Ok(())
    }

    /// Removes all these edges or none.
    pub(crate) fn remove_edges(&mut self, graph: GraphId, edges: &[(GraphId, GraphId)]) -> Result<(), CUresult> {
        let g = self.graph_mut(graph)?;
        if g.has_memory() && !edges.is_empty() {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let mut there: HashSet<(GraphId, GraphId)> = g.edges().into_iter().collect();
        if !edges.iter().all(|e| there.remove(e)) {
            return Err(INVALID_WORLD_CALL);
        }
        for (from, to) in edges {
            if let Some(n) = g.nodes.get_mut(to) {
                n.after.retain(|a| a != from);
            }
        }
        Ok(())
    }

    /// Removes a node with its edges; returns the child graphs it had.
    pub(crate) fn remove(&mut self, id: GraphId) -> Result<Vec<GraphRecord>, CUresult> {
        let home = self.graph_of_node(id)?;
        let g = self.graph_mut(home)?;
        if g.capturing {
            return Err(CUresult::ILLEGAL_STATE);
        }
        if g.has_memory() {
            return Err(CUresult::NOT_SUPPORTED);
        }
        for n in g.nodes.values_mut() {
            n.after.retain(|a| *a != id);
        }
        let node = g.nodes.remove(&id).ok_or(INVALID_WORLD_CALL)?;
        self.homes.remove(&id);
        Ok(match node.kind {
            NodeKind::Child(inner) => self.destroy_graph(inner),
            _ => Vec::new(),
        })
    }

    /// Destroys a graph with its child graphs; returns them all, to be dropped after the lock is released.
    pub(crate) fn destroy_graph(&mut self, graph: GraphId) -> Vec<GraphRecord> {
        let Some(g) = self.graphs.remove(&graph) else { return Vec::new() };
        let mut gone = Vec::new();
        for (id, n) in &g.nodes {
            self.homes.remove(id);
            if let NodeKind::Child(inner) = n.kind {
                gone.extend(self.destroy_graph(inner));
            }
        }
        gone.push(g);
        gone
    }

    /// Copies a graph with its child graphs.
    pub(crate) fn copy_graph(&mut self, graph: GraphId, embedded: bool) -> Result<GraphId, CUresult> {
        let g = self.graph_by_id(graph)?;
        if g.has_memory() {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let objects = g.objects.duplicate_references();
        let nodes: Vec<(GraphId, NodeKind, Vec<GraphId>)> =
            g.nodes.iter().map(|(i, n)| (*i, n.kind.clone(), n.after.clone())).collect();
        let copy = self.next_id();
        self.graphs.insert(copy, GraphRecord { embedded, objects, ..GraphRecord::default() });
        let mut now: HashMap<GraphId, GraphId> = HashMap::new();
        for (old, mut kind, _) in nodes.iter().map(|(i, k, a)| (*i, k.clone(), a)) {
            if let NodeKind::Child(inner) = kind {
                kind = NodeKind::Child(self.copy_graph(inner, true)?);
            }
            let id = self.next_id();
            now.insert(old, id);
            self.homes.insert(id, copy);
            let node = GraphNode { kind, after: Vec::new(), source: Some(old) };
            self.graph_mut(copy)?.nodes.insert(id, node);
        }
        for (old, _, after) in &nodes {
            let after = after.iter().filter_map(|a| now.get(a).copied()).collect();
            self.node_mut(now[old])?.after = after;
        }
        Ok(copy)
    }

    /// Addresses that a new allocation after `after` may reuse: those of an allocation in the same graph and device
    /// that is freed before it, together with all others at its address.
    pub(crate) fn free_span(
        &self,
        graph: GraphId,
        after: &[GraphId],
        device: i32,
        bytes: u64,
    ) -> Option<Arc<AddressSpan>> {
        let g = self.graph_by_id(graph).ok()?;
        let mut before = HashSet::new();
        let mut todo = after.to_vec();
        while let Some(id) = todo.pop() {
            if before.insert(id) {
                todo.extend(&g.nodes.get(&id)?.after);
            }
        }
        let freed: Vec<&Arc<GraphRegion>> = before
            .iter()
            .filter_map(|id| if let NodeKind::Free(r) = &g.nodes.get(id)?.kind { Some(r) } else { None })
            .collect();
        let mut fit: Vec<&Arc<GraphRegion>> = freed
            .iter()
            .copied()
            .filter(|r| r.graph == graph && r.span.device == device && r.span.bytes >= bytes)
            .filter(|r| {
                let here =
                    |n: &GraphNode| matches!(&n.kind, NodeKind::Alloc(a) if Arc::ptr_eq(&a.region.span, &r.span));
                let users = g.nodes.values().filter(|n| here(n)).count();
                users == freed.iter().filter(|f| Arc::ptr_eq(&f.span, &r.span)).count()
            })
            .collect();
        fit.sort_by_key(|r| (r.span.bytes, r.span.at));
        fit.first().map(|r| r.span.clone())
    }

    /// The node of a clone that was copied from `original`.
    pub(crate) fn in_clone(&self, original: GraphId, clone: GraphId) -> Result<GraphId, CUresult> {
        let found = self.graph_by_id(clone)?.nodes.iter().find(|(_, n)| n.source == Some(original));
        found.map(|(id, _)| *id).ok_or(INVALID_WORLD_CALL)
    }
}
