//! Reports how much of its ceiling on device time and of its memory limit each tenant used.
//!
//! Time and memory have separate numbers instead of one score. They cannot be traded for each other, and a tenant
//! that needs much of one often needs little of the other.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::apportion::{format_decimal, round_half_up};
use super::chart::{ChartBar, draw_bars};
use super::gather::{LineBy, LineOwner, NS_PER_SECOND};
use super::sheet::{ReportSheet, SheetTable};
use super::trend::UNMEASURED_NOTE;
use super::usage::{column_names, merge_objects, owner_json, whole_number};
use crate::record::ask;

/// Reserved and used amounts of one line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptAndUsed {
    /// Seconds with activity, summed over tenants and devices.
    pub seconds: u64,
    /// Device time used, in ns.
    pub gpu_ns: u128,
    /// Part of `gpu_ns` in minutes with a ceiling.
    pub limited_ns: u128,
    /// Device time that the ceilings allowed in those minutes, in ns.
    pub ceiling_ns: u128,
    /// Bytes held multiplied by seconds, in minutes with a memory limit.
    pub byte_seconds: u128,
    /// Bytes multiplied by seconds that the memory limits allowed in those minutes.
    pub limit_byte_seconds: u128,
    /// Time spent waiting at the launch gate in ns, summed over processes.
    pub wait_ns: u128,
}

fn part_permille(part: u128, of: u128) -> Option<u128> {
    (of > 0).then(|| round_half_up(part.saturating_mul(1000), of))
}

impl KeptAndUsed {
    /// Returns the used part of the time that ceilings allowed, in tenths of a percent; `None` without ceilings.
    #[must_use]
    pub fn time_permille(&self) -> Option<u128> {
        part_permille(self.limited_ns, self.ceiling_ns)
    }

    /// Returns the used part of the memory that limits allowed, in tenths of a percent; `None` without limits.
    #[must_use]
    pub fn memory_permille(&self) -> Option<u128> {
        part_permille(self.byte_seconds, self.limit_byte_seconds)
    }

    /// Returns the thousandths of a second waited for each second of device time; `None` without device time.
    #[must_use]
    pub fn wait_ratio(&self) -> Option<u128> {
        part_permille(self.wait_ns, self.gpu_ns)
    }
}

/// Builds the report from rows in the order of time.
#[derive(Debug)]
pub struct Efficiency {
    by: Vec<LineBy>,
    now: i64,
    kept: BTreeMap<LineOwner, KeptAndUsed>,
    /// The last minute of each tenant on each device. A minute in which the tenant's group changed has a row for each
    /// group.
    last: BTreeMap<(LineOwner, String, String), i64>,
    /// True if some use was not measured.
    unmeasured: bool,
}

impl Efficiency {
    /// Starts an empty report; a minute that is not over counts with the seconds that have begun at `now`.
    #[must_use]
    pub fn new(by: Vec<LineBy>, now: i64) -> Self {
        Self { by, now, kept: BTreeMap::new(), last: BTreeMap::new(), unmeasured: false }
    }

    /// Adds a row. Skips minutes in which a tenant neither computed, waited nor held memory, since it took nothing from
    /// others.
    pub fn add(&mut self, line: &ask::RecordLine) {
        if line.gpu_ns == 0 && line.memory_byte_seconds == 0 && line.wait_ns == 0 && line.unmeasured_ns == 0 {
            return;
        }
        self.unmeasured |= line.unmeasured_ns > 0;
        let whose = LineOwner::Of(self.by.iter().map(|by| by.key_of(line)).collect());
        let before = self.last.insert((whose.clone(), line.tenant.clone(), line.device.clone()), line.start);
        let seconds = if before == Some(line.start) { 0 } else { line.begun_seconds(self.now) };
        let kept = self.kept.entry(whose).or_default();
        kept.seconds += seconds;
        kept.gpu_ns += u128::from(line.gpu_ns);
        kept.wait_ns += u128::from(line.wait_ns);
        if let Some(limit) = line.sm_limit {
            kept.limited_ns += u128::from(line.gpu_ns);
            kept.ceiling_ns += u128::from(seconds) * NS_PER_SECOND / 1000 * u128::from(limit);
        }
        if let Some(limit) = line.memory_limit {
            kept.byte_seconds += u128::from(line.memory_byte_seconds);
            kept.limit_byte_seconds += u128::from(seconds) * u128::from(limit);
        }
    }

    /// Returns the lines, highest used part of time first, those without a ceiling last.
    fn sorted_rows(&self) -> Vec<(&LineOwner, &KeptAndUsed)> {
        let mut all: Vec<_> = self.kept.iter().collect();
        all.sort_by_key(|(_, kept)| std::cmp::Reverse(kept.time_permille()));
        all
    }

    /// Returns the columns by which lines are grouped.
    #[must_use]
    pub fn columns(&self) -> &[LineBy] {
        &self.by
    }

    /// Returns the lines with a ceiling and the used part of it, in tenths of a percent, the highest first.
    #[must_use]
    pub fn time_parts(&self) -> Vec<(&LineOwner, u128)> {
        self.sorted_rows().into_iter().filter_map(|(whose, kept)| Some((whose, kept.time_permille()?))).collect()
    }

