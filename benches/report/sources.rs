//! Sources of figures: the measuring tools, each run as a program whose JSON output is read. Nothing is measured twice
//! or in another way. Processes of this tool supply the figures that no tool measures (`memory`).

use crate::place::ReportPlace;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

/// Source of a metric's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FigureSource {
    /// `vgpu-overhead`: calls in alternating blocks.
    Calls,
    /// `vgpu-shares`: the point with that name and its null control.
    Point(&'static str),
    /// `vgpu-shares tenants`: the part with that name.
    Tenants(&'static str),
    /// `vgpu-daemon-bench`: leases by the protocol.
    Leases,
    /// Processes of this tool that exhaust their memory.
    Memory,
}

/// Point: one tenant with a ceiling of 50 %.
pub const CEILING_POINT: &str = "h200/async/5ms/50";
/// Point: one tenant with four streams under a ceiling of 80 %.
pub const STREAMS: &str = "h200/streams/5ms/80";
/// Case: two tenants with weights of 30 and 70.
pub const WEIGHTS: &str = "shares/30-70/1ms";
/// Case: two tenants that always have work, for their throughput together.
pub const DONE: &str = "done/2x50/1ms";
/// Case: two services that answer requests.
pub const SERVICES_CASE: &str = "services";
/// Case: short requests next to a batch tenant.
pub const LATENCY: &str = "latency/500us-beside-1ms";
/// Case: a tenant whose ceiling changes during the run.
pub const CHANGES: &str = "changes/ceiling";

/// Sources of that metric's figures; empty if it is not measured.
pub fn sources_of(id: &str) -> &'static [FigureSource] {
    use FigureSource::{Calls, Leases, Memory, Point, Tenants};
    match id {
        "OH-001" | "OH-002" | "OH-004" | "OH-005" | "OH-006" | "OH-007" | "OH-008" | "SCHED-002" | "ERR-001" => {
            &[Calls]
        }
        "OH-009" => &[Tenants(WEIGHTS)],
        "OH-010" => &[Tenants(DONE), Tenants(WEIGHTS)],
        "IS-001" | "IS-002" | "IS-005" | "IS-010" | "ERR-002" | "ERR-003" => &[Memory],
        "IS-003" => &[Point(CEILING_POINT), Tenants(WEIGHTS)],
        "IS-004" => &[Tenants(CHANGES)],
        "IS-006" | "IS-007" | "IS-008" => &[Tenants(SERVICES_CASE)],
        "IS-009" | "SCHED-004" => &[Tenants(LATENCY), Tenants(WEIGHTS)],
        "SCHED-001" => &[Leases],
        "SCHED-003" => &[Point(STREAMS)],
        _ => &[],
    }
}

/// Length and number of the measurements.
#[derive(Clone, Copy, Debug)]
pub struct MeasuringEffort {
    /// Number of repetitions of the measurements of shares and tenants.
    pub runs: u32,
    /// Length of each repetition, in seconds.
    pub seconds: u32,
}

/// Output of the measuring tools, from which the rows are made.
#[derive(Default)]
pub struct ToldResults {
    /// JSON of `vgpu-overhead`.
    pub calls: Option<Value>,
    /// Output of `vgpu-shares`, one per repetition.
    pub points: Vec<Value>,
    /// Output of `vgpu-shares tenants`, one per repetition.
    pub tenants: Vec<Value>,
    /// JSON of `vgpu-daemon-bench`.
    pub leases: Option<Value>,
    /// Descriptions of measurements that failed.
    pub failures: Vec<String>,
}

/// Runs the tools that `wanted` needs. A tool that fails is recorded, and the others continue.
pub fn ask_tools(place: &ReportPlace, wanted: &BTreeSet<FigureSource>, effort: MeasuringEffort) -> ToldResults {
    let mut told = ToldResults::default();
    let seconds = effort.seconds.to_string();
    if wanted.contains(&FigureSource::Calls) {
        eprintln!("measuring calls: vgpu-overhead --quick");
        told.calls = run(place, "vgpu-overhead", &["--quick", "--json"]).map_err(|why| told.failures.push(why)).ok();
    }
    let points = option_names(wanted, |source| if let FigureSource::Point(name) = source { Some(name) } else { None });
    let tenants =
        option_names(wanted, |source| if let FigureSource::Tenants(name) = source { Some(name) } else { None });
    for number in 1..=effort.runs {
        let out = place.scratch_path().join("out");
        let out = out.to_string_lossy();
        if !points.is_empty() {
            eprintln!("measuring shares, {number} of {}: {points}", effort.runs);
            let words = ["--points", &points, "--seconds", &seconds, "--compare", "0", "--json", "--out", &out];
            told.points.extend(run(place, "vgpu-shares", &words).map_err(|why| told.failures.push(why)));
        }
        if !tenants.is_empty() {
            eprintln!("measuring tenants, {number} of {}: {tenants}", effort.runs);
            let words =
                ["tenants", "--only", &tenants, "--seconds", &seconds, "--changes", "8", "--json", "--out", &out];
            told.tenants.extend(run(place, "vgpu-shares", &words).map_err(|why| told.failures.push(why)));
        }
    }
    if wanted.contains(&FigureSource::Leases) {
        eprintln!("measuring leases: vgpu-daemon-bench, 4 tenants");
        let words = ["--tenants", "4", "--members", "8", "--seconds", "1", "--json"];
        told.leases = run(place, "vgpu-daemon-bench", &words).map_err(|why| told.failures.push(why)).ok();
    }
    told
}

/// Names of one kind of source, in the form of an option's value.
fn option_names(wanted: &BTreeSet<FigureSource>, of: impl Fn(FigureSource) -> Option<&'static str>) -> String {
    wanted.iter().filter_map(|source| of(*source)).collect::<Vec<_>>().join(",")
}

/// Runs a tool and returns its JSON output. Its stderr is shown if it fails.
fn run(place: &ReportPlace, tool: &str, words: &[&str]) -> Result<Value, String> {
    let program = place.tool_path(tool)?;
    let mut command = Command::new(&program);
    // The user's own limits must not influence the measurement.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_place = ["VGPU_BUILD", "VGPU_LIB_DIR", "VGPU_SIM_LIB_DIR"].contains(&&*text);
        if !is_place && ["VGPU_", "CUDA_", "LD_PRELOAD"].iter().any(|begin| text.starts_with(begin)) {
            command.env_remove(&name);
        }
    }
    let out =
        command.args(words).stdin(Stdio::null()).output().map_err(|why| format!("{}: {why}", program.display()))?;
    let said = || {
        let said = String::from_utf8_lossy(&out.stderr);
        let lines: Vec<&str> = said.lines().rev().take(3).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("; ")
    };
    if !out.status.success() {
        return Err(format!("{tool}: {}: {}", out.status, said()));
    }
    serde_json::from_slice(&out.stdout).map_err(|why| format!("{tool}: no JSON: {why}; {}", said()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::REPORT_METRICS;

    #[test]
    fn every_measured_metric_has_a_source_and_no_other_has() {
        for metric in &REPORT_METRICS {
            assert_eq!(metric.is_measured(), !sources_of(metric.id).is_empty(), "{}", metric.id);
        }
    }

    #[test]
    fn names_are_told_apart_by_their_tool() {
        let wanted = BTreeSet::from([
            FigureSource::Calls,
            FigureSource::Point("a/b"),
            FigureSource::Tenants("c"),
            FigureSource::Tenants("d"),
        ]);
        let tenants =
            option_names(&wanted, |source| if let FigureSource::Tenants(name) = source { Some(name) } else { None });
        assert_eq!(tenants, "c,d");
    }
}
