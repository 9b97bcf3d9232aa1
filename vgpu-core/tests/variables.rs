//! Checks the table of variables row by row, value by value. Nothing here reads files: tests/tests/variables.rs
//! compares the table with the sources and with docs/environment.md.

use std::collections::BTreeSet;

use vgpu_core::limits::variables::{
    AcceptedValue, VARIABLES, VariableEffect, VariableOwner, VariableRow, WORD_VARIABLES, find,
};
use vgpu_core::limits::{Family, Quantity, RawLimits, Variable};

#[test]
fn each_variable_has_one_row_and_each_row_its_words() {
    let names: BTreeSet<&str> = VARIABLES.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), VARIABLES.len(), "no name twice");
    for row in VARIABLES {
        let text = match row.effect {
            VariableEffect::Honoured(how) | VariableEffect::Ignored(how) => how,
        };
        assert!(!text.is_empty() && !text.contains(['|', '\n']), "{}: {text}", row.name);
        assert!(row.accepted_words().is_none_or(|words| words.len() > 1), "{}", row.name);
        assert!(find(row.name.as_bytes()) == Some(row), "{}", row.name);
        let of_a_device = format!("{}_3", row.name);
        assert_eq!(find(of_a_device.as_bytes()).is_some(), row.per_device, "{of_a_device}");
    }
    assert!(find(b"VGPU_MEMORY_LIMIT_x").is_none() && find(b"VGPU_MEMORY_LIMIT_256").is_none());
    assert!(find(b"PATH").is_none() && find(b"").is_none());
}

#[test]
fn the_limit_variables_are_the_rows_that_name_a_device() {
    let mut limits = BTreeSet::new();
    for family in [Family::Vgpu, Family::Hami] {
        for quantity in [Quantity::Memory, Quantity::Sm, Quantity::SmRequest] {
            limits.insert(Variable { family, quantity, ordinal: None }.base_name());
        }
    }
    limits.remove(""); // HAMi has no floor
    let rows: BTreeSet<&str> = VARIABLES.iter().filter(|row| row.per_device).map(|row| row.name).collect();
    assert_eq!(rows, limits);
}

/// A row that accepts words accepts each of them and nothing else. A row that is ignored or read elsewhere accepts any
/// value.
#[test]
fn each_row_takes_what_it_says_and_nothing_else() {
    const NONSENSE: [&str; 4] = ["nonsense \u{7f}", "", "  ", "2"];
    // HAMi's priority accepts every number.
    let nonsense = |row: &VariableRow| if row.name == "CUDA_TASK_PRIORITY" { &NONSENSE[..3] } else { &NONSENSE[..] };
    for row in VARIABLES {
        let read = |value: &str| RawLimits::from_vars([(row.name, value)]).map(drop).map_err(|error| error.to_string());
        match row.accepted {
            AcceptedValue::Words(words) if matches!(row.owner, VariableOwner::Library | VariableOwner::Hami) => {
                assert!(
                    WORD_VARIABLES.iter().any(|worded| (worded.name, worded.words) == (row.name, words)),
                    "{}",
                    row.name
                );
                for word in words {
                    assert_eq!(read(word), Ok(()), "{}={word}", row.name);
                }
                for value in nonsense(row) {
                    let line = read(value).expect_err(row.name);
                    let end = format!("is not understood; accepted: {}", words.join(", "));
                    assert!(line.starts_with(&format!("{}=\"", row.name)) && line.ends_with(&end), "{line}");
                }
            }
            _ if row.name == "VGPU_STATE_DIR" => {
                assert!(NONSENSE.iter().all(|value| read(value).is_err()) && read("/").is_ok());
            }
            _ if row.per_device
                || row.name == "NVIDIA_GPU_MEMORY_LIMIT"
                || row.name == "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" =>
            {
                assert!(NONSENSE[..3].iter().all(|value| read(value).is_err()), "{}", row.name)
            }
            _ => assert!(NONSENSE.iter().all(|value| read(value).is_ok()), "{}", row.name),
        }
    }
}

#[test]
fn what_is_ignored_asks_for_nothing_and_changes_no_limit() {
    let limits = |more: Option<&'static str>| {
        let vars = [("VGPU_MEMORY_LIMIT", "1G"), ("VGPU_SM_LIMIT", "30")].into_iter();
        let limits = RawLimits::from_vars(vars.chain(more.map(|name| (name, "1")))).unwrap();
        limits.for_device(0, vgpu_core::units::bytes::Bytes(1 << 40)).unwrap()
    };
    for row in VARIABLES.iter().filter(|row| row.reason_ignored().is_some()) {
        assert!(!RawLimits::from_vars([(row.name, "1")]).unwrap().asked_for_anything(), "{}", row.name);
        assert_eq!(limits(Some(row.name)), limits(None), "{}", row.name);
    }
    assert!(VARIABLES.iter().any(|row| row.reason_ignored().is_some()));
}
