//! Checks that every variable, metric, event kind and configuration key on the pages has its row in the reference.
//!
//! Not here: that each reference lists every row and no other. The tests of scheduler-sidecar/ and variables.rs check
//! that.

use crate::pages::{self, Page};
use std::collections::BTreeSet;

/// Names in backticks in the first cells of a page's tables.
fn rows(page: &str) -> BTreeSet<String> {
    let text = Page::read(page).text;
    let cells = text.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split(" | ").next());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Words of a text that start with `begin`.
fn words<'t>(text: &'t str, begin: &str) -> impl Iterator<Item = &'t str> {
    let name = |c: char| c.is_ascii_alphanumeric() || "_.".contains(c);
    text.split(move |c| !name(c)).map(|word| word.trim_end_matches('.')).filter(move |word| word.starts_with(begin))
}

#[test]
fn every_variable_that_a_page_names_has_its_row() {
    let rows = rows("docs/environment.md");
    assert!(rows.len() > 60);
    for page in pages::book() {
        for word in ["VGPU_", "CUDA_DEVICE_", "GPU_CORE_"].iter().flat_map(|begin| words(&page.text, begin)) {
            // `VGPU_MEMORY_LIMIT_0` is covered by the row of `VGPU_MEMORY_LIMIT`; `VGPU_` alone is a prefix.
            let base = word.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
            let known = rows.contains(word) || rows.contains(base) || base == "VGPU" || base == "CUDA_DEVICE";
            assert!(known, "{}: {word} has no row in docs/environment.md", page.name());
        }
    }
}

#[test]
fn every_metric_that_a_page_names_has_its_row() {
    let rows = rows("docs/metrics.md");
    assert!(rows.len() > 25);
    for page in pages::book() {
        for word in
            ["vgpu_tenant_", "vgpu_device_", "hami_", "vGPU_device_"].iter().flat_map(|begin| words(&page.text, begin))
        {
            let key = word == "hami_names";
            assert!(
                key || rows.contains(word.strip_suffix("_bucket").unwrap_or(word)),
                "{}: {word} has no row in docs/metrics.md",
                page.name()
            );
        }
    }
}

#[test]
fn every_event_that_a_page_names_has_its_row() {
    let rows = rows("docs/observing.md");
    assert!(rows.len() > 20);
    for page in pages::book() {
        for begin in ["`proof.", "`member.", "`tenant.", "`config."] {
            for rest in page.text.split(begin).skip(1) {
                let name = format!("{}{}", &begin[1..], rest.split(['`', ' ']).next().unwrap_or_default());
                assert!(rows.contains(&name), "{}: {name} has no row in docs/observing.md", page.name());
            }
        }
    }
}

#[test]
fn the_glossary_has_every_word_once() {
    let page = Page::read("docs/glossary.md");
    let cells = page.text.lines().filter(|line| line.starts_with("| **")).filter_map(|line| line.split(" | ").next());
    let words: Vec<&str> = cells.flat_map(|cell| cell.split("**").skip(1).step_by(2)).collect();
    for word in [
        "tenant",
        "member",
        "device",
        "ordinal",
        "memory limit",
        "charge",
        "release",
        "reservation",
        "ledger",
        "overhead",
        "reclaim",
        "sm request",
        "sm limit",
        "device time",
        "balance",
        "refill",
        "burst",
        "debt",
        "meter",
        "governor",
        "arbiter",
        "lease",
        "epoch",
        "quantum",
        "class",
        "row",
        "hook",
        "real",
        "substitute",
        "view",
    ] {
        assert_eq!(words.iter().filter(|there| **there == word).count(), 1, "{word}");
    }
}
