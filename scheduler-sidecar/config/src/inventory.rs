//! Lists the machine's devices, as the driver reports them through NVML.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use vgpu_core::units::bytes::Bytes;

/// A device that programs compute on: a whole device or a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundDevice {
    /// NVML number; a MIG instance has the number of its device.
    pub index: u32,
    /// UUID of the device that a MIG instance belongs to; `None` for a whole device.
    pub parent: Option<String>,
    /// UUID of the device.
    pub uuid: String,
    /// Memory that programs can use: NVML's total less the driver's reserve, which equals CUDA's total. `None`: the
    /// device uses the host's memory (GB10), and NVML does not tell its size.
    pub memory: Option<Bytes>,
    /// Model name; `None` if the driver does not report one.
    pub model: Option<String>,
}

/// A device that does not answer: one that is lost, until it is reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilentDevice {
    /// NVML number.
    pub index: u32,
    /// Answer of NVML in its place.
    pub why: String,
}

/// The machine's devices ordered by NVML number, MIG instances in their device's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Devices that answer.
    pub found: Vec<FoundDevice>,
    /// Devices that do not, of which only the number is known.
    pub silent: Vec<SilentDevice>,
}

/// Asks the driver for the devices through NVML.
///
/// # Errors
/// A message: there is no driver, or no device answers.
pub fn ask_driver() -> Result<Inventory, String> {
    let nvml = Nvml::init().map_err(|why| format!("NVML cannot be initialised: {why}"))?;
    let count = nvml.device_count().map_err(|why| format!("NVML does not count the devices: {why}"))?;
    let mut all = Inventory::default();
    for index in 0..count {
        match nvml.device_by_index(index).and_then(|device| describe_device(index, &device)) {
            Ok(parts) => all.found.extend(parts),
            Err(why) => all.silent.push(SilentDevice { index, why: why.to_string() }),
        }
    }
    match all.silent.first() {
        Some(SilentDevice { index, why }) if all.found.is_empty() => {
            Err(format!("device {index} does not answer: {why}"))
        }
        _ => Ok(all),
    }
}

fn describe_device(index: u32, device: &Device<'_>) -> Result<Vec<FoundDevice>, NvmlError> {
    let describe = |device: &Device<'_>, parent: Option<String>| {
        let memory = match device.memory_info() {
            Ok(memory) => Some(Bytes(memory.total.saturating_sub(memory.reserved))),
            Err(NvmlError::NotSupported) => None,
            Err(why) => return Err(why),
        };
        Ok(FoundDevice { index, parent, uuid: device.uuid()?, memory, model: device.name().ok() })
    };
    let Some(instances) = mig_instances(device)? else { return Ok(vec![describe(device, None)?]) };
    let parent = device.uuid()?;
    instances.iter().map(|instance| describe(instance, Some(parent.clone()))).collect()
}

/// Returns the MIG instances of a device; `None` if MIG is not enabled and programs compute on the device itself.
///
/// # Errors
/// NVML's.
pub fn mig_instances<'n>(device: &Device<'n>) -> Result<Option<Vec<Device<'n>>>, NvmlError> {
    /// NVML's value for an enabled MIG mode (`NVML_DEVICE_MIG_ENABLE`).
    const MIG_IS_ENABLED: u32 = 1;
    match device.mig_mode() {
        Ok(mode) if mode.current == MIG_IS_ENABLED => {}
        Ok(_) => return Ok(None),
        // Such errors come from devices without MIG, and from drivers older than MIG (R450).
        Err(NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_)) => {
            return Ok(None);
        }
        Err(why) => return Err(why),
    }
    let mut all = Vec::new();
    for index in 0..device.mig_device_count()? {
        match device.mig_device_by_index(index) {
            Ok(instance) => all.push(instance),
            // `mig_device_count` returns the maximum, so some indices have no instance.
            Err(NvmlError::NotFound) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(Some(all))
}
