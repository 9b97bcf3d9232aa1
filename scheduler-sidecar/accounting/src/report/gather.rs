//! Groups the recorded rows by tenant, group, label or device, and computes the unused time of each device.

use std::collections::{BTreeMap, BTreeSet};

use super::ReportPeriod;
use crate::record::ask::RecordLine;
use crate::record::energy::EnergyUse;

/// Nanoseconds in a second.
pub const NS_PER_SECOND: u128 = 1_000_000_000;
/// Bytes in a GiB.
pub const GIB_BYTES: u128 = 1 << 30;

/// A column by which rows are grouped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineBy {
    /// The name of the tenant.
    Tenant,
    /// The tenant's group at that time.
    Group,
    /// The value of the tenant's label of this name at that time.
    Label(String),
    /// The UUID of the device.
    Device,
}

/// Accepted forms of [`LineBy`], in words.
pub const BY_FORMS: &str = "tenant, group, device or label:NAME, or several with commas between, like group,tenant";

impl LineBy {
    /// Reads one column as written.
    ///
    /// # Errors
    /// [`BY_FORMS`].
    pub fn read(text: &str) -> Result<Self, String> {
        match text {
            "tenant" => Ok(Self::Tenant),
            "group" => Ok(Self::Group),
            "device" => Ok(Self::Device),
            _ => match text.strip_prefix("label:") {
                Some(name) if vgpu_config::value::is_label_name(name) => Ok(Self::Label(name.to_owned())),
                _ => Err(BY_FORMS.to_owned()),
            },
        }
    }

    /// Returns the column's name.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Tenant => "tenant".into(),
            Self::Group => "group".into(),
            Self::Label(name) => format!("label:{name}"),
            Self::Device => "device".into(),
        }
    }

    pub(super) fn key_of(&self, line: &RecordLine) -> Option<String> {
        match self {
            Self::Tenant => Some(line.tenant.clone()),
            Self::Group => line.bearer.group.clone(),
            Self::Label(name) => line.bearer.labels.get(name).cloned(),
            Self::Device => Some(line.device.clone()),
        }
    }
}

/// Identifies a line of a report.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineOwner {
    /// A value for each [`LineBy`]; `None` if the tenant had no group or no such label.
    Of(Vec<Option<String>>),
    /// Device time whose use was not measured, on this device or on all.
    Unmeasured(Option<String>),
    /// Device time that nobody used, on this device or on all.
    Nobody(Option<String>),
}

impl LineOwner {
    /// Returns true if the line belongs to tenants.
    #[must_use]
    pub const fn is_somebody(&self) -> bool {
        matches!(self, Self::Of(_))
    }

    /// Returns the device of an unattributed line.
    #[must_use]
    pub const fn idle_device(&self) -> Option<&String> {
        match self {
            Self::Of(_) => None,
            Self::Unmeasured(device) | Self::Nobody(device) => device.as_ref(),
        }
    }

    /// Returns the line's cells, one for each [`LineBy`].
    #[must_use]
    pub fn owner_cells(&self, by: &[LineBy]) -> Vec<String> {
        match self {
            Self::Of(parts) => parts.iter().map(|part| part.clone().unwrap_or_else(|| "(none)".into())).collect(),
            Self::Unmeasured(device) | Self::Nobody(device) => {
                let words = if matches!(self, Self::Nobody(_)) { "(not used)" } else { "(not measured)" };
                let mut cells = vec![String::new(); by.len()];
                if let (Some(device), Some(at)) = (device, by.iter().position(|by| *by == LineBy::Device)) {
                    cells[at].clone_from(device);
                }
                match cells.iter_mut().find(|cell| cell.is_empty()) {
                    Some(cell) => *cell = words.into(),
                    None => cells.iter_mut().take(1).for_each(|cell| *cell = format!("{cell} {words}")),
                }
                cells
            }
        }
    }
}

