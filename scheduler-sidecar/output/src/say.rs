//! Writes output safely, and defines the exit codes.

use std::ffi::OsStr;
use std::fmt;
use std::fs::Permissions;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

/// The answer is no: a finding was made, or the thing asked for does not exist.
pub const EXIT_FINDINGS: u8 = 1;
/// An option, a value or the environment is wrong, and nothing was done.
pub const EXIT_USAGE: u8 = 2;
/// The question could not be answered.
pub const EXIT_UNKNOWN: u8 = 3;
/// `vgpu run` itself failed before it started the program.
pub const EXIT_RUN_FAILED: u8 = 125;
/// `vgpu run`: the program exists and cannot be executed.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// `vgpu run`: the program does not exist.
pub const EXIT_NOT_FOUND: u8 = 127;

/// The reason why a command ended, with its exit code.
#[derive(Debug)]
pub struct Failure {
    /// Exit code that the process ends with.
    pub code: u8,
    /// Message for stderr; empty if everything has been said.
    pub words: String,
}

impl Failure {
    /// Creates a failure with a message.
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

/// A closed pipe is no failure: its reader, such as `head`, has seen enough.
impl From<io::Error> for Failure {
    fn from(why: io::Error) -> Self {
        match why.kind() {
            io::ErrorKind::BrokenPipe => Self::new(0, ""),
            _ => Self::new(EXIT_FINDINGS, format!("cannot write: {why}")),
        }
    }
}

/// Prints a failure to stderr and returns its exit code.
#[must_use]
pub fn show_failure(failure: &Failure) -> ExitCode {
    if !failure.words.is_empty() {
        // If stderr is closed, nobody is left to read the message.
        let _ = writeln!(io::stderr(), "vgpu: {}", escape_text(&failure.words));
    }
    ExitCode::from(failure.code)
}

/// Prints a note to stderr that does not stop the command.
pub fn print_note(words: &str) {
    // If stderr is closed, nobody is left to read the message.
    let _ = writeln!(io::stderr(), "vgpu: {}", escape_text(words));
}

/// First of the private-use characters that [`in_colour`] puts into text, one for each colour code. Only
/// [`escape_text`] turns them into escape sequences, so no other text can inject one.
const FIRST_COLOUR_MARK: u32 = 0xf0000;

/// Codes of the colours; 0 ends a colour.
const COLOUR_CODES: [u32; 5] = [0, 1, 31, 32, 33];

/// Returns true for characters that move the cursor, change the writing direction, or are invisible.
#[must_use]
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
            | '\u{f0000}'..='\u{f00ff}')
}

/// Returns text as one line, with each hidden character escaped, as `\n` or `\u{202e}`.
#[must_use]
pub fn escape_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars()
        .for_each(|letter| if is_hidden(letter) { out.extend(letter.escape_default()) } else { out.push(letter) });
    out
}

/// Makes text of several lines safe for a terminal: keeps its line breaks and our colours, escapes every other hidden
/// character.
#[must_use]
pub fn escape_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match COLOUR_CODES.iter().find(|code| u32::from(letter) == FIRST_COLOUR_MARK + **code) {
            Some(code) => out.push_str(&format!("\x1b[{code}m")),
            None if is_hidden(letter) && !matches!(letter, '\n' | '\t') => out.extend(letter.escape_default()),
            None => out.push(letter),
        }
    }
    out
}

/// Returns the text without the marks of [`in_colour`], for a file.
#[must_use]
pub fn uncoloured(text: &str) -> String {
    text.chars()
        .filter(|letter| !COLOUR_CODES.iter().any(|code| u32::from(*letter) == FIRST_COLOUR_MARK + code))
        .collect()
}

/// Escapes hidden characters in JSON, as `\u202e`. The meaning stays the same, since they occur only inside strings.
#[must_use]
pub fn plain_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_hidden(letter) && letter > '~' {
            letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        } else {
            out.push(letter);
        }
    }
    out
}

/// Writes text for people to stdout, through [`escape_text`].
///
/// # Errors
/// The pipe is closed or the disk is full.
pub fn print_text(text: &str) -> Result<(), Failure> {
    print_exact(&escape_text(text))
}

