//! Checks that the page of clients lists exactly the declared clients with their tests, and that the page of engines is
//! that of its own list of results. No test of a client or an engine runs here.

use crate::pages::Page;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use vgpu_tests::artefacts::checkout;
use vgpu_tests::compatibility::matrix::{
    CellDeclaration, MATRIX_PATH, find_cells, format_matrix, read_cells, read_pytest_outcomes, read_step_outcomes,
};
use vgpu_tests::compatibility::{
    ClientKind, Declaration, PAGE_PATH, TestOutcome, count_words, find_declarations, find_pinned_version, format_page,
    read_declarations, read_outcomes,
};

/// Cells of the page's rows.
fn rows() -> Vec<Vec<String>> {
    table_rows(&Page::read(PAGE_PATH).text)
}

fn table_rows(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| row.trim_matches(['|', ' ']).split(" | ").map(str::to_owned).collect()).collect()
}

/// The row's result; a word that the tool does not write fails the test.
fn outcome(cell: &str) -> TestOutcome {
    match cell {
        "ok" => TestOutcome::Passed,
        "**FAILED**" => TestOutcome::Failed,
        _ => {
            TestOutcome::NotRun(cell.strip_prefix("not run: ").unwrap_or_else(|| panic!("a result: {cell}")).to_owned())
        }
    }
}

#[test]
fn the_page_of_clients_lists_every_declared_client_with_its_tests_and_no_other() {
    let declared: Vec<[String; 4]> = find_declarations()
        .into_iter()
        .map(|one| [one.client.clone(), one.kind.to_string(), one.promise(), format!("`{}`", one.file)])
        .collect();
    let rows = rows();
    let listed: Vec<[String; 4]> =
        rows.iter().map(|row| [&row[0], &row[2], &row[3], &row[6]].map(String::clone)).collect();
    let lacks: Vec<_> = declared.iter().filter(|one| !listed.contains(one)).collect();
    let beyond: Vec<_> = listed.iter().filter(|one| !declared.contains(one)).collect();
    assert!(
        lacks.is_empty() && beyond.is_empty(),
        "{PAGE_PATH} lacks {lacks:#?} and has {beyond:#?}: make compatibility"
    );
    assert_eq!(listed, declared, "{PAGE_PATH}, in another order: make compatibility");
    for row in &rows {
        let pinned = find_pinned_version(&row[0]).filter(|_| row[2] == ClientKind::Itself.to_string());
        assert!(pinned.is_none_or(|version| version == row[1]), "{row:?} has another version now: make compatibility");
    }
    let words = count_words(&rows.iter().map(|row| outcome(&row[4])).collect::<Vec<_>>());
    assert!(Page::read(PAGE_PATH).text.contains(&format!("\n{words}\n")), "{PAGE_PATH} has other rows than {words}");
}

/// Elsewhere a test without a client is the rule; in these files it is one that was forgotten.
#[test]
fn every_test_of_the_sequences_and_of_the_clients_declares_its_client() {
    let declared: BTreeSet<(String, String)> =
        find_declarations().into_iter().map(|one| (one.file, one.test)).collect();
    let mut files = vec!["tests/tests/clients.rs".to_owned()];
    for entry in fs::read_dir(checkout().join("tests/tests/sequences")).expect("a directory of the checkout") {
        files.push(format!("tests/tests/sequences/{}", entry.expect("an entry").file_name().to_string_lossy()));
    }
    assert!(files.len() > 10, "{files:?}");
    for file in files {
        let text = fs::read_to_string(checkout().join(&file)).expect("a source");
        let tests = text.lines().filter(|line| *line == "#[test]").count();
        let known = declared.iter().filter(|(of, _)| *of == file).count();
        assert_eq!(known, tests, "{file}: a test declares no client (`Client:` or `Calls of:` in its comment)");
    }
}

#[test]
fn a_test_without_a_result_of_its_own_is_never_told_as_passed() {
    let output = "
running 5 tests
test good ... ok
test left ... ignored, takes an hour
test rooms::bare ... FAILED
test rooms::bad ... FAILED

failures:

---- rooms::bare stdout ----

thread 'rooms::bare' (7) panicked at tests/src/optional.rs:15:5:
required and missing: Python clients

---- rooms::bad stdout ----

thread 'rooms::bad' (8) panicked at a.rs:1:1:
1 is not 2


failures:
    rooms::bare
    rooms::bad

test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
    let not_run = |why: &str| TestOutcome::NotRun(why.to_owned());
    let wanted = [
        ("good", TestOutcome::Passed),
        ("left", not_run("ignored, takes an hour")),
        ("rooms::bad", TestOutcome::Failed),
        ("rooms::bare", not_run("missing: Python clients")),
    ];
    let outcomes = read_outcomes(output);
    assert_eq!(outcomes, wanted.map(|(name, outcome)| (name.to_owned(), outcome)).into_iter().collect());
    let one = Declaration {
        client: "somebody".to_owned(),
        kind: ClientKind::Itself,
        package: "vgpu-tests",
        program: "rooms".to_owned(),
        test: "bare".to_owned(),
        file: "tests/tests/rooms.rs".to_owned(),
    };
    let page = format_page(&[(one, outcomes["rooms::bare"].clone())], "2026-01-02", "abc");
    assert!(page.contains("\n1 rows: 0 ok, 0 failed, 1 not run.\n"), "{page}");
    let row =
        "| somebody | - | itself | bare | not run: missing: Python clients | 2026-01-02 | `tests/tests/rooms.rs` |";
    assert!(page.contains(row), "{page}");
}

