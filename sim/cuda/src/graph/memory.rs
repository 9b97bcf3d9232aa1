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

use super::Id;
use crate::driver::{self, Driver, hold};
use crate::pool_core::{Core, From, Mark, Ticket};
use parking_lot::Mutex;
use shim_sys::cuda::CUresult;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use vgpu_sim::engine::{Engine, StreamId};

/// A reserved range of device addresses for graph memory; dropping it releases the range.
pub(crate) struct Span {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) device: i32,
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(d) = driver::current() {
            d.graphs.memory.regions(|r| r.remove(&self.at));
            d.memory.close_span(self.at);
        }
    }
}

/// The memory that an allocation node returns.
pub(crate) struct Region {
    pub(crate) span: Arc<Span>,
    pub(crate) bytes: u64,
    /// The graph with the node that allocates this region.
    pub(crate) graph: Id,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// True if a node of the region's own graph frees it.
    freed_inside: bool,
    /// Other graphs with a node that frees the region.
    freed_by: HashSet<Id>,
    /// The block behind the region while it is allocated, for a region that outlives the launch.
    holding: Option<Arc<Holding>>,
}

impl Region {
    /// True if an enqueued launch allocated the region and no free was enqueued.
    pub(crate) fn is_live(&self) -> bool {
        hold(&self.state).holding.is_some()
    }

    /// Registers that a node of `graph` frees it. Allowed: one such node in its own graph, or one in each of several
    /// other graphs, but not both.
    pub(crate) fn claim(&self, graph: Id) -> Result<(), CUresult> {
        let mut s = hold(&self.state);
        let own = graph == self.graph;
        let free = !s.freed_inside && if own { s.freed_by.is_empty() } else { s.freed_by.insert(graph) };
        s.freed_inside |= own && free;
        if free { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// Notes that a launch allocates the region, backed by `holding`.
    pub(crate) fn begin(&self, holding: &Arc<Holding>) {
        hold(&self.state).holding = Some(holding.clone());
    }

    /// Frees the region in the order of a stream. False: it was not allocated.
    pub(crate) fn end(&self, driver: &'static Driver, line: &Line) -> bool {
        let Some(h) = hold(&self.state).holding.take() else { return false };
        if h.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            driver.graphs.memory.give(driver, h.device, h.at, line);
        }
        true
    }
}

/// The block behind the regions of one executable graph that outlive its launch.
pub(crate) struct Holding {
    device: i32,
    at: u64,
    left: AtomicUsize,
}

impl Holding {
    /// The block at `at`, which is returned after `regions` regions are freed.
    pub(crate) fn new(device: i32, at: u64, regions: usize) -> Arc<Holding> {
        Arc::new(Holding { device, at, left: AtomicUsize::new(regions) })
    }
}

/// A stream and its device.
#[derive(Clone)]
pub(crate) struct Line {
    /// CUDA ordinal of the device.
    pub(crate) device: i32,
    pub(crate) engine: Arc<Engine>,
    pub(crate) stream: StreamId,
}

impl Line {
    /// Makes the stream wait for an event of any device.
    pub(crate) fn wait(&self, mark: Mark, driver: &'static Driver) {
        if mark.device == self.device {
            self.engine.wait_event(self.stream, mark.event);
        } else if let Ok(other) = driver.device(mark.device) {
            let other = other.engine.clone();
            self.engine.gate(self.stream, move || other.event_done(mark.event));
        }
    }

    /// Records a new event in the stream.
    pub(crate) fn mark(&self) -> Mark {
        let event = self.engine.open_event(false);
        self.engine.record(self.stream, event);
        Mark { device: self.device, event }
    }
}

/// Memory of a device's pool, bytes now and at most.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
}