    /// Returns the report for people.
    #[must_use]
    pub fn to_sheet(&self, facts: Vec<(String, String)>) -> ReportSheet {
        let part = |permille: Option<u128>| permille.map_or("-".to_owned(), |permille| format_decimal(permille, 1));
        let row = |(whose, kept): (&LineOwner, &KeptAndUsed)| {
            let numbers = [
                format_decimal(round_half_up(u128::from(kept.seconds) * 100, 3600), 2),
                format_decimal(round_half_up(kept.gpu_ns, NS_PER_SECOND / 1000), 3),
                part(kept.time_permille()),
                part(kept.memory_permille()),
                kept.wait_ratio().map_or("-".into(), |waited| format_decimal(waited, 3)),
            ];
            whose.owner_cells(&self.by).into_iter().chain(numbers).collect::<Vec<_>>()
        };
        let more = ["hours", "GPU seconds", "% of its ceiling", "% of its memory", "waited per second"];
        let table = SheetTable {
            heads: column_names(&self.by, &more),
            words: self.by.len(),
            rows: self.sorted_rows().into_iter().map(row).collect(),
            ..SheetTable::default()
        };
        #[allow(clippy::cast_precision_loss)] // only for a picture
        let bar = |(whose, kept): (&LineOwner, &KeptAndUsed)| {
            let time = kept.time_permille()?;
            let name = whose.owner_cells(&self.by).join(" ");
            Some(ChartBar { name, value: time as f64, shown: format!("{} %", format_decimal(time, 1)) })
        };
        let mut notes = vec![
            "Hours are those in which the tenant computed, held memory or waited, on each device. A ceiling is no \
             promise: a tenant that waited much could not use it. The record does not say how well a kernel uses the \
             device."
                .to_owned(),
        ];
        notes.extend(self.unmeasured.then(|| UNMEASURED_NOTE.to_owned()));
        ReportSheet {
            title: "Limits and their use".into(),
            facts,
            tables: vec![table],
            pictures: vec![draw_bars(
                "Device time used of the ceiling",
                &self.sorted_rows().into_iter().filter_map(bar).collect::<Vec<_>>(),
            )],
            notes,
            ..ReportSheet::default()
        }
    }

    /// Returns the report as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let part = |permille: Option<u128>| permille.map(|permille| format_decimal(permille, 1));
        let line = |(whose, kept): (&LineOwner, &KeptAndUsed)| {
            merge_objects(
                owner_json(whose, &self.by),
                json!({
                    "seconds": kept.seconds,
                    "gpu_ns": whole_number(kept.gpu_ns),
                    "ceiling_ns": whole_number(kept.ceiling_ns),
                    "ceiling_percent": part(kept.time_permille()),
                    "memory_byte_seconds": whole_number(kept.byte_seconds),
                    "memory_limit_byte_seconds": whole_number(kept.limit_byte_seconds),
                    "memory_percent": part(kept.memory_permille()),
                    "wait_ns": whole_number(kept.wait_ns),
                }),
            )
        };
        json!({ "lines": self.sorted_rows().into_iter().map(line).collect::<Vec<_>>() })
    }

    /// Returns the report as CSV.
    #[must_use]
    pub fn to_csv(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let more = ["seconds", "gpu_ns", "ceiling_percent", "memory_percent", "wait_ns"];
        let row = |(whose, kept): (&LineOwner, &KeptAndUsed)| {
            let part = |permille: Option<u128>| permille.map_or(String::new(), |permille| format_decimal(permille, 1));
            let numbers = [
                kept.seconds.to_string(),
                kept.gpu_ns.to_string(),
                part(kept.time_permille()),
                part(kept.memory_permille()),
                kept.wait_ns.to_string(),
            ];
            whose.owner_cells(&self.by).into_iter().chain(numbers).collect()
        };
        (column_names(&self.by, &more), self.sorted_rows().into_iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::gather::tests::test_line;
    use super::*;

    fn of(lines: &[ask::RecordLine], now: i64) -> Vec<KeptAndUsed> {
        let mut report = Efficiency::new(vec![LineBy::Tenant], now);
        lines.iter().for_each(|line| report.add(line));
        report.sorted_rows().into_iter().map(|(_, kept)| kept.clone()).collect()
    }

    #[test]
    fn what_was_used_is_a_part_of_what_the_limits_would_have_let_it_have() {
        // A ceiling of 30 % for a minute is 18 s; 4 GiB for a minute are 240 GiB-seconds.
        let mut one = test_line("a", None, "G", 0, 9000, 60);
        (one.memory_limit, one.wait_ns) = (Some(4 << 30), 4_500_000_000);
        let kept = &of(&[one], 3600)[0];
        assert_eq!(
            (kept.time_permille(), kept.memory_permille(), kept.wait_ratio()),
            (Some(500), Some(250), Some(500))
        );
        assert_eq!(kept.seconds, 60);
    }

    #[test]
    fn hours_are_hours() {
        let mut report = Efficiency::new(vec![LineBy::Tenant], 100_000);
        for minute in 0..90 {
            report.add(&test_line("a", None, "G", minute * 60, 9000, 60));
        }
        assert_eq!(report.to_sheet(Vec::new()).tables[0].rows[0][1], "1.50");
    }

    #[test]
    fn who_has_no_limit_has_no_part_of_it_and_comes_last() {
        let mut free = test_line("free", None, "G", 0, 9000, 60);
        free.sm_limit = None;
        let all = of(&[free, test_line("b", None, "G", 0, 1, 0)], 3600);
        assert_eq!((all[0].time_permille(), all[1].time_permille(), all[1].memory_permille()), (Some(0), None, None));
    }

    #[test]
    fn a_minute_counts_once_however_many_groups_it_was_in_and_one_that_is_not_over_as_far_as_it_is() {
        let minute = |group| test_line("a", Some(group), "G", 60, 900, 0);
        assert_eq!(of(&[minute("one"), minute("two")], 3600)[0].seconds, 60);
        assert_eq!(of(&[minute("one")], 79)[0].seconds, 20);
        assert_eq!(of(&[test_line("a", None, "G", 0, 0, 0)], 3600), []);
    }
}
