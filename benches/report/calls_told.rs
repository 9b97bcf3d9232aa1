//! Rows for the added cost of calls, from the output of `vgpu-overhead`: a median of paired differences with its 95 %
//! interval.

use crate::row::{LimitControl, MetricRow, RowKind};
use crate::spread::FigureCell;
use serde::Deserialize;
use serde_json::Value;

const ABSENT: &str = "library absent";
const OFF: &str = "no limits";
const LIMIT_LABEL: &str = "memory limit";
const CEILING_LABEL: &str = "ceiling on device time";
const NOTHING: &str = "ceiling, a driver that does nothing";

/// One measurement in the JSON output of `vgpu-overhead`.
#[derive(Clone, Deserialize)]
struct TimedLine {
    name: String,
    bare: f64,
    added: f64,
    low: f64,
    high: f64,
}

impl TimedLine {
    fn native_cell(&self) -> FigureCell {
        FigureCell::without_interval(self.bare)
    }

    fn added_cell(&self) -> FigureCell {
        FigureCell::with_interval(self.added, self.low, self.high)
    }
}

/// Metric, its part, and the tool's line.
const UNDER_A_MEMORY_LIMIT: [(&str, &str, &str); 12] = [
    ("OH-001", "no ceiling", "launch"),
    ("OH-002", "allocation and free", "alloc + free, 0 live"),
    ("OH-005", "dlsym, a name without a hook", "dlsym of getpid"),
    ("OH-005", "cuGetProcAddress, a name with a hook", "cuGetProcAddress, hooked"),
    ("OH-005", "cuGetProcAddress, a name without", "cuGetProcAddress, not hooked"),
    ("OH-005", "a call that the driver refuses", "launch that the driver refuses"),
    ("OH-006", "1 thread", "the same, 1 thread, 0 live"),
    ("OH-006", "2 threads", "the same, 2 threads, 0 live"),
    ("OH-006", "4 threads", "the same, 4 threads, 0 live"),
    ("OH-007", "10,000 live", "alloc + free, 10000 live"),
    ("OH-007", "100,000 live", "alloc + free, 100000 live"),
    ("OH-007", "from a pool, 1,000 live", "pool pair, 1000 live"),
];

/// Returns the rows and the missing lines.
pub fn call_rows(told: &Value) -> Result<Vec<MetricRow>, String> {
    let line = |title: &str, name: &str| -> Result<TimedLine, String> {
        let missing = || format!("vgpu-overhead has no \"{name}\" under \"{title}\"");
        let titles = told["calls"].as_array().ok_or_else(missing)?;
        let lines = titles.iter().find(|one| one[0] == title).and_then(|one| one[1].as_array()).ok_or_else(missing)?;
        let mut found = lines.iter().filter_map(|one| serde_json::from_value::<TimedLine>(one.clone()).ok());
        found.find(|one| one.name == name).ok_or_else(missing)
    };
    let limited =
        || LimitControl::new("hooks are in front of the driver, and cuMemGetInfo shows the limit as the total", true);
    let mut rows = Vec::new();
    for (id, what, name) in UNDER_A_MEMORY_LIMIT {
        rows.push(under_a_memory_limit(
            id,
            what,
            limited(),
            &[line(ABSENT, name)?, line(OFF, name)?, line(LIMIT_LABEL, name)?],
        ));
    }
    let mut refused = rows[5].clone();
    (refused.id, refused.what) = ("ERR-001", "a launch of no function".into());
    rows.push(refused);

    let (free, gated) = (line(OFF, "launch")?, line(CEILING_LABEL, "launch, ceiling")?);
    let passes = LimitControl::new(
        format!("a launch adds more under the ceiling ({:.1} ns) than without limits ({:.1})", gated.added, free.added),
        gated.low > free.high,
    );
    rows.push(under_a_ceiling("OH-001", "under a ceiling of 95 %", passes.clone(), &gated));
    rows.push(under_a_ceiling(
        "SCHED-002",
        "launch by itself",
        passes,
        &line(CEILING_LABEL, "launch + wait, ceiling")?,
    ));
    let own = line(NOTHING, "launch, own code")?;
    let tried = LimitControl::new("200 ms of launches were held to the ceiling first", true);
    rows.push(under_a_ceiling("OH-008", "own code of a launch under a ceiling of 95 %", tried, &own));
    rows.push(first_call(told, limited()).ok_or("vgpu-overhead has no first call")?);
    Ok(rows)
}

