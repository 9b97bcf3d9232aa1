//! Runs every test that declares a client, and writes docs/compatibility.md. `make compatibility` builds the products
//! and sets the environment before.
//!
//! Each test program runs once. Under `VGPU_REQUIRE_ALL=1` a test fails if a part of its environment is missing, so
//! that it is never counted as passed. The exit code is 1 if a test failed or has no result.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, ExitCode, Stdio};

use vgpu_tests::artefacts::checkout;
use vgpu_tests::compatibility::{
    Declaration, PAGE_PATH, TestOutcome, count_words, find_declarations, format_page, read_outcomes,
};

/// Runs the declared tests of one test program and returns their results.
fn run_program(package: &str, program: &str, tests: &[&str]) -> BTreeMap<String, TestOutcome> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--package", package, "--test", program, "--", "--exact"]).args(tests);
    // Variables that cargo set for this program would make the nested cargo rebuild everything.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo.env("VGPU_REQUIRE_ALL", "1").current_dir(checkout()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let out = cargo.output().unwrap_or_else(|why| panic!("{cargo:?}: {why}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let outcomes = read_outcomes(&text);
    outcomes.iter().for_each(|(test, outcome)| println!("{program}::{test}: {outcome}"));
    if outcomes.values().any(|outcome| *outcome == TestOutcome::Failed) || outcomes.len() < tests.len() {
        print!("{text}");
    }
    outcomes
}

fn run_text(program: &str, arguments: &[&str]) -> String {
    vgpu_tests::run(Command::new(program).args(arguments).current_dir(checkout())).trim().to_owned()
}

/// The commit, and whether the source tree differs from it.
fn describe_commit() -> String {
    let commit = run_text("git", &["rev-parse", "--short=12", "HEAD"]);
    let changed =
        run_text("git", &["status", "--porcelain", "--untracked-files=no", "--", ".", &format!(":!{PAGE_PATH}")]);
    if changed.is_empty() { commit } else { format!("{commit} and changes") }
}

fn main() -> ExitCode {
    let declarations = find_declarations();
    let mut programs = BTreeMap::<(&str, &str), Vec<&str>>::new();
    for Declaration { package, program, test, .. } in &declarations {
        let tests = programs.entry((package, program)).or_default();
        if !tests.contains(&test.as_str()) {
            tests.push(test);
        }
    }
    let mut outcomes = BTreeMap::new();
    for ((package, program), tests) in programs {
        for (test, outcome) in run_program(package, program, &tests) {
            outcomes.insert((package, program, test), outcome);
        }
    }
    let results: Vec<(Declaration, TestOutcome)> = declarations
        .iter()
        .map(|one| {
            let outcome = outcomes.get(&(one.package, &*one.program, one.test.clone())).cloned();
            (one.clone(), outcome.unwrap_or_else(|| TestOutcome::NotRun("no result".to_owned())))
        })
        .collect();
    let page = format_page(&results, &run_text("date", &["-u", "+%F"]), &describe_commit());
    fs::write(checkout().join(PAGE_PATH), page).unwrap_or_else(|why| panic!("{PAGE_PATH}: {why}"));
    let all: Vec<TestOutcome> = results.into_iter().map(|(_, outcome)| outcome).collect();
    println!("{PAGE_PATH}: {}", count_words(&all));
    let broken = |outcome: &TestOutcome| {
        *outcome == TestOutcome::Failed || *outcome == TestOutcome::NotRun("no result".to_owned())
    };
    ExitCode::from(u8::from(all.iter().any(broken)))
}
