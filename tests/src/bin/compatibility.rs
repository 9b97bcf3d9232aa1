//! Runs every test that declares a client or an engine, and writes docs/compatibility.md and docs/matrix.md. `make
//! compatibility` builds the products and sets the environment before. The argument `matrix` writes that page alone.
//!
//! Each test program runs once. Under `VGPU_REQUIRE_ALL=1` a test fails if a part of its environment is missing, so
//! that it is never counted as passed. The exit code is 1 if a test failed or has no result.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, ExitCode, Stdio};

use vgpu_tests::artefacts::checkout;
use vgpu_tests::compatibility::matrix::{
    MATRIX_PATH, TestSuite, find_cells, format_matrix, read_pytest_outcomes, read_step_outcomes,
};
use vgpu_tests::compatibility::{
    Declaration, PAGE_PATH, TestOutcome, count_words, find_declarations, format_page, read_outcomes,
};

/// Reads the results of tests from the output of their command.
type OutcomeReader = fn(&str) -> BTreeMap<String, TestOutcome>;

/// The command that runs these tests of a program, and the reader of its output.
fn suite_command(suite: TestSuite, program: &str, tests: &BTreeSet<String>) -> (Command, OutcomeReader) {
    let pytest = |script: &str| {
        let mut command = Command::new(script);
        let names: Vec<&str> = tests.iter().map(String::as_str).collect();
        command.args(["all", "-rA", "-k", &names.join(" or ")]);
        command
    };
    match suite {
        TestSuite::Package(_) | TestSuite::Agent => {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.arg("test");
            if let TestSuite::Package(package) = suite {
                cargo.args(["--package", package]);
            } else {
                let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
                cargo.args(["--manifest-path", "integrations/kubernetes/Cargo.toml", "--target-dir"]);
                cargo.arg(format!("{target}/kubernetes"));
            }
            cargo.args(["--test", program, "--", "--exact"]).args(tests);
            (cargo, read_outcomes)
        }
        TestSuite::Cluster => (pytest("make/test-kubernetes"), read_pytest_outcomes),
        TestSuite::Ray => (pytest("make/test-ray"), read_pytest_outcomes),
        TestSuite::Systemd => {
            let mut make = Command::new("make");
            make.args(["--no-print-directory", "test-systemd"]);
            (make, read_step_outcomes)
        }
    }
}

/// The program, if the suite has a command for each; the files of pytest run by one.
fn command_name(suite: TestSuite, program: &str) -> String {
    let program = if matches!(suite, TestSuite::Cluster | TestSuite::Ray) { "pytest" } else { program };
    program.to_owned()
}

/// Runs the declared tests of one test program and returns their results.
fn run_program(suite: TestSuite, program: &str, tests: &BTreeSet<String>) -> BTreeMap<String, TestOutcome> {
    let (mut command, read) = suite_command(suite, program, tests);
    // Variables that cargo set for this program would make the nested cargo rebuild everything.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command.env("VGPU_REQUIRE_ALL", "1").current_dir(checkout()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let out = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut outcomes = read(&text);
    outcomes.retain(|test, _| tests.contains(test));
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
    let changed = run_text(
        "git",
        &["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/compatibility.md", ":!docs/matrix.md"],
    );
    if changed.is_empty() { commit } else { format!("{commit} and changes") }
}

fn main() -> ExitCode {
    let only_matrix = std::env::args().nth(1).is_some_and(|word| word == "matrix");
    let declarations = if only_matrix { Vec::new() } else { find_declarations() };
    let cells = find_cells();
    let clients =
        declarations.iter().map(|one| (TestSuite::Package(one.package), one.program.clone(), one.test.clone()));
    let engines = cells.iter().map(|one| (one.suite, one.program.clone(), one.test.clone()));
    let mut programs = BTreeMap::<(TestSuite, String), BTreeSet<String>>::new();
    for (suite, program, test) in clients.chain(engines) {
        programs.entry((suite, command_name(suite, &program))).or_default().insert(test);
    }
    let mut outcomes = BTreeMap::new();
    for ((suite, program), tests) in programs {
        for (test, outcome) in run_program(suite, &program, &tests) {
            outcomes.insert((suite, program.clone(), test), outcome);
        }
    }
    let outcome = |suite: TestSuite, program: &str, test: &String| {
        let outcome = outcomes.get(&(suite, command_name(suite, program), test.clone())).cloned();
        outcome.unwrap_or_else(|| TestOutcome::NotRun("no result".to_owned()))
    };
    let (date, commit) = (run_text("date", &["-u", "+%F"]), describe_commit());
    let mut all = Vec::new();
    let mut write = |path: &str, page: String, results: Vec<TestOutcome>| {
        fs::write(checkout().join(path), page).unwrap_or_else(|why| panic!("{path}: {why}"));
        println!("{path}: {}", count_words(&results));
        all.extend(results);
    };
    if !only_matrix {
        let outcome = |one: &Declaration| outcome(TestSuite::Package(one.package), &one.program, &one.test);
        let results: Vec<_> = declarations.into_iter().map(|one| (one.clone(), outcome(&one))).collect();
        let page = format_page(&results, &date, &commit);
        write(PAGE_PATH, page, results.into_iter().map(|(_, outcome)| outcome).collect());
    }
    let results: Vec<_> =
        cells.into_iter().map(|one| (one.clone(), outcome(one.suite, &one.program, &one.test))).collect();
    let page = format_matrix(&results, &date, &commit);
    write(MATRIX_PATH, page, results.into_iter().map(|(_, outcome)| outcome).collect());
    let broken = |outcome: &TestOutcome| {
        *outcome == TestOutcome::Failed || *outcome == TestOutcome::NotRun("no result".to_owned())
    };
    ExitCode::from(u8::from(all.iter().any(broken)))
}
