//! Reads the energy of the devices: their own counters, and of older devices the sum of their power over time.
//!
//! Here, because this thread already asks NVML, which may answer late. A board with MIG enabled is left out: its
//! counter does not tell its instances apart. Not here: which tenant used it ([`vgpu_accounting::record::energy`]).

use std::collections::{BTreeMap, HashMap};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::{ProofLink, ProofThread};
use vgpu_accounting::clock;
use vgpu_accounting::record::energy::{EnergyReading, EnergySource};
use vgpu_config::inventory::mig_instances;

/// Longest time between two readings of power that are joined by a line, in ns.
const MAX_POWER_GAP_NS: u64 = 10_000_000_000;
/// Nanojoules in a millijoule: milliwatts times nanoseconds are picojoules.
const PICOJOULES_PER_MILLIJOULE: u128 = 1_000_000_000;

/// The energy of a device that counts none, up to its last reading of power.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PowerSum {
    picojoules: u128,
    /// Time of the last reading, in ns; 0: none.
    at: u64,
    milliwatts: u64,
}

impl PowerSum {
    /// Adds the time since the last reading at the mean of both. After a long gap the power between is not known, and
    /// nothing is added.
    fn add_reading(&mut self, milliwatts: u64, at: u64) {
        let length = at.saturating_sub(self.at);
        if self.at > 0 && length <= MAX_POWER_GAP_NS {
            self.picojoules += u128::from(self.milliwatts + milliwatts) * u128::from(length) / 2;
        }
        (self.at, self.milliwatts) = (at, milliwatts);
    }

    fn millijoules(&self) -> u64 {
        u64::try_from(self.picojoules / PICOJOULES_PER_MILLIJOULE).unwrap_or(u64::MAX)
    }
}

/// Reads the energy of each device that tells it, by UUID.
pub(super) fn read_energy(nvml: &Nvml, sums: &mut HashMap<String, PowerSum>) -> BTreeMap<String, EnergyReading> {
    let count = nvml.device_count().unwrap_or(0);
    let one = |index: u32| -> Result<Option<(String, EnergyReading)>, NvmlError> {
        let device = nvml.device_by_index(index)?;
        if mig_instances(&device)?.is_some() {
            return Ok(None);
        }
        let uuid = device.uuid()?;
        let reading = read_device(&device, &uuid, sums)?;
        Ok(Some((uuid, reading)))
    };
    (0..count).filter_map(with_errors_as_none(one)).collect()
}

fn with_errors_as_none<T>(mut ask: impl FnMut(u32) -> Result<Option<T>, NvmlError>) -> impl FnMut(u32) -> Option<T> {
    move |index| ask(index).ok().flatten()
}

fn read_device(
    device: &Device<'_>,
    uuid: &str,
    sums: &mut HashMap<String, PowerSum>,
) -> Result<EnergyReading, NvmlError> {
    let at = clock::now();
    match device.total_energy_consumption() {
        Ok(millijoules) => Ok(EnergyReading { millijoules, at, source: EnergySource::Counter }),
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => {
            let milliwatts = u64::from(device.power_usage()?);
            let sum = sums.entry(uuid.to_owned()).or_default();
            sum.add_reading(milliwatts, at);
            Ok(EnergyReading { millijoules: sum.millijoules(), at, source: EnergySource::Power })
        }
        Err(why) => Err(why),
    }
}

impl ProofLink {
    /// The last reading of each device's energy, by UUID.
    #[must_use]
    pub fn energy_readings(&self) -> BTreeMap<String, EnergyReading> {
        self.found.lock().energy.clone()
    }
}

impl ProofThread {
    /// Reads the devices' energy for the record.
    pub(super) fn note_energy(&mut self) {
        let Some(driver) = &mut self.driver else { return };
        let readings = driver.energy_readings();
        self.found.lock().energy = readings;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_is_added_up_over_time_and_not_over_gaps() {
        let mut sum = PowerSum::default();
        let second = 1_000_000_000;
        for (watts, at) in [(50, 1), (100, 2), (100, 4), (300, 60), (100, 61)] {
            sum.add_reading(watts * 1000, at * second);
        }
        assert_eq!(sum.millijoules(), 75_000 + 200_000 + 200_000);
    }
}
