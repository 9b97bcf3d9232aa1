//! Executable graphs: instantiation, destruction, update as a whole.

use super::{INVALID, executable, id, node};
use crate::door::{Answer, Door, put, put_if};
use crate::graph::exec::{self, AUTO_FREE, Body, DEVICE_LAUNCH, Exec, Refusal, UPLOAD, USE_NODE_PRIORITY};
use crate::objects::handle;
use core::ffi::c_char;
use shim_sys::cuda::*;
use std::sync::Arc;

/// Launches from the device are not simulated.
fn make(d: &Door, graph: CUgraph, flags: u64) -> Result<Arc<Exec>, Refusal> {
    let driver = d.driver()?;
    driver.graphs.world().graph(id(graph.0))?;
    if flags & (DEVICE_LAUNCH | AUTO_FREE) == DEVICE_LAUNCH | AUTO_FREE {
        return Err(INVALID.into());
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Err(CUresult::NOT_SUPPORTED.into());
    }
    exec::instantiate(driver, id(graph.0), flags)
}

/// The log is written only on failure.
pub(crate) unsafe fn cuGraphInstantiate(
    d: &Door,
    out: *mut CUgraphExec,
    graph: CUgraph,
    error: *mut CUgraphNode,
    log: *mut c_char,
    size: usize,
) -> Answer {
    if out.is_null() {
        return Err(INVALID);
    }
    match make(d, graph, 0) {
        Ok(x) => unsafe { put(out, CUgraphExec(handle(&x))) },
        Err(r) => unsafe {
            put_if(error, node(r.node));
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
    d: &Door,
    out: *mut CUgraphExec,
    graph: CUgraph,
    error: *mut CUgraphNode,
    log: *mut c_char,
    size: usize,
) -> Answer {
    unsafe { cuGraphInstantiate(d, out, graph, error, log, size) }
}

pub(crate) unsafe fn cuGraphInstantiateWithFlags(
    d: &Door,
    out: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> Answer {
    if out.is_null() || flags & !(AUTO_FREE | DEVICE_LAUNCH | USE_NODE_PRIORITY) != 0 {
        return Err(INVALID);
    }
    let x = make(d, graph, flags).map_err(|r| r.code)?;
    unsafe { put(out, CUgraphExec(handle(&x))) }
}

pub(crate) unsafe fn cuGraphInstantiateWithParams(
    d: &Door,
    out: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> Answer {
    if out.is_null() || params.is_null() {
        return Err(INVALID);
    }
    let given = unsafe { params.read() };
    if given.flags & !(AUTO_FREE | UPLOAD | DEVICE_LAUNCH | USE_NODE_PRIORITY) != 0 {
        return Err(INVALID);
    }
    let made = make(d, graph, given.flags).and_then(|x| {
        if given.flags & UPLOAD != 0
            && let Err(code) = super::launch::upload(d, &x, given.hUploadStream)
        {
            exec::destroy(d.driver()?, &x)?;
            return Err(code.into());
        }
        Ok(x)
    });
    let (node_out, why) = made.as_ref().map_or_else(|r| (r.node, r.why), |_| (0, 0));
    unsafe {
        (&raw mut (*params).hErrNode_out).write(node(node_out));
        (&raw mut (*params).result_out).write(why);
        put(out, CUgraphExec(handle(&made.map_err(|r| r.code)?)))
    }
}

pub(crate) unsafe fn cuGraphExecDestroy(d: &Door, exec: CUgraphExec) -> Answer {
    exec::destroy(d.driver()?, &executable(d, exec)?)
}

/// The upload flag is not reported.
pub(crate) unsafe fn cuGraphExecGetFlags(d: &Door, exec: CUgraphExec, flags: *mut u64) -> Answer {
    unsafe { put(flags, executable(d, exec)?.flags & !UPLOAD) }
}

fn update(d: &Door, exec: CUgraphExec, graph: CUgraph) -> Result<Result<(), exec::Mismatch>, CUresult> {
    let x = executable(d, exec)?;
    let new = Body::read(&d.driver()?.graphs.world(), id(graph.0)).map_err(|r| r.code)?;
    Ok(x.update(new))
}

/// The old call reports only the node and the reason.
pub(crate) unsafe fn cuGraphExecUpdate(
    d: &Door,
    exec: CUgraphExec,
    graph: CUgraph,
    error: *mut CUgraphNode,
    result: *mut u32,
) -> Answer {
    let (code, node_out, why) = match update(d, exec, graph)? {
        Ok(()) => (Ok(()), 0, 0),
        Err(m) => (Err(CUresult(910)), m.node, m.result),
    };
    unsafe {
        put_if(error, node(node_out));
        put_if(result, why);
    }
    code
}

pub(crate) unsafe fn cuGraphExecUpdate_v2(
    d: &Door,
    exec: CUgraphExec,
    graph: CUgraph,
    result: *mut CUgraphExecUpdateResultInfo,
) -> Answer {
    let (code, info) = match update(d, exec, graph)? {
        Ok(()) => (Ok(()), (0, 0, 0)),
        Err(m) => (Err(CUresult(910)), (m.result, m.node, m.from)),
    };
    let (why, at, from) = info;
    let info = CUgraphExecUpdateResultInfo { result: why, errorNode: node(at), errorFromNode: node(from) };
    unsafe { put_if(result, info) };
    code
}
