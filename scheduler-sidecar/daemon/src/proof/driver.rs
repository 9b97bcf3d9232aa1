//! Asks the driver for processes at the devices: NVML's list of compute processes with their memory.

use std::collections::HashMap;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use vgpu_config::inventory::mig_instances;

/// A process on a device, as the driver reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOnDevice {
    /// Process ID in the daemon's pid namespace.
    pub pid: u32,
    /// The device's UUID.
    pub device: String,
    /// Bytes; `None`: the driver does not report them.
    pub used: Option<u64>,
}

/// Work of a process on a device, from the driver's samples since the last request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkingProcess {
    /// Process ID in the daemon's pid namespace.
    pub pid: u32,
    /// The device's UUID.
    pub device: String,
    /// Device time of the process in the sampled time, in ns.
    pub seen: u64,
}

/// Longest time of which a sample is the mean, in us.
const MAX_SAMPLE_US: u64 = 1_000_000;

/// The connection to NVML, once it answers.
#[derive(Default)]
pub struct ProofDriver {
    nvml: Option<Nvml>,
    /// Time of the newest sample of each device, in us of its clock.
    newest: HashMap<String, u64>,
}

impl ProofDriver {
    /// Lists the compute processes of each device.
    ///
    /// # Errors
    /// A message: the driver does not answer.
    pub fn processes_on_devices(&mut self) -> Result<Vec<ProcessOnDevice>, String> {
        if self.nvml.is_none() {
            self.nvml = Some(Nvml::init().map_err(|why| format!("NVML cannot be initialised: {why}"))?);
        }
        let Some(nvml) = &self.nvml else { return Ok(Vec::new()) };
        let asked = list_processes(nvml).map_err(|why| format!("NVML does not list processes: {why}"));
        if asked.is_err() {
            // After a driver was reloaded, NVML answers only when it is initialised again.
            self.nvml = None;
        }
        asked
    }

    /// Lists the processes that worked on each device since the last call, with their device time. A device without
    /// samples (an idle one, a MIG instance) adds none.
    pub fn working_processes(&mut self) -> Vec<WorkingProcess> {
        let Some(nvml) = &self.nvml else { return Vec::new() };
        let mut all = Vec::new();
        for index in 0..nvml.device_count().unwrap_or(0) {
            let asked = nvml.device_by_index(index).and_then(|device| Ok((device.uuid()?, device)));
            let Ok((uuid, device)) = asked else { continue };
            let before = self.newest.get(&uuid).copied().unwrap_or(0);
            let Ok(samples) = device.process_utilization_stats(before) else { continue };
            let newest = samples.iter().map(|sample| sample.timestamp).max().unwrap_or(0).max(before);
            self.newest.insert(uuid.clone(), newest);
            // The first samples cover an unknown time.
            let span = if before == 0 { 0 } else { (newest - before).min(MAX_SAMPLE_US) };
            let mut sums: HashMap<u32, (u64, u64)> = HashMap::new();
            for sample in samples.iter().filter(|sample| sample.timestamp > before) {
                let sum = sums.entry(sample.pid).or_default();
                *sum = (sum.0 + u64::from(sample.sm_util.min(100)), sum.1 + 1);
            }
            let seen = |(percents, count): (u64, u64)| span * 10 * percents / count.max(1);
            all.extend(sums.into_iter().map(|(pid, sum)| WorkingProcess {
                pid,
                device: uuid.clone(),
                seen: seen(sum),
            }));
        }
        all
    }
}

fn list_processes(nvml: &Nvml) -> Result<Vec<ProcessOnDevice>, NvmlError> {
    let mut all = Vec::new();
    let (mut answered, mut silent) = (0, None);
    let mut devices = Vec::new();
    for index in 0..nvml.device_count()? {
        let asked = nvml.device_by_index(index).and_then(|device| Ok(mig_instances(&device)?.unwrap_or(vec![device])));
        match asked {
            Ok(parts) => devices.extend(parts),
            Err(why) => silent = Some(why),
        }
    }
    for device in devices {
        // A lost device must not hide the others.
        let (uuid, processes) = match device.uuid().and_then(|uuid| Ok((uuid, device.running_compute_processes()?))) {
            Ok(asked) => asked,
            Err(why) => {
                silent = Some(why);
                continue;
            }
        };
        answered += 1;
        all.extend(processes.into_iter().map(|process| ProcessOnDevice {
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
