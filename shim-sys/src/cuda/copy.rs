//! Parameters of copies in three dimensions, and what an array says of itself.

use super::{CUarray, CUcontext, CUdeviceptr};
use core::ffi::c_void;

macro_rules! copy3d {
    ($(#[$doc:meta])* $name:ident, $src:ident: $src_type:ty, $dst:ident: $dst_type:ty) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            /// Source x in bytes.
            pub srcXInBytes: usize,
            /// Source y.
            pub srcY: usize,
            /// Source z.
            pub srcZ: usize,
            /// Source level of detail, 0.
            pub srcLOD: usize,
            /// 1 host, 2 device, 3 array, 4 unified.
            pub srcMemoryType: u32,
            /// Host source.
            pub srcHost: *const c_void,
            /// Device source.
            pub srcDevice: CUdeviceptr,
            /// Array source.
            pub srcArray: CUarray,
            /// Context of the source between peers, else null.
            pub $src: $src_type,
            /// Bytes from row to row.
            pub srcPitch: usize,
            /// Rows from slice to slice.
            pub srcHeight: usize,
            /// Destination x in bytes.
            pub dstXInBytes: usize,
            /// Destination y.
            pub dstY: usize,
            /// Destination z.
            pub dstZ: usize,
            /// Destination level of detail, 0.
            pub dstLOD: usize,
            /// As `srcMemoryType`.
            pub dstMemoryType: u32,
            /// Host destination.
            pub dstHost: *mut c_void,
            /// Device destination.
            pub dstDevice: CUdeviceptr,
            /// Array destination.
            pub dstArray: CUarray,
            /// Context of the destination between peers, else null.
            pub $dst: $dst_type,
            /// Bytes from row to row.
            pub dstPitch: usize,
            /// Rows from slice to slice.
            pub dstHeight: usize,
            /// Bytes per row.
            pub WidthInBytes: usize,
            /// Rows.
            pub Height: usize,
            /// Slices.
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

/// What a sparse or deferred array needs when it is mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUDA_ARRAY_MEMORY_REQUIREMENTS {
    /// Bytes.
    pub size: usize,
    /// Their alignment.
    pub alignment: usize,
    /// Zero.
    pub reserved: [u32; 4],
}

/// How a sparse array is cut into tiles.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUDA_ARRAY_SPARSE_PROPERTIES {
    /// Elements of a tile in x.
    pub tileWidth: u32,
    /// In y.
    pub tileHeight: u32,
    /// In z.
    pub tileDepth: u32,
    /// First level that lies in the tail.
    pub miptailFirstLevel: u32,
    /// Bytes of the tail.
    pub miptailSize: u64,
    /// 1: one tail for all layers.
    pub flags: u32,
    /// Zero.
    pub reserved: [u32; 4],
}
