//! Parameters and attributes of nodes, by type.

use super::{INVALID, id, make};
use crate::door::{Answer, Door, put};
use crate::graph::node::{Alloc, Kernel, Kind};
use crate::objects::handle;
use core::ffi::c_void;
use shim_sys::cuda::*;

/// Kernel attributes that are stored: access window, cooperative, cluster size and policy, priority, memory
/// domains.
const ATTRIBUTES: [u32; 7] = [1, 2, 4, 5, 8, 9, 10];

fn kind(d: &Door, node: CUgraphNode) -> Result<Kind, CUresult> {
    Ok(d.driver()?.graphs.world().node(id(node.0))?.kind.clone())
}

/// Replaces the work of a node by other work of the same type.
pub(super) fn set(d: &Door, node: CUgraphNode, make: impl FnOnce() -> Result<Kind, CUresult>) -> Answer {
    let old = kind(d, node)?;
    let mut new = make()?;
    if old.number() != new.number() {
        return Err(INVALID);
    }
    // Attributes are not parameters, so they stay.
    if let (Kind::Kernel(old), Kind::Kernel(new)) = (&old, &mut new) {
        new.attributes.clone_from(&old.attributes);
    }
    d.driver()?.graphs.world().node_mut(id(node.0))?.kind = new;
    Ok(())
}

/// A kernel node's parameters as a query returns them.
pub(super) fn described(k: &Kernel) -> CUDA_KERNEL_NODE_PARAMS {
    let (func, kern, ctx) = k.named;
    CUDA_KERNEL_NODE_PARAMS {
        func,
        gridDimX: k.shape.grid[0],
        gridDimY: k.shape.grid[1],
        gridDimZ: k.shape.grid[2],
        blockDimX: k.shape.block[0],
        blockDimY: k.shape.block[1],
        blockDimZ: k.shape.block[2],
        sharedMemBytes: k.shape.shared,
        kernelParams: k.arguments.pointers(),
        extra: k.arguments.list(),
        kern,
        ctx: if ctx.is_null() { make::handle_of(&k.context) } else { ctx },
    }
}

/// An allocation node's parameters as a query returns them.
pub(super) fn described_alloc(a: &Alloc) -> CUDA_MEM_ALLOC_NODE_PARAMS {
    let access = if a.access.is_empty() { core::ptr::null() } else { a.access.as_ptr() };
    CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: a.props,
        accessDescs: access,
        accessDescCount: a.access.len(),
        bytesize: usize::try_from(a.region.bytes).unwrap_or(usize::MAX),
        dptr: a.region.span.at,
    }
}

pub(crate) unsafe fn cuGraphKernelNodeGetParams(
    d: &Door,
    node: CUgraphNode,
    params: *mut CUDA_KERNEL_NODE_PARAMS_v1,
) -> Answer {
    let Kind::Kernel(k) = kind(d, node)? else { return Err(INVALID) };
    let p = described(&k);
    let old = CUDA_KERNEL_NODE_PARAMS_v1 {
        func: if p.func.is_null() { CUfunction(p.kern.0) } else { p.func },
        gridDimX: p.gridDimX,
        gridDimY: p.gridDimY,
        gridDimZ: p.gridDimZ,
        blockDimX: p.blockDimX,
        blockDimY: p.blockDimY,
        blockDimZ: p.blockDimZ,
        sharedMemBytes: p.sharedMemBytes,
        kernelParams: p.kernelParams,
        extra: p.extra,
    };
    unsafe { put(params, old) }
}

pub(crate) unsafe fn cuGraphKernelNodeGetParams_v2(
    d: &Door,
    node: CUgraphNode,
    params: *mut CUDA_KERNEL_NODE_PARAMS,
) -> Answer {
    let Kind::Kernel(k) = kind(d, node)? else { return Err(INVALID) };
    unsafe { put(params, described(&k)) }
}

