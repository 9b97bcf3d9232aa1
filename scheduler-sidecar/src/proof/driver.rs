//! What the driver says of processes at the devices: NVML's list of who computes, with how much memory.

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use crate::config::inventory::instances;

/// A process on a device, by the driver's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDevice {
    /// Its number in the daemon's pid namespace.
    pub pid: u32,
    /// The device's UUID.
    pub device: String,
    /// Bytes; `None`: the driver does not say.
    pub used: Option<u64>,
}

/// The driver, once it answers.
#[derive(Default)]
pub struct Driver(Option<Nvml>);

impl Driver {
    /// Who computes on which device.
    ///
    /// # Errors
    /// In words: the driver does not answer.
    pub fn processes(&mut self) -> Result<Vec<OnDevice>, String> {
        if self.0.is_none() {
            self.0 = Some(Nvml::init().map_err(|why| format!("NVML cannot be initialised: {why}"))?);
        }
        let Some(nvml) = &self.0 else { return Ok(Vec::new()) };
        let asked = list(nvml).map_err(|why| format!("NVML does not list processes: {why}"));
        if asked.is_err() {
            // A driver that was reloaded answers another initialisation only.
            self.0 = None;
        }
        asked
    }
}

fn list(nvml: &Nvml) -> Result<Vec<OnDevice>, NvmlError> {
    let mut all = Vec::new();
    let (mut answered, mut silent) = (0, None);
    let mut devices = Vec::new();
    for index in 0..nvml.device_count()? {
        let asked = nvml.device_by_index(index).and_then(|device| Ok(instances(&device)?.unwrap_or(vec![device])));
        match asked {
            Ok(parts) => devices.extend(parts),
            Err(why) => silent = Some(why),
        }
    }
    for device in devices {
        // One that is lost hides no other.
        let (uuid, processes) = match device.uuid().and_then(|uuid| Ok((uuid, device.running_compute_processes()?))) {
            Ok(asked) => asked,
            Err(why) => {
                silent = Some(why);
                continue;
            }
        };
        answered += 1;
        all.extend(processes.into_iter().map(|process| OnDevice {
            pid: process.pid,
            device: uuid.clone(),
            used: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
        }));
    }
    match silent {
        Some(why) if answered == 0 => Err(why),
        _ => Ok(all),
    }
}
