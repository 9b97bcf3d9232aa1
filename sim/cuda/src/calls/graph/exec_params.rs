//! Parameters of nodes in executable graphs, addressed by the nodes they were made from.

use super::{INVALID_GRAPH_CALL, executable_of_handle, handle_id, make};
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::graph::exec::ExecBody;
use crate::graph::node::NodeKind;
use shim_sys::cuda::*;

fn set(
    d: &CallFrame,
    exec: CUgraphExec,
    node: CUgraphNode,
    make: impl FnOnce() -> Result<NodeKind, CUresult>,
) -> CallResult {
    let x = executable_of_handle(d, exec)?;
    d.graph_tables()?.lock_world().node_by_id(handle_id(node.0))?;
    x.set(handle_id(node.0), make()?)
}

pub(crate) unsafe fn cuGraphExecKernelNodeSetParams(
    d: &CallFrame,
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> CallResult {
    set(d, exec, node, || unsafe { make::kernel_v1(d, params) })
}

pub(crate) unsafe fn cuGraphExecKernelNodeSetParams_v2(
    d: &CallFrame,
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> CallResult {
    set(d, exec, node, || unsafe { make::kernel_kind(d, params) })
}

pub(crate) unsafe fn cuGraphExecMemcpyNodeSetParams(
    d: &CallFrame,
    exec: CUgraphExec,
    node: CUgraphNode,
    copy: *const CUDA_MEMCPY3D,
    ctx: CUcontext,
) -> CallResult {
    set(d, exec, node, || unsafe { make::copy_kind(d, copy, ctx) })
}

pub(crate) unsafe fn cuGraphExecMemsetNodeSetParams(
    d: &CallFrame,
    exec: CUgraphExec,
    node: CUgraphNode,
    fill: *const CUDA_MEMSET_NODE_PARAMS,
    ctx: CUcontext,
) -> CallResult {
    set(d, exec, node, || unsafe { make::fill_kind(d, fill, ctx) })
}

pub(crate) unsafe fn cuGraphExecHostNodeSetParams(
    d: &CallFrame,
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> CallResult {
    set(d, exec, node, || unsafe { make::host_kind(params) })
}

pub(crate) unsafe fn cuGraphExecEventRecordNodeSetEvent(
    d: &CallFrame,
    exec: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> CallResult {
    set(d, exec, node, || make::event_of_handle(d, event).map(NodeKind::Record))
}

pub(crate) unsafe fn cuGraphExecEventWaitNodeSetEvent(
    d: &CallFrame,
    exec: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> CallResult {
    set(d, exec, node, || make::event_of_handle(d, event).map(NodeKind::Wait))
}

pub(crate) unsafe fn cuGraphExecChildGraphNodeSetParams(
    d: &CallFrame,
    exec: CUgraphExec,
    node: CUgraphNode,
    child: CUgraph,
) -> CallResult {
    let x = executable_of_handle(d, exec)?;
    let world = d.graph_tables()?.lock_world();
    world.node_by_id(handle_id(node.0))?;
    let body = ExecBody::read(&world, handle_id(child.0)).map_err(|r| r.code)?;
    drop(world);
    x.set_child(handle_id(node.0), body)
}

pub(crate) unsafe fn cuGraphNodeSetEnabled(
    d: &CallFrame,
    exec: CUgraphExec,
    node: CUgraphNode,
    enabled: u32,
) -> CallResult {
    executable_of_handle(d, exec)?.set_enabled(handle_id(node.0), Some(enabled != 0)).map(|_| ())
}

pub(crate) unsafe fn cuGraphNodeGetEnabled(
    d: &CallFrame,
    exec: CUgraphExec,
    node: CUgraphNode,
    enabled: *mut u32,
) -> CallResult {
    let x = executable_of_handle(d, exec)?;
    if enabled.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    unsafe { write_output(enabled, u32::from(x.set_enabled(handle_id(node.0), None)?)) }
}
