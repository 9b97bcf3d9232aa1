//! C types of NVML in their ABI layout: transparent integers, opaque pointers, plain structs.
//!
//! As in [`crate::cuda`]: no Rust enums, names are the library's, declarations ours. `tests/layout.rs` compares them
//! with nvml-wrapper-sys.
#![allow(non_camel_case_types, non_snake_case)]

use core::ffi::{c_char, c_void};

/// Result code of every NVML call; `0` is success.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[must_use]
pub struct nvmlReturn_t(pub u32);

impl nvmlReturn_t {
    /// Success.
    pub const SUCCESS: Self = Self(0);
    /// `nvmlInit` has not succeeded.
    pub const UNINITIALIZED: Self = Self(1);
    /// An argument is out of range, or a pointer is missing.
    pub const INVALID_ARGUMENT: Self = Self(2);
    /// Not supported by this device.
    pub const NOT_SUPPORTED: Self = Self(3);
    /// Not allowed; a tenant gets it when its limits cannot be enforced.
    pub const NO_PERMISSION: Self = Self(4);
    /// Not found.
    pub const NOT_FOUND: Self = Self(6);
    /// The caller's buffer is too small; the needed count was written.
    pub const INSUFFICIENT_SIZE: Self = Self(7);
    /// The kernel driver is not loaded.
    pub const DRIVER_NOT_LOADED: Self = Self(9);
    /// The time limit has passed.
    pub const TIMEOUT: Self = Self(10);
    /// The library was not found.
    pub const LIBRARY_NOT_FOUND: Self = Self(12);
    /// The function was not found.
    pub const FUNCTION_NOT_FOUND: Self = Self(13);
    /// The struct's version is not one the library knows.
    pub const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    /// Unknown error.
    pub const UNKNOWN: Self = Self(999);

    /// True if the call succeeded.
    #[inline]
    pub const fn ok(self) -> bool {
        self.0 == 0
    }
}

/// A device.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct nvmlDevice_t(pub *mut c_void);

// SAFETY: an opaque word of the library; this code never dereferences it.
unsafe impl Send for nvmlDevice_t {}
// SAFETY: as above.
unsafe impl Sync for nvmlDevice_t {}

/// A set of events.
pub type nvmlEventSet_t = *mut c_void;
/// A unit (S-class systems).
pub type nvmlUnit_t = *mut c_void;

/// Memory in bytes; `total = free + used`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlMemory_t {
    /// Total bytes; for a tenant its limit.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes in use.
    pub used: u64,
}

/// Memory in bytes; `total = reserved + free + used`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlMemory_v2_t {
    /// [`nvmlMemory_v2_t::VERSION`].
    pub version: u32,
    /// Total bytes; for a tenant its limit.
    pub total: u64,
    /// Bytes that the driver keeps for itself.
    pub reserved: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes in use.
    pub used: u64,
}

impl nvmlMemory_v2_t {
    /// Size of the struct and its version in the top byte.
    pub const VERSION: u32 = 0x0200_0028;
}

/// A process on a device, in v1 of the process lists.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlProcessInfo_v1_t {
    /// Process id.
    pub pid: u32,
    /// Bytes in use; all ones: unknown.
    pub usedGpuMemory: u64,
}

/// A process on a device, in v2 and v3 of the process lists.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlProcessInfo_t {
    /// Process id.
    pub pid: u32,
    /// Bytes in use; all ones: unknown.
    pub usedGpuMemory: u64,
    /// MIG GPU instance, all ones: none.
    pub gpuInstanceId: u32,
    /// MIG compute instance, all ones: none.
    pub computeInstanceId: u32,
}

/// A process on a device, in the detailed list.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlProcessDetail_v1_t {
    /// Process id.
    pub pid: u32,
    /// Bytes in use; all ones: unknown.
    pub usedGpuMemory: u64,
    /// MIG GPU instance, all ones: none.
    pub gpuInstanceId: u32,
    /// MIG compute instance, all ones: none.
    pub computeInstanceId: u32,
    /// Part of these bytes that is protected (confidential computing); all ones: unknown.
    pub usedGpuCcProtectedMemory: u64,
}

/// Request for the detailed list of processes, and its result.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlProcessDetailList_v1_t {
    /// [`nvmlProcessDetailList_v1_t::VERSION`].
    pub version: u32,
    /// Type of processes; 0: compute, 1: graphics, 2: MPS.
    pub mode: u32,
    /// Size of the array on entry, number of processes on return.
    pub numProcArrayEntries: u32,
    /// Array for the processes.
    pub procArray: *mut nvmlProcessDetail_v1_t,
}

impl nvmlProcessDetailList_v1_t {
    /// Size of the struct and its version in the top byte.
    pub const VERSION: u32 = 0x0100_0018;
}

