//! Checks that the tests named in docs/gpu-time-model.md for device time exist, not that they test the promise.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use vgpu_tests::artefacts::checkout;

/// Directories whose Rust files contain tests.
const PLACES: [&str; 6] =
    ["vgpu-core/src", "vgpu-core/tests", "libvgpu/src", "sim", "scheduler-sidecar", "tests/tests"];

/// Names of all test functions under `place`.
fn tests(place: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(place).expect("a directory of the checkout") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            tests(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file");
            let after = text.split("#[test]").skip(1);
            let names = after.filter_map(|rest| rest.split_once("fn ")?.1.split_once('(').map(|(name, _)| name));
            found.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn whatever_device_time_must_survive_names_tests_that_exist() {
    let text = fs::read_to_string(checkout().join("docs/gpu-time-model.md")).expect("the page");
    let (_, section) = text.split_once("## Tested by name").expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|row| row.split(" | ").collect())
        .skip(1)
        .collect();
    assert!(rows.len() >= 20, "{} rows", rows.len());
    let mut there = BTreeSet::new();
    PLACES.iter().for_each(|place| tests(&checkout().join(place), &mut there));
    let mut real = BTreeSet::new();
    tests(&checkout().join("tests/tests"), &mut real);
    for row in &rows {
        let [what, virtually, really] = row[..] else { panic!("three columns: {row:?}") };
        let names = |cell| str::split(cell, '`').skip(1).step_by(2).collect::<Vec<&str>>();
        assert!(!names(virtually).is_empty() || !names(really).is_empty(), "{what}: no test");
        for name in names(virtually) {
            assert!(there.contains(name), "{what}: there is no test {name}");
        }
        for name in names(really) {
            assert!(real.contains(name), "{what}: there is no test {name} of processes");
        }
    }
}