/// Usage summed over recorded rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatheredUse {
    /// Measured device time in ns.
    pub gpu_ns: u128,
    /// Time during which use was not measured in ns, summed over tenants and devices.
    pub unmeasured_ns: u128,
    /// Time spent waiting at the launch gate in ns, summed over processes.
    pub wait_ns: u128,
    /// Memory over time: bytes held, multiplied by the seconds for which they were held.
    pub byte_seconds: u128,
    /// Most bytes held at once on one device.
    pub peak_bytes: u64,
    /// Refused allocations; `None` if unknown for every row.
    pub refused: Option<u128>,
    /// Energy of work and of idleness, in millijoules; `None` if unknown for every row.
    pub energy_mj: Option<(u128, u128)>,
}

impl GatheredUse {
    /// Returns the device time in ns; `None` if the device was used and none of it was measured.
    #[must_use]
    pub fn measured_ns(&self) -> Option<u128> {
        (self.gpu_ns > 0 || self.unmeasured_ns == 0).then_some(self.gpu_ns)
    }

    /// Returns text about the device time: with `+` appended if more was used than measured, `?` if nothing was
    /// measured.
    #[must_use]
    pub fn mark_partial(&self, text: String) -> String {
        match self.measured_ns() {
            None => "?".into(),
            Some(_) if self.unmeasured_ns > 0 => text + "+",
            Some(_) => text,
        }
    }

    fn add(&mut self, line: &RecordLine) {
        self.gpu_ns += u128::from(line.gpu_ns);
        self.unmeasured_ns += u128::from(line.unmeasured_ns);
        self.wait_ns += u128::from(line.wait_ns);
        self.byte_seconds += u128::from(line.memory_byte_seconds);
        self.peak_bytes = self.peak_bytes.max(line.peak_bytes);
        if let Some(refused) = line.refused {
            *self.refused.get_or_insert(0) += u128::from(refused);
        }
        if let Some(energy) = line.energy {
            self.add_energy(energy);
        }
    }

    fn add_energy(&mut self, energy: EnergyUse) {
        let sum = self.energy_mj.get_or_insert((0, 0));
        *sum = (sum.0 + u128::from(energy.work_mj), sum.1 + u128::from(energy.idle_mj));
    }
}

/// Recorded rows, summed by group.
#[derive(Debug, Clone)]
pub struct GatheredLines {
    /// Columns by which rows are grouped.
    pub by: Vec<LineBy>,
    /// Sums of each group.
    pub lines: BTreeMap<LineOwner, GatheredUse>,
    /// For each device, in ns: measured device time, and the time during which further use was not measured.
    pub devices: BTreeMap<String, (u128, u128)>,
    /// Names of tenants whose use was not all measured.
    pub unmeasured: BTreeSet<String>,
    /// Devices of which some energy is known.
    pub energy_known: BTreeSet<String>,
    /// True if some energy is the sum of a device's power over time.
    pub is_energy_estimated: bool,
}

impl GatheredLines {
    /// Starts an empty grouping by these columns.
    #[must_use]
    pub fn new(by: Vec<LineBy>) -> Self {
        Self {
            by,
            lines: BTreeMap::new(),
            devices: BTreeMap::new(),
            unmeasured: BTreeSet::new(),
            energy_known: BTreeSet::new(),
            is_energy_estimated: false,
        }
    }

    /// Adds a recorded row to the sums of its group.
    pub fn add(&mut self, line: &RecordLine) {
        let whose = LineOwner::Of(self.by.iter().map(|by| by.key_of(line)).collect());
        self.lines.entry(whose).or_default().add(line);
        let device = self.devices.entry(line.device.clone()).or_default();
        device.0 += u128::from(line.gpu_ns);
        device.1 += u128::from(line.unmeasured_ns);
        if line.unmeasured_ns > 0 && !self.unmeasured.contains(&line.tenant) {
            self.unmeasured.insert(line.tenant.clone());
        }
        if line.energy.is_some() && !self.energy_known.contains(&line.device) {
            self.energy_known.insert(line.device.clone());
        }
        self.is_energy_estimated |= line.is_estimated;
    }

