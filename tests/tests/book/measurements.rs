//! Checks that docs/measurements keeps reports and pictures, and no raw measurement data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vgpu_tests::artefacts::checkout;

/// Size limit of a kept file. A picture of 24 panels over time takes 180 KiB.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// Paths in a directory of the source tree.
fn entries(path: &Path) -> Vec<PathBuf> {
    let list = std::fs::read_dir(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    list.map(|entry| entry.expect("an entry").path()).collect()
}

/// Kind of a run on the simulated device: `shares` for `2026-11-23-shares-simulated-2`.
fn kind(name: &str) -> Option<&str> {
    let (kind, rest) = name.get("2026-11-23-".len()..)?.rsplit_once("-simulated")?;
    rest.trim_end_matches(".md").trim_start_matches('-').chars().all(|letter| letter.is_ascii_digit()).then_some(kind)
}

#[test]
fn one_run_of_each_kind_is_kept_with_its_pictures_and_their_numbers() {
    let (mut kinds, mut files) = (BTreeMap::<String, usize>::new(), Vec::new());
    for path in entries(&checkout().join("docs/measurements")) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(kind) = kind(&name) else { continue };
        *kinds.entry(kind.to_owned()).or_default() += 1;
        files.extend(if path.is_dir() { entries(&path) } else { vec![path] });
    }
    assert!(kinds.contains_key("shares") && kinds.contains_key("daemon"), "{kinds:?}");
    let wrong: Vec<_> = kinds.iter().filter(|(_, runs)| **runs > 1).collect();
    assert!(wrong.is_empty(), "docs/measurements/README.md: only the newest run of a kind is kept: {wrong:?}");
    for file in files {
        let ending = file.extension().unwrap_or_default().to_string_lossy().into_owned();
        let shown = file.display();
        assert!(["md", "svg", "csv"].contains(&&*ending), "{shown}: only reports, pictures and their numbers are kept");
        assert!(ending != "svg" || file.with_extension("csv").exists(), "{shown}: there is no CSV beside it");
        let bytes = std::fs::metadata(&file).expect("a file").len();
        assert!(bytes <= MAX_FILE_BYTES, "{shown}: {bytes} bytes, more than {MAX_FILE_BYTES}");
    }
}
