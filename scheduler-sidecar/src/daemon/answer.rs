//! What the daemon says to a line. No IO, no clock.

use vgpu_core::wire::{Hello, Reply, Terms, WireError};

use super::config::Tenant;
use crate::control;

/// The terms of a tenant's members.
#[must_use]
pub fn terms(tenant: &Tenant) -> Terms {
    Terms { tenant: tenant.name.clone(), memory_limit: tenant.memory, sm_limit: tenant.sm }
}

/// Answers a member's line: the hello if it is one, and what to say.
///
/// # Errors
/// The words that are sent before the connection is closed.
pub fn member(tenant: &Tenant, line: &[u8]) -> Result<(Hello, Reply), WireError> {
    let hello = Hello::decode(line)?;
    Ok((hello, Reply::Terms(terms(tenant))))
}

/// Understands an administrator's line.
///
/// # Errors
/// The words that are sent before the connection is closed.
pub fn question(line: &[u8]) -> Result<(), String> {
    let question: control::Question =
        serde_json::from_slice(line).map_err(|why| format!("the question is not understood: {why}"))?;
    if question.hello != control::PROTOCOL {
        let (theirs, ours) = (question.hello, control::PROTOCOL);
        return Err(format!("administrative protocol {theirs} is not spoken here; this daemon speaks {ours}"));
    }
    match question.ask.as_str() {
        "status" => Ok(()),
        other => Err(format!("{other:?} is not a question this daemon knows; accepted: status")),
    }
}

#[cfg(test)]
mod tests {
    use vgpu_core::bytes::Bytes;
    use vgpu_core::share::Share;

    use super::*;

    #[test]
    fn a_member_gets_its_tenants_terms_whatever_it_says_about_itself() {
        let tenant = Tenant {
            name: "a".into(),
            socket: "/s".into(),
            memory: Some(Bytes(1 << 30)),
            sm: Share::from_percent(30),
            uids: None,
        };
        let line = br#"{"hello":1,"pid":7,"version":"9","tenant":"b","memory_limit":null}"#;
        let (hello, reply) = member(&tenant, line).unwrap();
        assert_eq!((hello.pid, hello.version.as_str()), (7, "9"));
        assert_eq!(
            reply.encode().unwrap(),
            "{\"hello\":1,\"tenant\":\"a\",\"memory_limit\":1073741824,\"sm_limit\":30}\n"
        );
    }

    #[test]
    fn only_the_known_question_of_the_known_protocol_is_answered() {
        assert_eq!(question(br#"{"hello":1,"ask":"status"}"#), Ok(()));
        assert!(question(br#"{"hello":2,"ask":"status"}"#).unwrap_err().contains("protocol 2"));
        assert!(question(br#"{"hello":1,"ask":"stop"}"#).unwrap_err().contains("\"stop\""));
        assert!(question(b"status").unwrap_err().contains("not understood"));
    }
}
