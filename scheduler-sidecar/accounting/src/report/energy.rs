//! Reports the energy of each line: of work, and of idleness with memory held. All lines add up to the devices'
//! counters.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::apportion::{apportion_total, format_decimal, round_half_up};
use super::chart::{ChartBar, draw_bars};
use super::gather::{GatheredLines, GatheredUse, LineBy, LineOwner};
use super::sheet::{ReportSheet, SheetTable};
use super::usage::{column_names, merge_objects, owner_json, whole_number};

/// Millijoules in a thousandth of a watt-hour.
const MJ_PER_MILLI_WH: u128 = 3_600;

/// A line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnergyLine {
    /// The tenant, group, label or device of the line.
    pub whose: LineOwner,
    /// Usage recorded for the line.
    pub used: GatheredUse,
    /// Energy of work as shown, in thousandths of a watt-hour.
    pub work_milli_wh: u128,
    /// Energy of idleness as shown, in thousandths of a watt-hour.
    pub idle_milli_wh: u128,
    /// Part of all energy in tenths of a percent; all lines sum to 1000.
    pub permille: u128,
}

/// Report on energy by tenant, group, label or device.
#[derive(Debug, Clone)]
pub struct EnergyReport {
    /// Lines, most energy first.
    pub lines: Vec<EnergyLine>,
    /// Columns by which lines are grouped.
    pub by: Vec<LineBy>,
    /// Devices whose energy is not known.
    unknown: BTreeSet<String>,
    /// True if some energy is the sum of a device's power over time.
    is_estimated: bool,
}

fn energy_of(used: &GatheredUse) -> (u128, u128) {
    used.energy_mj.unwrap_or_default()
}

/// Makes the report. The shown parts of the lines sum to the shown total.
#[must_use]
pub fn make_energy(gathered: &GatheredLines) -> EnergyReport {
    let whole = |used: &GatheredUse| energy_of(used).0 + energy_of(used).1;
    let mut sorted = gathered.sorted_lines(whole);
    // A line of nobody's that has time and no energy says nothing here.
    sorted.retain(|(whose, used)| whose.is_somebody() || whole(used) > 0);
    let cells: Vec<u128> = sorted.iter().flat_map(|(_, used)| [energy_of(used).0, energy_of(used).1]).collect();
    let sum = cells.iter().sum::<u128>();
    let milli = apportion_total(round_half_up(sum, MJ_PER_MILLI_WH), &cells);
    let wholes: Vec<u128> = sorted.iter().map(|(_, used)| whole(used)).collect();
    let permille = apportion_total(1000, &wholes);
    let line = |(index, (whose, used)): (usize, (LineOwner, GatheredUse))| EnergyLine {
        whose,
        used,
        work_milli_wh: milli[2 * index],
        idle_milli_wh: milli[2 * index + 1],
        permille: permille[index],
    };
    EnergyReport {
        lines: sorted.into_iter().enumerate().map(line).collect(),
        by: gathered.by.clone(),
        unknown: gathered.devices.keys().filter(|device| !gathered.energy_known.contains(*device)).cloned().collect(),
        is_estimated: gathered.is_energy_estimated,
    }
}

impl EnergyReport {
    /// Returns the report for people.
    #[must_use]
    pub fn to_sheet(&self, facts: Vec<(String, String)>) -> ReportSheet {
        let numbers = |used: Option<&GatheredUse>, work: u128, idle: u128, permille: u128| {
            if used.is_some_and(|used| used.energy_mj.is_none()) {
                return vec!["?".to_owned(); 4];
            }
            vec![
                format_decimal(work, 3),
                format_decimal(idle, 3),
                format_decimal(work + idle, 3),
                format_decimal(permille, 1),
            ]
        };
        let row = |line: &EnergyLine| {
            let cells = numbers(Some(&line.used), line.work_milli_wh, line.idle_milli_wh, line.permille);
            line.whose.owner_cells(&self.by).into_iter().chain(cells).collect::<Vec<_>>()
        };
        let sum = |part: fn(&EnergyLine) -> u128| self.lines.iter().map(part).sum::<u128>();
        let mut total = vec![String::new(); self.by.len()];
        total[0] = "total".into();
        total.extend(numbers(
            None,
            sum(|one| one.work_milli_wh),
            sum(|one| one.idle_milli_wh),
            sum(|one| one.permille),
        ));
        let table = SheetTable {
            heads: column_names(&self.by, &["work Wh", "idle Wh", "Wh", "%"]),
            words: self.by.len(),
            rows: self.lines.iter().map(row).collect(),
            total: Some(total),
            ..SheetTable::default()
        };
        ReportSheet {
            title: "GPU energy".into(),
            facts,
            tables: vec![table],
            pictures: vec![draw_bars("Wh", &self.energy_bars())],
            notes: self.reader_notes(),
            ..ReportSheet::default()
        }
    }

    fn reader_notes(&self) -> Vec<String> {
        let estimated = self.is_estimated.then(|| {
            "A device counts no energy; the daemon added up its power, as the driver says it once a second.".to_owned()
        });
        let unknown = (!self.unknown.is_empty()).then(|| {
            let names: Vec<&str> = self.unknown.iter().take(8).map(String::as_str).collect();
            format!("Not known is the energy of {}: the daemon had no answer of the driver about it.", names.join(", "))
        });
        estimated.into_iter().chain(unknown).collect()
    }

