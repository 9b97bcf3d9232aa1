//! Launches of executable graphs: first everything that can fail, then the nodes one after another in one stream.
//!
//! A node whose context is on another device runs in a stream there, and the launch's stream waits for it.

use super::exec::{AUTO_FREE, ExecBody, ExecState, ExecutableGraph};
use super::graph_tables;
use super::memory::{DeviceStream, GraphRegion, RegionBlock};
use super::node::NodeKind;
use crate::context::CudaContext;
use crate::driver::SimulatedDriver;
use crate::objects::{EventObject, object_handle};
use crate::pool_core::FreeMark;
use crate::work::copy::{self, RowMove};
use crate::work::fill;
use crate::work::kernel::KnownLaunch;
use shim_sys::cuda::CUresult;
use std::collections::HashSet;
use std::sync::Arc;
use vgpu_sim::engine;

/// The work of a node with its addresses resolved.
enum NodeWork {
    Kernel(Arc<CudaContext>, KnownLaunch),
    Copy(Arc<CudaContext>, RowMove),
    Fill(Arc<CudaContext>, fill::PreparedFill),
    Host(super::node::HostNode),
    Wait(Arc<EventObject>),
    Record(Arc<EventObject>),
    Free(Arc<GraphRegion>),
}

/// Checks that an event was not destroyed: its handle may belong to another event by now.
fn living_event(driver: &'static SimulatedDriver, e: &Arc<EventObject>) -> Result<Arc<EventObject>, CUresult> {
    driver.events.get(object_handle(e)).filter(|found| Arc::ptr_eq(found, e)).ok_or(CUresult::INVALID_HANDLE)
}

/// Resolves the work of all steps; detects objects that ended since the graph was made.
fn prepare_work(driver: &'static SimulatedDriver, body: &ExecBody, work: &mut Vec<NodeWork>) -> Result<(), CUresult> {
    // A real device faults at such an address and loses the context.
    let fault = |_| CUresult::ILLEGAL_ADDRESS;
    for step in body.steps_in_order().filter(|s| s.enabled) {
        match &step.kind {
            NodeKind::Kernel(k) => {
                work.push(NodeWork::Kernel(k.context.clone().require_living()?, k.cost.find(driver)?))
            }
            NodeKind::Copy(c) => {
                let found = copy::prepare_3d(driver, &c.params).map_err(fault)?;
                work.extend(found.map(|m| NodeWork::Copy(c.context.clone(), m)));
            }
            NodeKind::Fill(f) => {
                let p = &f.params;
                let found =
                    fill::prepare_fill(driver, p.dst, p.pitch, &f.fill_pattern(), p.width, p.height).map_err(fault)?;
                work.extend(found.map(|m| NodeWork::Fill(f.context.clone(), m)));
            }
            NodeKind::Host(h) => work.push(NodeWork::Host(h.clone())),
            NodeKind::Wait(e) => work.push(NodeWork::Wait(living_event(driver, e)?)),
            NodeKind::Record(e) => work.push(NodeWork::Record(living_event(driver, e)?)),
            NodeKind::Free(r) => work.push(NodeWork::Free(r.clone())),
            NodeKind::Child(_) => {
                if let Some(child) = &step.child {
                    prepare_work(driver, child, work)?;
                }
            }
            NodeKind::Alloc(_) | NodeKind::Empty => {}
        }
    }
    Ok(())
}

/// Runs `f` on the device of `context`: in `line` itself, or in a stream there between two waits.
fn run_on_device(
    driver: &'static SimulatedDriver,
    line: &DeviceStream,
    context: &Arc<CudaContext>,
    f: impl FnOnce(&DeviceStream),
) -> Result<(), CUresult> {
    if context.device == line.device {
        f(line);
        return Ok(());
    }
    let engine = driver.device_of_ordinal(context.device)?.engine.clone();
    let stream = engine.open_stream(context.group, false);
    let far = DeviceStream { device: context.device, engine, stream };
    let pass = |from: &DeviceStream, to: &DeviceStream| {
        let mark = from.record_mark();
        to.wait(mark, driver);
        let engine = from.engine.clone();
        // The waiting stream refers to the event until its wait is over; only then may the event be reused.
        to.engine.enqueue_host(to.stream, move || engine.close_event(mark.event));
    };
    pass(line, &far);
    f(&far);
    pass(&far, line);
    far.engine.close_stream(stream);
    Ok(())
}

fn carry_out(driver: &'static SimulatedDriver, line: &DeviceStream, work: NodeWork) -> Result<(), CUresult> {
    match work {
        NodeWork::Kernel(c, known) => run_on_device(driver, line, &c, |l| {
            known.start(&l.engine, l.stream);
        }),
        NodeWork::Copy(c, m) => {
            let time = m.copy_time(&driver.device_of_ordinal(c.device)?.profile);
            run_on_device(driver, line, &c, |l| {
                l.engine.enqueue_work(l.stream, time, m.copy_kind(), Some(move || m.run()));
            })
        }
        NodeWork::Fill(c, m) => {
            let time = m.fill_time(driver.device_of_ordinal(c.device)?);
            run_on_device(driver, line, &c, |l| {
                l.engine.enqueue_work(l.stream, time, engine::WorkKind::Copy, Some(move || m.run()));
            })
        }
        NodeWork::Host(h) => {
            line.engine.enqueue_host(line.stream, move || h.call_host());
            Ok(())
        }
        NodeWork::Wait(e) => {
            line.wait(FreeMark { device: e.context.device, event: e.id }, driver);
            Ok(())
        }
        NodeWork::Record(e) => run_on_device(driver, line, &e.context.clone(), |l| {
            l.engine.record_event(l.stream, e.id);
        }),
        NodeWork::Free(r) => {
            r.free_region(driver, line);
            Ok(())
        }
    }
}

