//! Energy in the rows of the record: readings of the devices' counters, with what the tenants did meanwhile.
//!
//! The division of each interval is in [`crate::record::energy`].

use std::collections::BTreeMap;

use super::{ClockMoment, MINUTE_SECONDS, RecordKey, RecordRow, RoomDevice, UsageIntegral};
use crate::record::energy::{EnergyReading, EnergySource, EnergyUse, TenantInterval};

/// After this time without a reading, nobody watched the tenants: readings come once a second while there are any.
const SILENCE_NS: u64 = 5_000_000_000;

impl UsageIntegral {
    /// Takes a reading of each device's energy, and divides the energy since the last one among the tenants there.
    pub fn add_energy(&mut self, readings: &BTreeMap<String, EnergyReading>, now: ClockMoment) {
        let is_silent = now.ns.saturating_sub(std::mem::replace(&mut self.energy_heard, now.ns)) > SILENCE_NS;
        for (device, reading) in readings {
            let mut here: Vec<RoomDevice> = self.last.keys().filter(|whose| whose.1 == *device).cloned().collect();
            here.sort();
            let tenants: Vec<TenantInterval> = here.iter().map(|whose| self.interval_of(whose)).collect();
            let meter = self.meters.entry(device.clone()).or_default();
            let Some(parts) = meter.take_reading(*reading, &tenants, is_silent) else { continue };
            let is_estimated = reading.source == EnergySource::Power;
            for (whose, energy) in here.iter().zip(parts.tenants) {
                if let Some(last) = self.last.get_mut(whose) {
                    last.worked_ns = 0;
                    last.energy.add(energy);
                }
                if energy.sum_mj() > 0 {
                    self.add(whose, RecordRow { energy, is_estimated, ..RecordRow::default() }, now.wall, false);
                }
            }
            let start = now.wall.div_euclid(MINUTE_SECONDS) * MINUTE_SECONDS;
            let key = RecordKey { tenant: String::new(), device: device.clone(), start, bearer: Default::default() };
            let row = self.waiting.entry(key).or_default();
            row.energy.add(parts.nobody);
            row.is_estimated |= is_estimated;
        }
    }

    fn interval_of(&self, whose: &RoomDevice) -> TenantInterval {
        self.last.get(whose).map_or_else(TenantInterval::default, |last| TenantInterval {
            worked_ns: last.worked_ns,
            holds_memory: last.held > 0,
            is_unmeasured: last.sums.unmeasured,
            is_working: last.sums.in_flight,
        })
    }

    /// Energy of each tenant on each device since the daemon started.
    #[must_use]
    pub fn energy_of_tenants(&self) -> BTreeMap<RoomDevice, EnergyUse> {
        self.last
            .iter()
            .filter(|(whose, _)| self.meters.contains_key(&whose.1))
            .map(|(whose, last)| (whose.clone(), last.energy))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::UsageSums;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Readings of two devices; the second one is at 1 W all the time.
    fn readings(millijoules: u64, second: u64) -> BTreeMap<String, EnergyReading> {
        let reading = |millijoules| EnergyReading { millijoules, at: second * SECOND, source: EnergySource::Counter };
        BTreeMap::from([("G".to_owned(), reading(millijoules)), ("H".to_owned(), reading(second * 1_000))])
    }

    fn moment(second: u64) -> ClockMoment {
        ClockMoment { ns: second * SECOND, wall: i64::try_from(second).unwrap() }
    }

    #[test]
    fn rows_of_tenants_and_of_nobody_add_up_to_the_counters() {
        let (mut integral, a, b) = (UsageIntegral::default(), (1, "G".to_owned()), (2, "G".to_owned()));
        let sums = |name: &str, gpu_ns| UsageSums { tenant: name.into(), gpu_ns, ..UsageSums::default() };
        integral.add_sums(&a, sums("a", 0), 0, moment(1));
        integral.add_sums(&b, sums("b", 0), 0, moment(1));
        integral.holds_one(&b, 1 << 30, Some(0), 0, moment(1));
        integral.add_energy(&readings(500, 1), moment(1));
        for second in 2..70 {
            integral.add_sums(&a, sums("a", (second - 1) * SECOND / 2), 0, moment(second));
            integral.add_energy(&readings(500 + (second - 1) * 100_000, second), moment(second));
        }
        // Nobody looks for a minute; b held memory before and after.
        integral.add_energy(&readings(500 + 68 * 100_000, 130), moment(130));
        let sum = |name: &str, device: &str| {
            let rows = integral.waiting.iter().filter(|(key, _)| key.tenant == name && key.device == device);
            rows.fold(EnergyUse::default(), |mut sum, (_, row)| {
                sum.add(row.energy);
                sum
            })
        };
        let (of_a, of_b, nobody) = (sum("a", "G"), sum("b", "G"), sum("", "G"));
        assert_eq!(of_a.sum_mj() + of_b.sum_mj() + nobody.sum_mj(), 68 * 100_000);
        assert_eq!((of_a.work_mj, of_a.idle_mj, of_b.work_mj), (68 * 50_000, 0, 0), "{of_b:?} {nobody:?}");
        assert_eq!(of_b.idle_mj, 68 * 50_000);
        assert_eq!(sum("", "H"), EnergyUse { work_mj: 0, idle_mj: 129_000 }, "a device without tenants");
        assert_eq!(integral.energy_of_tenants()[&b], of_b);
        let minutes = integral.waiting.keys().filter(|key| key.tenant == "a").count();
        assert_eq!(minutes, 2, "each minute has its own row");
    }
}
