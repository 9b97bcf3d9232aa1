//! Protocol 2: written messages read back the same, each protocol understands the other's refusals, and no bytes cause
//! harm.

use proptest::prelude::*;
use serde_json::{Value as Theirs, json};
use vgpu_core::limits::Mode;
use vgpu_core::protocol::page::{GONE_EPOCH, PAGE_SLOTS};
use vgpu_core::protocol::wire::two::{
    Descriptor, Hello, JoinDevice, MAX_DESCRIPTORS, MAX_DEVICE, MAX_TENANT, MAX_VERSION, MemberMessage, Reply, Welcome,
    clock_offset,
};
use vgpu_core::protocol::wire::{self, MAX_LINE, Terms, WireError};
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
fn a_member_of_protocol_1_is_served_as_ever_by_whoever_speaks_both() {
    let old = wire::Hello { pid: 5, version: "0.0.9".into() };
    assert_eq!(MemberMessage::decode(old.encode().unwrap().as_bytes()), Ok(MemberMessage::HelloOne(old)));
    let refusal = Reply::Refused { words: "no such tenant".into(), speaks: 2 }.encode().unwrap();
    assert_eq!(wire::Reply::decode(refusal.as_bytes()), Ok(wire::Reply::Error("no such tenant".into())));
}

#[test]
fn a_member_of_protocol_2_learns_that_its_daemon_speaks_1() {
    // The answer of a daemon of protocol 1 to the new hello.
    let words = wire::Hello::decode(HELLO.as_bytes()).unwrap_err().to_string();
    let line = wire::Reply::Error(words.clone()).encode().unwrap();
    assert_eq!(Reply::decode(line.as_bytes()), Ok(Reply::Refused { words, speaks: 1 }));
    let old = wire::Reply::Terms(welcome().terms).encode().unwrap();
    assert_eq!(Reply::decode(old.as_bytes()), Err(WireError::Protocol { theirs: 1 }), "terms are no welcome");
}

#[test]
fn another_protocol_or_page_is_refused_in_words_by_either_side() {
    for line in [HELLO, WELCOME] {
        let decode = |line: &str| match line.contains("pid") {
            true => MemberMessage::decode(line.as_bytes()).unwrap_err(),
            false => Reply::decode(line.as_bytes()).unwrap_err(),
        };
        let newer = decode(&line.replace("\"hello\":2", "\"hello\":3")).to_string();
        assert_eq!(newer, "protocol 3 is not spoken here; this side speaks protocols 1 and 2");
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
        Ok(MemberMessage::HelloOne(hello)) => assert_eq!(wire::Hello::decode(line), Ok(hello)),
        Ok(MemberMessage::Hello(hello)) => {
            assert_eq!(MemberMessage::decode(hello.encode().unwrap().as_bytes()), Ok(MemberMessage::Hello(hello)));
        }
        Ok(MemberMessage::Join(join)) => {
            assert_eq!(MemberMessage::decode(join.encode().unwrap().as_bytes()), Ok(MemberMessage::Join(join)));
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
    match Reply::decode(line) {
        Ok(Reply::Refused { .. }) => {}
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
        clock in any::<u64>(), device in any::<String>(), busy in any::<u64>(), slot in 0..PAGE_SLOTS) {
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
            "{\"error\":\"no\",\"speaks\":2}"];
        hurt(&changed(lines[which], &changes));
    }
}
