//! docs/matrix.md: the effect that each contract of a scheduler had under each engine, from results of tests.
//!
//! A declaration is a comment line `Engine: ENGINE, CONTRACT: EFFECT` at a test of Rust or Python, or at a step of a
//! shell script. The tool that writes docs/compatibility.md runs these tests and writes the page too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;

use super::{NOT_RUN, TestOutcome, find_sources, module_names};
use crate::artefacts::checkout;

/// Path of the page.
pub const MATRIX_PATH: &str = "docs/matrix.md";

/// Rows of the page.
pub const ENGINES: [&str; 10] = [
    "Docker",
    "Podman",
    "containerd (CRI)",
    "containerd with the NRI plugin",
    "kubelet with the device plugin",
    "DRA driver (not run on a real kubelet)",
    "Slurm",
    "Ray",
    "systemd",
    "Docker Swarm",
];

/// Columns of the page: the contract of this project first.
pub const CONTRACTS: [&str; 7] =
    ["ours", "HAMi", "KAI hamicore", "KAI GPU_PORTION", "GPU fractioning", "Volcano", "vgpu-manager"];

/// Effect that a test saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContractEffect {
    /// Memory up to the limit was allocated, and more was refused.
    Enforced,
    /// A program saw the limit as its device's memory.
    View,
    /// The container or its program did not start, and words said why.
    Refused,
    /// A program saw the whole device.
    NoLimit,
}

impl ContractEffect {
    const ALL: [Self; 4] = [Self::Enforced, Self::View, Self::Refused, Self::NoLimit];
}

impl fmt::Display for ContractEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enforced => "enforced",
            Self::View => "view",
            Self::Refused => "refused",
            Self::NoLimit => "no limit",
        })
    }
}

/// A set of tests that one command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TestSuite {
    /// A package of this workspace.
    Package(&'static str),
    /// The agent of a Kubernetes node, which is a workspace of its own.
    Agent,
    /// Pods of a real kubelet.
    Cluster,
    /// Workers of a real Ray.
    Ray,
    /// Steps of `make test-systemd`.
    Systemd,
}

/// Directories of tests that may declare a cell, with the ends of their files' names.
const SUITE_DIRECTORIES: [(&str, &str, TestSuite); 5] = [
    ("tests/tests", "rs", TestSuite::Package("vgpu-tests")),
    ("integrations/kubernetes/tests", "rs", TestSuite::Agent),
    ("tests/kubernetes", "py", TestSuite::Cluster),
    ("integrations/ray/tests", "py", TestSuite::Ray),
    ("packaging/deb", "", TestSuite::Systemd),
];

/// An engine, a contract, and the effect that a test sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixCell {
    /// One of [`ENGINES`].
    pub engine: &'static str,
    /// One of [`CONTRACTS`].
    pub contract: &'static str,
    /// The effect, if the test passes.
    pub effect: ContractEffect,
}

/// A cell, and the test that declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellDeclaration {
    /// The declared cell.
    pub cell: MatrixCell,
    /// The command that runs the test.
    pub suite: TestSuite,
    /// Test program: a file or a directory of the suite.
    pub program: String,
    /// Name of the test in its program, or of a step.
    pub test: String,
    /// Source file of the test.
    pub file: String,
}

impl CellDeclaration {
    /// The test's name as a sentence.
    pub fn promise(&self) -> String {
        let name = self.test.rsplit("::").next().unwrap_or_default().replace('_', " ");
        // Every test of Python begins so.
        name.strip_prefix("test ").map_or(name.clone(), str::to_owned)
    }
}

fn parse_cell(text: &str) -> Option<MatrixCell> {
    let (place, effect) = text.trim_end_matches('.').rsplit_once(": ")?;
    let (engine, contract) = place.rsplit_once(", ")?;
    Some(MatrixCell {
        engine: ENGINES.into_iter().find(|known| *known == engine)?,
        contract: CONTRACTS.into_iter().find(|known| *known == contract)?,
        effect: ContractEffect::ALL.into_iter().find(|known| known.to_string() == effect)?,
    })
}

/// Name of the test, or of the step, that a line begins.
fn begun_test(line: &str) -> Option<&str> {
    let function = ["fn ", "async fn ", "def "].into_iter().find_map(|word| line.strip_prefix(word));
    let name = function.and_then(|rest| Some(rest.split_once('(')?.0));
    name.or_else(|| Some(line.strip_prefix("step \"")?.split_once('"')?.0))
}

/// Returns each test of a source file that declares cells, with its cells. Panics if a declaration is not understood,
/// or belongs to no test.
pub fn read_cells(file: &str, text: &str) -> Vec<(String, Vec<MatrixCell>)> {
    let (mut own, mut found) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let comment = line.strip_prefix("/// ").or_else(|| line.strip_prefix("# "));
        if let Some(declared) = comment.and_then(|comment| comment.strip_prefix("Engine: ")) {
            own.push(parse_cell(declared).unwrap_or_else(|| {
                panic!("{file}: {line}: no `ENGINE, CONTRACT: EFFECT` of {ENGINES:?} and {CONTRACTS:?}")
            }));
        } else if !line.starts_with("///") && !line.starts_with('#') && !line.starts_with('@') {
            match begun_test(line) {
                Some(test) if !own.is_empty() => found.push((test.to_owned(), std::mem::take(&mut own))),
                Some(_) => {}
                None => assert!(own.is_empty(), "{file}: {own:?} is declared by `{line}`, which is no test"),
            }
        }
    }
    found
}

