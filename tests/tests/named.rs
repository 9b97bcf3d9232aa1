//! Checks that the tests named in the tables of docs/gpu-time-model.md exist, not that they test the promise.

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

/// The rows of the three-column table in the section `title` of docs/gpu-time-model.md.
fn rows_of(page: &str, title: &str) -> Vec<[String; 3]> {
    let (_, section) = page.split_once(&format!("\n## {title}\n")).expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let rows: Vec<[String; 3]> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|row| row.split(" | ").map(str::to_owned).collect::<Vec<_>>().try_into().expect("three columns"))
        .skip(1)
        .collect();
    assert!(rows.len() >= 20, "{} rows", rows.len());
    rows
}

/// The names in backquotes in a cell.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn page() -> String {
    fs::read_to_string(checkout().join("docs/gpu-time-model.md")).expect("the page")
}

fn all_tests() -> BTreeSet<String> {
    let mut there = BTreeSet::new();
    PLACES.iter().for_each(|place| tests(&checkout().join(place), &mut there));
    there
}

#[test]
fn each_rule_about_device_time_names_tests_that_exist() {
    let there = all_tests();
    for [rule, _, fails] in rows_of(&page(), "What each rule is for") {
        for name in names(&fails) {
            assert!(there.contains(name), "{rule}: there is no test {name}");
        }
        assert!(!names(&fails).is_empty() || fails.starts_with(char::is_numeric) || fails.contains("tests"), "{rule}");
    }
}

#[test]
fn whatever_device_time_must_survive_names_tests_that_exist() {
    let (page, there) = (page(), all_tests());
    let mut real = BTreeSet::new();
    tests(&checkout().join("tests/tests"), &mut real);
    for [what, virtually, really] in &rows_of(&page, "Tested by name") {
        assert!(!names(virtually).is_empty() || !names(really).is_empty(), "{what}: no test");
        for name in names(virtually) {
            assert!(there.contains(name), "{what}: there is no test {name}");
        }
        for name in names(really) {
            assert!(real.contains(name), "{what}: there is no test {name} of processes");
        }
    }
}
