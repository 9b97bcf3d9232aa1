//! Checks docs/features.md: one row for each promise, with the test or the page that shows it.
//!
//! `tests/features.toml` is the source, and UPDATE=1 writes the page from it. A state is checked as far as a program
//! can: the named tests exist and run, the named places of pages exist. Not here: whether a test shows its promise.

use crate::pages::Page;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use toml::de::{DeTable, DeValue};
use vgpu_tests::artefacts::checkout;

/// Number of promises.
const FEATURE_COUNT: usize = 143;
const SOURCE: &str = "tests/features.toml";
const PAGE: &str = "docs/features.md";
/// States, and what the page says of each.
const STATES: [(&str, &str); 5] = [
    ("done", "a test shows it"),
    ("partial", "a test shows a part, and the row says what is missing"),
    ("documented", "a matter of words, which a page has"),
    ("elsewhere", "the engine does it that starts the programs"),
    ("not done", "the row says what is missing"),
];
/// Areas in the order of the page, with their headings.
const AREAS: [(&str, &str); 6] = [
    ("mechanisms", "Mechanisms and enforcement"),
    ("isolation", "Isolation and honesty"),
    ("observability", "Observability, idle time, cost"),
    ("validation", "Validation and performance"),
    ("scheduling", "Scheduling and policy"),
    ("operations", "Use cases and operations"),
];
const BEGIN: &str = "<!-- generated from tests/features.toml: from here on -->\n";

/// A promise, as the source has it.
#[derive(Debug, Default)]
struct Feature {
    number: usize,
    area: String,
    promise: String,
    state: String,
    /// `PATH: NAME` of each test.
    tests: Vec<String>,
    /// `PAGE` or `PAGE#ANCHOR`.
    pages: Vec<String>,
    missing: String,
}

fn read_features(text: &str) -> Vec<Feature> {
    let table = DeTable::parse(text).unwrap_or_else(|why| panic!("{SOURCE}: {why}"));
    let DeValue::Array(rows) = table.get_ref()["feature"].get_ref() else { panic!("{SOURCE}: no [[feature]]") };
    let word = |value: &DeValue| value.as_str().unwrap_or_else(|| panic!("{SOURCE}: {value:?} is no text")).to_owned();
    let words = |value: &DeValue| match value {
        DeValue::Array(all) => all.iter().map(|value| word(value.get_ref())).collect(),
        other => panic!("{SOURCE}: {other:?} is no list"),
    };
    let row = |row: &DeValue| {
        let DeValue::Table(row) = row else { panic!("{SOURCE}: {row:?} is no table") };
        let mut feature = Feature::default();
        for (key, value) in row {
            let value = value.get_ref();
            match key.get_ref().as_ref() {
                "number" => feature.number = value.as_integer().and_then(|n| n.as_str().parse().ok()).unwrap_or(0),
                "area" => feature.area = word(value),
                "promise" => feature.promise = word(value),
                "state" => feature.state = word(value),
                "tests" => feature.tests = words(value),
                "pages" => feature.pages = words(value),
                "missing" => feature.missing = word(value),
                other => panic!("{SOURCE}: {other} is no key"),
            }
        }
        feature
    };
    rows.iter().map(|value| row(value.get_ref())).collect()
}

fn features() -> Vec<Feature> {
    read_features(&fs::read_to_string(checkout().join(SOURCE)).expect("the source"))
}

/// Tests of a source file that run: names of functions below `#[test]` or `#[tokio::test]`, without those that are
/// ignored; functions of a Python file that pytest runs.
fn running_tests(path: &str, text: &str) -> Vec<String> {
    if Path::new(path).extension().is_some_and(|extension| extension == "py") {
        let after = text.split("def test_").skip(1);
        return after.filter_map(|rest| Some(format!("test_{}", rest.split_once('(')?.0))).collect();
    }
    let function = |rest: &str| {
        let (attributes, rest) = rest.split_once("fn ")?;
        let name = rest.split_once('(')?.0;
        (!attributes.contains("#[ignore") && !attributes.contains(';')).then(|| name.to_owned())
    };
    text.replace("#[tokio::test]", "#[test]").split("#[test]").skip(1).filter_map(function).collect()
}

/// A fault of the row, in words; `None` if there is none.
fn fault_of(feature: &Feature) -> Option<String> {
    let Feature { area, promise, state, tests, pages, missing, .. } = feature;
    if !AREAS.iter().any(|(name, _)| name == area) {
        return Some(format!("{area:?} is no area"));
    }
    if promise.is_empty() || promise.contains('|') || missing.contains('|') {
        return Some("its words do not fit a table".into());
    }
    let wrong = match state.as_str() {
        "done" => tests.is_empty() || !missing.is_empty(),
        "partial" => tests.is_empty() || missing.is_empty(),
        "documented" | "elsewhere" => pages.is_empty(),
        "not done" => !tests.is_empty() || missing.is_empty(),
        _ => return Some(format!("{state:?} is no state")),
    };
    if wrong {
        return Some(format!("state {state} with {} tests, {} pages, missing {missing:?}", tests.len(), pages.len()));
    }
    for test in tests {
        let Some((path, name)) = test.split_once(": ") else { return Some(format!("{test:?} is not PATH: NAME")) };
        let Ok(text) = fs::read_to_string(checkout().join(path)) else { return Some(format!("there is no {path}")) };
        if !running_tests(path, &text).iter().any(|found| found == name) {
            return Some(format!("{path} has no test {name} that runs"));
        }
    }
    for place in pages {
        let (path, anchor) = place.split_once('#').map_or((place.as_str(), None), |(path, at)| (path, Some(at)));
        if !checkout().join(path).is_file() {
            return Some(format!("there is no {path}"));
        }
        if anchor.is_some_and(|anchor| !Page::read(path).anchors().contains(anchor)) {
            return Some(format!("there is no {place}"));
        }
    }
    None
}

