//! The observations that the doctor's child prints; no judgement.

use serde::{Deserialize, Serialize};

/// Argument that makes this program the child; a second argument makes it allocate.
pub const CHILD_ARGUMENT: &str = "--doctors-child";
/// Size of the small allocation, and the excess of the large one over the limit; 2 MiB.
pub const SMALL_ALLOCATION_BYTES: u64 = 2 << 20;

/// Observations of a child process that runs under the library, for `vgpu doctor`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ChildReport {
    /// Path of libvgpu.so, if it is mapped in the child.
    pub library: Option<String>,
    /// The reason why the child stopped early.
    pub trouble: Option<String>,
    /// Lookups of the hooked functions of libcuda, by `dlsym` and by the driver's own lookup.
    pub cuda: LookupResults,
    /// Lookups of the hooked functions of NVML, by `dlsym`.
    pub nvml: LookupResults,
    /// Result code of cuInit; `None` if it was not called.
    pub init: Option<u32>,
    /// Result code of nvmlInit; `None` if it was not called.
    pub nvml_init: Option<u32>,
    /// Devices that the child sees, in CUDA's order.
    pub devices: Vec<SeenDevice>,
}

/// Results of looking up the hooked functions.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct LookupResults {
    /// Number of functions in the library's table of hooked functions.
    pub rows: usize,
    /// Number of lookups that return the library's hook.
    pub hooked: usize,
    /// Functions that this driver does not have.
    pub lacking: Vec<String>,
    /// Functions for which the lookup returns something else: bypasses.
    pub open: Vec<String>,
    /// Functions that another preloaded library refuses to look up, because their hooks are not in the driver.
    pub refused: Vec<String>,
}

/// A device as a program observes it.
#[derive(Debug, Serialize, Deserialize)]
pub struct SeenDevice {
    /// Number by which CUDA orders the device.
    pub ordinal: u32,
    /// UUID of the device, `GPU-...`.
    pub uuid: String,
    /// NVML's number, by which limits name the device.
    pub index: Option<u32>,
    /// Memory size by cuDeviceTotalMem, in bytes.
    pub total: u64,
    /// NVML's memory size, on which percentages are based; `None`: NVML is not there, or does not tell it.
    pub memory: Option<u64>,
    /// Results of the test allocations, if any were tried.
    pub control: Option<ControlCodes>,
}

/// Results of allocations below and above the memory limit, as codes of the driver.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ControlCodes {
    /// Creating the context; unless 0, nothing else was tried.
    pub context: u32,
    /// Free memory in bytes in the context, by cuMemGetInfo.
    pub free: u64,
    /// Allocating [`SMALL_ALLOCATION_BYTES`] bytes; `None` if less was free, so it was not tried.
    pub below: Option<u32>,
    /// Allocating the whole memory plus [`SMALL_ALLOCATION_BYTES`].
    pub above: u32,
}
