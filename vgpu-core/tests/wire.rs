//! The messages of members and daemon: written ones read back the same, another version is refused with words, and no
//! bytes cause harm.

use proptest::prelude::*;
use serde_json::{Value as Theirs, json};
use vgpu_core::limits::Mode;
use vgpu_core::protocol::page::{GONE_EPOCH, PAGE_SLOTS};
use vgpu_core::protocol::wire::{
    Descriptor, Hello, JoinDevice, MAX_DESCRIPTORS, MAX_DEVICE, MAX_LINE, MAX_TENANT, MAX_VERSION, MemberMessage,
    Reply, Terms, Welcome, WireError, clock_offset,
};
use vgpu_core::time::gate::loss::OnLoss;
use vgpu_core::units::bytes::{Bytes, GIB};
use vgpu_core::units::share::Share;

const HELLO: &str = "{\"hello\":2,\"pid\":123,\"version\":\"0.1.0\",\"pages\":1,\"clock\":5000000000}\n";
const WELCOME: &str = concat!(
    "{\"hello\":2,\"tenant\":\"a\",\"memory_limit\":1073741824,\"sm_limit\":12.5,\"member\":12,\"epoch\":7,\"pages\":1,",
    "\"clock\":5000020000,\"mode\":\"enforce\",\"on_error\":\"closed\",\"on_loss\":\"local\",\"strict\":false,",
    "\"descriptors\":\"beat board report bell\"}\n"
);

fn hello() -> Hello {
    Hello { pid: 123, version: "0.1.0".into(), clock: 5_000_000_000 }
}

fn welcome() -> Welcome {
    Welcome {
        terms: Terms { tenant: "a".into(), memory_limit: Some(Bytes(GIB)), sm_limit: Share::from_permille(125) },
        member: 12,
        epoch: 7,
        clock: 5_000_020_000,
        mode: Mode::Enforce,
        open_on_error: false,
        on_loss: OnLoss::Local,
        strict: false,
        descriptors: vec![Descriptor::Beat, Descriptor::Board, Descriptor::Report, Descriptor::Bell],
    }
}

