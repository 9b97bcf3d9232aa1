//! Nodes of any type by one structure: creation and change.

use super::{INVALID, add, executable, id, make, params};
use crate::door::{Answer, Door};
use crate::graph::Id;
use crate::graph::exec::Body;
use crate::graph::node::Kind;
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
pub(super) unsafe fn read(d: &Door, p: *mut CUgraphNodeParams, new: Option<(Id, &[Id])>) -> Result<Kind, CUresult> {
    if p.is_null() {
        return Err(INVALID);
    }
    let (kind, inside) = unsafe { ((*p).kind, &raw mut (*p).params) };
    unsafe {
        match (kind, new) {
            (0, _) => make::kernel(d, inside.cast()),
            (1, _) => {
                let c = inside.cast::<CopyNode>();
                if (*c).flags != 0 || (*c).reserved != 0 {
                    return Err(INVALID);
                }
                make::copy(d, &raw const (*c).copy, (*c).ctx)
            }
            (2, _) => {
                let f = inside.cast::<FillNode>();
                make::fill(d, &raw const (*f).fill, (*f).ctx)
            }
            (3, _) => make::host(inside.cast()),
            (4, Some(_)) => {
                let child = add::child(d, *inside.cast::<CUgraph>())?;
                if let Kind::Child(inner) = child {
                    inside.cast::<CUgraph>().write(super::graph(inner));
                }
                Ok(child)
            }
            (5, _) => Ok(Kind::Empty),
            (6, _) => make::event(d, *inside.cast::<CUevent>()).map(Kind::Wait),
            (7, _) => make::event(d, *inside.cast::<CUevent>()).map(Kind::Record),
            (8 | 9 | 12 | 13, _) => Err(CUresult::NOT_SUPPORTED),
            (10, Some((graph, after))) => make::alloc(d, graph, after, inside.cast()),
            (11, Some((graph, _))) => make::free(d, graph, *inside.cast::<CUdeviceptr>()),
            _ => Err(INVALID),
        }
    }
}

pub(crate) unsafe fn cuGraphAddNode(
    d: &Door,
    out: *mut CUgraphNode,
    graph: CUgraph,
    deps: *const CUgraphNode,
    count: usize,
    node: *mut CUgraphNodeParams,
) -> Answer {
    unsafe { add::add(d, out, graph, deps, count, |graph, after| read(d, node, Some((graph, after)))) }
}

/// The graph of a child node, and the memory of an allocation or free node, cannot be changed.
pub(crate) unsafe fn cuGraphNodeSetParams(d: &Door, node: CUgraphNode, new: *mut CUgraphNodeParams) -> Answer {
    params::set(d, node, || unsafe { read(d, new, None) })
}

pub(crate) unsafe fn cuGraphExecNodeSetParams(
    d: &Door,
    exec: CUgraphExec,
    node: CUgraphNode,
    new: *mut CUgraphNodeParams,
) -> Answer {
    let x = executable(d, exec)?;
    let world = &d.driver()?.graphs;
    world.world().node(id(node.0))?;
    if new.is_null() {
        return Err(INVALID);
    }
    if unsafe { (*new).kind } == 4 {
        let child = unsafe { (&raw mut (*new).params).cast::<CUgraph>().read() };
        let body = Body::read(&world.world(), id(child.0)).map_err(|r| r.code)?;
        return x.set_child(id(node.0), body);
    }
    x.set(id(node.0), unsafe { read(d, new, None)? })
}
