//! Reports how use develops: sums for each step (hour, day or week), and the straight line through them.
//!
//! Integer arithmetic: a slope is a fraction, rounded once. Only whole steps since the first row are used for the
//! line; the first and the last step of a period seldom are whole.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::ReportPeriod;
use super::apportion::{format_decimal, round_half_up};
use super::chart::{ChartBar, draw_bars};
use super::gather::{GIB_BYTES, LineBy, LineOwner, NS_PER_SECOND};
use super::sheet::{ReportSheet, SheetTable};
use super::usage::{column_names, merge_objects, owner_json, whole_number};
use crate::record::ask;

/// Note for reports over unmeasured device time.
pub(super) const UNMEASURED_NOTE: &str =
    "Not all device time of this period was measured, and unmeasured time is missing here: see docs/record.md.";

/// Least number of whole steps for a line.
pub const MIN_STEPS: u64 = 3;

/// Usage of one step, for all or for one line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepSum {
    /// Measured device time in ns.
    pub gpu_ns: u128,
    /// Memory over time: bytes held, multiplied by the seconds for which they were held.
    pub byte_seconds: u128,
    /// Time spent waiting at the launch gate in ns, summed over processes.
    pub wait_ns: u128,
}

/// A step: the period that each row of the trend sums over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrendStep {
    /// Name of the step: `hour`, `day` or `week`.
    pub name: &'static str,
    /// Length of the step, in seconds.
    pub seconds: i64,
    /// Start of some step, to which the others are aligned; for weeks a Monday.
    pub from: i64,
}

/// Collects recorded rows and builds the report from them.
#[derive(Debug)]
pub struct TrendReport {
    by: Vec<LineBy>,
    step: TrendStep,
    sums: BTreeMap<(i64, LineOwner), StepSum>,
    /// Start of the first row.
    first: Option<i64>,
    /// True if some use was not measured.
    unmeasured: bool,
}

/// A straight line fitted to the sums of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slope {
    /// Mean value of a step.
    pub mean: u128,
    /// Change from each step to the next.
    pub change: i128,
    /// Value of the line a given number of steps after the last one; not below zero.
    pub ahead: u128,
}

/// Returns the least-squares line through values one step apart; `None` for fewer than [`MIN_STEPS`] values.
#[must_use]
pub fn fit_slope(values: &[u128], ahead: u64) -> Option<Slope> {
    let count = u64::try_from(values.len()).ok().filter(|count| *count >= MIN_STEPS)?;
    let n = i128::from(count);
    let number = |value: u128| i128::try_from(value).unwrap_or(i128::MAX);
    let (mut x, mut xx, mut y, mut xy) = (0, 0, 0_i128, 0_i128);
    for (at, value) in (0_i128..).zip(values) {
        (x, xx) = (x + at, xx + at * at);
        (y, xy) = (y.saturating_add(number(*value)), xy.saturating_add(number(*value).saturating_mul(at)));
    }
    let up = n.saturating_mul(xy).saturating_sub(y.saturating_mul(x));
    let over = n * xx - x * x;
    let nearest = |value: i128, unit: i128| {
        let half = if value < 0 { -(unit / 2) } else { unit / 2 };
        value.saturating_add(half) / unit
    };
    // Evaluate at n - 1 + ahead, from the mean and the slope.
    let at = n.saturating_mul(n - 1 + i128::from(ahead)) - x;
    let then = nearest(y.saturating_mul(over).saturating_add(up.saturating_mul(at)), n * over);
    Some(Slope {
        mean: u128::try_from(nearest(y, n)).unwrap_or(0),
        change: nearest(up, over),
        ahead: u128::try_from(then).unwrap_or(0),
    })
}

impl TrendReport {
    /// Starts an empty report.
    #[must_use]
    pub fn new(by: Vec<LineBy>, step: TrendStep) -> Self {
        Self { by, step, sums: BTreeMap::new(), first: None, unmeasured: false }
    }

