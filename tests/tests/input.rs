//! Limits that a person writes. A limit that is not understood stops the program with one actionable line, in CUDA and
//! in NVML programs. A limit that is understood has the intended value.
//!
//! The exact line of every fault is tested in vgpu-core (`tests/limits.rs`); these tests check the text that reaches
//! the user.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use vgpu_tests::{GIB, Lab, NO_PERMISSION, NOT_PERMITTED, OUT_OF_MEMORY, optional, run, text};

/// Variable, value, the line's text about it (with the value as shown), and an accepted form that the line offers.
const BAD: &[(&str, &[u8], &str, &str)] = &[
    ("VGPU_MEMORY_LIMIT", b"abc", r#""abc" is not a size"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"", r#""" is empty"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"  ", r#""  " is empty"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"0", r#""0" is zero"#, "unlimited"),
    ("VGPU_MEMORY_LIMIT", b"0%", r#""0%" is zero"#, "25%"),
    ("VGPU_MEMORY_LIMIT", b"-1", r#""-1" is negative"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"-1GiB", r#""-1GiB" is negative"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"GiB", r#""GiB" is not a size"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"1XB", r#""1XB" has an unknown unit"#, "KiB..TiB"),
    ("VGPU_MEMORY_LIMIT", b"1PiB", r#""1PiB" has an unknown unit"#, "KiB..TiB"),
    ("VGPU_MEMORY_LIMIT", b"1.5", r#""1.5" is a fraction of a byte"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"1,5GiB", r#""1,5GiB" has a comma"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"1 GiB", r#""1 GiB" has a space inside"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"1e9", r#""1e9" has an exponent"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"0x1000", r#""0x1000" is hexadecimal"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"101%", r#""101%" is more than 100%"#, "25%"),
    ("VGPU_MEMORY_LIMIT", b"18446744073709551616", r#""18446744073709551616" is too large"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"99999999999T", r#""99999999999T" is too large"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"0.0001KB", r#""0.0001KB" is less than one byte"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", "１GiB".as_bytes(), r#""\u{ff11}GiB" has characters outside ASCII"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", "1GiB\u{202e}".as_bytes(), r#""1GiB\u{202e}" has characters outside ASCII"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"1GiB\xff", r#""1GiB\xff" is not UTF-8 text"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"1GiB\n2GiB", r#""1GiB\n2GiB" has a space inside"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"1\x1b[31mG", r#""1\u{1b}[31mG" has an unknown unit"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT", b"none", r#""none" is not a size"#, "unlimited"),
    ("VGPU_MEMORY_LIMIT_0", b"much", r#""much" is not a size"#, "1.5GiB"),
    ("VGPU_MEMORY_LIMIT_1", b"1GiB", r#""1GiB" names a device that does not exist"#, "ordinal: 0"),
    ("VGPU_MEMORY_LIMIT_255", b"1GiB", r#""1GiB" names a device that does not exist"#, "ordinal: 0"),
    ("VGPU_MEMORY_LIMIT_x", b"1GiB", r#""1GiB" is not a limit variable"#, "VGPU_MEMORY_LIMIT_<i>"),
    ("VGPU_MEMORY_LIMIT_-1", b"1GiB", r#""1GiB" is not a limit variable"#, "VGPU_MEMORY_LIMIT_<i>"),
    ("VGPU_MEMORY_LIMIT_00", b"1GiB", r#""1GiB" is not a limit variable"#, "VGPU_MEMORY_LIMIT_<i>"),
    ("VGPU_MEMORY_LIMIT_99999999999", b"1GiB", r#""1GiB" is not a limit variable"#, "VGPU_MEMORY_LIMIT_<i>"),
    ("VGPU_MEMORY_LIMITS", b"1GiB", r#""1GiB" is not a limit variable"#, "VGPU_MEMORY_LIMIT_<i>"),
    ("VGPU_SM_LIMIT", b"0", r#""0" is zero"#, "from 1 to 100"),
    ("VGPU_SM_LIMIT", b"101", r#""101" is more than 100%"#, "from 1 to 100"),
    ("VGPU_SM_LIMIT", b"-30", r#""-30" is negative"#, "from 1 to 100"),
    ("VGPU_SM_LIMIT", b"fast", r#""fast" is not a percentage"#, "from 1 to 100"),
    ("VGPU_SM_LIMIT", b"", r#""" is empty"#, "from 1 to 100"),
    ("VGPU_SM_LIMIT_7", b"30", r#""30" names a device that does not exist"#, "ordinal: 0"),
    ("CUDA_DEVICE_MEMORY_LIMIT", b"abc", r#""abc" is not a size"#, "1024m"),
    ("CUDA_DEVICE_MEMORY_LIMIT", b"25%", r#""25%" has an unknown unit"#, "1024m"),
    ("CUDA_DEVICE_MEMORY_LIMIT_0", b"-1g", r#""-1g" is negative"#, "1024m"),
    ("CUDA_DEVICE_SM_LIMIT", b"half", r#""half" is not a percentage"#, "0 or 100 for no limit"),
    ("NVIDIA_GPU_MEMORY_LIMIT", b"4Gi", r#""4Gi" has an unknown unit"#, "whole number of MiB"),
    ("NVIDIA_GPU_MEMORY_LIMIT", b"1.5", r#""1.5" "#, "whole number of MiB"),
    ("NVIDIA_GPU_MEMORY_LIMIT", b"0", r#""0" is zero"#, "whole number of MiB"),
    ("NVIDIA_GPU_MEMORY_LIMIT", b"", r#""" is empty"#, "whole number of MiB"),
    ("NVIDIA_GPU_MEMORY_LIMIT", b"  ", r#""  " is empty"#, "whole number of MiB"),
    ("NVIDIA_GPU_MEMORY_LIMIT", b"4096MiB", r#""4096MiB" has an unknown unit"#, "whole number of MiB"),
    ("NVIDIA_GPU_MEMORY_LIMIT", b"unlimited", r#""unlimited" is not a size"#, "whole number of MiB"),
    ("NVIDIA_GPU_MEMORY_LIMIT", b"none", r#""none" is not a size"#, "whole number of MiB"),
    ("NVIDIA_GPU_MEMORY_LIMIT", b"-1", r#""-1" is negative"#, "whole number of MiB"),
    ("NVIDIA_GPU_MEMORY_LIMIT", b"100%", r#""100%" has an unknown unit"#, "whole number of MiB"),
    (
        "NVIDIA_GPU_MEMORY_LIMIT",
        b"18446744073709551615",
        r#""18446744073709551615" is too large"#,
        "whole number of MiB",
    ),
    ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", b"1G", r#""1G" is not a list of DEVICE=SIZE"#, "0=1G,1=512MB"),
    ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", b"0=1G,1=", r#""0=1G,1=" is not a list of"#, "0=1G,1=512MB"),
    ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", b"0=1T", r#""0=1T" is not a list of"#, "whole number with K, M or G"),
    ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", b"0=0", r#""0=0" is not a list of"#, "0=1G,1=512MB"),
    ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", b"", r#""" is not a list of"#, "0=1G,1=512MB"),
    ("VGPU_ON_ERROR", b"shrug", r#""shrug" is not understood"#, "open"),
    ("VGPU_STRICT", b"yes", r#""yes" is not understood"#, "0, 1"),
    ("VGPU_SHARED_UIDS", b"all", r#""all" is not understood"#, "0, 1"),
    ("VGPU_SM_REQUEST", b"half", r#""half" is not a percentage"#, "from 1 to 100"),
    ("VGPU_SM_REQUEST", b"unlimited", r#""unlimited" is not a percentage"#, "from 1 to 100"),
    ("VGPU_SM_REQUEST", b"30", r#""30" asks for guaranteed time, which only the daemon can give"#, "VGPU_SOCKET"),
    ("VGPU_SM_REQUEST_x", b"30", r#""30" is not a limit variable"#, "VGPU_SM_REQUEST_<i>"),
    ("VGPU_MODE", b"observed", r#""observed" is not understood"#, "enforce, observe, off"),
    ("VGPU_MODE", b"", r#""" is not understood"#, "enforce, observe, off"),
    ("VGPU_DEEPBIND", b"no", r#""no" is not understood"#, "clear, keep"),
    ("VGPU_LOG", b"debug", r#""debug" is not understood"#, "on, off"),
    ("CUDA_TASK_PRIORITY", b"high", r#""high" is not understood"#, "0, 1"),
    ("CUDA_TASK_PRIORITY", b"-1", r#""-1" is not understood"#, "0, 1"),
    ("GPU_CORE_UTILIZATION_POLICY", b"Force", r#""Force" is not understood"#, "force, FORCE"),
    ("CUDA_DISABLE_CONTROL", b"yes", r#""yes" is not understood"#, "true"),
    ("VGPU_STATE_DIR", b"ledgers", r#""ledgers" is not an absolute path"#, "begins with /"),
    ("VGPU_STATE_DIR", b"", r#""" is not an absolute path"#, "begins with /"),
    ("VGPU_TENANT", b"a/b", r#""a/b""#, "accepted"),
    ("VGPU_TENANT", b"", r#""""#, "accepted"),
];

fn bad_lab(name: &str, value: &[u8]) -> Lab {
    let mut lab = Lab::new("h200").with(name, OsStr::from_bytes(value));
    if name == "VGPU_TENANT" {
        lab.set("VGPU_MEMORY_LIMIT", "1GiB"); // the tenant is only determined if there is a limit to enforce
    }
    lab
}

#[test]
fn every_bad_input_stops_cuda_and_nvml_programs_with_one_line() {
    assert!(BAD.len() >= 30);
    for &(name, value, says, offers) in BAD {
        for init in ["init", "nvinit"] {
            let what = format!("{name}={:?}, {init}", String::from_utf8_lossy(value));
            let lab = bad_lab(name, value);
            let mut m = lab.member();
            let code = if init == "init" { NOT_PERMITTED } else { NO_PERMISSION };
            assert_eq!(m.code(init), code, "{what}: {}", m.errors());
            let said = m.errors();
            assert_eq!(said.lines().count(), 1, "{what}: {said}");
            assert!(said.ends_with('\n') && said.starts_with(&format!("vgpu: {name}=")), "{what}: {said}");
            assert!(said.contains(says) && said.contains("accepted") && said.contains(offers), "{what}: {said}");
            assert!(said.bytes().all(|b| b == b'\n' || (b' '..=b'~').contains(&b)), "{what}: {said:?}");
            // The refusal is permanent, holds for both libraries, and prints no second line.
            assert_eq!((m.code("init"), m.code("nvinit")), (NOT_PERMITTED, NO_PERMISSION), "{what}");
            assert_eq!(m.errors(), said, "{what}: once per process");
        }
    }
}

/// After a failed initialisation no call takes memory or shows a memory size.
#[test]
fn after_a_failed_initialisation_nothing_is_shown_and_nothing_is_given() {
    // The first fault is found before the driver is initialised, the second after.
    for (name, value) in [("VGPU_MEMORY_LIMIT", "abc"), ("VGPU_MEMORY_LIMIT_5", "1GiB")] {
        let lab = Lab::new("h200").with(name, value);
        let mut m = lab.member();
        assert_eq!(m.code("init"), NOT_PERMITTED);
        assert_eq!(m.code("nvinit"), NO_PERMISSION);
        for call in
            ["total 0", "info", "alloc 512", "async 512", "pitch 512 1", "create 2097152 1 0", "retain 0", "pool 0"]
        {
            let a = m.ask(call);
            assert!(a.code != 0 && a.words.iter().all(|w| w == "0"), "{name}: {call}: {a:?}");
        }
        assert_ne!(m.code("create-context 0"), 0, "{name}");
        for call in ["nvinit1", "nvinitflags", "nvcount", "nvmem 0", "nvmem2 0", "nvprocs 0"] {
            let a = m.ask(call);
            assert!(a.code != 0 && a.words.iter().all(|w| w == "0"), "{name}: {call}: {a:?}");
        }
        assert_eq!(lab.device(0).used, 0, "{name}: the device gave nothing");
        assert_eq!(fs::read_dir(lab.state()).unwrap().count(), 0, "{name}: no ledger");
    }
}

#[test]
fn the_line_can_be_silenced_or_sent_to_a_file() {
    let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "abc").with("VGPU_LOG", "off");
    let mut m = lab.member();
    assert_eq!((m.code("init"), m.errors()), (NOT_PERMITTED, String::new()));
    lab.unset("VGPU_LOG");
    let file = lab.path().join("vgpu.log");
    lab.set("VGPU_LOG_FILE", &file);
    for lines in 1..3 {
        let mut m = lab.member();
        assert_eq!((m.code("init"), m.errors()), (NOT_PERMITTED, String::new()));
        let said = fs::read_to_string(&file).unwrap();
        assert_eq!(said.lines().count(), lines, "a line from each process: {said}");
        assert!(said.lines().all(|line| line.starts_with("vgpu: VGPU_MEMORY_LIMIT=\"abc\" ")), "{said}");
    }
    lab.set("VGPU_LOG_FILE", "/no/such/place");
    assert_eq!(lab.member().code("init"), NOT_PERMITTED, "a place that cannot be written changes nothing else");
}

#[test]
fn on_error_open_turns_the_failure_into_a_warning() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "abc").with("VGPU_ON_ERROR", "open");
    for init in ["init", "nvinit"] {
        let mut m = lab.member();
        m.ok(init);
        let said = m.errors();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("VGPU_MEMORY_LIMIT=\"abc\"") && said.contains("WITHOUT limits"), "{said}");
    }
    let mut m = lab.member();
    m.begin();
    m.alloc(2 * GIB);
    let open_ordinal = Lab::new("h200").with("VGPU_MEMORY_LIMIT_9", "1GiB").with("VGPU_ON_ERROR", "open");
    let mut m = open_ordinal.member();
    m.begin();
    m.alloc(2 * GIB);
}

/// Client: nvidia-ml-py
/// Client: nvidia-smi
#[test]
fn python_monitors_and_nvidia_smi_are_stopped_with_the_same_line() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "abc");
    let line = |said: &str| said.lines().filter(|line| line.starts_with("vgpu: VGPU_MEMORY_LIMIT=\"abc\" ")).count();
    if let Some(python) = optional::python() {
        let script = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as e: print(e.value)";
        let out = lab.command(python).args(["-c", script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), NO_PERMISSION.to_string(), "{}", text(&out));
        assert_eq!(line(&String::from_utf8_lossy(&out.stderr)), 1, "{}", text(&out));
    }
    if let Some(smi) = optional::nvidia_smi() {
        let out = lab.command(smi).output().unwrap();
        let all = text(&out);
        assert!(!out.status.success(), "{all}");
        assert_eq!(line(&all), 1, "{all}");
        assert!(!all.contains("MiB") && !all.contains("H200"), "no number of the device: {all}");
    }
}

/// A least share of device time (floor) above the ceiling can never be kept. The message names both variables, and the
/// daemon is not asked.
#[test]
fn a_request_above_the_limit_stops_programs_and_names_both() {
    let lab = Lab::new("h200").with("VGPU_SM_REQUEST", "50").with("VGPU_SM_LIMIT", "30");
    for lab in [lab, Lab::new("h200").with("VGPU_SM_REQUEST", "50").with("CUDA_DEVICE_SM_LIMIT", "30")] {
        let mut m = lab.member();
        assert_eq!((m.code("init"), m.code("nvinit")), (NOT_PERMITTED, NO_PERMISSION));
        let said = m.errors();
        assert!(said.starts_with("vgpu: VGPU_SM_REQUEST=\"50\" is more than "), "{said}");
        assert!(said.contains("SM_LIMIT=\"30\" allows; accepted: "), "{said}");
    }
}

/// Variables, and the total memory that the program sees on an H200; `None` is the device's own.
#[test]
fn good_inputs_mean_what_was_meant() {
    type Row = (&'static [(&'static str, &'static str)], Option<u64>);
    let rows: &[Row] = &[
        (&[("VGPU_MEMORY_LIMIT", "1073741824")], Some(GIB)),
        (&[("VGPU_MEMORY_LIMIT", "1g")], Some(GIB)),
        (&[("VGPU_MEMORY_LIMIT", "1Gi")], Some(GIB)),
        (&[("VGPU_MEMORY_LIMIT", " 1024MiB ")], Some(GIB)),
        (&[("VGPU_MEMORY_LIMIT", "1048576k")], Some(GIB)),
        (&[("VGPU_MEMORY_LIMIT", "1.5GiB")], Some(3 * GIB / 2)),
        (&[("VGPU_MEMORY_LIMIT", "010g")], Some(10 * GIB)),
        (&[("VGPU_MEMORY_LIMIT", "2gb")], Some(2_000_000_000)),
        (&[("VGPU_MEMORY_LIMIT", "800MB")], Some(800_000_000)),
        (&[("VGPU_MEMORY_LIMIT", "0.002TiB")], Some(2_199_023_255)),
        (&[("VGPU_MEMORY_LIMIT", "100%")], None),
        (&[("VGPU_MEMORY_LIMIT", "unlimited")], None),
        (&[("VGPU_MEMORY_LIMIT", "Unlimited")], None),
        (&[("VGPU_MEMORY_LIMIT_0", "3GiB")], Some(3 * GIB)),
        (&[("VGPU_MEMORY_LIMIT", "1GiB"), ("VGPU_MEMORY_LIMIT_0", "3GiB")], Some(3 * GIB)),
        (&[("CUDA_DEVICE_MEMORY_LIMIT", "1024m")], Some(GIB)),
        (&[("CUDA_DEVICE_MEMORY_LIMIT", "1024MiB")], Some(GIB)),
        (&[("CUDA_DEVICE_MEMORY_LIMIT", "2gb")], Some(2 * GIB)),
        (&[("CUDA_DEVICE_MEMORY_LIMIT", "010g")], Some(10 * GIB)),
        (&[("CUDA_DEVICE_MEMORY_LIMIT", "0")], None),
        (&[("CUDA_DEVICE_MEMORY_LIMIT_0", "0"), ("CUDA_DEVICE_SM_LIMIT", "0")], None),
        (&[("CUDA_DEVICE_SM_LIMIT", "100")], None),
        (&[("CUDA_DEVICE_SM_LIMIT", "150")], None),
        (&[("CUDA_DEVICE_MEMORY_LIMIT_0", "1g"), ("CUDA_DEVICE_MEMORY_LIMIT", "2g")], Some(GIB)),
        (&[("VGPU_MEMORY_LIMIT", "2GiB"), ("CUDA_DEVICE_MEMORY_LIMIT", "1g")], Some(GIB)),
        (&[("VGPU_MEMORY_LIMIT", "1GiB"), ("CUDA_DEVICE_MEMORY_LIMIT", "2g")], Some(GIB)),
        (&[("VGPU_MEMORY_LIMIT", "unlimited"), ("CUDA_DEVICE_MEMORY_LIMIT", "1g")], Some(GIB)),
        (&[("VGPU_MEMORY_LIMIT", "1GiB"), ("CUDA_DEVICE_MEMORY_LIMIT", "0")], Some(GIB)),
        (&[("NVIDIA_GPU_MEMORY_LIMIT", "1024")], Some(GIB)),
        (&[("NVIDIA_GPU_MEMORY_LIMIT", "1024"), ("VGPU_MEMORY_LIMIT", "2GiB")], Some(GIB)),
        (&[("NVIDIA_GPU_MEMORY_LIMIT", "2048"), ("VGPU_MEMORY_LIMIT_0", "1GiB")], Some(GIB)),
        (&[("NVIDIA_GPU_MEMORY_LIMIT", "2048"), ("CUDA_DEVICE_MEMORY_LIMIT", "1g")], Some(GIB)),
        (&[("NVIDIA_GPU_MEMORY_LIMITS", "much"), ("NVIDIA_GPU_MEMORY_REQUEST", "1")], None),
        (&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G")], Some(GIB)),
        (&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "7=1M,0=1024M,9=1M")], Some(GIB)),
        (&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "1=1G")], None),
        (&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"), ("VGPU_MEMORY_LIMIT", "2GiB")], Some(GIB)),
        (&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G"), ("NVIDIA_GPU_MEMORY_LIMIT", "1024")], Some(GIB)),
    ];
    let physical = {
        let lab = Lab::new("h200");
        let mut m = lab.bare_member();
        m.ok("init");
        m.ok("total 0").number(0)
    };
    for (variables, expected) in rows {
        let mut lab = Lab::new("h200");
        variables.iter().for_each(|(name, value)| lab.set(name, value));
        let mut m = lab.member();
        m.begin();
        assert_eq!(m.ok("total 0").number(0), expected.unwrap_or(physical), "{variables:?}");
        assert_eq!(m.errors(), "", "{variables:?}");
        match expected {
            Some(limit) => assert_eq!(m.code(&format!("alloc {limit}")), OUT_OF_MEMORY, "{variables:?}"),
            None => drop(m.alloc(20 * GIB)),
        }
    }
}

#[test]
fn percentages_and_fractions_are_of_this_device() {
    let lab = Lab::new("t4").with("VGPU_MEMORY_LIMIT", "12.5%");
    let mut m = lab.member();
    m.ok("init");
    assert_eq!(m.ok("total 0").number(0), lab.device(0).cuda_total / 8);
}

/// A program that does not link CUDA never notices the invalid value, because variables are read only when needed.
#[test]
fn nonsense_does_not_harm_programs_that_use_no_gpu() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "abc");
    assert_eq!(run(lab.command("/bin/echo").arg("hello")), "hello\n");
    let mut plain = Command::new("/bin/sh");
    plain.args(["-c", "echo $VGPU_MEMORY_LIMIT"]).env("LD_PRELOAD", lab.lib()).env("VGPU_MEMORY_LIMIT", "abc");
    assert_eq!(run(&mut plain), "abc\n");
}
