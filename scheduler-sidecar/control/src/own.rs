//! The request that a tenant may send about itself, on its own socket and without a hello: findings about its
//! processes.
//!
//! ```text
//! -> {"hello":2,"ask":"findings"}    <- {"hello":2,"tenant":"a","findings":[...],"more":0}
//! ```
//!
//! Every process that can connect there may ask. The answer is about that tenant only, and the connection is closed
//! after it. After 20 requests in a second a tenant is refused until the next second. A daemon that does not know the
//! request refuses it like any unknown line.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::finding::Finding;

/// Longest time to wait for the daemon's answer.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Number of the members' protocol that has this request.
const HELLO_PROTOCOL: u64 = vgpu_core::protocol::wire::PROTOCOL;

/// Name of the request.
const FINDINGS_WORD: &str = "findings";

/// Most findings in one answer.
pub const MAX_FINDINGS_TOLD: usize = 32;

/// Longest answer that is read, in bytes.
const MAX_OWN_ANSWER_BYTES: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct OwnRequest {
    hello: u64,
    ask: String,
}

/// Findings about a tenant's processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnFindings {
    /// Version number of the members' protocol.
    pub hello: u64,
    /// Name of the tenant whose socket was asked.
    pub tenant: String,
    /// Findings, at most [`MAX_FINDINGS_TOLD`].
    pub findings: Vec<Finding>,
    /// Number of findings that are left out.
    #[serde(default)]
    pub more: usize,
}

impl OwnFindings {
    /// An answer with these findings, at most [`MAX_FINDINGS_TOLD`], and the number of further ones.
    #[must_use]
    pub fn new(tenant: &str, (findings, more): (Vec<Finding>, usize)) -> Self {
        Self { hello: HELLO_PROTOCOL, tenant: tenant.to_owned(), findings, more }
    }
}

/// True if this line is the request.
#[must_use]
pub fn is_asked(line: &[u8]) -> bool {
    // A cheap search first, so that members' usual lines are not parsed twice.
    let holds = line.windows(FINDINGS_WORD.len()).any(|word| word == FINDINGS_WORD.as_bytes());
    let asked = |asked: &OwnRequest| asked.hello == HELLO_PROTOCOL && asked.ask == FINDINGS_WORD;
    holds && serde_json::from_slice(line).is_ok_and(|question: OwnRequest| asked(&question))
}

/// Asks the daemon behind a tenant's socket. `None`: it does not know the request, or was asked too often.
///
/// # Errors
/// Any error of connecting, writing, reading (at most 2 s each) or parsing.
pub fn ask_own(socket: &Path) -> io::Result<Option<OwnFindings>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(&OwnRequest { hello: HELLO_PROTOCOL, ask: FINDINGS_WORD.to_owned() })?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream.take(MAX_OWN_ANSWER_BYTES)).read_line(&mut answer)?;
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    if answer.get(FINDINGS_WORD).is_none() {
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
