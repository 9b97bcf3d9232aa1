//! Capture of streams into graphs: begin, end, queries, dependencies.
//!
//! Not here: the captured operations (every call on a stream), the calls that are forbidden meanwhile
//! (`crate::capture::rules`).

use crate::capture::rules::{self, RELAXED, me};
use crate::capture::session::{Line, Session};
use crate::capture::{Key, UNJOINED, WRONG_THREAD};
use crate::context::Context;
use crate::door::{Answer, Door, put, put_if};
use crate::graph::Id;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

const INVALID: CUresult = CUresult::INVALID_VALUE;
const NONE: u32 = 0;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

/// Reads a list of nodes with plain edges.
unsafe fn nodes(list: *const CUgraphNode, edges: *const CUgraphEdgeData, n: usize) -> Result<Vec<Id>, CUresult> {
    if n > 0 && list.is_null() {
        return Err(INVALID);
    }
    let plain = |i| unsafe { edges.add(i).read() } == CUgraphEdgeData::default();
    if !edges.is_null() && !(0..n).all(plain) {
        return Err(CUresult::NOT_SUPPORTED);
    }
    Ok((0..n).map(|i| unsafe { list.add(i).read() }.0 as Id).collect())
}

/// Begins a capture into `graph`, or into a new graph.
fn begin(d: &Door, stream: CUstream, mode: u32, graph: Option<Id>, after: Vec<Id>) -> Answer {
    if mode > RELAXED {
        return Err(INVALID);
    }
    let (context, id) = d.raw_stream(stream)?;
    if d.is_legacy(stream) {
        return Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
    }
    let driver = d.driver()?;
    let (origin, blocking): (Key, _) = ((context.device, id), d.is_blocking(stream));
    driver.captures.with(|s| {
        if s.of.contains_key(&origin) {
            return Err(CUresult::ILLEGAL_STATE);
        }
        let mut world = driver.graphs.world();
        let own = graph.is_none();
        let graph = match graph {
            Some(g) => g,
            None => world.create(),
        };
        world.can_add(graph, &after)?;
        let g = world.graph_mut(graph)?;
        if g.embedded || g.capturing {
            return Err(INVALID);
        }
        g.capturing = true;
        drop(world);
        s.last += 1;
        let line = Line { context, blocking, after, shown: Default::default() };
        s.of.insert(origin, s.last);
        s.sessions.insert(
            s.last,
            Session {
                graph,
                own,
                mode,
                thread: me(),
                origin,
                invalid: false,
                streams: BTreeMap::from([(origin, line)]),
                parents: HashMap::new(),
                dropped: HashSet::new(),
            },
        );
        Ok(())
    })
}

/// The first form always uses global mode.
pub(crate) unsafe fn cuStreamBeginCapture(d: &Door, stream: CUstream) -> Answer {
    begin(d, stream, rules::GLOBAL, None, Vec::new())
}

pub(crate) unsafe fn cuStreamBeginCapture_v2(d: &Door, stream: CUstream, mode: u32) -> Answer {
    begin(d, stream, mode, None, Vec::new())
}

pub(crate) unsafe fn cuStreamBeginCaptureToGraph(
    d: &Door,
    stream: CUstream,
    graph: CUgraph,
    deps: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    mode: u32,
) -> Answer {
    let after = unsafe { nodes(deps, edges, count)? };
    begin(d, stream, mode, Some(graph.0 as Id), after)
}

/// Ends a capture. After a failure too the streams no longer capture; the graph is null then.
pub(crate) unsafe fn cuStreamEndCapture(d: &Door, stream: CUstream, graph: *mut CUgraph) -> Answer {
    if graph.is_null() {
        return Err(INVALID);
    }
    let (context, id) = d.raw_stream(stream)?;
    let driver = d.driver()?;
    let key = (context.device, id);
    let (session, code) = driver.captures.with(|s| {
        let number = *s.of.get(&key).ok_or(CUresult::ILLEGAL_STATE)?;
        let c = s.sessions.get(&number).ok_or(CUresult::ILLEGAL_STATE)?;
        if c.origin != key {
            return Err(CUresult::STREAM_CAPTURE_UNMATCHED);
        }
        if c.mode != RELAXED && c.thread != me() {
            return Err(WRONG_THREAD);
        }
        let code = if c.invalid {
            Err(CUresult::STREAM_CAPTURE_INVALIDATED)
        } else if !c.is_joined() {
            Err(UNJOINED)
        } else {
            Ok(())
        };
        Ok((s.close(number).ok_or(CUresult::ILLEGAL_STATE)?, code))
    })?;
    if code.is_err() {
        session.discard(driver);
        unsafe { put(graph, CUgraph::NULL)? };
        return code;
    }
    if let Ok(g) = driver.graphs.world().graph_mut(session.graph) {
        g.capturing = false;
    }
    unsafe { put(graph, CUgraph(session.graph as *mut c_void)) }
}

/// The capture state of a stream, for queries.
struct Info {
    status: u32,
    id: u64,
    graph: CUgraph,
    nodes: *const c_void,
    edges: *const CUgraphEdgeData,
    count: usize,
}

