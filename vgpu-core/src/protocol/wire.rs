//! The protocol between a member and the daemon: JSON lines, one object per line.
//!
//! Here: the two messages of protocol 1 ([`Hello`], [`Reply`] with its [`Terms`]) and their limits. [`json`] is a
//! small reader and writer, because the library runs inside other people's processes and brings no dependency there.
//! [`two`] is protocol 2, which passes pages. [`terms_file`] holds terms for members while no daemon runs. Not here:
//! sockets and deadlines (the daemon and the library own them), and the administrative protocol, which only the
//! daemon and `vgpu` use.
//!
//! ```text
//! member -> daemon   {"hello":1,"pid":123,"version":"0.1.0"}
//! daemon -> member   {"hello":1,"tenant":"a","memory_limit":1073741824,"sm_limit":30}
//!                    {"error":"..."}
//! ```
//!
//! Rules of both sides:
//! - A line is at most [`MAX_LINE`] bytes, its newline included, and UTF-8.
//! - Unknown keys are ignored with any value nested up to [`MAX_DEPTH`].
//! - A key that appears twice is an error: two readers must never understand one line differently.
//! - A value of the wrong kind is an error, never a default: a misread limit must not become "no limit".
//! - `null` and an absent key mean the same.
//!
//! Next: `libvgpu` connects and keeps the terms; `scheduler-sidecar/daemon` answers.

pub mod json;
pub mod terms_file;
pub mod two;

use std::fmt;

use self::json::{JsonObject, JsonWriter};
use crate::units::bytes::Bytes;
use crate::units::share::Share;

/// The number of this protocol, first key of every line.
pub const PROTOCOL: u64 = 1;

/// Longest line in bytes, the newline included.
pub const MAX_LINE: usize = 4096;

/// Deepest nesting of values that are skipped.
pub const MAX_DEPTH: usize = 16;

/// Longest text of an error, in bytes; a longer one is cut at a character boundary.
const MAX_ERROR: usize = 512;

/// A member's first line: it names its process and library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Process id in the process's own pid namespace. The daemon trusts only the id that the kernel reports.
    pub pid: u32,
    /// Version of the library.
    pub version: String,
}

/// The tenant's limits as the daemon sends them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Name of the tenant.
    pub tenant: String,
    /// Hard memory limit per device; `None`: no limit. Never 0. In the line: a number of bytes.
    pub memory_limit: Option<Bytes>,
    /// Ceiling on device time, at least 1 %; `None`: no limit. In the line: percent, with at most one decimal
    /// (`12.5`).
    pub sm_limit: Option<Share>,
}

/// The daemon's answer to a hello of protocol 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The member is registered, under these terms.
    Terms(Terms),
    /// The member is not registered, for this reason.
    Error(String),
}

impl Hello {
    /// Writes the line, newline included.
    ///
    /// # Errors
    /// [`WireError::TooLong`] if the version makes it longer than [`MAX_LINE`].
    pub fn encode(&self) -> Result<String, WireError> {
        let mut line = JsonWriter::new();
        line.write_number("hello", PROTOCOL);
        line.write_number("pid", u64::from(self.pid));
        line.write_string("version", &self.version);
        line.finish_line()
    }

    /// Reads a line, with or without its newline.
    ///
    /// # Errors
    /// Every [`WireError`]. Another protocol number is [`WireError::Version`], and is checked before everything else.
    pub fn decode(line: &[u8]) -> Result<Self, WireError> {
        let object = JsonObject::parse(line)?;
        check_protocol(&object)?;
        let pid = read_pid(&object)?;
        let version = object.string_value("version")?.ok_or(WireError::Missing("version"))?.to_owned();
        Ok(Self { pid, version })
    }
}

impl Reply {
    /// Writes the line, newline included. The text of an error is cut to 512 bytes.
    ///
    /// # Errors
    /// [`WireError::TooLong`] if the tenant's name makes it longer than [`MAX_LINE`].
    pub fn encode(&self) -> Result<String, WireError> {
        let mut line = JsonWriter::new();
        match self {
            Self::Terms(terms) => write_terms(terms, PROTOCOL, &mut line),
            Self::Error(words) => {
                line.write_string("error", cut_error(words));
            }
        }
        line.finish_line()
    }

    /// Reads a line, with or without its newline. A line with the key `error` is an error regardless of its other
    /// keys.
    ///
    /// # Errors
    /// Every [`WireError`]. A limit of 0 bytes, of 0 percent or of more than 100 percent is out of range.
    pub fn decode(line: &[u8]) -> Result<Self, WireError> {
        let object = JsonObject::parse(line)?;
        if let Some(words) = object.string_value("error")? {
            return Ok(Self::Error(words.to_owned()));
        }
        check_protocol(&object)?;
        read_terms(&object).map(Self::Terms)
    }
}

fn read_pid(object: &JsonObject) -> Result<u32, WireError> {
    let pid = object.number_value("pid")?.ok_or(WireError::Missing("pid"))?;
    let out = WireError::OutOfRange { key: "pid", value: pid, accepted: "1 to 4294967295" };
    u32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or(out)
}

/// Writes the protocol's number as the first key.
fn write_terms(terms: &Terms, protocol: u64, line: &mut JsonWriter) {
    line.write_number("hello", protocol);
    line.write_string("tenant", &terms.tenant);
    write_limits(terms.memory_limit, terms.sm_limit, line);
}