/// Writes text for programs to stdout unchanged.
///
/// # Errors
/// As [`print_text`].
pub fn print_exact(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a value as indented JSON to stdout.
///
/// # Errors
/// As [`print_text`].
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    line.push('\n');
    print_exact(&plain_json(&line))
}

/// Writes a file atomically: the old content stays until all of the new one is written.
///
/// # Errors
/// The file cannot be written; the message names it.
pub fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    replace_file(path, text)
        .map_err(|why| Failure::new(EXIT_FINDINGS, format!("cannot write {}: {why}", path.display())))
}

/// Writes a file atomically and returns the plain error. A link's target is replaced, not the link, and the new file
/// keeps the old one's mode. Pipes and devices are written to directly. So are open descriptors (`/dev/stdout`,
/// `/dev/fd/3`), after the data already written to them.
///
/// # Errors
/// The file cannot be written; its old content is unchanged.
pub fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    match descriptor_number(path) {
        Some(1) => return io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()),
        Some(2) => return io::stderr().write_all(text.as_bytes()),
        Some(_) => return std::fs::OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes()),
        None => {}
    }
    let there = std::fs::metadata(path).ok();
    // A dangling link is not replaced either: the file that it names is created.
    if there.as_ref().map_or(path.is_symlink(), |there| !there.is_file()) {
        return std::fs::write(path, text);
    }
    let path = if there.is_some() { path.canonicalize()? } else { path.to_owned() };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let written = write_new(&new, text, there.map(|there| there.permissions()));
    written.and_then(|()| std::fs::rename(&new, &path)).inspect_err(|_| {
        // A partly written file is of no use.
        let _ = std::fs::remove_file(&new);
    })
}

/// Returns the descriptor number if a path leads to an open file of this or another process: an `fd` directory below
/// /proc. That file may be a plain one and must not be replaced, because its opener continues with it.
fn descriptor_number(path: &Path) -> Option<u32> {
    let mut path = path.to_owned();
    for _ in 0..40 {
        let name = path.file_name()?;
        let place = match path.parent()? {
            empty if empty.as_os_str().is_empty() => Path::new("."),
            place => place,
        };
        let place = place.canonicalize().ok()?;
        if place.starts_with("/proc") && place.ends_with("fd") {
            return name.to_str()?.parse().ok();
        }
        path = place.join(std::fs::read_link(&path).ok()?);
    }
    None
}

/// Writes a file and syncs it to the disk. If a mode is given, the file never has wider permissions than that.
fn write_new(new: &Path, text: &str, mode: Option<Permissions>) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    options.mode(mode.as_ref().map_or(0o666, PermissionsExt::mode));
    let mut out = options.open(new)?;
    if let Some(mode) = mode {
        out.set_permissions(mode)?;
    }
    out.write_all(text.as_bytes())?;
    out.sync_all()
}

/// A colour, used only on a terminal that wants colours.
#[derive(Debug, Clone, Copy)]
pub enum Colour {
    /// For good results.
    Green,
    /// For errors.
    Red,
    /// For warnings.
    Yellow,
    /// For headings.
    Bold,
}

/// Returns the text with colour marks if stdout is a terminal, `NO_COLOR` is not set, and `TERM` is not `dumb`.
#[must_use]
pub fn in_colour(colour: Colour, text: &str) -> String {
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
    let mark = |code: u32| char::from_u32(FIRST_COLOUR_MARK + code).unwrap_or(' ');
    format!("{}{text}{}", mark(code), mark(0))
}

/// Lays out rows in columns; the first row is the heading.
#[must_use]
pub fn lay_out_table(rows: &[Vec<String>]) -> String {
    // Escape before measuring the width.
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| escape_line(cell)).collect()).collect();
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
        out.push_str(&if index == 0 { in_colour(Colour::Bold, line) } else { line.to_owned() });
        out.push('\n');
    }
    out
}

