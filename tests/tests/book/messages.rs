//! Checks troubleshooting by message: each message in the tables exists in a program, and every message of the library
//! has an entry.

use crate::pages::Page;
use std::fs;
use std::path::Path;
use vgpu_tests::artefacts::checkout;

/// A heading of docs/troubleshooting.md whose table lists messages, and the sources that contain them.
const SECTIONS: &[(&str, &[&str])] = &[
    ("The library: a value is not understood", &["vgpu-core/src", "libvgpu/src"]),
    ("The library: a limit cannot be kept", &["libvgpu/src", "vgpu-core/src", "shim-sys/src"]),
    ("The library: bypasses", &["libvgpu/src"]),
    ("The library: the daemon", &["libvgpu/src"]),
    (
        "vgpud",
        &[
            "scheduler-sidecar/daemon/src",
            "scheduler-sidecar/config/src",
            "scheduler-sidecar/control/src",
            "scheduler-sidecar/accounting/src",
            "scheduler-sidecar/output/src",
            "scheduler-sidecar/cli/src",
        ],
    ),
    ("vgpu", &["scheduler-sidecar/cli/src", "scheduler-sidecar/output/src"]),
];

/// Messages of `vgpud` and `vgpu` that users meet first. The library's messages need no such list: all of them are
/// found in its sources.
const CHOSEN: &[&str] = &[
    "no daemon answers at",
    "only the daemon's user and root may ask",
    "does not answer within 2 s",
    "is it older than this program? restart it",
    "not mapped in",
    "it is a static program: no loader runs",
    "its loader is musl's",
    "without a path, and the loader does not find it; it must be an absolute path",
    "which does not exist; the loader only complains and goes on without limits",
    "LD_PRELOAD is not set and /etc/ld.so.preload does not name it",
    "it is started with more rights than its caller has",
    "is built on musl (as Alpine is)",
    "this tenant is not served; the others are",
    "the driver cannot be asked again",
    "the terms file cannot be written",
    "the audit log cannot be written",
    "no metrics over HTTP",
    "enforcement cannot be fully proved",
    "is not a key",
];

/// Literals of the library with four words or more that no user sees: reasons of impossible panics, and texts of
/// compile-time attributes.
const INSIDE: &[&str] = &[
    "the index stays half empty",
    "a name holds no zero byte",
    "a function of the driver has a name like cuInit",
    "a function of NVML has a name like nvmlInit",
    "a subject of the table that nobody has judged",
    "a row of copies whose words nobody has told",
    "libvgpu has no file for this machine yet: libvgpu/src/ffi/arch.rs says what one has to say",
];

fn sources(path: &Path, all: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(path).unwrap_or_else(|why| panic!("{}: {why}", path.display())) {
        let path = entry.expect("an entry").path();
        let name = path.display().to_string();
        if path.is_dir() {
            sources(&path, all);
        } else if name.ends_with(".rs") && !name.ends_with("/tests.rs") {
            let text = fs::read_to_string(&path).expect("a source");
            all.push((name, text.split("mod tests {").next().unwrap_or_default().to_owned()));
        }
    }
}

/// String literals of Rust source text, with continued lines joined. Comments and attributes are skipped.
fn literals(text: &str) -> Vec<String> {
    let (mut found, mut letters) = (Vec::new(), text.chars().peekable());
    let mut line = String::new();
    while let Some(letter) = letters.next() {
        match letter {
            '\n' => line.clear(),
            '/' if letters.peek() == Some(&'/') => {
                letters.by_ref().find(|letter| *letter == '\n');
                line.clear();
            }
            // A character literal, not a lifetime.
            '\'' if letters.clone().nth(1) == Some('\'') || letters.peek() == Some(&'\\') => {
                let escaped = letters.next() == Some('\\');
                letters.by_ref().skip(usize::from(escaped)).find(|letter| *letter == '\'');
            }
            '"' => {
                let mut literal = String::new();
                while let Some(letter) = letters.next() {
                    match letter {
                        '"' => break,
                        '\\' => match letters.next() {
                            Some('\n') => while letters.next_if(|letter| letter.is_whitespace()).is_some() {},
                            Some('n') => literal.push('\n'),
                            Some(other) => literal.push(other),
                            None => break,
                        },
                        _ => literal.push(letter),
                    }
                }
                if !line.trim_start().starts_with("#[") {
                    found.push(literal);
                }
            }
            _ => line.push(letter),
        }
    }
    found
}

