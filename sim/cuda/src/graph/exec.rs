//! Executable graphs: a copy of a graph in an order that its edges allow, with its memory needs. Instantiation,
//! changes, comparison.
//!
//! Not here: launches (`run`).

use super::graph_tables;
use super::memory;
use super::memory::GraphRegion;
use super::node::{KernelNode, NodeKind};
use super::object::HeldObjects;
use super::world::GraphWorld;
use crate::driver::SimulatedDriver;
use crate::objects::{GraphId, object_handle};
use crate::pool_core::{FreeMark, PoolCore};
use parking_lot::Mutex;
use shim_sys::cuda::CUresult;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Instantiation flag: a launch first frees the memory that the previous launch left allocated.
pub(crate) const AUTO_FREE: u64 = 1;
/// Instantiation flag: upload at once.
pub(crate) const UPLOAD_FLAG: u64 = 2;
/// Instantiation flag: for launches from the device.
pub(crate) const DEVICE_LAUNCH: u64 = 4;
/// Instantiation flag: priorities of nodes have effect.
pub(crate) const USE_NODE_PRIORITY: u64 = 8;

/// A node of an executable graph.
pub(crate) struct ExecStep {
    /// The node from which this step was made.
    source: GraphId,
    pub(crate) kind: NodeKind,
    after: Vec<usize>,
    pub(crate) enabled: bool,
    /// Steps of the child graph, for a child node.
    pub(crate) child: Option<ExecBody>,
}

/// The nodes of an executable graph.
#[derive(Default)]
pub(crate) struct ExecBody {
    steps: Vec<ExecStep>,
    /// Indices of steps, in an order that the edges allow.
    order: Vec<usize>,
}

/// The memory an executable graph needs on one device.
pub(crate) struct MemoryNeed {
    pub(crate) device: i32,
    /// Bytes for regions that the graph itself frees.
    pub(crate) passing: u64,
    /// Bytes for regions that outlive a launch.
    pub(crate) lasting: u64,
    /// The regions (memory of allocation nodes) that outlive a launch.
    pub(crate) outlive: Vec<Arc<GraphRegion>>,
    /// The regions that the graph itself frees.
    pub(crate) pass: Vec<Arc<GraphRegion>>,
}

/// The changeable part of an executable graph.
pub(crate) struct ExecState {
    pub(crate) body: ExecBody,
    pub(crate) needs: Vec<MemoryNeed>,
    /// Event at the end of the last launch or upload.
    pub(crate) last: Option<FreeMark>,
    pub(crate) objects: HeldObjects,
}

/// An executable graph (`CUgraphExec`).
pub(crate) struct ExecutableGraph {
    pub(crate) number: u64,
    pub(crate) flags: u64,
    graph: GraphId,
    pub(crate) inner: Mutex<ExecState>,
}

/// Why a graph cannot be instantiated.
pub(crate) struct InstantiationError {
    pub(crate) code: CUresult,
    pub(crate) node: GraphId,
    /// The driver's number for the reason: 1 an error, 2 the structure, 3 a node that does not support it.
    pub(crate) why: u32,
}

impl From<CUresult> for InstantiationError {
    fn from(code: CUresult) -> InstantiationError {
        InstantiationError { code, node: 0, why: 1 }
    }
}

impl ExecBody {
    /// Copies the present state of a graph.
    pub(crate) fn read(world: &GraphWorld, graph: GraphId) -> Result<ExecBody, InstantiationError> {
        let g = world.graph_by_id(graph)?;
        let place: HashMap<GraphId, usize> = g.nodes.keys().enumerate().map(|(i, id)| (*id, i)).collect();
        let mut steps = Vec::with_capacity(g.nodes.len());
        for (id, n) in &g.nodes {
            let child = match n.kind {
                NodeKind::Child(inner) => Some(ExecBody::read(world, inner)?),
                _ => None,
            };
            let after = n.after.iter().filter_map(|a| place.get(a).copied()).collect();
            steps.push(ExecStep { source: *id, kind: n.kind.clone(), after, enabled: true, child });
        }
        let order = topological_order(&steps).map_err(|stuck| InstantiationError {
            code: CUresult::INVALID_VALUE,
            node: steps[stuck].source,
            why: 2,
        })?;
        Ok(ExecBody { steps, order })
    }

