//! The memory of allocation nodes: addresses that are fixed when the node is made, and a pool per device behind
//! them.
//!
//! A *span* is a range of addresses; a *region* is the memory that one allocation node returns. Two regions of
//! one graph share a span if the edges order the free of the first before the allocation of the second.
//!
//! Physical memory comes from the pool (`pool_core`) when an executable graph is uploaded or launched, in two
//! blocks. The first is for all regions that the graph itself frees; their lifetimes decide its size. It returns
//! to the pool at the end of the launch, in stream order. The second is for regions that outlive the launch; it
//! returns to the pool when the last of them is freed. The pool keeps its chunks until it is trimmed.
//!
//! The content is at the span and not in the pool's memory. So two regions that share physical memory do not see
//! each other's bytes. A region's address stays usable while its span lives, where a real device would fault
//! after the free.

use super::graph_tables;
use crate::driver::{self, SimulatedDriver};
use crate::objects::GraphId;
use crate::pool_core::{FreeMark, FreeSource, FreeTicket, PoolCore};
use parking_lot::Mutex;
use shim_sys::cuda::CUresult;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use vgpu_sim::engine::{DeviceEngine, StreamId};

/// A reserved range of device addresses for graph memory; dropping it releases the range.
pub(crate) struct AddressSpan {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) device: i32,
}

impl Drop for AddressSpan {
    fn drop(&mut self) {
        if let Some(d) = driver::current() {
            graph_tables().memory.with_regions(|r| r.remove(&self.at));
            d.memory.close_span(self.at);
        }
    }
}

/// The memory that an allocation node returns.
pub(crate) struct GraphRegion {
    pub(crate) span: Arc<AddressSpan>,
    pub(crate) bytes: u64,
    /// The graph with the node that allocates this region.
    pub(crate) graph: GraphId,
    state: Mutex<RegionState>,
}

#[derive(Default)]
struct RegionState {
    /// True if a node of the region's own graph frees it.
    freed_inside: bool,
    /// Other graphs with a node that frees the region.
    freed_by: HashSet<GraphId>,
    /// The block behind the region while it is allocated, for a region that outlives the launch.
    holding: Option<Arc<RegionBlock>>,
}

impl GraphRegion {
    /// True if an enqueued launch allocated the region and no free was enqueued.
    pub(crate) fn is_live(&self) -> bool {
        self.state.lock().holding.is_some()
    }

    /// Registers that a node of `graph` frees it. Allowed: one such node in its own graph, or one in each of several
    /// other graphs, but not both.
    pub(crate) fn claim_free(&self, graph: GraphId) -> Result<(), CUresult> {
        let mut s = self.state.lock();
        let own = graph == self.graph;
        let free = !s.freed_inside && if own { s.freed_by.is_empty() } else { s.freed_by.insert(graph) };
        s.freed_inside |= own && free;
        if free { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// Notes that a launch allocates the region, backed by `holding`.
    pub(crate) fn begin_region(&self, holding: &Arc<RegionBlock>) {
        self.state.lock().holding = Some(holding.clone());
    }

    /// Frees the region in the order of a stream. False: it was not allocated.
    pub(crate) fn free_region(&self, driver: &'static SimulatedDriver, line: &DeviceStream) -> bool {
        let Some(h) = self.state.lock().holding.take() else { return false };
        if h.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            graph_tables().memory.give_block(driver, h.device, h.at, line);
        }
        true
    }
}

/// The block behind the regions of one executable graph that outlive its launch.
pub(crate) struct RegionBlock {
    device: i32,
    at: u64,
    left: AtomicUsize,
}

impl RegionBlock {
    /// The block at `at`, which is returned after `regions` regions are freed.
    pub(crate) fn new(device: i32, at: u64, regions: usize) -> Arc<RegionBlock> {
        Arc::new(RegionBlock { device, at, left: AtomicUsize::new(regions) })
    }
}

/// A stream and its device.
#[derive(Clone)]
pub(crate) struct DeviceStream {
    /// CUDA ordinal of the device.
    pub(crate) device: i32,
    pub(crate) engine: Arc<DeviceEngine>,
    pub(crate) stream: StreamId,
}

impl DeviceStream {
    /// Makes the stream wait for an event of any device.
    pub(crate) fn wait(&self, mark: FreeMark, driver: &'static SimulatedDriver) {
        if mark.device == self.device {
            self.engine.wait_event(self.stream, mark.event);
        } else if let Ok(other) = driver.device_of_ordinal(mark.device) {
            let other = other.engine.clone();
            self.engine.enqueue_gate(self.stream, move || other.event_done(mark.event));
        }
    }

    /// Records a new event in the stream.
    pub(crate) fn record_mark(&self) -> FreeMark {
        let event = self.engine.open_event(false);
        self.engine.record_event(self.stream, event);
        FreeMark { device: self.device, event }
    }
}

/// Memory of a device's pool, bytes now and at most.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct GraphPoolNumbers {
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
}

