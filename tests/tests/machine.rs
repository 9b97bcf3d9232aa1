//! Code for one machine architecture is in one file per side: the library's, the command line's, the build's.

use std::fs;
use std::path::Path;

/// Paths in which an architecture may be named, with the reason.
const PLACES: [(&str, &str); 10] = [
    ("libvgpu/src/ffi/arch.rs", "chooses the library's file"),
    ("libvgpu/src/ffi/arch/", "the library's side: registers, and what only assembly can say"),
    ("scheduler-sidecar/cli/src/arch.rs", "the command line's side: machines of files, and their loaders"),
    ("libvgpu/build.rs", "the machine for which rustc links with lld"),
    ("make/arch.mk", "the build's side: what Debian calls a machine"),
    ("make/aarch64", "the build for another machine, tried under an emulator"),
    ("tests/setup/", "what that needs"),
    ("deny.toml", "data that another tool reads too: for which machine dependencies are looked at"),
    ("tests/mutants", "names the library's file"),
    ("tests/tests/", "this test, and fixtures: what a program of this machine needs"),
];

/// Texts that show that a line is for one architecture.
const SIGNS: [&str; 8] = ["x86_64", "x86-64", "aarch64", "amd64", "asm!(", "EM_X86", "EM_AARCH", "target_arch"];

#[test]
fn nothing_names_a_machine_but_one_file_on_each_side() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    texts(&root, &root, &mut |path, text| {
        let named = |line: &str| SIGNS.iter().any(|sign| line.contains(sign));
        found.extend(text.lines().filter(|line| named(line)).map(|line| format!("{path}: {}", line.trim())));
    });
    let strangers: Vec<&String> =
        found.iter().filter(|line| !PLACES.iter().any(|(place, _)| line.starts_with(place))).collect();
    assert!(strangers.is_empty(), "these name a machine: {strangers:#?}");
    for (place, why) in PLACES {
        assert!(found.iter().any(|line| line.starts_with(place)), "{place} ({why}) names none any more");
    }
}

/// Visits every text file of the source tree, except pages, which list supported platforms, and build outputs.
fn texts(root: &Path, dir: &Path, look: &mut impl FnMut(&str, &str)) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let kind = entry.file_type().unwrap();
        let made = name.starts_with('.') || name == "target" || name == "__pycache__";
        if kind.is_dir() && !made {
            texts(root, &path, look);
        } else if kind.is_file()
            && !name.ends_with(".md")
            && !name.ends_with(".lock")
            && let Ok(text) = fs::read_to_string(&path)
        {
            look(&path.strip_prefix(root).unwrap().to_string_lossy(), &text);
        }
    }
}
