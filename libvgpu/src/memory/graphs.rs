//! Executable graphs that allocate: how much memory each may take, so that it can be reserved before a launch.
//!
//! The allocations of a graph's nodes, including child graphs, are added up when the graph is instantiated or
//! updated. Allocations to which the driver gave the same addresses share memory, because the graph's order runs one
//! after the other. Memory that the graph frees itself and memory that outlives a launch are counted separately,
//! because the driver backs them separately. Building a graph takes no memory. `pools` measures graph memory as a
//! pool without a handle.

use crate::device::table;
use crate::driver::library::DriverCall;
use crate::driver::own;
use crate::driver::streams::StreamId;
use crate::ffi::lock::Lock;
use crate::ffi::sorted_map::SortedMap;
use crate::memory::pool_entry::GraphBacking;
use crate::memory::pools;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use shim_sys::cuda::*;
use vgpu_core::memory::charging;

// Node kinds: `CUgraphNodeType`.
const CHILD_NODE: u32 = 4;
const ALLOCATION_NODE: u32 = 10;
const FREE_NODE: u32 = 11;
/// Maximum depth of child graphs. The driver allows no cycles; this stops the walk in any case.
const MAX_GRAPH_DEPTH: u32 = 32;

/// The memory that a graph may take.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct GraphNeeds {
    all: Vec<DeviceNeed>,
}

/// The needs on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DeviceNeed {
    device: u8,
    /// Bytes that the graph frees itself, and bytes that outlive a launch.
    parts: [u64; 2],
    /// The memory backing of its last launch.
    backing: Option<GraphBacking>,
}

/// The allocations and frees found in a graph's nodes.
#[derive(Default)]
struct GraphNodes {
    /// Allocations in the nodes: device, address, bytes.
    allocations: Vec<(u8, u64, u64)>,
    /// Addresses that nodes free.
    freed: Vec<u64>,
}

impl GraphNodes {
    fn to_needs(&self) -> GraphNeeds {
        let mut devices: Vec<u8> = Vec::new();
        for one in &self.allocations {
            if !devices.contains(&one.0) {
                devices.push(one.0);
            }
        }
        let of = |device: u8, passing: bool| {
            let chosen =
                self.allocations.iter().filter(|one| one.0 == device && self.freed.contains(&one.1) == passing);
            bytes_covered(chosen.map(|one| (one.1, one.2)))
        };
        let need = |device: u8| DeviceNeed { device, parts: [of(device, true), of(device, false)], backing: None };
        GraphNeeds { all: devices.into_iter().map(need).collect() }
    }
}

/// Bytes in the union of the ranges.
fn bytes_covered(found: impl Iterator<Item = (u64, u64)>) -> u64 {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for range in found {
        ranges.insert(ranges.partition_point(|other| *other < range), range);
    }
    let (mut sum, mut end) = (0u64, 0u64);
    for (at, bytes) in ranges {
        let next = at.saturating_add(bytes);
        sum = sum.saturating_add(next.saturating_sub(at.max(end)));
        end = end.max(next);
    }
    sum
}

impl GraphNeeds {
    /// Whether the graph takes no memory.
    pub fn is_nothing(&self) -> bool {
        self.all.is_empty()
    }
}

static EXECUTABLE_GRAPHS: Lock<SortedMap<usize, GraphNeeds>> = Lock::new(SortedMap::new());
/// Number of executable graphs that allocate.
static ALLOCATING_GRAPHS: AtomicUsize = AtomicUsize::new(0);

/// Adds up the allocations of a graph's nodes.
pub fn needs_of(graph: CUgraph) -> GraphNeeds {
    let mut nodes = GraphNodes::default();
    walk_graph(graph, MAX_GRAPH_DEPTH, &mut nodes);
    nodes.to_needs()
}

fn walk_graph(graph: CUgraph, depth: u32, found: &mut GraphNodes) -> Option<()> {
    let (list, kind_of) = (own::cuGraphGetNodes()?, own::cuGraphNodeGetType()?);
    let mut count = 0;
    // SAFETY: here and below the program's graph, or a child that the driver has just named; pointers are to locals
    // and to a buffer of the given length.
    if depth == 0 || !unsafe { list(graph, core::ptr::null_mut(), &raw mut count) }.ok() {
        return None;
    }
    let mut nodes = vec![CUgraphNode(core::ptr::null_mut()); count];
    // SAFETY: as above.
    if count == 0 || !unsafe { list(graph, nodes.as_mut_ptr(), &raw mut count) }.ok() {
        return None;
    }
    for &node in nodes.iter().take(count) {
        let mut kind = 0;
        // SAFETY: as above.
        if !unsafe { kind_of(node, &raw mut kind) }.ok() {
            continue;
        }
        match kind {
            ALLOCATION_NODE => read_allocation_node(node, found),
            FREE_NODE => free(node, found),
            CHILD_NODE => child_graph(node).and_then(|child| walk_graph(child, depth - 1, found)),
            _ => None,
        };
    }
    Some(())
}