/// The last column of the page: tests by file, pages as links, and the missing parts.
fn evidence(feature: &Feature) -> String {
    let mut files: Vec<(&str, Vec<String>)> = Vec::new();
    for (path, name) in feature.tests.iter().filter_map(|test| test.split_once(": ")) {
        match files.last_mut() {
            Some((last, names)) if *last == path => names.push(format!("`{name}`")),
            _ => files.push((path, vec![format!("`{name}`")])),
        }
    }
    let mut parts: Vec<String> = files.iter().map(|(path, names)| format!("`{path}`: {}", names.join(", "))).collect();
    parts.extend(feature.pages.iter().map(|place| {
        let target = place.strip_prefix("docs/").map_or_else(|| format!("../{place}"), str::to_owned);
        format!("[{}]({target})", place.split('#').next().unwrap_or(place))
    }));
    if !feature.missing.is_empty() {
        parts.push(format!("*missing:* {}", feature.missing));
    }
    parts.join("; ")
}

fn generated(features: &[Feature]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    features.iter().for_each(|feature| *counts.entry(&feature.state).or_default() += 1);
    let mut text = "\n| state | rows | meaning |\n|---|---|---|\n".to_owned();
    for (state, meaning) in STATES {
        let _ = writeln!(text, "| {state} | {} | {meaning} |", counts.get(state).unwrap_or(&0));
    }
    for (area, heading) in AREAS {
        let _ = write!(text, "\n## {heading}\n\n| # | promise | state | shown by |\n|---|---|---|---|\n");
        for feature in features.iter().filter(|feature| feature.area == area) {
            let Feature { number, promise, state, .. } = feature;
            let _ = writeln!(text, "| {number} | {promise} | {state} | {} |", evidence(feature));
        }
    }
    text
}

#[test]
fn every_feature_has_one_row_and_names_tests_that_run_or_pages_that_exist() {
    let features = features();
    let numbers: Vec<usize> = features.iter().map(|feature| feature.number).collect();
    assert_eq!(numbers, (1..=FEATURE_COUNT).collect::<Vec<_>>(), "each number once, in order");
    let fault = |feature: &Feature| Some(format!("{}: {}", feature.number, fault_of(feature)?));
    let faults: Vec<String> = features.iter().filter_map(fault).collect();
    assert!(faults.is_empty(), "{SOURCE}:\n{}", faults.join("\n"));
}

#[test]
fn the_page_of_features_is_what_the_table_says() {
    let path = checkout().join(PAGE);
    let there = fs::read_to_string(&path).expect("the page");
    let (prose, _) = there.split_once(BEGIN).expect("the mark of the generated part");
    let wanted = format!("{prose}{BEGIN}{}", generated(&features()));
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &wanted).expect("the page can be written");
    }
    let there = fs::read_to_string(&path).expect("the page");
    assert!(there == wanted, "{PAGE} is not what {SOURCE} says; UPDATE=1 rewrites it");
}

#[test]
fn a_test_that_is_ignored_shows_no_feature() {
    let text = "#[test]\nfn one() {}\n#[test]\n#[ignore]\nfn two() {}\n#[test]\n#[ignore = \"slow\"]\nfn three() {}\n\
        fn four() {}\n    #[test]\n    fn five(n in 0..9) {}\n#[tokio::test]\nasync fn seven() {}\n\
        #[tokio::test]\n#[ignore]\nasync fn eight() {}\n";
    assert_eq!(running_tests("a.rs", text), ["one", "five", "seven"]);
    assert_eq!(running_tests("a.py", "def helper():\ndef test_six(tmp):\n"), ["test_six"]);
    let feature = |tests: &[&str], state: &str| Feature {
        area: "isolation".into(),
        promise: "something".into(),
        state: state.into(),
        tests: tests.iter().map(|test| (*test).to_owned()).collect(),
        ..Feature::default()
    };
    let known = "tests/tests/book/features.rs: a_test_that_is_ignored_shows_no_feature";
    assert_eq!(fault_of(&feature(&[known], "done")), None);
    for (tests, state) in [(&[][..], "done"), (&[known][..], "partial"), (&[known][..], "finished")] {
        assert!(fault_of(&feature(tests, state)).is_some(), "{state} with {tests:?}");
    }
    for wrong in ["tests/tests/book/features.rs: no_such_test", "tests/no_such_file.rs: x", "no_path"] {
        assert!(fault_of(&feature(&[wrong], "done")).is_some(), "{wrong}");
    }
    let mut paper = feature(&[], "documented");
    assert!(fault_of(&paper).is_some(), "documented without a page");
    paper.pages = vec!["docs/features.md#no-such-heading".into()];
    assert!(fault_of(&paper).is_some(), "a heading that is not there");
}