#[derive(Default)]
struct GraphPool {
    core: PoolCore,
    /// The last block of each part of an executable graph, by the graph's number and the part's: mapped for it.
    mapped: HashMap<(u64, u8), (u64, u64)>,
    /// Blocks in use, by address, with their lengths.
    taken: BTreeMap<u64, u64>,
    /// Pending frees in streams of this device, to be queried.
    late: Vec<(FreeTicket, FreeMark)>,
    /// Pending frees in streams of other devices, whose stream ids mean nothing to the core.
    abroad: Vec<(u64, FreeMark)>,
    used_high: u64,
}

impl GraphPool {
    /// Completes the pending frees whose events are done: their streams have reached them, so the blocks can be reused.
    fn end_passed_frees(&mut self, driver: &'static SimulatedDriver) {
        let passed = |m: &FreeMark| {
            let Ok(d) = driver.device_of_ordinal(m.device) else { return true };
            let done = d.engine.event_done(m.event);
            if done {
                d.engine.close_event(m.event);
            }
            done
        };
        let core = &mut self.core;
        self.late.retain(|(ticket, mark)| {
            let done = passed(mark);
            if done {
                core.finish_free(*ticket);
            }
            !done
        });
        self.abroad.retain(|(at, mark)| {
            let done = passed(mark);
            if done {
                core.free_block(*at);
            }
            !done
        });
    }

    /// Bytes that are mapped for an executable graph or in use.
    fn used_bytes(&self) -> u64 {
        let mut all: Vec<(u64, u64)> =
            self.mapped.values().copied().chain(self.taken.iter().map(|(a, l)| (*a, *l))).collect();
        all.sort_unstable();
        let (mut sum, mut end) = (0, 0);
        for (at, len) in all {
            let from = at.max(end);
            sum += (at + len).saturating_sub(from);
            end = end.max(at + len);
        }
        sum
    }

    fn grow_pool(&mut self, driver: &'static SimulatedDriver, device: i32, len: u64) -> bool {
        let chunk = driver.memory.open_chunk(device, len);
        chunk.inspect(|at| self.core.add_chunk(*at, len)).is_ok()
    }

    /// Returns unused chunks to the device.
    fn trim_chunks(&mut self, driver: &'static SimulatedDriver, device: i32) {
        self.end_passed_frees(driver);
        for (at, len) in self.core.take_surplus(0, 0) {
            self.mapped.retain(|_, (m, _)| *m < at || *m >= at + len);
            driver.memory.close_chunk(device, at, len);
        }
    }

    /// Takes a block for work in `line`. Sources in this order: blocks that the stream itself freed, free blocks,
    /// more memory, blocks that other streams will free. For the last the stream waits.
    fn take_block(
        &mut self,
        driver: &'static SimulatedDriver,
        device: i32,
        bytes: u64,
        line: &DeviceStream,
    ) -> Result<u64, CUresult> {
        let own = if line.device == device { FreeSource::Stream(line.stream) } else { FreeSource::Nobody };
        let none = CUresult::OUT_OF_MEMORY;
        self.end_passed_frees(driver);
        if let Some((at, _)) = self.core.take_block(bytes, own) {
            return Ok(at);
        }
        let (usual, least) = self.core.growth_for(bytes).ok_or(none)?;
        if self.grow_pool(driver, device, usual) || self.grow_pool(driver, device, least) {
            return self.core.take_block(bytes, own).map(|(at, _)| at).ok_or(none);
        }
        if let Some((at, mark)) = self.core.take_block(bytes, FreeSource::AnyMarked) {
            if let Some(mark) = mark {
                line.wait(mark, driver);
            }
            return Ok(at);
        }
        self.trim_chunks(driver, device);
        if self.grow_pool(driver, device, least) {
            return self.core.take_block(bytes, own).map(|(at, _)| at).ok_or(none);
        }
        Err(none)
    }
}

/// The graph memory of this process.
#[derive(Default)]
pub(crate) struct GraphMemory {
    pools: Mutex<BTreeMap<i32, GraphPool>>,
    regions: Mutex<BTreeMap<u64, Vec<Weak<GraphRegion>>>>,
}

impl GraphMemory {
    fn with_regions<R>(&self, f: impl FnOnce(&mut BTreeMap<u64, Vec<Weak<GraphRegion>>>) -> R) -> R {
        f(&mut self.regions.lock())
    }

