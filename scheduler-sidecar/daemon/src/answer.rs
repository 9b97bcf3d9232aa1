//! Parses the lines of administrators and builds the daemon's answers. No IO, no clock.

use vgpu_core::protocol::wire::{Descriptor, Reply, Terms, Welcome};

use super::config::{OnError, TenantConfig};
use vgpu_config::problem::escape_value;
use vgpu_control::{self as control, ControlCommand, ControlRequest};

/// Descriptors sent with a welcome, in this order.
pub const WELCOME_DESCRIPTORS: [Descriptor; 4] =
    [Descriptor::Beat, Descriptor::Board, Descriptor::Report, Descriptor::Bell];

/// Returns the tenant's name, memory limit and ceiling, as sent to its members at the hello.
#[must_use]
pub fn member_terms(tenant: &TenantConfig) -> Terms {
    let (memory_limit, sm_limit) = tenant.told_limits();
    Terms { tenant: tenant.name.clone(), memory_limit, sm_limit }
}

/// The welcome of a member: its number, the epoch of the pages, and the daemon's clock in ns.
#[must_use]
pub fn welcome_reply(tenant: &TenantConfig, member: u64, epoch: u64, clock: u64) -> Reply {
    Reply::Welcome(Welcome {
        terms: member_terms(tenant),
        member,
        epoch,
        clock,
        mode: tenant.mode,
        open_on_error: tenant.on_error == OnError::Open,
        on_loss: tenant.on_loss,
        strict: tenant.strict,
        descriptors: WELCOME_DESCRIPTORS.to_vec(),
    })
}

/// Parses an administrator's line.
///
/// # Errors
/// The message that is sent before the connection is closed.
pub fn parse_question(line: &[u8]) -> Result<ControlCommand, String> {
    let not_understood = |why: serde_json::Error| format!("the question is not understood: {why}");
    let question: serde_json::Value = serde_json::from_slice(line).map_err(not_understood)?;
    let hello = question.get("hello").and_then(serde_json::Value::as_u64);
    let protocol = hello.ok_or("the question is not understood: it does not begin with a number for \"hello\"")?;
    let ours = control::CONTROL_PROTOCOL;
    if protocol != ours {
        return Err(format!("administrative protocol {protocol} is not spoken here; this daemon speaks {ours}"));
    }
    match question.get("ask").and_then(serde_json::Value::as_str) {
        Some(word) if ControlCommand::COMMAND_WORDS.contains(&word) => {}
        other => {
            let (other, known) = (escape_value(other.unwrap_or_default()), ControlCommand::COMMAND_WORDS.join(", "));
            return Err(format!("{other:?} is not a question this daemon knows; accepted: {known}"));
        }
    }
    // Parsed from the line, since a `Value` drops one of two equal keys.
    let ControlRequest { ask, .. } = serde_json::from_slice(line).map_err(not_understood)?;
    let mut keys = question.as_object().into_iter().flat_map(|question| question.keys());
    let extra = keys.find(|key| !["hello", "ask"].contains(&key.as_str()));
    match (&ask, extra) {
        (ControlCommand::Status | ControlCommand::Ps | ControlCommand::Queue, Some(extra)) => Err(format!(
            "the question is not understood: unknown field {:?}, status, ps and queue have no further fields",
            escape_value(extra)
        )),
        _ => Ok(ask),
    }
}

#[cfg(test)]
mod tests {
    use vgpu_core::units::bytes::Bytes;
    use vgpu_core::units::share::Share;

    use super::*;
    use vgpu_config::change::WrittenChange;

    #[test]
    fn a_member_gets_its_tenants_terms_and_what_comes_with_them() {
        let tenant = TenantConfig::on_all_devices("a", "/s".into(), Some(Bytes(1 << 30)), Share::from_percent(30));
        let line = welcome_reply(&tenant, 7, 9, 11).encode().unwrap();
        let Ok(Reply::Welcome(read)) = Reply::decode(line.as_bytes()) else { panic!("{line}") };
        let terms = Terms { tenant: "a".into(), memory_limit: Some(Bytes(1 << 30)), sm_limit: Share::from_percent(30) };
        assert_eq!((read.terms, read.member, read.epoch, read.clock), (terms, 7, 9, 11));
        assert_eq!(read.descriptors, WELCOME_DESCRIPTORS);
    }

    #[test]
    fn a_question_is_understood_and_another_protocol_or_an_unknown_one_is_refused_in_words() {
        assert_eq!(parse_question(br#"{"hello":2,"ask":"status"}"#), Ok(ControlCommand::Status));
        assert_eq!(
            parse_question(br#"{"hello":2,"ask":"pause","tenant":"a"}"#),
            Ok(ControlCommand::Pause { tenant: "a".into(), lasting: Default::default() })
        );
        let change = Box::new(WrittenChange { weight: Some("3".into()), ..WrittenChange::default() });
        let set =
            ControlCommand::Set { tenant: "a".into(), device: Some("0".into()), change, lasting: Default::default() };
        let line = serde_json::to_vec(&control::ControlRequest { hello: 2, ask: set.clone() }).unwrap();
        assert_eq!(parse_question(&line), Ok(set), "what is written is what is read");
        for (line, words) in [
            (&br#"{"hello":3,"ask":"status"}"#[..], "protocol 3 is not spoken here; this daemon speaks 2"),
            (br#"{"hello":1,"ask":"status"}"#, "protocol 1 is not spoken here; this daemon speaks 2"),
            (br#"{"hello":2,"ask":"stop"}"#, "\"stop\" is not a question this daemon knows; accepted: status, ps"),
            (br#"{"hello":2}"#, "is not a question"),
            (br#"{"hello":2,"ask":"pause"}"#, "missing field `tenant`"),
            (br#"{"hello":2,"ask":"set","tenant":"a","change":{"memory":"1GiB"}}"#, "unknown field `memory`"),
            (br#"{"hello":2,"ask":"status","new":[1]}"#, "unknown field \"new\""),
            (br#"{"hello":2,"ask":"pause","tenant":"a","device":"0"}"#, "unknown field `device`"),
            (br#"{"hello":2,"ask":"set","tenant":"a","devise":"0","change":{}}"#, "unknown field `devise`"),
            (br#"{"hello":2,"ask":"pause","tenant":"a","tenant":"b"}"#, "duplicate field `tenant`"),
            (br#"{"hello":2,"hello":2,"ask":"status"}"#, "duplicate field `hello`"),
            (br#"{"hello":2,"ask":"pause","ask":"resume","tenant":"b"}"#, "duplicate field `ask`"),
            (
                br#"{"hello":2,"ask":"set","tenant":"a","change":{"weight":"1","weight":"2"}}"#,
                "duplicate field `weight`",
            ),
            (br#"{"ask":"status"}"#, "\"hello\""),
            (b"status", "not understood"),
            (b"[]", "not understood"),
        ] {
            let said = parse_question(line).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
    }
}
