//! Graphs as a whole: creation, destruction, clones, DOT output.

use super::{INVALID_GRAPH_CALL, graph_handle, handle_id, node_handle};
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::graph::dot;
use core::ffi::{CStr, c_char};
use shim_sys::cuda::*;

pub(crate) unsafe fn cuGraphCreate(d: &CallFrame, out: *mut CUgraph, flags: u32) -> CallResult {
    if out.is_null() || flags != 0 {
        return Err(INVALID_GRAPH_CALL);
    }
    unsafe { write_output(out, graph_handle(d.graph_tables()?.lock_world().create_graph())) }
}

/// The graph of a child node ends only with its node.
pub(crate) unsafe fn cuGraphDestroy(d: &CallFrame, graph: CUgraph) -> CallResult {
    let mut world = d.graph_tables()?.lock_world();
    let g = world.graph_by_id(handle_id(graph.0))?;
    if g.embedded || g.capturing {
        return Err(INVALID_GRAPH_CALL);
    }
    let gone = world.destroy_graph(handle_id(graph.0));
    drop(world);
    // Dropped outside the lock, because the objects it held may call the program.
    drop(gone);
    Ok(())
}

pub(crate) unsafe fn cuGraphClone(d: &CallFrame, clone: *mut CUgraph, original: CUgraph) -> CallResult {
    let mut world = d.graph_tables()?.lock_world();
    world.graph_by_id(handle_id(original.0))?;
    if clone.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    unsafe { write_output(clone, graph_handle(world.copy_graph(handle_id(original.0), false)?)) }
}

pub(crate) unsafe fn cuGraphNodeFindInClone(
    d: &CallFrame,
    out: *mut CUgraphNode,
    original: CUgraphNode,
    clone: CUgraph,
) -> CallResult {
    let world = d.graph_tables()?.lock_world();
    let found = world.in_clone(handle_id(original.0), handle_id(clone.0))?;
    unsafe { write_output(out, node_handle(found)) }
}

pub(crate) unsafe fn cuGraphDebugDotPrint(
    d: &CallFrame,
    graph: CUgraph,
    path: *const c_char,
    flags: u32,
) -> CallResult {
    let text = dot::dot_text(&d.graph_tables()?.lock_world(), handle_id(graph.0), flags)?;
    if path.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let path = unsafe { CStr::from_ptr(path) }.to_str().map_err(|_| INVALID_GRAPH_CALL)?;
    std::fs::write(path, text).map_err(|_| CUresult(304))
}