    /// Adds a recorded row to the sums of its step.
    pub fn add(&mut self, line: &ask::RecordLine) {
        self.unmeasured |= line.unmeasured_ns > 0;
        self.first = Some(self.first.map_or(line.start, |first| first.min(line.start)));
        let at = (line.start - self.step.from).div_euclid(self.step.seconds);
        let whose = LineOwner::Of(self.by.iter().map(|by| by.key_of(line)).collect());
        let sum = self.sums.entry((at, whose)).or_default();
        sum.gpu_ns += u128::from(line.gpu_ns);
        sum.byte_seconds += u128::from(line.memory_byte_seconds);
        sum.wait_ns += u128::from(line.wait_ns);
    }

    /// Finishes the report after the last row of the period.
    #[must_use]
    pub fn finish_report(self, period: ReportPeriod, ahead: u64) -> TrendAnswer {
        let TrendStep { seconds, from, .. } = self.step;
        // Use the whole steps, from the first that begins in the period to the last that ends in it. Skip time before
        // the first row: without a record, use is unknown rather than zero.
        let since = period.since.max(self.first.unwrap_or(period.since));
        let first = -(from - since).div_euclid(seconds);
        let end = (period.until - from).div_euclid(seconds);
        TrendAnswer {
            by: self.by,
            step: self.step,
            sums: self.sums,
            first,
            end: end.max(first),
            ahead,
            unmeasured: self.unmeasured,
        }
    }
}

/// The finished report on usage from step to step.
#[derive(Debug, Clone)]
pub struct TrendAnswer {
    by: Vec<LineBy>,
    step: TrendStep,
    sums: BTreeMap<(i64, LineOwner), StepSum>,
    /// Whole steps: the first, and the one after the last.
    first: i64,
    end: i64,
    ahead: u64,
    unmeasured: bool,
}

fn format_signed(value: i128, unit: u128, digits: u32) -> String {
    let sign = if value < 0 { "-" } else { "+" };
    format!("{sign}{}", format_decimal(round_half_up(value.unsigned_abs(), unit), digits))
}

impl TrendAnswer {
    fn all_whose(&self) -> BTreeSet<&LineOwner> {
        self.sums.keys().map(|(_, whose)| whose).collect()
    }

    /// Returns the sum of each whole step for one line; zero for steps without rows.
    fn sums_of_steps(&self, whose: &LineOwner, part: impl Fn(&StepSum) -> u128) -> Vec<u128> {
        let of = |at| self.sums.get(&(at, whose.clone())).map_or(0, &part);
        (self.first..self.end).map(of).collect()
    }

    /// Returns the lines through device time and through memory.
    fn slopes_of(&self, whose: &LineOwner) -> [Option<Slope>; 2] {
        [
            fit_slope(&self.sums_of_steps(whose, |sum| sum.gpu_ns), self.ahead),
            fit_slope(&self.sums_of_steps(whose, |sum| sum.byte_seconds), self.ahead),
        ]
    }

    fn begins_step(&self, at: i64) -> i64 {
        self.step.from + at * self.step.seconds
    }

    fn is_whole(&self, at: i64) -> bool {
        (self.first..self.end).contains(&at)
    }

    /// Returns the sum of each step over all lines.
    fn sums_by_step(&self) -> BTreeMap<i64, StepSum> {
        let mut steps: BTreeMap<i64, StepSum> = (self.first..self.end).map(|at| (at, StepSum::default())).collect();
        for ((at, _), sum) in &self.sums {
            let all = steps.entry(*at).or_default();
            all.gpu_ns += sum.gpu_ns;
            all.byte_seconds += sum.byte_seconds;
            all.wait_ns += sum.wait_ns;
        }
        steps
    }

