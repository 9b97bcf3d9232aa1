//! Tests of the command line of `vgpu report savings`. Its arithmetic: report/savings.rs. Reports from a record:
//! tests/tests/report.rs.

#[path = "../../support/mod.rs"]
mod support;

use serde_json::Value;
use support::{texts, vgpu};

fn savings(options: &[&str]) -> (Option<i32>, String, String) {
    let output =
        vgpu().args(["report", "savings", "--gpu-price", "2.24", "--tenant-price", "0.08"]).args(options).output();
    let output = output.unwrap();
    let (out, err) = texts(&output);
    (output.status.code(), out, err)
}

#[test]
fn what_latency_costs_is_taken_off_where_it_is_asked_for() {
    let latency = ["--added-ms", "618", "--loss", "1", "--revenue", "10"];
    let json = |more: &[&str]| serde_json::from_str::<Value>(&savings(&[more, &["--json"]].concat()).1).unwrap();
    let (with, without) = (json(&latency), json(&[]));
    assert_eq!(
        (&with["saved"], &with["lost_by_latency"], &with["net"]),
        (&"1518.40".into(), &"451.14".into(), &"1067.26".into())
    );
    assert_eq!((&without["saved"], &without["net"]), (&"1518.40".into(), &Value::Null));
    let (_, text, _) = savings(&[&latency[..], &["--currency", "EUR"]].concat());
    assert!(text.contains("10 x 730 h x 1 % x 618 ms / 100 ms") && text.contains("1067.26 EUR"), "{text}");
}

#[test]
fn a_part_of_the_question_is_no_question_and_what_is_missing_is_named() {
    for (options, named) in [
        (&["--added-ms", "618"][..], "--loss"),
        (&["--added-ms", "618", "--loss", "1"], "--revenue"),
        (&["--revenue", "10"], "--added-ms"),
        (&["--added-ms", "much", "--loss", "1", "--revenue", "1"], "--added-ms"),
    ] {
        let (code, _, err) = savings(options);
        assert!(code == Some(2) && err.contains(named), "{options:?}: {err}");
    }
}
