//! Compares the table of variables (vgpu-core/src/limits/variables/table.rs) with the sources and with
//! docs/environment.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use vgpu_core::limits::variables::{AcceptedValue, VARIABLES, VariableEffect, VariableOwner, VariableRow, find};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Source directories of the product, and of the code that tests are built from.
const PRODUCTS: [&str; 11] = [
    "libvgpu/src",
    "vgpu-core/src",
    "shim-sys/src",
    "sim",
    "tests/src",
    "scheduler-sidecar/output/src",
    "scheduler-sidecar/config/src",
    "scheduler-sidecar/control/src",
    "scheduler-sidecar/accounting/src",
    "scheduler-sidecar/daemon/src",
    "scheduler-sidecar/cli/src",
];

/// Every name in the product's sources that looks like one of our environment variables has a row in `TABLE`.
#[test]
fn every_variable_in_the_sources_has_a_row() {
    let mut unknown = BTreeSet::new();
    for place in PRODUCTS {
        sources(&root().join(place), &mut |path, text| {
            for (at, _) in text.match_indices("VGPU_") {
                if text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$') {
                    continue;
                }
                let rest = &text[at..];
                let end = rest.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
                let name = &rest[..end.unwrap_or(rest.len())];
                // Skips the prefix of several names (`VGPU_SIM_`).
                if !name.ends_with('_') && find(name.as_bytes()).is_none() {
                    unknown.insert(format!("{name} in {}", path.display()));
                }
            }
        });
    }
    assert_eq!(unknown, BTreeSet::new());
}

/// Every variable that the tests and scripts of the source tree read or pass on has a row too. Otherwise the doctor
/// would report it as misspelt.
#[test]
fn every_variable_that_the_checkout_reads_has_a_row() {
    let mut unknown = BTreeSet::new();
    let mut look = |path: &Path, text: &str| {
        let script = path.extension().is_none_or(|extension| extension != "rs");
        // Texts before a variable where shells, make, Python and Rust read or set one. A test that sets a wrong name on
        // purpose matches none of them.
        let before =
            ["${", "$", "echo \"", "environ[\"", "var(\"", "var_os(\"", "setting(\"", "part(\"", "    ", "\t", " "];
        for (at, _) in text.match_indices("VGPU_") {
            let name: String =
                text[at..].chars().take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_').collect();
            let (head, rest) = (&text[..at], &text[at + name.len()..]);
            let reads = before[..8].iter().any(|begin| head.ends_with(begin));
            let sets = script && rest.starts_with('=') && before[8..].iter().any(|begin| head.ends_with(begin));
            let beginning = name.ends_with('_') || rest.starts_with(['$', '{']);
            let per_device = name
                .rsplit_once('_')
                .is_some_and(|(row, number)| number.parse::<u32>().is_ok() && find(row.as_bytes()).is_some());
            if (reads || sets) && !beginning && !per_device && find(name.as_bytes()).is_none() {
                unknown.insert(format!("{name} in {}", path.display()));
            }
        }
    };
    for place in ["tests", "make", "benches", "fuzz", "examples"] {
        files(&root().join(place), &mut look);
    }
    assert_eq!(unknown, BTreeSet::new());
}

/// Visits every text file of the source tree below a directory.
fn files(dir: &Path, look: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if name != "target" && name != "corpus" {
                files(&path, look);
            }
        } else if let Ok(text) = fs::read_to_string(&path) {
            look(&path, &text);
        }
    }
}

fn sources(dir: &Path, look: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, look);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            look(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

const BEGIN: &str = "<!-- generated from vgpu-core/src/limits/variables/table.rs: from here on -->\n";

/// The page's tables, generated from the rows.
fn page() -> String {
    let mut page = String::new();
    for (owner, title) in [
        (VariableOwner::Library, "The library's own"),
        (VariableOwner::Hami, "HAMi's, and Volcano's vGPU plugin's"),
        (VariableOwner::Volcano, "Volcano's older GPU sharing"),
        (VariableOwner::Kai, "KAI's (Run:ai's)"),
        (VariableOwner::Manager, "vgpu-manager's"),
        (VariableOwner::Nvidia, "NVIDIA's"),
        (VariableOwner::Tools, "`vgpu` and `vgpud`"),
        (VariableOwner::Simulator, "The simulated device"),
        (VariableOwner::Checkout, "Building and testing"),
    ] {
        page.push_str(&format!("\n## {title}\n\n| variable | accepted | what it does |\n|---|---|---|\n"));
        for row in VARIABLES.iter().filter(|row| row.owner == owner) {
            page.push_str(&line(row));
        }
    }
    page
}

fn line(row: &VariableRow) -> String {
    let name = if row.per_device { format!("`{0}`, `{0}_<i>`", row.name) } else { format!("`{}`", row.name) };
    let accepted = match row.accepted {
        AcceptedValue::Words(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
        AcceptedValue::Text(text) => text.to_owned(),
    };
    match row.effect {
        VariableEffect::Honoured(how) => format!("| {name} | {accepted} | {how} |\n"),
        VariableEffect::Ignored(why) => format!("| {name} | {accepted} | *no effect:* {why} |\n"),
    }
}

#[test]
fn the_page_has_every_variable_of_the_table_and_no_other() {
    let path = root().join("docs/environment.md");
    let there = fs::read_to_string(&path).unwrap();
    let (prose, _) = there.split_once(BEGIN).expect("the mark of the generated part");
    let wanted = format!("{prose}{BEGIN}{}", page());
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap();
    assert!(there == wanted, "{} is not what the table says; UPDATE=1 rewrites it", path.display());
    for row in VARIABLES {
        assert!(there.contains(&format!("| `{}`", row.name)), "{}", row.name);
    }
}
