//! C types for other references to device memory: handles between processes, memory of other APIs, array mappings,
//! multicast.

use super::CUmemGenericAllocationHandle;
use core::ffi::c_void;

/// Handle of an allocation for another process; passed by value.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CUipcMemHandle {
    /// Opaque bytes.
    pub reserved: [u8; 64],
}

/// Handle of an allocation of an exported pool for another process.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CUmemPoolPtrExportData {
    /// Opaque bytes.
    pub reserved: [u8; 64],
}

/// Memory that another API allocated.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
    /// 1: a file descriptor; others: Windows, NvSci, dma-buf.
    pub kind: u32,
    /// A descriptor in the first four bytes, or up to two pointers.
    pub handle: [u64; 2],
    /// Size in bytes.
    pub size: u64,
    /// 1: dedicated memory.
    pub flags: u32,
    /// Reserved; zero.
    pub reserved: [u32; 16],
}

/// A linear range of external memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
    /// Offset of the first byte.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// Reserved; zero.
    pub flags: u32,
    /// Reserved; zero.
    pub reserved: [u32; 16],
}

/// A part of external memory as an array.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
    /// Offset of the first byte.
    pub offset: u64,
    /// Shape of the array.
    pub arrayDesc: super::CUDA_ARRAY3D_DESCRIPTOR,
    /// Number of mip levels.
    pub numLevels: u32,
    /// Reserved; zero.
    pub reserved: [u32; 16],
}

/// Properties of a multicast object.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmulticastObjectProp {
    /// Number of devices that take part.
    pub numDevices: u32,
    /// Most bytes that may be bound on each device.
    pub size: usize,
    /// Handle types to which it can be exported.
    pub handleTypes: u64,
    /// Reserved; zero.
    pub flags: u64,
}

/// Maps physical memory into a sparse array, or unmaps it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUarrayMapInfo {
    /// Kind of array; 0: plain, 1: mipmapped.
    pub resourceType: u32,
    /// Handle of the array.
    pub resource: *mut c_void,
    /// Part of the array; 0: tiles of a level, 1: the mip tail.
    pub subresourceType: u32,
    /// Tiles: level, layer, offset x, y, z, extent x, y, z as eight u32. Tail: layer (u32), offset, size (u64).
    pub subresource: [u64; 4],
    /// Operation; 1: map, 2: unmap.
    pub memOperationType: u32,
    /// 0: the handle in `memHandle`.
    pub memHandleType: u32,
    /// Handle of the physical allocation.
    pub memHandle: CUmemGenericAllocationHandle,
    /// Offset of the first byte in the allocation.
    pub offset: u64,
    /// Bit mask of devices.
    pub deviceBitMask: u32,
    /// Reserved; zero.
    pub flags: u32,
    /// Reserved; zero.
    pub reserved: [u32; 2],
}

/// See [`CUarrayMapInfo::memOperationType`].
pub const CU_MEM_OPERATION_TYPE_MAP: u32 = 1;
/// See [`CUarrayMapInfo::memOperationType`].
pub const CU_MEM_OPERATION_TYPE_UNMAP: u32 = 2;
/// Handle kind: a file descriptor.
pub const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: u32 = 1;
/// Handle kind: fabric.
pub const CU_MEM_HANDLE_TYPE_FABRIC: u32 = 8;

macro_rules! checkpoint_args {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name {
            /// Zero, except for the first word of a lock: milliseconds to wait, 0: no limit.
            pub words: [u64; 8],
        }
    )*};
}

checkpoint_args! {
    /// Arguments for locking a process.
    CUcheckpointLockArgs;
    /// Arguments for checkpointing a process.
    CUcheckpointCheckpointArgs;
    /// Arguments for restoring a process.
    CUcheckpointRestoreArgs;
    /// Arguments for unlocking a process.
    CUcheckpointUnlockArgs;
}