pub(crate) unsafe fn cuGraphKernelNodeSetParams(
    d: &Door,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Answer {
    set(d, node, || unsafe { make::kernel_v1(d, params) })
}

pub(crate) unsafe fn cuGraphKernelNodeSetParams_v2(
    d: &Door,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> Answer {
    set(d, node, || unsafe { make::kernel(d, params) })
}

pub(crate) unsafe fn cuGraphKernelNodeGetAttribute(
    d: &Door,
    node: CUgraphNode,
    attribute: u32,
    value: *mut c_void,
) -> Answer {
    let Kind::Kernel(k) = kind(d, node)? else { return Err(INVALID) };
    if !ATTRIBUTES.contains(&attribute) {
        return Err(INVALID);
    }
    unsafe { put(value.cast(), k.attributes.get(&attribute).copied().unwrap_or([0u8; 64])) }
}

pub(crate) unsafe fn cuGraphKernelNodeSetAttribute(
    d: &Door,
    node: CUgraphNode,
    attribute: u32,
    value: *const c_void,
) -> Answer {
    let mut world = d.driver()?.graphs.world();
    let Kind::Kernel(k) = &mut world.node_mut(id(node.0))?.kind else { return Err(INVALID) };
    if value.is_null() || !ATTRIBUTES.contains(&attribute) {
        return Err(INVALID);
    }
    k.attributes.insert(attribute, unsafe { value.cast::<[u8; 64]>().read_unaligned() });
    Ok(())
}

pub(crate) unsafe fn cuGraphKernelNodeCopyAttributes(d: &Door, dst: CUgraphNode, src: CUgraphNode) -> Answer {
    let Kind::Kernel(from) = kind(d, src)? else { return Err(INVALID) };
    let mut world = d.driver()?.graphs.world();
    let Kind::Kernel(to) = &mut world.node_mut(id(dst.0))?.kind else { return Err(INVALID) };
    to.attributes = from.attributes;
    Ok(())
}

pub(crate) unsafe fn cuGraphMemcpyNodeGetParams(d: &Door, node: CUgraphNode, params: *mut CUDA_MEMCPY3D) -> Answer {
    let Kind::Copy(c) = kind(d, node)? else { return Err(INVALID) };
    unsafe { put(params, c.params) }
}

/// The context does not change.
pub(crate) unsafe fn cuGraphMemcpyNodeSetParams(d: &Door, node: CUgraphNode, params: *const CUDA_MEMCPY3D) -> Answer {
    let Kind::Copy(c) = kind(d, node)? else { return Err(INVALID) };
    set(d, node, || unsafe { make::copy(d, params, make::handle_of(&c.context)) })
}

pub(crate) unsafe fn cuGraphMemsetNodeGetParams(
    d: &Door,
    node: CUgraphNode,
    params: *mut CUDA_MEMSET_NODE_PARAMS,
) -> Answer {
    let Kind::Fill(f) = kind(d, node)? else { return Err(INVALID) };
    unsafe { put(params, f.params) }
}

/// The context does not change.
pub(crate) unsafe fn cuGraphMemsetNodeSetParams(
    d: &Door,
    node: CUgraphNode,
    params: *const CUDA_MEMSET_NODE_PARAMS,
) -> Answer {
    let Kind::Fill(f) = kind(d, node)? else { return Err(INVALID) };
    set(d, node, || unsafe { make::fill(d, params, make::handle_of(&f.context)) })
}

pub(crate) unsafe fn cuGraphHostNodeGetParams(
    d: &Door,
    node: CUgraphNode,
    params: *mut CUDA_HOST_NODE_PARAMS,
) -> Answer {
    let Kind::Host(h) = kind(d, node)? else { return Err(INVALID) };
    unsafe { put(params, CUDA_HOST_NODE_PARAMS { f: Some(h.f), userData: h.data }) }
}

pub(crate) unsafe fn cuGraphHostNodeSetParams(
    d: &Door,
    node: CUgraphNode,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> Answer {
    set(d, node, || unsafe { make::host(params) })
}

pub(crate) unsafe fn cuGraphEventRecordNodeGetEvent(d: &Door, node: CUgraphNode, event: *mut CUevent) -> Answer {
    let Kind::Record(e) = kind(d, node)? else { return Err(INVALID) };
    unsafe { put(event, CUevent(handle(&e))) }
}

pub(crate) unsafe fn cuGraphEventRecordNodeSetEvent(d: &Door, node: CUgraphNode, event: CUevent) -> Answer {
    set(d, node, || make::event(d, event).map(Kind::Record))
}

pub(crate) unsafe fn cuGraphEventWaitNodeGetEvent(d: &Door, node: CUgraphNode, event: *mut CUevent) -> Answer {
    let Kind::Wait(e) = kind(d, node)? else { return Err(INVALID) };
    unsafe { put(event, CUevent(handle(&e))) }
}

pub(crate) unsafe fn cuGraphEventWaitNodeSetEvent(d: &Door, node: CUgraphNode, event: CUevent) -> Answer {
    set(d, node, || make::event(d, event).map(Kind::Wait))
}

pub(crate) unsafe fn cuGraphMemAllocNodeGetParams(
    d: &Door,
    node: CUgraphNode,
    params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Answer {
    let Kind::Alloc(a) = kind(d, node)? else { return Err(INVALID) };
    unsafe { put(params, described_alloc(&a)) }
}

pub(crate) unsafe fn cuGraphMemFreeNodeGetParams(d: &Door, node: CUgraphNode, dptr: *mut CUdeviceptr) -> Answer {
    let Kind::Free(r) = kind(d, node)? else { return Err(INVALID) };
    unsafe { put(dptr, r.span.at) }
}