/// All declarations of the source tree, in the order of the page.
pub fn find_cells() -> Vec<CellDeclaration> {
    let mut all = Vec::new();
    for (place, end, suite) in SUITE_DIRECTORIES {
        let root = checkout().join(place);
        let mut files = Vec::new();
        find_sources(&root, end, &mut files);
        files.sort();
        for path in files {
            let (program, modules) = module_names(&root, &path);
            let modules = if end == "rs" { modules } else { String::new() };
            let file = path.strip_prefix(checkout()).expect("below").display().to_string();
            for (name, cells) in read_cells(&file, &fs::read_to_string(&path).expect("a source")) {
                let test = modules.clone() + &name;
                all.extend(cells.into_iter().map(|cell| CellDeclaration {
                    cell,
                    suite,
                    program: program.clone(),
                    test: test.clone(),
                    file: file.clone(),
                }));
            }
        }
    }
    let place = |cell: &MatrixCell| {
        (ENGINES.iter().position(|one| *one == cell.engine), CONTRACTS.iter().position(|one| *one == cell.contract))
    };
    all.sort_by_key(|one| (place(&one.cell), one.cell.effect));
    all
}

/// Reads the results of pytest's option `-rA`. Of a test with parameters, the worst result counts.
pub fn read_pytest_outcomes(output: &str) -> BTreeMap<String, TestOutcome> {
    let mut outcomes = BTreeMap::new();
    for line in output.lines() {
        let Some((word, rest)) = line.split_once(' ') else { continue };
        let outcome = match word {
            "PASSED" => TestOutcome::Passed,
            "FAILED" | "ERROR" => match rest.split_once("required and missing: ") {
                Some((_, missing)) => TestOutcome::NotRun(format!("missing: {missing}")),
                None => TestOutcome::Failed,
            },
            _ => continue,
        };
        let name = rest.split(" - ").next().unwrap_or_default().split("::").nth(1).unwrap_or_default();
        let name = name.split('[').next().unwrap_or_default().to_owned();
        if outcomes.get(&name).is_none_or(|known| *known == TestOutcome::Passed) {
            outcomes.insert(name, outcome);
        }
    }
    outcomes
}

/// Reads the results of a script's steps.
pub fn read_step_outcomes(output: &str) -> BTreeMap<String, TestOutcome> {
    let step = |line: &str| {
        let good = line.strip_prefix("ok   ").map(|name| (name.to_owned(), TestOutcome::Passed));
        let bad = || Some((line.strip_prefix("BAD  ")?.split(" (exit ").next()?.to_owned(), TestOutcome::Failed));
        good.or_else(bad)
    };
    output.lines().filter_map(step).collect()
}

/// Text of one field: the effects that passing tests saw.
fn format_field(results: &[(CellDeclaration, TestOutcome)], engine: &str, contract: &str) -> String {
    let of_field =
        |one: &&(CellDeclaration, TestOutcome)| one.0.cell.engine == engine && one.0.cell.contract == contract;
    let here: Vec<_> = results.iter().filter(of_field).collect();
    if here.iter().any(|(_, outcome)| *outcome == TestOutcome::Failed) {
        return TestOutcome::Failed.to_string();
    }
    let passed = here.iter().filter(|(_, outcome)| *outcome == TestOutcome::Passed);
    let effects: BTreeSet<ContractEffect> = passed.map(|(declaration, _)| declaration.cell.effect).collect();
    match (effects.is_empty(), here.is_empty()) {
        (true, true) => "not tried".to_owned(),
        (true, false) => NOT_RUN.to_owned(),
        (false, _) => effects.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Writes the text of the page for a run on `date` with `commit`.
pub fn format_matrix(results: &[(CellDeclaration, TestOutcome)], date: &str, commit: &str) -> String {
    let row = |engine: &&str| {
        let fields = CONTRACTS.iter().map(|contract| format!(" {} |", format_field(results, engine, contract)));
        format!("| {engine} |{}\n", fields.collect::<String>())
    };
    let tests = results.iter().map(|(declaration, outcome)| {
        let MatrixCell { engine, contract, effect } = &declaration.cell;
        let (promise, file) = (declaration.promise(), &declaration.file);
        format!("| {engine} | {contract} | {effect} | {promise} | {outcome} | `{file}` |\n")
    });
    format!(
        "# Engines and contracts: what was tried

This page is generated: `make compatibility` runs the tests again and writes it. The last run was on {date}, with
commit {commit}.

An engine starts the program, and a contract is the way in which a scheduler says what the program may use:
[engines](engines.md), [contracts of schedulers](contracts.md). All runs are on the [simulated
device](simulated-device.md). The projects' own schedulers do not run there.

- **enforced**: memory up to the limit was allocated, and more was refused.
- **view**: a program saw the limit as its device's memory. More was not asked for.
- **refused**: the container or its program did not start, and words said why.
- **no limit**: a program saw the whole device.
- **not run**: a part of the test's environment was missing.
- **not tried**: there is no test.

Several words in one field are results of several tests.

| engine | {} |
|---|{}
{}
## The tests

| engine | contract | effect | test | result | file |
|---|---|---|---|---|---|
{}",
        CONTRACTS.join(" | "),
        "---|".repeat(CONTRACTS.len()),
        ENGINES.iter().map(row).collect::<String>(),
        tests.collect::<String>()
    )
}
