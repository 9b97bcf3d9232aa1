//! Reports memory that tenants held on a device while they did not use it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Period;
use super::apportion::{decimal, rounded};
use super::chart::{Bar, bars};
use super::gather::{GIB, NS, Used};
use super::sheet::{Sheet, Table};
use super::usage::whole;
use crate::record::ask;

/// Memory held by a tenant on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
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

impl Held {
    /// Returns the idle part of the held time, in tenths of a percent; 0 if nothing was held.
    #[must_use]
    pub fn permille(&self) -> u64 {
        (self.idle * 1000).checked_div(self.held).unwrap_or(0)
    }
}

/// Sums of one row over all groups that the tenant was in.
#[derive(Debug, Clone, Default)]
struct Row {
    start: i64,
    span: i64,
    gpu_ns: u128,
    byte_seconds: u128,
    unsure: bool,
}

/// Builds the report from rows in the order of time.
#[derive(Debug)]
pub struct Idle {
    below: u32,
    now: i64,
    open: BTreeMap<(String, String), Row>,
    held: BTreeMap<(String, String), Held>,
    /// For each device, in ns: measured device time, and the time during which further use was not measured.
    devices: BTreeMap<String, (u128, u128)>,
}

impl Idle {
    /// Starts an empty report. A minute is idle with less than `below` tenths of a percent of the device's time. A
    /// minute that is not over at `now` counts up to `now`.
    #[must_use]
    pub fn new(below: u32, now: i64) -> Self {
        Self { below, now, open: BTreeMap::new(), held: BTreeMap::new(), devices: BTreeMap::new() }
    }

    /// Adds a row; rows arrive in the order of time.
    pub fn add(&mut self, line: &ask::Line) {
        let device = self.devices.entry(line.device.clone()).or_default();
        device.0 += u128::from(line.gpu_ns);
        device.1 += u128::from(line.unmeasured_ns);
        let whose = (line.tenant.clone(), line.device.clone());
        let row = self.open.entry(whose.clone()).or_default();
        if (row.start, row.span) != (line.start, line.span) {
            let done = std::mem::take(row);
            (row.start, row.span) = (line.start, line.span);
            self.close(&whose, &done);
        }
        let Some(row) = self.open.get_mut(&whose) else { return };
        row.gpu_ns += u128::from(line.gpu_ns);
        row.byte_seconds += u128::from(line.memory_byte_seconds);
        row.unsure |= line.unmeasured_ns > 0;
    }

    fn close(&mut self, whose: &(String, String), row: &Row) {
        if row.byte_seconds == 0 {
            return;
        }
        // The last minute may not be over yet.
        let seconds = u64::try_from(row.span.min(self.now.saturating_sub(row.start)).max(1)).unwrap_or(1);
        let held = self.held.entry(whose.clone()).or_default();
        held.held += seconds;
        held.gpu_ns += row.gpu_ns;
        let idle = row.gpu_ns * 1000 < u128::from(self.below) * u128::from(seconds) * NS || row.gpu_ns == 0;
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
    pub fn done(mut self, period: Period) -> Answer {
        for (whose, row) in std::mem::take(&mut self.open) {
            self.close(&whose, &row);
        }
        let mut lines: Vec<_> = self.held.into_iter().collect();
        lines.sort_by_key(|(_, held)| std::cmp::Reverse(held.idle_byte_seconds));
        Answer { lines, devices: self.devices, period, below: self.below }
    }
}

/// The finished report on memory that is held while the device is not used.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Lines by tenant and device, most idle memory first.
    pub lines: Vec<((String, String), Held)>,
    /// For each device, in ns: measured device time, and the time during which further use was not measured.
    pub devices: BTreeMap<String, (u128, u128)>,
    period: Period,
    below: u32,
}

