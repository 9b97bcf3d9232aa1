//! Launches of executable graphs: first everything that can fail, then the nodes one after another in one stream.
//!
//! A node whose context is on another device runs in a stream there, and the launch's stream waits for it.

use super::exec::{AUTO_FREE, Body, Exec, Inner};
use super::memory::{Holding, Line, Region};
use super::node::Kind;
use crate::calls::copy::{self, Move};
use crate::calls::fill;
use crate::calls::launch::Known;
use crate::context::Context;
use crate::driver::{Driver, hold};
use crate::objects::{Event, handle};
use crate::pool_core::Mark;
use shim_sys::cuda::CUresult;
use std::collections::HashSet;
use std::sync::Arc;
use vgpu_sim::engine;

/// The work of a node with its addresses resolved.
enum Work {
    Kernel(Arc<Context>, Known),
    Copy(Arc<Context>, Move),
    Fill(Arc<Context>, fill::Fill),
    Host(super::node::Host),
    Wait(Arc<Event>),
    Record(Arc<Event>),
    Free(Arc<Region>),
}

/// Checks that an event was not destroyed: its handle may belong to another event by now.
fn living(driver: &'static Driver, e: &Arc<Event>) -> Result<Arc<Event>, CUresult> {
    driver.events.get(handle(e)).filter(|found| Arc::ptr_eq(found, e)).ok_or(CUresult::INVALID_HANDLE)
}

/// Resolves the work of all steps; detects objects that ended since the graph was made.
fn prepare(driver: &'static Driver, body: &Body, work: &mut Vec<Work>) -> Result<(), CUresult> {
    // A real device faults at such an address and loses the context.
    let fault = |_| CUresult::ILLEGAL_ADDRESS;
    for step in body.ordered().filter(|s| s.enabled) {
        match &step.kind {
            Kind::Kernel(k) => work.push(Work::Kernel(k.context.clone().living()?, k.cost.find(driver)?)),
            Kind::Copy(c) => {
                let found = copy::prepare(driver, &c.params).map_err(fault)?;
                work.extend(found.map(|m| Work::Copy(c.context.clone(), m)));
            }
            Kind::Fill(f) => {
                let p = &f.params;
                let found = fill::prepare(driver, p.dst, p.pitch, &f.pattern(), p.width, p.height).map_err(fault)?;
                work.extend(found.map(|m| Work::Fill(f.context.clone(), m)));
            }
            Kind::Host(h) => work.push(Work::Host(h.clone())),
            Kind::Wait(e) => work.push(Work::Wait(living(driver, e)?)),
            Kind::Record(e) => work.push(Work::Record(living(driver, e)?)),
            Kind::Free(r) => work.push(Work::Free(r.clone())),
            Kind::Child(_) => {
                if let Some(child) = &step.child {
                    prepare(driver, child, work)?;
                }
            }
            Kind::Alloc(_) | Kind::Empty => {}
        }
    }
    Ok(())
}

/// Runs `f` on the device of `context`: in `line` itself, or in a stream there between two waits.
fn there(driver: &'static Driver, line: &Line, context: &Arc<Context>, f: impl FnOnce(&Line)) -> Result<(), CUresult> {
    if context.device == line.device {
        f(line);
        return Ok(());
    }
    let engine = driver.device(context.device)?.engine.clone();
    let stream = engine.open_stream(context.group, false);
    let far = Line { device: context.device, engine, stream };
    let pass = |from: &Line, to: &Line| {
        let mark = from.mark();
        to.wait(mark, driver);
        let engine = from.engine.clone();
        // The waiting stream refers to the event until its wait is over; only then may the event be reused.
        to.engine.host(to.stream, move || engine.close_event(mark.event));
    };
    pass(line, &far);
    f(&far);
    pass(&far, line);
    far.engine.close_stream(stream);
    Ok(())
}

