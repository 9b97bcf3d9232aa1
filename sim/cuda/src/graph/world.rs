//! The graphs of this process and their nodes: structure, and which changes are allowed.
//!
//! A graph with a cycle can be described; instantiation refuses it (`exec`).

use super::Id;
use super::memory::{Region, Span};
use super::node::Kind;
use super::object::Held;
use shim_sys::cuda::CUresult;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

const INVALID: CUresult = CUresult::INVALID_VALUE;

/// A node of a graph, with its dependencies.
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// Nodes that this node depends on.
    pub(crate) after: Vec<Id>,
    /// The node from which this one was cloned.
    pub(crate) source: Option<Id>,
}

/// A graph that can be changed and instantiated.
#[derive(Default)]
pub(crate) struct Graph {
    /// The nodes, sorted by creation.
    pub(crate) nodes: BTreeMap<Id, Node>,
    /// True if the graph belongs to a child node and ends with it.
    pub(crate) embedded: bool,
    /// True while a capture adds to the graph: it may not be destroyed, shrunk or instantiated meanwhile.
    pub(crate) capturing: bool,
    /// Number of live executable graphs made from this graph.
    pub(crate) instances: usize,
    pub(crate) objects: Held,
}

impl Graph {
    /// True if the graph has nodes that allocate or free: it may not be cloned, embedded or shrunk.
    pub(crate) fn has_memory(&self) -> bool {
        self.nodes.values().any(|n| matches!(n.kind, Kind::Alloc(_) | Kind::Free(_)))
    }

    /// The edges as pairs (from, to).
    pub(crate) fn edges(&self) -> Vec<(Id, Id)> {
        self.nodes.iter().flat_map(|(id, n)| n.after.iter().map(move |a| (*a, *id))).collect()
    }

    /// Nodes that depend on `node`.
    pub(crate) fn dependents(&self, node: Id) -> Vec<Id> {
        self.nodes.iter().filter(|(_, n)| n.after.contains(&node)).map(|(id, _)| *id).collect()
    }

    fn only_known(&self, nodes: &[Id]) -> Result<(), CUresult> {
        let mut seen = HashSet::new();
        if nodes.iter().all(|n| self.nodes.contains_key(n) && seen.insert(*n)) { Ok(()) } else { Err(INVALID) }
    }
}

/// All graphs of this process.
pub(crate) struct World {
    graphs: HashMap<Id, Graph>,
    /// The graph of each node.
    homes: HashMap<Id, Id>,
    next: Id,
}

impl Default for World {
    fn default() -> Self {
        World { graphs: HashMap::new(), homes: HashMap::new(), next: 0x6A00_0000_0000 }
    }
}

impl World {
    fn fresh(&mut self) -> Id {
        self.next += 64;
        self.next
    }

    /// Makes a graph without nodes.
    pub(crate) fn create(&mut self) -> Id {
        let id = self.fresh();
        self.graphs.insert(id, Graph::default());
        id
    }

    pub(crate) fn graph(&self, id: Id) -> Result<&Graph, CUresult> {
        self.graphs.get(&id).ok_or(INVALID)
    }

    pub(crate) fn graph_mut(&mut self, id: Id) -> Result<&mut Graph, CUresult> {
        self.graphs.get_mut(&id).ok_or(INVALID)
    }

    /// The graph that includes a node.
    pub(crate) fn home(&self, node: Id) -> Result<Id, CUresult> {
        self.homes.get(&node).copied().ok_or(INVALID)
    }

    pub(crate) fn node(&self, id: Id) -> Result<&Node, CUresult> {
        self.graph(self.home(id)?)?.nodes.get(&id).ok_or(INVALID)
    }

    pub(crate) fn node_mut(&mut self, id: Id) -> Result<&mut Node, CUresult> {
        let home = self.home(id)?;
        self.graph_mut(home)?.nodes.get_mut(&id).ok_or(INVALID)
    }

    /// Checks that a node that depends on `after` can be added to `graph`.
    pub(crate) fn can_add(&self, graph: Id, after: &[Id]) -> Result<(), CUresult> {
        self.graph(graph)?.only_known(after)
    }

    /// Adds a node that depends on `after` to the graph.
    pub(crate) fn add(&mut self, graph: Id, after: &[Id], kind: Kind) -> Result<Id, CUresult> {
        self.can_add(graph, after)?;
        let id = self.fresh();
        let node = Node { kind, after: after.to_vec(), source: None };
        self.graph_mut(graph)?.nodes.insert(id, node);
        self.homes.insert(id, graph);
        Ok(id)
    }