    /// The steps in the order of execution.
    pub(crate) fn steps_in_order(&self) -> impl Iterator<Item = &ExecStep> {
        self.order.iter().map(|i| &self.steps[*i])
    }

    /// The step that was made from the node `source`, here or in a child graph.
    pub(crate) fn step_of_node(&mut self, source: GraphId) -> Option<&mut ExecStep> {
        if let Some(i) = self.steps.iter().position(|s| s.source == source) {
            return self.steps.get_mut(i);
        }
        self.steps.iter_mut().filter_map(|s| s.child.as_mut()).find_map(|c| c.step_of_node(source))
    }

    /// Memory that the allocation nodes need, by device. Refuses a free that does not follow its allocation.
    fn memory_needs(&self) -> Result<Vec<MemoryNeed>, InstantiationError> {
        let mut needs: BTreeMap<i32, MemoryNeed> = BTreeMap::new();
        if !self.steps.iter().any(|s| matches!(s.kind, NodeKind::Alloc(_))) {
            return Ok(Vec::new());
        }
        let before = self.ancestor_sets();
        let freed: HashMap<usize, usize> = self
            .steps
            .iter()
            .enumerate()
            .filter_map(
                |(i, s)| if let NodeKind::Free(r) = &s.kind { Some((Arc::as_ptr(r) as usize, i)) } else { None },
            )
            .collect();
        // For each region that the graph frees: address, length, and the step that frees it.
        let mut placed: BTreeMap<i32, Vec<(u64, u64, usize)>> = BTreeMap::new();
        for &i in &self.order {
            let NodeKind::Alloc(a) = &self.steps[i].kind else { continue };
            let region = &a.region;
            let device = region.span.device;
            let need = needs.entry(device).or_insert_with(|| MemoryNeed {
                device,
                passing: 0,
                lasting: 0,
                outlive: Vec::new(),
                pass: Vec::new(),
            });
            let len = PoolCore::block_bytes(region.bytes).ok_or(CUresult::OUT_OF_MEMORY)?;
            let Some(&end) = freed.get(&(Arc::as_ptr(region) as usize)) else {
                need.lasting = need.lasting.checked_add(len).ok_or(CUresult::OUT_OF_MEMORY)?;
                need.outlive.push(region.clone());
                continue;
            };
            if !before[end].contains_step(i) {
                return Err(InstantiationError { code: CUresult::INVALID_VALUE, node: self.steps[end].source, why: 2 });
            }
            need.pass.push(region.clone());
            // The lowest address that does not overlap a region that may still be live here. A region is no longer live
            // if its free precedes this allocation.
            let others = placed.entry(device).or_default();
            let mut busy: Vec<(u64, u64)> =
                others.iter().filter(|(_, _, f)| !before[i].contains_step(*f)).map(|(at, n, _)| (*at, *n)).collect();
            busy.sort_unstable();
            let at = busy.iter().fold(0, |at, (b, n)| if at + len <= *b { at } else { at.max(b + n) });
            others.push((at, len, end));
            need.passing = need.passing.max(at + len);
        }
        Ok(needs.into_values().collect())
    }

    fn ancestor_sets(&self) -> Vec<StepSet> {
        let mut all = vec![StepSet::default(); self.steps.len()];
        for &i in &self.order {
            let mut mine = StepSet::default();
            for &a in &self.steps[i].after {
                mine.join(&all[a]);
                mine.insert_step(a);
            }
            all[i] = mine;
        }
        all
    }

    /// Takes the parameters of `new`; otherwise returns the mismatch, with nodes of the new graph.
    fn update(&mut self, new: ExecBody) -> Result<(), UpdateMismatch> {
        self.compare_topology(&new)?;
        self.adopt_parameters(new);
        Ok(())
    }