#[derive(Default)]
struct Pool {
    core: Core,
    /// The last block of each part of an executable graph, by the graph's number and the part's: mapped for it.
    mapped: HashMap<(u64, u8), (u64, u64)>,
    /// Blocks in use, by address, with their lengths.
    taken: BTreeMap<u64, u64>,
    /// Pending frees in streams of this device, to be queried.
    late: Vec<(Ticket, Mark)>,
    /// Pending frees in streams of other devices, whose stream ids mean nothing to the core.
    abroad: Vec<(u64, Mark)>,
    used_high: u64,
}

impl Pool {
    /// Ends the frees that the device has passed.
    fn settle(&mut self, driver: &'static Driver) {
        let passed = |m: &Mark| {
            let Ok(d) = driver.device(m.device) else { return true };
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
                core.end(*ticket);
            }
            !done
        });
        self.abroad.retain(|(at, mark)| {
            let done = passed(mark);
            if done {
                core.give(*at);
            }
            !done
        });
    }

    /// Bytes that are mapped for an executable graph or in use.
    fn used(&self) -> u64 {
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

    fn grow(&mut self, driver: &'static Driver, device: i32, len: u64) -> bool {
        let chunk = driver.memory.open_chunk(driver, device, len);
        chunk.inspect(|at| self.core.grow(*at, len)).is_ok()
    }

    /// Returns unused chunks to the device.
    fn trim(&mut self, driver: &'static Driver, device: i32) {
        self.settle(driver);
        for (at, len) in self.core.surplus(0, 0) {
            self.mapped.retain(|_, (m, _)| *m < at || *m >= at + len);
            driver.memory.close_chunk(driver, device, at, len);
        }
    }

    /// Takes a block for work in `line`. Sources in this order: blocks that the stream itself freed, free blocks,
    /// more memory, blocks that other streams will free. For the last the stream waits.
    fn take(&mut self, driver: &'static Driver, device: i32, bytes: u64, line: &Line) -> Result<u64, CUresult> {
        let own = if line.device == device { From::Stream(line.stream) } else { From::Nobody };
        let none = CUresult::OUT_OF_MEMORY;
        self.settle(driver);
        if let Some((at, _)) = self.core.take(bytes, own) {
            return Ok(at);
        }
        let (usual, least) = self.core.growth(bytes).ok_or(none)?;
        if self.grow(driver, device, usual) || self.grow(driver, device, least) {
            return self.core.take(bytes, own).map(|(at, _)| at).ok_or(none);
        }
        if let Some((at, mark)) = self.core.take(bytes, From::AnyMarked) {
            if let Some(mark) = mark {
                line.wait(mark, driver);
            }
            return Ok(at);
        }
        self.trim(driver, device);
        if self.grow(driver, device, least) {
            return self.core.take(bytes, own).map(|(at, _)| at).ok_or(none);
        }
        Err(none)
    }
}

/// The graph memory of this process.
#[derive(Default)]
pub(crate) struct GraphMemory {
    pools: Mutex<BTreeMap<i32, Pool>>,
    regions: Mutex<BTreeMap<u64, Vec<Weak<Region>>>>,
}

impl GraphMemory {
    fn regions<R>(&self, f: impl FnOnce(&mut BTreeMap<u64, Vec<Weak<Region>>>) -> R) -> R {
        f(&mut hold(&self.regions))
    }

