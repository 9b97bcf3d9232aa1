//! Turns reported numbers into rows: growing sums become increments, held values become integrals over time, each in
//! the minute in which it was reported.
//!
//! Pure: times are arguments. All numbers are integers and every sum saturates, because a tenant can report anything
//! about itself. Not here: reading ledgers ([`super::ledgers`]) and storing rows ([`super::store`]).

mod energy;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::energy::{EnergyMeter, EnergyUse};
use super::ledgers::{HeldMemory, RoomDevice};
use vgpu_config::bearer::CostBearer;
use vgpu_control::service::ServiceSums;

/// Length of a row in seconds.
pub const MINUTE_SECONDS: i64 = 60;
/// Most rows that wait to be written. Beyond it, new numbers are added to the tenant's latest waiting row.
const MAX_WAITING_ROWS: usize = 50_000;
/// Cap on a single increment: about nine petabyte-seconds, or 104 days in nanoseconds.
const MAX_ADDED: u64 = 1 << 53;
const NS_PER_SECOND: u128 = 1_000_000_000;
/// A longer interval (one hour) is not split: it counts in the minute in which it ended.
const LONG_INTERVAL_NS: u64 = 3_600_000_000_000;

/// Identifies one row of the usage record: one minute of a tenant on a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKey {
    /// Name of the tenant.
    pub tenant: String,
    /// UUID of the device.
    pub device: String,
    /// First second of the minute, since 1970.
    pub start: i64,
    /// Group and labels that bore the cost at that time.
    pub bearer: CostBearer,
}

/// Amounts to add to one row of the usage record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordRow {
    /// Measured device time, in ns.
    pub gpu_ns: u64,
    /// Time during which the members' use was not measured, in ns.
    pub unmeasured_ns: u64,
    /// Time that members waited at the launch gate, in ns, summed over members.
    pub wait_ns: u64,
    /// Memory over time: bytes held, multiplied by the seconds for which they were held.
    pub memory_byte_seconds: u64,
    /// Most bytes that the tenant held at once.
    pub peak_bytes: u64,
    /// Number of launches; `None` if not counted.
    pub launches: Option<u64>,
    /// Allocation requests refused; `None` if the ledger is not read.
    pub refused: Option<u64>,
    /// Most members (connected processes) at once.
    pub members: u64,
    /// Last memory limit in force; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// Highest share of device time that was in force last, in thousandths of the device; `None` for no limit.
    pub sm_limit: Option<u64>,
    /// Energy of its work, and of its idleness with memory held.
    pub energy: EnergyUse,
    /// True if the energy is the sum of the device's power over time, as the device does not count it.
    pub is_estimated: bool,
    /// Promise and delivery of device time, and the times around leases.
    pub service: ServiceSums,
}

/// The daemon's numbers of a tenant on a device: sums that only grow, and current values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageSums {
    /// Name of the tenant.
    pub tenant: String,
    /// Group and labels that bear the cost.
    pub bearer: CostBearer,
    /// Device time in ns, including the time that its processes measured before this daemon started.
    pub gpu_ns: u64,
    /// Time that members waited at the launch gate, in ns.
    pub wait_ns: u64,
    /// Number of launches; `None` if not counted.
    pub launches: Option<u64>,
    /// Number of members (connected processes) at present.
    pub members: u64,
    /// Memory limit in force now, in bytes; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// Highest share of device time that the tenant may use now, in thousandths of the device; `None` for no limit.
    pub sm_limit: Option<u64>,
    /// True while members launch without a lease (gate open), so that their device time is not measured.
    pub unmeasured: bool,
    /// True while work of the tenant is queued on a device.
    pub in_flight: bool,
    /// Promise and delivery of device time, and the times around leases.
    pub service: ServiceSums,
}

/// One moment on both clocks, to relate them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockMoment {
    /// Monotonic clock, in ns.
    pub ns: u64,
    /// Wall clock, in seconds since 1970.
    pub wall: i64,
}