fn under_a_memory_limit(
    id: &'static str,
    what: &str,
    control: LimitControl,
    [absent, off, limit]: &[TimedLine; 3],
) -> MetricRow {
    MetricRow {
        native: Some(absent.native_cell()),
        bare_again: Some(absent.added_cell()),
        no_limits: Some(off.added_cell()),
        limits: Some(limit.added_cell()),
        difference: Some(limit.added_cell()),
        ..MetricRow::new(id, what, RowKind::Added, control)
    }
}

fn under_a_ceiling(id: &'static str, what: &str, control: LimitControl, line: &TimedLine) -> MetricRow {
    let added = Some(line.added_cell());
    MetricRow {
        native: Some(line.native_cell()),
        limits: added,
        difference: added,
        ..MetricRow::new(id, what, RowKind::Added, control)
    }
}

/// The first call of a process; the tool lists whole processes separately.
fn first_call(told: &Value, control: LimitControl) -> Option<MetricRow> {
    let line = told["processes"].as_array()?.iter().find(|one| one[0] == "cuInit, memory limit")?;
    let number = |at: usize| line[at].as_f64();
    let added = Some(FigureCell::with_interval(number(2)?, number(3)?, number(4)?));
    let native = Some(FigureCell::without_interval(number(1)?));
    Some(MetricRow {
        native,
        limits: added,
        difference: added,
        ..MetricRow::new("OH-004", "cuInit", RowKind::Added, control)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Output of the tool, each line with its own figures.
    fn told() -> Value {
        let line = |name: &str, bare: f64, added: f64| json!({ "name": name, "bare": bare, "added": added, "low": added - 0.5, "high": added + 0.5 });
        let of = |added: f64| -> Vec<Value> {
            UNDER_A_MEMORY_LIMIT.iter().map(|(_, _, name)| line(name, 100.0, added)).collect()
        };
        json!({
            "calls": [
                [ABSENT, of(0.1)],
                [OFF, of(2.0)],
                [LIMIT_LABEL, of(40.0)],
                [CEILING_LABEL, [line("launch, ceiling", 110.0, 60.0), line("launch + wait, ceiling", 300.0, 80.0)]],
                [NOTHING, [line("launch, own code", 5.0, 15.0)]],
            ],
            "processes": [["/bin/true, start to end", 900.0, 30.0, 20.0, 40.0], ["cuInit, memory limit", 500.0, 200.0, 150.0, 250.0]],
        })
    }

    #[test]
    fn each_column_is_its_own_scenario() {
        let rows = call_rows(&told()).unwrap();
        let row = rows.iter().find(|row| row.id == "OH-002").unwrap();
        assert_eq!(row.native, Some(FigureCell::without_interval(100.0)));
        assert_eq!(row.bare_again, Some(FigureCell::with_interval(0.1, -0.4, 0.6)));
        assert_eq!(row.no_limits, Some(FigureCell::with_interval(2.0, 1.5, 2.5)));
        assert_eq!((row.limits, row.difference), (Some(FigureCell::with_interval(40.0, 39.5, 40.5)), row.limits));
        let first = rows.iter().find(|row| row.id == "OH-004").unwrap();
        assert_eq!(first.limits, Some(FigureCell::with_interval(200.0, 150.0, 250.0)));
        assert!(rows.iter().all(|row| row.control.holds));
    }

    #[test]
    fn a_ceiling_that_costs_nothing_was_not_in_force() {
        let mut told = told();
        told["calls"][3][1][0] =
            json!({ "name": "launch, ceiling", "bare": 110.0, "added": 2.0, "low": 1.5, "high": 2.5 });
        let rows = call_rows(&told).unwrap();
        let broken: Vec<&str> = rows.iter().filter(|row| !row.control.holds).map(|row| row.id).collect();
        assert_eq!(broken, ["OH-001", "SCHED-002"]);
    }

    #[test]
    fn a_line_that_is_missing_is_named() {
        let mut told = told();
        told["calls"].as_array_mut().unwrap().pop();
        assert!(call_rows(&told).unwrap_err().contains("launch, own code"));
    }
}