/// Accounting statistics of a process that used a device, running or not.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlAccountingStats_t {
    /// Percent of its lifetime in which a kernel ran.
    pub gpuUtilization: u32,
    /// Percent of its lifetime in which device memory was read or written.
    pub memoryUtilization: u32,
    /// Most bytes it held at once.
    pub maxMemoryUsage: u64,
    /// Milliseconds with a context; 0 while it runs.
    pub time: u64,
    /// Start, in microseconds since 1970.
    pub startTime: u64,
    /// 1: it runs.
    pub isRunning: u32,
    /// Reserved words.
    pub reserved: [u32; 5],
}

/// Utilisation in percent over the last sample period.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlUtilization_t {
    /// Time with a kernel running.
    pub gpu: u32,
    /// Time with device memory read or written.
    pub memory: u32,
}

/// Utilisation of one process in one sample period.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlProcessUtilizationSample_t {
    /// Process id.
    pub pid: u32,
    /// Time in microseconds since 1970.
    pub timeStamp: u64,
    /// Utilisation of the multiprocessors in percent.
    pub smUtil: u32,
    /// Utilisation of the device memory in percent.
    pub memUtil: u32,
    /// Utilisation of the encoder in percent.
    pub encUtil: u32,
    /// Utilisation of the decoder in percent.
    pub decUtil: u32,
}

/// Location on the PCI bus.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlPciInfo_t {
    /// Short text form, `0000:01:00.0`.
    pub busIdLegacy: [c_char; 16],
    /// PCI domain.
    pub domain: u32,
    /// PCI bus.
    pub bus: u32,
    /// PCI device.
    pub device: u32,
    /// PCI device and vendor id.
    pub pciDeviceId: u32,
    /// PCI subsystem id.
    pub pciSubSystemId: u32,
    /// Text form, `00000000:01:00.0`.
    pub busId: [c_char; 32],
}

/// Location on the PCI bus, in the first version of the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlPciInfo_v2_t {
    /// Text form, `0000:01:00.0`.
    pub busId: [c_char; 16],
    /// PCI domain.
    pub domain: u32,
    /// PCI bus.
    pub bus: u32,
    /// PCI device.
    pub device: u32,
    /// PCI device and vendor id.
    pub pciDeviceId: u32,
    /// PCI subsystem id.
    pub pciSubSystemId: u32,
    /// Reserved words.
    pub reserved: [u32; 4],
}

/// BAR1 window in bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlBAR1Memory_t {
    /// Total bytes of the window.
    pub bar1Total: u64,
    /// Bytes free.
    pub bar1Free: u64,
    /// Bytes in use.
    pub bar1Used: u64,
}

/// Attributes of a MIG device.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlDeviceAttributes_t {
    /// Number of multiprocessors.
    pub multiprocessorCount: u32,
    /// Number of copy engines.
    pub sharedCopyEngineCount: u32,
    /// Number of decoders.
    pub sharedDecoderCount: u32,
    /// Number of encoders.
    pub sharedEncoderCount: u32,
    /// Number of JPEG engines.
    pub sharedJpegCount: u32,
    /// Number of optical flow engines.
    pub sharedOfaCount: u32,
    /// Number of GPU instance slices.
    pub gpuInstanceSliceCount: u32,
    /// Number of compute instance slices.
    pub computeInstanceSliceCount: u32,
    /// Memory in MiB.
    pub memorySizeMB: u64,
}

/// One value of a sample or a field; [`nvmlFieldValue_t::valueType`] selects the member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union nvmlValue_t {
    /// Member for value type 0.
    pub dVal: f64,
    /// Member for value type 1.
    pub uiVal: u32,
    /// Member for value type 2.
    pub ulVal: u64,
    /// Member for value type 3.
    pub ullVal: u64,
    /// Member for value type 4.
    pub sllVal: i64,
}

/// One sample of a counter.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlSample_t {
    /// Time in microseconds since 1970.
    pub timeStamp: u64,
    /// The value itself.
    pub sampleValue: nvmlValue_t,
}

/// A requested field and its answer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlFieldValue_t {
    /// Id of the field.
    pub fieldId: u32,
    /// Part of the field (a link, a counter).
    pub scopeId: u32,
    /// Time in microseconds since 1970.
    pub timestamp: i64,
    /// Duration of the query, in microseconds.
    pub latencyUsec: i64,
    /// Member of the value that holds the answer.
    pub valueType: u32,
    /// Result code for this field.
    pub nvmlReturn: nvmlReturn_t,
    /// The value itself.
    pub value: nvmlValue_t,
}

/// An event, in the first version of the wait.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlEventData_v1_t {
    /// Device of the event.
    pub device: nvmlDevice_t,
    /// Event type: one bit.
    pub eventType: u64,
    /// Further data of the event.
    pub eventData: u64,
}

/// An event, in the second version of the wait.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlEventData_t {
    /// Device of the event.
    pub device: nvmlDevice_t,
    /// Event type: one bit.
    pub eventType: u64,
    /// Further data of the event.
    pub eventData: u64,
    /// MIG GPU instance, all ones: none.
    pub gpuInstanceId: u32,
    /// MIG compute instance, all ones: none.
    pub computeInstanceId: u32,
}
