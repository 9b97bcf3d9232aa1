//! State that a forked child of a program would inherit from its parent: a lock may be held by a thread that the child
//! does not have.

use std::fs;
use std::path::{Path, PathBuf};
use vgpu_tests::artefacts::checkout;

/// The library's source files without unit tests.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of the checkout") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.file_stem().is_some_and(|name| name != "tests" && name != "lock") {
            found.push(path);
        }
    }
}

/// Names of the statics in the source that are locks, or hold some.
fn locks(text: &str) -> Vec<&str> {
    let statics = text.lines().filter_map(|line| {
        let (before, rest) = line.split_once("static ")?;
        before.split(' ').all(|word| word.is_empty() || word.starts_with("pub")).then_some(rest)
    });
    statics.filter(|rest| rest.contains("Lock<")).filter_map(|rest| rest.split(':').next()).collect()
}

/// The text of the functions that a forked child's first call runs.
fn resets(text: &str) -> String {
    let bodies = text.split("fn reset_after_fork(").skip(1);
    bodies.map(|rest| rest.split("\n}").next().unwrap_or_default()).collect()
}

/// The unchecked locks of a source file.
fn left_out(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let resets = resets(text);
    locks(text).into_iter().filter(|name| !resets.contains(*name)).map(str::to_owned).collect()
}

#[test]
fn each_lock_of_the_library_is_reset_in_a_forked_child_by_the_module_that_has_it() {
    let mut files = Vec::new();
    sources(&checkout().join("libvgpu/src"), &mut files);
    let (mut seen, mut wrong) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        seen += locks(&text).len();
        wrong.extend(left_out(&text).into_iter().map(|name| format!("{}: {name}", file.display())));
    }
    assert!(seen > 15, "{seen} locks");
    assert!(wrong.is_empty(), "reset_after_fork of their module does not reset these: {wrong:#?}");
}

#[test]
fn a_lock_that_no_function_resets_is_seen() {
    let reset = "pub static A: Lock<u8> = x;\npub fn reset_after_fork() {\n    A.reset(0);\n}\n";
    assert!(left_out(reset).is_empty());
    assert_eq!(left_out(&reset.replace("A.reset(0)", "B.reset(0)")), ["A"]);
    assert_eq!(left_out("static ALL: [Lock<u8>; 2] = x;\n"), ["ALL"]);
}
