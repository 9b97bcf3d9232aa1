//! The functions about graphs, by subject: graphs as a whole (`whole`), their nodes and edges (`shape`), new nodes
//! (`add`), parameters (`params`, `generic`), executable graphs (`exec`, `exec_params`), launches (`launch`), memory
//! (`memory`), objects of the program (`object`), and what came after driver 535 (`newer`).
//!
//! Here: what their arguments mean. What they do to graphs is in `crate::graph`. The safety contract is that of `calls`.

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

/// What is wrong with most arguments.
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

/// A list of nodes as the program passes it.
unsafe fn nodes(list: *const CUgraphNode, count: usize) -> Result<Vec<Id>, CUresult> {
    if count > 0 && list.is_null() {
        return Err(INVALID);
    }
    Ok((0..count).map(|i| id(unsafe { list.add(i).read() }.0)).collect())
}

/// Hands out a list: its length without a place for it; else as many as fit, the rest of the place null.
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

/// A context by its handle; null: the current one.
fn context(d: &Door, ctx: CUcontext) -> Result<Arc<Context>, CUresult> {
    if ctx.is_null() {
        return d.context();
    }
    d.driver()?.contexts.get(ctx.0).ok_or(CUresult::INVALID_CONTEXT)
}