fn write_limits(memory_limit: Option<Bytes>, sm_limit: Option<Share>, line: &mut JsonWriter) {
    line.number_or_null("memory_limit", memory_limit.map(Bytes::get));
    line.share_or_null("sm_limit", sm_limit);
}

fn read_terms(object: &JsonObject) -> Result<Terms, WireError> {
    let tenant = object.string_value("tenant")?.ok_or(WireError::Missing("tenant"))?.to_owned();
    let (memory_limit, sm_limit) = read_limits(object)?;
    Ok(Terms { tenant, memory_limit, sm_limit })
}

fn read_limits(object: &JsonObject) -> Result<(Option<Bytes>, Option<Share>), WireError> {
    let memory_limit = match object.number_value("memory_limit")? {
        Some(0) => return Err(WireError::OutOfRange { key: "memory_limit", value: 0, accepted: "1 byte or more" }),
        other => other.map(Bytes),
    };
    let sm_limit = object.tenths_value("sm_limit")?.map(|tenths| parse_share_value("sm_limit", tenths)).transpose()?;
    Ok((memory_limit, sm_limit))
}

/// The first [`MAX_ERROR`] bytes of a text, or fewer so that no character is cut.
fn cut_error(words: &str) -> &str {
    let mut end = words.len().min(MAX_ERROR);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    &words[..end]
}

/// A share of device time from the line's tenths of a percent.
fn parse_share_value(key: &'static str, permille: u64) -> Result<Share, WireError> {
    u32::try_from(permille)
        .ok()
        .filter(|permille| *permille >= 10)
        .and_then(Share::from_permille)
        .ok_or(WireError::OutOfRange { key, value: permille / 10, accepted: "1 to 100 percent" })
}

/// Refuses a line of another protocol.
fn check_protocol(object: &JsonObject) -> Result<(), WireError> {
    match object.number_value("hello")? {
        Some(PROTOCOL) => Ok(()),
        Some(theirs) => Err(WireError::Version { theirs }),
        None => Err(WireError::Missing("hello")),
    }
}

/// Reasons why a line was not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WireError {
    /// The line is longer than [`MAX_LINE`].
    TooLong,
    /// The line is not UTF-8.
    NotUtf8,
    /// The line is not one JSON object; `at` is the byte where reading stopped.
    Syntax {
        /// Offset in the line, in bytes.
        at: usize,
        /// Text that would have been valid there.
        expected: &'static str,
    },
    /// A value is nested deeper than [`MAX_DEPTH`].
    TooDeep,
    /// The line has a key twice.
    DuplicateKey(String),
    /// A required key is missing.
    Missing(&'static str),
    /// A key's value is of the wrong kind.
    WrongKind {
        /// Name of the key.
        key: &'static str,
        /// Kind of value that the key requires.
        expected: &'static str,
    },
    /// A number is outside what the key accepts.
    OutOfRange {
        /// Name of the key.
        key: &'static str,
        /// Value of the key.
        value: u64,
        /// Values that the key accepts.
        accepted: &'static str,
    },
    /// The other side speaks another protocol.
    Version {
        /// Number of the other side's protocol; ours is [`PROTOCOL`].
        theirs: u64,
    },
    /// The other side speaks neither of our protocols.
    Protocol {
        /// Number of the other side's protocol; ours are [`PROTOCOL`] and [`two::PROTOCOL`].
        theirs: u64,
    },
    /// The other side uses pages of another version.
    Pages {
        /// Version of the other side's page; ours is [`crate::protocol::page::PAGE_VERSION`].
        theirs: u64,
    },
    /// A text is longer than its key allows.
    TextTooLong {
        /// Name of the key.
        key: &'static str,
        /// Longest text, in bytes.
        most: usize,
    },
    /// The line announces another number of descriptors than came with it.
    Descriptors {
        /// Number of descriptors in the line.
        announced: usize,
        /// Number of descriptors that arrived with the message.
        came: usize,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "the line is longer than {MAX_LINE} bytes"),
            Self::NotUtf8 => f.write_str("the line is not UTF-8"),
            Self::Syntax { at, expected } => {
                write!(f, "the line is not a JSON object: expected {expected} at byte {at}")
            }
            Self::TooDeep => write!(f, "the line nests values deeper than {MAX_DEPTH}"),
            Self::DuplicateKey(key) => write!(f, "the key {key:?} appears twice"),
            Self::Missing(key) => write!(f, "the key {key:?} is missing"),
            Self::WrongKind { key, expected } => write!(f, "the key {key:?} must be {expected}"),
            Self::OutOfRange { key, value, accepted } => {
                write!(f, "the key {key:?} is {value}; accepted: {accepted}")
            }
            Self::Version { theirs } => {
                write!(f, "protocol {theirs} is not spoken here; this side speaks protocol {PROTOCOL}")
            }
            Self::Protocol { theirs } => {
                let two = two::PROTOCOL;
                write!(f, "protocol {theirs} is not spoken here; this side speaks protocols {PROTOCOL} and {two}")
            }
            Self::Pages { theirs } => {
                let ours = crate::protocol::page::PAGE_VERSION;
                write!(f, "pages of version {theirs} are not used here; this side uses version {ours}")
            }
            Self::TextTooLong { key, most } => write!(f, "the text of {key:?} is longer than {most} bytes"),
            Self::Descriptors { announced, came } => {
                write!(f, "the line names {announced} descriptors, and there are {came}")
            }
        }
    }
}

impl std::error::Error for WireError {}
