//! The protocol's reader and writer compared with serde_json, in both directions and on arbitrary bytes.
//!
//! `VGPU_SOAK_SECONDS` sets the length of the random test at the end (default 2 s).

#![allow(clippy::disallowed_methods)] // tests may read the clock and the environment

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value as Theirs;
use vgpu_core::protocol::wire::json::{JsonObject, JsonValue, JsonWriter};
use vgpu_core::protocol::wire::{Hello, MAX_DEPTH, MAX_LINE, Reply, Terms, WireError};
use vgpu_core::units::bytes::{Bytes, GIB};
use vgpu_core::units::share::Share;

fn terms() -> Terms {
    Terms { tenant: "a".into(), memory_limit: Some(Bytes(GIB)), sm_limit: Share::from_percent(30) }
}

#[test]
fn a_hello_is_the_line_of_the_protocol() {
    let hello = Hello { pid: 123, version: "0.1.0".into() };
    let line = hello.encode().unwrap();
    assert_eq!(line, "{\"hello\":1,\"pid\":123,\"version\":\"0.1.0\"}\n");
    assert_eq!(Hello::decode(line.as_bytes()), Ok(hello));
}

#[test]
fn terms_are_the_line_of_the_protocol() {
    let line = Reply::Terms(terms()).encode().unwrap();
    assert_eq!(line, "{\"hello\":1,\"tenant\":\"a\",\"memory_limit\":1073741824,\"sm_limit\":30}\n");
    assert_eq!(Reply::decode(line.as_bytes()), Ok(Reply::Terms(terms())));
}

