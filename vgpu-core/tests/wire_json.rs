//! The protocol's reader and writer compared with serde_json, in both directions and on arbitrary bytes.
//!
//! `VGPU_SOAK_SECONDS` sets the length of the random test at the end (default 2 s).

#![allow(clippy::disallowed_methods)] // tests may read the clock and the environment

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value as Theirs;
use vgpu_core::protocol::wire::json::{JsonObject, JsonValue, JsonWriter};
use vgpu_core::protocol::wire::{MAX_DEPTH, MAX_LINE, MemberMessage, Reply, WireError};

#[test]
fn a_key_that_appears_twice_is_refused_also_when_spelled_differently() {
    for line in [r#"{"hello":2,"hello":2}"#, r#"{"hello":2,"\u0068ello":3}"#, r#"{"x":[],"x":{}}"#] {
        assert!(matches!(JsonObject::parse(line.as_bytes()), Err(WireError::DuplicateKey(_))), "{line}");
    }
}

#[test]
fn the_longest_line_is_read_and_one_byte_more_is_not() {
    let line = |length: usize| format!("{{\"x\":\"{}\"}}", "a".repeat(length - 8));
    assert_eq!(line(MAX_LINE).len(), MAX_LINE);
    assert!(JsonObject::parse(line(MAX_LINE).as_bytes()).is_ok());
    assert_eq!(JsonObject::parse(line(MAX_LINE + 1).as_bytes()), Err(WireError::TooLong));

    let written = |length: usize| {
        let mut line = JsonWriter::new();
        line.write_string("x", &"v".repeat(length));
        line.finish_line()
    };
    let most = MAX_LINE - written(0).unwrap().len();
    assert_eq!(written(most).unwrap().len(), MAX_LINE);
    assert_eq!(written(most + 1), Err(WireError::TooLong));
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
    let _ = MemberMessage::decode(line);
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
        b"{\"hello\":2,\"pid\":123,\"version\":\"0.1.0\"}\n",
        b"{\"hello\":2,\"tenant\":\"a\",\"memory_limit\":1073741824,\"sm_limit\":30}\n",
        b"{\"error\":\"tenant \\\"a\\\": 1024 members \\ud83d\\ude00 already\"}\n",
        br#"{"x":{"a":[1,-2.5e-3,{"b":"\u00e9\n"}],"c":{}},"hello":18446744073709551615,"y":[[],[[]]],"z":null,"w":12.5}"#,
        "{\"tenant\":\"ünïcode 🦀\",\"hello\": 2 , \"sm_limit\" :\tnull,\"t\":true,\"f\":false}".as_bytes(),
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
