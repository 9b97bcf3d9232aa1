//! Reports how much of the promised device time tenants got, minute by minute, and how long they waited for leases.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vgpu_control::service::{BUCKET_BOUNDS_NS, KEPT_PERMILLE, ServiceSums, TimeHistogram};

use super::apportion::{format_decimal, round_half_up};
use super::chart::{ChartBar, draw_bars};
use super::gather::{LineBy, LineOwner, NS_PER_SECOND};
use super::sheet::{ReportSheet, SheetTable};
use super::usage::{column_names, merge_objects, owner_json};
use crate::record::ask::ServiceLine;

/// A bad minute of a tenant on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorstMinute {
    /// First second of the minute, since 1970.
    pub start: i64,
    /// Name of the tenant.
    pub tenant: String,
    /// UUID of the device.
    pub device: String,
    /// The delivered part of the promise, in thousandths.
    pub permille: u64,
}

/// Builds the report from rows in the order of time.
#[derive(Debug)]
pub struct SloReport {
    by: Vec<LineBy>,
    most: usize,
    lines: BTreeMap<LineOwner, ServiceSums>,
    worst: Vec<WorstMinute>,
}

/// Returns the kept part of the minutes, in tenths of a percent; `None` without minutes.
#[must_use]
pub fn kept_permille(sums: &ServiceSums) -> Option<u128> {
    (sums.minutes > 0).then(|| round_half_up(u128::from(sums.minutes_kept) * 1000, sums.minutes.into()))
}

/// Returns the delivered part of the promise, in tenths of a percent; `None` if nothing was promised.
#[must_use]
pub fn delivered_permille(sums: &ServiceSums) -> Option<u128> {
    (sums.promised_ns > 0).then(|| round_half_up(u128::from(sums.delivered_ns) * 1000, sums.promised_ns.into()))
}

/// Formats the time below which this part of all times is, in thousandths: the bound of its bucket.
#[must_use]
pub fn format_below(times: &TimeHistogram, permille: u64) -> String {
    match times.bucket_at(permille).map(|bucket| BUCKET_BOUNDS_NS.get(bucket)) {
        None => "-".into(),
        Some(Some(bound)) => format_ns(*bound),
        Some(None) => format!("> {}", format_ns(BUCKET_BOUNDS_NS[BUCKET_BOUNDS_NS.len() - 1])),
    }
}

fn format_ns(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", format_decimal((ns / 100).into(), 1)),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", format_decimal(round_half_up(ns.into(), NS_PER_SECOND / 10), 1)),
    }
}

fn format_mean(times: &TimeHistogram) -> String {
    match times.total() {
        0 => "-".into(),
        total => format!("{} ms", format_decimal(round_half_up((times.sum_ns / total).into(), 1000), 3)),
    }
}

fn format_part(permille: Option<u128>) -> String {
    permille.map_or_else(|| "-".into(), |permille| format_decimal(permille, 1))
}

fn format_seconds(ns: u64) -> String {
    format_decimal(round_half_up(ns.into(), NS_PER_SECOND / 1000), 3)
}

impl SloReport {
    /// Starts an empty report with at most this many worst minutes.
    #[must_use]
    pub fn new(by: Vec<LineBy>, most: usize) -> Self {
        Self { by, most, lines: BTreeMap::new(), worst: Vec::new() }
    }

    /// Adds a row.
    pub fn add(&mut self, line: &ServiceLine) {
        let key_of = |by: &LineBy| match by {
            LineBy::Tenant => Some(line.tenant.clone()),
            LineBy::Group => line.bearer.group.clone(),
            LineBy::Label(name) => line.bearer.labels.get(name).cloned(),
            LineBy::Device => Some(line.device.clone()),
        };
        let whose = LineOwner::Of(self.by.iter().map(key_of).collect());
        self.lines.entry(whose).or_default().add(&line.sums);
        let Some((start, permille)) = line.worst.filter(|(_, permille)| *permille < KEPT_PERMILLE) else { return };
        let minute = WorstMinute { start, tenant: line.tenant.clone(), device: line.device.clone(), permille };
        let at = self.worst.partition_point(|other| other.permille <= permille);
        if at < self.most {
            self.worst.insert(at, minute);
            self.worst.truncate(self.most);
        }
    }

    /// Returns the lines, the least kept first, those without a promise last.
    #[must_use]
    pub fn sorted_lines(&self) -> Vec<(&LineOwner, &ServiceSums)> {
        let mut all: Vec<_> = self.lines.iter().collect();
        all.sort_by_key(|(_, sums)| (kept_permille(sums).unwrap_or(u128::MAX), delivered_permille(sums)));
        all
    }

    /// The worst minutes, the worst first.
    #[must_use]
    pub fn worst_minutes(&self) -> &[WorstMinute] {
        &self.worst
    }