    /// Checks that both have the same nodes and edges, and that only changeable parameters differ.
    fn compare_topology(&self, new: &ExecBody) -> Result<(), UpdateMismatch> {
        let wrong = |result, node, from| Err(UpdateMismatch { result, node, from });
        if self.steps.len() != new.steps.len() {
            return wrong(2, 0, 0);
        }
        for (old, new_step) in self.steps.iter().zip(&new.steps) {
            let node = new_step.source;
            if old.after.len() != new_step.after.len() {
                return wrong(2, node, 0);
            }
            if let Some(odd) = new_step.after.iter().find(|a| !old.after.contains(a)) {
                return wrong(2, node, new.steps[*odd].source);
            }
            if old.kind.kind_number() != new_step.kind.kind_number() {
                return wrong(3, node, 0);
            }
            if matches!(old.kind, NodeKind::Alloc(_) | NodeKind::Free(_)) {
                return wrong(6, node, 0);
            }
            if let (Some(a), Some(b)) = (&old.child, &new_step.child) {
                a.compare_topology(b)?;
            } else if let Err(result) = may_become(&old.kind, &new_step.kind) {
                return wrong(result, node, 0);
            }
        }
        Ok(())
    }

    fn adopt_parameters(&mut self, new: ExecBody) {
        for (old, new) in self.steps.iter_mut().zip(new.steps) {
            match (&mut old.child, new.child) {
                (Some(a), Some(b)) => a.adopt_parameters(b),
                _ => old.kind = new.kind,
            }
        }
    }
}

/// A set of step indices.
#[derive(Clone, Default)]
struct StepSet(Vec<u64>);

impl StepSet {
    fn contains_step(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w & (1 << (i % 64)) != 0)
    }

    fn insert_step(&mut self, i: usize) {
        if self.0.len() <= i / 64 {
            self.0.resize(i / 64 + 1, 0);
        }
        self.0[i / 64] |= 1 << (i % 64);
    }

    fn join(&mut self, other: &StepSet) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }
}

