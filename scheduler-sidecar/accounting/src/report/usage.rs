//! Reports each line's part of the devices' time and memory, in percentages that sum to 100.0 %.

use serde_json::{Value, json};
use vgpu_core::units::bytes::Bytes;

use super::apportion::{apportion, decimal, rounded};
use super::chart::{Bar, bars};
use super::gather::{By, GIB, Gathered, NS, Used, Whose};
use super::sheet::{Sheet, Table};

/// A line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The tenant, group, label or device of the line.
    pub whose: Whose,
    /// Usage recorded for the line.
    pub used: Used,
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
pub struct Usage {
    /// Lines, most device time first.
    pub lines: Vec<Line>,
    /// Columns by which lines are grouped.
    pub by: Vec<By>,
}

/// Makes the report. The shown parts of the lines sum to the shown total.
#[must_use]
pub fn usage(gathered: &Gathered) -> Usage {
    let sorted = gathered.sorted(|used| used.gpu_ns);
    let gpu: Vec<u128> = sorted.iter().map(|(_, used)| used.gpu_ns).collect();
    let memory: Vec<u128> = sorted.iter().map(|(_, used)| used.byte_seconds).collect();
    let parts = |weights: &[u128], unit: u128, times: u128| {
        let sum: u128 = weights.iter().sum();
        (apportion(1000, weights), apportion(rounded(sum.saturating_mul(times), unit), weights))
    };
    let (gpu_permille, gpu_ms) = parts(&gpu, NS / 1000, 1);
    let (memory_permille, milli_gib_hours) = parts(&memory, 3600 * GIB, 1000);
    let line = |(index, (whose, used)): (usize, (Whose, Used))| Line {
        whose,
        used,
        gpu_permille: gpu_permille[index],
        gpu_ms: gpu_ms[index],
        memory_permille: memory_permille[index],
        milli_gib_hours: milli_gib_hours[index],
    };
    Usage { lines: sorted.into_iter().enumerate().map(line).collect(), by: gathered.by.clone() }
}

/// Returns the column headings for people.
pub(super) fn heads(by: &[By], more: &[&str]) -> Vec<String> {
    by.iter().map(By::name).chain(more.iter().map(|head| (*head).to_owned())).collect()
}

/// Returns a JSON object with the line's columns and its kind.
pub(super) fn named(whose: &Whose, by: &[By]) -> Value {
    let mut object = serde_json::Map::new();
    let parts: Vec<Option<&String>> = match whose {
        Whose::Of(parts) => parts.iter().map(Option::as_ref).collect(),
        _ => by.iter().map(|by| whose.device().filter(|_| *by == By::Device)).collect(),
    };
    object.insert("not_used".into(), json!(matches!(whose, Whose::Nobody(_))));
    object.insert("not_measured".into(), json!(matches!(whose, Whose::Unmeasured(_))));
    object.extend(by.iter().zip(parts).map(|(by, part)| (by.name(), json!(part))));
    Value::Object(object)
}

/// Adds fields to a JSON object.
pub(super) fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

