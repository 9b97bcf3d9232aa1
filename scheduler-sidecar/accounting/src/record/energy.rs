//! Divides the energy of a device among its tenants. Pure: no clock, no IO.
//!
//! A tenant pays for the energy of its work by its device time. The energy of an idle device goes to the tenants that
//! hold memory there and do nothing, because the device cannot rest while they do. The rest is nobody's. The parts of
//! each interval add up to what the device's counter says.
//!
//! The idle energy of an interval in which the device also worked is not measured apart. It is taken from the last
//! interval without work, and before the first such interval, from the time in which the device did not work.
//!
//! Device time is known when a kernel has ended. So an interval without ended work, but with work in flight, goes on
//! until some has ended.

/// How a device's energy is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnergySource {
    /// The device counts it.
    Counter,
    /// The daemon adds up the device's power over time, as older devices count no energy.
    Power,
}

/// The energy that a device has used up to a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnergyReading {
    /// Energy since some start, in millijoules.
    pub millijoules: u64,
    /// Monotonic time of the reading, in ns.
    pub at: u64,
    /// How it is known.
    pub source: EnergySource,
}

/// A tenant on the device between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantInterval {
    /// Its measured device time, in ns.
    pub worked_ns: u64,
    /// True if it holds memory at the end.
    pub holds_memory: bool,
    /// True if its device time was not measured, at least in part.
    pub is_unmeasured: bool,
    /// True if it has work in flight, whose device time is not known yet.
    pub is_working: bool,
}

/// Longest interval that goes on for work in flight, in ns. Work that never ends must not keep energy from the record.
const MAX_INTERVAL_NS: u64 = 60_000_000_000;

/// Energy of work and of idleness, in millijoules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnergyUse {
    /// Energy while kernels ran.
    pub work_mj: u64,
    /// Energy while memory was held and nothing ran.
    pub idle_mj: u64,
}

impl EnergyUse {
    /// Adds another amount, saturating.
    pub fn add(&mut self, more: Self) {
        self.work_mj = self.work_mj.saturating_add(more.work_mj);
        self.idle_mj = self.idle_mj.saturating_add(more.idle_mj);
    }

    /// Both together.
    #[must_use]
    pub fn sum_mj(&self) -> u64 {
        self.work_mj.saturating_add(self.idle_mj)
    }
}

/// The energy of one interval, divided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnergyParts {
    /// One part for each tenant, in the order of the question.
    pub tenants: Vec<EnergyUse>,
    /// Nobody's: work that was not measured, and idleness without any memory held.
    pub nobody: EnergyUse,
}

/// A device's counter between two readings.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnergyMeter {
    last: Option<EnergyReading>,
    /// Energy and length of the last interval without work: the idle power.
    idle: Option<(u64, u64)>,
}

impl EnergyMeter {
    /// Takes a reading and divides the energy since the last one. `None`: nothing to divide, because this is the first
    /// reading, the counter began again, or it did not move. `is_silent`: nobody watched the tenants meanwhile.
    pub fn take_reading(
        &mut self,
        reading: EnergyReading,
        tenants: &[TenantInterval],
        is_silent: bool,
    ) -> Option<EnergyParts> {
        let last = match self.last {
            Some(last) if last.source == reading.source && last.millijoules <= reading.millijoules => last,
            _ => {
                self.last = Some(reading);
                return None;
            }
        };
        let (energy, length) = (reading.millijoules - last.millijoules, reading.at.saturating_sub(last.at));
        if energy == 0 || length == 0 {
            return None;
        }
        let worked = tenants.iter().fold(0_u64, |sum, tenant| sum.saturating_add(tenant.worked_ns));
        let waits = worked == 0 && tenants.iter().any(|tenant| tenant.is_working);
        if waits && !is_silent && length < MAX_INTERVAL_NS {
            return None;
        }
        self.last = Some(reading);
        if is_silent {
            let nobody = EnergyUse { work_mj: 0, idle_mj: energy };
            return Some(EnergyParts { tenants: vec![EnergyUse::default(); tenants.len()], nobody });
        }
        let is_unmeasured = tenants.iter().any(|tenant| tenant.is_unmeasured);
        if worked == 0 && !is_unmeasured && !waits {
            self.idle = Some((energy, length));
        }
        let idle_ns = length.saturating_sub(worked);
        // A device whose use was not measured may have worked all the time.
        let idle_mj = if is_unmeasured { 0 } else { self.idle_energy(energy, length, idle_ns) };
        let work_mj = energy - idle_mj;
        let works: Vec<u64> = tenants.iter().map(|tenant| tenant.worked_ns).collect();
        let rests: Vec<u64> = tenants
            .iter()
            .map(|tenant| if tenant.holds_memory { length.saturating_sub(tenant.worked_ns) } else { 0 })
            .collect();
        // With unmeasured work, the measured parts are those of the measured time only.
        let known = if is_unmeasured { part_of(work_mj, worked.min(length), length) } else { work_mj };
        let (work, idle) = (split_by(known, &works), split_by(idle_mj, &rests));
        let tenants: Vec<EnergyUse> =
            work.iter().zip(&idle).map(|(&work_mj, &idle_mj)| EnergyUse { work_mj, idle_mj }).collect();
        let given = |part: fn(&EnergyUse) -> u64| tenants.iter().map(part).sum::<u64>();
        let nobody =
            EnergyUse { work_mj: work_mj - given(|one| one.work_mj), idle_mj: idle_mj - given(|one| one.idle_mj) };
        Some(EnergyParts { tenants, nobody })
    }

