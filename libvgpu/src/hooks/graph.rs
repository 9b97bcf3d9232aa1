//! Graph memory: the needs of a graph's nodes are computed when it is instantiated, reserved when it is uploaded or
//! launched (`launch`), and released by a trim.
//!
//! Not hooked: building and capturing graphs, which takes no memory, and reading the attributes of graph memory,
//! which are the driver's numbers that the charge follows.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

use crate::device::table;
use crate::driver::library::DriverCall;
use crate::driver::streams::StreamId;
use crate::member::enforce;
use crate::memory::graphs::{self, GraphNeeds};
use crate::memory::pools;
use crate::process::mode::Denied;
use crate::time::governor;
use core::ffi::c_char;
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;

/// Instantiation flag: upload at once.
const UPLOAD_FLAG: u64 = 2;

fn instantiate_graph(graph: CUgraph, upload: bool, exec: *mut CUgraphExec, real: DriverCall<'_>) -> CUresult {
    match enforce::is_enforced() {
        Ok(false) => return real(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let mut needs = if graph.0.is_null() { GraphNeeds::default() } else { graphs::needs_of(graph) };
    if needs.is_nothing() {
        let result = real();
        if result.ok() {
            graphs::note_executable(unsafe { *exec }, needs); // the handle may have belonged to another graph
            graph_made(unsafe { *exec });
        }
        return result;
    }
    let result = if upload { graphs::call_with_needs(&mut needs, None, real) } else { real() };
    if result.ok() {
        graphs::measure_needs(&needs);
        graphs::note_executable(unsafe { *exec }, needs);
        graph_made(unsafe { *exec });
    }
    result
}

macro_rules! instantiation {
    ($name:ident) => {
        pub unsafe fn $name(
            real: cuda_fn::$name,
            exec: *mut CUgraphExec,
            graph: CUgraph,
            error_node: *mut CUgraphNode,
            log: *mut c_char,
            size: usize,
        ) -> CUresult {
            instantiate_graph(graph, false, exec, &mut || unsafe { real(exec, graph, error_node, log, size) })
        }
    };
}

instantiation!(cuGraphInstantiate);
instantiation!(cuGraphInstantiate_v2);

pub unsafe fn cuGraphInstantiateWithFlags(
    real: cuda_fn::cuGraphInstantiateWithFlags,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> CUresult {
    instantiate_graph(graph, flags & UPLOAD_FLAG != 0, exec, &mut || unsafe { real(exec, graph, flags) })
}

macro_rules! instantiation_with_params {
    ($name:ident) => {
        pub unsafe fn $name(
            real: cuda_fn::$name,
            exec: *mut CUgraphExec,
            graph: CUgraph,
            params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
        ) -> CUresult {
            // Null is the driver's error to report.
            let upload = unsafe { params.as_ref() }.is_some_and(|params| params.flags & UPLOAD_FLAG != 0);
            instantiate_graph(graph, upload, exec, &mut || unsafe { real(exec, graph, params) })
        }
    };
}

instantiation_with_params!(cuGraphInstantiateWithParams);
instantiation_with_params!(cuGraphInstantiateWithParams_ptsz);

/// Records an update that the driver accepted: from now on the executable graph has the needs of `graph`.
fn note_update(exec: CUgraphExec, graph: CUgraph, result: CUresult) -> CUresult {
    if result.ok() && enforce::is_enforced() == Ok(true) {
        let needs = graphs::needs_of(graph);
        graphs::measure_needs(&needs);
        graphs::note_executable(exec, needs);
    }
    result
}

pub unsafe fn cuGraphExecUpdate(
    real: cuda_fn::cuGraphExecUpdate,
    exec: CUgraphExec,
    graph: CUgraph,
    error_node: *mut CUgraphNode,
    answer: *mut u32,
) -> CUresult {
    note_update(exec, graph, unsafe { real(exec, graph, error_node, answer) })
}

pub unsafe fn cuGraphExecUpdate_v2(
    real: cuda_fn::cuGraphExecUpdate_v2,
    exec: CUgraphExec,
    graph: CUgraph,
    answer: *mut CUgraphExecUpdateResultInfo,
) -> CUresult {
    note_update(exec, graph, unsafe { real(exec, graph, answer) })
}

pub unsafe fn cuGraphExecDestroy(real: cuda_fn::cuGraphExecDestroy, exec: CUgraphExec) -> CUresult {
    if enforce::is_enforced() != Ok(true) {
        return unsafe { real(exec) };
    }
    // Taken out before, because the handle may be reused right after.
    let taken = graphs::take_executable(exec);
    let result = unsafe { real(exec) };
    match taken {
        Some(needs) if result.ok() => graphs::measure_needs(&needs),
        Some(needs) => graphs::note_executable(exec, needs),
        None => {}
    }
    result
}

pub unsafe fn cuGraphUpload(real: cuda_fn::cuGraphUpload, exec: CUgraphExec, stream: CUstream) -> CUresult {
    launch_graph(exec, StreamId { stream, per_thread: false }, &mut || unsafe { real(exec, stream) })
}

pub unsafe fn cuGraphUpload_ptsz(real: cuda_fn::cuGraphUpload_ptsz, exec: CUgraphExec, stream: CUstream) -> CUresult {
    launch_graph(exec, StreamId { stream, per_thread: true }, &mut || unsafe { real(exec, stream) })
}

pub unsafe fn cuDeviceGraphMemTrim(real: cuda_fn::cuDeviceGraphMemTrim, dev: CUdevice) -> CUresult {
    let result = unsafe { real(dev) };
    if result.ok()
        && enforce::is_enforced() == Ok(true)
        && let Some(device) = table::by_cuda(dev)
    {
        pools::graphs_trimmed(device);
    }
    result
}

/// A graph was made executable: forgets the cost of the graph that had this handle before.
fn graph_made(exec: CUgraphExec) {
    if governor::is_active() {
        let governors = table::all().filter_map(|device| device.governor.as_ref());
        governors.for_each(|governor| governor.forget_graph(exec));
    }
}

/// Launches or uploads a graph with the memory that it may allocate charged.
///
/// # Cost
/// One load where no graph allocates.
#[inline]
pub(super) fn launch_graph(exec: CUgraphExec, order: StreamId, real: DriverCall<'_>) -> CUresult {
    if graphs::any_allocates() { launch_allocating(exec, order, real) } else { real() }
}

#[cold]
fn launch_allocating(exec: CUgraphExec, order: StreamId, real: DriverCall<'_>) -> CUresult {
    // A forked child has no graphs.
    if enforce::is_enforced() == Ok(true) { graphs::launch(exec, order, real) } else { real() }
}