#[test]
fn a_share_keeps_its_tenth_of_a_percent() {
    let reply = Reply::Terms(Terms { sm_limit: Share::from_permille(125), ..terms() });
    let line = reply.encode().unwrap();
    assert_eq!(line, "{\"hello\":1,\"tenant\":\"a\",\"memory_limit\":1073741824,\"sm_limit\":12.5}\n");
    assert_eq!(Reply::decode(line.as_bytes()), Ok(reply));
    assert_eq!(
        Reply::decode(br#"{"hello":1,"tenant":"a","memory_limit":1073741824,"sm_limit":30.0}"#),
        Ok(Reply::Terms(terms()))
    );
}

#[test]
fn a_limit_that_is_absent_or_null_is_no_limit() {
    let none = Reply::Terms(Terms { memory_limit: None, sm_limit: None, ..terms() });
    assert_eq!(Reply::decode(b"{\"hello\":1,\"tenant\":\"a\"}"), Ok(none.clone()));
    assert_eq!(Reply::decode(br#"{"hello":1,"tenant":"a","memory_limit":null,"sm_limit":null}"#), Ok(none.clone()));
    assert_eq!(Reply::decode(none.encode().unwrap().as_bytes()), Ok(none));
}

#[test]
fn a_limit_that_is_not_understood_is_an_error_and_never_no_limit() {
    for line in [
        r#"{"hello":1,"tenant":"a","memory_limit":"1GiB"}"#,
        r#"{"hello":1,"tenant":"a","memory_limit":-1}"#,
        r#"{"hello":1,"tenant":"a","memory_limit":1.5}"#,
        r#"{"hello":1,"tenant":"a","memory_limit":0}"#,
        r#"{"hello":1,"tenant":"a","memory_limit":18446744073709551616}"#,
        r#"{"hello":1,"tenant":"a","memory_limit":1e3}"#,
        r#"{"hello":1,"tenant":"a","memory_limit":[]}"#,
        r#"{"hello":1,"tenant":"a","memory_limit":false}"#,
        r#"{"hello":1,"tenant":"a","sm_limit":0}"#,
        r#"{"hello":1,"tenant":"a","sm_limit":101}"#,
        r#"{"hello":1,"tenant":"a","sm_limit":100.1}"#,
        r#"{"hello":1,"tenant":"a","sm_limit":0.9}"#,
        r#"{"hello":1,"tenant":"a","sm_limit":12.55}"#,
        r#"{"hello":1,"tenant":"a","sm_limit":12.5e0}"#,
        r#"{"hello":1,"tenant":"a","sm_limit":-12.5}"#,
        r#"{"hello":1,"tenant":"a","sm_limit":18446744073709551615}"#,
        r#"{"hello":1,"tenant":"a","sm_limit":1844674407370955161.6}"#,
        r#"{"hello":1,"tenant":"a","sm_limit":286}"#,
        r#"{"hello":1,"tenant":"a","sm_limit":"30"}"#,
        r#"{"hello":1,"tenant":7}"#,
        r#"{"hello":1}"#,
        r#"{"hello":true,"tenant":"a"}"#,
    ] {
        assert!(Reply::decode(line.as_bytes()).is_err(), "{line}");
    }
}

#[test]
fn unknown_keys_are_skipped_whatever_they_hold() {
    let line = br#" { "later" : {"a":[1,-2.5e-3,{"b":"\ud83d\ude00\"}]"}],"c":{}} , "hello":1,"x":[[],[[]]],
        "tenant":"a","y":-0,"memory_limit":1073741824,"z":true,"sm_limit":30,"":null } "#;
    assert_eq!(Reply::decode(line), Ok(Reply::Terms(terms())));
}

#[test]
fn an_error_wins_over_whatever_else_the_line_holds() {
    let line = br#"{"hello":7,"tenant":"a","error":"no such tenant"}"#;
    assert_eq!(Reply::decode(line), Ok(Reply::Error("no such tenant".into())));
}

#[test]
fn a_long_error_is_cut_at_a_character() {
    let words = "ü".repeat(4000);
    let line = Reply::Error(format!("x{words}")).encode().unwrap();
    let Ok(Reply::Error(cut)) = Reply::decode(line.as_bytes()) else { panic!("{line}") };
    assert_eq!(cut, format!("x{}", "ü".repeat(255)));
}

#[test]
fn another_protocol_is_refused_naming_both_numbers() {
    let words = Hello::decode(br#"{"hello":2}"#).unwrap_err().to_string();
    assert!(words.contains("protocol 2") && words.contains("protocol 1"), "{words}");
    assert_eq!(Reply::decode(br#"{"hello":0,"tenant":"a"}"#), Err(WireError::Version { theirs: 0 }));
}

#[test]
fn a_key_that_appears_twice_is_refused_also_when_spelled_differently() {
    for line in [r#"{"hello":1,"hello":1}"#, r#"{"hello":1,"\u0068ello":2}"#, r#"{"x":[],"x":{}}"#] {
        assert!(matches!(JsonObject::parse(line.as_bytes()), Err(WireError::DuplicateKey(_))), "{line}");
    }
}

#[test]
fn the_longest_line_is_read_and_one_byte_more_is_not() {
    let line = |length: usize| format!("{{\"x\":\"{}\"}}", "a".repeat(length - 8));
    assert_eq!(line(MAX_LINE).len(), MAX_LINE);
    assert!(JsonObject::parse(line(MAX_LINE).as_bytes()).is_ok());
    assert_eq!(JsonObject::parse(line(MAX_LINE + 1).as_bytes()), Err(WireError::TooLong));

    let hello = |length| Hello { pid: 1, version: "v".repeat(length) };
    let room = MAX_LINE - hello(0).encode().unwrap().len();
    assert_eq!(hello(room).encode().unwrap().len(), MAX_LINE);
    assert_eq!(hello(room + 1).encode(), Err(WireError::TooLong));
}

#[test]
fn the_deepest_value_is_skipped_and_one_level_more_is_not() {
    let nested = |depth: usize| format!("{{\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(JsonObject::parse(nested(MAX_DEPTH).as_bytes()).is_ok());
    assert_eq!(JsonObject::parse(nested(MAX_DEPTH + 1).as_bytes()), Err(WireError::TooDeep));
    let objects = |depth: usize| format!("{{\"x\":{}1{}}}", "{\"k\":".repeat(depth), "}".repeat(depth));
    assert!(JsonObject::parse(objects(MAX_DEPTH).as_bytes()).is_ok());
    assert_eq!(JsonObject::parse(objects(MAX_DEPTH + 1).as_bytes()), Err(WireError::TooDeep));
}

#[test]
fn what_is_not_json_is_refused_with_the_place() {
    for (line, at) in [
        ("", 0),
        ("[]", 0),
        ("{", 1),
        ("{\"a\"}", 4),
        ("{\"a\":}", 5),
        ("{\"a\":01}", 6),
        ("{\"a\":1,}", 7),
        ("{\"a\":+1}", 5),
        ("{\"a\":.5}", 5),
        ("{\"a\":1.}", 7),
        ("{\"a\":nul}", 5),
        ("{a:1}", 1),
        ("{\"a\":1} x", 8),
        ("{\"a\":\"\t\"}", 6),
        ("{\"a\":\"\\x\"}", 7),
        ("{\"a\":\"", 6),
    ] {
        match JsonObject::parse(line.as_bytes()) {
            Err(WireError::Syntax { at: place, .. }) => assert_eq!(place, at, "{line}"),
            other => panic!("{line}: {other:?}"),
        }
        assert!(serde_json::from_str::<serde_json::Map<String, Theirs>>(line).is_err(), "{line}");
    }
    assert_eq!(JsonObject::parse(b"{\"\xff\":1}"), Err(WireError::NotUtf8));
    for half in [r#"{"a":"\ud800"}"#, r#"{"a":"\ud800\u0041"}"#, r#"{"a":"\udc00"}"#, r#"{"a":"\u00g0"}"#] {
        assert!(matches!(JsonObject::parse(half.as_bytes()), Err(WireError::Syntax { .. })), "{half}");
    }
}

/// True if our reader's value equals serde_json's.
fn same(ours: &JsonValue, theirs: &Theirs) -> bool {
    match ours {
        // serde_json's floats have 53 bits of precision.
        JsonValue::Tenths(tenths) => theirs.as_f64().is_some_and(|number| {
            theirs.is_f64() && (number * 10.0 - *tenths as f64).abs() <= *tenths as f64 * f64::EPSILON * 4.0
        }),
        JsonValue::Skipped => {
            !matches!(kept(theirs), JsonValue::String(_) | JsonValue::Number(_) | JsonValue::Bool(_) | JsonValue::Null)
        }
        _ => *ours == kept(theirs),
    }
}

/// The value that our reader keeps for a value of serde_json.
fn kept(theirs: &Theirs) -> JsonValue {
    match theirs {
        Theirs::Null => JsonValue::Null,
        Theirs::Bool(value) => JsonValue::Bool(*value),
        Theirs::String(text) => JsonValue::String(text.clone()),
        Theirs::Number(number) => number.as_u64().map_or(JsonValue::Skipped, JsonValue::Number),
        Theirs::Array(_) | Theirs::Object(_) => JsonValue::Skipped,
    }
}

/// Compares our reader with serde_json on any bytes.
fn agree(line: &[u8]) {
    let ours = JsonObject::parse(line);
    let theirs = serde_json::from_slice::<serde_json::Map<String, Theirs>>(line);
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => {
            assert_eq!(ours.all_entries().count(), theirs.len(), "{line:?}");
            for (key, value) in ours.all_entries() {
                assert!(same(value, &theirs[key]), "{key:?} of {line:?}: {value:?}");
            }
        }
        (Ok(_), Err(why)) => assert!(why.to_string().contains("number out of range"), "{why}: {line:?}"),
        (Err(WireError::TooLong), _) => assert!(line.len() > MAX_LINE),
        (Err(WireError::TooDeep | WireError::DuplicateKey(_)), _) | (Err(_), Err(_)) => {}
        (Err(why), Ok(_)) => panic!("refused what serde_json reads: {why}: {:?}", String::from_utf8_lossy(line)),
    }
    let _ = Hello::decode(line);
    let _ = Reply::decode(line);
}

fn any_value() -> impl Strategy<Value = Theirs> {
    let leaf = prop_oneof![
        Just(Theirs::Null),
        any::<bool>().prop_map(Theirs::from),
        any::<u64>().prop_map(Theirs::from),
        any::<i64>().prop_map(Theirs::from),
        any::<f64>().prop_map(Theirs::from),
        any::<String>().prop_map(Theirs::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Theirs::from),
            prop::collection::hash_map(any::<String>(), inner, 0..4).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn serde_json_reads_what_we_write(pid in 1u32.., version in any::<String>(), tenant in any::<String>(),
        memory in proptest::option::of(1u64..), sm in proptest::option::of(10u32..=1000), words in any::<String>()) {
        let hello = Hello { pid, version: version.clone() };
        if let Ok(line) = hello.encode() {
            prop_assert_eq!(line.find('\n'), Some(line.len() - 1));
            let theirs: Theirs = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(&theirs, &serde_json::json!({"hello": 1, "pid": pid, "version": version}));
            prop_assert_eq!(Hello::decode(line.as_bytes()), Ok(hello));
        }
        let reply = Reply::Terms(Terms { tenant: tenant.clone(), memory_limit: memory.map(Bytes), sm_limit: sm.and_then(Share::from_permille) });
        if let Ok(line) = reply.encode() {
            prop_assert_eq!(line.find('\n'), Some(line.len() - 1));
            let theirs: Theirs = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(theirs["sm_limit"].as_f64(), sm.map(|permille| f64::from(permille) / 10.0));
            prop_assert_eq!(&theirs, &serde_json::json!({"hello": 1, "tenant": tenant, "memory_limit": memory,
                "sm_limit": theirs["sm_limit"]}));
            prop_assert_eq!(Reply::decode(line.as_bytes()), Ok(reply));
        }
        let line = Reply::Error(words.clone()).encode().unwrap();
        let theirs: Theirs = serde_json::from_str(&line).unwrap();
        prop_assert!(words.starts_with(theirs["error"].as_str().unwrap()));
        if words.len() <= 512 {
            prop_assert_eq!(theirs["error"].as_str(), Some(words.as_str()));
        }
    }

    #[test]
    fn we_read_what_serde_json_writes(map in prop::collection::btree_map(any::<String>(), any_value(), 0..6),
        pretty in any::<bool>()) {
        let theirs: serde_json::Map<String, Theirs> = map.into_iter().collect();
        let line = if pretty { serde_json::to_string_pretty(&theirs) } else { serde_json::to_string(&theirs) }.unwrap();
        prop_assume!(line.len() <= MAX_LINE);
        let ours = JsonObject::parse(line.as_bytes()).unwrap();
        for (key, value) in &theirs {
            let ours = ours.get(key).unwrap();
            prop_assert!(same(ours, value), "{:?} is not {}", ours, value);
        }
    }

    #[test]
    fn a_boolean_comes_back(value in any::<bool>()) {
        let mut line = JsonWriter::new();
        line.write_boolean("b", value);
        let line = line.finish_line().unwrap();
        prop_assert_eq!(JsonObject::parse(line.as_bytes()).unwrap().boolean_value("b"), Ok(Some(value)));
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_get_serde_jsons_answer(line in prop::collection::vec(any::<u8>(), 0..600)) {
        agree(&line);
    }

    #[test]
    fn text_of_jsons_own_letters_gets_serde_jsons_answer(
        text in r#"\{("[a-c\\"]{0,3}":|[\[\]{}",:\\u0-9a-fA-F+\-.eE nulltruefalse]){0,30}\}?"#) {
        agree(text.as_bytes());
    }
}

#[test]
fn soak_mutated_lines_never_panic_and_get_serde_jsons_answer() {
    let seconds = std::env::var("VGPU_SOAK_SECONDS").ok().map_or(2, |text| text.parse().expect("VGPU_SOAK_SECONDS"));
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = u64::from(clock.subsec_nanos()) << 32 | u64::from(std::process::id()) | 1;
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let seeds: [&[u8]; 5] = [
        b"{\"hello\":1,\"pid\":123,\"version\":\"0.1.0\"}\n",
        b"{\"hello\":1,\"tenant\":\"a\",\"memory_limit\":1073741824,\"sm_limit\":30}\n",
        b"{\"error\":\"tenant \\\"a\\\": 1024 members \\ud83d\\ude00 already\"}\n",
        br#"{"x":{"a":[1,-2.5e-3,{"b":"\u00e9\n"}],"c":{}},"hello":18446744073709551615,"y":[[],[[]]],"z":null,"w":12.5}"#,
        "{\"tenant\":\"ünïcode 🦀\",\"hello\": 1 , \"sm_limit\" :\tnull,\"t\":true,\"f\":false}".as_bytes(),
    ];
    const LETTERS: &[u8] = b"{}[]\",:\\/u0123456789abcdefDE+-. \t\n\r\x00\x1f\x7f\x80\xc3\xed\xf0\xfftruefalsn";
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0u64;
    while Instant::now() < until {
        for _ in 0..500 {
            let mut line = seeds[random.usize(..seeds.len())].to_vec();
            for _ in 0..=random.usize(..6) {
                let at = random.usize(..line.len() + 1);
                match random.usize(..5) {
                    0 => line.insert(at, LETTERS[random.usize(..LETTERS.len())]),
                    1 if at < line.len() => line[at] = LETTERS[random.usize(..LETTERS.len())],
                    2 if at < line.len() => drop(line.remove(at)),
                    3 => {
                        let other = seeds[random.usize(..seeds.len())];
                        let from = random.usize(..other.len());
                        let to = from + random.usize(..other.len() - from);
                        line.splice(at..at, other[from..to].iter().copied());
                    }
                    _ => line.truncate(at),
                }
            }
            agree(&line);
            rounds += 1;
        }
    }
    println!("{rounds} lines");
    assert!(rounds >= 500);
}
