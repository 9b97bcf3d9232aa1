//! Tests that the make targets and variables in the documents exist. Links, commands and messages are tested in
//! tests/tests/book.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn documents() -> Vec<(PathBuf, String)> {
    let beside = |dir: PathBuf| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let all =
        beside(checkout().into()).chain(beside(checkout().join("docs"))).chain(beside(checkout().join("examples")));
    let texts = all.filter(|path| path.extension().is_some_and(|end| end == "md"));
    texts.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

fn words<'a>(text: &'a str, start: &str) -> BTreeSet<&'a str> {
    let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !name(c)).filter(|word| word.starts_with(start)).collect()
}

#[test]
fn every_make_target_that_is_named_exists() {
    let help = Command::new("make").arg("help").current_dir(checkout()).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let targets: BTreeSet<&str> = help.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert!(targets.contains("demo") && targets.contains("test"), "{help}");
    for (path, text) in documents() {
        for rest in text.split("`make ").skip(1).chain(text.split("\nmake ").skip(1)) {
            let end =
                rest.find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '-').unwrap_or(rest.len());
            let target = &rest[..end];
            assert!(target.is_empty() || targets.contains(target), "{}: make {target}", path.display());
        }
    }
}

#[test]
fn every_variable_of_the_readme_is_read_by_the_code() {
    let mut code = String::new();
    for dir in ["vgpu-core/src/limits", "vgpu-core/src/limits/variables", "libvgpu/src"] {
        for entry in fs::read_dir(checkout().join(dir)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "rs") {
                code.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    let known = words(&code, "VGPU_");
    let readme = fs::read_to_string(checkout().join("README.md")).unwrap();
    let named = words(&readme, "VGPU_");
    assert!(named.len() > 8, "{named:?}");
    for name in named {
        let base = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
        assert!(known.contains(base) || known.contains(name), "README.md: {name} is read nowhere");
    }
}