    /// The idle part of `energy` in an interval of `length` ns, of which the device rested `idle_ns`.
    fn idle_energy(&self, energy: u64, length: u64, idle_ns: u64) -> u64 {
        match self.idle {
            _ if idle_ns == length => energy,
            Some((idle, over)) => part_of(idle, idle_ns, over).min(energy),
            None => part_of(energy, idle_ns, length),
        }
    }
}

/// `whole * part / of`, rounded down.
fn part_of(whole: u64, part: u64, of: u64) -> u64 {
    let part = u128::from(whole) * u128::from(part) / u128::from(of.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// Divides `whole` in proportion to `weights`. The parts sum to `whole`, or to 0 if all weights are 0.
fn split_by(whole: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let mut before: u128 = 0;
    let upto = |weight: u128| u64::try_from(u128::from(whole) * weight / sum.max(1)).unwrap_or(u64::MAX);
    weights
        .iter()
        .map(|weight| {
            let begin = upto(before);
            before += u128::from(*weight);
            upto(before) - begin
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn reading(millijoules: u64, seconds: u64) -> EnergyReading {
        EnergyReading { millijoules, at: seconds * SECOND, source: EnergySource::Counter }
    }

    fn tenant(worked_ms: u64, holds_memory: bool) -> TenantInterval {
        TenantInterval { worked_ns: worked_ms * 1_000_000, holds_memory, ..TenantInterval::default() }
    }

    fn used(work_mj: u64, idle_mj: u64) -> EnergyUse {
        EnergyUse { work_mj, idle_mj }
    }

    proptest! {
        /// For any counter and any tenants, the parts of all intervals add up to the counter's movement.
        #[test]
        fn the_parts_add_up_to_the_counter(
            intervals in prop::collection::vec(
                (0_u64..1_000_000, 0_u64..3_000, prop::collection::vec((0_u64..4_000, any::<bool>(), any::<bool>()), 0..5), any::<bool>()),
                1..30,
            )
        ) {
            let (mut meter, mut sum, mut counter, mut at) = (EnergyMeter::default(), 0_u64, 7_u64, 5_u64);
            let now = |millijoules, at| EnergyReading { millijoules, at, source: EnergySource::Counter };
            meter.take_reading(now(counter, at), &[], false);
            for (energy, ms, tenants, is_silent) in intervals {
                (counter, at) = (counter + energy, at + ms * 1_000_000);
                let tenants: Vec<TenantInterval> = tenants
                    .into_iter()
                    .map(|(worked_ms, holds, is_unmeasured)| TenantInterval { is_unmeasured, ..tenant(worked_ms, holds) })
                    .collect();
                if let Some(parts) = meter.take_reading(now(counter, at), &tenants, is_silent) {
                    prop_assert_eq!(parts.tenants.len(), tenants.len());
                    sum += parts.nobody.sum_mj() + parts.tenants.iter().map(EnergyUse::sum_mj).sum::<u64>();
                    for (tenant, part) in tenants.iter().zip(&parts.tenants) {
                        prop_assert!(part.idle_mj == 0 || tenant.holds_memory);
                        prop_assert!(part.work_mj == 0 || tenant.worked_ns > 0);
                    }
                }
            }
            // The next interval includes the energy of intervals without length.
            let end = meter.take_reading(now(counter + 1, at + 1), &[], false).unwrap_or_default();
            prop_assert_eq!(sum + end.nobody.sum_mj(), counter + 1 - 7);
        }
    }

    #[test]
    fn work_pays_by_device_time_and_idleness_is_shared_by_those_that_hold_memory() {
        let mut meter = EnergyMeter::default();
        let none = [tenant(0, true), tenant(0, false), tenant(0, true)];
        assert_eq!(meter.take_reading(reading(1_000, 0), &none, false), None, "the first reading");
        // 50 W idle.
        let parts = meter.take_reading(reading(51_000, 1), &none, false).unwrap();
        assert_eq!(parts.tenants, [used(0, 25_000), used(0, 0), used(0, 25_000)]);
        // Half a second of work, three parts to one; the rest of the second at idle power.
        let busy = [tenant(375, true), tenant(125, false), tenant(0, true)];
        let parts = meter.take_reading(reading(251_000, 2), &busy, false).unwrap();
        assert_eq!(parts.tenants.iter().map(|part| part.work_mj).collect::<Vec<_>>(), [131_250, 43_750, 0]);
        assert_eq!(parts.tenants.iter().map(|part| part.idle_mj).sum::<u64>(), 25_000);
        assert!(parts.tenants[2].idle_mj > parts.tenants[0].idle_mj, "it rested for longer: {parts:?}");
        assert_eq!(parts.nobody, used(0, 0));
    }

    #[test]
    fn nobody_has_what_nobody_held_watched_or_measured() {
        let mut meter = EnergyMeter::default();
        meter.take_reading(reading(0, 0), &[], false);
        let parts = |meter: &mut EnergyMeter, at, tenants: &[TenantInterval], silent| {
            meter.take_reading(reading(at * 10_000, at), tenants, silent).unwrap()
        };
        assert_eq!(parts(&mut meter, 1, &[tenant(0, false)], false).nobody, used(0, 10_000));
        assert_eq!(parts(&mut meter, 2, &[tenant(0, true)], true).nobody, used(0, 10_000), "nobody watched");
        let unmeasured = TenantInterval { is_unmeasured: true, ..tenant(250, true) };
        let divided = parts(&mut meter, 3, &[unmeasured], false);
        assert_eq!((divided.tenants[0], divided.nobody), (used(2_500, 0), used(7_500, 0)));
        // A counter that begins again is a new beginning.
        assert_eq!(meter.take_reading(reading(5, 4), &[tenant(0, true)], false), None);
        assert_eq!(meter.take_reading(reading(9, 5), &[tenant(0, true)], false).unwrap().tenants, [used(0, 4)]);
    }

    #[test]
    fn energy_of_a_long_kernel_is_work_also_before_the_kernel_has_ended() {
        let mut meter = EnergyMeter::default();
        assert_eq!(meter.take_reading(reading(0, 0), &[], false), None);
        let (holder, worker) = (tenant(0, true), TenantInterval { is_working: true, ..tenant(0, true) });
        for second in 1..5 {
            assert_eq!(meter.take_reading(reading(second * 300, second), &[holder, worker], false), None);
        }
        let parts = meter.take_reading(reading(1_500, 5), &[holder, tenant(5_000, true)], false).unwrap();
        assert_eq!(parts.tenants, [used(0, 0), used(1_500, 0)]);
        // Work that never ends keeps its energy from the record for a minute at most.
        let late = (6..70).filter_map(|at| meter.take_reading(reading(at * 300, at), &[holder, worker], false));
        let sum: u64 = late.map(|parts| parts.tenants.iter().map(EnergyUse::sum_mj).sum::<u64>()).sum();
        assert_eq!(sum, 60 * 300);
    }
}
