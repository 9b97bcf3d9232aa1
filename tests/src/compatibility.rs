//! docs/compatibility.md: the clients that tests declare, and the page that shows them with the results of a run.
//!
//! A declaration is a line of a comment. In a test's own doc comment it belongs to that test; in a file's first comment
//! to every test of the file without a declaration of its own. `Client: NAME` declares that the test runs this program
//! or library, unmodified. `Calls of: NAME` declares that the test makes its driver calls. A comment may have several
//! such lines. The bin target `compatibility` runs the declared tests and writes the page; `tests/tests/book` compares
//! the page with the declarations. [`matrix`] is the page of engines and contracts, which the same run writes.

pub mod matrix;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artefacts::checkout;

/// Path of the page.
pub const PAGE_PATH: &str = "docs/compatibility.md";

/// Directories of tests that may declare clients, each with its package.
const TEST_DIRECTORIES: [(&str, &str); 2] = [("tests/tests", "vgpu-tests"), ("examples/tests", "vgpu-examples")];

/// First words of a result that proves nothing.
const NOT_RUN: &str = "not run";

/// The part of a client that a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// The program or library, unmodified.
    Itself,
    /// Its sequence of driver calls, made by a program of the tests.
    Calls,
}

impl fmt::Display for ClientKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClientKind::Itself => "itself",
            ClientKind::Calls => "its driver calls",
        })
    }
}

/// A client, and a test that declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Name of the client, in parentheses the part of it that the test is about.
    pub client: String,
    /// The part of the client that runs.
    pub kind: ClientKind,
    /// Package of the test.
    pub package: &'static str,
    /// Test program: a file or a directory of the package's `tests/`.
    pub program: String,
    /// Name of the test in its program, such as `servers::contexts_that_do_not_fit_are_refused`.
    pub test: String,
    /// Source file of the test.
    pub file: String,
}

impl Declaration {
    /// The test's name as a sentence.
    pub fn promise(&self) -> String {
        self.test.rsplit("::").next().unwrap_or_default().replace('_', " ")
    }
}

/// Result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestOutcome {
    /// The promise was kept.
    Passed,
    /// The promise was broken.
    Failed,
    /// The test proved nothing, for this reason.
    NotRun(String),
}

impl fmt::Display for TestOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TestOutcome::Passed => f.write_str("ok"),
            TestOutcome::Failed => f.write_str("**FAILED**"),
            TestOutcome::NotRun(why) => write!(f, "{NOT_RUN}: {why}"),
        }
    }
}

fn declared_client(comment: &str) -> Option<(ClientKind, String)> {
    let comment = comment.trim();
    let found = [("Client: ", ClientKind::Itself), ("Calls of: ", ClientKind::Calls)];
    found.iter().find_map(|(word, kind)| Some((*kind, comment.strip_prefix(word)?.trim_end_matches('.').to_owned())))
}

/// Returns each test of a source file that declares clients, with its clients. Panics if an item that is no test
/// declares one.
pub fn read_declarations(file: &str, text: &str) -> Vec<(String, Vec<(ClientKind, String)>)> {
    let (mut of_file, mut own, mut is_test, mut found) = (Vec::new(), Vec::new(), false, Vec::new());
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("//!") {
            of_file.extend(declared_client(comment));
        } else if let Some(comment) = line.strip_prefix("///") {
            own.extend(declared_client(comment));
        } else if line == "#[test]" {
            is_test = true;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            let name = line.strip_prefix("fn ").and_then(|rest| Some(rest.split_once('(')?.0));
            match name.filter(|_| is_test) {
                Some(name) if !own.is_empty() => found.push((name.to_owned(), own)),
                Some(name) if !of_file.is_empty() => found.push((name.to_owned(), of_file.clone())),
                Some(_) => {}
                None => assert!(own.is_empty(), "{file}: {own:?} is declared by `{line}`, which is no test"),
            }
            (own, is_test) = (Vec::new(), false);
        }
    }
    assert!(!found.is_empty() || of_file.is_empty(), "{file}: {of_file:?} is declared, and no test is there");
    found
}

/// Finds the files below a directory whose names end so; an empty end stands for names without one.
fn find_sources(dir: &Path, end: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of the checkout") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            find_sources(&path, end, found);
        } else if path.extension().unwrap_or_default() == end {
            found.push(path);
        }
    }
}

/// Test program of a source file, and the modules in front of the names of its tests.
fn module_names(root: &Path, path: &Path) -> (String, String) {
    let below = path.strip_prefix(root).expect("below").with_extension("");
    let parts: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    // A program's modules are named after their files, and its main file adds no name.
    let modules = parts.iter().skip(1).filter(|part| *part != "main");
    (parts[0].clone(), modules.map(|module| format!("{module}::")).collect())
}

/// All declarations of the source tree: clients in alphabetical order, those that run themselves first, then by file.
pub fn find_declarations() -> Vec<Declaration> {
    let mut all = Vec::new();
    for (place, package) in TEST_DIRECTORIES {
        let root = checkout().join(place);
        let mut files = Vec::new();
        find_sources(&root, "rs", &mut files);
        files.sort();
        for path in files {
            let (program, modules) = module_names(&root, &path);
            let file = path.strip_prefix(checkout()).expect("below").display().to_string();
            for (name, clients) in read_declarations(&file, &fs::read_to_string(&path).expect("a source")) {
                let test = modules.clone() + &name;
                all.extend(clients.into_iter().map(|(kind, client)| Declaration {
                    client,
                    kind,
                    package,
                    program: program.clone(),
                    test: test.clone(),
                    file: file.clone(),
                }));
            }
        }
    }
    all.sort_by_key(|one| (one.kind == ClientKind::Calls, one.client.to_lowercase()));
    all
}

