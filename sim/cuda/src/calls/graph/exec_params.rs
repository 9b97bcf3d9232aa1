//! Parameters of nodes in executable graphs, addressed by the nodes they were made from.

use super::{INVALID, executable, id, make};
use crate::door::{Answer, Door, put};
use crate::graph::exec::Body;
use crate::graph::node::Kind;
use shim_sys::cuda::*;

fn set(d: &Door, exec: CUgraphExec, node: CUgraphNode, make: impl FnOnce() -> Result<Kind, CUresult>) -> Answer {
    let x = executable(d, exec)?;
    d.driver()?.graphs.world().node(id(node.0))?;
    x.set(id(node.0), make()?)
}

pub(crate) unsafe fn cuGraphExecKernelNodeSetParams(
    d: &Door,
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Answer {
    set(d, exec, node, || unsafe { make::kernel_v1(d, params) })
}

pub(crate) unsafe fn cuGraphExecKernelNodeSetParams_v2(
    d: &Door,
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> Answer {
    set(d, exec, node, || unsafe { make::kernel(d, params) })
}

pub(crate) unsafe fn cuGraphExecMemcpyNodeSetParams(
    d: &Door,
    exec: CUgraphExec,
    node: CUgraphNode,
    copy: *const CUDA_MEMCPY3D,
    ctx: CUcontext,
) -> Answer {
    set(d, exec, node, || unsafe { make::copy(d, copy, ctx) })
}

pub(crate) unsafe fn cuGraphExecMemsetNodeSetParams(
    d: &Door,
    exec: CUgraphExec,
    node: CUgraphNode,
    fill: *const CUDA_MEMSET_NODE_PARAMS,
    ctx: CUcontext,
) -> Answer {
    set(d, exec, node, || unsafe { make::fill(d, fill, ctx) })
}

pub(crate) unsafe fn cuGraphExecHostNodeSetParams(
    d: &Door,
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> Answer {
    set(d, exec, node, || unsafe { make::host(params) })
}

pub(crate) unsafe fn cuGraphExecEventRecordNodeSetEvent(
    d: &Door,
    exec: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> Answer {
    set(d, exec, node, || make::event(d, event).map(Kind::Record))
}

pub(crate) unsafe fn cuGraphExecEventWaitNodeSetEvent(
    d: &Door,
    exec: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> Answer {
    set(d, exec, node, || make::event(d, event).map(Kind::Wait))
}

pub(crate) unsafe fn cuGraphExecChildGraphNodeSetParams(
    d: &Door,
    exec: CUgraphExec,
    node: CUgraphNode,
    child: CUgraph,
) -> Answer {
    let x = executable(d, exec)?;
    let world = d.driver()?.graphs.world();
    world.node(id(node.0))?;
    let body = Body::read(&world, id(child.0)).map_err(|r| r.code)?;
    drop(world);
    x.set_child(id(node.0), body)
}

pub(crate) unsafe fn cuGraphNodeSetEnabled(d: &Door, exec: CUgraphExec, node: CUgraphNode, enabled: u32) -> Answer {
    executable(d, exec)?.enabled(id(node.0), Some(enabled != 0)).map(|_| ())
}

pub(crate) unsafe fn cuGraphNodeGetEnabled(
    d: &Door,
    exec: CUgraphExec,
    node: CUgraphNode,
    enabled: *mut u32,
) -> Answer {
    let x = executable(d, exec)?;
    if enabled.is_null() {
        return Err(INVALID);
    }
    unsafe { put(enabled, u32::from(x.enabled(id(node.0), None)?)) }
}
