//! C types of the CUDA driver API in their ABI layout: transparent integers, opaque pointers, plain structs.
//!
//! Never Rust enums: a value this library does not know must stay a value, not undefined behaviour. Names are the
//! driver's own, so that a reader can look them up; declarations and descriptions are ours. Not here: the functions
//! ([`crate::table`]) and the hooks (libvgpu). `tests/layout.rs` compares sizes and offsets with cudarc's bindings.
#![allow(non_camel_case_types, non_snake_case)]

mod copy;
mod graph;
mod share;

pub use copy::*;
pub use graph::*;
pub use share::*;

use core::ffi::{c_char, c_void};

/// Result code of every driver call; `0` is success.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[must_use]
pub struct CUresult(pub u32);

macro_rules! codes {
    ($ty:ident { $($(#[$doc:meta])* $name:ident = $value:literal;)* }) => {
        impl $ty {
            $($(#[$doc])* pub const $name: $ty = $ty($value);)*

            /// Every code that this project names, as (code, name): for messages and for the simulated driver.
            pub const NAMED: &'static [(u32, &'static str)] = &[$(($value, stringify!($name)),)*];
        }
    };
}

codes!(CUresult {
    /// The call succeeded.
    SUCCESS = 0;
    /// An argument is out of range, or a pointer is missing.
    INVALID_VALUE = 1;
    /// Not enough device memory; a tenant gets it at its limit.
    OUT_OF_MEMORY = 2;
    /// `cuInit` has not succeeded yet.
    NOT_INITIALIZED = 3;
    /// The driver is shutting down.
    DEINITIALIZED = 4;
    /// The driver found no device.
    NO_DEVICE = 100;
    /// The ordinal names no device.
    INVALID_DEVICE = 101;
    /// The image has a format that the driver does not read.
    INVALID_IMAGE = 200;
    /// No context is current, or the given one was destroyed.
    INVALID_CONTEXT = 201;
    /// The driver could not map the resource.
    MAP_FAILED = 205;
    /// The driver could not unmap the resource.
    UNMAP_FAILED = 206;
    /// The resource is mapped already.
    ALREADY_MAPPED = 208;
    /// No binary for this device in the image.
    NO_BINARY_FOR_GPU = 209;
    /// The resource is not mapped.
    NOT_MAPPED = 211;
    /// PTX that does not compile.
    INVALID_PTX = 218;
    /// A source that the driver cannot read.
    INVALID_SOURCE = 300;
    /// A file was not found.
    FILE_NOT_FOUND = 301;
    /// A handle in the call is invalid.
    INVALID_HANDLE = 400;
    /// The object is not in a state that allows this.
    ILLEGAL_STATE = 401;
    /// The name was not found.
    NOT_FOUND = 500;
    /// Work is still running: a status, not a fault.
    NOT_READY = 600;
    /// A kernel touched memory it may not; the context is lost.
    ILLEGAL_ADDRESS = 700;
    /// A launch needs too many resources.
    LAUNCH_OUT_OF_RESOURCES = 701;
    /// The primary context is active; its flags cannot change.
    PRIMARY_CONTEXT_ACTIVE = 708;
    /// The current context was destroyed.
    CONTEXT_IS_DESTROYED = 709;
    /// The host range is registered already.
    HOST_MEMORY_ALREADY_REGISTERED = 712;
    /// The host range is not registered.
    HOST_MEMORY_NOT_REGISTERED = 713;
    /// A kernel failed in an unknown way.
    LAUNCH_FAILED = 719;
    /// Not allowed; a tenant gets it when its limits cannot be enforced.
    NOT_PERMITTED = 800;
    /// The driver does not support this.
    NOT_SUPPORTED = 801;
    /// Not allowed while the stream captures.
    STREAM_CAPTURE_UNSUPPORTED = 900;
    /// The capture was invalidated by an earlier call.
    STREAM_CAPTURE_INVALIDATED = 901;
    /// The stream does not capture, or belongs to another capture.
    STREAM_CAPTURE_UNMATCHED = 903;
    /// Would create an illegal dependency on the legacy stream.
    STREAM_CAPTURE_IMPLICIT = 906;
    /// An internal error of unknown cause.
    UNKNOWN = 999;
});

impl CUresult {
    /// True if the call succeeded.
    #[inline]
    pub const fn ok(self) -> bool {
        self.0 == 0
    }
}

/// Device ordinal in this process (after `CUDA_VISIBLE_DEVICES`).
pub type CUdevice = i32;
/// Address in a device's memory.
pub type CUdeviceptr = u64;
/// Address in the 32-bit calls of CUDA 2 and 3.
pub type CUdeviceptr_v1 = u32;
/// Physical allocation of the virtual-memory calls.
pub type CUmemGenericAllocationHandle = u64;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// The null handle.
            pub const NULL: $name = $name(core::ptr::null_mut());

            /// True for the null handle.
            #[inline]
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        // SAFETY: a handle is an opaque word of the driver; this code never dereferences it.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl Default for $name {
            fn default() -> Self {
                Self::NULL
            }
        }
    )*};
}

