//! Parameters of copies that need more than two addresses and a length, and descriptions of arrays.
//!
//! Batches of copies and of decompressions are newer than CUDA 12.2, with whose bindings our layouts are compared.
//! Their layouts follow the published reference.

use super::{CUarray, CUcontext, CUdeviceptr, CUdeviceptr_v1, CUmemLocation};
use core::ffi::c_void;

macro_rules! copy3d {
    ($(#[$doc:meta])* $name:ident, $src:ident: $src_type:ty, $dst:ident: $dst_type:ty) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            /// Offset in the source's rows at which the copy begins, in bytes.
            pub srcXInBytes: usize,
            /// Row of the source at which the copy begins.
            pub srcY: usize,
            /// Slice of the source at which the copy begins.
            pub srcZ: usize,
            /// Source level of detail, 0.
            pub srcLOD: usize,
            /// Type of memory: 1 host, 2 device, 3 array, 4 unified.
            pub srcMemoryType: u32,
            /// Source address, if it is host memory.
            pub srcHost: *const c_void,
            /// Source address, if it is device memory.
            pub srcDevice: CUdeviceptr,
            /// Source array, if it is one.
            pub srcArray: CUarray,
            /// Context of the source in a copy between peers, else null.
            pub $src: $src_type,
            /// Bytes from one row to the next.
            pub srcPitch: usize,
            /// Rows from one slice to the next.
            pub srcHeight: usize,
            /// Offset in the destination's rows at which the copy begins, in bytes.
            pub dstXInBytes: usize,
            /// Row of the destination at which the copy begins.
            pub dstY: usize,
            /// Slice of the destination at which the copy begins.
            pub dstZ: usize,
            /// Destination level of detail, 0.
            pub dstLOD: usize,
            /// Kind of destination memory; values as for `srcMemoryType`.
            pub dstMemoryType: u32,
            /// Destination address, if it is host memory.
            pub dstHost: *mut c_void,
            /// Destination address, if it is device memory.
            pub dstDevice: CUdeviceptr,
            /// Destination array, if it is one.
            pub dstArray: CUarray,
            /// Context of the destination in a copy between peers, else null.
            pub $dst: $dst_type,
            /// Bytes from one row to the next.
            pub dstPitch: usize,
            /// Rows from one slice to the next.
            pub dstHeight: usize,
            /// Bytes to copy of each row.
            pub WidthInBytes: usize,
            /// Number of rows to copy.
            pub Height: usize,
            /// Number of slices to copy.
            pub Depth: usize,
        }
    };
}

copy3d! {
    /// Parameters of a three-dimensional copy.
    CUDA_MEMCPY3D, reserved0: *mut c_void, reserved1: *mut c_void
}
copy3d! {
    /// Parameters of a three-dimensional copy between contexts.
    CUDA_MEMCPY3D_PEER, srcContext: CUcontext, dstContext: CUcontext
}

/// Memory that a sparse or deferred array needs when it is mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUDA_ARRAY_MEMORY_REQUIREMENTS {
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub alignment: usize,
    /// Reserved; zero.
    pub reserved: [u32; 4],
}

/// Division of a sparse array into tiles.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUDA_ARRAY_SPARSE_PROPERTIES {
    /// Elements of a tile in x.
    pub tileWidth: u32,
    /// Elements of a tile in y.
    pub tileHeight: u32,
    /// Elements of a tile in z.
    pub tileDepth: u32,
    /// First level that lies in the mip tail.
    pub miptailFirstLevel: u32,
    /// Bytes of the mip tail.
    pub miptailSize: u64,
    /// 1: one mip tail for all layers.
    pub flags: u32,
    /// Reserved; zero.
    pub reserved: [u32; 4],
}

/// Parameters of a copy of rows, as the 32-bit calls of CUDA 2 pass them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY2D_v1 {
    /// Offset in the source's rows at which the copy begins, in bytes.
    pub srcXInBytes: u32,
    /// Row of the source at which the copy begins.
    pub srcY: u32,
    /// Type of memory: 1 host, 2 device, 3 array, 4 unified.
    pub srcMemoryType: u32,
    /// Source address, if it is host memory.
    pub srcHost: *const c_void,
    /// Source address, if it is device memory.
    pub srcDevice: CUdeviceptr_v1,
    /// Source array, if it is one.
    pub srcArray: CUarray,
    /// Bytes from one row to the next.
    pub srcPitch: u32,
    /// Offset in the destination's rows at which the copy begins, in bytes.
    pub dstXInBytes: u32,
    /// Row of the destination at which the copy begins.
    pub dstY: u32,
    /// Type of memory: 1 host, 2 device, 3 array, 4 unified.
    pub dstMemoryType: u32,
    /// Destination address, if it is host memory.
    pub dstHost: *mut c_void,
    /// Destination address, if it is device memory.
    pub dstDevice: CUdeviceptr_v1,
    /// Destination array, if it is one.
    pub dstArray: CUarray,
    /// Bytes from one row to the next.
    pub dstPitch: u32,
    /// Bytes to copy of each row.
    pub WidthInBytes: u32,
    /// Number of rows to copy.
    pub Height: u32,
}