impl ClockMoment {
    /// Returns true if the wall clock has advanced by over a day more than the monotonic clock, which nobody can set.
    #[must_use]
    pub fn was_set_since(&self, before: &Self) -> bool {
        let passed = i64::try_from(self.ns.saturating_sub(before.ns) / 1_000_000_000).unwrap_or(i64::MAX);
        self.wall.saturating_sub(before.wall).saturating_sub(passed) > 86_400
    }
}

#[derive(Debug, Default)]
struct LastSums {
    sums: UsageSums,
    /// Monotonic time of the last report.
    heard: u64,
    /// Bytes held since `at`; `rest` is byte-nanoseconds below one byte-second that are not yet written.
    held: u64,
    at: u64,
    rest: u128,
    /// Most bytes held before the tenant's name was known.
    peak_unnamed: u64,
    /// Refusals and peak at the last ledger reading.
    refused: Option<u64>,
    rose: u64,
    /// Device time since the last reading of the device's energy, in ns.
    worked_ns: u64,
    /// Energy since the daemon started.
    energy: EnergyUse,
}

/// The last numbers of each tenant, and the rows that wait to be written.
#[derive(Debug, Default)]
pub struct UsageIntegral {
    last: HashMap<RoomDevice, LastSums>,
    waiting: BTreeMap<RecordKey, RecordRow>,
    /// Waiting rows with news other than unchanged allocations.
    urgent: BTreeSet<RecordKey>,
    /// The devices' counters of energy.
    meters: BTreeMap<String, EnergyMeter>,
    /// Monotonic time of the last reading of energy.
    energy_heard: u64,
}

impl UsageIntegral {
    /// Takes a tenant's current sums. An earlier daemon already recorded `written` ns of their device time.
    pub fn add_sums(&mut self, whose: &RoomDevice, sums: UsageSums, written: u64, now: ClockMoment) {
        let last = self.last.entry(whose.clone()).or_default();
        let unmeasured = if last.sums.unmeasured { now.ns.saturating_sub(last.heard) } else { 0 };
        last.heard = now.ns;
        let gpu_ns = sums.gpu_ns.saturating_sub(last.sums.gpu_ns).saturating_sub(written);
        last.worked_ns = last.worked_ns.saturating_add(gpu_ns);
        let wait_ns = sums.wait_ns.saturating_sub(last.sums.wait_ns);
        let launches = sums.launches.map(|n| n.saturating_sub(last.sums.launches.unwrap_or(0)));
        let service = sums.service.since(&last.sums.service);
        let max = (sums.gpu_ns.max(last.sums.gpu_ns), sums.wait_ns.max(last.sums.wait_ns));
        let same = (last.sums.members, last.sums.memory_limit, last.sums.sm_limit, &last.sums.bearer)
            == (sums.members, sums.memory_limit, sums.sm_limit, &sums.bearer);
        last.sums = UsageSums { gpu_ns: max.0, wait_ns: max.1, ..sums.clone() };
        let peak_bytes = std::mem::take(&mut last.peak_unnamed);
        if peak_bytes > 0 {
            let whole = last.rest;
            let memory_byte_seconds = u64::try_from(whole / NS_PER_SECOND).unwrap_or(u64::MAX);
            last.rest = whole % NS_PER_SECOND;
            self.add(whose, RecordRow { memory_byte_seconds, peak_bytes, ..RecordRow::default() }, now.wall, true);
        }
        for (start, unmeasured_ns) in split_into_minutes(unmeasured, now.wall) {
            self.add(whose, RecordRow { unmeasured_ns, ..RecordRow::default() }, start, false);
        }
        let is_served = service.wanted_ns > 0 || service.waits.total() > 0 || service.gaps.total() > 0;
        if same && gpu_ns == 0 && wait_ns == 0 && launches.unwrap_or(0) == 0 && !is_served {
            return;
        }
        let more = RecordRow {
            gpu_ns,
            wait_ns,
            launches,
            members: sums.members,
            memory_limit: sums.memory_limit,
            sm_limit: sums.sm_limit,
            service,
            ..RecordRow::default()
        };
        self.add(whose, more, now.wall, true);
    }

