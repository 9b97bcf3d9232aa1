//! The Markdown subset that these tests need: pages, headings with anchors, links, fenced blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use vgpu_tests::artefacts::checkout;

/// A Markdown file of the source tree.
pub struct Page {
    /// Path relative to the root of the source tree.
    pub path: PathBuf,
    pub text: String,
}

/// A fenced block of code in a page.
#[derive(Clone, Debug)]
pub struct Block {
    /// `sh`, `console`, `toml`; empty if the fence names no language.
    pub language: String,
    /// Number of the block's first line, counted from 1.
    pub line: usize,
    pub text: String,
    /// HTML comment in the line before the fence.
    pub mark: Option<String>,
}

impl Page {
    pub fn read(path: &str) -> Page {
        let text = fs::read_to_string(checkout().join(path)).unwrap_or_else(|why| panic!("{path}: {why}"));
        Page { path: path.into(), text }
    }

    pub fn name(&self) -> &str {
        self.path.to_str().expect("a path in UTF-8")
    }

    pub fn blocks(&self) -> Vec<Block> {
        let (mut blocks, mut open, mut before) = (Vec::new(), None::<Block>, "");
        for (number, line) in self.text.lines().enumerate() {
            let fence = line.trim_start().strip_prefix("```");
            match (&mut open, fence) {
                (None, Some(language)) => {
                    let mark = before.trim().strip_prefix("<!--").and_then(|text| text.strip_suffix("-->"));
                    let mark = mark.map(|text| text.trim().to_owned());
                    open =
                        Some(Block { language: language.trim().into(), line: number + 2, text: String::new(), mark });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(block), None) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, None) => {}
            }
            before = line;
        }
        assert!(open.is_none(), "{}: a fence is not closed", self.name());
        blocks
    }

    /// The page's lines outside fenced blocks.
    fn prose(&self) -> impl Iterator<Item = &str> {
        let mut inside = false;
        self.text.lines().filter(move |line| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        })
    }

    /// Headings as written, without the leading `#`.
    pub fn headings(&self) -> impl Iterator<Item = &str> {
        let level = |line: &str| line.len() - line.trim_start_matches('#').len();
        self.prose()
            .filter(move |line| (1..=6).contains(&level(line)) && line[level(line)..].starts_with(' '))
            .map(move |line| line[level(line)..].trim())
    }

    /// Anchors that a link to this page may name after `#`.
    pub fn anchors(&self) -> BTreeSet<String> {
        let (mut anchors, mut seen) = (BTreeSet::new(), BTreeMap::new());
        for heading in self.headings() {
            let slug = slug(heading);
            let times: &mut usize = seen.entry(slug.clone()).or_default();
            anchors.insert(if *times == 0 { slug } else { format!("{slug}-{times}") });
            *times += 1;
        }
        for line in self.prose() {
            anchors.extend(line.split("<a id=\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
        anchors
    }

    /// Targets of the page's links.
    pub fn links(&self) -> Vec<String> {
        let prose = self.prose().map(|line| without_code(line) + "\n").collect::<String>();
        prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
    }
}

/// The line with the text in backticks removed.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Anchor of a heading, as forges and mdBook derive it.
fn slug(heading: &str) -> String {
    let (mut text, mut tag) = (String::new(), false);
    for letter in heading.chars() {
        match letter {
            '<' => tag = true,
            '>' if tag => tag = false,
            _ if tag => {}
            _ => text.push(letter),
        }
    }
    // Keeps a link's text and drops its target.
    while let Some((before, rest)) = text.split_once("](") {
        let after = rest.split_once(')').map_or("", |(_, after)| after);
        text = before.replacen('[', "", 1) + after;
    }
    let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of the checkout") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" {
            continue;
        }
        match path.is_dir() {
            true if !path.is_symlink() => below(&path, found),
            false if name.ends_with(".md") => found.push(path),
            _ => {}
        }
    }
}

/// Every Markdown file of the source tree, in order.
pub fn every() -> Vec<Page> {
    let mut found = Vec::new();
    below(checkout(), &mut found);
    found.sort();
    let name = |path: &PathBuf| path.strip_prefix(checkout()).expect("below").to_str().expect("UTF-8").to_owned();
    found.iter().map(|path| Page::read(&name(path))).collect()
}

/// Pages for reading: README and docs/, without the records of measurements.
pub fn book() -> Vec<Page> {
    let measured = |page: &Page| page.path.starts_with("docs/measurements");
    let read = |page: &Page| page.path == Path::new("README.md") || page.path.starts_with("docs");
    every().into_iter().filter(|page| read(page) && !measured(page)).collect()
}