    /// Adds energy of a device that no tenant used: of work that was not measured, and of idleness without memory held.
    pub fn add_nobodys_energy(&mut self, device: &str, energy: EnergyUse, is_estimated: bool) {
        let name = || self.by.contains(&LineBy::Device).then(|| device.to_owned());
        let (unmeasured, nobody) = (LineOwner::Unmeasured(name()), LineOwner::Nobody(name()));
        self.lines.entry(unmeasured).or_default().add_energy(EnergyUse { idle_mj: 0, ..energy });
        self.lines.entry(nobody).or_default().add_energy(EnergyUse { work_mj: 0, ..energy });
        self.energy_known.insert(device.to_owned());
        self.is_energy_estimated |= is_estimated;
    }

    /// Adds two lines for each device in the period: the time that nobody used, and the time whose use was not
    /// measured. The latter is at most the device time left over.
    ///
    /// Only devices with rows are known. Rows may reach beyond the period by a minute; then the unused time is zero,
    /// not negative.
    pub fn add_nobodys(&mut self, period: ReportPeriod) {
        let whole = period.length_seconds().saturating_mul(NS_PER_SECOND);
        let each = self.by.contains(&LineBy::Device);
        for (device, (used, unmeasured)) in &self.devices {
            let name = || each.then(|| device.clone());
            let left = whole.saturating_sub(*used);
            let unknown = left.min(*unmeasured);
            if unknown > 0 {
                self.lines.entry(LineOwner::Unmeasured(name())).or_default().gpu_ns += unknown;
            }
            self.lines.entry(LineOwner::Nobody(name())).or_default().gpu_ns += left - unknown;
        }
    }

    /// Returns the lines by use, highest first, unattributed ones last.
    #[must_use]
    pub fn sorted_lines(&self, weight: impl Fn(&GatheredUse) -> u128) -> Vec<(LineOwner, GatheredUse)> {
        let mut lines: Vec<_> = self.lines.iter().map(|(whose, used)| (whose.clone(), used.clone())).collect();
        lines.sort_by_key(|(whose, used)| (sort_class(whose), std::cmp::Reverse(weight(used))));
        lines
    }

    /// Returns notes about time that the record does not cover.
    #[must_use]
    pub fn reader_notes(&self) -> Vec<String> {
        let few = |names: &BTreeSet<String>| {
            let more = if names.len() > 8 { ", ..." } else { "" };
            let few: Vec<&str> = names.iter().take(8).map(String::as_str).collect();
            (!few.is_empty()).then(|| few.join(", ") + more)
        };
        let unmeasured = few(&self.unmeasured).map(|names| {
            format!(
                "Not all device time of these was measured (+), or none of it (?): {names}. They used devices that \
                 are not shared by leases (arbitrate = false in [time]), or were alone where the daemon had exact = \
                 false in [record]. That time is part of the row (not measured), which is an upper bound."
            )
        });
        unmeasured.into_iter().collect()
    }
}

