//! Reports memory that tenants held on a device while they did not use it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::ReportPeriod;
use super::apportion::{format_decimal, round_half_up};
use super::chart::{ChartBar, draw_bars};
use super::gather::{GIB_BYTES, GatheredUse, NS_PER_SECOND};
use super::sheet::{ReportSheet, SheetTable};
use super::usage::whole_number;
use crate::record::ask;

/// How long a tenant held memory on a device, and how much of that time and memory was idle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldAndIdle {
    /// Seconds in which the tenant held memory on the device.
    pub held: u64,
    /// Seconds of `held` that were idle: with less device time than the threshold.
    pub idle: u64,
    /// Longest time without a break in which the memory was idle, in seconds.
    pub longest: u64,
    /// Device time during the held seconds, in ns.
    pub gpu_ns: u128,
    /// Bytes held while idle, multiplied by seconds.
    pub idle_byte_seconds: u128,
    /// Idle seconds whose device time was not measured.
    pub unsure: u64,
    streak: u64,
    ends: i64,
}

impl HeldAndIdle {
    /// Returns the idle part of the held time, in tenths of a percent; 0 if nothing was held.
    #[must_use]
    pub fn idle_permille(&self) -> u64 {
        (self.idle * 1000).checked_div(self.held).unwrap_or(0)
    }
}

/// Sums of one row over all groups that the tenant was in.
#[derive(Debug, Clone, Default)]
struct IdleRow {
    start: i64,
    span: i64,
    /// Seconds of the period that have begun.
    seconds: u64,
    gpu_ns: u128,
    byte_seconds: u128,
    unsure: bool,
}

/// Builds the report from rows in the order of time.
#[derive(Debug)]
pub struct IdleReport {
    below: u32,
    now: i64,
    open: BTreeMap<(String, String), IdleRow>,
    held: BTreeMap<(String, String), HeldAndIdle>,
    /// For each device, in ns: measured device time, and the time during which further use was not measured.
    devices: BTreeMap<String, (u128, u128)>,
}

impl IdleReport {
    /// Starts an empty report. A minute is idle with less than `below` tenths of a percent of the device's time. A
    /// minute that is not over counts with the seconds that have begun at `now`.
    #[must_use]
    pub fn new(below: u32, now: i64) -> Self {
        Self { below, now, open: BTreeMap::new(), held: BTreeMap::new(), devices: BTreeMap::new() }
    }

    /// Adds a row; rows arrive in the order of time.
    pub fn add(&mut self, line: &ask::RecordLine) {
        let device = self.devices.entry(line.device.clone()).or_default();
        device.0 += u128::from(line.gpu_ns);
        device.1 += u128::from(line.unmeasured_ns);
        let whose = (line.tenant.clone(), line.device.clone());
        let row = self.open.entry(whose.clone()).or_default();
        if (row.start, row.span) != (line.start, line.span) {
            let done = std::mem::take(row);
            (row.start, row.span, row.seconds) = (line.start, line.span, line.begun_seconds(self.now));
            self.close(&whose, &done);
        }
        let Some(row) = self.open.get_mut(&whose) else { return };
        row.gpu_ns += u128::from(line.gpu_ns);
        row.byte_seconds += u128::from(line.memory_byte_seconds);
        row.unsure |= line.unmeasured_ns > 0;
    }

    fn close(&mut self, whose: &(String, String), row: &IdleRow) {
        if row.byte_seconds == 0 {
            return;
        }
        let seconds = row.seconds;
        let held = self.held.entry(whose.clone()).or_default();
        held.held += seconds;
        held.gpu_ns += row.gpu_ns;
        let idle = row.gpu_ns * 1000 < u128::from(self.below) * u128::from(seconds) * NS_PER_SECOND || row.gpu_ns == 0;
        if !idle {
            held.streak = 0;
            return;
        }
        held.idle += seconds;
        held.idle_byte_seconds += row.byte_seconds;
        held.unsure += if row.unsure { seconds } else { 0 };
        held.streak = if held.ends == row.start { held.streak + seconds } else { seconds };
        held.ends = row.start + row.span;
        held.longest = held.longest.max(held.streak);
    }