    /// Takes all tenants' current allocations; the previous ones count for the time since the last call. `since`
    /// returns refusals and the highest peak, as [`super::ledgers::LedgerFiles::new_since_first`].
    pub fn add_held(
        &mut self,
        held: &BTreeMap<RoomDevice, HeldMemory>,
        since: impl Fn(&RoomDevice) -> (u64, u64),
        now: ClockMoment,
    ) {
        let former: Vec<RoomDevice> =
            self.last.iter().filter(|(_, last)| last.held > 0).map(|(whose, _)| whose.clone()).collect();
        for whose in former.into_iter().filter(|whose| !held.contains_key(whose)) {
            self.holds_one(&whose, 0, None, 0, now);
        }
        for (whose, held) in held {
            let (refused, peak) = since(whose);
            self.holds_one(whose, held.used, Some(refused), peak, now);
        }
    }

    /// Counts the allocations until now: they are as they were at the last call.
    pub fn pass_time(&mut self, now: ClockMoment) {
        let holding = self.last.iter().filter(|(_, last)| last.held > 0);
        let holding: Vec<_> =
            holding.map(|(whose, last)| (whose.clone(), last.held, last.refused, last.rose)).collect();
        for (whose, held, refused, rose) in holding {
            self.holds_one(&whose, held, refused, rose, now);
        }
    }

    /// Takes one tenant's current allocations on one device, as [`UsageIntegral::add_held`] does for all.
    pub fn holds_one(&mut self, whose: &RoomDevice, used: u64, refused: Option<u64>, rose: u64, now: ClockMoment) {
        if !self.last.contains_key(whose) {
            self.last.insert(whose.clone(), LastSums::default());
        }
        let Some(last) = self.last.get_mut(whose) else { return };
        let elapsed = now.ns.saturating_sub(last.at);
        if last.sums.tenant.is_empty() {
            // The tenant's name arrives with its sums within a second. Until then no row can be written.
            last.rest = last.rest.saturating_add(u128::from(last.held) * u128::from(elapsed));
            (last.held, last.at, last.peak_unnamed) = (used, now.ns, last.peak_unnamed.max(used));
            return;
        }
        let (was, at) = (last.held, std::mem::replace(&mut last.at, now.ns));
        let changed = std::mem::replace(&mut last.held, used) != used;
        let before = std::mem::replace(&mut last.refused, refused);
        let more = match (before, refused) {
            // The count of a ledger that disappeared is dropped with it.
            (Some(before), Some(now)) => now.saturating_sub(before),
            (None, Some(now)) => now,
            (_, None) => 0,
        };
        let is_urgent = changed || more > 0;
        if was == 0 && used == 0 && more == 0 && rose == 0 {
            return;
        }
        let elapsed = if at == 0 { 0 } else { elapsed };
        for (start, ns) in split_into_minutes(elapsed, now.wall) {
            let Some(last) = self.last.get_mut(whose) else { return };
            let all = last.rest.saturating_add(u128::from(was) * u128::from(ns));
            let whole = all / NS_PER_SECOND;
            last.rest = all % NS_PER_SECOND;
            let memory_byte_seconds = u64::try_from(whole).unwrap_or(u64::MAX);
            self.add(whose, RecordRow { memory_byte_seconds, peak_bytes: was, ..RecordRow::default() }, start, false);
        }
        let refused = refused.map(|_| more);
        self.add(whose, RecordRow { peak_bytes: used, refused, ..RecordRow::default() }, now.wall, is_urgent);
        let rises = self.last.get_mut(whose).is_some_and(|last| rose > std::mem::replace(&mut last.rose, rose));
        if rises {
            self.add(whose, RecordRow { peak_bytes: rose, ..RecordRow::default() }, now.wall, true);
        }
    }

