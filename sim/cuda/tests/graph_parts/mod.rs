//! Shared by the tests of graphs: an initialised driver, short forms of calls, nodes.
#![allow(dead_code)] // each test file uses its part

use crate::ok;
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

pub const MIB: usize = 1 << 20;
pub const PTX: &CStr = c".version 7.0\n.target sm_50\n.address_size 64\n\
    .visible .entry vgpu_spin_ns(.param .u64 ns) { ret; }\n\
    .visible .entry other(.param .u64 p, .param .u32 n) { ret; }\n";

/// Initialises the driver and makes the primary context of device 0 current.
pub fn ready(l: &Library) -> CUcontext {
    let mut ctx = CUcontext::NULL;
    ok!(l, cuInit(0));
    ok!(l, cuDevicePrimaryCtxRetain(&mut ctx, 0));
    ok!(l, cuCtxSetCurrent(ctx));
    ctx
}

pub fn alloc(l: &Library, bytes: usize) -> CUdeviceptr {
    let mut p = 0;
    ok!(l, cuMemAlloc_v2(&mut p, bytes));
    p
}

pub fn kernel(l: &Library, name: &CStr) -> CUfunction {
    let (mut m, mut f) = (CUmodule::NULL, CUfunction::NULL);
    ok!(l, cuModuleLoadData(&mut m, PTX.as_ptr().cast()));
    ok!(l, cuModuleGetFunction(&mut f, m, name.as_ptr()));
    f
}

pub fn stream(l: &Library) -> CUstream {
    let mut s = CUstream::NULL;
    ok!(l, cuStreamCreate(&mut s, CU_STREAM_NON_BLOCKING));
    s
}

pub fn event(l: &Library) -> CUevent {
    let mut e = CUevent::NULL;
    ok!(l, cuEventCreate(&mut e, 0));
    e
}

pub fn graph(l: &Library) -> CUgraph {
    let mut g = CUgraph::NULL;
    ok!(l, cuGraphCreate(&mut g, 0));
    g
}

pub fn instantiate(l: &Library, g: CUgraph, flags: u64) -> CUgraphExec {
    let mut x = CUgraphExec::NULL;
    ok!(l, cuGraphInstantiateWithFlags(&mut x, g, flags));
    x
}

/// Runs a graph once, and waits for its end.
pub fn run(l: &Library, g: CUgraph) {
    let x = instantiate(l, g, 0);
    ok!(l, cuGraphLaunch(x, CUstream::NULL));
    ok!(l, cuCtxSynchronize());
    ok!(l, cuGraphExecDestroy(x));
}

pub fn empty(l: &Library, g: CUgraph, after: &[CUgraphNode]) -> CUgraphNode {
    let mut n = CUgraphNode::NULL;
    ok!(l, cuGraphAddEmptyNode(&mut n, g, after.as_ptr(), after.len()));
    n
}

/// One block of one thread with the arguments `params`.
pub fn launch_of(f: CUfunction, params: *mut *mut c_void) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: f,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: params,
        extra: null_mut(),
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    }
}

/// A node with a kernel of `ns`.
pub fn spin(l: &Library, g: CUgraph, after: &[CUgraphNode], f: CUfunction, mut ns: u64) -> CUgraphNode {
    let mut n = CUgraphNode::NULL;
    let mut params = [(&raw mut ns).cast::<c_void>()];
    ok!(l, cuGraphAddKernelNode_v2(&mut n, g, after.as_ptr(), after.len(), &launch_of(f, params.as_mut_ptr())));
    n
}

/// A copy of `bytes` in one row. The driver tells device and host addresses apart.
pub fn line(dst: u64, src: u64, bytes: usize) -> CUDA_MEMCPY3D {
    // SAFETY: a structure of integers and pointers, for which zero is a value.
    let zero: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    CUDA_MEMCPY3D {
        srcMemoryType: 4,
        srcDevice: src,
        srcHost: null(),
        dstMemoryType: 4,
        dstDevice: dst,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
        ..zero
    }
}

pub fn copy(l: &Library, g: CUgraph, after: &[CUgraphNode], dst: u64, src: u64, bytes: usize) -> CUgraphNode {
    let mut n = CUgraphNode::NULL;
    let c = line(dst, src, bytes);
    ok!(l, cuGraphAddMemcpyNode(&mut n, g, after.as_ptr(), after.len(), &c, CUcontext::NULL));
    n
}

pub fn bytes_of(dst: u64, value: u32, width: usize) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS { dst, pitch: 0, value, elementSize: 1, width, height: 1 }
}

pub fn fill(l: &Library, g: CUgraph, after: &[CUgraphNode], dst: u64, value: u32, bytes: usize) -> CUgraphNode {
    let mut n = CUgraphNode::NULL;
    let p = bytes_of(dst, value, bytes);
    ok!(l, cuGraphAddMemsetNode(&mut n, g, after.as_ptr(), after.len(), &p, CUcontext::NULL));
    n
}

pub fn host(
    l: &Library,
    g: CUgraph,
    after: &[CUgraphNode],
    f: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> CUgraphNode {
    let mut n = CUgraphNode::NULL;
    let p = CUDA_HOST_NODE_PARAMS { f: Some(f), userData: data };
    ok!(l, cuGraphAddHostNode(&mut n, g, after.as_ptr(), after.len(), &p));
    n
}

/// Parameters of an allocation of `bytes` on device 0.
pub fn wanted(bytes: usize) -> CUDA_MEM_ALLOC_NODE_PARAMS {
    CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: CUmemPoolProps {
            allocType: 1,
            handleTypes: 0,
            location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
            win32SecurityAttributes: null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        },
        accessDescs: null(),
        accessDescCount: 0,
        bytesize: bytes,
        dptr: 0,
    }
}

pub fn take(l: &Library, g: CUgraph, after: &[CUgraphNode], bytes: usize) -> (CUgraphNode, CUdeviceptr) {
    let (mut n, mut p) = (CUgraphNode::NULL, wanted(bytes));
    ok!(l, cuGraphAddMemAllocNode(&mut n, g, after.as_ptr(), after.len(), &mut p));
    assert_ne!(p.dptr, 0);
    (n, p.dptr)
}

pub fn give(l: &Library, g: CUgraph, after: &[CUgraphNode], at: CUdeviceptr) -> CUgraphNode {
    let mut n = CUgraphNode::NULL;
    ok!(l, cuGraphAddMemFreeNode(&mut n, g, after.as_ptr(), after.len(), at));
    n
}

/// Reads `n` bytes at a device address.
pub fn read(l: &Library, at: CUdeviceptr, n: usize) -> Vec<u8> {
    let mut out = vec![0u8; n];
    ok!(l, cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), at, n));
    out
}

/// Appends a digit to the number that `data` points at.
pub unsafe extern "C" fn note(data: *mut c_void) {
    // SAFETY: the test passes a digit and a live number.
    unsafe {
        let Note(digit, log) = *data.cast::<Note>();
        *log = *log * 10 + digit;
    }
}

/// Argument of [`note`]: a digit, and the number to which it is appended. The number shows the order of the calls.
#[derive(Clone, Copy)]
pub struct Note(pub u64, pub *mut u64);

/// Waits until the number that `data` points at is not zero.
pub unsafe extern "C" fn wait(data: *mut c_void) {
    // SAFETY: the test passes a live number of its own.
    let flag = unsafe { std::sync::atomic::AtomicU64::from_ptr(data.cast()) };
    while flag.load(std::sync::atomic::Ordering::Acquire) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