fn info(d: &Door, stream: CUstream) -> Result<Info, CUresult> {
    let (context, id): (Arc<Context>, _) = d.raw_stream(stream)?;
    let driver = d.driver()?;
    let (none, plain) = (core::ptr::null(), core::ptr::null());
    let nothing = Info { status: NONE, id: 0, graph: CUgraph::NULL, nodes: none, edges: plain, count: 0 };
    if !driver.captures.any() {
        return Ok(nothing);
    }
    driver.captures.with(|s| {
        if d.is_legacy(stream) {
            // A query does not invalidate a capture.
            s.implicit(&context, false)?;
        }
        let key = (context.device, id);
        let number = s.of.get(&key).copied().unwrap_or(0);
        let Some(c) = s.at(key) else { return Ok(nothing) };
        if c.invalid {
            return Ok(Info { status: INVALIDATED, ..nothing });
        }
        let graph = CUgraph(c.graph as *mut c_void);
        let Some(l) = c.streams.get_mut(&key) else { return Ok(nothing) };
        l.shown.0 = l.after.iter().map(|n| CUgraphNode(*n as *mut c_void)).collect();
        l.shown.1 = vec![CUgraphEdgeData::default(); l.after.len()];
        let (nodes, edges) = (l.shown.0.as_ptr().cast(), l.shown.1.as_ptr());
        Ok(Info { status: ACTIVE, id: number, graph, nodes, edges, count: l.after.len() })
    })
}

pub(crate) unsafe fn cuStreamIsCapturing(d: &Door, stream: CUstream, status: *mut u32) -> Answer {
    unsafe { put(status, info(d, stream)?.status) }
}

pub(crate) unsafe fn cuStreamGetCaptureInfo(d: &Door, stream: CUstream, status: *mut u32, id: *mut u64) -> Answer {
    if status.is_null() {
        return Err(INVALID);
    }
    let i = info(d, stream)?;
    unsafe {
        if i.status == ACTIVE {
            put_if(id, i.id);
        }
        put(status, i.status)
    }
}

pub(crate) unsafe fn cuStreamGetCaptureInfo_v2(
    d: &Door,
    stream: CUstream,
    status: *mut u32,
    id: *mut u64,
    graph: *mut CUgraph,
    deps: *mut *const c_void,
    count: *mut usize,
) -> Answer {
    unsafe { cuStreamGetCaptureInfo_v3(d, stream, status, id, graph, deps, core::ptr::null_mut(), count) }
}

pub(crate) unsafe fn cuStreamGetCaptureInfo_v3(
    d: &Door,
    stream: CUstream,
    status: *mut u32,
    id: *mut u64,
    graph: *mut CUgraph,
    deps: *mut *const c_void,
    edges: *mut *const CUgraphEdgeData,
    count: *mut usize,
) -> Answer {
    if status.is_null() || (!edges.is_null() && deps.is_null()) {
        return Err(INVALID);
    }
    let i = info(d, stream)?;
    unsafe {
        if i.status == ACTIVE {
            put_if(id, i.id);
            put_if(graph, i.graph);
            put_if(deps, i.nodes);
            put_if(edges, i.edges);
            put_if(count, i.count);
        }
        put(status, i.status)
    }
}

/// Flag: replace the dependencies instead of adding to them.
const SET: u32 = 1;

fn depend(d: &Door, stream: CUstream, new: &[Id], flags: u32) -> Answer {
    if flags > SET {
        return Err(INVALID);
    }
    let (context, id) = d.raw_stream(stream)?;
    let driver = d.driver()?;
    let key = (context.device, id);
    driver.captures.with(|s| {
        let c = s.at(key).ok_or(CUresult::ILLEGAL_STATE)?;
        if c.invalid {
            return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
        }
        driver.graphs.world().can_add(c.graph, new)?;
        let Some(l) = c.streams.get_mut(&key) else { return Err(CUresult::ILLEGAL_STATE) };
        if flags == SET {
            c.dropped.extend(l.after.drain(..).filter(|n| !new.contains(n)));
        }
        for n in new {
            if !l.after.contains(n) {
                l.after.push(*n);
            }
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamUpdateCaptureDependencies(
    d: &Door,
    stream: CUstream,
    deps: *mut CUgraphNode,
    count: usize,
    flags: u32,
) -> Answer {
    depend(d, stream, &unsafe { nodes(deps, core::ptr::null(), count)? }, flags)
}

pub(crate) unsafe fn cuStreamUpdateCaptureDependencies_v2(
    d: &Door,
    stream: CUstream,
    deps: *mut CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    flags: u32,
) -> Answer {
    depend(d, stream, &unsafe { nodes(deps, edges, count)? }, flags)
}

/// The mode of a thread decides which calls captures forbid it.
pub(crate) unsafe fn cuThreadExchangeStreamCaptureMode(_: &Door, mode: *mut u32) -> Answer {
    if mode.is_null() {
        return Err(INVALID);
    }
    unsafe {
        let wanted = mode.read();
        if wanted > RELAXED {
            return Err(INVALID);
        }
        mode.write(rules::exchange(wanted));
    }
    Ok(())
}