    /// Returns the table of promises.
    #[must_use]
    pub fn promise_table(&self) -> SheetTable {
        let more = ["promised s", "delivered s", "delivered %", "minutes", "kept", "kept %"];
        let row = |(whose, sums): &(&LineOwner, &ServiceSums)| {
            let numbers = [
                format_seconds(sums.promised_ns),
                format_seconds(sums.delivered_ns),
                format_part(delivered_permille(sums)),
                sums.minutes.to_string(),
                sums.minutes_kept.to_string(),
                format_part(kept_permille(sums)),
            ];
            whose.owner_cells(&self.by).into_iter().chain(numbers).collect()
        };
        SheetTable {
            heading: "Promised and delivered device time".into(),
            heads: column_names(&self.by, &more),
            words: self.by.len(),
            rows: self.sorted_lines().iter().map(row).collect(),
            total: None,
        }
    }

    /// Returns the table of waits for leases.
    #[must_use]
    pub fn wait_table(&self) -> SheetTable {
        let more = ["leases", "mean wait", "50 % within", "95 % within", "99 % within", "mean gap"];
        let row = |(whose, sums): &(&LineOwner, &ServiceSums)| {
            let numbers = [
                sums.waits.total().to_string(),
                format_mean(&sums.waits),
                format_below(&sums.waits, 500),
                format_below(&sums.waits, 950),
                format_below(&sums.waits, 990),
                format_mean(&sums.gaps),
            ];
            whose.owner_cells(&self.by).into_iter().chain(numbers).collect()
        };
        SheetTable {
            heading: "Waits for leases".into(),
            heads: column_names(&self.by, &more),
            words: self.by.len(),
            rows: self.sorted_lines().iter().map(row).collect(),
            total: None,
        }
    }

    fn worst_table(&self, format_time: fn(i64) -> String) -> SheetTable {
        let row = |minute: &WorstMinute| {
            let part = format_decimal(minute.permille.into(), 1);
            vec![format_time(minute.start), minute.tenant.clone(), minute.device.clone(), part]
        };
        SheetTable {
            heading: "Worst minutes".into(),
            heads: ["minute (UTC)", "tenant", "device", "delivered %"].map(str::to_owned).to_vec(),
            words: 3,
            rows: self.worst.iter().map(row).collect(),
            total: None,
        }
    }

    /// Returns the report for people.
    #[must_use]
    pub fn to_sheet(&self, facts: Vec<(String, String)>, format_time: fn(i64) -> String) -> ReportSheet {
        let mut tables = vec![self.promise_table(), self.wait_table()];
        if !self.worst.is_empty() {
            tables.push(self.worst_table(format_time));
        }
        ReportSheet {
            title: "Promises kept".into(),
            facts,
            tables,
            pictures: vec![self.kept_picture()],
            notes: vec![
                format!(
                    "A tenant with a floor is promised its floor while it wants the device, another one its part by \
                     weight of the rest. A minute keeps the promise with {} % of it or more.",
                    format_decimal(KEPT_PERMILLE.into(), 1)
                ),
                "A wait is from a process's request to its lease; the column says within which bound (a power of 4) \
                 this part of the waits ended. A row older than keep_fine names the worst minute of its hour only."
                    .into(),
            ],
            ..ReportSheet::default()
        }
    }

    /// Draws the kept part of each line's minutes.
    #[must_use]
    pub fn kept_picture(&self) -> String {
        #[allow(clippy::cast_precision_loss)] // only for a picture
        let bar = |(whose, sums): (&LineOwner, &ServiceSums)| {
            let kept = kept_permille(sums)?;
            let name = whose.owner_cells(&self.by).join(" ");
            Some(ChartBar { name, value: kept as f64, shown: format!("{} %", format_decimal(kept, 1)) })
        };
        let bars: Vec<ChartBar> = self.sorted_lines().into_iter().filter_map(bar).collect();
        draw_bars("Minutes that kept the promise", &bars)
    }