#[test]
fn the_lines_are_those_of_the_protocol() {
    assert_eq!(hello().encode().unwrap(), HELLO);
    assert_eq!(MemberMessage::decode(HELLO.as_bytes()), Ok(MemberMessage::Hello(hello())));
    assert_eq!(Reply::Welcome(welcome()).encode().unwrap(), WELCOME);
    assert_eq!(Reply::decode(WELCOME.as_bytes()), Ok(Reply::Welcome(welcome())));

    let join = JoinDevice { device: "GPU-6b1c".into(), busy: 9 };
    assert_eq!(join.encode().unwrap(), "{\"join\":\"GPU-6b1c\",\"busy\":9}\n");
    assert_eq!(MemberMessage::decode(join.encode().unwrap().as_bytes()), Ok(MemberMessage::Join(join)));
    assert_eq!(
        MemberMessage::decode(br#"{"join":"GPU-6b1c"}"#),
        Ok(MemberMessage::Join(JoinDevice { device: "GPU-6b1c".into(), busy: 0 })),
        "whoever has measured nothing need not say so"
    );
    let slot = Reply::Slot { device: "GPU-6b1c".into(), slot: 3 };
    assert_eq!(slot.encode().unwrap(), "{\"join\":\"GPU-6b1c\",\"slot\":3}\n");
    assert_eq!(Reply::decode(slot.encode().unwrap().as_bytes()), Ok(slot));
}

#[test]
fn a_share_keeps_its_tenth_of_a_percent() {
    let share = |percent: &str| Reply::decode(WELCOME.replace("12.5", percent).as_bytes());
    let permille = |permille| {
        let terms = Terms { sm_limit: Share::from_permille(permille), ..welcome().terms };
        Ok(Reply::Welcome(Welcome { terms, ..welcome() }))
    };
    assert_eq!((share("12.5"), share("30"), share("30.0")), (permille(125), permille(300), permille(300)));
}

#[test]
fn a_limit_that_is_absent_or_null_is_no_limit() {
    let none = Terms { memory_limit: None, sm_limit: None, ..welcome().terms };
    let none = Reply::Welcome(Welcome { terms: none, ..welcome() });
    for limits in ["", "\"memory_limit\":null,\"sm_limit\":null,"] {
        let line = WELCOME.replace("\"memory_limit\":1073741824,\"sm_limit\":12.5,", limits);
        assert_eq!(Reply::decode(line.as_bytes()), Ok(none.clone()), "{line}");
    }
    assert_eq!(Reply::decode(none.encode().unwrap().as_bytes()), Ok(none));
}

#[test]
fn a_limit_that_is_not_understood_is_an_error_and_never_no_limit() {
    let memory = ["\"1GiB\"", "-1", "1.5", "0", "18446744073709551616", "1e3", "[]", "false"];
    let share =
        ["0", "101", "100.1", "0.9", "12.55", "12.5e0", "-12.5", "18446744073709551615", "1844674407370955161.6"];
    let changed = (memory.map(|value| WELCOME.replace("1073741824", value)).into_iter())
        .chain(share.into_iter().chain(["286", "\"30\""]).map(|value| WELCOME.replace("12.5", value)))
        .chain(["7", "true"].map(|value| WELCOME.replace("\"a\"", value)));
    for line in changed.chain([WELCOME.replace("\"hello\":2", "\"hello\":true")]) {
        assert_ne!(line, WELCOME);
        assert!(Reply::decode(line.as_bytes()).is_err(), "{line}");
    }
}

#[test]
fn unknown_keys_are_skipped_whatever_they_hold() {
    let line = WELCOME
        .replace("{\"hello\":2", r#" { "later" : {"a":[1,-2.5e-3,{"b":"\ud83d\ude00\"}]"}],"c":{}} , "hello":2"#)
        .replace("\"member\":12", r#""x":[[],[[]]],"member" : 12 ,"y":-0,"z":true,"":null"#);
    assert_eq!(Reply::decode(line.as_bytes()), Ok(Reply::Welcome(welcome())), "{line}");
}

#[test]
fn a_refusal_wins_over_whatever_else_the_line_holds() {
    let line = br#"{"hello":7,"tenant":"a","error":"no such tenant"}"#;
    assert_eq!(Reply::decode(line), Ok(Reply::Refused("no such tenant".into())));
}

#[test]
fn a_long_refusal_is_cut_at_a_character() {
    let line = Reply::Refused(format!("x{}", "ü".repeat(4000))).encode().unwrap();
    assert_eq!(Reply::decode(line.as_bytes()), Ok(Reply::Refused(format!("x{}", "ü".repeat(255)))));
}

#[test]
fn another_protocol_or_page_is_refused_in_words_by_either_side() {
    for line in [HELLO, WELCOME] {
        let decode = |line: &str| match line.contains("pid") {
            true => MemberMessage::decode(line.as_bytes()).unwrap_err(),
            false => Reply::decode(line.as_bytes()).unwrap_err(),
        };
        for theirs in [0, 1, 3] {
            let words = decode(&line.replace("\"hello\":2", &format!("\"hello\":{theirs}"))).to_string();
            assert_eq!(words, format!("protocol {theirs} is not spoken here; this side speaks protocol 2"));
        }
        let pages = decode(&line.replace("\"pages\":1", "\"pages\":9")).to_string();
        assert_eq!(pages, "pages of version 9 are not used here; this side uses version 1");
        assert_eq!(decode(&line.replace("\"pages\":1", "\"leaves\":1")), WireError::Missing("pages"));
        assert_eq!(decode("{}"), WireError::Missing("hello or join"));
    }
}

#[test]
fn a_welcome_that_is_not_understood_is_none() {
    for (from, to) in [
        ("\"mode\":\"enforce\"", "\"mode\":\"strict\""),
        ("\"mode\":\"enforce\",", ""),
        ("\"on_error\":\"closed\"", "\"on_error\":\"ajar\""),
        ("\"on_loss\":\"local\"", "\"on_loss\":\"shut\""),
        ("\"strict\":false", "\"strict\":null"),
        ("\"epoch\":7", "\"epoch\":0"),
        ("\"epoch\":7", &format!("\"epoch\":{GONE_EPOCH}")),
        ("\"tenant\":\"a\",", ""),
        ("\"member\":12", "\"member\":0"),
        ("\"clock\":5000020000", "\"clock\":-1"),
        ("\"memory_limit\":1073741824", "\"memory_limit\":0"),
        ("\"sm_limit\":12.5", "\"sm_limit\":0.5"),
        ("beat board report bell", "beat board board"),
        ("beat board report bell", "a b c d e f g h i j k l m n o p q"),
        ("\"tenant\":\"a\"", &format!("\"tenant\":\"{}\"", "a".repeat(MAX_TENANT + 1))),
    ] {
        let line = WELCOME.replace(from, to);
        assert_ne!(line, WELCOME, "{from}");
        assert!(Reply::decode(line.as_bytes()).is_err(), "{line}");
    }
    let slots = format!("{{\"join\":\"GPU-1\",\"slot\":{PAGE_SLOTS}}}");
    let words = Reply::decode(slots.as_bytes()).unwrap_err().to_string();
    assert_eq!(words, "the key \"slot\" is 1024; accepted: a slot of the page: 0 to 1023");
}

#[test]
fn descriptors_are_found_by_their_place_and_counted() {
    let line = WELCOME.replace("beat board report bell", "beat later board report");
    let Ok(Reply::Welcome(welcome)) = Reply::decode(line.as_bytes()) else { panic!("{line}") };
    assert_eq!(welcome.find_descriptor(Descriptor::Board, 4), Ok(Some(2)), "behind one that is not known yet");
    assert_eq!(welcome.find_descriptor(Descriptor::Bell, 4), Ok(None));
    assert_eq!(welcome.find_descriptor(Descriptor::Beat, 3), Err(WireError::Descriptors { announced: 4, came: 3 }));
    let many = Welcome { descriptors: vec![Descriptor::Unknown; MAX_DESCRIPTORS + 1], ..welcome };
    assert!(Reply::Welcome(many).encode().is_err());
}

#[test]
fn what_is_too_long_is_neither_written_nor_read() {
    let long = |length: usize| "x".repeat(length);
    let hello = |version| Hello { version, ..hello() };
    assert!(hello(long(MAX_VERSION)).encode().is_ok());
    let error = WireError::TextTooLong { key: "version", most: MAX_VERSION };
    assert_eq!(hello(long(MAX_VERSION + 1)).encode(), Err(error.clone()));
    let line = HELLO.replace("0.1.0", &long(MAX_VERSION + 1));
    assert_eq!(MemberMessage::decode(line.as_bytes()), Err(error));
    let join = |device| JoinDevice { device, busy: 0 };
    assert!(join(long(MAX_DEVICE)).encode().is_ok() && join(long(MAX_DEVICE + 1)).encode().is_err());
    let line = format!("{{\"join\":\"{}\"}}", long(MAX_DEVICE + 1));
    assert!(matches!(MemberMessage::decode(line.as_bytes()), Err(WireError::TextTooLong { key: "join", .. })));
    // The longest welcome fits into a line.
    let terms = Terms { tenant: "\u{1}".repeat(MAX_TENANT), memory_limit: Some(Bytes(u64::MAX)), ..welcome().terms };
    let longest = Welcome { terms, member: u64::MAX, epoch: GONE_EPOCH - 1, clock: u64::MAX, ..welcome() };
    let longest = Welcome { descriptors: vec![Descriptor::Unknown; MAX_DESCRIPTORS], ..longest };
    assert!(Reply::Welcome(longest).encode().unwrap().len() <= MAX_LINE);
}

#[test]
fn one_clock_has_no_offset_and_two_have_theirs() {
    assert_eq!([clock_offset(10, 10, 20), clock_offset(10, 15, 20), clock_offset(10, 20, 20)], [0; 3]);
    assert_eq!(clock_offset(10, 115, 20), 100, "the daemon's clock is ahead");
    assert_eq!(clock_offset(1010, 15, 1020), -1000);
    assert_eq!(clock_offset(0, u64::MAX, u64::MAX - 1), i64::MIN, "nonsense is a number, not a panic");
}

fn any_welcome() -> impl Strategy<Value = Welcome> {
    let known = [Descriptor::Beat, Descriptor::Board, Descriptor::Report, Descriptor::Bell];
    let terms = (any::<String>(), prop::option::of(1u64..), prop::option::of(10u32..=1000));
    let numbers = (1u64.., 1..GONE_EPOCH, any::<u64>(), any::<bool>());
    let ways = (
        prop::sample::select(vec![Mode::Enforce, Mode::Observe, Mode::Off]),
        prop::sample::select(vec![OnLoss::Local, OnLoss::Open, OnLoss::Block]),
        prop::sample::subsequence(known.to_vec(), 0..=4).prop_shuffle(),
    );
    (terms, numbers, ways).prop_map(|(terms, (member, epoch, clock, strict), (mode, on_loss, descriptors))| {
        let (tenant, memory, sm) = terms;
        let terms = Terms { tenant, memory_limit: memory.map(Bytes), sm_limit: sm.and_then(Share::from_permille) };
        let open_on_error = strict;
        Welcome { terms, member, epoch, clock, mode, open_on_error, on_loss, strict, descriptors }
    })
}

/// Every message that can be read can be written, and reads back the same.
fn hurt(line: &[u8]) {
    match MemberMessage::decode(line) {
        Ok(MemberMessage::Hello(hello)) => {
            assert_eq!(MemberMessage::decode(hello.encode().unwrap().as_bytes()), Ok(MemberMessage::Hello(hello)));
        }
        Ok(MemberMessage::Join(join)) => {
            assert_eq!(MemberMessage::decode(join.encode().unwrap().as_bytes()), Ok(MemberMessage::Join(join)));
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
    match Reply::decode(line) {
        Ok(Reply::Refused(_)) => {}
        Ok(reply) => assert_eq!(Reply::decode(reply.encode().unwrap().as_bytes()), Ok(reply)),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// Applies changes to a line: each has a position, a kind and a byte.
fn changed(line: &str, changes: &[(prop::sample::Index, u8, u8)]) -> Vec<u8> {
    let mut line = line.as_bytes().to_vec();
    for (place, kind, byte) in changes {
        let place = place.index(line.len().max(1)).min(line.len());
        match kind % 4 {
            0 => line.insert(place, *byte),
            1 if place < line.len() => line[place] = *byte,
            2 if place < line.len() => drop(line.remove(place)),
            _ => line.insert(place, b"0123456789\"{}:, "[usize::from(byte % 16)]),
        }
    }
    line
}

proptest! {
    #[test]
    fn serde_json_reads_what_we_write_and_so_do_we(welcome in any_welcome(), pid in 1u32.., version in any::<String>(),
        clock in any::<u64>(), device in any::<String>(), busy in any::<u64>(), slot in 0..PAGE_SLOTS,
        words in any::<String>()) {
        let line = Reply::Refused(words.clone()).encode().unwrap();
        let theirs: Theirs = serde_json::from_str(&line).unwrap();
        prop_assert!(words.starts_with(theirs["error"].as_str().unwrap()));
        if words.len() <= 512 {
            prop_assert_eq!(theirs["error"].as_str(), Some(words.as_str()));
        }
        if let Ok(line) = Reply::Welcome(welcome.clone()).encode() {
            let theirs: Theirs = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(&theirs["tenant"], &json!(welcome.terms.tenant));
            prop_assert_eq!(&theirs["member"], &json!(welcome.member));
            prop_assert_eq!(theirs["descriptors"].as_str().unwrap().split_whitespace().count(), welcome.descriptors.len());
            prop_assert_eq!(Reply::decode(line.as_bytes()), Ok(Reply::Welcome(welcome)));
        } else {
            prop_assert!(welcome.terms.tenant.len() > MAX_TENANT);
        }
        if let Ok(line) = (Hello { pid, version: version.clone(), clock }).encode() {
            let theirs: Theirs = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(theirs, json!({"hello": 2, "pid": pid, "version": version, "pages": 1, "clock": clock}));
        }
        if let Ok(line) = (Reply::Slot { device: device.clone(), slot }).encode() {
            prop_assert_eq!(Reply::decode(line.as_bytes()), Ok(Reply::Slot { device: device.clone(), slot }));
        }
        if let Ok(line) = (JoinDevice { device: device.clone(), busy }).encode() {
            prop_assert_eq!(MemberMessage::decode(line.as_bytes()), Ok(MemberMessage::Join(JoinDevice { device, busy })));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(line in prop::collection::vec(any::<u8>(), 0..600)) {
        hurt(&line);
    }

    #[test]
    fn lines_that_were_changed_never_panic_and_what_is_read_can_be_said(which in 0..5usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<u8>()), 0..4)) {
        let lines = [HELLO, WELCOME, "{\"join\":\"GPU-1\",\"busy\":77}", "{\"join\":\"GPU-1\",\"slot\":3}",
            "{\"error\":\"no\"}"];
        hurt(&changed(lines[which], &changes));
    }
}
