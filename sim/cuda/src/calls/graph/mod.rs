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

use crate::context::Context;
use crate::door::{Answer, Door, put};
use crate::graph::Id;
use crate::graph::exec::Exec;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::sync::Arc;

/// The error code for most invalid arguments.
const INVALID: CUresult = CUresult::INVALID_VALUE;

fn node(id: Id) -> CUgraphNode {
    CUgraphNode(id as *mut c_void)
}

fn graph(id: Id) -> CUgraph {
    CUgraph(id as *mut c_void)
}

fn id<T>(handle: *mut T) -> Id {
    handle as usize
}

/// Reads a list of nodes from the program.
unsafe fn nodes(list: *const CUgraphNode, count: usize) -> Result<Vec<Id>, CUresult> {
    if count > 0 && list.is_null() {
        return Err(INVALID);
    }
    Ok((0..count).map(|i| id(unsafe { list.add(i).read() }.0)).collect())
}

/// Returns a list. Without an output pointer only its length; otherwise as many entries as fit, and null in the
/// rest.
unsafe fn give(out: *mut CUgraphNode, count: *mut usize, all: &[Id]) -> Answer {
    if count.is_null() {
        return Err(INVALID);
    }
    if out.is_null() {
        return unsafe { put(count, all.len()) };
    }
    let room = unsafe { count.read() };
    for i in 0..room {
        unsafe { out.add(i).write(all.get(i).map_or(CUgraphNode::NULL, |n| node(*n))) };
    }
    unsafe { put(count, all.len().min(room)) }
}

fn executable(d: &Door, exec: CUgraphExec) -> Result<Arc<Exec>, CUresult> {
    d.driver()?.graphs.execs.get(exec.0).ok_or(INVALID)
}

/// The context of a handle; null: the current one.
fn context(d: &Door, ctx: CUcontext) -> Result<Arc<Context>, CUresult> {
    if ctx.is_null() {
        return d.context();
    }
    d.driver()?.contexts.get(ctx.0).ok_or(CUresult::INVALID_CONTEXT)
}
