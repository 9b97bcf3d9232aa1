//! Reports each line's part of the devices' time and memory, in percentages that sum to 100.0 %.

use serde_json::{Value, json};
use vgpu_core::units::bytes::Bytes;

use super::apportion::{apportion_total, format_decimal, round_half_up};
use super::chart::{ChartBar, draw_bars};
use super::gather::{GIB_BYTES, GatheredLines, GatheredUse, LineBy, LineOwner, NS_PER_SECOND};
use super::sheet::{ReportSheet, SheetTable};

/// A line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageLine {
    /// The tenant, group, label or device of the line.
    pub whose: LineOwner,
    /// Usage recorded for the line.
    pub used: GatheredUse,
    /// Part of all device time in tenths of a percent; all lines sum to 1000.
    pub gpu_permille: u128,
    /// Device time as shown, in ms.
    pub gpu_ms: u128,
    /// Part of all memory over time in tenths of a percent; all lines sum to 1000.
    pub memory_permille: u128,
    /// Memory as shown, in thousandths of a GiB-hour.
    pub milli_gib_hours: u128,
}

/// Report on usage by tenant, group, label or device.
#[derive(Debug, Clone)]
pub struct UsageReport {
    /// Lines, most device time first.
    pub lines: Vec<UsageLine>,
    /// Columns by which lines are grouped.
    pub by: Vec<LineBy>,
}

/// Makes the report. The shown parts of the lines sum to the shown total.
#[must_use]
pub fn make_usage(gathered: &GatheredLines) -> UsageReport {
    let sorted = gathered.sorted_lines(|used| used.gpu_ns);
    let gpu: Vec<u128> = sorted.iter().map(|(_, used)| used.gpu_ns).collect();
    let memory: Vec<u128> = sorted.iter().map(|(_, used)| used.byte_seconds).collect();
    let parts = |weights: &[u128], unit: u128, times: u128| {
        let sum: u128 = weights.iter().sum();
        (apportion_total(1000, weights), apportion_total(round_half_up(sum.saturating_mul(times), unit), weights))
    };
    let (gpu_permille, gpu_ms) = parts(&gpu, NS_PER_SECOND / 1000, 1);
    let (memory_permille, milli_gib_hours) = parts(&memory, 3600 * GIB_BYTES, 1000);
    let line = |(index, (whose, used)): (usize, (LineOwner, GatheredUse))| UsageLine {
        whose,
        used,
        gpu_permille: gpu_permille[index],
        gpu_ms: gpu_ms[index],
        memory_permille: memory_permille[index],
        milli_gib_hours: milli_gib_hours[index],
    };
    UsageReport { lines: sorted.into_iter().enumerate().map(line).collect(), by: gathered.by.clone() }
}

/// Returns the column headings for people.
pub(super) fn column_names(by: &[LineBy], more: &[&str]) -> Vec<String> {
    by.iter().map(LineBy::name).chain(more.iter().map(|head| (*head).to_owned())).collect()
}

/// Returns a JSON object with the line's columns and its kind.
pub(super) fn owner_json(whose: &LineOwner, by: &[LineBy]) -> Value {
    let mut object = serde_json::Map::new();
    let parts: Vec<Option<&String>> = match whose {
        LineOwner::Of(parts) => parts.iter().map(Option::as_ref).collect(),
        _ => by.iter().map(|by| whose.idle_device().filter(|_| *by == LineBy::Device)).collect(),
    };
    object.insert("not_used".into(), json!(matches!(whose, LineOwner::Nobody(_))));
    object.insert("not_measured".into(), json!(matches!(whose, LineOwner::Unmeasured(_))));
    object.extend(by.iter().zip(parts).map(|(by, part)| (by.name(), json!(part))));
    Value::Object(object)
}