    /// Adds all edges or none.
    pub(crate) fn link(&mut self, graph: Id, edges: &[(Id, Id)]) -> Result<(), CUresult> {
        let g = self.graph_mut(graph)?;
        let mut seen: HashSet<(Id, Id)> = g.edges().into_iter().collect();
        for (from, to) in edges {
            let known = g.nodes.contains_key(from) && g.nodes.contains_key(to);
            if !known || from == to || !seen.insert((*from, *to)) {
                return Err(INVALID);
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
    pub(crate) fn unlink(&mut self, graph: Id, edges: &[(Id, Id)]) -> Result<(), CUresult> {
        let g = self.graph_mut(graph)?;
        if g.has_memory() && !edges.is_empty() {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let mut there: HashSet<(Id, Id)> = g.edges().into_iter().collect();
        if !edges.iter().all(|e| there.remove(e)) {
            return Err(INVALID);
        }
        for (from, to) in edges {
            if let Some(n) = g.nodes.get_mut(to) {
                n.after.retain(|a| a != from);
            }
        }
        Ok(())
    }

    /// Removes a node with its edges; returns the child graphs it had.
    pub(crate) fn remove(&mut self, id: Id) -> Result<Vec<Graph>, CUresult> {
        let home = self.home(id)?;
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
        let node = g.nodes.remove(&id).ok_or(INVALID)?;
        self.homes.remove(&id);
        Ok(match node.kind {
            Kind::Child(inner) => self.destroy(inner),
            _ => Vec::new(),
        })
    }

    /// Destroys a graph with its child graphs; returns them all, to be dropped after the lock is released.
    pub(crate) fn destroy(&mut self, graph: Id) -> Vec<Graph> {
        let Some(g) = self.graphs.remove(&graph) else { return Vec::new() };
        let mut gone = Vec::new();
        for (id, n) in &g.nodes {
            self.homes.remove(id);
            if let Kind::Child(inner) = n.kind {
                gone.extend(self.destroy(inner));
            }
        }
        gone.push(g);
        gone
    }

    /// Copies a graph with its child graphs.
    pub(crate) fn copy(&mut self, graph: Id, embedded: bool) -> Result<Id, CUresult> {
        let g = self.graph(graph)?;
        if g.has_memory() {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let objects = g.objects.duplicate();
        let nodes: Vec<(Id, Kind, Vec<Id>)> =
            g.nodes.iter().map(|(i, n)| (*i, n.kind.clone(), n.after.clone())).collect();
        let copy = self.fresh();
        self.graphs.insert(copy, Graph { embedded, objects, ..Graph::default() });
        let mut now: HashMap<Id, Id> = HashMap::new();
        for (old, mut kind, _) in nodes.iter().map(|(i, k, a)| (*i, k.clone(), a)) {
            if let Kind::Child(inner) = kind {
                kind = Kind::Child(self.copy(inner, true)?);
            }
            let id = self.fresh();
            now.insert(old, id);
            self.homes.insert(id, copy);
            let node = Node { kind, after: Vec::new(), source: Some(old) };
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
    pub(crate) fn free_span(&self, graph: Id, after: &[Id], device: i32, bytes: u64) -> Option<Arc<Span>> {
        let g = self.graph(graph).ok()?;
        let mut before = HashSet::new();
        let mut todo = after.to_vec();
        while let Some(id) = todo.pop() {
            if before.insert(id) {
                todo.extend(&g.nodes.get(&id)?.after);
            }
        }
        let freed: Vec<&Arc<Region>> = before
            .iter()
            .filter_map(|id| if let Kind::Free(r) = &g.nodes.get(id)?.kind { Some(r) } else { None })
            .collect();
        let mut fit: Vec<&Arc<Region>> = freed
            .iter()
            .copied()
            .filter(|r| r.graph == graph && r.span.device == device && r.span.bytes >= bytes)
            .filter(|r| {
                let here = |n: &Node| matches!(&n.kind, Kind::Alloc(a) if Arc::ptr_eq(&a.region.span, &r.span));
                let users = g.nodes.values().filter(|n| here(n)).count();
                users == freed.iter().filter(|f| Arc::ptr_eq(&f.span, &r.span)).count()
            })
            .collect();
        fit.sort_by_key(|r| (r.span.bytes, r.span.at));
        fit.first().map(|r| r.span.clone())
    }

    /// The node of a clone that was copied from `original`.
    pub(crate) fn in_clone(&self, original: Id, clone: Id) -> Result<Id, CUresult> {
        let found = self.graph(clone)?.nodes.iter().find(|(_, n)| n.source == Some(original));
        found.map(|(id, _)| *id).ok_or(INVALID)
    }
}
