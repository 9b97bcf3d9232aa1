//! The report through its tool: the metrics that need little time, with loose bounds, and the messages for bad input.

use std::process::{Command, Output};
use vgpu_tests::artefacts;

fn run_report(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vgpu-bench-report"))
        .args(arguments)
        .env("VGPU_BUILD", artefacts::vgpud().parent().expect("a directory"))
        .env("VGPU_LIB_DIR", artefacts::libvgpu().parent().expect("a directory"))
        .env("VGPU_SIM_LIB_DIR", artefacts::sim_dir())
        .output()
        .expect("the tool can be started")
}

#[test]
fn memory_failures_and_neighbours_are_measured_with_all_columns_and_reported() {
    let out = tempfile::tempdir().expect("a temporary directory");
    let path = out.path().to_str().expect("plain letters");
    let only = "IS-001,IS-002,IS-005,IS-010,ERR-002,ERR-003,CACHE-001";
    let ran = run_report(&["--only", only, "--runs", "2", "--json", "--out", path]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}: {said}", ran.status);
    let told: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let rows = told["rows"].as_array().expect("rows");
    let figure = |id: &str, column: &str| -> f64 {
        let row = rows.iter().find(|row| row["id"] == id).unwrap_or_else(|| panic!("{id}: {said}"));
        row[column]["value"].as_f64().unwrap_or_else(|| panic!("{id}, {column}: {row:#}"))
    };
    for column in ["native", "no_limits", "limits"] {
        let accuracy = figure("IS-001", column);
        assert!((95.0..=100.0).contains(&accuracy), "{column}: {accuracy}");
        assert!(figure("IS-002", column) > 0.0 && figure("ERR-002", column) > 0.0);
        assert_eq!((figure("IS-010", column), figure("ERR-003", column)), (100.0, 100.0), "{column}: {told:#}");
    }
    assert_eq!([figure("IS-005", "native"), figure("IS-005", "limits")], [2048.0, 0.0]);
    let text = std::fs::read_to_string(out.path().join("report.md")).expect("report.md");
    assert!(text.contains("### IS-001") && text.contains("| CACHE-001 |"), "{text}");
    assert!(out.path().join("isolation.svg").exists() && out.path().join("errors.csv").exists());
    assert!(!out.path().join("bench-report.json").exists(), "all figures are printed, not kept");
}

#[test]
fn a_metric_that_there_is_not_is_named_and_the_list_has_all() {
    let ran = run_report(&["--only", "IS-011"]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("--only IS-011: no metric has this id"));
    let listed = String::from_utf8(run_report(&["--list"]).stdout).expect("text");
    assert_eq!(listed.lines().filter(|line| !line.starts_with(' ')).count(), 56);
}