#[test]
fn a_declaration_belongs_to_its_test_or_to_every_test_of_its_file() {
    // Indented, so that nothing here is a declaration of this file.
    let text = "
        //! A file.
        //!
        //! Calls of: everybody.

        #[test]
        fn first() {}

        /// Words.
        ///
        /// Client: one
        /// Calls of: another (in a way)
        #[test]
        #[ignore]
        fn second() {}

        fn helper() {}
    "
    .replace("\n        ", "\n");
    let calls = |client: &str| (ClientKind::Calls, client.to_owned());
    let wanted: BTreeMap<String, _> = [
        ("first".to_owned(), vec![calls("everybody")]),
        ("second".to_owned(), vec![(ClientKind::Itself, "one".to_owned()), calls("another (in a way)")]),
    ]
    .into();
    assert_eq!(read_declarations("a.rs", &text).into_iter().collect::<BTreeMap<_, _>>(), wanted);
    let stray = std::panic::catch_unwind(|| read_declarations("a.rs", "/// Client: one\nfn helper() {}\n"));
    assert!(stray.is_err(), "a declaration that no test has");
}

/// A result that somebody writes into the table of engines by hand would be in no list.
#[test]
fn the_page_of_engines_is_what_the_results_of_its_declared_tests_give() {
    let text = Page::read(MATRIX_PATH).text;
    let (head, list) = text.split_once("## The tests").expect("the list of tests");
    let rows = table_rows(list);
    let declared = find_cells();
    let told = |one: &CellDeclaration| {
        let cell = &one.cell;
        let (engine, contract, effect) = (cell.engine.to_owned(), cell.contract.to_owned(), cell.effect.to_string());
        [engine, contract, effect, one.promise(), format!("`{}`", one.file)]
    };
    let wanted: Vec<_> = declared.iter().map(told).collect();
    let listed: Vec<_> = rows.iter().map(|row| [0, 1, 2, 3, 5].map(|at| row[at].clone())).collect();
    assert_eq!(listed, wanted, "{MATRIX_PATH} has other tests than the source tree: make compatibility");
    let results: Vec<_> = declared.into_iter().zip(rows.iter().map(|row| outcome(&row[4]))).collect();
    let (_, run) = head.split_once("The last run was on ").expect("the date");
    let (date, run) = run.split_once(", with\ncommit ").expect("the commit");
    let commit = run.split_once(".\n").expect("the end").0;
    assert_eq!(text, format_matrix(&results, date, commit), "{MATRIX_PATH} is not what its results give");
}

#[test]
fn a_field_of_the_page_of_engines_has_the_effects_of_passed_tests_and_each_failure() {
    // Indented, so that nothing here is a declaration of this file.
    let text = "
        /// Words.
        ///
        /// Engine: Docker, ours: refused
        /// Engine: Docker, HAMi: view
        #[tokio::test]
        async fn first() {}

        # Engine: Docker, ours: enforced
        def test_second(node):

        # Engine: Ray, KAI GPU_PORTION: no limit
        step \"a third\" true
    "
    .replace("\n        ", "\n");
    let found = read_cells("a.rs", &text);
    let names: Vec<_> = found.iter().map(|(name, cells)| (name.as_str(), cells.len())).collect();
    assert_eq!(names, [("first", 2), ("test_second", 1), ("a third", 1)]);
    for wrong in ["/// Engine: Docker, ours: held\nfn a() {}", "/// Engine: Docker, ours: view\nstruct A;"] {
        assert!(std::panic::catch_unwind(|| read_cells("a.rs", wrong)).is_err(), "{wrong}");
    }
    let page = |outcomes: [TestOutcome; 4]| {
        let cells = found.iter().flat_map(|(_, cells)| cells.clone());
        let declared = cells.map(|cell| CellDeclaration { cell, ..find_cells().remove(0) });
        format_matrix(&declared.zip(outcomes).collect::<Vec<_>>(), "2026-01-02", "abc")
    };
    let not_run = || TestOutcome::NotRun("missing: Ray".to_owned());
    let text = page([TestOutcome::Passed, not_run(), TestOutcome::Passed, not_run()]);
    assert!(text.contains("\n| Docker | enforced, refused | not run | not tried | not tried |"), "{text}");
    assert!(text.contains("\n| Ray | not tried | not tried | not tried | not run |"), "{text}");
    assert!(text.contains(" | not run: missing: Ray | `"), "{text}");
    let text = page([TestOutcome::Passed, not_run(), TestOutcome::Failed, TestOutcome::Passed]);
    assert!(text.contains("\n| Docker | **FAILED** | not run |"), "{text}");
    assert!(text.contains("\n| Ray | not tried | not tried | not tried | no limit |"), "{text}");
}

#[test]
fn results_of_pytest_and_of_a_scripts_steps_are_read_and_the_worst_parameter_counts() {
    let output = "\
.F.                                            [100%]
PASSED tests/test_a.py::test_good
PASSED tests/test_a.py::test_each[one]
FAILED tests/test_a.py::test_each[two] - assert 1 == 2
PASSED tests/test_a.py::test_each[three]
ERROR tests/test_a.py::test_bare - AssertionError: required and missing: tests/setup/kubernetes
";
    let not_run = TestOutcome::NotRun("missing: tests/setup/kubernetes".to_owned());
    let wanted = [("test_bare", not_run), ("test_each", TestOutcome::Failed), ("test_good", TestOutcome::Passed)];
    assert_eq!(read_pytest_outcomes(output), wanted.map(|(name, one)| (name.to_owned(), one)).into());
    let steps = "ok   it starts\nnoise\nBAD  it is held (exit 1): more\n";
    let wanted = [("it is held", TestOutcome::Failed), ("it starts", TestOutcome::Passed)];
    assert_eq!(read_step_outcomes(steps), wanted.map(|(name, one)| (name.to_owned(), one)).into());
}