/// Formats seconds as hours, minutes and seconds.
fn hours(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn milli_gib_hours(byte_seconds: u128) -> u128 {
    rounded(byte_seconds.saturating_mul(1000), 3600 * GIB)
}

impl Answer {
    /// Returns the idle part of a device's time; `None` if unknown because some use was not measured.
    fn idle_permille(&self, (used, unmeasured): (u128, u128)) -> Option<u128> {
        let whole = self.period.seconds() * NS;
        (unmeasured == 0).then(|| rounded(whole.saturating_sub(used) * 1000, whole))
    }

    /// Returns the report for people.
    #[must_use]
    pub fn sheet(&self, facts: Vec<(String, String)>) -> Sheet {
        let row = |((tenant, device), held): &((String, String), Held)| {
            vec![
                tenant.clone(),
                device.clone(),
                hours(held.held),
                hours(held.idle),
                format!("{}{}", decimal(held.permille().into(), 1), if held.unsure > 0 { "?" } else { "" }),
                hours(held.longest),
                decimal(milli_gib_hours(held.idle_byte_seconds), 3),
            ]
        };
        let heads = ["tenant", "device", "held", "idle", "idle %", "longest", "idle GiB hours"];
        let tenants = Table {
            heading: "Memory that was held while nothing was computed".into(),
            heads: heads.map(str::to_owned).to_vec(),
            words: 2,
            rows: self.lines.iter().map(row).collect(),
            total: None,
        };
        let device = |(device, used): (&String, &(u128, u128))| {
            let spent = Used { gpu_ns: used.0, unmeasured_ns: used.1, ..Used::default() };
            let idle = self.idle_permille(*used).map_or("?".into(), |permille| decimal(permille, 1));
            vec![device.clone(), spent.marked(decimal(rounded(used.0, NS / 1000), 3)), idle]
        };
        let devices = Table {
            heading: "Devices".into(),
            heads: ["device", "GPU seconds", "idle %"].map(str::to_owned).to_vec(),
            words: 1,
            rows: self.devices.iter().map(device).collect(),
            total: None,
        };
        #[allow(clippy::cast_precision_loss)] // only for a picture
        let bar = |((tenant, _), held): &((String, String), Held)| Bar {
            name: tenant.clone(),
            value: milli_gib_hours(held.idle_byte_seconds) as f64,
            shown: format!("{} GiB h", decimal(milli_gib_hours(held.idle_byte_seconds), 3)),
        };
        let mut notes = vec![format!(
            "Idle is a minute (older than keep_fine: an hour) in which memory was held and less than {} % of the device's time used.",
            decimal(self.below.into(), 1)
        )];
        if self.lines.iter().any(|(_, held)| held.unsure > 0) {
            notes.push(
                "?: its device time was not measured then, so that it may have been busy: on devices that are not given out in \
                 leases, or alone with exact = false in [record]."
                    .into(),
            );
        }
        Sheet {
            title: "Held and not used".into(),
            facts,
            tables: vec![tenants, devices],
            pictures: vec![bars("Idle GiB hours", &self.lines.iter().map(bar).collect::<Vec<_>>())],
            notes,
            ..Sheet::default()
        }
    }

    /// Returns the report as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let line = |((tenant, device), held): &((String, String), Held)| {
            json!({
                "tenant": tenant,
                "device": device,
                "held_seconds": held.held,
                "idle_seconds": held.idle,
                "longest_idle_seconds": held.longest,
                "idle_byte_seconds": whole(held.idle_byte_seconds),
                "gpu_ns": (held.gpu_ns > 0 || held.unsure == 0).then(|| whole(held.gpu_ns)),
                "perhaps_unmeasured_seconds": held.unsure,
            })
        };
        let device = |(device, used): (&String, &(u128, u128))| {
            let spent = Used { gpu_ns: used.0, unmeasured_ns: used.1, ..Used::default() };
            json!({
                "device": device,
                "gpu_ns": spent.gpu().map(whole),
                "unmeasured_ns": whole(used.1),
                "idle_percent": self.idle_permille(*used).map(|permille| decimal(permille, 1)),
            })
        };
        json!({
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "devices": self.devices.iter().map(device).collect::<Vec<_>>(),
        })
    }

    /// Returns the report as CSV.
    #[must_use]
    pub fn csv(&self) -> (Vec<String>, Vec<Vec<String>>) {
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
        let row = |((tenant, device), held): &((String, String), Held)| {
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
    use super::super::gather::tests::line;
    use super::*;

    #[test]
    fn a_minute_counts_by_its_device_time_once_for_all_groups_and_a_break_ends_the_longest() {
        let mut idle = Idle::new(10, 310);
        for (start, group, ms, gib_seconds) in [
            (0, None, 0, 60),
            (60, None, 500, 60),  // 0.83 %
            (120, None, 400, 30), // together with the next row 1.3 %
            (120, Some("new"), 400, 30),
            (180, Some("new"), 0, 0), // nothing held
            (300, Some("new"), 0, 10),
        ] {
            idle.add(&line("a", group, "G", start, ms, gib_seconds));
        }
        let answer = idle.done(Period { since: 0, until: 310 });
        let (_, held) = &answer.lines[0];
        assert_eq!((held.held, held.idle, held.longest, held.unsure), (190, 130, 120, 0));
        assert_eq!(held.idle_byte_seconds, 130 << 30);
        assert_eq!(held.permille(), 684);
        assert_eq!(answer.json()["devices"][0]["idle_percent"], "99.6");
    }

    #[test]
    fn who_may_have_been_busy_unmeasured_is_not_called_idle_without_a_question_mark() {
        let mut idle = Idle::new(10, 60);
        idle.add(&ask::Line { unmeasured_ns: 5, ..line("a", None, "G", 0, 0, 60) });
        idle.add(&ask::Line { sm_limit: None, ..line("c", None, "H", 0, 0, 40) });
        let answer = idle.done(Period { since: 0, until: 60 });
        let sheet = answer.sheet(Vec::new());
        let shown: Vec<&str> = sheet.tables[0].rows.iter().map(|row| row[4].as_str()).collect();
        assert_eq!(shown, ["100.0?", "100.0"]);
        assert!(sheet.notes[1].contains("exact = false"));
        assert_eq!(sheet.tables[1].rows[0][1..], ["?", "?"], "of the device it is not known either");
        assert_eq!(sheet.tables[1].rows[1][1..], ["0.000", "100.0"]);
        let json = answer.json();
        assert!(json["devices"][0]["idle_percent"].is_null() && json["devices"][0]["gpu_ns"].is_null(), "{json}");
        assert!(json["lines"][0]["gpu_ns"].is_null() && json["lines"][1]["gpu_ns"] == 0, "{json}");
    }
}
