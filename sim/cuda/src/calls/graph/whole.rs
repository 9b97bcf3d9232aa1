//! Graphs as a whole: creation, destruction, clones, DOT output.

use super::{INVALID, graph, id, node};
use crate::door::{Answer, Door, put};
use crate::graph::dot;
use core::ffi::{CStr, c_char};
use shim_sys::cuda::*;

pub(crate) unsafe fn cuGraphCreate(d: &Door, out: *mut CUgraph, flags: u32) -> Answer {
    if out.is_null() || flags != 0 {
        return Err(INVALID);
    }
    unsafe { put(out, graph(d.driver()?.graphs.world().create())) }
}

/// The graph of a child node ends only with its node.
pub(crate) unsafe fn cuGraphDestroy(d: &Door, graph: CUgraph) -> Answer {
    let mut world = d.driver()?.graphs.world();
    let g = world.graph(id(graph.0))?;
    if g.embedded || g.capturing {
        return Err(INVALID);
    }
    let gone = world.destroy(id(graph.0));
    drop(world);
    // Dropped outside the lock, because the objects it held may call the program.
    drop(gone);
    Ok(())
}

pub(crate) unsafe fn cuGraphClone(d: &Door, clone: *mut CUgraph, original: CUgraph) -> Answer {
    let mut world = d.driver()?.graphs.world();
    world.graph(id(original.0))?;
    if clone.is_null() {
        return Err(INVALID);
    }
    unsafe { put(clone, graph(world.copy(id(original.0), false)?)) }
}

pub(crate) unsafe fn cuGraphNodeFindInClone(
    d: &Door,
    out: *mut CUgraphNode,
    original: CUgraphNode,
    clone: CUgraph,
) -> Answer {
    let world = d.driver()?.graphs.world();
    let found = world.in_clone(id(original.0), id(clone.0))?;
    unsafe { put(out, node(found)) }
}

pub(crate) unsafe fn cuGraphDebugDotPrint(d: &Door, graph: CUgraph, path: *const c_char, flags: u32) -> Answer {
    let text = dot::text(&d.driver()?.graphs.world(), id(graph.0), flags)?;
    if path.is_null() {
        return Err(INVALID);
    }
    let path = unsafe { CStr::from_ptr(path) }.to_str().map_err(|_| INVALID)?;
    std::fs::write(path, text).map_err(|_| CUresult(304))
}