    fn add(&mut self, whose: &RoomDevice, more: RecordRow, wall: i64, is_urgent: bool) {
        let Some(last) = self.last.get(whose) else { return };
        let (tenant, device, bearer) = (last.sums.tenant.clone(), whose.1.clone(), last.sums.bearer.clone());
        let limits = (last.sums.memory_limit, last.sums.sm_limit);
        let mut key = RecordKey { tenant, device, start: wall.div_euclid(MINUTE_SECONDS) * MINUTE_SECONDS, bearer };
        if self.waiting.len() >= MAX_WAITING_ROWS && !self.waiting.contains_key(&key) {
            let first = RecordKey { start: i64::MIN, ..key.clone() };
            let latest = self.waiting.range(first..key.clone()).next_back().map(|(latest, _)| latest.clone());
            // A tenant without a waiting row still gets one: the configuration bounds tenants and devices.
            let same = |latest: &RecordKey| {
                (&latest.tenant, &latest.device, &latest.bearer) == (&key.tenant, &key.device, &key.bearer)
            };
            let own = latest.filter(same);
            key = own.unwrap_or(key);
        }
        if is_urgent {
            self.urgent.insert(key.clone());
        }
        let row = self.waiting.entry(key).or_default();
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more.min(MAX_ADDED));
        add(&mut row.gpu_ns, more.gpu_ns);
        add(&mut row.unmeasured_ns, more.unmeasured_ns);
        add(&mut row.wait_ns, more.wait_ns);
        add(&mut row.memory_byte_seconds, more.memory_byte_seconds);
        row.energy.add(more.energy);
        row.is_estimated |= more.is_estimated;
        row.peak_bytes = row.peak_bytes.max(more.peak_bytes);
        for (sum, more) in [(&mut row.launches, more.launches), (&mut row.refused, more.refused)] {
            if let Some(more) = more {
                add(sum.get_or_insert(0), more);
            }
        }
        row.service.add(&more.service);
        row.members = row.members.max(more.members).max(last.sums.members);
        (row.memory_limit, row.sm_limit) = limits;
    }

    /// Deducts device time from waiting rows, when it turns out that an earlier daemon already recorded it.
    pub fn takes_off(&mut self, tenant: &str, device: &str, mut written: u64) {
        for (_, row) in self.waiting.iter_mut().filter(|(key, _)| key.tenant == tenant && key.device == device) {
            let off = written.min(row.gpu_ns);
            row.gpu_ns -= off;
            written -= off;
        }
    }

    /// Forgets a removed tenant (by room) and its sums.
    pub fn forget_room(&mut self, room: u64) {
        self.last.retain(|(of, _), _| *of != room);
    }

    /// Returns the rows that wait to be written, and the number of them that must be written soon.
    #[must_use]
    pub fn waiting_rows(&self) -> (&BTreeMap<RecordKey, RecordRow>, usize) {
        (&self.waiting, self.urgent.len())
    }

    /// Clears the waiting rows after they were written.
    pub fn clear_written(&mut self) {
        self.waiting.clear();
        self.urgent.clear();
    }

    /// Returns true if no tenant holds memory and no row waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.last.values().all(|last| last.held == 0)
    }

    /// Returns the last reported name of the tenant.
    #[must_use]
    pub fn name(&self, whose: &RoomDevice) -> Option<&str> {
        self.last.get(whose).map(|last| last.sums.tenant.as_str())
    }
}