impl Usage {
    fn total(&self) -> Used {
        self.lines.iter().fold(Used::default(), |mut sum, line| {
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
    pub fn sheet(&self, facts: Vec<(String, String)>, notes: Vec<String>) -> Sheet {
        let more = ["GPU seconds", "GPU %", "GiB hours", "memory %", "peak", "wait seconds", "refused"];
        let cells = |whose: Vec<String>, line: &Line| {
            let known = |value: Option<u128>| value.map_or("?".into(), |value| value.to_string());
            let nobody = !line.whose.is_somebody();
            let own = |text: String| if nobody { String::new() } else { text };
            let numbers = [
                line.used.marked(decimal(line.gpu_ms, 3)),
                line.used.marked(decimal(line.gpu_permille, 1)),
                own(decimal(line.milli_gib_hours, 3)),
                own(decimal(line.memory_permille, 1)),
                own(Bytes(line.used.peak_bytes).to_string()),
                own(decimal(rounded(line.used.wait_ns, NS / 1000), 3)),
                own(known(line.used.refused)),
            ];
            whose.into_iter().chain(numbers).collect::<Vec<_>>()
        };
        let sum = |part: fn(&Line) -> u128| self.lines.iter().map(part).sum();
        let mut all = Line {
            whose: Whose::Of(Vec::new()),
            used: self.total(),
            gpu_permille: sum(|line| line.gpu_permille),
            gpu_ms: sum(|line| line.gpu_ms),
            memory_permille: sum(|line| line.memory_permille),
            milli_gib_hours: sum(|line| line.milli_gib_hours),
        };
        // With a line for unmeasured time, the total is complete.
        if self.lines.iter().any(|line| matches!(line.whose, Whose::Unmeasured(_))) {
            all.used.unmeasured_ns = 0;
        }
        let mut total = vec![String::new(); self.by.len()];
        total[0] = "total".into();
        let rows = self.lines.iter().map(|line| cells(line.whose.cells(&self.by), line)).collect();
        let table = Table {
            heads: heads(&self.by, &more),
            words: self.by.len(),
            rows,
            total: Some(cells(total, &all)),
            ..Table::default()
        };
        Sheet {
            title: "GPU usage".into(),
            facts,
            tables: vec![table],
            pictures: vec![bars("GPU seconds", &self.bars())],
            notes,
            ..Sheet::default()
        }
    }

    fn bars(&self) -> Vec<Bar> {
        #[allow(clippy::cast_precision_loss)] // only for a picture
        let bar = |line: &Line| Bar {
            name: line.whose.cells(&self.by).join(" "),
            value: line.gpu_ms as f64,
            shown: format!("{} %", decimal(line.gpu_permille, 1)),
        };
        self.lines.iter().map(bar).collect()
    }

    /// Returns the report as JSON: integers as recorded, and the parts.
    #[must_use]
    pub fn json(&self) -> Value {
        let line = |line: &Line| {
            with(
                named(&line.whose, &self.by),
                json!({
                    "gpu_ns": line.used.gpu().map(whole),
                    "gpu_percent": line.used.gpu().map(|_| decimal(line.gpu_permille, 1)),
                    "unmeasured_ns": whole(line.used.unmeasured_ns),
                    "memory_byte_seconds": whole(line.used.byte_seconds),
                    "memory_percent": decimal(line.memory_permille, 1),
                    "peak_bytes": line.used.peak_bytes,
                    "wait_ns": whole(line.used.wait_ns),
                    "refused_allocations": line.used.refused.map(whole),
                }),
            )
        };
        let total = self.total();
        json!({
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "total": {
                "gpu_ns": total.gpu().map(whole),
                "unmeasured_ns": whole(total.unmeasured_ns),
                "memory_byte_seconds": whole(total.byte_seconds),
                "wait_ns": whole(total.wait_ns),
                "refused_allocations": total.refused.map(whole),
            },
        })
    }

    /// Returns the report as CSV, one line each, without a total.
    #[must_use]
    pub fn csv(&self) -> (Vec<String>, Vec<Vec<String>>) {
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
        let row = |line: &Line| {
            let numbers = [
                line.used.gpu().map_or(String::new(), |ns| ns.to_string()),
                line.used.gpu().map_or(String::new(), |_| decimal(line.gpu_permille, 1)),
                line.used.byte_seconds.to_string(),
                decimal(line.memory_permille, 1),
                line.used.peak_bytes.to_string(),
                line.used.wait_ns.to_string(),
                line.used.refused.map_or(String::new(), |refused| refused.to_string()),
                line.used.unmeasured_ns.to_string(),
            ];
            line.whose.cells(&self.by).into_iter().chain(numbers).collect()
        };
        (heads(&self.by, &more), self.lines.iter().map(row).collect())
    }
}

/// Returns a number as JSON; as a string if it exceeds 64 bits.
pub(super) fn whole(value: u128) -> Value {
    u64::try_from(value).map_or_else(|_| json!(value.to_string()), |value| json!(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Period;
    use super::super::gather::tests::line;
    use super::*;

    proptest! {
        #[test]
        fn what_is_shown_of_each_line_sums_to_what_is_shown_of_all(
            lines in prop::collection::vec((0..6_usize, 0..3_usize, 0..2_usize, 0..100_000_u64, 0..9999_u64), 1..40),
            nobody in any::<bool>(),
        ) {
            let mut gathered = Gathered::new(vec![By::Group, By::Tenant]);
            for (tenant, group, device, ms, gib) in lines {
                let group = ["one", "two", ""][group];
                let line = line(&format!("t{tenant}"), Some(group).filter(|g| !g.is_empty()), ["G", "H"][device], 0, ms, gib);
                gathered.add(&line);
            }
            if nobody {
                gathered.add_nobodys(Period { since: 0, until: 7200 });
            }
            let usage = usage(&gathered);
            let (gpu, memory) = usage.lines.iter().fold((0, 0), |sum, line| (sum.0 + line.used.gpu_ns, sum.1 + line.used.byte_seconds));
            let sum = |part: fn(&Line) -> u128| usage.lines.iter().map(part).sum::<u128>();
            prop_assert_eq!(sum(|line| line.gpu_permille), if gpu == 0 { 0 } else { 1000 });
            prop_assert_eq!(sum(|line| line.memory_permille), if memory == 0 { 0 } else { 1000 });
            prop_assert_eq!(sum(|line| line.gpu_ms), rounded(gpu, 1_000_000));
            prop_assert_eq!(sum(|line| line.milli_gib_hours), rounded(memory * 1000, 3600 << 30));
        }
    }
}