/// An order that the edges allow, older steps first; on an error a step in a cycle.
fn topological_order(steps: &[ExecStep]) -> Result<Vec<usize>, usize> {
    let mut missing: Vec<usize> = steps.iter().map(|s| s.after.len()).collect();
    let mut next = vec![Vec::new(); steps.len()];
    for (i, s) in steps.iter().enumerate() {
        s.after.iter().for_each(|a| next[*a].push(i));
    }
    let mut ready: BinaryHeap<Reverse<usize>> = (0..steps.len()).filter(|i| missing[*i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(steps.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for &n in &next[i] {
            missing[n] -= 1;
            if missing[n] == 0 {
                ready.push(Reverse(n));
            }
        }
    }
    missing.iter().position(|m| *m > 0).map_or(Ok(order), Err)
}

/// Why an update of an executable graph failed: the driver's number, the node, and the start of its edge.
pub(crate) struct UpdateMismatch {
    pub(crate) result: u32,
    pub(crate) node: GraphId,
    pub(crate) from: GraphId,
}

fn same_context(a: &KernelNode, b: &KernelNode) -> bool {
    Arc::ptr_eq(&a.context, &b.context)
}

/// Checks that a step may take the parameters of `new`; the error is the driver's number for the reason.
fn may_become(old: &NodeKind, new: &NodeKind) -> Result<(), u32> {
    let parameters = 5;
    let fits = match (old, new) {
        (NodeKind::Kernel(a), NodeKind::Kernel(b)) => return if same_context(a, b) { Ok(()) } else { Err(7) },
        (NodeKind::Copy(a), NodeKind::Copy(b)) => {
            let types = |c: &super::node::GraphCopy| (c.params.srcMemoryType, c.params.dstMemoryType);
            let changed = !super::node::GraphCopy::is_same_copy(a, b);
            types(a) == types(b) && Arc::ptr_eq(&a.context, &b.context) && (!changed || (a.is_line() && b.is_line()))
        }
        (NodeKind::Fill(a), NodeKind::Fill(b)) => {
            let changed = !super::node::GraphFill::is_same_fill(a, b);
            Arc::ptr_eq(&a.context, &b.context) && (!changed || (a.is_line() && b.is_line()))
        }
        _ => true,
    };
    if fits { Ok(()) } else { Err(parameters) }
}

/// Makes an executable graph from `graph`.
pub(crate) fn instantiate_graph(graph: GraphId, flags: u64) -> Result<Arc<ExecutableGraph>, InstantiationError> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut world = graph_tables().lock_world();
    let g = world.graph_by_id(graph)?;
    if g.capturing {
        return Err(CUresult::ILLEGAL_STATE.into());
    }
    if g.has_memory() && g.instances > 0 {
        return Err(CUresult::NOT_SUPPORTED.into());
    }
    let body = ExecBody::read(&world, graph)?;
    let needs = body.memory_needs()?;
    let g = world.graph_mut(graph)?;
    g.instances += 1;
    let inner = ExecState { body, needs, last: None, objects: g.objects.duplicate_references() };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let exec = Arc::new(ExecutableGraph { number, flags, graph, inner: Mutex::new(inner) });
    graph_tables().execs.add(exec.clone());
    Ok(exec)
}

/// Destroys an executable graph; memory that it left allocated stays.
pub(crate) fn destroy_executable(
    driver: &'static SimulatedDriver,
    exec: &Arc<ExecutableGraph>,
) -> Result<(), CUresult> {
    graph_tables().execs.remove(object_handle(exec)).ok_or(CUresult::INVALID_VALUE)?;
    if let Ok(g) = graph_tables().lock_world().graph_mut(exec.graph) {
        g.instances -= 1;
    }
    graph_tables().memory.forget_executable(exec.number);
    let mut inner = exec.inner.lock();
    let objects = std::mem::take(&mut inner.objects);
    let Some(last) = inner.last.take() else { return Ok(()) };
    drop(inner);
    let engine = &driver.device_of_ordinal(last.device)?.engine;
    // The user objects of a destroyed graph live until its outstanding launch is done.
    if !objects.is_empty() && !engine.event_done(last.event) {
        let group = *graph_tables().keepers.lock().entry(last.device).or_insert_with(|| engine.open_group());
        let stream = engine.open_stream(group, false);
        let line = memory::DeviceStream { device: last.device, engine: engine.clone(), stream };
        line.wait(last, driver);
        engine.enqueue_host(stream, move || drop(objects));
        engine.close_stream(stream);
    }
    engine.close_event(last.event);
    Ok(())
}

impl ExecutableGraph {
    /// Replaces the work of the step that was made from `source` by `new`, of the same kind.
    pub(crate) fn set(&self, source: GraphId, mut new: NodeKind) -> Result<(), CUresult> {
        let mut inner = self.inner.lock();
        let step = inner.body.step_of_node(source).ok_or(CUresult::INVALID_VALUE)?;
        if step.kind.kind_number() != new.kind_number() || may_become(&step.kind, &new).is_err() {
            return Err(CUresult::INVALID_VALUE);
        }
        // Attributes are not parameters, so they stay.
        if let (NodeKind::Kernel(old), NodeKind::Kernel(new)) = (&step.kind, &mut new) {
            new.attributes.clone_from(&old.attributes);
        }
        step.kind = new;
        Ok(())
    }

    /// Gives the steps of a child node the parameters of another graph of the same shape.
    pub(crate) fn set_child(&self, source: GraphId, new: ExecBody) -> Result<(), CUresult> {
        let mut inner = self.inner.lock();
        let child = inner.body.step_of_node(source).and_then(|s| s.child.as_mut()).ok_or(CUresult::INVALID_VALUE)?;
        child.update(new).map_err(|_| CUresult::INVALID_VALUE)
    }

    /// Takes the parameters of a graph of the same shape.
    pub(crate) fn update(&self, new: ExecBody) -> Result<(), UpdateMismatch> {
        self.inner.lock().body.update(new)
    }

    /// Returns whether a step is enabled; with `to`, first enables or disables it.
    pub(crate) fn set_enabled(&self, source: GraphId, to: Option<bool>) -> Result<bool, CUresult> {
        let mut inner = self.inner.lock();
        let step = inner.body.step_of_node(source).filter(|s| s.kind.can_rest()).ok_or(CUresult::INVALID_VALUE)?;
        step.enabled = to.unwrap_or(step.enabled);
        Ok(step.enabled)
    }
}
