//! Problems of a configuration file, for the person who will fix it: line, column, key, value, accepted values.
//!
//! Problems are collected, not returned, so one run reports all of them. At most [`MAX_PROBLEMS_SHOWN`] are kept;
//! more are only counted.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

/// Most problems that are reported one by one.
pub const MAX_PROBLEMS_SHOWN: usize = 100;

/// Longest part of a value that is shown, in characters.
const MAX_VALUE_CHARS: usize = 60;

/// A range of the file's text, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextRange {
    /// Offset of the first byte of the range.
    pub start: usize,
    /// Offset of the byte after the range.
    pub end: usize,
}

impl From<Range<usize>> for TextRange {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

/// A value with its place in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At<T> {
    /// The value itself.
    pub value: T,
    /// Place of the value in the text.
    pub place: TextRange,
}

/// One problem of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigProblem {
    /// Line of the problem in the file, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// `section.key`; `None` if the text there is not TOML.
    pub key: Option<String>,
    /// The value as written, escaped and shortened; `None` if the key or its absence is wrong.
    pub value: Option<String>,
    /// The error, as a predicate: `is not a size`.
    pub what: String,
    /// Values that would be accepted, in words; `None`: the message needs none.
    pub accepted: Option<String>,
}

/// `12:16: tenant.memory_limit = "lots" is not a size; accepted: ...`
impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.to_words())
    }
}

impl ConfigProblem {
    /// Returns the message without the place: `tenant.memory_limit = "lots" is not a size; accepted: ...`
    #[must_use]
    pub fn to_words(&self) -> String {
        let key = self.key.as_ref().map_or(String::new(), |key| format!("{key} "));
        let value = self.value.as_ref().map_or(String::new(), |value| format!("= {value} "));
        let accepted = self.accepted.as_ref().map_or(String::new(), |accepted| format!("; accepted: {accepted}"));
        format!("{key}{value}{}{accepted}", self.what)
    }
}

/// All problems of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ConfigReport {
    /// Problems ordered by place, at most [`MAX_PROBLEMS_SHOWN`].
    pub problems: Vec<ConfigProblem>,
    /// Number of problems that are left out because [`MAX_PROBLEMS_SHOWN`] is reached.
    pub more: usize,
}

impl ConfigReport {
    /// Returns one line for each problem, the file's name first, as compilers do.
    #[must_use]
    pub fn to_lines(&self, file: &str) -> String {
        let mut lines: String = self.problems.iter().map(|problem| format!("{file}:{problem}\n")).collect();
        if self.more > 0 {
            lines.push_str(&format!("{file}: and {} more\n", self.more));
        }
        lines
    }
}

/// Collects problems while a file is read.
#[derive(Debug)]
pub struct ProblemList<'t> {
    text: &'t str,
    found: Vec<RecordedProblem>,
    more: usize,
}

#[derive(Debug)]
struct RecordedProblem {
    place: TextRange,
    key: Option<String>,
    with_value: bool,
    what: String,
    accepted: Option<String>,
}

impl<'t> ProblemList<'t> {
    /// Starts without problems.
    #[must_use]
    pub fn new(text: &'t str) -> Self {
        Self { text, found: Vec::new(), more: 0 }
    }

    /// Returns true if no problem was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the number of problems found.
    #[must_use]
    pub fn len(&self) -> usize {
        self.found.len() + self.more
    }

    /// Returns true if [`MAX_PROBLEMS_SHOWN`] problems are stored and more are only counted.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.found.len() >= MAX_PROBLEMS_SHOWN
    }

    /// Returns the text at a place.
    #[must_use]
    pub fn text_at(&self, place: TextRange) -> &'t str {
        self.text.get(place.start..place.end).unwrap_or_default()
    }

    /// Returns the line of a place, from 1, for messages that name two places.
    #[must_use]
    pub fn line_of(&self, place: TextRange) -> usize {
        line_and_column(self.text, place.start).0
    }

    /// Records a wrong value at `place`.
    pub fn wrong_value(
        &mut self,
        place: TextRange,
        key: impl Into<String>,
        what: impl Into<String>,
        accepted: impl Into<String>,
    ) {
        self.push(place, Some(key.into()), true, what.into(), Some(accepted.into()));
    }

    /// Records a wrong or missing key.
    pub fn wrong_key(
        &mut self,
        place: TextRange,
        key: impl Into<String>,
        what: impl Into<String>,
        accepted: impl Into<String>,
    ) {
        self.push(place, Some(key.into()), false, what.into(), Some(accepted.into()));
    }

    /// Records that the text is not TOML.
    pub fn wrong_syntax(&mut self, place: TextRange, what: impl Into<String>) {
        self.push(place, None, false, what.into(), None);
    }

    fn push(
        &mut self,
        place: TextRange,
        key: Option<String>,
        with_value: bool,
        what: String,
        accepted: Option<String>,
    ) {
        if self.is_full() {
            self.more += 1;
        } else {
            self.found.push(RecordedProblem { place, key, with_value, what, accepted });
        }
    }

    /// Returns all problems in the order of the text.
    #[must_use]
    pub fn into_report(mut self) -> ConfigReport {
        self.found.sort_by_key(|found| found.place.start);
        let text = self.text;
        let problems = self.found.into_iter().map(|found| {
            let RecordedProblem { place, key, with_value, what, accepted } = found;
            let (line, column) = line_and_column(text, place.start);
            let value = with_value.then(|| escape_value(text.get(place.start..place.end).unwrap_or_default()));
            ConfigProblem { line, column, key, value, what, accepted }
        });
        ConfigReport { problems: problems.collect(), more: self.more }
    }
}

/// Returns line and column of a byte, both from 1, the column in characters.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before: &str = match text.get(..at) {
        Some(before) => before,
        None => text,
    };
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.bytes().filter(|byte| *byte == b'\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Makes text from a file safe for a terminal and a log: keeps printable ASCII, escapes the rest, shortens long text.
#[must_use]
pub fn escape_value(text: &str) -> String {
    let mut out = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == MAX_VALUE_CHARS {
            return out + "...";
        }
        match c {
            ' '..='~' => out.push(c),
            _ => out.extend(c.escape_default()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_line_column_key_value_and_what_is_accepted() {
        let text = "a = 1\né = \"x\"\n";
        let mut problems = ProblemList::new(text);
        let at = text.find("\"x\"").unwrap();
        problems.wrong_value(TextRange { start: at, end: at + 3 }, "s.é", "is wrong", "less");
        problems.wrong_key(TextRange { start: 0, end: 1 }, "s.a", "is not a key", "b");
        assert_eq!(
            problems.into_report().to_lines("f.toml"),
            "f.toml:1:1: s.a is not a key; accepted: b\nf.toml:2:5: s.é = \"x\" is wrong; accepted: less\n"
        );
    }

    #[test]
    fn what_comes_from_outside_is_escaped_and_cut() {
        assert_eq!(escape_value("a\u{202e}\n\x1b"), "a\\u{202e}\\n\\u{1b}");
        assert_eq!(escape_value(&"x".repeat(100)).len(), MAX_VALUE_CHARS + 3);
    }

    #[test]
    fn beyond_a_hundred_problems_are_counted() {
        let mut problems = ProblemList::new("");
        for _ in 0..150 {
            problems.wrong_syntax(TextRange::default(), "no");
        }
        let report = problems.into_report();
        assert_eq!((report.problems.len(), report.more), (100, 50));
        assert!(report.to_lines("f").ends_with("f: and 50 more\n"));
    }
}