fn read_allocation_node(node: CUgraphNode, found: &mut GraphNodes) -> Option<()> {
    let mut params = core::mem::MaybeUninit::<CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
    // SAFETY: as above; the struct has only integers and pointers, for which zero is valid, and the driver fills it
    // on success.
    let params = unsafe {
        if !own::cuGraphMemAllocNodeGetParams()?(node, params.as_mut_ptr()).ok() {
            return None;
        }
        params.assume_init()
    };
    let location = params.poolProps.location;
    let device = table::by_cuda(location.id).filter(|_| location.kind == CU_MEM_LOCATION_TYPE_DEVICE)?;
    found.allocations.push((device.index, params.dptr, charging::charge_linear(params.bytesize as u64)?));
    Some(())
}

fn free(node: CUgraphNode, found: &mut GraphNodes) -> Option<()> {
    let mut address = 0;
    // SAFETY: as above.
    if unsafe { own::cuGraphMemFreeNodeGetParams()?(node, &raw mut address) }.ok() {
        found.freed.push(address);
    }
    Some(())
}

fn child_graph(node: CUgraphNode) -> Option<CUgraph> {
    let mut graph = CUgraph(core::ptr::null_mut());
    // SAFETY: as above.
    unsafe { own::cuGraphChildGraphNodeGetGraph()?(node, &raw mut graph) }.ok().then_some(graph)
}

/// Records the needs of a new or updated executable graph.
pub fn note_executable(exec: CUgraphExec, needs: GraphNeeds) {
    let mut all = EXECUTABLE_GRAPHS.lock();
    if needs.is_nothing() {
        all.remove(&(exec.0 as usize));
    } else {
        all.insert(exec.0 as usize, needs);
    }
    ALLOCATING_GRAPHS.store(all.len(), Release);
}

/// Removes an executable graph before it is destroyed, and returns its needs.
pub fn take_executable(exec: CUgraphExec) -> Option<GraphNeeds> {
    let mut all = EXECUTABLE_GRAPHS.lock();
    let taken = all.remove(&(exec.0 as usize));
    ALLOCATING_GRAPHS.store(all.len(), Release);
    taken
}

/// Whether any executable graph allocates memory.
///
/// # Cost
/// One load.
#[inline]
pub fn any_allocates() -> bool {
    ALLOCATING_GRAPHS.load(Acquire) > 0
}

/// Launches or uploads a graph: reserves the memory it may allocate first, and measures afterwards.
pub fn launch(exec: CUgraphExec, order: StreamId, real: DriverCall<'_>) -> CUresult {
    let needs = EXECUTABLE_GRAPHS.lock().get(&(exec.0 as usize)).cloned();
    let Some(mut needs) = needs else { return real() };
    let result = call_with_needs(&mut needs, Some(order), real);
    if result.ok()
        && let Some(noted) = EXECUTABLE_GRAPHS.lock().get_mut(&(exec.0 as usize))
    {
        noted.has_taken(&needs);
    }
    result
}

impl GraphNeeds {
    /// Records the backing after a launch with `launched`, unless the needs were changed meanwhile.
    fn has_taken(&mut self, launched: &GraphNeeds) {
        for (noted, launched) in self.all.iter_mut().zip(&launched.all) {
            if (noted.device, noted.parts) == (launched.device, launched.parts) {
                noted.backing = launched.backing;
            }
        }
    }
}

/// Makes a call that may take the memory in `needs`, in the order of a stream if that is known.
pub fn call_with_needs(needs: &mut GraphNeeds, order: Option<StreamId>, real: DriverCall<'_>) -> CUresult {
    call_with_rest(&mut needs.all, order, real)
}

fn call_with_rest(left: &mut [DeviceNeed], order: Option<StreamId>, real: DriverCall<'_>) -> CUresult {
    let Some((need, rest)) = left.split_first_mut() else { return real() };
    match table::by_index(usize::from(need.device)).and_then(pools::graph_memory) {
        Some(entry) => {
            pools::launch(&entry, need.parts, order, &mut need.backing, &mut || call_with_rest(rest, order, real))
        }
        None => call_with_rest(rest, order, real),
    }
}

/// Measures graph memory after a call that does not say whether it takes any.
pub fn measure_needs(needs: &GraphNeeds) {
    for entry in needs.all.iter().filter_map(|need| pools::graph_memory(table::by_index(usize::from(need.device))?)) {
        entry.measure_held();
    }
}

/// Clears the parent's graphs in a forked child.
pub fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { EXECUTABLE_GRAPHS.reset(SortedMap::new()) };
    ALLOCATING_GRAPHS.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_at_the_same_addresses_are_counted_once() {
        assert_eq!(bytes_covered([].into_iter()), 0);
        assert_eq!(bytes_covered([(100, 50), (100, 50), (100, 20)].into_iter()), 50);
        assert_eq!(bytes_covered([(300, 10), (100, 50), (140, 20)].into_iter()), 70);
        assert_eq!(bytes_covered([(u64::MAX - 5, 100)].into_iter()), 5, "nonsense does not overflow");
    }

    #[test]
    fn what_a_graph_frees_itself_is_counted_apart_and_by_device() {
        let nodes = GraphNodes {
            allocations: vec![(0, 4096, 512), (0, 4096, 1024), (0, 8192, 512), (1, 4096, 512)],
            freed: vec![4096],
        };
        let needs = nodes.to_needs();
        let zero = DeviceNeed { device: 0, parts: [1024, 512], backing: None };
        assert_eq!(needs.all, [zero, DeviceNeed { device: 1, parts: [512, 0], backing: None }]);
        assert!(GraphNodes::default().to_needs().is_nothing());
    }
}
