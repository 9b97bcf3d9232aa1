//! Reasons why a line of the protocol was not understood.

use std::fmt;

use super::{MAX_DEPTH, MAX_LINE, PROTOCOL};
use crate::protocol::page::PAGE_VERSION;

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
    Protocol {
        /// Number of the other side's protocol; ours is [`PROTOCOL`].
        theirs: u64,
    },
    /// The other side uses pages of another version.
    Pages {
        /// Version of the other side's page; ours is [`PAGE_VERSION`].
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
            Self::Protocol { theirs } => {
                write!(f, "protocol {theirs} is not spoken here; this side speaks protocol {PROTOCOL}")
            }
            Self::Pages { theirs } => {
                write!(f, "pages of version {theirs} are not used here; this side uses version {PAGE_VERSION}")
            }
            Self::TextTooLong { key, most } => write!(f, "the text of {key:?} is longer than {most} bytes"),
            Self::Descriptors { announced, came } => {
                write!(f, "the line names {announced} descriptors, and there are {came}")
            }
        }
    }
}

impl std::error::Error for WireError {}
