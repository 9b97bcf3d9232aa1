//! What the doctor's child prints: facts, no judgement.

use serde::{Deserialize, Serialize};

/// The argument that makes this program the child; a second one makes it allocate.
pub const CHILD: &str = "--doctors-child";
/// Bytes of the small allocation, and how far the other one goes beyond the limit.
pub const STEP: u64 = 2 << 20;

/// Everything that one child saw.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// libvgpu.so, if it is mapped there.
    pub library: Option<String>,
    /// Why it did not come further.
    pub trouble: Option<String>,
    /// Lookups of libcuda's hooked functions, by `dlsym` and by the driver's own lookup.
    pub cuda: Doors,
    /// Lookups of NVML's, by `dlsym`.
    pub nvml: Doors,
    /// What cuInit answered.
    pub init: Option<u32>,
    /// In CUDA's order.
    pub devices: Vec<Device>,
}

/// What lookups of the hooked functions led to.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Doors {
    /// Rows of the table.
    pub rows: usize,
    /// Those that lead to our hook.
    pub hooked: usize,
    /// Those that this driver does not have.
    pub lacking: Vec<String>,
    /// Those that lead elsewhere.
    pub open: Vec<String>,
}

/// A device as a program sees it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Device {
    /// CUDA's number.
    pub ordinal: u32,
    /// `GPU-...`.
    pub uuid: String,
    /// NVML's number, by which limits name it.
    pub index: Option<u32>,
    /// cuDeviceTotalMem.
    pub total: u64,
    /// NVML's size of the board, of which percentages are taken.
    pub memory: Option<u64>,
    /// What was allocated.
    pub control: Option<Control>,
}

/// Codes of the driver.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Control {
    /// Of the context; not 0: nothing was tried.
    pub context: u32,
    /// cuMemGetInfo's free memory in that context.
    pub free: u64,
    /// Of an allocation of [`STEP`]; none was tried where less is free.
    pub below: Option<u32>,
    /// Of one of the whole and [`STEP`].
    pub above: u32,
}
