//! What a tenant may ask about itself, on its own socket and without saying hello: what was found of its processes.
//!
//! ```text
//! -> {"hello":2,"ask":"findings"}    <- {"hello":2,"tenant":"a","findings":[...],"more":0}
//! ```
//!
//! Whoever may connect there may ask, and is told of that tenant alone; then the connection is closed. A tenant that asks more
//! than twenty times in a second is refused until the next. A daemon that does not know the question refuses it, as any
//! other line.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::finding::Finding;

/// How long an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The number of the members' protocol in which this is asked.
const HELLO: u64 = vgpu_core::wire::two::PROTOCOL;

/// The word by which it is asked.
const FINDINGS: &str = "findings";

/// Most findings that are told at once.
pub const MOST: usize = 32;

/// Longest answer that is read.
const MAX_ANSWER: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Question {
    hello: u64,
    ask: String,
}

/// What was found of a tenant's processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// The protocol.
    pub hello: u64,
    /// Whose socket this is.
    pub tenant: String,
    /// At most [`MOST`].
    pub findings: Vec<Finding>,
    /// How many there are beside.
    #[serde(default)]
    pub more: usize,
}

impl Own {
    /// What was found of this tenant, at most [`MOST`], and how many there are beside.
    #[must_use]
    pub fn new(tenant: &str, (findings, more): (Vec<Finding>, usize)) -> Self {
        Self { hello: HELLO, tenant: tenant.to_owned(), findings, more }
    }
}

/// Is this line the question?
#[must_use]
pub fn is_asked(line: &[u8]) -> bool {
    // What members say all the time is not read twice.
    let holds = line.windows(FINDINGS.len()).any(|word| word == FINDINGS.as_bytes());
    let asked = |asked: &Question| asked.hello == HELLO && asked.ask == FINDINGS;
    holds && serde_json::from_slice(line).is_ok_and(|question: Question| asked(&question))
}

/// Asks the daemon behind a tenant's socket. `None`: it does not know the question, or was asked too often.
///
/// # Errors
/// Whatever connecting, writing, reading (at most 2 s) or parsing says.
pub fn ask(socket: &Path) -> io::Result<Option<Own>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(&Question { hello: HELLO, ask: FINDINGS.to_owned() })?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream.take(MAX_ANSWER)).read_line(&mut answer)?;
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    if answer.get(FINDINGS).is_none() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_value(answer)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_told_from_everything_else() {
        assert!(is_asked(br#"{"hello":2,"ask":"findings"}"#));
        for line in [
            &br#"{"hello":1,"ask":"findings"}"#[..],
            br#"{"hello":2,"ask":"status"}"#,
            br#"{"hello":2,"pid":1,"version":"findings"}"#,
            b"findings",
            b"",
        ] {
            assert!(!is_asked(line), "{}", String::from_utf8_lossy(line));
        }
    }
}