handles! {
    /// Handle of a context.
    CUcontext;
    /// Handle of a module of kernels.
    CUmodule;
    /// A kernel in a module; `cuLaunchKernel` also takes a [`CUkernel`] in its place.
    CUfunction;
    /// A library: code that is loaded into every context on demand.
    CUlibrary;
    /// A kernel of a library, independent of contexts.
    CUkernel;
    /// Handle of a stream.
    CUstream;
    /// Handle of an event.
    CUevent;
    /// Handle of an array (texture memory).
    CUarray;
    /// An array with mip levels.
    CUmipmappedArray;
    /// Handle of a memory pool.
    CUmemoryPool;
    /// Handle of a graph.
    CUgraph;
    /// A graph that can be launched.
    CUgraphExec;
    /// A node of a graph.
    CUgraphNode;
    /// A reference-counted object of the program that graphs can own.
    CUuserObject;
    /// Handle of memory imported from another API.
    CUexternalMemory;
    /// Handle of a link of code that is in progress.
    CUlinkState;
    /// Handle of a texture reference (legacy).
    CUtexref;
    /// A context with a share of the multiprocessors.
    CUgreenCtx;
    /// Description of the resources of a green context.
    CUdevResourceDesc;
}

/// The legacy default stream, by its explicit handle.
pub const CU_STREAM_LEGACY: CUstream = CUstream(core::ptr::without_provenance_mut(1));
/// The per-thread default stream, by its explicit handle.
pub const CU_STREAM_PER_THREAD: CUstream = CUstream(core::ptr::without_provenance_mut(2));

/// 16 bytes that identify a device.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct CUuuid {
    /// In the order in which they are printed.
    pub bytes: [u8; 16],
}

/// Place of memory: a device, or host memory.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CUmemLocation {
    /// One of `CU_MEM_LOCATION_TYPE_*`.
    pub kind: u32,
    /// Device ordinal or NUMA node, by `kind`.
    pub id: i32,
}

/// Location kind: a device; `id` is its ordinal.
pub const CU_MEM_LOCATION_TYPE_DEVICE: u32 = 1;
/// Location kind: host memory; never charged to a device.
pub const CU_MEM_LOCATION_TYPE_HOST: u32 = 2;
/// Location kind: host memory of NUMA node `id`.
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA: u32 = 3;
/// Location kind: host memory of the current thread's NUMA node.
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: u32 = 4;

/// Properties of a physical allocation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp {
    /// Kind of memory; 1: pinned.
    pub kind: u32,
    /// Types of handles to which it may be exported.
    pub requestedHandleTypes: u32,
    /// Device or host on which the memory is.
    pub location: CUmemLocation,
    /// Windows only.
    pub win32HandleMetaData: *mut c_void,
    /// Flags for compression, RDMA and usage; passed through.
    pub allocFlags: CUmemAllocationFlags,
}

