//! Checks a property of the sources that no formatter enforces: the width of comments.

use std::path::{Path, PathBuf};
use vgpu_tests::artefacts::checkout;

/// Widest line in columns, as `max_width` in rustfmt.toml and `max_line_length` in .editorconfig. The stable rustfmt
/// does not wrap comments.
const MAX_COLUMNS: usize = 120;

/// Number of wider comment lines that may remain. It only decreases: each rewritten comment is wrapped.
const WIDE_LINES_LEFT: usize = 1_040;

/// Rust files below a directory of the source tree.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory of the checkout") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

#[test]
fn comments_are_no_wider_than_code() {
    let mut files = Vec::new();
    sources(checkout(), &mut files);
    let mut wide = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).expect("a source");
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") && line.chars().count() > MAX_COLUMNS {
                wide.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(files.len() > 300, "{} sources were read", files.len());
    assert!(
        wide.len() <= WIDE_LINES_LEFT,
        "{} comment lines are wider than {MAX_COLUMNS} columns, {WIDE_LINES_LEFT} may be; the last ones: {:#?}",
        wide.len(),
        wide.iter().rev().take(5).collect::<Vec<_>>()
    );
}
