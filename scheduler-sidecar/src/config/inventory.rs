//! Which devices there are, by the driver's word.

use nvml_wrapper::Nvml;
use vgpu_core::bytes::Bytes;

/// A device that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its UUID.
    pub uuid: String,
    /// How much memory programs can have of it: NVML's total without what it reserves, which is CUDA's total.
    pub memory: Bytes,
    /// What its maker calls it; `None`: the driver does not say.
    pub model: Option<String>,
}

/// The devices that are there, by their NVML number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory(pub Vec<Found>);

/// Asks the driver, through NVML.
///
/// # Errors
/// In words: there is no driver, or a device does not answer.
pub fn ask() -> Result<Inventory, String> {
    let nvml = Nvml::init().map_err(|why| format!("NVML cannot be initialised: {why}"))?;
    let count = nvml.device_count().map_err(|why| format!("NVML does not count the devices: {why}"))?;
    let found = |index: u32| {
        let device = nvml.device_by_index(index)?;
        let memory = device.memory_info()?;
        Ok(Found {
            uuid: device.uuid()?,
            memory: Bytes(memory.total.saturating_sub(memory.reserved)),
            model: device.name().ok(),
        })
    };
    (0..count)
        .map(|index| {
            found(index).map_err(|why: nvml_wrapper::error::NvmlError| format!("device {index} does not answer: {why}"))
        })
        .collect::<Result<_, _>>()
        .map(Inventory)
}