/// Flags of a physical allocation.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUmemAllocationFlags {
    /// Request for compressible memory.
    pub compressionType: u8,
    /// Request for remote DMA.
    pub gpuDirectRDMACapable: u8,
    /// Usage bits.
    pub usage: u16,
    /// Reserved; zero.
    pub reserved: [u8; 4],
}

/// Access rights of one location to a mapped range.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAccessDesc {
    /// Device or host that gets access to the memory.
    pub location: CUmemLocation,
    /// Access: 0 none, 1 read, 3 read and write.
    pub flags: u32,
}

/// Properties of a memory pool at its creation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolProps {
    /// Kind of memory; 1: pinned.
    pub allocType: u32,
    /// Types of handles to which it may be exported.
    pub handleTypes: u32,
    /// Device or host on which the memory is.
    pub location: CUmemLocation,
    /// Windows only.
    pub win32SecurityAttributes: *mut c_void,
    /// Upper bound in bytes; 0: the driver's own.
    pub maxSize: usize,
    /// Usage bits.
    pub usage: u16,
    /// Reserved; zero.
    pub reserved: [u8; 54],
}

/// One- or two-dimensional array.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY_DESCRIPTOR {
    /// Width of the array in elements.
    pub Width: usize,
    /// Height in elements; 0: one-dimensional.
    pub Height: usize,
    /// Element format (`CUarray_format`); see [`array_format_bytes`].
    pub Format: u32,
    /// Channels per element: 1, 2 or 4.
    pub NumChannels: u32,
}

/// An array descriptor in the layout of the 32-bit calls.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY_DESCRIPTOR_v1 {
    /// Width of the array in elements.
    pub Width: u32,
    /// Height in elements; 0: one-dimensional.
    pub Height: u32,
    /// Element format (`CUarray_format`).
    pub Format: u32,
    /// Channels per element.
    pub NumChannels: u32,
}

/// Array of up to three dimensions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    /// Width of the array in elements.
    pub Width: usize,
    /// Height in elements; 0: one-dimensional.
    pub Height: usize,
    /// Depth in elements or layers; 0: two-dimensional.
    pub Depth: usize,
    /// Element format (`CUarray_format`).
    pub Format: u32,
    /// Channels per element.
    pub NumChannels: u32,
    /// `CUDA_ARRAY3D_*` bits; see [`CUDA_ARRAY3D_SPARSE`].
    pub Flags: u32,
}

/// A three-dimensional array descriptor in the layout of the 32-bit calls.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY3D_DESCRIPTOR_v1 {
    /// Width of the array in elements.
    pub Width: u32,
    /// Height in elements.
    pub Height: u32,
    /// Depth in elements or layers.
    pub Depth: u32,
    /// Element format (`CUarray_format`).
    pub Format: u32,
    /// Channels per element.
    pub NumChannels: u32,
    /// `CUDA_ARRAY3D_*` bits.
    pub Flags: u32,
}

/// Sparse array: it has no memory of its own.
pub const CUDA_ARRAY3D_SPARSE: u32 = 0x40;
/// Array whose memory is mapped later.
pub const CUDA_ARRAY3D_DEFERRED_MAPPING: u32 = 0x80;

/// Bytes of one channel of an array format; `None` for formats without such a size (planar video, block compression).
pub const fn array_format_bytes(format: u32) -> Option<u32> {
    match format {
        0x01 | 0x08 => Some(1),        // unsigned, signed 8 bit
        0x02 | 0x09 | 0x10 => Some(2), // unsigned, signed 16 bit, half
        0x03 | 0x0a | 0x20 => Some(4), // unsigned, signed 32 bit, float
        _ => None,
    }
}