    /// Returns the report for people; `shown` formats seconds since 1970.
    #[must_use]
    pub fn to_sheet(&self, facts: Vec<(String, String)>, shown: impl Fn(i64) -> String) -> ReportSheet {
        let name = self.step.name;
        let steps = self.sums_by_step();
        let gib_hours =
            |sum: &StepSum| format_decimal(round_half_up(sum.byte_seconds.saturating_mul(1000), 3600 * GIB_BYTES), 3);
        let row = |(at, sum): (&i64, &StepSum)| {
            let whole = if self.is_whole(*at) { "" } else { "incomplete" };
            let seconds = |ns: u128| format_decimal(round_half_up(ns, NS_PER_SECOND / 1000), 3);
            vec![
                shown(self.begins_step(*at)),
                seconds(sum.gpu_ns),
                gib_hours(sum),
                seconds(sum.wait_ns),
                whole.to_owned(),
            ]
        };
        let by_step = SheetTable {
            heading: format!("Each {name}"),
            heads: [name, "GPU seconds", "GiB hours", "wait seconds", ""].map(str::to_owned).to_vec(),
            words: 1,
            rows: steps.iter().map(row).collect(),
            total: None,
        };
        let line = |whose: &LineOwner| {
            let [gpu, memory] = self.slopes_of(whose);
            let cells = |slope: Option<Slope>, unit: u128| match slope {
                Some(slope) => [
                    format_decimal(round_half_up(slope.mean, unit), 3),
                    format_signed(slope.change, unit, 3),
                    format_decimal(round_half_up(slope.ahead, unit), 3),
                ],
                None => ["-", "-", "-"].map(str::to_owned),
            };
            let numbers = cells(gpu, NS_PER_SECOND / 1000).into_iter().chain(cells(memory, 3600 * GIB_BYTES / 1000));
            whose.owner_cells(&self.by).into_iter().chain(numbers).collect::<Vec<_>>()
        };
        let then = format!("in {} {name}s", self.ahead);
        let more = ["GPU seconds", "change", &then, "GiB hours", "change", &then];
        let lines = SheetTable {
            heading: format!("Average of {} whole {name}s, and its change", self.end - self.first),
            heads: column_names(&self.by, &more),
            words: self.by.len(),
            rows: self.all_whose().into_iter().map(line).collect(),
            total: None,
        };
        #[allow(clippy::cast_precision_loss)] // only for a picture
        let bar = |(at, sum): (&i64, &StepSum)| {
            let seconds = sum.gpu_ns as f64 / 1e9;
            ChartBar { name: shown(self.begins_step(*at)), value: seconds, shown: format!("{seconds:.0} s") }
        };
        let mut notes = vec![
            "A straight line through past values, by least squares; it takes no coming event and no week-end into \
             account."
                .to_owned(),
        ];
        if self.end - self.first < i64::try_from(MIN_STEPS).unwrap_or(i64::MAX) {
            notes.push(format!(
                "A line needs at least {MIN_STEPS} whole {name}s; a period that begins at a full {name} has more of \
                 them."
            ));
        }
        notes.extend(self.unmeasured.then(|| UNMEASURED_NOTE.to_owned()));
        ReportSheet {
            title: "Trend of use".into(),
            facts,
            tables: vec![lines, by_step],
            pictures: vec![draw_bars(&format!("GPU seconds each {name}"), &steps.iter().map(bar).collect::<Vec<_>>())],
            notes,
            ..ReportSheet::default()
        }
    }

