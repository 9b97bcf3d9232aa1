//! Which devices there are, by the driver's word.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use vgpu_core::bytes::Bytes;

/// A device that programs compute on: a whole one, or a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its NVML number; a MIG instance has that of the device it is a part of.
    pub index: u32,
    /// The UUID of the device that a MIG instance is a part of; `None`: this is a whole device.
    pub parent: Option<String>,
    /// Its UUID.
    pub uuid: String,
    /// How much memory programs can have of it: NVML's total without what it reserves, which is CUDA's total.
    pub memory: Bytes,
    /// What its maker calls it; `None`: the driver does not say.
    pub model: Option<String>,
}

/// The devices that are there, in the order of their NVML numbers; instances in the order of their device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory(pub Vec<Found>);

/// Asks the driver, through NVML.
///
/// # Errors
/// In words: there is no driver, or a device does not answer.
pub fn ask() -> Result<Inventory, String> {
    let nvml = Nvml::init().map_err(|why| format!("NVML cannot be initialised: {why}"))?;
    let count = nvml.device_count().map_err(|why| format!("NVML does not count the devices: {why}"))?;
    let mut all = Vec::new();
    for index in 0..count {
        let found = nvml.device_by_index(index).and_then(|device| found(index, &device));
        all.extend(found.map_err(|why| format!("device {index} does not answer: {why}"))?);
    }
    Ok(Inventory(all))
}

fn found(index: u32, device: &Device<'_>) -> Result<Vec<Found>, NvmlError> {
    let describe = |device: &Device<'_>, parent: Option<String>| {
        let memory = device.memory_info()?;
        Ok(Found {
            index,
            parent,
            uuid: device.uuid()?,
            memory: Bytes(memory.total.saturating_sub(memory.reserved)),
            model: device.name().ok(),
        })
    };
    let Some(instances) = instances(device)? else { return Ok(vec![describe(device, None)?]) };
    let parent = device.uuid()?;
    instances.iter().map(|instance| describe(instance, Some(parent.clone()))).collect()
}

/// The MIG instances of a device; `None`: MIG is not enabled, so that programs compute on the device itself.
///
/// # Errors
/// NVML's.
pub fn instances<'n>(device: &Device<'n>) -> Result<Option<Vec<Device<'n>>>, NvmlError> {
    /// `NVML_DEVICE_MIG_ENABLE`.
    const MIG_IS_ENABLED: u32 = 1;
    match device.mig_mode() {
        Ok(mode) if mode.current == MIG_IS_ENABLED => {}
        Ok(_) => return Ok(None),
        // A device that cannot be partitioned, and a driver from before MIG (R450).
        Err(NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_)) => {
            return Ok(None);
        }
        Err(why) => return Err(why),
    }
    let mut all = Vec::new();
    for index in 0..device.mig_device_count()? {
        match device.mig_device_by_index(index) {
            Ok(instance) => all.push(instance),
            // The count is the most that there can be.
            Err(NvmlError::NotFound) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(Some(all))
}
