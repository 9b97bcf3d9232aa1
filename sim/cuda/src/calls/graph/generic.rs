//! Nodes of any type by one structure: creation and change.

use super::{INVALID_GRAPH_CALL, add, executable_of_handle, handle_id, make, params};
use crate::entry_points::CallFrame;
use crate::errors::CallResult;
use crate::graph::exec::ExecBody;
use crate::graph::node::NodeKind;
use crate::objects::GraphId;
use shim_sys::cuda::*;

/// A copy node in the structure: flags, context, copy.
#[repr(C)]
struct CopyNode {
    flags: i32,
    reserved: i32,
    ctx: CUcontext,
    copy: CUDA_MEMCPY3D,
}

/// A fill node in the structure: the fill and its context.
#[repr(C)]
struct FillNode {
    fill: CUDA_MEMSET_NODE_PARAMS,
    ctx: CUcontext,
}

const _: () = assert!(size_of::<CopyNode>() <= size_of::<[u64; 29]>() && size_of::<FillNode>() == 48);

/// Reads the structure: for a new node of `graph` after `after`, or without a graph for a change of parameters.
/// Semaphores, words of memory and conditions are not simulated.
pub(super) unsafe fn read(
    d: &CallFrame,
    p: *mut CUgraphNodeParams,
    new: Option<(GraphId, &[GraphId])>,
) -> Result<NodeKind, CUresult> {
    if p.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    let (kind, inside) = unsafe { ((*p).kind, &raw mut (*p).params) };
    unsafe {
        match (kind, new) {
            (0, _) => make::kernel_kind(d, inside.cast()),
            (1, _) => {
                let c = inside.cast::<CopyNode>();
                if (*c).flags != 0 || (*c).reserved != 0 {
                    return Err(INVALID_GRAPH_CALL);
                }
                make::copy_kind(d, &raw const (*c).copy, (*c).ctx)
            }
            (2, _) => {
                let f = inside.cast::<FillNode>();
                make::fill_kind(d, &raw const (*f).fill, (*f).ctx)
            }
            (3, _) => make::host_kind(inside.cast()),
            (4, Some(_)) => {
                let child = add::child_kind(d, *inside.cast::<CUgraph>())?;
                if let NodeKind::Child(inner) = child {
                    inside.cast::<CUgraph>().write(super::graph_handle(inner));
                }
                Ok(child)
            }
            (5, _) => Ok(NodeKind::Empty),
            (6, _) => make::event_of_handle(d, *inside.cast::<CUevent>()).map(NodeKind::Wait),
            (7, _) => make::event_of_handle(d, *inside.cast::<CUevent>()).map(NodeKind::Record),
            (8 | 9 | 12 | 13, _) => Err(CUresult::NOT_SUPPORTED),
            (10, Some((graph, after))) => make::alloc(d, graph, after, inside.cast()),
            (11, Some((graph, _))) => make::free(d, graph, *inside.cast::<CUdeviceptr>()),
            _ => Err(INVALID_GRAPH_CALL),
        }
    }
}

pub(crate) unsafe fn cuGraphAddNode(
    d: &CallFrame,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    node: *mut CUgraphNodeParams,
) -> CallResult {
    unsafe { add::add(d, out, graph, deps, count, |graph, after| read(d, node, Some((graph, after)))) }
}

/// The graph of a child node, and the memory of an allocation or free node, cannot be changed.
pub(crate) unsafe fn cuGraphNodeSetParams(d: &CallFrame, node: CUgraphNode, new: *mut CUgraphNodeParams) -> CallResult {
    params::set(d, node, || unsafe { read(d, new, None) })
}

pub(crate) unsafe fn cuGraphExecNodeSetParams(
    d: &CallFrame,
    exec: CUgraphExec,
    node: CUgraphNode,
    new: *mut CUgraphNodeParams,
) -> CallResult {
    let x = executable_of_handle(d, exec)?;
    let world = &d.graph_tables()?;
    world.lock_world().node_by_id(handle_id(node.0))?;
    if new.is_null() {
        return Err(INVALID_GRAPH_CALL);
    }
    if unsafe { (*new).kind } == 4 {
        let child = unsafe { (&raw mut (*new).params).cast::<CUgraph>().read() };
        let body = ExecBody::read(&world.lock_world(), handle_id(child.0)).map_err(|r| r.code)?;
        return x.set_child(handle_id(node.0), body);
    }
    x.set(handle_id(node.0), unsafe { read(d, new, None)? })
}