/// Splits an interval that ends now into minutes; returns a second in each minute and the ns that fall into it.
fn split_into_minutes(elapsed: u64, wall: i64) -> Vec<(i64, u64)> {
    if elapsed > LONG_INTERVAL_NS {
        return vec![(wall, elapsed)];
    }
    let (mut left, mut at, mut parts) = (elapsed, wall, Vec::new());
    while left > 0 {
        let into =
            u64::try_from(at.rem_euclid(MINUTE_SECONDS)).unwrap_or(0).saturating_add(1).saturating_mul(1_000_000_000);
        let part = left.min(into);
        parts.push((at, part));
        left -= part;
        at = at.div_euclid(MINUTE_SECONDS) * MINUTE_SECONDS - 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn whose() -> RoomDevice {
        (1, "GPU-1".into())
    }

    fn sums(gpu_ns: u64) -> UsageSums {
        UsageSums { tenant: "a".into(), gpu_ns, members: 1, ..UsageSums::default() }
    }

    fn at(second: u64) -> ClockMoment {
        ClockMoment { ns: (second + 1) * S, wall: i64::try_from(second).unwrap() }
    }

    fn holds(integral: &mut UsageIntegral, used: u64, now: ClockMoment) {
        let held = BTreeMap::from([(whose(), HeldMemory { used, ..HeldMemory::default() })]);
        integral.add_held(&held, |_| (0, 0), now);
    }

    fn all(integral: &UsageIntegral) -> RecordRow {
        let mut sum = RecordRow::default();
        for row in integral.waiting_rows().0.values() {
            sum.gpu_ns += row.gpu_ns;
            sum.memory_byte_seconds += row.memory_byte_seconds;
            sum.peak_bytes = sum.peak_bytes.max(row.peak_bytes);
            sum.refused = Some(sum.refused.unwrap_or(0) + row.refused.unwrap_or(0));
        }
        sum
    }

    #[test]
    fn sums_become_increments_and_what_a_former_daemon_wrote_counts_once() {
        let mut integral = UsageIntegral::default();
        integral.add_sums(&whose(), sums(70 * S), 50 * S, at(5));
        integral.add_sums(&whose(), sums(71 * S), 0, at(6));
        integral.add_sums(&whose(), sums(70 * S), 0, at(7));
        integral.add_sums(&whose(), sums(72 * S), 0, at(65));
        assert_eq!(all(&integral).gpu_ns, 22 * S);
        let starts: Vec<(i64, u64)> =
            integral.waiting_rows().0.iter().map(|(key, row)| (key.start, row.gpu_ns)).collect();
        assert_eq!(starts, [(0, 21 * S), (60, S)]);
        integral.takes_off("a", "GPU-1", 21 * S + 5);
        assert_eq!(all(&integral).gpu_ns, S - 5);
        integral.clear_written();
        assert!(integral.waiting_rows().0.is_empty() && integral.is_idle());
    }

    #[test]
    fn time_in_which_nobody_measures_is_kept_in_its_minutes_and_ends_when_somebody_does() {
        let mut integral = UsageIntegral::default();
        for (second, unmeasured) in [(50, false), (52, true), (55, true), (64, true), (70, false), (80, false)] {
            integral.add_sums(&whose(), UsageSums { unmeasured, ..sums(S) }, 0, at(second));
        }
        let rows: Vec<(i64, u64, u64)> =
            integral.waiting_rows().0.iter().map(|(key, row)| (key.start, row.gpu_ns, row.unmeasured_ns)).collect();
        assert_eq!(rows, [(0, S, 7 * S), (60, 0, 11 * S)]);
    }

    #[test]
    fn memory_that_was_held_before_the_tenants_name_is_known_counts_as_soon_as_it_is() {
        let mut integral = UsageIntegral::default();
        holds(&mut integral, 1000, at(5));
        holds(&mut integral, 3000, at(7));
        holds(&mut integral, 0, at(8));
        assert!(integral.waiting_rows().0.is_empty(), "no row without a name");
        integral.add_sums(&whose(), sums(0), 0, at(9));
        holds(&mut integral, 0, at(9));
        assert_eq!((all(&integral).memory_byte_seconds, all(&integral).peak_bytes), (2 * 1000 + 3000, 3000));
    }

    #[test]
    fn what_is_held_counts_for_the_time_in_which_it_was_held_in_the_minutes_of_that_time() {
        let mut integral = UsageIntegral::default();
        integral.add_sums(&whose(), sums(0), 0, at(50));
        holds(&mut integral, 1000, at(50));
        holds(&mut integral, 1000, at(55));
        holds(&mut integral, 200, at(65));
        integral.add_held(&BTreeMap::new(), |_| (0, 0), at(75));
        integral.add_held(&BTreeMap::new(), |_| (0, 0), at(85));
        assert_eq!(all(&integral).memory_byte_seconds, 15 * 1000 + 10 * 200);
        assert_eq!(all(&integral).peak_bytes, 1000);
        let rows: Vec<u64> = integral.waiting_rows().0.values().map(|row| row.memory_byte_seconds).collect();
        assert_eq!(rows, [9 * 1000, 6 * 1000 + 10 * 200]);
    }

    #[test]
    fn time_passes_for_memory_that_is_held_without_another_reading() {
        let held = BTreeMap::from([(whose(), HeldMemory { used: 1000, ..HeldMemory::default() })]);
        let run = |pass: bool| {
            let mut integral = UsageIntegral::default();
            integral.add_sums(&whose(), sums(0), 0, at(0));
            for second in 50..70 {
                let is_reading = second == 50 || second == 65;
                match pass && !is_reading {
                    true => integral.pass_time(at(second)),
                    false => integral.add_held(&held, |_| (2, 1500), at(second)),
                }
                if second == 62 {
                    integral.clear_written();
                }
            }
            integral.waiting_rows().0.clone()
        };
        assert_eq!(run(true), run(false));
        assert!(run(true).values().all(|row| row.memory_byte_seconds == 7 * 1000 && row.peak_bytes == 1000));
    }

    #[test]
    fn a_byte_is_not_lost_between_two_looks_and_nothing_overflows() {
        let mut integral = UsageIntegral::default();
        integral.add_sums(&whose(), sums(0), 0, at(0));
        let mut now = ClockMoment { ns: S, wall: 0 };
        for _ in 0..=1000 {
            holds(&mut integral, 1, now);
            now.ns += 7_000_001;
        }
        assert_eq!(all(&integral).memory_byte_seconds, 7);
        holds(&mut integral, u64::MAX, now);
        holds(&mut integral, u64::MAX, ClockMoment { ns: u64::MAX, wall: i64::MAX - 60 });
        integral.add_sums(&whose(), sums(u64::MAX), 0, at(9));
        integral.add_sums(&whose(), UsageSums { wait_ns: u64::MAX, ..sums(u64::MAX) }, 0, at(9));
        assert!(all(&integral).gpu_ns <= MAX_ADDED);
    }

    #[test]
    fn refusals_count_from_each_ledgers_first_reading_and_a_peak_between_two_looks_is_not_missed() {
        let mut integral = UsageIntegral::default();
        integral.add_sums(&whose(), sums(0), 0, at(0));
        let held = BTreeMap::from([(whose(), HeldMemory { used: 10, ..HeldMemory::default() })]);
        for (second, refused, peak) in [(1, 0, 0), (2, 3, 500), (3, 4, 500), (4, 0, 0), (5, 2, 0)] {
            integral.add_held(&held, |_| (refused, peak), at(second));
        }
        let sum = all(&integral);
        assert_eq!((sum.refused, sum.peak_bytes), (Some(6), 500));
        integral.clear_written();
        integral.add_held(&held, |_| (2, 500), at(6));
        integral.add_held(&held, |_| (2, 500), at(7));
        integral.clear_written();
        integral.add_held(&held, |_| (2, 500), at(8));
        assert_eq!(all(&integral).peak_bytes, 10, "the peak was in the minute in which it rose");
    }

    #[test]
    fn a_clock_that_is_set_forward_is_told_from_time_that_passes() {
        let at = |seconds: u64, wall: i64| ClockMoment { ns: seconds * 1_000_000_000, wall };
        let began = at(100, 1_700_000_000);
        assert!(!at(100 + 90 * 86_400, 1_700_000_000 + 90 * 86_400).was_set_since(&began));
        assert!(!at(200, 1_600_000_000).was_set_since(&began), "back: nothing becomes old by it");
        assert!(at(200, 1_700_000_000 + 500 * 86_400).was_set_since(&began));
    }
}
