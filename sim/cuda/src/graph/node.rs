//! The work of a node with all its data; arguments are copied when the node is made.

use super::memory::GraphRegion;
use crate::context::CudaContext;
use crate::objects::{EventObject, FunctionObject, GraphId};
use crate::work::kernel::{LaunchCost, LaunchShape, packed_buffer};
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The work of a node.
#[derive(Clone)]
pub(crate) enum NodeKind {
    Kernel(KernelNode),
    Copy(GraphCopy),
    Fill(GraphFill),
    Host(HostNode),
    /// The child graph that belongs to the node.
    Child(GraphId),
    Empty,
    Wait(Arc<EventObject>),
    Record(Arc<EventObject>),
    Alloc(AllocationNode),
    Free(Arc<GraphRegion>),
}

impl NodeKind {
    /// The driver's number for this type of node.
    pub(crate) fn kind_number(&self) -> u32 {
        match self {
            NodeKind::Kernel(_) => 0,
            NodeKind::Copy(_) => 1,
            NodeKind::Fill(_) => 2,
            NodeKind::Host(_) => 3,
            NodeKind::Child(_) => 4,
            NodeKind::Empty => 5,
            NodeKind::Wait(_) => 6,
            NodeKind::Record(_) => 7,
            NodeKind::Alloc(_) => 10,
            NodeKind::Free(_) => 11,
        }
    }

    /// The name of this type in DOT output.
    pub(crate) fn kind_word(&self) -> &'static str {
        match self {
            NodeKind::Kernel(_) => "kernel",
            NodeKind::Copy(_) => "copy",
            NodeKind::Fill(_) => "fill",
            NodeKind::Host(_) => "host",
            NodeKind::Child(_) => "graph",
            NodeKind::Empty => "empty",
            NodeKind::Wait(_) => "wait",
            NodeKind::Record(_) => "record",
            NodeKind::Alloc(_) => "allocate",
            NodeKind::Free(_) => "free",
        }
    }

    /// True if the node can be disabled in an executable graph.
    pub(crate) fn can_rest(&self) -> bool {
        matches!(self, NodeKind::Kernel(_) | NodeKind::Copy(_) | NodeKind::Fill(_))
    }
}

/// The arguments of a kernel: the driver's own copy, and the pointers to it that a query returns.
pub(crate) struct KernelArguments {
    bytes: Box<[u8]>,
    pointers: Box<[*mut c_void]>,
    /// The packed list (1, bytes, 2, size, 0), if the program passed one.
    list: Option<Box<[*mut c_void; 5]>>,
    size: Box<usize>,
}

// SAFETY: the pointers point into the same object, which is never changed.
unsafe impl Send for KernelArguments {}
// SAFETY: as above.
unsafe impl Sync for KernelArguments {}