    /// Returns the report as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let change = |value: i128| i64::try_from(value).map_or_else(|_| json!(value.to_string()), |value| json!(value));
        let line = |whose: &LineOwner| {
            let of = |slope: Option<Slope>| {
                slope.map(|slope| {
                    json!({ "mean": whole_number(slope.mean), "change": change(slope.change), "ahead": whole_number(slope.ahead) })
                })
            };
            let [gpu, memory] = self.slopes_of(whose);
            merge_objects(owner_json(whose, &self.by), json!({ "gpu_ns": of(gpu), "memory_byte_seconds": of(memory) }))
        };
        let step = |(at, sum): (&i64, &StepSum)| {
            json!({
                "begins": self.begins_step(*at),
                "whole": self.is_whole(*at),
                "gpu_ns": whole_number(sum.gpu_ns),
                "memory_byte_seconds": whole_number(sum.byte_seconds),
                "wait_ns": whole_number(sum.wait_ns),
            })
        };
        json!({
            "each": self.step.name,
            "ahead": self.ahead,
            "lines": self.all_whose().into_iter().map(line).collect::<Vec<_>>(),
            "steps": self.sums_by_step().iter().map(step).collect::<Vec<_>>(),
        })
    }

    /// Returns the report as CSV, with a row for each step and each line in it.
    #[must_use]
    pub fn to_csv(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let more = ["begins", "whole", "gpu_ns", "memory_byte_seconds", "wait_ns"];
        let row = |((at, whose), sum): (&(i64, LineOwner), &StepSum)| {
            let numbers = [
                self.begins_step(*at).to_string(),
                self.is_whole(*at).to_string(),
                sum.gpu_ns.to_string(),
                sum.byte_seconds.to_string(),
                sum.wait_ns.to_string(),
            ];
            whose.owner_cells(&self.by).into_iter().chain(numbers).collect()
        };
        (column_names(&self.by, &more), self.sums.iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::gather::tests::test_line;
    use super::*;

    const DAY: TrendStep = TrendStep { name: "day", seconds: 86_400, from: 0 };

    #[test]
    fn a_straight_line_is_found_as_it_is_and_never_goes_below_nil() {
        let found = |mean, change, ahead| Some(Slope { mean, change, ahead });
        assert_eq!(fit_slope(&[10, 20, 30, 40], 6), found(25, 10, 100));
        assert_eq!(fit_slope(&[40, 30, 20, 10], 1), found(25, -10, 0));
        assert_eq!(fit_slope(&[40, 30, 20, 10], 100), found(25, -10, 0));
        assert_eq!(fit_slope(&[7, 7, 7], 30), found(7, 0, 7));
        // Rounded to the nearest, up and down: means of 1/3 and 2/3, slopes of half a unit.
        assert_eq!(fit_slope(&[0, 0, 1], 0), found(0, 1, 1));
        assert_eq!(fit_slope(&[1, 0, 0], 0), found(0, -1, 0));
        assert_eq!(fit_slope(&[1, 2], 1), None);
        assert!(fit_slope(&[u128::MAX; 4], u64::MAX).is_some(), "nothing overflows");
    }

    #[test]
    fn days_without_use_count_and_days_that_are_not_whole_do_not() {
        let mut trend = TrendReport::new(vec![LineBy::Tenant], DAY);
        for (day, ms) in [(0, 9_000_000), (1, 1000), (2, 2000), (4, 4000), (5, 8_000_000)] {
            trend.add(&test_line("a", None, "G", day * 86_400 + 3600, ms, 0));
        }
        let answer = trend.finish_report(ReportPeriod { since: 3600, until: 5 * 86_400 + 7200 }, 1);
        let a = LineOwner::Of(vec![Some("a".into())]);
        assert_eq!(answer.sums_of_steps(&a, |sum| sum.gpu_ns / 1_000_000), [1000, 2000, 0, 4000]);
        let json = answer.to_json();
        assert_eq!(json["lines"][0]["gpu_ns"]["mean"], 1_750_000_000);
        assert_eq!(json["lines"][0]["gpu_ns"]["change"], 700_000_000);
        assert_eq!(json["lines"][0]["gpu_ns"]["ahead"], 3_500_000_000_u64);
        let whole: Vec<bool> = json["steps"].as_array().unwrap().iter().map(|step| step["whole"] == true).collect();
        assert_eq!(whole, [false, true, true, true, true, false]);
        let text = answer.to_sheet(Vec::new(), |second| (second / 86_400).to_string()).to_text();
        assert!(text.contains("+0.700") && text.contains("incomplete"), "{text}");
    }

    #[test]
    fn of_less_than_three_whole_days_no_line_is_drawn_and_that_is_said() {
        let mut trend = TrendReport::new(vec![LineBy::Tenant], DAY);
        trend.add(&test_line("a", None, "G", 0, 5, 0));
        for until in [100, 2 * 86_400] {
            let answer = TrendReport {
                by: vec![LineBy::Tenant],
                step: DAY,
                sums: trend.sums.clone(),
                first: trend.first,
                unmeasured: true,
            }
            .finish_report(ReportPeriod { since: 0, until }, 30);
            assert_eq!(answer.to_json()["lines"][0]["gpu_ns"], Value::Null);
            assert!(answer.to_sheet(Vec::new(), |second| second.to_string()).notes[1].contains("3 whole days"));
            assert_eq!(answer.to_sheet(Vec::new(), |second| second.to_string()).notes[2], UNMEASURED_NOTE);
        }
    }
}