/// Sort key that puts unattributed lines last.
pub(super) fn sort_class(whose: &LineOwner) -> u8 {
    match whose {
        LineOwner::Of(_) => 0,
        LineOwner::Unmeasured(_) => 1,
        LineOwner::Nobody(_) => 2,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use vgpu_config::bearer::CostBearer;

    /// Creates a row of one minute.
    pub(crate) fn test_line(
        tenant: &str,
        group: Option<&str>,
        device: &str,
        start: i64,
        gpu_ms: u64,
        gib_seconds: u64,
    ) -> RecordLine {
        RecordLine {
            start,
            span: 60,
            tenant: tenant.into(),
            bearer: CostBearer {
                group: group.map(str::to_owned),
                labels: BTreeMap::from([("kind".into(), "x".into())]),
            },
            device: device.into(),
            gpu_ns: gpu_ms * 1_000_000,
            unmeasured_ns: 0,
            memory_byte_seconds: gib_seconds << 30,
            peak_bytes: 1 << 30,
            sm_limit: Some(300),
            ..RecordLine::default()
        }
    }

    #[test]
    fn a_tenant_that_moves_to_another_group_leaves_what_it_used_where_it_was() {
        let mut gathered = GatheredLines::new(vec![LineBy::Group, LineBy::Tenant]);
        for line in [
            test_line("a", Some("one"), "G", 0, 10, 0),
            test_line("a", Some("two"), "G", 60, 5, 0),
            test_line("b", None, "G", 60, 1, 0),
        ] {
            gathered.add(&line);
        }
        gathered.add_nobodys(ReportPeriod { since: 0, until: 60 });
        let lines: Vec<(Vec<String>, u128)> = gathered
            .sorted_lines(|used| used.gpu_ns)
            .iter()
            .map(|(whose, used)| (whose.owner_cells(&gathered.by), used.gpu_ns / 1_000_000))
            .collect();
        let cells = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        assert_eq!(
            lines,
            [
                (cells("one", "a"), 10),
                (cells("two", "a"), 5),
                (cells("(none)", "b"), 1),
                (cells("(not used)", ""), 60_000 - 16)
            ]
        );
    }

    #[test]
    fn what_was_not_measured_is_nobodys_idleness_and_no_tenants_zero() {
        let mut gathered = GatheredLines::new(vec![LineBy::Device]);
        let unmeasured = |tenant: &str, device: &str, gpu_ms, seconds: u64| RecordLine {
            unmeasured_ns: seconds * 1_000_000_000,
            ..test_line(tenant, None, device, 0, gpu_ms, 0)
        };
        // On G two tenants at once, one of them measured in part; on H unmeasured use for ten seconds; on I no use.
        gathered.add(&unmeasured("a", "G", 5_000, 50));
        gathered.add(&unmeasured("b", "G", 0, 60));
        gathered.add(&unmeasured("b", "H", 0, 10));
        gathered.add(&test_line("c", None, "I", 0, 0, 0));
        gathered.add_nobodys(ReportPeriod { since: 0, until: 60 });
        let ms = |whose: LineOwner| gathered.lines.get(&whose).map(|used| used.gpu_ns / 1_000_000);
        let of =
            |device: &str| (ms(LineOwner::Unmeasured(Some(device.into()))), ms(LineOwner::Nobody(Some(device.into()))));
        assert_eq!(of("G"), (Some(55_000), Some(0)));
        assert_eq!(of("H"), (Some(10_000), Some(50_000)));
        assert_eq!(of("I"), (None, Some(60_000)));
        let shown = |device: &str| {
            let used = &gathered.lines[&LineOwner::Of(vec![Some(device.into())])];
            (used.measured_ns(), used.mark_partial("x".into()))
        };
        assert_eq!(shown("G"), (Some(5_000_000_000), "x+".into()));
        assert_eq!(shown("H"), (None, "?".into()));
        assert_eq!(shown("I"), (Some(0), "x".into()));
        assert_eq!(LineOwner::Unmeasured(Some("G".into())).owner_cells(&gathered.by), ["G (not measured)"]);
        let notes = gathered.reader_notes();
        assert!(notes.len() == 1 && notes[0].contains(": a, b. They used"), "{notes:?}");
    }

    #[test]
    fn a_peak_is_the_highest_of_its_lines_and_refusals_are_their_sum() {
        let mut gathered = GatheredLines::new(vec![LineBy::Tenant]);
        for (start, peak_bytes, refused) in [(0, 5, None), (60, 9, Some(2)), (120, 7, Some(1))] {
            gathered.add(&RecordLine { peak_bytes, refused, ..test_line("a", None, "G", start, 0, 0) });
        }
        let used = gathered.lines.values().next().unwrap();
        assert_eq!((used.peak_bytes, used.refused), (9, Some(3)));
    }

    #[test]
    fn each_device_has_its_own_time_that_nobody_used_and_none_is_less_than_nil() {
        let mut gathered = GatheredLines::new(vec![LineBy::Device]);
        gathered.add(&test_line("a", None, "G", 0, 70_000, 0));
        gathered.add(&test_line("a", None, "H", 0, 20_000, 0));
        gathered.add_nobodys(ReportPeriod { since: 0, until: 60 });
        let nobody = |device: &str| gathered.lines[&LineOwner::Nobody(Some(device.into()))].gpu_ns / 1_000_000;
        assert_eq!((nobody("G"), nobody("H")), (0, 40_000));
        assert_eq!(LineOwner::Nobody(Some("G".into())).owner_cells(&gathered.by), ["G (not used)"]);
        assert!(LineBy::read("label:kind").is_ok() && LineBy::read("label:").is_err() && LineBy::read("user").is_err());
    }
}