    /// All regions that start at `at`.
    pub(crate) fn regions_at(&self, at: u64) -> Vec<Arc<GraphRegion>> {
        self.with_regions(|r| r.get(&at).map(|all| all.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default())
    }

    /// Makes a region, in `span` if there is one.
    pub(crate) fn new_region(
        &self,
        driver: &'static SimulatedDriver,
        device: i32,
        bytes: u64,
        graph: GraphId,
        span: Option<Arc<AddressSpan>>,
    ) -> Result<Arc<GraphRegion>, CUresult> {
        let span = match span {
            Some(s) => s,
            None => Arc::new(AddressSpan { at: driver.memory.open_span(device, bytes)?, bytes, device }),
        };
        let region = Arc::new(GraphRegion { span, bytes, graph, state: Mutex::default() });
        self.with_regions(|r| r.entry(region.span.at).or_default().push(Arc::downgrade(&region)));
        Ok(region)
    }

    /// The region at `at` that a node of `graph` may free.
    pub(crate) fn claim_region(&self, at: u64, graph: GraphId) -> Result<Arc<GraphRegion>, CUresult> {
        // Of several regions in one span all but the last are already freed in their graph.
        let region = self.regions_at(at).pop().ok_or(CUresult::INVALID_VALUE)?;
        region.claim_free(graph)?;
        Ok(region)
    }

    /// Frees memory at `at` that a graph left allocated, in the order of `line`. `None`: no graph memory starts
    /// there.
    pub(crate) fn free(
        &self,
        driver: &'static SimulatedDriver,
        at: u64,
        line: &DeviceStream,
    ) -> Option<Result<(), CUresult>> {
        let found = self.regions_at(at);
        let freed = found.iter().any(|r| r.free_region(driver, line));
        (!found.is_empty()).then_some(if freed { Ok(()) } else { Err(CUresult::INVALID_VALUE) })
    }

    /// Takes a block for a part of an executable graph.
    pub(crate) fn take_for_graph(
        &self,
        driver: &'static SimulatedDriver,
        device: i32,
        bytes: u64,
        part: (u64, u8),
        line: &DeviceStream,
    ) -> Result<u64, CUresult> {
        let mut pools = self.pools.lock();
        let pool = pools.entry(device).or_default();
        let at = pool.take_block(driver, device, bytes, line)?;
        pool.taken.insert(at, bytes);
        pool.mapped.insert(part, (at, bytes));
        pool.used_high = pool.used_high.max(pool.used_bytes());
        Ok(at)
    }

    /// Returns a block in the order of `line`.
    pub(crate) fn give_block(&self, driver: &'static SimulatedDriver, device: i32, at: u64, line: &DeviceStream) {
        let mut pools = self.pools.lock();
        let Some(pool) = pools.get_mut(&device) else { return };
        if pool.taken.remove(&at).is_none() {
            return;
        }
        let mark = line.record_mark();
        if line.device != device {
            pool.abroad.push((at, mark));
        } else if let Some(ticket) = pool.core.give_late(at, line.stream) {
            pool.core.set_mark(ticket, mark);
            pool.late.push((ticket, mark));
        }
        pool.end_passed_frees(driver);
    }

    /// Forgets the mappings of an executable graph that ended.
    pub(crate) fn forget_executable(&self, exec: u64) {
        for pool in self.pools.lock().values_mut() {
            pool.mapped.retain(|(number, _), _| *number != exec);
        }
    }

    /// Reserved and used bytes of the device's pool for graph memory.
    pub(crate) fn pool_numbers(&self, device: i32) -> GraphPoolNumbers {
        let pools = self.pools.lock();
        let Some(pool) = pools.get(&device) else { return GraphPoolNumbers::default() };
        let n = pool.core.pool_numbers();
        GraphPoolNumbers {
            used: pool.used_bytes(),
            used_high: pool.used_high,
            reserved: n.reserved,
            reserved_high: n.reserved_high,
        }
    }

    /// Resets a highest value to the present one.
    pub(crate) fn reset_high(&self, device: i32, reserved: bool) {
        let mut pools = self.pools.lock();
        let Some(pool) = pools.get_mut(&device) else { return };
        if reserved {
            pool.core.reset_reserved_high();
        } else {
            pool.used_high = pool.used_bytes();
        }
    }

    /// Returns memory that neither an outstanding launch nor an allocation uses.
    pub(crate) fn trim_device(&self, driver: &'static SimulatedDriver, device: i32) -> Result<(), CUresult> {
        driver.device_of_ordinal(device)?;
        if let Some(pool) = self.pools.lock().get_mut(&device) {
            pool.trim_chunks(driver, device);
        }
        Ok(())
    }

    /// Frees all graph memory of a device whose last context ended with its work done.
    pub(crate) fn close(&self, driver: &'static SimulatedDriver, device: i32) {
        let all: Vec<Arc<GraphRegion>> =
            self.with_regions(|r| r.values().flatten().filter_map(Weak::upgrade).collect());
        // Outside the table's lock, because dropping the last reference removes the region from the table.
        for r in all.iter().filter(|r| r.span.device == device) {
            r.state.lock().holding = None;
        }
        let Some(pool) = self.pools.lock().remove(&device) else { return };
        for (at, len) in pool.core.all_chunks() {
            driver.memory.close_chunk(device, at, len);
        }
    }
}