    /// Returns the report as JSON: whole numbers, and the parts in percent.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let times =
            |times: &TimeHistogram| json!({ "count": times.total(), "sum_ns": times.sum_ns, "buckets": times.counts });
        let part = |permille: Option<u128>| permille.map(|permille| format_decimal(permille, 1));
        let line = |(whose, sums): (&LineOwner, &ServiceSums)| {
            merge_objects(
                owner_json(whose, &self.by),
                json!({
                    "wanted_ns": sums.wanted_ns,
                    "promised_ns": sums.promised_ns,
                    "delivered_ns": sums.delivered_ns,
                    "delivered_percent": part(delivered_permille(sums)),
                    "minutes": sums.minutes,
                    "minutes_kept": sums.minutes_kept,
                    "kept_percent": part(kept_permille(sums)),
                    "waits": times(&sums.waits),
                    "gaps": times(&sums.gaps),
                }),
            )
        };
        let minute = |minute: &WorstMinute| {
            json!({
                "start": minute.start,
                "tenant": minute.tenant,
                "device": minute.device,
                "delivered_percent": format_decimal(minute.permille.into(), 1),
            })
        };
        json!({
            "lines": self.sorted_lines().into_iter().map(line).collect::<Vec<_>>(),
            "worst_minutes": self.worst.iter().map(minute).collect::<Vec<_>>(),
            "bucket_bounds_ns": BUCKET_BOUNDS_NS,
        })
    }

    /// Returns the report as CSV.
    #[must_use]
    pub fn to_csv(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let more = [
            "wanted_ns",
            "promised_ns",
            "delivered_ns",
            "delivered_percent",
            "minutes",
            "minutes_kept",
            "kept_percent",
            "waits",
            "wait_sum_ns",
            "gaps",
            "gap_sum_ns",
        ];
        let part = |permille: Option<u128>| permille.map_or(String::new(), |permille| format_decimal(permille, 1));
        let row = |(whose, sums): (&LineOwner, &ServiceSums)| {
            let numbers = [
                sums.wanted_ns.to_string(),
                sums.promised_ns.to_string(),
                sums.delivered_ns.to_string(),
                part(delivered_permille(sums)),
                sums.minutes.to_string(),
                sums.minutes_kept.to_string(),
                part(kept_permille(sums)),
                sums.waits.total().to_string(),
                sums.waits.sum_ns.to_string(),
                sums.gaps.total().to_string(),
                sums.gaps.sum_ns.to_string(),
            ];
            whose.owner_cells(&self.by).into_iter().chain(numbers).collect()
        };
        (column_names(&self.by, &more), self.sorted_lines().into_iter().map(row).collect())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A minute in which a tenant was promised 24 s and got a part of them.
    pub(in crate::report) fn minute(tenant: &str, start: i64, delivered: u64) -> ServiceLine {
        let mut waits = TimeHistogram::default();
        [1_000_000, 1_000_000, 3_000_000].into_iter().for_each(|ns| waits.note(ns));
        let sums = ServiceSums {
            wanted_ns: 60 * SECOND,
            promised_ns: 24 * SECOND,
            delivered_ns: delivered * SECOND,
            minutes: 1,
            minutes_kept: u64::from(delivered >= 23),
            waits,
            gaps: waits,
        };
        let worst = Some((start, (delivered * 1000 / 24).min(1000)));
        ServiceLine {
            start,
            span: 60,
            tenant: tenant.into(),
            device: "G".into(),
            sums,
            worst,
            ..ServiceLine::default()
        }
    }

    #[test]
    fn half_of_a_floor_is_50_percent_and_the_worst_minutes_are_named_the_worst_first() {
        let mut report = SloReport::new(vec![LineBy::Tenant], 3);
        for (start, delivered) in [(0, 12), (60, 12), (120, 6), (180, 18)] {
            report.add(&minute("a", start, delivered));
        }
        report.add(&minute("b", 0, 30));
        let sheet = report.to_sheet(Vec::new(), |second| second.to_string());
        assert_eq!(
            sheet.tables[0].rows,
            [
                vec!["a", "96.000", "48.000", "50.0", "4", "0", "0.0"],
                vec!["b", "24.000", "30.000", "125.0", "1", "1", "100.0"]
            ]
        );
        assert_eq!(sheet.tables[1].rows[0][1..], ["12", "1.667 ms", "1 ms", "4 ms", "4 ms", "1.667 ms"]);
        let worst: Vec<_> = sheet.tables[2].rows.iter().map(|row| (&*row[0], &*row[3])).collect();
        assert_eq!(worst, [("120", "25.0"), ("0", "50.0"), ("60", "50.0")]);
        let json = report.to_json();
        assert_eq!((&json["lines"][0]["delivered_percent"], &json["lines"][0]["minutes"]), (&json!("50.0"), &json!(4)));
        assert_eq!(report.to_csv().1[0][4], "50.0");
    }

    #[test]
    fn who_was_promised_nothing_has_no_percentage_and_comes_last() {
        let mut report = SloReport::new(vec![LineBy::Tenant], 3);
        report.add(&ServiceLine { tenant: "none".into(), device: "G".into(), ..ServiceLine::default() });
        report.add(&minute("a", 0, 24));
        let sheet = report.to_sheet(Vec::new(), |second| second.to_string());
        assert_eq!(sheet.tables[0].rows[1], ["none", "0.000", "0.000", "-", "0", "0", "-"]);
        assert_eq!(sheet.tables[1].rows[1][1..], ["0", "-", "-", "-", "-", "-"]);
        assert_eq!(sheet.tables.len(), 2, "no minute broke its promise");
    }

    #[test]
    fn bounds_of_waits_are_told_in_their_units_and_beyond_the_last_as_more_than_it() {
        let below = |ns| {
            let mut times = TimeHistogram::default();
            times.note(ns);
            format_below(&times, 500)
        };
        let shown = [1, 200_000, 20_000_000, 2_000_000_000, u64::MAX].map(below);
        assert_eq!(shown, ["62.5 us", "250.0 us", "64 ms", "4.1 s", "> 16.4 s"]);
    }
}