    /// Finishes the report after the last row of the period.
    #[must_use]
    pub fn finish_report(mut self, period: ReportPeriod) -> IdleAnswer {
        for (whose, row) in std::mem::take(&mut self.open) {
            self.close(&whose, &row);
        }
        let mut lines: Vec<_> = self.held.into_iter().collect();
        lines.sort_by_key(|(_, held)| std::cmp::Reverse(held.idle_byte_seconds));
        IdleAnswer { lines, devices: self.devices, period, below: self.below }
    }
}

/// The finished report on memory that is held while the device is not used.
#[derive(Debug, Clone)]
pub struct IdleAnswer {
    /// Lines by tenant and device, most idle memory first.
    pub lines: Vec<((String, String), HeldAndIdle)>,
    /// For each device, in ns: measured device time, and the time during which further use was not measured.
    pub devices: BTreeMap<String, (u128, u128)>,
    period: ReportPeriod,
    below: u32,
}

/// Formats seconds as hours, minutes and seconds.
fn format_hours(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn milli_gib_hours(byte_seconds: u128) -> u128 {
    round_half_up(byte_seconds.saturating_mul(1000), 3600 * GIB_BYTES)
}

impl IdleAnswer {
    /// Returns the idle part of a device's time; `None` if unknown because some use was not measured.
    fn idle_permille(&self, (used, unmeasured): (u128, u128)) -> Option<u128> {
        let whole = self.period.length_seconds() * NS_PER_SECOND;
        (unmeasured == 0).then(|| round_half_up(whole.saturating_sub(used) * 1000, whole))
    }

    /// Returns the report for people.
    #[must_use]
    pub fn to_sheet(&self, facts: Vec<(String, String)>) -> ReportSheet {
        let row = |((tenant, device), held): &((String, String), HeldAndIdle)| {
            vec![
                tenant.clone(),
                device.clone(),
                format_hours(held.held),
                format_hours(held.idle),
                format!("{}{}", format_decimal(held.idle_permille().into(), 1), if held.unsure > 0 { "?" } else { "" }),
                format_hours(held.longest),
                format_decimal(milli_gib_hours(held.idle_byte_seconds), 3),
            ]
        };
        let heads = ["tenant", "device", "held", "idle", "idle %", "longest", "idle GiB hours"];
        let tenants = SheetTable {
            heading: "Memory that was held while nothing was computed".into(),
            heads: heads.map(str::to_owned).to_vec(),
            words: 2,
            rows: self.lines.iter().map(row).collect(),
            total: None,
        };
        let device = |(device, used): (&String, &(u128, u128))| {
            let spent = GatheredUse { gpu_ns: used.0, unmeasured_ns: used.1, ..GatheredUse::default() };
            let idle = self.idle_permille(*used).map_or("?".into(), |permille| format_decimal(permille, 1));
            vec![
                device.clone(),
                spent.mark_partial(format_decimal(round_half_up(used.0, NS_PER_SECOND / 1000), 3)),
                idle,
            ]
        };
        let devices = SheetTable {
            heading: "Devices".into(),
            heads: ["device", "GPU seconds", "idle %"].map(str::to_owned).to_vec(),
            words: 1,
            rows: self.devices.iter().map(device).collect(),
            total: None,
        };
        #[allow(clippy::cast_precision_loss)] // only for a picture
        let bar = |((tenant, _), held): &((String, String), HeldAndIdle)| ChartBar {
            name: tenant.clone(),
            value: milli_gib_hours(held.idle_byte_seconds) as f64,
            shown: format!("{} GiB h", format_decimal(milli_gib_hours(held.idle_byte_seconds), 3)),
        };
        let mut notes = vec![format!(
            "A minute (older than keep_fine: an hour) is idle if memory was held in it and less than {} % of the \
             device's time was used.",
            format_decimal(self.below.into(), 1)
        )];
        if self.lines.iter().any(|(_, held)| held.unsure > 0) {
            notes.push(
                "?: device time was not measured, so the tenant may have been busy: on devices that are not shared \
                 by leases, or alone with exact = false in [record]."
                    .into(),
            );
        }
        ReportSheet {
            title: "Held and not used".into(),
            facts,
            tables: vec![tenants, devices],
            pictures: vec![draw_bars("Idle GiB hours", &self.lines.iter().map(bar).collect::<Vec<_>>())],
            notes,
            ..ReportSheet::default()
        }
    }

    /// Returns the report as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let line = |((tenant, device), held): &((String, String), HeldAndIdle)| {
            json!({
                "tenant": tenant,
                "device": device,
                "held_seconds": held.held,
                "idle_seconds": held.idle,
                "longest_idle_seconds": held.longest,
                "idle_byte_seconds": whole_number(held.idle_byte_seconds),
                "gpu_ns": (held.gpu_ns > 0 || held.unsure == 0).then(|| whole_number(held.gpu_ns)),
                "perhaps_unmeasured_seconds": held.unsure,
            })
        };
        let device = |(device, used): (&String, &(u128, u128))| {
            let spent = GatheredUse { gpu_ns: used.0, unmeasured_ns: used.1, ..GatheredUse::default() };
            json!({
                "device": device,
                "gpu_ns": spent.measured_ns().map(whole_number),
                "unmeasured_ns": whole_number(used.1),
                "idle_percent": self.idle_permille(*used).map(|permille| format_decimal(permille, 1)),
            })
        };
        json!({
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "devices": self.devices.iter().map(device).collect::<Vec<_>>(),
        })
    }

    /// Returns the report as CSV.
    #[must_use]
    pub fn to_csv(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let heads = [
            "tenant",
            "device",
            "held_seconds",
            "idle_seconds",
            "longest_idle_seconds",
            "idle_byte_seconds",
            "gpu_ns",
            "perhaps_unmeasured_seconds",
        ];
        let row = |((tenant, device), held): &((String, String), HeldAndIdle)| {
            let numbers = [
                u128::from(held.held),
                held.idle.into(),
                held.longest.into(),
                held.idle_byte_seconds,
                held.gpu_ns,
                held.unsure.into(),
            ];
            [tenant.clone(), device.clone()].into_iter().chain(numbers.map(|number| number.to_string())).collect()
        };
        (heads.map(str::to_owned).to_vec(), self.lines.iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::gather::tests::test_line;
    use super::*;

    #[test]
    fn a_minute_counts_by_its_device_time_once_for_all_groups_and_a_break_ends_the_longest() {
        let mut idle = IdleReport::new(10, 309);
        for (start, group, ms, gib_seconds) in [
            (0, None, 0, 60),
            (60, None, 500, 60),  // 0.83 %
            (120, None, 400, 30), // together with the next row 1.3 %
            (120, Some("new"), 400, 30),
            (180, Some("new"), 0, 0), // nothing held
            (300, Some("new"), 0, 10),
        ] {
            idle.add(&test_line("a", group, "G", start, ms, gib_seconds));
        }
        let answer = idle.finish_report(ReportPeriod { since: 0, until: 310 });
        let (_, held) = &answer.lines[0];
        assert_eq!((held.held, held.idle, held.longest, held.unsure), (190, 130, 120, 0));
        assert_eq!(held.idle_byte_seconds, 130 << 30);
        assert_eq!(held.idle_permille(), 684);
        assert_eq!(answer.to_json()["devices"][0]["idle_percent"], "99.6");
    }

    #[test]
    fn who_may_have_been_busy_unmeasured_is_not_called_idle_without_a_question_mark() {
        let mut idle = IdleReport::new(10, 60);
        idle.add(&ask::RecordLine { unmeasured_ns: 5, ..test_line("a", None, "G", 0, 0, 60) });
        idle.add(&ask::RecordLine { sm_limit: None, ..test_line("c", None, "H", 0, 0, 40) });
        let answer = idle.finish_report(ReportPeriod { since: 0, until: 60 });
        let sheet = answer.to_sheet(Vec::new());
        let shown: Vec<&str> = sheet.tables[0].rows.iter().map(|row| row[4].as_str()).collect();
        assert_eq!(shown, ["100.0?", "100.0"]);
        assert!(sheet.notes[1].contains("exact = false"));
        assert_eq!(sheet.tables[1].rows[0][1..], ["?", "?"], "of the device it is not known either");
        assert_eq!(sheet.tables[1].rows[1][1..], ["0.000", "100.0"]);
        let json = answer.to_json();
        assert!(json["devices"][0]["idle_percent"].is_null() && json["devices"][0]["gpu_ns"].is_null(), "{json}");
        assert!(json["lines"][0]["gpu_ns"].is_null() && json["lines"][1]["gpu_ns"] == 0, "{json}");
    }
}
