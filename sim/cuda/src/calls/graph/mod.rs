//! The graph functions, by subject: whole graphs (`whole`), their nodes and edges (`shape`), new nodes (`add`),
//! parameters (`params`, `generic`), executable graphs (`exec`, `exec_params`), launches (`launch`), memory
//! (`memory`), user objects (`object`), and calls of drivers newer than 535 (`newer`).
//!
//! These modules read the arguments; `crate::graph` changes the graphs. The safety contract is that of `calls`.

pub(crate) mod add;
pub(crate) mod exec;
pub(crate) mod exec_params;
pub(crate) mod generic;
pub(crate) mod launch;
pub(crate) mod make;
pub(crate) mod memory;
pub(crate) mod newer;
pub(crate) mod object;
pub(crate) mod params;
pub(crate) mod shape;
pub(crate) mod whole;

use crate::context::CudaContext;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::graph::exec::ExecutableGraph;
use crate::objects::GraphId;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;

/// The error code for most invalid arguments.
const INVALID_GRAPH_CALL: CUresult = CUresult::INVALID_VALUE;

fn node_handle(id: GraphId) -> CUgraphNode {
    CUgraphNode(id as *mut c_void)
}

fn graph_handle(id: GraphId) -> CUgraph {
    CUgraph(id as *mut c_void)
}

fn handle_id<T>(handle: *mut T) -> GraphId {
    handle as usize
}

/// Reads a list of nodes from the program.
unsafe fn read_nodes(list: *const CUgraphNode, count: usize) -> Result<Vec<GraphId>, CUresult> {
    if count > 0 && list.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    Ok((0..count).map(|i| handle_id(unsafe { list.add(i).read() }.0)).collect())
}

/// Returns a list. Without an output pointer only its length; otherwise as many entries as fit, and null in the
/// rest.
unsafe fn give_list(out: *mut CUgraphNode, count: *mut usize, all: &[GraphId]) -> CallResult {
    if count.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    if out.is_null() {
        return unsafe { write_output(count, all.len()) };
    }
    let room = unsafe { count.read() };
    for i in 0..room {
        unsafe { out.add(i).write(all.get(i).map_or(CUgraphNode::NULL, |n| node_handle(*n))) };
    }
    unsafe { write_output(count, all.len().min(room)) }
}

fn executable_of_handle(d: &CallFrame, exec: CUgraphExec) -> Result<Arc<ExecutableGraph>, CUresult> {
    d.graph_tables()?.execs.get(exec.0).ok_or(INVALID_GRAPH_CALL)
}

/// The context of a handle; null: the current one.
fn context_or_current(d: &CallFrame, ctx: CUcontext) -> Result<Arc<CudaContext>, CUresult> {
    if ctx.is_null() {
        return d.current_context();
    }
    d.initialised_driver()?.contexts.get(ctx.0).ok_or(CUresult::INVALID_CONTEXT)
}