fn carry_out(driver: &'static Driver, line: &Line, work: Work) -> Result<(), CUresult> {
    match work {
        Work::Kernel(c, known) => there(driver, line, &c, |l| {
            known.start(&l.engine, l.stream);
        }),
        Work::Copy(c, m) => {
            let time = m.time(&driver.device(c.device)?.profile);
            there(driver, line, &c, |l| {
                l.engine.work(l.stream, time, m.kind(), Some(move || m.run()));
            })
        }
        Work::Fill(c, m) => {
            let time = m.time(driver.device(c.device)?);
            there(driver, line, &c, |l| {
                l.engine.work(l.stream, time, engine::Kind::Copy, Some(move || m.run()));
            })
        }
        Work::Host(h) => {
            line.engine.host(line.stream, move || h.call());
            Ok(())
        }
        Work::Wait(e) => {
            line.wait(Mark { device: e.context.device, event: e.id }, driver);
            Ok(())
        }
        Work::Record(e) => there(driver, line, &e.context.clone(), |l| {
            l.engine.record(l.stream, e.id);
        }),
        Work::Free(r) => {
            r.end(driver, line);
            Ok(())
        }
    }
}

/// Refuses a free of memory that is not allocated, and an allocation that is still live.
fn check_memory(inner: &Inner, work: &[Work], auto_free: bool) -> Result<(), CUresult> {
    let own: HashSet<*const Region> =
        inner.needs.iter().flat_map(|n| n.pass.iter().chain(&n.outlive)).map(Arc::as_ptr).collect();
    let nothing = |w: &Work| matches!(w, Work::Free(r) if !own.contains(&Arc::as_ptr(r)) && !r.is_live());
    let refused = (unfreed(inner) && !auto_free) || work.iter().any(nothing);
    if refused { Err(CUresult::INVALID_VALUE) } else { Ok(()) }
}

/// True if memory is still allocated from an earlier launch.
fn unfreed(inner: &Inner) -> bool {
    inner.needs.iter().flat_map(|n| &n.outlive).any(|r| r.is_live())
}

/// The blocks of one launch that are returned at its end: device and address.
type Passing = Vec<(i32, u64)>;

/// Takes the memory of a launch. `hold_on`: keeps the blocks for regions that outlive it; otherwise they are
/// returned too.
fn take_memory(
    driver: &'static Driver,
    number: u64,
    inner: &Inner,
    line: &Line,
    hold_on: bool,
) -> Result<Passing, CUresult> {
    let memory = &driver.graphs.memory;
    let mut passing = Passing::new();
    let mut lasting = Vec::new();
    for need in &inner.needs {
        for (part, bytes) in [(0, need.passing), (1, need.lasting)].into_iter().filter(|(_, b)| *b > 0) {
            match memory.take(driver, need.device, bytes, (number, part), line) {
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
        let holding = Holding::new(need.device, at, need.outlive.len());
        need.outlive.iter().for_each(|r| r.begin(&holding));
    }
    Ok(passing)
}

fn give_back(driver: &'static Driver, passing: &Passing, line: &Line) {
    for (device, at) in passing {
        driver.graphs.memory.give(driver, *device, *at, line);
    }
}

/// Orders the stream after the last launch or upload of the same executable graph.
fn follow(driver: &'static Driver, inner: &mut Inner, line: &Line) {
    if let Some(last) = inner.last {
        line.wait(last, driver);
    }
}

/// Records the stream's present end as the end of the last launch or upload.
fn close(driver: &'static Driver, inner: &mut Inner, line: &Line) {
    if let Some(old) = inner.last.replace(line.mark())
        && let Ok(device) = driver.device(old.device)
    {
        if old.device == line.device {
            device.engine.close_event(old.event);
        } else {
            // A stream of another device refers to the old event until its wait is over.
            let engine = device.engine.clone();
            line.engine.host(line.stream, move || engine.close_event(old.event));
        }
    }
}

/// Launches an executable graph in `line`, after its earlier launches.
pub(crate) fn launch(driver: &'static Driver, exec: &Exec, line: &Line) -> Result<(), CUresult> {
    let mut inner = hold(&exec.inner);
    let mut work = Vec::new();
    prepare(driver, &inner.body, &mut work)?;
    let auto_free = exec.flags & AUTO_FREE != 0;
    check_memory(&inner, &work, auto_free)?;
    follow(driver, &mut inner, line);
    for r in inner.needs.iter().flat_map(|n| &n.outlive) {
        r.end(driver, line);
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
pub(crate) fn upload(driver: &'static Driver, exec: &Exec, line: &Line) -> Result<(), CUresult> {
    let mut inner = hold(&exec.inner);
    follow(driver, &mut inner, line);
    // Memory of an earlier launch that is still allocated already has its block.
    if !unfreed(&inner) {
        let passing = take_memory(driver, exec.number, &inner, line, false)?;
        give_back(driver, &passing, line);
    }
    close(driver, &mut inner, line);
    Ok(())
}
