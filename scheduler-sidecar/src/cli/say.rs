//! Output and exit codes.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

/// The answer is no: something was found, or is not there.
pub const FINDINGS: u8 = 1;
/// An option, a value or the environment is wrong; nothing was done.
pub const USAGE: u8 = 2;
/// The question could not be answered.
pub const UNKNOWN: u8 = 3;
/// `vgpu run` itself failed before the program.
pub const RUN_FAILED: u8 = 125;
/// `vgpu run`: the program is there and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// `vgpu run`: the program is not there.
pub const NOT_FOUND: u8 = 127;

/// Why a verb ended, with its exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What is shown on stderr; empty if everything has been said.
    pub words: String,
}

impl Failure {
    /// A failure in words.
    pub fn new(code: u8, words: impl Into<String>) -> Self {
        Self { code, words: words.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Failure {}

/// A reader that has seen enough, like `head`, is no failure.
impl From<io::Error> for Failure {
    fn from(why: io::Error) -> Self {
        match why.kind() {
            io::ErrorKind::BrokenPipe => Self::new(0, ""),
            _ => Self::new(FINDINGS, format!("cannot write: {why}")),
        }
    }
}

/// Shows a failure and makes it an exit code.
#[must_use]
pub fn failure(failure: &Failure) -> ExitCode {
    if !failure.words.is_empty() {
        // Nobody is left to be told.
        let _ = writeln!(io::stderr(), "vgpu: {}", failure.words);
    }
    ExitCode::from(failure.code)
}

/// Says something that whoever asked should know, and that stops nothing.
pub fn note(words: &str) {
    // Nobody is left to be told.
    let _ = writeln!(io::stderr(), "vgpu: {words}");
}

/// Writes text to stdout.
///
/// # Errors
/// The pipe is closed or the disk is full.
pub fn text(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a value as indented JSON to stdout.
///
/// # Errors
/// As [`text`].
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    line.push('\n');
    text(&line)
}

/// Writes text to a file, as a whole or not at all: what was there stays until all of it is written.
///
/// # Errors
/// It cannot be written; the file is named.
pub fn file(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |why: io::Error| Failure::new(FINDINGS, format!("cannot write {}: {why}", path.display()));
    // A pipe or a device is written to, not replaced.
    if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return std::fs::write(path, text).map_err(failed);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    written.map_err(|why| {
        // What is left of it is of no use.
        let _ = std::fs::remove_file(&new);
        failed(why)
    })
}

/// A colour on a terminal that wants one.
#[derive(Debug, Clone, Copy)]
pub enum Colour {
    /// Fine.
    Green,
    /// Wrong.
    Red,
    /// Worth a look.
    Yellow,
    /// A heading.
    Bold,
}

/// The text in a colour if stdout is a terminal and `NO_COLOR` is not set.
#[must_use]
pub fn coloured(colour: Colour, text: &str) -> String {
    let unwanted = |name, value: Option<&str>| {
        std::env::var_os(name).is_some_and(|set| value.map_or(!set.is_empty(), |value| set == *value))
    };
    if !io::stdout().is_terminal() || unwanted("NO_COLOR", None) || unwanted("TERM", Some("dumb")) {
        return text.to_owned();
    }
    let code = match colour {
        Colour::Green => 32,
        Colour::Yellow => 33,
        Colour::Red => 31,
        Colour::Bold => 1,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Lays rows out in columns; the first row is the heading.
#[must_use]
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell: &String| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for (index, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        let line = line.trim_end();
        out.push_str(&if index == 0 { coloured(Colour::Bold, line) } else { line.to_owned() });
        out.push('\n');
    }
    out
}

/// A word as a shell reads it back.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:,@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
