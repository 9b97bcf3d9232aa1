//! Checks properties of the comments that no formatter enforces: their width, and the names in their links.

use std::path::{Path, PathBuf};
use vgpu_tests::artefacts::checkout;

/// Widest line in columns, as `max_width` in rustfmt.toml and `max_line_length` in .editorconfig. The stable rustfmt
/// does not wrap comments.
const MAX_COLUMNS: usize = 120;

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

/// Every comment line of the source tree with its place.
fn comment_lines() -> Vec<(String, String)> {
    let mut files = Vec::new();
    sources(checkout(), &mut files);
    assert!(files.len() > 300, "{} sources were read", files.len());
    let lines_of = |file: PathBuf| {
        let text = std::fs::read_to_string(&file).expect("a source");
        let lines: Vec<_> = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//")).collect();
        let place = |(number, line): (usize, &str)| (format!("{}:{}", file.display(), number + 1), line.to_owned());
        lines.into_iter().map(place).collect::<Vec<_>>()
    };
    files.into_iter().flat_map(lines_of).collect()
}

#[test]
fn comments_are_no_wider_than_code() {
    let wide = |(_, line): &(String, String)| line.chars().count() > MAX_COLUMNS;
    let wide: Vec<_> = comment_lines().into_iter().filter(wide).map(|(place, _)| place).collect();
    assert!(wide.is_empty(), "wider than {MAX_COLUMNS} columns: {wide:#?}");
}

/// The text and the target of each link of a comment line whose text is code: [`b`](a::b).
fn links_of(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split("[`").skip(1).filter_map(|rest| {
        let (text, rest) = rest.split_once("`](")?;
        Some((text, rest.split_once(')')?.0))
    })
}

/// The last name of a path: of `A::b()` it is `b`, of `mod@c` it is `c`.
fn last_name(path: &str) -> &str {
    let name = path.rsplit(['/', ':', '@']).next().unwrap_or(path);
    name.trim_end_matches(['(', ')', '!'])
}

/// A rename that corrects the target of a link can leave its text behind.
#[test]
fn a_link_names_the_item_that_it_leads_to() {
    assert_eq!(links_of("see [`A::b`](c::A::d) and [`e!`](crate::e)").count(), 2);
    let mut seen = 0;
    let mut stale = Vec::new();
    for (place, line) in comment_lines() {
        for (text, target) in links_of(&line).filter(|(_, target)| !target.starts_with("http")) {
            seen += 1;
            if last_name(text) != last_name(target) {
                stale.push(format!("{place}: {text} leads to {target}"));
            }
        }
    }
    assert!(seen > 20, "{seen} links were read");
    assert!(stale.is_empty(), "{stale:#?}");
}
