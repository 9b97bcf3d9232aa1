//! The error line for each mistyped limit, and the values of well-formed limits.

use proptest::prelude::*;
use vgpu_core::limits::{Family, NamedDevice, Quantity, RawLimits, Source, Variable};
use vgpu_core::units::bytes::{Bytes, GIB, MIB};
use vgpu_core::units::share::Share;

const SIZE: &str = "bytes or a number with K, M, G, T, KiB..TiB (1024) or KB..TB (1000) like 1.5GiB, a percentage of the \
                    device like 25%, or unlimited";
const HAMI_SIZE: &str = "bytes or a number with k, m, g or t (1024, with b or ib too) like 1024m, or 0 for no limit";
const SHARE: &str = "a percentage of the device's time from 1 to 100 like 30 or 12.5%, or unlimited";
const HAMI_SHARE: &str = "a percentage of the device's time from 1 to 99 like 30, or 0 or 100 for no limit";

fn name_form(base: &str) -> String {
    format!("{base}, or {base}_<i> with a device ordinal i from 0 to 255")
}

fn read(vars: &[(&str, &str)]) -> Result<RawLimits, String> {
    RawLimits::from_vars(vars.iter().copied()).map_err(|error| error.to_string())
}

#[test]
fn every_bad_input_has_its_exact_line() {
    let (ours, hami) = (name_form("VGPU_MEMORY_LIMIT"), name_form("CUDA_DEVICE_MEMORY_LIMIT"));
    let (our_sm, hami_sm) = (name_form("VGPU_SM_LIMIT"), name_form("CUDA_DEVICE_SM_LIMIT"));
    let (ours, hami, our_sm, hami_sm) = (ours.as_str(), hami.as_str(), our_sm.as_str(), hami_sm.as_str());
    // Columns: variable, value in the environment, the line's text between the value and "accepted", the accepted
    // forms.
    let rows: &[(&str, &[u8], &str, &str)] = &[
        // Values that are no memory size.
        ("VGPU_MEMORY_LIMIT", b"abc", r#""abc" is not a size"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"", r#""" is empty"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"   ", r#""   " is empty"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"0", r#""0" is zero"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"0GiB", r#""0GiB" is zero"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"-1GiB", r#""-1GiB" is negative"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"+1GiB", r#""+1GiB" is not a size"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"GiB", r#""GiB" is not a size"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"1.5", r#""1.5" is a fraction of a byte (a unit is missing)"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"1..5G", r#""1..5G" has two decimal points"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"1.2.3G", r#""1.2.3G" has two decimal points"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b".5G", r#"".5G" has a decimal point without digits on both sides"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"5.G", r#""5.G" has a decimal point without digits on both sides"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"1,5G", r#""1,5G" has a comma (write a decimal point)"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"0x40000000", r#""0x40000000" is hexadecimal (write a decimal number)"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"1e9", r#""1e9" has an exponent (write the number out)"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"1 GiB", r#""1 GiB" has a space inside"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"1PiB", r#""1PiB" has an unknown unit"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"1Gibibyte", r#""1Gibibyte" has an unknown unit"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"1_000", r#""1_000" has an unknown unit"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"18446744073709551616", r#""18446744073709551616" is too large"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"99999999T", r#""99999999T" is too large"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"0.0001K", r#""0.0001K" is less than one byte"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"101%", r#""101%" is more than 100%"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"0%", r#""0%" is zero"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"%", r#""%" is not a size"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"-5%", r#""-5%" is negative"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"12.34567%", r#""12.34567%" has more than four decimals"#, SIZE),
        (
            "VGPU_MEMORY_LIMIT",
            "\u{661}\u{660}GiB".as_bytes(),
            r#""\u{661}\u{660}GiB" has characters outside ASCII"#,
            SIZE,
        ),
        ("VGPU_MEMORY_LIMIT", "1\u{a0}GiB".as_bytes(), r#""1\u{a0}GiB" has characters outside ASCII"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"1GiB\xff", r#""1GiB\xff" is not UTF-8 text"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"1G\x1b[2J", r#""1G\u{1b}[2J" has an unknown unit"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"1G\n2G", r#""1G\n2G" has a space inside"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"\"1G\"", r#""\"1G\"" is not a size"#, SIZE),
        ("VGPU_MEMORY_LIMIT", b"none", r#""none" is not a size"#, SIZE),
        (
            "VGPU_MEMORY_LIMIT",
            &[b'9'; 500],
            r#""999999999999999999999999999999999999999999999999..." is too large"#,
            SIZE,
        ),
        ("VGPU_MEMORY_LIMIT_3", b"lots", r#""lots" is not a size"#, SIZE),
        // Names whose suffix is no ordinal.
        ("VGPU_MEMORY_LIMIT_x", b"1G", r#""1G" is not a limit variable"#, ours),
        ("VGPU_MEMORY_LIMIT_", b"1G", r#""1G" is not a limit variable"#, ours),
        ("VGPU_MEMORY_LIMIT_-1", b"1G", r#""1G" is not a limit variable"#, ours),
        ("VGPU_MEMORY_LIMIT_00", b"1G", r#""1G" is not a limit variable"#, ours),
        ("VGPU_MEMORY_LIMIT_256", b"1G", r#""1G" is not a limit variable"#, ours),
        ("VGPU_MEMORY_LIMIT_4294967296", b"1G", r#""1G" is not a limit variable"#, ours),
        ("VGPU_MEMORY_LIMIT_0_1", b"1G", r#""1G" is not a limit variable"#, ours),
        ("VGPU_MEMORY_LIMITS", b"1G", r#""1G" is not a limit variable"#, ours),
        ("VGPU_SM_LIMIT_one", b"30", r#""30" is not a limit variable"#, our_sm),
        ("CUDA_DEVICE_MEMORY_LIMIT_x", b"1g", r#""1g" is not a limit variable"#, hami),
        ("CUDA_DEVICE_SM_LIMIT_ 0", b"30", r#""30" is not a limit variable"#, hami_sm),
        // Values that are no share of device time.
        ("VGPU_SM_LIMIT", b"0", r#""0" is zero"#, SHARE),
        ("VGPU_SM_LIMIT", b"", r#""" is empty"#, SHARE),
        ("VGPU_SM_LIMIT", b"101", r#""101" is more than 100%"#, SHARE),
        ("VGPU_SM_LIMIT", b"0.5", r#""0.5" is less than 1%"#, SHARE),
        ("VGPU_SM_LIMIT", b"-30", r#""-30" is negative"#, SHARE),
        ("VGPU_SM_LIMIT", b"half", r#""half" is not a percentage"#, SHARE),
        ("VGPU_SM_LIMIT", b"30 percent", r#""30 percent" has something after the number"#, SHARE),
        ("VGPU_SM_LIMIT", b"12.25", r#""12.25" has more than one decimal"#, SHARE),
        ("VGPU_SM_LIMIT_1", b"12,5", r#""12,5" has a comma (write a decimal point)"#, SHARE),
        // HAMi's variables keep HAMi's meaning, and nonsense is refused too.
        ("CUDA_DEVICE_MEMORY_LIMIT", b"abc", r#""abc" is not a size"#, HAMI_SIZE),
        ("CUDA_DEVICE_MEMORY_LIMIT", b"", r#""" is empty"#, HAMI_SIZE),
        ("CUDA_DEVICE_MEMORY_LIMIT", b"-1", r#""-1" is negative"#, HAMI_SIZE),
        ("CUDA_DEVICE_MEMORY_LIMIT", b"25%", r#""25%" has an unknown unit"#, HAMI_SIZE),
        ("CUDA_DEVICE_MEMORY_LIMIT", b"unlimited", r#""unlimited" is not a size"#, HAMI_SIZE),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", b"99999999999g", r#""99999999999g" is too large"#, HAMI_SIZE),
        ("CUDA_DEVICE_SM_LIMIT", b"all", r#""all" is not a percentage"#, HAMI_SHARE),
        ("CUDA_DEVICE_SM_LIMIT_7", b"30x", r#""30x" has something after the number"#, HAMI_SHARE),
    ];
    assert!(rows.len() >= 40, "{} rows", rows.len());
    for (name, value, says, accepted) in rows {
        let error = RawLimits::from_vars([(name, *value)]).expect_err(name);
        assert_eq!(error.to_string(), format!("{name}={says}; accepted: {accepted}"));
        assert_eq!(error.variable_name(), *name);
    }
}

#[test]
fn a_device_that_does_not_exist_is_named_with_how_many_there_are() {
    let raw = read(&[("VGPU_MEMORY_LIMIT_2", "1GiB"), ("CUDA_DEVICE_SM_LIMIT_9", "50")]).unwrap();
    assert!(raw.has_ordinals());
    let line = |count| raw.check_devices(count).map_err(|error| error.to_string());
    assert_eq!(
        line(0),
        Err(r#"VGPU_MEMORY_LIMIT_2="1GiB" names a device that does not exist; there is none"#.to_owned())
    );
    assert_eq!(
        line(1),
        Err(r#"VGPU_MEMORY_LIMIT_2="1GiB" names a device that does not exist; there is one, accepted ordinal: 0"#
            .to_owned())
    );
    assert_eq!(
        line(3),
        Err(
            r#"CUDA_DEVICE_SM_LIMIT_9="50" names a device that does not exist; there are 3, accepted ordinals: 0 to 2"#
                .to_owned()
        )
    );
    assert_eq!(line(10), Ok(()));
}

#[test]
fn with_several_faults_the_same_one_is_told_whatever_the_order() {
    let mut vars = [("VGPU_SM_LIMIT", "x"), ("CUDA_DEVICE_SM_LIMIT", "y"), ("VGPU_MEMORY_LIMIT", "z")];
    for _ in 0..3 {
        vars.rotate_left(1);
        assert!(read(&vars).unwrap_err().starts_with("CUDA_DEVICE_SM_LIMIT="));
    }
}

#[test]
fn other_variables_are_nobodys_business() {
    let vars = [
        ("PATH", "/bin"),
        ("VGPU_TENANT", "a"),
        ("VGPU_LOG", "off"),
        ("VGPU_MEMORY", "abc"),
        ("XVGPU_MEMORY_LIMIT", "abc"),
        ("vgpu_memory_limit", "abc"),
        ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/x"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("", ""),
    ];
    let raw = read(&vars).unwrap();
    assert!(!raw.asked_for_anything() && !raw.has_ordinals() && raw.written_variables().next().is_none());
    assert!(raw.for_device(0, Bytes(GIB)).unwrap().is_unlimited());
}

#[test]
fn no_limit_in_any_words_asks_for_nothing() {
    for (name, value) in [
        ("VGPU_MEMORY_LIMIT", "unlimited"),
        ("VGPU_SM_LIMIT", "unlimited"),
        ("VGPU_SM_LIMIT", "100"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "0"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "0m"),
        ("CUDA_DEVICE_SM_LIMIT", "0"),
        ("CUDA_DEVICE_SM_LIMIT", "100"),
        ("CUDA_DEVICE_SM_LIMIT", "250"),
    ] {
        let raw = read(&[(name, value)]).unwrap();
        assert!(!raw.asked_for_anything(), "{name}={value}");
        assert!(raw.for_device(0, Bytes(GIB)).unwrap().is_unlimited(), "{name}={value}");
    }
}

fn memory(vars: &[(&str, &str)], ordinal: u32, total: u64) -> Option<u64> {
    read(vars).unwrap().for_device(ordinal, Bytes(total)).unwrap().memory.map(Bytes::get)
}

fn sm(vars: &[(&str, &str)], ordinal: u32) -> Option<u16> {
    read(vars).unwrap().for_device(ordinal, Bytes(GIB)).unwrap().sm.map(Share::as_permille)
}

#[test]
fn the_variable_of_a_device_wins_over_the_one_for_all() {
    let vars = [("VGPU_MEMORY_LIMIT", "4G"), ("VGPU_MEMORY_LIMIT_1", "8G"), ("VGPU_MEMORY_LIMIT_2", "unlimited")];
    assert_eq!(memory(&vars, 0, 80 * GIB), Some(4 * GIB));
    assert_eq!(memory(&vars, 1, 80 * GIB), Some(8 * GIB), "also when it is higher");
    assert_eq!(memory(&vars, 2, 80 * GIB), None, "also when it says no limit");
    let hami = [("CUDA_DEVICE_MEMORY_LIMIT", "4g"), ("CUDA_DEVICE_MEMORY_LIMIT_1", "0")];
    assert_eq!(memory(&hami, 0, 80 * GIB), Some(4 * GIB));
    // HAMi's own library treats 0 for a device as unset. A ceiling of 100 is a value for that device.
    assert_eq!(memory(&hami, 1, 80 * GIB), Some(4 * GIB));
    assert_eq!(memory(&hami[1..], 1, 80 * GIB), None);
    let hami = [("CUDA_DEVICE_SM_LIMIT", "30"), ("CUDA_DEVICE_SM_LIMIT_1", "0"), ("CUDA_DEVICE_SM_LIMIT_2", "100")];
    assert_eq!((sm(&hami, 0), sm(&hami, 1), sm(&hami, 2)), (Some(300), Some(300), None));
    assert_eq!(sm(&hami[1..], 1), None);
    let shares = [("VGPU_SM_LIMIT", "30"), ("VGPU_SM_LIMIT_1", "60"), ("VGPU_SM_LIMIT_2", "100")];
    assert_eq!((sm(&shares, 0), sm(&shares, 1), sm(&shares, 2)), (Some(300), Some(600), None));
}

#[test]
fn of_both_families_the_lower_wins_and_is_named() {
    let both = [("VGPU_MEMORY_LIMIT", "4G"), ("CUDA_DEVICE_MEMORY_LIMIT", "3g")];
    assert_eq!(memory(&both, 0, 80 * GIB), Some(3 * GIB));
    assert_eq!(memory(&[("VGPU_MEMORY_LIMIT", "2G"), both[1]], 0, 80 * GIB), Some(2 * GIB));
    assert_eq!(memory(&[("VGPU_MEMORY_LIMIT", "10%"), both[1]], 0, 10 * GIB), Some(GIB), "a percentage too");
    assert_eq!(memory(&[("VGPU_MEMORY_LIMIT", "unlimited"), both[1]], 0, 80 * GIB), Some(3 * GIB));
    assert_eq!(sm(&[("VGPU_SM_LIMIT", "30"), ("CUDA_DEVICE_SM_LIMIT", "20")], 0), Some(200));
    assert_eq!(sm(&[("VGPU_SM_LIMIT", "30"), ("CUDA_DEVICE_SM_LIMIT", "0")], 0), Some(300));

    let limits = read(&both).unwrap().for_device(0, Bytes(80 * GIB)).unwrap();
    let hami = Variable { family: Family::Hami, quantity: Quantity::Memory, ordinal: None };
    assert_eq!(limits.memory_from, Some(Source::Variable(hami)));
    assert_eq!(limits.memory_from.unwrap().to_string(), "CUDA_DEVICE_MEMORY_LIMIT");
}

const LIST: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const UUID: &str = "GPU-89aBcdef-0011-2233-4455-66778899aabb";

/// The memory limit of the device that CUDA numbers `cuda` and that has [`UUID`].
fn listed(vars: &[(&str, &str)], cuda: Option<u32>, total: u64) -> Option<(u64, String)> {
    let device = NamedDevice { index: Some(0), cuda, uuid: UUID };
    let limits = read(vars).unwrap().for_named_device(&device, Some(Bytes(total))).unwrap();
    limits.memory.map(|bytes| (bytes.0, limits.memory_from.unwrap().to_string()))
}

#[test]
fn a_list_limits_the_devices_that_it_names() {
    for (list, number, expected) in [
        ("0=1G", 0, Some(GIB)),
        ("0=1G", 1, None),
        ("0=1G,1=512MB", 1, Some(512 * MIB)),
        (" 0 = 1g , 1=512m ", 1, Some(512 * MIB)),
        ("0=1073741824", 0, Some(GIB)),
        ("0=1048576K,1=1kb", 0, Some(GIB)),
        ("0=3G,0=2G,0=4G", 0, Some(2 * GIB)),
        ("GPU-89abcdef=1G", 7, Some(GIB)),
        ("MIG-89ABCDEF-0011-2233-4455-66778899AABB=1G", 7, Some(GIB)),
        ("GPU-8=1G", 7, Some(GIB)),
        ("GPU-9=1G", 7, None),
        ("GPU-89abcdef-0011-2233-4455-66778899aabbc=1G", 7, None),
        ("GPU-8=2G,7=1G", 7, Some(GIB)),
        ("200=1G,0=2G", 0, Some(2 * GIB)),
        ("0=999G", 0, Some(80 * GIB)),
    ] {
        let raw = read(&[(LIST, list)]).unwrap();
        assert!(raw.asked_for_anything() && !raw.has_ordinals() && raw.check_devices(1).is_ok(), "{list}");
        let found = listed(&[(LIST, list)], Some(number), 80 * GIB);
        assert_eq!(found, expected.map(|bytes| (bytes, LIST.to_owned())), "{list}");
    }
    let long = (0..64).map(|number| format!("{number}=80000M")).collect::<Vec<_>>().join(",");
    assert_eq!(listed(&[(LIST, &long)], Some(63), 80 * GIB).unwrap().0, 80_000 * MIB);
    assert_eq!(listed(&[(LIST, "0=1G")], None, 80 * GIB), None, "CUDA's number is not known");
    assert_eq!(listed(&[(LIST, "GPU-89=1G")], None, 80 * GIB).unwrap().0, GIB);
}

#[test]
fn next_to_a_list_the_lowest_limit_holds() {
    let with = |name, value| listed(&[(LIST, "0=2G"), (name, value)], Some(0), 80 * GIB).unwrap();
    for name in ["VGPU_MEMORY_LIMIT", "VGPU_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT"] {
        assert_eq!(with(name, "1g"), (GIB, name.to_owned()));
        assert_eq!(with(name, "3g"), (2 * GIB, LIST.to_owned()));
    }
    assert_eq!(with("VGPU_MEMORY_LIMIT", "unlimited"), (2 * GIB, LIST.to_owned()));
    let device = NamedDevice { index: Some(0), cuda: Some(0), uuid: UUID };
    for (said, expected) in [(GIB, GIB), (3 * GIB, 2 * GIB)] {
        let raw = read(&[(LIST, "0=2G")]).unwrap().with_daemon(Some(Bytes(said)), None);
        assert_eq!(raw.for_named_device(&device, None).unwrap().memory, Some(Bytes(expected)));
    }
    let later = read(&[]).unwrap().tightened_by(read(&[(LIST, "0=2G")]).unwrap());
    assert_eq!(later.for_named_device(&device, None).unwrap().memory, Some(Bytes(2 * GIB)));
    assert!(read(&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT_0", "1G")]).is_ok_and(|raw| !raw.asked_for_anything()));
}

#[test]
fn a_list_with_an_entry_that_is_not_understood_is_an_error() {
    let forms = "DEVICE=SIZE, separated by commas, where DEVICE is CUDA's number or a UUID and SIZE is bytes or a whole \
                 number with K, M or G (1024), like 0=1G,1=512MB";
    for list in [
        "",
        " ",
        "1G",
        "0=",
        "=1G",
        "0=1G,",
        ",0=1G",
        "0=1G;1=1G",
        "0=much",
        "0=-1G",
        "0=0",
        "0=0G",
        "0=1.5G",
        "0=1T",
        "0=1GiB",
        "0=25%",
        "0=unlimited",
        "00=1G",
        "+0=1G",
        "-1=1G",
        "256=1G",
        "*=1G",
        "GPU-=1G",
        "GPU-x=1G",
        "MIG-GPU-89/1/0=1G",
        "89abcdef=1G",
        "0=1 G",
        "0:1G",
        "0=1G\n",
        "0=99999999999999G",
        "0=1G,1=512X",
    ] {
        let error = read(&[(LIST, list)]).unwrap_err();
        let shown = list.replace('\n', "\\n");
        assert_eq!(error, format!(r#"{LIST}="{shown}" is not a list of DEVICE=SIZE; accepted: {forms}"#));
    }
    let error = RawLimits::from_vars([(LIST, b"0=1G\xff")]).unwrap_err().to_string();
    assert!(error.contains("is not UTF-8 text; accepted: DEVICE=SIZE"), "{error}");
}

#[test]
fn the_daemons_terms_only_lose_to_something_lower() {
    let terms = |vars: &[(&str, &str)]| {
        let raw = read(vars).unwrap().with_daemon(Some(Bytes(GIB)), Share::from_percent(30));
        assert!(raw.asked_for_anything());
        let limits = raw.for_device(0, Bytes(80 * GIB)).unwrap();
        (limits.memory.unwrap().0, limits.memory_from.unwrap().to_string(), limits.sm.unwrap().as_permille())
    };
    assert_eq!(terms(&[]), (GIB, "the daemon".to_owned(), 300));
    assert_eq!(terms(&[("VGPU_MEMORY_LIMIT", "unlimited"), ("VGPU_SM_LIMIT", "unlimited")]).0, GIB);
    assert_eq!(terms(&[("VGPU_MEMORY_LIMIT", "2G"), ("VGPU_SM_LIMIT", "50")]), (GIB, "the daemon".to_owned(), 300));
    assert_eq!(
        terms(&[("VGPU_MEMORY_LIMIT_0", "512M"), ("VGPU_SM_LIMIT", "10")]),
        (512 * MIB, "VGPU_MEMORY_LIMIT_0".to_owned(), 100)
    );
}

#[test]
fn a_limit_above_the_device_is_the_device() {
    assert_eq!(memory(&[("VGPU_MEMORY_LIMIT", "1T")], 0, 16 * GIB), Some(16 * GIB));
    assert_eq!(memory(&[("VGPU_MEMORY_LIMIT", "100%")], 0, 16 * GIB), Some(16 * GIB));
}

#[test]
fn a_percentage_that_comes_to_nothing_is_an_error_not_an_unlimited_device() {
    let raw = read(&[("VGPU_MEMORY_LIMIT", "0.0001%")]).unwrap();
    let line = raw.for_device(0, Bytes(1000)).unwrap_err().to_string();
    assert_eq!(line, format!(r#"VGPU_MEMORY_LIMIT="0.0001%" is less than one byte; accepted: {SIZE}"#));
}

#[test]
fn of_a_device_whose_memory_is_unknown_a_size_holds_and_a_percentage_is_an_error() {
    let limits = |value: &str| read(&[("VGPU_MEMORY_LIMIT", value)]).unwrap().for_device(0, None);
    assert_eq!(limits("3GiB").unwrap().memory, Some(Bytes(3 * GIB)));
    assert_eq!(limits("unlimited").unwrap().memory, None);
    let line = limits("25%").unwrap_err().to_string();
    let words = "is a percentage, and the driver does not tell this device's memory (NVML: not supported); accepted: a size like \
                 1.5GiB, or unlimited";
    assert_eq!(line, format!(r#"VGPU_MEMORY_LIMIT="25%" {words}"#));
    // The daemon's limit and a percentage together: the percentage is still an error, not only the daemon's limit.
    let both = read(&[("VGPU_MEMORY_LIMIT", "25%")]).unwrap().with_daemon(Some(Bytes(GIB)), None);
    assert!(both.for_device(0, None).is_err());
}

#[test]
fn of_a_name_that_occurs_twice_the_first_counts() {
    assert_eq!(memory(&[("VGPU_MEMORY_LIMIT", "1G"), ("VGPU_MEMORY_LIMIT", "2G")], 0, 80 * GIB), Some(GIB));
}

#[test]
fn hamis_values_keep_their_meaning() {
    for (value, bytes) in [("1024MiB", GIB), ("1024m", GIB), ("2gb", 2 * GIB), ("010g", 10 * GIB), ("1073741824", GIB)]
    {
        assert_eq!(memory(&[("CUDA_DEVICE_MEMORY_LIMIT_0", value)], 0, 80 * GIB), Some(bytes), "{value}");
    }
}

/// Variables of limits and modes, each with a valid value.
fn environment() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    const SIZES: &[&str] = &["1GiB", "3GiB", "8GiB", "25%", "unlimited"];
    const HAMI_SIZES: &[&str] = &["1g", "3g", "8g", "0"];
    const SHARES: &[&str] = &["5", "30", "70", "100"];
    const ROWS: &[(&str, &[&str])] = &[
        ("VGPU_MEMORY_LIMIT", SIZES),
        ("VGPU_MEMORY_LIMIT_0", SIZES),
        ("VGPU_MEMORY_LIMIT_1", SIZES),
        ("CUDA_DEVICE_MEMORY_LIMIT", HAMI_SIZES),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", HAMI_SIZES),
        (LIST, &["0=1G", "0=8G,1=3G", "GPU-89=3G,2=2G", "7=1G"]),
        ("VGPU_SM_LIMIT", SHARES),
        ("VGPU_SM_LIMIT_1", SHARES),
        ("CUDA_DEVICE_SM_LIMIT", SHARES),
        ("VGPU_MODE", &["enforce", "observe", "off"]),
        ("CUDA_DISABLE_CONTROL", &["true", "false"]),
        ("GPU_CORE_UTILIZATION_POLICY", &["disable", "force"]),
        ("VGPU_SOCKET", &["/run/a.sock"]),
    ];
    let one = prop::sample::select(ROWS).prop_flat_map(|(name, values)| (Just(name), prop::sample::select(values)));
    prop::collection::vec(one, 0..6)
}

proptest! {
    /// Any environment results in limits, or in one printable line shorter than 1,200 bytes.
    #[test]
    fn no_environment_panics_or_breaks_the_line(
        vars in prop::collection::vec((
            prop_oneof![
                "(VGPU|CUDA_DEVICE)_(MEMORY|SM)_LIMIT(_[0-9x-]{0,4})?".prop_map(String::into_bytes),
                any::<Vec<u8>>(),
            ],
            prop_oneof![
                "[0-9]{0,21}(\\.[0-9]{0,6})?[KMGTkmgtIiBb%]{0,3}".prop_map(String::into_bytes),
                any::<Vec<u8>>(),
            ],
        ), 0..6),
        total in 1u64..,
    ) {
        let outcome = RawLimits::from_vars(vars).and_then(|raw| {
            raw.check_devices(8)?;
            (0..8).map(|ordinal| raw.for_device(ordinal, Bytes(total))).collect::<Result<Vec<_>, _>>()
        });
        match outcome {
            Ok(limits) => for limits in limits {
                prop_assert!(limits.memory.is_none_or(|memory| memory.0 >= 1 && memory.0 <= total));
                prop_assert_eq!(limits.memory.is_some(), limits.memory_from.is_some());
                prop_assert_eq!(limits.sm.is_some(), limits.sm_from.is_some());
            },
            Err(error) => {
                let line = error.to_string();
                prop_assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", line);
                prop_assert!(line.len() < 1200, "{}", line.len());
            }
        }
    }

    /// A process started with limits changes its environment later: no limit gets looser.
    #[test]
    fn no_later_environment_loosens_what_the_start_asks(
        start in environment(), later in environment(), ordinal in 0u32..3, total in GIB..64 * GIB,
    ) {
        let Ok(limits) = RawLimits::from_vars(start.clone()) else { return Ok(()) };
        // The first value of a name counts: the changed environment comes before that of the start.
        let Ok(changed) = RawLimits::from_vars(later.into_iter().chain(start)) else { return Ok(()) };
        if !limits.asks_for_enforcement() {
            return Ok(());
        }
        let both = limits.clone().tightened_by(changed.clone());
        prop_assert!(both.is_changed() && !limits.is_changed());
        prop_assert!(both.asked_mode() <= limits.asked_mode() && both.asks_for_enforcement());
        let device = NamedDevice { index: Some(ordinal), cuda: Some(ordinal), uuid: UUID };
        let of = |raw: &RawLimits| raw.for_named_device(&device, Some(Bytes(total))).unwrap();
        let (of_start, of_later, of_both) = (of(&limits), of(&changed), of(&both));
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        let memory = |limits: vgpu_core::limits::DeviceLimits| limits.memory.map(|bytes| bytes.0);
        let sm = |limits: vgpu_core::limits::DeviceLimits| limits.sm.map(|share| u64::from(share.as_permille()));
        prop_assert_eq!(memory(of_both), least(memory(of_start), memory(of_later)));
        prop_assert_eq!(sm(of_both), least(sm(of_start), sm(of_later)));
        prop_assert_eq!(of_both.memory.is_some(), of_both.memory_from.is_some());
        prop_assert_eq!(of_both.sm.is_some(), of_both.sm_from.is_some());
        // The daemon's limits apply in addition.
        let daemon = both.with_daemon(Some(Bytes(GIB)), Share::from_percent(5));
        prop_assert!(of(&daemon).memory.is_some_and(|bytes| bytes.0 <= GIB));
        prop_assert!(of(&daemon).sm <= Share::from_percent(5));
    }

    /// Every amount can be written in bytes and in any unit that divides it, and reads back the same.
    #[test]
    fn what_is_written_is_what_is_meant(units in 1u64..16_000, which in 0usize..4) {
        let (unit, name) = [(1u64 << 10, "KiB"), (1 << 20, "m"), (1 << 30, "Gi"), (1 << 40, "T")][which];
        let total = Bytes(u64::MAX);
        let written = |text: String| {
            let raw = RawLimits::from_vars([("VGPU_MEMORY_LIMIT", text)]).unwrap();
            raw.for_device(0, total).unwrap().memory.unwrap().0
        };
        prop_assert_eq!(written(format!("{units}{name}")), units * unit);
        prop_assert_eq!(written(format!("{}", units * unit)), units * unit);
        prop_assert_eq!(written(format!(" 00{units}.50{name} ")), units * unit + unit / 2);
    }
}