/// Refuses a free of memory that is not allocated, and an allocation that is still live.
fn check_memory(inner: &ExecState, work: &[NodeWork], auto_free: bool) -> Result<(), CUresult> {
    let own: HashSet<*const GraphRegion> =
        inner.needs.iter().flat_map(|n| n.pass.iter().chain(&n.outlive)).map(Arc::as_ptr).collect();
    let nothing = |w: &NodeWork| matches!(w, NodeWork::Free(r) if !own.contains(&Arc::as_ptr(r)) && !r.is_live());
    let refused = (has_unfreed(inner) && !auto_free) || work.iter().any(nothing);
    if refused { Err(CUresult::INVALID_VALUE) } else { Ok(()) }
}

/// True if memory is still allocated from an earlier launch.
fn has_unfreed(inner: &ExecState) -> bool {
    inner.needs.iter().flat_map(|n| &n.outlive).any(|r| r.is_live())
}

/// The blocks of one launch that are returned at its end: device and address.
type LaunchBlocks = Vec<(i32, u64)>;

/// Takes the memory of a launch. `hold_on`: keeps the blocks for regions that outlive it; otherwise they are
/// returned too.
fn take_memory(
    driver: &'static SimulatedDriver,
    number: u64,
    inner: &ExecState,
    line: &DeviceStream,
    hold_on: bool,
) -> Result<LaunchBlocks, CUresult> {
    let memory = &graph_tables().memory;
    let mut passing = LaunchBlocks::new();
    let mut lasting = Vec::new();
    for need in &inner.needs {
        for (part, bytes) in [(0, need.passing), (1, need.lasting)].into_iter().filter(|(_, b)| *b > 0) {
            match memory.take_for_graph(driver, need.device, bytes, (number, part), line) {
                Ok(at) if part == 1 && hold_on => lasting.push((need, at)),
                Ok(at) => passing.push((need.device, at)),
                Err(code) => {
                    let taken = lasting.iter().map(|(n, at)| (n.device, *at));
                    give_back(driver, &passing.into_iter().chain(taken).collect(), line);
                    return Err(code);
                }
            }
        }
    }
    for (need, at) in lasting {
        let holding = RegionBlock::new(need.device, at, need.outlive.len());
        need.outlive.iter().for_each(|r| r.begin_region(&holding));
    }
    Ok(passing)
}

fn give_back(driver: &'static SimulatedDriver, passing: &LaunchBlocks, line: &DeviceStream) {
    for (device, at) in passing {
        graph_tables().memory.give_block(driver, *device, *at, line);
    }
}

/// Orders the stream after the last launch or upload of the same executable graph.
fn follow_last_launch(driver: &'static SimulatedDriver, inner: &mut ExecState, line: &DeviceStream) {
    if let Some(last) = inner.last {
        line.wait(last, driver);
    }
}

/// Records the stream's present end as the end of the last launch or upload.
fn close(driver: &'static SimulatedDriver, inner: &mut ExecState, line: &DeviceStream) {
    if let Some(old) = inner.last.replace(line.record_mark())
        && let Ok(device) = driver.device_of_ordinal(old.device)
    {
        if old.device == line.device {
            device.engine.close_event(old.event);
        } else {
            // A stream of another device refers to the old event until its wait is over.
            let engine = device.engine.clone();
            line.engine.enqueue_host(line.stream, move || engine.close_event(old.event));
        }
    }
}

/// Launches an executable graph in `line`, after its earlier launches.
pub(crate) fn launch(
    driver: &'static SimulatedDriver,
    exec: &ExecutableGraph,
    line: &DeviceStream,
) -> Result<(), CUresult> {
    let mut inner = exec.inner.lock();
    let mut work = Vec::new();
    prepare_work(driver, &inner.body, &mut work)?;
    let auto_free = exec.flags & AUTO_FREE != 0;
    check_memory(&inner, &work, auto_free)?;
    follow_last_launch(driver, &mut inner, line);
    for r in inner.needs.iter().flat_map(|n| &n.outlive) {
        r.free_region(driver, line);
    }
    let passing = take_memory(driver, exec.number, &inner, line, true)?;
    for w in work {
        carry_out(driver, line, w)?;
    }
    give_back(driver, &passing, line);
    close(driver, &mut inner, line);
    Ok(())
}

/// Takes the memory that a launch in `line` will need, after earlier launches; runs no node.
pub(crate) fn upload_memory(
    driver: &'static SimulatedDriver,
    exec: &ExecutableGraph,
    line: &DeviceStream,
) -> Result<(), CUresult> {
    let mut inner = exec.inner.lock();
    follow_last_launch(driver, &mut inner, line);
    // Memory of an earlier launch that is still allocated already has its block.
    if !has_unfreed(&inner) {
        let passing = take_memory(driver, exec.number, &inner, line, false)?;
        give_back(driver, &passing, line);
    }
    close(driver, &mut inner, line);
    Ok(())
}
