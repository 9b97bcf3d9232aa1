//! Calls each hooked or refused NVML function twice: the driver's own, and the one that a program finds. Without limits
//! code and bytes are the same; under limits they are as the function's row of the table says.

use shim_sys::table::{NVML_ROWS, RowAction};
use std::collections::HashMap;
use std::process::{Command, Stdio};
use vgpu_tests::artefacts::sim_dir;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, NO_PERMISSION, run};

const NOT_SUPPORTED: i64 = 3;
const NOT_FOUND: i64 = 6;
const TOO_SMALL: i64 = 7;

/// Argument names and types of every function whose signature the table has.
fn signatures() -> HashMap<&'static str, Vec<(&'static str, &'static str)>> {
    macro_rules! signatures {
        (
            hooks { $($subject:ident { $($h:ident ( $($ha:ident : $ht:ty),* $(,)? );)* })* }
            shut { $($sd:ident $sw:literal { $($s:ident $(( $($sa:ident : $st:ty),* $(,)? ))? ;)* })* }
            typed $typed:tt
            named $named:tt
        ) => {
            HashMap::from([
                $($((stringify!($h), vec![$((stringify!($ha), stringify!($ht))),*]),)*)*
                $($($((stringify!($s), vec![$((stringify!($sa), stringify!($st))),*]),)?)*)*
            ])
        };
    }
    shim_sys::nvml_table!(signatures)
}

/// Kinds of the function's arguments, in the letters of `nvml_rows.c`. A function without a known signature takes a
/// device first.
fn kinds(arguments: Option<&Vec<(&str, &str)>>) -> String {
    let Some(arguments) = arguments else { return "dbbbbb".into() };
    let kind = |(name, ty): &(&str, &str)| match (*name, ty.replace(' ', "").as_str()) {
        (_, "nvmlDevice_t") => 'd',
        ("len", _) => 'l',
        ("pid", _) => 'p',
        ("count", "*mutu32") => 'c',
        ("count", _) => 'o',
        (_, "*constc_char") => 's',
        (_, ty) if ty.starts_with('*') => 'b',
        _ => 'n',
    };
    let kinds: String = arguments.iter().map(kind).collect();
    if kinds.is_empty() { "-".into() } else { kinds }
}

/// Result of one function's calls.
#[derive(Debug)]
struct Seen {
    real: i64,
    found: i64,
    same: bool,
    counts: [u64; 2],
}

/// Calls all functions in a process of `lab`, while another process without the library holds a context and memory.
fn calls(lab: &Lab) -> HashMap<String, Seen> {
    let mut stranger = lab.bare_member();
    stranger.begin();
    stranger.alloc(GIB);
    let places = run(Command::new("nm").args(["-D", "--defined-only"]).arg(sim_dir().join("libnvidia-ml.so.1")));
    let places: HashMap<&str, &str> = places
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (place, name) = (words.next()?, words.nth(1)?);
            Some((name, place))
        })
        .collect();
    let signatures = signatures();
    let shown = NVML_ROWS.iter().filter(|row| !matches!(row.action, RowAction::Pass(_) | RowAction::Hook("entry")));
    let mut lines = String::new();
    for row in shown {
        // Functions without an address are newer than the simulated driver.
        if let Some(place) = places.get(row.name) {
            lines.push_str(&format!("{} {place} {}\n", row.name, kinds(signatures.get(row.name))));
        }
    }
    let input = lab.path().join("rows");
    std::fs::write(&input, lines).unwrap();
    let mut command = lab.command(compile("nvml_rows", Kind::Program, &[]));
    command.arg(stranger.pid.to_string()).stdin(Stdio::from(std::fs::File::open(input).unwrap()));
    run(&mut command)
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap_or_else(|e| panic!("{line}: {e}"));
            let code = |at| i64::try_from(number(at)).unwrap();
            let seen = Seen { real: code(1), found: code(2), same: number(3) == 1, counts: [number(4), number(5)] };
            (words[0].to_owned(), seen)
        })
        .collect()
}

fn lab() -> Lab {
    Lab::new("h200").with("VGPU_SIM_ACCOUNTING", "1")
}

#[test]
fn without_limits_every_function_answers_byte_for_byte_as_the_driver_does() {
    for mode in [None, Some("observe"), Some("off")] {
        let mut lab = lab();
        if let Some(mode) = mode {
            lab.set("VGPU_MODE", mode);
            lab.set("VGPU_MEMORY_LIMIT", "1GiB");
        }
        let seen = calls(&lab);
        assert!(seen.len() > 80, "{}", seen.len());
        let other: Vec<_> = seen.iter().filter(|(_, seen)| !seen.same).collect();
        assert!(other.is_empty(), "{mode:?}: {other:?}");
    }
}

#[test]
fn under_limits_every_function_answers_as_its_row_says() {
    let seen = calls(&lab().with("VGPU_MEMORY_LIMIT", "1GiB"));
    for row in NVML_ROWS {
        let Some(seen) = seen.get(row.name) else { continue };
        let what = format!("{}: {seen:?}", row.name);
        match row.action {
            RowAction::Deny(_) => assert_eq!(seen.found, NO_PERMISSION, "{what}"),
            RowAction::Hide(_) => assert_eq!(seen.found, NOT_SUPPORTED, "{what}"),
            // Questions about the other process have no answer.
            _ if ["nvmlSystemGetProcessName", "nvmlDeviceGetAccountingStats"].contains(&row.name) => {
                assert_eq!((seen.real, seen.found), (0, NOT_FOUND), "{what}");
            }
            // The buffer has no room for the other process, and needs none.
            _ if row.name == "nvmlDeviceGetRunningProcessDetailList" => {
                assert_eq!((seen.real, seen.found), (TOO_SMALL, 0), "{what}");
            }
            _ => assert_eq!(seen.found, seen.real, "{what}"),
        }
    }
    // The other process is on the driver's lists, and on none of ours.
    for name in [
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetAccountingPids",
    ] {
        assert_eq!(seen[name].counts, [1, 0], "{name}");
    }
    // The driver itself answers this function, so the test sees the difference.
    assert_eq!(seen["nvmlDeviceGetEncoderUtilization"].real, 0);
}