    fn energy_bars(&self) -> Vec<ChartBar> {
        #[allow(clippy::cast_precision_loss)] // only for a picture
        let bar = |line: &EnergyLine| ChartBar {
            name: line.whose.owner_cells(&self.by).join(" "),
            value: (line.work_milli_wh + line.idle_milli_wh) as f64,
            shown: format!("{} %", format_decimal(line.permille, 1)),
        };
        self.lines.iter().map(bar).collect()
    }

    /// Returns the report as JSON: millijoules as recorded, and the parts.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let known =
            |used: &GatheredUse, part: fn((u128, u128)) -> u128| used.energy_mj.map(|mj| whole_number(part(mj)));
        let line = |line: &EnergyLine| {
            merge_objects(
                owner_json(&line.whose, &self.by),
                json!({
                    "work_mj": known(&line.used, |mj| mj.0),
                    "idle_mj": known(&line.used, |mj| mj.1),
                    "energy_percent": line.used.energy_mj.map(|_| format_decimal(line.permille, 1)),
                }),
            )
        };
        let sum = |part: fn((u128, u128)) -> u128| {
            whole_number(self.lines.iter().filter_map(|line| line.used.energy_mj).map(part).sum())
        };
        json!({
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "total": { "work_mj": sum(|mj| mj.0), "idle_mj": sum(|mj| mj.1) },
            "estimated": self.is_estimated,
            "unknown_devices": self.unknown,
        })
    }

    /// Returns the report as CSV, one line each, without a total.
    #[must_use]
    pub fn to_csv(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let row = |line: &EnergyLine| {
            let number =
                |part: fn((u128, u128)) -> u128| line.used.energy_mj.map_or(String::new(), |mj| part(mj).to_string());
            let percent = line.used.energy_mj.map_or(String::new(), |_| format_decimal(line.permille, 1));
            let numbers = [number(|mj| mj.0), number(|mj| mj.1), percent];
            line.whose.owner_cells(&self.by).into_iter().chain(numbers).collect()
        };
        (column_names(&self.by, &["work_mj", "idle_mj", "energy_percent"]), self.lines.iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::gather::tests::test_line;
    use super::*;
    use crate::record::ask::RecordLine;
    use crate::record::energy::EnergyUse;

    fn line(tenant: &str, device: &str, energy: Option<(u64, u64)>) -> RecordLine {
        let energy = energy.map(|(work_mj, idle_mj)| EnergyUse { work_mj, idle_mj });
        RecordLine { energy, ..test_line(tenant, None, device, 0, 10, 1) }
    }

    #[test]
    fn lines_add_up_to_all_energy_and_nobodys_is_one_of_them() {
        let mut gathered = GatheredLines::new(vec![LineBy::Tenant]);
        gathered.add(&line("a", "G", Some((3_601, 0))));
        gathered.add(&line("a", "G", Some((3_601, 1_799))));
        gathered.add(&line("b", "G", Some((0, 1_799))));
        gathered.add_nobodys_energy("G", EnergyUse { work_mj: 1_799, idle_mj: 9_001 }, false);
        let report = make_energy(&gathered);
        let shown: Vec<(Vec<String>, u128, u128)> = report
            .lines
            .iter()
            .map(|line| (line.whose.owner_cells(&report.by), line.work_milli_wh, line.idle_milli_wh))
            .collect();
        let names: Vec<&str> = shown.iter().map(|(cells, ..)| cells[0].as_str()).collect();
        assert_eq!(names, ["a", "b", "(not measured)", "(not used)"]);
        assert_eq!(shown.iter().map(|(_, work, idle)| work + idle).sum::<u128>(), 6, "21600 mJ are 6 mWh: {shown:?}");
        assert_eq!(report.lines.iter().map(|line| line.permille).sum::<u128>(), 1000);
        let json = report.to_json();
        assert_eq!((json["total"]["work_mj"].as_u64(), json["total"]["idle_mj"].as_u64()), (Some(9_001), Some(12_599)));
        assert!(report.to_sheet(Vec::new()).notes.is_empty());
    }

    #[test]
    fn what_is_not_known_is_a_mark_and_never_nil() {
        let mut gathered = GatheredLines::new(vec![LineBy::Tenant, LineBy::Device]);
        gathered.add(&line("a", "G", None));
        gathered.add(&RecordLine { is_estimated: true, ..line("a", "H", Some((0, 0))) });
        let report = make_energy(&gathered);
        let sheet = report.to_sheet(Vec::new());
        assert!(
            sheet.tables[0].rows.contains(&["a", "G", "?", "?", "?", "?"].map(str::to_owned).to_vec()),
            "{sheet:?}"
        );
        assert!(sheet.notes[0].contains("added up its power") && sheet.notes[1].contains("energy of G:"), "{sheet:?}");
        assert_eq!(report.to_csv().1[0][2..], ["", "", ""]);
        assert!(report.to_json()["lines"][0]["work_mj"].is_null());
    }
}
