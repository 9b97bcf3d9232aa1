//! Rows for the added cost of calls, from the output of `vgpu-overhead`: a median of paired differences with its 95 %
//! interval.

use crate::row::{Control, Kind, Row};
use crate::spread::Cell;
use serde::Deserialize;
use serde_json::Value;

const ABSENT: &str = "library absent";
const OFF: &str = "no limits";
const LIMIT: &str = "memory limit";
const CEILING: &str = "ceiling on device time";
const NOTHING: &str = "ceiling, a driver that does nothing";

/// A line of the tool's output.
#[derive(Clone, Deserialize)]
struct Timed {
    name: String,
    bare: f64,
    added: f64,
    low: f64,
    high: f64,
}

impl Timed {
    fn native(&self) -> Cell {
        Cell::plain(self.bare)
    }

    fn added(&self) -> Cell {
        Cell::with(self.added, self.low, self.high)
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
pub fn rows(told: &Value) -> Result<Vec<Row>, String> {
    let line = |title: &str, name: &str| -> Result<Timed, String> {
        let missing = || format!("vgpu-overhead has no \"{name}\" under \"{title}\"");
        let titles = told["calls"].as_array().ok_or_else(missing)?;
        let lines = titles.iter().find(|one| one[0] == title).and_then(|one| one[1].as_array()).ok_or_else(missing)?;
        let mut found = lines.iter().filter_map(|one| serde_json::from_value::<Timed>(one.clone()).ok());
        found.find(|one| one.name == name).ok_or_else(missing)
    };
    let limited =
        || Control::new("hooks are in front of the driver, and cuMemGetInfo shows the limit as the total", true);
    let mut rows = Vec::new();
    for (id, what, name) in UNDER_A_MEMORY_LIMIT {
        rows.push(under_a_memory_limit(
            id,
            what,
            limited(),
            &[line(ABSENT, name)?, line(OFF, name)?, line(LIMIT, name)?],
        ));
    }
    let mut refused = rows[5].clone();
    (refused.id, refused.what) = ("ERR-001", "a launch of no function".into());
    rows.push(refused);

    let (free, gated) = (line(OFF, "launch")?, line(CEILING, "launch, ceiling")?);
    let passes = Control::new(
        format!("a launch adds more under the ceiling ({:.1} ns) than without limits ({:.1})", gated.added, free.added),
        gated.low > free.high,
    );
    rows.push(under_a_ceiling("OH-001", "under a ceiling of 95 %", passes.clone(), &gated));
    rows.push(under_a_ceiling("SCHED-002", "launch by itself", passes, &line(CEILING, "launch + wait, ceiling")?));
    let own = line(NOTHING, "launch, own code")?;
    let tried = Control::new("200 ms of launches were held to the ceiling first", true);
    rows.push(under_a_ceiling("OH-008", "own code of a launch under a ceiling of 95 %", tried, &own));
    rows.push(first_call(told, limited()).ok_or("vgpu-overhead has no first call")?);
    Ok(rows)
}

fn under_a_memory_limit(id: &'static str, what: &str, control: Control, [absent, off, limit]: &[Timed; 3]) -> Row {
    Row {
        native: Some(absent.native()),
        bare_again: Some(absent.added()),
        no_limits: Some(off.added()),
        limits: Some(limit.added()),
        difference: Some(limit.added()),
        ..Row::new(id, what, Kind::Added, control)
    }
}

fn under_a_ceiling(id: &'static str, what: &str, control: Control, line: &Timed) -> Row {
    let added = Some(line.added());
    Row { native: Some(line.native()), limits: added, difference: added, ..Row::new(id, what, Kind::Added, control) }
}

/// The first call of a process; the tool lists whole processes separately.
fn first_call(told: &Value, control: Control) -> Option<Row> {
    let line = told["processes"].as_array()?.iter().find(|one| one[0] == "cuInit, memory limit")?;
    let number = |at: usize| line[at].as_f64();
    let added = Some(Cell::with(number(2)?, number(3)?, number(4)?));
    let native = Some(Cell::plain(number(1)?));
    Some(Row { native, limits: added, difference: added, ..Row::new("OH-004", "cuInit", Kind::Added, control) })
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
                [LIMIT, of(40.0)],
                [CEILING, [line("launch, ceiling", 110.0, 60.0), line("launch + wait, ceiling", 300.0, 80.0)]],
                [NOTHING, [line("launch, own code", 5.0, 15.0)]],
            ],
            "processes": [["/bin/true, start to end", 900.0, 30.0, 20.0, 40.0], ["cuInit, memory limit", 500.0, 200.0, 150.0, 250.0]],
        })
    }

    #[test]
    fn each_column_is_its_own_scenario() {
        let rows = rows(&told()).unwrap();
        let row = rows.iter().find(|row| row.id == "OH-002").unwrap();
        assert_eq!(row.native, Some(Cell::plain(100.0)));
        assert_eq!(row.bare_again, Some(Cell::with(0.1, -0.4, 0.6)));
        assert_eq!(row.no_limits, Some(Cell::with(2.0, 1.5, 2.5)));
        assert_eq!((row.limits, row.difference), (Some(Cell::with(40.0, 39.5, 40.5)), row.limits));
        let first = rows.iter().find(|row| row.id == "OH-004").unwrap();
        assert_eq!(first.limits, Some(Cell::with(200.0, 150.0, 250.0)));
        assert!(rows.iter().all(|row| row.control.holds));
    }

    #[test]
    fn a_ceiling_that_costs_nothing_was_not_in_force() {
        let mut told = told();
        told["calls"][3][1][0] =
            json!({ "name": "launch, ceiling", "bare": 110.0, "added": 2.0, "low": 1.5, "high": 2.5 });
        let rows = rows(&told).unwrap();
        let broken: Vec<&str> = rows.iter().filter(|row| !row.control.holds).map(|row| row.id).collect();
        assert_eq!(broken, ["OH-001", "SCHED-002"]);
    }

    #[test]
    fn a_line_that_is_missing_is_named() {
        let mut told = told();
        told["calls"].as_array_mut().unwrap().pop();
        assert!(rows(&told).unwrap_err().contains("launch, own code"));
    }
}