/// Adds fields to a JSON object.
pub(super) fn merge_objects(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

impl UsageReport {
    fn total(&self) -> GatheredUse {
        self.lines.iter().fold(GatheredUse::default(), |mut sum, line| {
            sum.gpu_ns += line.used.gpu_ns;
            sum.unmeasured_ns += line.used.unmeasured_ns;
            sum.wait_ns += line.used.wait_ns;
            sum.byte_seconds += line.used.byte_seconds;
            sum.peak_bytes = sum.peak_bytes.max(line.used.peak_bytes);
            if let Some(refused) = line.used.refused {
                *sum.refused.get_or_insert(0) += refused;
            }
            sum
        })
    }

    /// Returns the report for people.
    #[must_use]
    pub fn to_sheet(&self, facts: Vec<(String, String)>, notes: Vec<String>) -> ReportSheet {
        let more = ["GPU seconds", "GPU %", "GiB hours", "memory %", "peak", "wait seconds", "refused"];
        let cells = |whose: Vec<String>, line: &UsageLine| {
            let known = |value: Option<u128>| value.map_or("?".into(), |value| value.to_string());
            let nobody = !line.whose.is_somebody();
            let own = |text: String| if nobody { String::new() } else { text };
            let numbers = [
                line.used.mark_partial(format_decimal(line.gpu_ms, 3)),
                line.used.mark_partial(format_decimal(line.gpu_permille, 1)),
                own(format_decimal(line.milli_gib_hours, 3)),
                own(format_decimal(line.memory_permille, 1)),
                own(Bytes(line.used.peak_bytes).to_string()),
                own(format_decimal(round_half_up(line.used.wait_ns, NS_PER_SECOND / 1000), 3)),
                own(known(line.used.refused)),
            ];
            whose.into_iter().chain(numbers).collect::<Vec<_>>()
        };
        let sum = |part: fn(&UsageLine) -> u128| self.lines.iter().map(part).sum();
        let mut all = UsageLine {
            whose: LineOwner::Of(Vec::new()),
            used: self.total(),
            gpu_permille: sum(|line| line.gpu_permille),
            gpu_ms: sum(|line| line.gpu_ms),
            memory_permille: sum(|line| line.memory_permille),
            milli_gib_hours: sum(|line| line.milli_gib_hours),
        };
        // With a line for unmeasured time, the total is complete.
        if self.lines.iter().any(|line| matches!(line.whose, LineOwner::Unmeasured(_))) {
            all.used.unmeasured_ns = 0;
        }
        let mut total = vec![String::new(); self.by.len()];
        total[0] = "total".into();
        let rows = self.lines.iter().map(|line| cells(line.whose.owner_cells(&self.by), line)).collect();
        let table = SheetTable {
            heads: column_names(&self.by, &more),
            words: self.by.len(),
            rows,
            total: Some(cells(total, &all)),
            ..SheetTable::default()
        };
        ReportSheet {
            title: "GPU usage".into(),
            facts,
            tables: vec![table],
            pictures: vec![draw_bars("GPU seconds", &self.usage_bars())],
            notes,
            ..ReportSheet::default()
        }
    }

    fn usage_bars(&self) -> Vec<ChartBar> {
        #[allow(clippy::cast_precision_loss)] // only for a picture
        let bar = |line: &UsageLine| ChartBar {
            name: line.whose.owner_cells(&self.by).join(" "),
            value: line.gpu_ms as f64,
            shown: format!("{} %", format_decimal(line.gpu_permille, 1)),
        };
        self.lines.iter().map(bar).collect()
    }

    /// Returns the report as JSON: integers as recorded, and the parts.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let line = |line: &UsageLine| {
            merge_objects(
                owner_json(&line.whose, &self.by),
                json!({
                    "gpu_ns": line.used.measured_ns().map(whole_number),
                    "gpu_percent": line.used.measured_ns().map(|_| format_decimal(line.gpu_permille, 1)),
                    "unmeasured_ns": whole_number(line.used.unmeasured_ns),
                    "memory_byte_seconds": whole_number(line.used.byte_seconds),
                    "memory_percent": format_decimal(line.memory_permille, 1),
                    "peak_bytes": line.used.peak_bytes,
                    "wait_ns": whole_number(line.used.wait_ns),
                    "refused_allocations": line.used.refused.map(whole_number),
                }),
            )
        };
        let total = self.total();
        json!({
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "total": {
                "gpu_ns": total.measured_ns().map(whole_number),
                "unmeasured_ns": whole_number(total.unmeasured_ns),
                "memory_byte_seconds": whole_number(total.byte_seconds),
                "wait_ns": whole_number(total.wait_ns),
                "refused_allocations": total.refused.map(whole_number),
            },
        })
    }

    /// Returns the report as CSV, one line each, without a total.
    #[must_use]
    pub fn to_csv(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let more = [
            "gpu_ns",
            "gpu_percent",
            "memory_byte_seconds",
            "memory_percent",
            "peak_bytes",
            "wait_ns",
            "refused_allocations",
            "unmeasured_ns",
        ];
        let row = |line: &UsageLine| {
            let numbers = [
                line.used.measured_ns().map_or(String::new(), |ns| ns.to_string()),
                line.used.measured_ns().map_or(String::new(), |_| format_decimal(line.gpu_permille, 1)),
                line.used.byte_seconds.to_string(),
                format_decimal(line.memory_permille, 1),
                line.used.peak_bytes.to_string(),
                line.used.wait_ns.to_string(),
                line.used.refused.map_or(String::new(), |refused| refused.to_string()),
                line.used.unmeasured_ns.to_string(),
            ];
            line.whose.owner_cells(&self.by).into_iter().chain(numbers).collect()
        };
        (column_names(&self.by, &more), self.lines.iter().map(row).collect())
    }
}

/// Returns a number as JSON; as a string if it exceeds 64 bits.
pub(super) fn whole_number(value: u128) -> Value {
    u64::try_from(value).map_or_else(|_| json!(value.to_string()), |value| json!(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ReportPeriod;
    use super::super::gather::tests::test_line;
    use super::*;

    proptest! {
        #[test]
        fn what_is_shown_of_each_line_sums_to_what_is_shown_of_all(
            lines in prop::collection::vec((0..6_usize, 0..3_usize, 0..2_usize, 0..100_000_u64, 0..9999_u64), 1..40),
            nobody in any::<bool>(),
        ) {
            let mut gathered = GatheredLines::new(vec![LineBy::Group, LineBy::Tenant]);
            for (tenant, group, device, ms, gib) in lines {
                let group = ["one", "two", ""][group];
                let line = test_line(&format!("t{tenant}"), Some(group).filter(|g| !g.is_empty()), ["G", "H"][device], 0, ms, gib);
                gathered.add(&line);
            }
            if nobody {
                gathered.add_nobodys(ReportPeriod { since: 0, until: 7200 });
            }
            let usage = make_usage(&gathered);
            let (gpu, memory) = usage.lines.iter().fold((0, 0), |sum, line| (sum.0 + line.used.gpu_ns, sum.1 + line.used.byte_seconds));
            let sum = |part: fn(&UsageLine) -> u128| usage.lines.iter().map(part).sum::<u128>();
            prop_assert_eq!(sum(|line| line.gpu_permille), if gpu == 0 { 0 } else { 1000 });
            prop_assert_eq!(sum(|line| line.memory_permille), if memory == 0 { 0 } else { 1000 });
            prop_assert_eq!(sum(|line| line.gpu_ms), round_half_up(gpu, 1_000_000));
            prop_assert_eq!(sum(|line| line.milli_gib_hours), round_half_up(memory * 1000, 3600 << 30));
        }
    }
}
