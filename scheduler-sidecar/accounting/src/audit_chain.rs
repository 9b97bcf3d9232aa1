//! Chains the lines of an audit log: each line contains a hash over its text and the hash of the line before it. No
//! I/O here.
//!
//! The daemon writes the chained lines; `vgpu audit --verify` checks the chain.

use std::fmt::Write as _;
use std::io;

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use vgpu_control::event::DaemonEvent;

/// Separates the hashed text of a line from the hash.
const HASH: &str = ",\"hash\":\"";

/// Text that ends a line, after the hash.
const END: &str = "\"}";

/// Returns the line of an event, and its hash; `prev` is the hash of the line before it.
///
/// # Errors
/// None in practice: serialising writes into memory.
pub fn chained(event: &DaemonEvent, prev: &str) -> io::Result<(Vec<u8>, String)> {
    let mut value = serde_json::to_value(event)?;
    if let Some(object) = value.as_object_mut() {
        object.insert("prev".into(), Value::String(prev.to_owned()));
    }
    let mut line = serde_json::to_vec(&value)?;
    // The closing brace follows the hash.
    line.pop();
    let hash = hash(&line);
    line.extend_from_slice([HASH, &hash, END].concat().as_bytes());
    Ok((line, hash))
}

/// Returns the hashed text of a line and the hash stored in it; `None` if the line has no hash.
fn sealed(line: &[u8]) -> Option<(&[u8], &str)> {
    let rest = line.strip_suffix(END.as_bytes())?;
    let (rest, hash) = rest.split_at_checked(rest.len().checked_sub(64)?)?;
    let hash = str::from_utf8(hash).ok().filter(|hash| hash.bytes().all(|c| c.is_ascii_hexdigit()))?;
    Some((rest.strip_suffix(HASH.as_bytes())?, hash))
}

/// Returns the hash by which the next line refers to this one: its own hash, or that of the whole text if it is
/// damaged.
#[must_use]
pub fn name(line: &[u8]) -> String {
    match sealed(line) {
        Some((text, own)) if hash(text) == own => own.to_owned(),
        _ => hash(line),
    }
}

fn hash(line: &[u8]) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(line) {
        // Writing into a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// A place where the chain of an audit log is broken: a line was changed, removed or inserted.
#[derive(Debug, PartialEq, Eq)]
pub struct Break {
    /// Index of the file, from 0.
    pub file: usize,
    /// Line in the file, from 1.
    pub line: usize,
    /// The defect in words.
    pub words: String,
}

/// Result for a log whose chain is intact.
#[derive(Debug, PartialEq, Eq)]
pub struct Chain {
    /// Number of lines in the log.
    pub lines: usize,
    /// Number of incomplete lines: the daemon ended, or the disk was full, while it wrote them.
    pub cut: usize,
    /// The hash of the last line.
    pub head: String,
    /// True if the log starts with the very first line; false if its first line refers to an earlier one or is
    /// incomplete.
    pub is_from_first: bool,
}

/// A hash that one of the lines must have, and its source.
#[derive(Debug, Clone, Copy)]
pub struct Head<'h> {
    /// [`name`] of that line: 64 hexadecimal digits, in either case.
    pub hash: &'h str,
    /// The source that states the hash.
    pub by: &'h str,
}

/// Checks the chain over files, oldest first. The first line's reference to the line before it is not checked,
/// because that line is not available.
///
/// # Errors
/// The first line that does not fit, or a head that no line has.
pub fn verify(files: &[Vec<u8>], heads: &[Head<'_>]) -> Result<Chain, Break> {
    #[derive(Deserialize)]
    struct Link {
        prev: String,
    }
    let (mut before, mut chain) =
        (None::<String>, Chain { lines: 0, cut: 0, head: String::new(), is_from_first: false });
    let mut missing = heads.to_vec();
    // First of the incomplete lines since the last complete one, and their number. The next complete line must refer
    // to the last of them.
    let (mut torn, mut pieces) = (None, 0);
    let mut end = Break { file: files.len().saturating_sub(1), line: 0, words: String::new() };
    for (file, bytes) in files.iter().enumerate() {
        let lines = (1..).zip(bytes.split(|byte| *byte == b'\n')).filter(|(_, text)| !text.is_empty());
        for (line, text) in lines {
            let wrong = |words: &str| Break { file, line, words: words.to_owned() };
            match (sealed(text), serde_json::from_slice::<Link>(text)) {
                (Some((text, own)), Ok(link)) => {
                    if hash(text) != own {
                        return Err(wrong("this line was changed: its hash does not match"));
                    }
                    if before.as_ref().is_some_and(|before| *before != link.prev) {
                        return Err(torn.unwrap_or_else(|| {
                            wrong(
                                "the hash of the line before it does not match: lines between them were removed, \
                                 or that line was changed",
                            )
                        }));
                    }
                    chain.is_from_first |= before.is_none() && link.prev.is_empty();
                    torn = None;
                    chain.cut += std::mem::take(&mut pieces);
                }
                _ => {
                    pieces += 1;
                    torn.get_or_insert_with(|| wrong("this is not a complete line of an audit log"));
                }
            }
            let name = name(text);
            missing.retain(|head| !head.hash.eq_ignore_ascii_case(&name));
            (before, end.file, end.line) = (Some(name), file, line);
            chain.lines += 1;
        }
    }
    if let Some(mut torn) = torn {
        torn.words.push_str(
            "; it was cut or overwritten, or the daemon ended while it wrote the line: then the first line after its \
             next start names it",
        );
        return Err(torn);
    }
    let Some(last) = before else {
        return Err(Break { words: "the file has no line of an audit log".to_owned(), ..end });
    };
    if let Some(Head { hash, by }) = missing.first() {
        let words = format!("the log ends here, and {by} knows a later line, with the hash {hash}: lines were cut off");
        return Err(Break { words, ..end });
    }
    chain.head = last;
    Ok(chain)
}