    /// All regions that start at `at`.
    pub(crate) fn at(&self, at: u64) -> Vec<Arc<Region>> {
        self.regions(|r| r.get(&at).map(|all| all.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default())
    }

    /// Makes a region, in `span` if there is one.
    pub(crate) fn region(
        &self,
        driver: &'static Driver,
        device: i32,
        bytes: u64,
        graph: Id,
        span: Option<Arc<Span>>,
    ) -> Result<Arc<Region>, CUresult> {
        let span = match span {
            Some(s) => s,
            None => Arc::new(Span { at: driver.memory.open_span(device, bytes)?, bytes, device }),
        };
        let region = Arc::new(Region { span, bytes, graph, state: Mutex::default() });
        self.regions(|r| r.entry(region.span.at).or_default().push(Arc::downgrade(&region)));
        Ok(region)
    }

    /// The region at `at` that a node of `graph` may free.
    pub(crate) fn claim(&self, at: u64, graph: Id) -> Result<Arc<Region>, CUresult> {
        // Of several regions in one span all but the last are already freed in their graph.
        let region = self.at(at).pop().ok_or(CUresult::INVALID_VALUE)?;
        region.claim(graph)?;
        Ok(region)
    }

    /// Frees memory at `at` that a graph left allocated, in the order of `line`. `None`: no graph memory starts
    /// there.
    pub(crate) fn free(&self, driver: &'static Driver, at: u64, line: &Line) -> Option<Result<(), CUresult>> {
        let found = self.at(at);
        let freed = found.iter().any(|r| r.end(driver, line));
        (!found.is_empty()).then_some(if freed { Ok(()) } else { Err(CUresult::INVALID_VALUE) })
    }

    /// Takes a block for a part of an executable graph.
    pub(crate) fn take(
        &self,
        driver: &'static Driver,
        device: i32,
        bytes: u64,
        part: (u64, u8),
        line: &Line,
    ) -> Result<u64, CUresult> {
        let mut pools = hold(&self.pools);
        let pool = pools.entry(device).or_default();
        let at = pool.take(driver, device, bytes, line)?;
        pool.taken.insert(at, bytes);
        pool.mapped.insert(part, (at, bytes));
        pool.used_high = pool.used_high.max(pool.used());
        Ok(at)
    }

    /// Returns a block in the order of `line`.
    pub(crate) fn give(&self, driver: &'static Driver, device: i32, at: u64, line: &Line) {
        let mut pools = hold(&self.pools);
        let Some(pool) = pools.get_mut(&device) else { return };
        if pool.taken.remove(&at).is_none() {
            return;
        }
        let mark = line.mark();
        if line.device != device {
            pool.abroad.push((at, mark));
        } else if let Some(ticket) = pool.core.give_late(at, line.stream) {
            pool.core.mark(ticket, mark);
            pool.late.push((ticket, mark));
        }
        pool.settle(driver);
    }

    /// Forgets the mappings of an executable graph that ended.
    pub(crate) fn forget(&self, exec: u64) {
        for pool in hold(&self.pools).values_mut() {
            pool.mapped.retain(|(number, _), _| *number != exec);
        }
    }

    /// Reserved and used bytes of the device's pool for graph memory.
    pub(crate) fn numbers(&self, device: i32) -> Numbers {
        let pools = hold(&self.pools);
        let Some(pool) = pools.get(&device) else { return Numbers::default() };
        let n = pool.core.numbers();
        Numbers { used: pool.used(), used_high: pool.used_high, reserved: n.reserved, reserved_high: n.reserved_high }
    }

    /// Resets a highest value to the present one.
    pub(crate) fn reset_high(&self, device: i32, reserved: bool) {
        let mut pools = hold(&self.pools);
        let Some(pool) = pools.get_mut(&device) else { return };
        if reserved {
            pool.core.reset_reserved_high();
        } else {
            pool.used_high = pool.used();
        }
    }

    /// Returns memory that neither an outstanding launch nor an allocation uses.
    pub(crate) fn trim(&self, driver: &'static Driver, device: i32) -> Result<(), CUresult> {
        driver.device(device)?;
        if let Some(pool) = hold(&self.pools).get_mut(&device) {
            pool.trim(driver, device);
        }
        Ok(())
    }

    /// Frees all graph memory of a device whose last context ended with its work done.
    pub(crate) fn close(&self, driver: &'static Driver, device: i32) {
        let all: Vec<Arc<Region>> = self.regions(|r| r.values().flatten().filter_map(Weak::upgrade).collect());
        // Outside the table's lock, because dropping the last reference removes the region from the table.
        for r in all.iter().filter(|r| r.span.device == device) {
            hold(&r.state).holding = None;
        }
        let Some(pool) = hold(&self.pools).remove(&device) else { return };
        for (at, len) in pool.core.chunks() {
            driver.memory.close_chunk(driver, device, at, len);
        }
    }
}
