//! C types for the nodes of graphs.

use super::{
    CUcontext, CUdeviceptr, CUfunction, CUgraphNode, CUhostFn, CUkernel, CUmemAccessDesc, CUmemPoolProps, CUstream,
};
use core::ffi::c_void;

/// Parameters of a kernel node.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_KERNEL_NODE_PARAMS {
    /// The kernel, or null where `kern` is set.
    pub func: CUfunction,
    /// Blocks of the grid in x.
    pub gridDimX: u32,
    /// Blocks of the grid in y.
    pub gridDimY: u32,
    /// Blocks of the grid in z.
    pub gridDimZ: u32,
    /// Threads of a block in x.
    pub blockDimX: u32,
    /// Threads of a block in y.
    pub blockDimY: u32,
    /// Threads of a block in z.
    pub blockDimZ: u32,
    /// Bytes of dynamic shared memory.
    pub sharedMemBytes: u32,
    /// Pointers to the kernel's arguments.
    pub kernelParams: *mut *mut c_void,
    /// Alternative to `kernelParams`: a packed list of the arguments.
    pub extra: *mut *mut c_void,
    /// Kernel of a library, instead of `func`.
    pub kern: CUkernel,
    /// The context it runs in.
    pub ctx: CUcontext,
}

/// A kernel node, as the calls without suffix pass it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_KERNEL_NODE_PARAMS_v1 {
    /// The kernel that the node launches.
    pub func: CUfunction,
    /// Blocks of the grid in x.
    pub gridDimX: u32,
    /// Blocks of the grid in y.
    pub gridDimY: u32,
    /// Blocks of the grid in z.
    pub gridDimZ: u32,
    /// Threads of a block in x.
    pub blockDimX: u32,
    /// Threads of a block in y.
    pub blockDimY: u32,
    /// Threads of a block in z.
    pub blockDimZ: u32,
    /// Bytes of dynamic shared memory.
    pub sharedMemBytes: u32,
    /// Pointers to the kernel's arguments.
    pub kernelParams: *mut *mut c_void,
    /// Alternative to `kernelParams`: a packed list of the arguments.
    pub extra: *mut *mut c_void,
}

/// A node that fills memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMSET_NODE_PARAMS {
    /// Address of the memory to fill.
    pub dst: CUdeviceptr,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// Value that each element is filled with.
    pub value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub elementSize: u32,
    /// Elements to fill in each row.
    pub width: usize,
    /// Number of rows to fill.
    pub height: usize,
}

/// A node that runs host code.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_HOST_NODE_PARAMS {
    /// Host function that the node calls.
    pub f: CUhostFn,
    /// Argument of the host function.
    pub userData: *mut c_void,
}

/// Parameters of a node that allocates memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS {
    /// Location and kind of the memory.
    pub poolProps: CUmemPoolProps,
    /// Further devices that get access, apart from the memory's own.
    pub accessDescs: *const CUmemAccessDesc,
    /// Number of entries in `accessDescs`.
    pub accessDescCount: usize,
    /// Bytes to allocate.
    pub bytesize: usize,
    /// Written by the driver: the address.
    pub dptr: CUdeviceptr,
}

/// A node that operates on words of memory in stream order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_BATCH_MEM_OP_NODE_PARAMS {
    /// Context in which the operations run.
    pub ctx: CUcontext,
    /// Number of operations in `paramArray`.
    pub count: u32,
    /// Array of the operations on memory words.
    pub paramArray: *mut c_void,
    /// Reserved; zero.
    pub flags: u32,
}

/// Parameters for instantiating a graph.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    /// 1: free on launch; 2: upload; 4: launch from the device; 8: priorities of nodes.
    pub flags: u64,
    /// Stream in which the graph is uploaded.
    pub hUploadStream: CUstream,
    /// Written by the driver: the node that failed.
    pub hErrNode_out: CUgraphNode,
    /// Written by the driver: the reason.
    pub result_out: u32,
}

/// Result of updating an executable graph.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUgraphExecUpdateResultInfo {
    /// Reason of a failed update; 0: success.
    pub result: u32,
    /// The node that failed.
    pub errorNode: CUgraphNode,
    /// Start node of the edge that failed.
    pub errorFromNode: CUgraphNode,
}

/// Kind of an edge. All zero: the second node starts after the whole first node.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CUgraphEdgeData {
    /// Port of the first node.
    pub from_port: u8,
    /// Port of the second node.
    pub to_port: u8,
    /// Kind of the dependency between the nodes.
    pub kind: u8,
    /// Reserved; zero.
    pub reserved: [u8; 5],
}

/// A node of any kind.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUgraphNodeParams {
    /// The node's kind: 0 kernel, 1 copy, 2 fill, 3 host, 4 graph, 5 empty, 6 and 7 events, 8 and 9 semaphores, 10
    /// allocate, 11 free, 12 words of memory, 13 conditional.
    pub kind: u32,
    /// Reserved; zero.
    pub reserved0: [i32; 3],
    /// The parameters of that kind.
    pub params: [u64; 29],
    /// Reserved; zero.
    pub reserved2: u64,
}

/// One device's part of a cooperative launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_LAUNCH_PARAMS {
    /// The kernel that this device runs.
    pub function: CUfunction,
    /// Blocks of this device's grid in x.
    pub gridDimX: u32,
    /// Blocks of the grid in y.
    pub gridDimY: u32,
    /// Blocks of the grid in z.
    pub gridDimZ: u32,
    /// Threads of a block in x.
    pub blockDimX: u32,
    /// Threads of a block in y.
    pub blockDimY: u32,
    /// Threads of a block in z.
    pub blockDimZ: u32,
    /// Bytes of dynamic shared memory.
    pub sharedMemBytes: u32,
    /// Stream of the launch.
    pub hStream: CUstream,
    /// Pointers to the kernel's arguments.
    pub kernelParams: *mut *mut c_void,
}

/// Attribute of a device's graph memory: bytes held by allocations.
pub const CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: u32 = 0;
/// Attribute of a device's graph memory: most bytes held by allocations since the last reset.
pub const CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: u32 = 1;
/// Attribute of a device's graph memory: bytes that the driver keeps for graphs.
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: u32 = 2;
/// Attribute of a device's graph memory: most bytes that the driver kept for graphs since the last reset.
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: u32 = 3;
