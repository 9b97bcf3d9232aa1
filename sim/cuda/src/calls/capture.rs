//! Capture of streams into graphs: begin, end, queries, dependencies.
//!
//! Not here: the captured operations (every call on a stream), the calls that are forbidden meanwhile
//! (`crate::capture::rules`).

use crate::capture::rules::{self, MODE_RELAXED, this_thread};
use crate::capture::session::{CaptureLine, CaptureSession};
use crate::capture::{CAPTURE_UNJOINED, CAPTURE_WRONG_THREAD, CapturedStream};
use crate::context::CudaContext;
use crate::entry_points::{CallFrame, put_if, write_output};
use crate::errors::CallResult;
use crate::objects::GraphId;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

const INVALID_CAPTURE_CALL: CUresult = CUresult::INVALID_VALUE;
const STATUS_NONE: u32 = 0;
const STATUS_ACTIVE: u32 = 1;
const STATUS_INVALIDATED: u32 = 2;

/// Reads a list of nodes with plain edges.
unsafe fn read_nodes(
    list: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    n: usize,
) -> Result<Vec<GraphId>, CUresult> {
    if n > 0 && list.is_null() {
        return Err(INVALID_CAPTURE_CALL);
    }
    let plain = |i| unsafe { edges.add(i).read() } == CUgraphEdgeData::default();
    if !edges.is_null() && !(0..n).all(plain) {
        return Err(CUresult::NOT_SUPPORTED);
    }
    Ok((0..n).map(|i| unsafe { list.add(i).read() }.0 as GraphId).collect())
}

