//! Asks the driver for processes at the devices: NVML's list of compute processes with their memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::energy::{PowerSum, read_energy};
use vgpu_accounting::record::energy::EnergyReading;
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

/// UUIDs of the devices with each NVML number: several for a board with MIG instances.
pub type DeviceNames = HashMap<u32, Vec<String>>;

/// The driver's answer about all devices.
#[derive(Debug, Default)]
pub struct DriverAnswer {
    /// The compute processes of the devices that answer.
    pub processes: Vec<ProcessOnDevice>,
    /// UUIDs of the devices that are lost or need a reset; the NVML number of one whose UUID is not known.
    pub lost: BTreeSet<String>,
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
    /// True if NVML is to be initialised again: it may not see a device that came back.
    stale: bool,
    /// The names when each device last answered: a lost device does not tell its own.
    names: DeviceNames,
    /// Time of the newest sample of each device, in us of its clock.
    newest: HashMap<String, u64>,
    /// Energy of the devices that count none, by UUID.
    power: HashMap<String, PowerSum>,
}

impl ProofDriver {
    /// Starts with the names that are known before the first look.
    #[must_use]
    pub fn knowing(names: DeviceNames) -> Self {
        Self { names, ..Self::default() }
    }

    /// Lists the compute processes of each device, and the lost devices.
    ///
    /// # Errors
    /// A message: the driver does not answer.
    pub fn processes_on_devices(&mut self) -> Result<DriverAnswer, String> {
        if std::mem::take(&mut self.stale) {
            self.nvml = None;
        }
        if self.nvml.is_none() {
            self.nvml = Some(Nvml::init().map_err(|why| format!("NVML cannot be initialised: {why}"))?);
        }
        let Some(nvml) = &self.nvml else { return Ok(DriverAnswer::default()) };
        let asked = list_devices(nvml, &mut self.names).map_err(|why| format!("NVML does not list processes: {why}"));
        if asked.is_err() {
            // After a driver was reloaded, NVML answers only when it is initialised again.
            self.nvml = None;
        }
        self.stale = asked.as_ref().is_ok_and(|answer| !answer.lost.is_empty());
        asked
    }

    /// Reads the energy of each device that tells it, by UUID.
    pub fn energy_readings(&mut self) -> BTreeMap<String, EnergyReading> {
        let Self { nvml, power, .. } = self;
        nvml.as_ref().map(|nvml| read_energy(nvml, power)).unwrap_or_default()
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

/// Lists the processes of all devices that answer, and the devices that are lost.
fn list_devices(nvml: &Nvml, names: &mut DeviceNames) -> Result<DriverAnswer, NvmlError> {
    let mut answer = DriverAnswer::default();
    let (mut answered, mut silent) = (0, None);
    for index in 0..nvml.device_count()? {
        // A device that fails must not hide the others.
        match list_processes(nvml, index) {
            Ok(parts) => {
                answered += 1;
                names.insert(index, parts.iter().map(|(uuid, _)| uuid.clone()).collect());
                answer.processes.extend(parts.into_iter().flat_map(|(_, processes)| processes));
            }
            Err(NvmlError::GpuLost | NvmlError::ResetRequired) => {
                let known = names.get(&index).cloned();
                answer.lost.extend(known.unwrap_or_else(|| vec![index.to_string()]));
            }
            Err(why) => silent = Some(why),
        }
    }
    match silent {
        Some(why) if answered == 0 && answer.lost.is_empty() => Err(why),
        _ => Ok(answer),
    }
}

/// Lists the processes of a device, or of each of its MIG instances, with the UUID.
fn list_processes(nvml: &Nvml, index: u32) -> Result<Vec<(String, Vec<ProcessOnDevice>)>, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let parts = mig_instances(&device)?.unwrap_or(vec![device]);
    let list = |part: &Device<'_>| -> Result<_, NvmlError> {
        let uuid = part.uuid()?;
        let listed = part.running_compute_processes()?.into_iter().map(|process| ProcessOnDevice {
            pid: process.pid,
            device: uuid.clone(),
            used: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
        });
        let listed = listed.collect();
        Ok((uuid, listed))
    };
    parts.iter().map(list).collect()
}