/// Reads the results of tests from the output of a test program that ran under `VGPU_REQUIRE_ALL=1`. A test without a
/// part of its environment fails there with the name of that part: it was not run.
pub fn read_outcomes(output: &str) -> BTreeMap<String, TestOutcome> {
    let result = |line: &str| {
        let (name, word) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let outcome = match word {
            "ok" => TestOutcome::Passed,
            "FAILED" => TestOutcome::Failed,
            _ => TestOutcome::NotRun(word.to_owned()),
        };
        Some((name.to_owned(), outcome))
    };
    let mut outcomes: BTreeMap<String, TestOutcome> = output.lines().filter_map(result).collect();
    for section in output.split("\n---- ").skip(1) {
        let Some((name, rest)) = section.split_once(" stdout ----") else { continue };
        if let Some(missing) = rest.split("required and missing: ").nth(1)
            && let Some(outcome) = outcomes.get_mut(name)
        {
            *outcome = TestOutcome::NotRun(format!("missing: {}", missing.lines().next().unwrap_or_default()));
        }
    }
    outcomes
}

/// Version of a client that a file of the source tree pins: tests/setup/requirements.txt, or Cargo.lock.
pub fn find_pinned_version(client: &str) -> Option<String> {
    let read = |path| fs::read_to_string(checkout().join(path)).expect("a file of the checkout");
    let requirements = read("tests/setup/requirements.txt");
    if let Some(version) = requirements.lines().find_map(|line| line.strip_prefix(client)?.strip_prefix("==")) {
        return Some(version.to_owned());
    }
    let lock = read("Cargo.lock");
    let version = lock.split_once(&format!("name = \"{client}\"\nversion = \""))?.1;
    Some(version.split_once('"')?.0.to_owned())
}

/// Version that an installed client reports. The tests' environment names its place by a variable.
fn find_installed_version(client: &str) -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok();
    let (program, begin) = match client {
        "nvidia-smi" => return variable("VGPU_ORACLE_VERSION"),
        "PyTorch for the CPU" => {
            let file = Path::new(&variable("VGPU_TORCH")?).join("usr/lib/python3/dist-packages/torch/version.py");
            let text = fs::read_to_string(file).ok()?;
            return Some(text.split_once("__version__ = '")?.1.split_once('\'')?.0.to_owned());
        }
        "Docker" => (variable("VGPU_DOCKER")?, "version "),
        "Docker Compose" => (variable("VGPU_COMPOSE")?, "version "),
        "Podman" => (variable("VGPU_PODMAN")?, "version "),
        "promtool" => (variable("VGPU_PROMTOOL")?, "version "),
        "CPython" => ("python3".to_owned(), "Python "),
        _ => return None,
    };
    let out = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    let word = text.split_once(begin)?.1.split_whitespace().next()?;
    Some(word.trim_end_matches(',').to_owned())
}

/// Version of a client that ran itself, or a dash.
fn version_cell(declaration: &Declaration) -> String {
    let version = match declaration.kind {
        ClientKind::Itself => {
            find_pinned_version(&declaration.client).or_else(|| find_installed_version(&declaration.client))
        }
        ClientKind::Calls => None,
    };
    version.unwrap_or_else(|| "-".to_owned())
}

/// The counts of results, as the page states them.
pub fn count_words(outcomes: &[TestOutcome]) -> String {
    let count = |wanted: fn(&TestOutcome) -> bool| outcomes.iter().filter(|outcome| wanted(outcome)).count();
    format!(
        "{} rows: {} ok, {} failed, {} not run.",
        outcomes.len(),
        count(|outcome| *outcome == TestOutcome::Passed),
        count(|outcome| *outcome == TestOutcome::Failed),
        count(|outcome| matches!(outcome, TestOutcome::NotRun(_)))
    )
}

/// Writes the text of the page for a run on `date` with `commit`.
pub fn format_page(results: &[(Declaration, TestOutcome)], date: &str, commit: &str) -> String {
    let outcomes: Vec<TestOutcome> = results.iter().map(|(_, outcome)| outcome.clone()).collect();
    let rows = results.iter().map(|(declaration, outcome)| {
        let Declaration { client, kind, file, .. } = declaration;
        let (version, promise) = (version_cell(declaration), declaration.promise());
        format!("| {client} | {version} | {kind} | {promise} | {outcome} | {date} | `{file}` |\n")
    });
    format!(
        "# Clients: what was run, and the result

This page is generated: `make compatibility` runs the tests again and writes it. The last run was on {date}, with
commit {commit}.

A row is one client and one test, with libvgpu.so preloaded or next to the daemon. All rows are of the [simulated
device](simulated-device.md); runs on GPUs are in [measurements](measurements/README.md). The name of the test is the
promise.

- **itself**: the test runs the unmodified program or library, in this version. Its calls meet the simulated driver, which
  computes nothing; a client that needs results of kernels or CUDA's runtime library cannot run there.
- **its driver calls**: a program of the tests makes the driver calls that the client's public source shows, or changes
  the driver's code in its way. The client itself did not run. The file of the test names the source or the technique.
- **not run**: a part of the test's environment was missing, or the test was ignored. Such a row proves nothing.

A client joins by a line in a test's comment; [`tests/src/compatibility.rs`](../tests/src/compatibility.rs) explains it.

{}

| client | version | kind | what was run | result | date | file |
|---|---|---|---|---|---|---|
{}",
        count_words(&outcomes),
        rows.collect::<String>()
    )
}