/// Begins a capture into `graph`, or into a new graph.
fn begin_capture(
    d: &CallFrame,
    stream: CUstream,
    mode: u32,
    graph: Option<GraphId>,
    after: Vec<GraphId>,
) -> CallResult {
    if mode > MODE_RELAXED {
        return Err(INVALID_CAPTURE_CALL);
    }
    let (context, id) = d.raw_stream(stream)?;
    if d.is_legacy(stream) {
        return Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
    }
    let (origin, blocking): (CapturedStream, _) = ((context.device, id), d.is_blocking(stream));
    d.capture_table()?.with_state(|s| {
        if s.of.contains_key(&origin) {
            return Err(CUresult::ILLEGAL_STATE);
        }
        let mut world = d.graph_tables()?.lock_world();
        let own = graph.is_none();
        let graph = match graph {
            Some(g) => g,
            None => world.create_graph(),
        };
        world.can_add(graph, &after)?;
        let g = world.graph_mut(graph)?;
        if g.embedded || g.capturing {
            return Err(INVALID_CAPTURE_CALL);
        }
        g.capturing = true;
        drop(world);
        s.last += 1;
        let line = CaptureLine { context, blocking, after, shown: Default::default() };
        s.of.insert(origin, s.last);
        s.sessions.insert(
            s.last,
            CaptureSession {
                graph,
                own,
                mode,
                thread: this_thread(),
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
pub(crate) unsafe fn cuStreamBeginCapture(d: &CallFrame, stream: CUstream) -> CallResult {
    begin_capture(d, stream, rules::MODE_GLOBAL, None, Vec::new())
}

pub(crate) unsafe fn cuStreamBeginCapture_v2(d: &CallFrame, stream: CUstream, mode: u32) -> CallResult {
    begin_capture(d, stream, mode, None, Vec::new())
}

pub(crate) unsafe fn cuStreamBeginCaptureToGraph(
    d: &CallFrame,
    stream: CUstream,
    graph: CUgraph,
    deps: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    mode: u32,
) -> CallResult {
    let after = unsafe { read_nodes(deps, edges, count)? };
    begin_capture(d, stream, mode, Some(graph.0 as GraphId), after)
}

/// Ends a capture. After a failure too the streams no longer capture; the graph is null then.
pub(crate) unsafe fn cuStreamEndCapture(d: &CallFrame, stream: CUstream, graph: *mut CUgraph) -> CallResult {
    if graph.is_null() {
        return Err(INVALID_CAPTURE_CALL);
    }
    let (context, id) = d.raw_stream(stream)?;
    let key = (context.device, id);
    let (session, code) = d.capture_table()?.with_state(|s| {
        let number = *s.of.get(&key).ok_or(CUresult::ILLEGAL_STATE)?;
        let c = s.sessions.get(&number).ok_or(CUresult::ILLEGAL_STATE)?;
        if c.origin != key {
            return Err(CUresult::STREAM_CAPTURE_UNMATCHED);
        }
        if c.mode != MODE_RELAXED && c.thread != this_thread() {
            return Err(CAPTURE_WRONG_THREAD);
        }
        let code = if c.invalid {
            Err(CUresult::STREAM_CAPTURE_INVALIDATED)
        } else if !c.is_joined() {
            Err(CAPTURE_UNJOINED)
        } else {
            Ok(())
        };
        Ok((s.close(number).ok_or(CUresult::ILLEGAL_STATE)?, code))
    })?;
    if code.is_err() {
        session.discard_graph();
        unsafe { write_output(graph, CUgraph::NULL)? };
        return code;
    }
    if let Ok(g) = d.graph_tables()?.lock_world().graph_mut(session.graph) {
        g.capturing = false;
    }
    unsafe { write_output(graph, CUgraph(session.graph as *mut c_void)) }
}

/// The capture state of a stream, for queries.
struct CaptureInfo {
    status: u32,
    id: u64,
    graph: CUgraph,
    nodes: *const c_void,
    edges: *const CUgraphEdgeData,
    count: usize,
}

fn info(d: &CallFrame, stream: CUstream) -> Result<CaptureInfo, CUresult> {
    let (context, id): (Arc<CudaContext>, _) = d.raw_stream(stream)?;
    let (none, plain) = (core::ptr::null(), core::ptr::null());
    let nothing = CaptureInfo { status: STATUS_NONE, id: 0, graph: CUgraph::NULL, nodes: none, edges: plain, count: 0 };
    if !d.capture_table()?.any() {
        return Ok(nothing);
    }
    d.capture_table()?.with_state(|s| {
        if d.is_legacy(stream) {
            // A query does not invalidate a capture.
            s.refuse_implicit(&context, false)?;
        }
        let key = (context.device, id);
        let number = s.of.get(&key).copied().unwrap_or(0);
        let Some(c) = s.session_of(key) else { return Ok(nothing) };
        if c.invalid {
            return Ok(CaptureInfo { status: STATUS_INVALIDATED, ..nothing });
        }
        let graph = CUgraph(c.graph as *mut c_void);
        let Some(l) = c.streams.get_mut(&key) else { return Ok(nothing) };
        l.shown.0 = l.after.iter().map(|n| CUgraphNode(*n as *mut c_void)).collect();
        l.shown.1 = vec![CUgraphEdgeData::default(); l.after.len()];
        let (nodes, edges) = (l.shown.0.as_ptr().cast(), l.shown.1.as_ptr());
        Ok(CaptureInfo { status: STATUS_ACTIVE, id: number, graph, nodes, edges, count: l.after.len() })
    })
}

pub(crate) unsafe fn cuStreamIsCapturing(d: &CallFrame, stream: CUstream, status: *mut u32) -> CallResult {
    unsafe { write_output(status, info(d, stream)?.status) }
}

pub(crate) unsafe fn cuStreamGetCaptureInfo(
    d: &CallFrame,
    stream: CUstream,
    status: *mut u32,
    id: *mut u64,
) -> CallResult {
    if status.is_null() {
        return Err(INVALID_CAPTURE_CALL);
    }
    let i = info(d, stream)?;
    unsafe {
        if i.status == STATUS_ACTIVE {
            put_if(id, i.id);
        }
        write_output(status, i.status)
    }
}

pub(crate) unsafe fn cuStreamGetCaptureInfo_v2(
    d: &CallFrame,
    stream: CUstream,
    status: *mut u32,
    id: *mut u64,
    graph: *mut CUgraph,
    deps: *mut *const c_void,
    count: *mut usize,
) -> CallResult {
    unsafe { cuStreamGetCaptureInfo_v3(d, stream, status, id, graph, deps, core::ptr::null_mut(), count) }
}

pub(crate) unsafe fn cuStreamGetCaptureInfo_v3(
    d: &CallFrame,
    stream: CUstream,
    status: *mut u32,
    id: *mut u64,
    graph: *mut CUgraph,
    deps: *mut *const c_void,
    edges: *mut *const CUgraphEdgeData,
    count: *mut usize,
) -> CallResult {
    if status.is_null() || (!edges.is_null() && deps.is_null()) {
        return Err(INVALID_CAPTURE_CALL);
    }
    let i = info(d, stream)?;
    unsafe {
        if i.status == STATUS_ACTIVE {
            put_if(id, i.id);
            put_if(graph, i.graph);
            put_if(deps, i.nodes);
            put_if(edges, i.edges);
            put_if(count, i.count);
        }
        write_output(status, i.status)
    }
}

/// Flag: replace the dependencies instead of adding to them.
const SET_DEPENDENCIES: u32 = 1;

fn change_dependencies(d: &CallFrame, stream: CUstream, new: &[GraphId], flags: u32) -> CallResult {
    if flags > SET_DEPENDENCIES {
        return Err(INVALID_CAPTURE_CALL);
    }
    let (context, id) = d.raw_stream(stream)?;
    let key = (context.device, id);
    d.capture_table()?.with_state(|s| {
        let c = s.session_of(key).ok_or(CUresult::ILLEGAL_STATE)?;
        if c.invalid {
            return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
        }
        d.graph_tables()?.lock_world().can_add(c.graph, new)?;
        let Some(l) = c.streams.get_mut(&key) else { return Err(CUresult::ILLEGAL_STATE) };
        if flags == SET_DEPENDENCIES {
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
    d: &CallFrame,
    stream: CUstream,
    deps: *mut CUgraphNode,
    count: usize,
    flags: u32,
) -> CallResult {
    change_dependencies(d, stream, &unsafe { read_nodes(deps, core::ptr::null(), count)? }, flags)
}

pub(crate) unsafe fn cuStreamUpdateCaptureDependencies_v2(
    d: &CallFrame,
    stream: CUstream,
    deps: *mut CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    flags: u32,
) -> CallResult {
    change_dependencies(d, stream, &unsafe { read_nodes(deps, edges, count)? }, flags)
}

/// The mode of a thread decides which calls captures forbid it.
pub(crate) unsafe fn cuThreadExchangeStreamCaptureMode(_: &CallFrame, mode: *mut u32) -> CallResult {
    if mode.is_null() {
        return Err(INVALID_CAPTURE_CALL);
    }
    unsafe {
        let wanted = mode.read();
        if wanted > MODE_RELAXED {
            return Err(INVALID_CAPTURE_CALL);
        }
        mode.write(rules::exchange_mode(wanted));
    }
    Ok(())
}