/// The constant parts of a literal, between its placeholders.
fn fixed(literal: &str) -> Vec<String> {
    let (mut parts, mut part, mut depth) = (Vec::new(), String::new(), 0_u32);
    for letter in literal.chars() {
        match letter {
            '{' => {
                depth += 1;
                parts.push(std::mem::take(&mut part));
            }
            '}' => depth = depth.saturating_sub(1),
            _ if depth == 0 => part.push(letter),
            _ => {}
        }
    }
    parts.push(part);
    parts
}

/// Everything in backticks in the first cell of each row below a heading.
fn messages(page: &str, heading: &str) -> Vec<String> {
    let (_, after) = page.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no heading {heading}"));
    let part = after.split("\n## ").next().unwrap_or_default();
    let cells = part.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line[2..].split(" | ").next());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn every_message_of_the_page_is_one_that_the_programs_say() {
    let (page, mut wrong) = (Page::read("docs/troubleshooting.md").text, Vec::new());
    for (heading, dirs) in SECTIONS {
        let mut all = Vec::new();
        dirs.iter().for_each(|dir| sources(&checkout().join(dir), &mut all));
        let said: Vec<String> = all.iter().flat_map(|(_, text)| literals(text)).collect();
        let messages = messages(&page, heading);
        assert!(messages.len() > 4, "{heading}: {messages:?}");
        for message in messages {
            let parts: Vec<&str> = message.split("...").map(|part| part.trim_matches(['"', ' ', ';'])).collect();
            let parts: Vec<&str> = parts.into_iter().filter(|part| part.len() > 5).collect();
            assert!(!parts.is_empty(), "{heading}: `{message}` says nothing");
            for part in parts {
                // The two parts may come from different literals.
                let there = |part: &str| said.iter().any(|literal| fixed(literal).join("...").contains(part));
                // Messages composed of several literals: a key with its fault, and the accepted values.
                let half = |half: &str| {
                    let after = |begin| half.split_once(begin).map_or(half, |(_, rest)| rest);
                    half.len() < 6
                        || [half, after("accepted: "), after(" "), half.trim_end_matches(':')].into_iter().any(there)
                };
                let whole = there(part) || part.split("; ").all(half);
                if !whole {
                    wrong.push(format!("{heading}: nobody in {dirs:?} says `{part}` of `{message}`"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn everything_that_the_library_says_can_be_looked_up() {
    let (page, mut wrong) = (Page::read("docs/troubleshooting.md").text, Vec::new());
    let mut all = Vec::new();
    sources(&checkout().join("libvgpu/src"), &mut all);
    let mut count = 0;
    for (file, text) in &all {
        for literal in literals(text) {
            let words =
                literal.split(' ').filter(|word| word.len() > 1 && word.chars().all(|c| c.is_ascii_lowercase()));
            // Assembly instructions are literals too.
            if words.count() < 4 || literal.contains(" ptr [") || INSIDE.contains(&literal.as_str()) {
                continue;
            }
            count += 1;
            for part in fixed(&literal).iter().map(|part| part.trim_matches([' ', ';', ':', ',', '('])) {
                if part.len() > 5 && !page.contains(part) {
                    wrong.push(format!("{file}: `{part}` is not in docs/troubleshooting.md"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 35, "{count} messages of the library");
}

#[test]
fn what_people_meet_first_can_be_looked_up() {
    let page = Page::read("docs/troubleshooting.md").text;
    for message in CHOSEN {
        assert!(page.contains(message), "docs/troubleshooting.md has no `{message}`");
    }
}

/// The CUDA codes that the library returns by itself are exactly those that the page attributes to it.
#[test]
fn the_page_says_of_each_code_whether_the_library_gives_it() {
    let page = Page::read("docs/troubleshooting.md").text;
    let mut all = Vec::new();
    sources(&checkout().join("libvgpu/src"), &mut all);
    let code = all.iter().map(|(_, text)| text.as_str()).collect::<String>();
    for (number, name, ours) in [
        (2, "OUT_OF_MEMORY", true),
        (46, "DEVICE_UNAVAILABLE", false),
        (100, "NO_DEVICE", false),
        (500, "NOT_FOUND", true),
        (800, "NOT_PERMITTED", true),
        (999, "UNKNOWN", false),
    ] {
        assert_eq!(code.contains(&format!("CUresult::{name}")), ours, "{name}");
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| {number} |")))
            .unwrap_or_else(|| panic!("no {number}"));
        assert_eq!(row.contains("the driver, never the library"), !ours, "{row}");
    }
}