/// Quotes a word so that a shell reads it back unchanged.
#[must_use]
pub fn quote_word(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:,@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Quotes a word safely for a terminal too: control characters and invalid UTF-8 become `$'\x1b'`, which bash, zsh
/// and ksh read.
#[must_use]
pub fn quote_shown(word: &OsStr) -> String {
    if let Some(text) = word.to_str()
        && !text.contains(is_hidden)
    {
        return quote_word(text);
    }
    let mut out = String::from("$'");
    let bytes = |out: &mut String, bytes: &[u8]| bytes.iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
    for chunk in word.as_bytes().utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\'' | '\\' => out.extend(['\\', letter]),
                _ if is_hidden(letter) => bytes(&mut out, letter.encode_utf8(&mut [0; 4]).as_bytes()),
                _ => out.push(letter),
            }
        }
        bytes(&mut out, chunk.invalid());
    }
    out + "'"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_replaced_keeps_its_mode_and_a_link_to_it_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let [real, link, nowhere] = ["real", "link", "nowhere"].map(|name| dir.path().join(name));
        std::fs::write(&real, "old").unwrap();
        std::fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        write_file(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&real).unwrap(), "new");
        assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o7777, 0o640);
        std::os::unix::fs::symlink("made", &nowhere).unwrap();
        write_file(&nowhere, "new").unwrap();
        assert!(nowhere.is_symlink() && dir.path().join("made").is_file());
    }

    #[test]
    fn what_is_open_already_is_written_to_behind_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        std::fs::write(&real, "before ").unwrap();
        let open = std::fs::OpenOptions::new().append(true).open(&real).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&open);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(format!("/dev/fd/{number}"), &link).unwrap();
        for path in [link, format!("/proc/self/fd/{number}").into()] {
            write_file(&path, "new ").unwrap();
        }
        assert_eq!(std::fs::read_to_string(&real).unwrap(), "before new new ");
        let same = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&real).unwrap());
        assert_eq!(same, std::os::unix::fs::MetadataExt::ino(&open.metadata().unwrap()), "it is the file that is open");
        assert_eq!(descriptor_number(Path::new("/dev/stdout")), Some(1));
        assert_eq!(descriptor_number(&real), None);
    }

    #[test]
    fn no_text_for_people_reaches_a_terminal_with_anything_hidden_and_json_says_the_same() {
        let evil = "a\u{1b}[8m\r\u{202e}\u{2066}\u{200b}\u{9b}\u{f0020}\u{7f} e\u{301} \"x\" ü";
        let shown = "a\\u{1b}[8m\\r\\u{202e}\\u{2066}\\u{200b}\\u{9b}\\u{f0020}\\u{7f} e\u{301} \"x\" ü";
        assert_eq!(escape_line(evil), shown);
        assert_eq!(escape_line("a\nb\tc"), "a\\nb\\tc");
        assert_eq!(escape_text("a\nb\tc\u{1b}[31m\u{202e}\u{f0002}"), "a\nb\tc\\u{1b}[31m\\u{202e}\\u{f0002}");
        let ours: String = [32, 0].map(|code| char::from_u32(FIRST_COLOUR_MARK + code).unwrap()).iter().collect();
        assert_eq!(escape_text(&ours), "\u{1b}[32m\u{1b}[0m", "a colour of ours");
        let rows = [["N", "X"], [evil, "1"]].map(|row| row.map(str::to_owned).to_vec());
        let table = lay_out_table(&rows);
        assert!(table.contains(shown) && !table.contains(|c| is_hidden(c) && c != '\n'), "{table}");
        let json = serde_json::to_string(evil).unwrap();
        let plain = plain_json(&json);
        assert!(!plain.contains(is_hidden), "{plain}");
        assert_eq!(serde_json::from_str::<String>(&plain).unwrap(), evil);
    }

    #[test]
    fn a_word_is_shown_without_what_moves_a_terminals_cursor() {
        for (word, said) in [
            (&b"plain"[..], "plain"),
            (b"a b", "'a b'"),
            (b"\x1b[2J it's \\", r"$'\x1b[2J it\'s \\'"),
            (b"a\nb\xff", r"$'a\x0ab\xff'"),
            ("\u{9b}ä".as_bytes(), r"$'\xc2\x9bä'"),
            ("\u{202e}a".as_bytes(), r"$'\xe2\x80\xaea'"),
        ] {
            assert_eq!(quote_shown(OsStr::from_bytes(word)), said);
        }
    }
}
