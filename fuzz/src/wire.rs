//! Lines between members and daemon, and the terms file. Checks: no panic; the same meaning as in serde_json; and a
//! decoded line that is encoded again decodes to the same value.

use serde_json::{Map, Value};
use vgpu_core::protocol::wire::json::JsonObject;
use vgpu_core::protocol::wire::terms_file::TermsFile;
use vgpu_core::protocol::wire::{MAX_LINE, MemberMessage, Reply, WireError};

/// Valid lines from members, from which the fuzzer starts.
pub const ASKS: &[&[u8]] = &[
    b"{\"hello\":2,\"pid\":123,\"version\":\"0.1.0\",\"pages\":1,\"clock\":5000000000}\n",
    b"{\"join\":\"GPU-6b1c9a7e-0000-1111-2222-333344445555\",\"busy\":17}\n",
    b"{\"join\":\"MIG-6b1c\",\"more\":[1,{\"a\":null}],\"\\u00e9\\n\":-1.5e9}",
];

/// Valid lines from the daemon, from which the fuzzer starts.
pub const REPLIES: &[&[u8]] = &[
    b"{\"hello\":2,\"tenant\":\"a\",\"memory_limit\":null,\"sm_limit\":12.5,\"member\":12,\"epoch\":7,\"pages\":1,\
\"clock\":5000020000,\"mode\":\"enforce\",\"on_loss\":\"local\",\"strict\":false,\
\"descriptors\":\"beat board report bell\"}\n",
    b"{\"join\":\"GPU-6b1c\",\"slot\":3}\n",
    b"{\"error\":\"no such tenant\"}\n",
];

/// Valid files with a tenant's limits (terms files), which the daemon leaves for members that start without it.
pub const TERMS: &[&[u8]] = &[
    b"{\"terms\":1,\"epoch\":7,\"tenant\":\"a\",\"mode\":\"enforce\",\"on_error\":\"closed\",\"on_loss\":\"local\",\"strict\":false,\
\"devices\":2}\n{\"device\":\"GPU-6b1c\",\"memory_limit\":1073741824,\"sm_limit\":30,\"sm_request\":20}\n\
{\"device\":\"*\",\"memory_limit\":null,\"sm_limit\":null,\"sm_request\":null}\n",
];

/// Keys, values, and fragments that make a line invalid.
pub const WIRE_WORDS: &[&str] = &[
    "\"hello\":1",
    "\"hello\":2",
    "\"hello\":3",
    "\"pid\":",
    "\"version\":",
    "\"pages\":1",
    "\"clock\":",
    "\"join\":",
    "\"busy\":",
    "\"slot\":1023",
    "\"slot\":1024",
    "\"error\":",
    "\"tenant\":",
    "\"memory_limit\":",
    "\"sm_limit\":",
    "\"member\":",
    "\"epoch\":",
    "\"mode\":\"observe\"",
    "\"mode\":\"off\"",
    "\"on_loss\":\"open\"",
    "\"on_loss\":\"block\"",
    "\"strict\":true",
    "\"descriptors\":\"\"",
    "\"terms\":1",
    "\"devices\":0",
    "\"devices\":1",
    "\"device\":\"*\"",
    "\"device\":",
    "\"sm_request\":",
    "\"on_error\":\"open\"",
    "GPU-6B1C",
    "beat",
    "board",
    "report",
    "bell",
    "unknown",
    "18446744073709551615",
    "18446744073709551616",
    "4294967296",
    "0.5",
    "100.0",
    "100.1",
    "-0",
    "1e9",
    "null",
    "true",
    "false",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "\\udc00",
    "\\ud83d\\ude00",
    "\\/",
    " ",
    "\t",
    "\n",
    "\r",
    "\0",
    "\u{e9}",
    "\u{feff}",
    "\u{1f600}",
];

/// Our reader must agree with serde_json, except for lines that it refuses on purpose.
fn agrees(line: &[u8]) {
    let theirs = serde_json::from_slice::<Map<String, Value>>(line);
    match (JsonObject::parse(line), theirs) {
        (Ok(ours), Ok(theirs)) => assert_eq!(ours.all_entries().count(), theirs.len(), "keys of {line:?}"),
        // Our reader skips a number that is too large for serde_json.
        (Ok(_), Err(why)) => assert!(why.to_string().contains("number out of range"), "{why}"),
        (Err(WireError::TooLong), _) => assert!(line.len() > MAX_LINE),
        (Err(WireError::DuplicateKey(_) | WireError::TooDeep), _) | (Err(_), Err(_)) => {}
        (Err(why), Ok(_)) => panic!("refused what serde_json reads: {why}"),
    }
}

/// The refusal of a line must itself be a line of bounded length.
fn refusal(why: &WireError) {
    let words = why.to_string();
    let line = Reply::Refused(words.clone()).encode().expect("a refusal can always be said");
    assert!(line.len() <= MAX_LINE && line.ends_with('\n'));
    match Reply::decode(line.as_bytes()) {
        Ok(Reply::Refused(read)) => assert!(words.starts_with(&read)),
        other => panic!("{other:?}"),
    }
}

/// Checks a line from a member to the daemon.
pub fn ask(line: &[u8]) {
    agrees(line);
    let ask = match MemberMessage::decode(line) {
        Ok(ask) => ask,
        Err(why) => return refusal(&why),
    };
    let again = match &ask {
        MemberMessage::Hello(hello) => hello.encode().expect("its version is short"),
        MemberMessage::Join(join) => join.encode().expect("its device is short"),
    };
    assert_eq!(MemberMessage::decode(again.as_bytes()), Ok(ask));
}

/// Checks a line to a member, from the daemon or from any other process behind its socket.
pub fn reply(line: &[u8]) {
    match Reply::decode(line) {
        Ok(Reply::Refused(words)) => assert!(words.len() <= MAX_LINE),
        Ok(reply) => {
            let again = reply.encode().expect("what was read can be said");
            assert_eq!(Reply::decode(again.as_bytes()), Ok(reply));
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// Checks a file with a tenant's limits, which any process that may write into the tenant's directory may have written.
pub fn terms(file: &[u8]) {
    let Ok(terms) = TermsFile::decode(file) else { return };
    match terms.encode() {
        Ok(again) => assert_eq!(TermsFile::decode(again.as_bytes()), Ok(terms.clone())),
        Err(why) => assert_eq!(why, WireError::TooLong),
    }
    for device in &terms.devices {
        let found = terms.terms_of_device(&device.device.to_ascii_uppercase());
        assert_eq!(found, Some(device), "a device has one line, however it is written");
    }
}