/// Parameters of a three-dimensional copy, as the 32-bit calls of CUDA 2 pass them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY3D_v1 {
    /// Offset in the source's rows at which the copy begins, in bytes.
    pub srcXInBytes: u32,
    /// Row of the source at which the copy begins.
    pub srcY: u32,
    /// Slice of the source at which the copy begins.
    pub srcZ: u32,
    /// Source level of detail, 0.
    pub srcLOD: u32,
    /// Type of memory: 1 host, 2 device, 3 array, 4 unified.
    pub srcMemoryType: u32,
    /// Source address, if it is host memory.
    pub srcHost: *const c_void,
    /// Source address, if it is device memory.
    pub srcDevice: CUdeviceptr_v1,
    /// Source array, if it is one.
    pub srcArray: CUarray,
    /// Reserved; null.
    pub reserved0: *mut c_void,
    /// Bytes from one row to the next.
    pub srcPitch: u32,
    /// Rows from one slice to the next.
    pub srcHeight: u32,
    /// Offset in the destination's rows at which the copy begins, in bytes.
    pub dstXInBytes: u32,
    /// Row of the destination at which the copy begins.
    pub dstY: u32,
    /// Slice of the destination at which the copy begins.
    pub dstZ: u32,
    /// Destination level of detail, 0.
    pub dstLOD: u32,
    /// Type of memory: 1 host, 2 device, 3 array, 4 unified.
    pub dstMemoryType: u32,
    /// Destination address, if it is host memory.
    pub dstHost: *mut c_void,
    /// Destination address, if it is device memory.
    pub dstDevice: CUdeviceptr_v1,
    /// Destination array, if it is one.
    pub dstArray: CUarray,
    /// Reserved; null.
    pub reserved1: *mut c_void,
    /// Bytes from one row to the next.
    pub dstPitch: u32,
    /// Rows from one slice to the next.
    pub dstHeight: u32,
    /// Bytes to copy of each row.
    pub WidthInBytes: u32,
    /// Number of rows to copy.
    pub Height: u32,
    /// Number of slices to copy.
    pub Depth: u32,
}

/// Source or destination of a copy in a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemcpy3DOperand {
    /// Kind of operand: 1 an address, 2 an array.
    pub kind: u32,
    /// The address, or the array's handle.
    pub at: u64,
    /// For an address: elements from row to row. For an array: x.
    pub row: usize,
    /// For an address: rows from slice to slice. For an array: y.
    pub layer: usize,
    /// For an address: a hint for the memory's location. For an array: z.
    pub hint: CUmemLocation,
}

/// A three-dimensional copy in a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY3D_BATCH_OP {
    /// Source of the copy.
    pub src: CUmemcpy3DOperand,
    /// Destination of the copy.
    pub dst: CUmemcpy3DOperand,
    /// Width, height and depth: bytes and rows between addresses, elements if one end is an array.
    pub extent: [usize; 3],
    /// Time from which the source may be read.
    pub order: u32,
    /// Flags of the copy.
    pub flags: u32,
}

/// A decompression in a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemDecompressParams {
    /// Number of compressed bytes.
    pub srcNumBytes: usize,
    /// Size of the destination in bytes.
    pub dstNumBytes: usize,
    /// Address to which the number of decompressed bytes is written.
    pub dstActBytes: *mut u32,
    /// Address of the compressed data.
    pub src: *const c_void,
    /// Destination of the decompressed data.
    pub dst: *mut c_void,
    /// Compression algorithm of the data.
    pub algo: u32,
    /// Reserved; zero.
    pub padding: [u8; 20],
}

/// A divisible part of a device: a number of its multiprocessors.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUdevResource {
    /// Kind of resource; 1: multiprocessors.
    pub kind: u32,
    /// Private to the driver.
    pub internal: [u8; 92],
    /// Number of multiprocessors.
    pub sm_count: u32,
    /// Smallest size of a partition, in multiprocessors (13.0).
    pub sm_least: u32,
    /// Partition sizes are multiples of this number (13.0).
    pub sm_step: u32,
    /// Further fields of other kinds.
    pub rest: [u32; 7],
    /// The next entry of a list (13.1); before 13.1 further fields.
    pub next: *mut CUdevResource,
}