/// Parameters of a two-dimensional copy.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY2D {
    /// Offset in the source's rows at which the copy begins, in bytes.
    pub srcXInBytes: usize,
    /// Row of the source at which the copy begins.
    pub srcY: usize,
    /// Type of memory: 1 host, 2 device, 3 array, 4 unified.
    pub srcMemoryType: u32,
    /// Source address, if it is host memory.
    pub srcHost: *const c_void,
    /// Source address, if it is device memory.
    pub srcDevice: CUdeviceptr,
    /// Source array, if it is one.
    pub srcArray: CUarray,
    /// Bytes from one row to the next.
    pub srcPitch: usize,
    /// Offset in the destination's rows at which the copy begins, in bytes.
    pub dstXInBytes: usize,
    /// Row of the destination at which the copy begins.
    pub dstY: usize,
    /// Kind of destination memory; values as for `srcMemoryType`.
    pub dstMemoryType: u32,
    /// Destination address, if it is host memory.
    pub dstHost: *mut c_void,
    /// Destination address, if it is device memory.
    pub dstDevice: CUdeviceptr,
    /// Destination array, if it is one.
    pub dstArray: CUarray,
    /// Bytes from one row to the next.
    pub dstPitch: usize,
    /// Bytes to copy of each row.
    pub WidthInBytes: usize,
    /// Number of rows to copy.
    pub Height: usize,
}

/// Launch parameters of `cuLaunchKernelEx`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchConfig {
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
    /// Stream of the launch.
    pub hStream: CUstream,
    /// Launch attributes, which the library passes on unread.
    pub attrs: *mut c_void,
    /// Number of launch attributes.
    pub numAttrs: u32,
}

/// Properties of a device in the layout of `cuDeviceGetProperties` of CUDA 2.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUdevprop {
    /// Most threads of a block.
    pub maxThreadsPerBlock: i32,
    /// Most threads of a block, per dimension.
    pub maxThreadsDim: [i32; 3],
    /// Most blocks of a grid, per dimension.
    pub maxGridSize: [i32; 3],
    /// Bytes of shared memory of a block.
    pub sharedMemPerBlock: i32,
    /// Bytes of constant memory.
    pub totalConstantMemory: i32,
    /// Threads per warp.
    pub SIMDWidth: i32,
    /// Largest pitch of a copy, in bytes.
    pub memPitch: i32,
    /// Registers available to a block.
    pub regsPerBlock: i32,
    /// Clock frequency in kHz.
    pub clockRate: i32,
    /// Alignment of textures, in bytes.
    pub textureAlign: i32,
}

/// Parameters of `cuCtxCreate_v4`; passed through.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUctxCreateParams {
    /// Execution affinity parameters, or null.
    pub execAffinityParams: *mut c_void,
    /// Number of affinity parameters.
    pub numExecAffinityParams: i32,
    /// Graphics parameters, or null.
    pub cigParams: *mut c_void,
}

/// Event flag: the event records no timestamp.
pub const CU_EVENT_DISABLE_TIMING: u32 = 2;
/// Event flag: waits may block instead of spinning.
pub const CU_EVENT_BLOCKING_SYNC: u32 = 1;
/// Stream flag: no implicit order with the legacy default stream.
pub const CU_STREAM_NON_BLOCKING: u32 = 1;
/// Capture mode: no restriction on this thread's calls.
pub const CU_STREAM_CAPTURE_MODE_RELAXED: u32 = 2;
/// Flag of `cuGetProcAddress`: return the variants for per-thread default streams.
pub const CU_GET_PROC_ADDRESS_PER_THREAD: u64 = 2;
/// Symbol status: found.
pub const CU_GET_PROC_ADDRESS_SUCCESS: u32 = 0;
/// Symbol status: the driver does not know the name.
pub const CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND: u32 = 1;
/// Symbol status: the name is newer than the requested version.
pub const CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT: u32 = 2;

/// Callback of `cuStreamAddCallback`: stream, status, user data.
pub type CUstreamCallback = Option<unsafe extern "C" fn(CUstream, CUresult, *mut c_void)>;
/// Host function that runs in stream order.
pub type CUhostFn = Option<unsafe extern "C" fn(*mut c_void)>;
/// Bytes of shared memory that a block of the given size needs.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(i32) -> usize>;
/// Text that the driver owns.
pub type DriverText = *const c_char;
