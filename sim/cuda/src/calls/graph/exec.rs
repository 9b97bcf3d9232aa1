//! Executable graphs: instantiation, destruction, update as a whole.

use super::{INVALID_GRAPH_CALL, executable_of_handle, handle_id, node_handle};
use crate::entry_points::{CallFrame, put_if, write_output};
use crate::errors::CallResult;
use crate::graph::exec::{
    self, AUTO_FREE, DEVICE_LAUNCH, ExecBody, ExecutableGraph, InstantiationError, UPLOAD_FLAG, USE_NODE_PRIORITY,
};
use crate::objects::object_handle;
use core::ffi::c_char;
use shim_sys::cuda::*;
use std::sync::Arc;

/// Launches from the device are not simulated.
fn make_executable(d: &CallFrame, graph: CUgraph, flags: u64) -> Result<Arc<ExecutableGraph>, InstantiationError> {
    d.graph_tables()?.lock_world().graph_by_id(handle_id(graph.0))?;
    if flags & (DEVICE_LAUNCH | AUTO_FREE) == DEVICE_LAUNCH | AUTO_FREE {
        return Err(INVALID_GRAPH_CALL.into());
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Err(CUresult::NOT_SUPPORTED.into());
    }
    exec::instantiate_graph(handle_id(graph.0), flags)
}

/// The log is written only on failure.
pub(crate) unsafe fn cuGraphInstantiate(
    d: &CallFrame,
    out: *mut CUgraphExec,
    graph: CUgraph,
    error: *mut CUgraphNode,
    log: *mut c_char,
    size: usize,
) -> CallResult {
    if out.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    match make_executable(d, graph, 0) {
        Ok(x) => unsafe { write_output(out, CUgraphExec(object_handle(&x))) },
        Err(r) => unsafe {
            put_if(error, node_handle(r.node));
            let words: &[u8] = if r.why == 2 { b"a node waits for itself\0" } else { b"cannot be instantiated\0" };
            if !log.is_null() && size > 0 {
                let n = words.len().min(size);
                core::ptr::copy_nonoverlapping(words.as_ptr().cast(), log, n);
                log.add(n - 1).write(0);
            }
            Err(r.code)
        },
    }
}

pub(crate) unsafe fn cuGraphInstantiate_v2(
    d: &CallFrame,
    out: *mut CUgraphExec,
    graph: CUgraph,
    error: *mut CUgraphNode,
    log: *mut c_char,
    size: usize,
) -> CallResult {
    unsafe { cuGraphInstantiate(d, out, graph, error, log, size) }
}

pub(crate) unsafe fn cuGraphInstantiateWithFlags(
    d: &CallFrame,
    out: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> CallResult {
    if out.is_null() || flags & !(AUTO_FREE | DEVICE_LAUNCH | USE_NODE_PRIORITY) != 0 {
        return Err(INVALID_GRAPH_CALL);
    }
    let x = make_executable(d, graph, flags).map_err(|r| r.code)?;
    unsafe { write_output(out, CUgraphExec(object_handle(&x))) }
}

pub(crate) unsafe fn cuGraphInstantiateWithParams(
    d: &CallFrame,
    out: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> CallResult {
    if out.is_null() || params.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let given = unsafe { params.read() };
    if given.flags & !(AUTO_FREE | UPLOAD_FLAG | DEVICE_LAUNCH | USE_NODE_PRIORITY) != 0 {
        return Err(INVALID_GRAPH_CALL);
    }
    let made = make_executable(d, graph, given.flags).and_then(|x| {
        if given.flags & UPLOAD_FLAG != 0
            && let Err(code) = super::launch::upload_graph(d, &x, given.hUploadStream)
        {
            exec::destroy_executable(d.initialised_driver()?, &x)?;
            return Err(code.into());
        }
        Ok(x)
    });
    let (node_out, why) = made.as_ref().map_or_else(|r| (r.node, r.why), |_| (0, 0));
    unsafe {
        (&raw mut (*params).hErrNode_out).write(node_handle(node_out));
        (&raw mut (*params).result_out).write(why);
        write_output(out, CUgraphExec(object_handle(&made.map_err(|r| r.code)?)))
    }
}

pub(crate) unsafe fn cuGraphExecDestroy(d: &CallFrame, exec: CUgraphExec) -> CallResult {
    exec::destroy_executable(d.initialised_driver()?, &executable_of_handle(d, exec)?)
}

/// The upload flag is not reported.
pub(crate) unsafe fn cuGraphExecGetFlags(d: &CallFrame, exec: CUgraphExec, flags: *mut u64) -> CallResult {
    unsafe { write_output(flags, executable_of_handle(d, exec)?.flags & !UPLOAD_FLAG) }
}

fn update(d: &CallFrame, exec: CUgraphExec, graph: CUgraph) -> Result<Result<(), exec::UpdateMismatch>, CUresult> {
    let x = executable_of_handle(d, exec)?;
    let new = ExecBody::read(&d.graph_tables()?.lock_world(), handle_id(graph.0)).map_err(|r| r.code)?;
    Ok(x.update(new))
}

/// The old call reports only the node and the reason.
pub(crate) unsafe fn cuGraphExecUpdate(
    d: &CallFrame,
    exec: CUgraphExec,
    graph: CUgraph,
    error: *mut CUgraphNode,
    result: *mut u32,
) -> CallResult {
    let (code, node_out, why) = match update(d, exec, graph)? {
        Ok(()) => (Ok(()), 0, 0),
        Err(m) => (Err(CUresult(910)), m.node, m.result),
    };
    unsafe {
        put_if(error, node_handle(node_out));
        put_if(result, why);
    }
    code
}

pub(crate) unsafe fn cuGraphExecUpdate_v2(
    d: &CallFrame,
    exec: CUgraphExec,
    graph: CUgraph,
    result: *mut CUgraphExecUpdateResultInfo,
) -> CallResult {
    let (code, info) = match update(d, exec, graph)? {
        Ok(()) => (Ok(()), (0, 0, 0)),
        Err(m) => (Err(CUresult(910)), (m.result, m.node, m.from)),
    };
    let (why, at, from) = info;
    let info =
        CUgraphExecUpdateResultInfo { result: why, errorNode: node_handle(at), errorFromNode: node_handle(from) };
    unsafe { put_if(result, info) };
    code
}