impl KernelArguments {
    /// Copies the arguments of `f`.
    ///
    /// # Safety
    /// As for a launch with the same pointers.
    pub(crate) unsafe fn read(
        f: &FunctionObject,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<Arc<KernelArguments>, CUresult> {
        let layout = &f.entry.params;
        let mut bytes = vec![0u8; layout.iter().map(|(at, n)| at + n).max().unwrap_or(0)];
        if !params.is_null() {
            for (i, (at, n)) in layout.iter().enumerate() {
                // SAFETY: the caller's promise: one pointer per parameter, valid for that parameter's bytes.
                unsafe {
                    let from: *const u8 = params.add(i).read().cast();
                    if from.is_null() {
                        return Err(CUresult::INVALID_VALUE);
                    }
                    std::ptr::copy_nonoverlapping(from, bytes[*at..].as_mut_ptr(), *n);
                }
            }
        } else if !extra.is_null() {
            // SAFETY: the caller's promise: a packed list.
            let (from, size) = unsafe { packed_buffer(extra)? };
            bytes.resize(bytes.len().max(size), 0);
            // SAFETY: the list states this number of bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size) };
        }
        let mut bytes = bytes.into_boxed_slice();
        let base = bytes.as_mut_ptr();
        let pointers = layout.iter().map(|(at, _)| base.wrapping_add(*at).cast()).collect();
        let mut size = Box::new(bytes.len());
        let key = |n: usize| n as *mut c_void;
        let list = (params.is_null() && !extra.is_null())
            .then(|| Box::new([key(1), base.cast(), key(2), (&raw mut *size).cast(), key(0)]));
        Ok(Arc::new(KernelArguments { bytes, pointers, list, size }))
    }

    /// The arguments as `kernelParams`: null if the program passed a packed list, or there are none.
    pub(crate) fn argument_pointers(&self) -> *mut *mut c_void {
        if self.list.is_some() || self.pointers.is_empty() {
            return std::ptr::null_mut();
        }
        self.pointers.as_ptr().cast_mut()
    }

    /// The arguments in the form of the launch parameter `extra`; null if the program passed none so.
    pub(crate) fn packed_list(&self) -> *mut *mut c_void {
        debug_assert_eq!(*self.size, self.bytes.len());
        self.list.as_ref().map_or(std::ptr::null_mut(), |l| l.as_ptr().cast_mut())
    }
}

/// A kernel node of a graph.
#[derive(Clone)]
pub(crate) struct KernelNode {
    pub(crate) f: Arc<FunctionObject>,
    pub(crate) context: Arc<CudaContext>,
    /// The function, the library's kernel and the context, as the program passed them.
    pub(crate) named: (CUfunction, CUkernel, CUcontext),
    pub(crate) shape: LaunchShape,
    pub(crate) arguments: Arc<KernelArguments>,
    /// Duration and effect of a launch.
    pub(crate) cost: LaunchCost,
    /// Attributes by number, 64 bytes each as in the driver API.
    pub(crate) attributes: BTreeMap<u32, [u8; 64]>,
}

/// A copy node of a graph.
#[derive(Clone)]
pub(crate) struct GraphCopy {
    pub(crate) params: CUDA_MEMCPY3D,
    pub(crate) context: Arc<CudaContext>,
}

// SAFETY: the addresses are the program's; the node reads them only when it runs.
unsafe impl Send for GraphCopy {}
// SAFETY: as above.
unsafe impl Sync for GraphCopy {}

impl GraphCopy {
    /// True for a copy of a single row.
    pub(crate) fn is_line(&self) -> bool {
        self.params.Height <= 1 && self.params.Depth <= 1
    }

    /// True if both copy the same rows between the same addresses.
    pub(crate) fn is_same_copy(a: &GraphCopy, b: &GraphCopy) -> bool {
        let side = |c: &CUDA_MEMCPY3D| {
            let from = (c.srcHost, c.srcDevice, c.srcArray, c.srcXInBytes, c.srcY, c.srcZ, c.srcPitch, c.srcHeight);
            let to = (c.dstHost, c.dstDevice, c.dstArray, c.dstXInBytes, c.dstY, c.dstZ, c.dstPitch, c.dstHeight);
            (from, to, [c.WidthInBytes, c.Height, c.Depth])
        };
        side(&a.params) == side(&b.params)
    }
}

/// A memset node of a graph.
#[derive(Clone)]
pub(crate) struct GraphFill {
    pub(crate) params: CUDA_MEMSET_NODE_PARAMS,
    pub(crate) context: Arc<CudaContext>,
}

impl GraphFill {
    /// True for a fill of a single row.
    pub(crate) fn is_line(&self) -> bool {
        self.params.height <= 1
    }

    /// True if both fill the same rows with the same value.
    pub(crate) fn is_same_fill(a: &GraphFill, b: &GraphFill) -> bool {
        let all = |p: &CUDA_MEMSET_NODE_PARAMS| (p.dst, p.pitch, p.value, p.elementSize, p.width, p.height);
        all(&a.params) == all(&b.params)
    }

    /// The bytes of one element.
    pub(crate) fn fill_pattern(&self) -> Vec<u8> {
        self.params.value.to_le_bytes()[..self.params.elementSize as usize].to_vec()
    }
}

/// A host node of a graph: it calls a function of the program.
#[derive(Clone)]
pub(crate) struct HostNode {
    pub(crate) f: unsafe extern "C" fn(*mut c_void),
    pub(crate) data: *mut c_void,
}

// SAFETY: the program passes the pointer so that its function receives it on another thread.
unsafe impl Send for HostNode {}
// SAFETY: as above.
unsafe impl Sync for HostNode {}

impl HostNode {
    /// Calls the program's function.
    pub(crate) fn call_host(&self) {
        // SAFETY: the program's own function with its own argument.
        unsafe { (self.f)(self.data) }
    }
}

/// A node that allocates memory when the graph runs.
#[derive(Clone)]
pub(crate) struct AllocationNode {
    pub(crate) region: Arc<GraphRegion>,
    pub(crate) props: CUmemPoolProps,
    pub(crate) access: Arc<[CUmemAccessDesc]>,
}

// SAFETY: the program's description; its one pointer is not dereferenced.
unsafe impl Send for AllocationNode {}
// SAFETY: as above.
unsafe impl Sync for AllocationNode {}
