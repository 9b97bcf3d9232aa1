//! Stream captures under the library. A program that does anything while a stream captures, in any capture mode, gets
//! the driver's own answers. That holds under a memory limit and under a device-time ceiling.
//!
//! The program is `programs/capture.c`. The right answers themselves are tested in the simulator
//! (`sim/cuda/tests/capture.rs`).

use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, MIB, run};

const MODES: [&str; 3] = ["0", "1", "2"];

/// Output of the program with the driver alone, and with the library under `limits`.
fn both(limits: &[(&str, &str)], mode: &str) -> (String, String) {
    let program = compile("capture", Kind::Program, &[]);
    let lab = || Lab::new("h200");
    let alone = run(lab().bare(&program).arg(mode));
    let limited = limits.iter().fold(lab(), |lab, (name, value)| lab.with(name, value));
    (alone, run(limited.command(&program).arg(mode)))
}

fn same(limits: &[(&str, &str)]) {
    for mode in MODES {
        let (alone, beside) = both(limits, mode);
        for (number, (alone, beside)) in alone.lines().zip(beside.lines()).enumerate() {
            assert_eq!(beside, alone, "mode {mode}, line {number}, with {limits:?}");
        }
        assert_eq!(alone.lines().count(), beside.lines().count(), "mode {mode}");
        // Positive control: some captures were refused, some were invalidated and some ended well.
        for line in ["cuStreamEndCapture 0", "cuStreamEndCapture 901", "content 707070707070707", "nodes 3"] {
            assert!(alone.contains(line) || (mode == "2" && line.ends_with("901")), "mode {mode}: {line}\n{alone}");
        }
    }
}

#[test]
fn captures_are_what_they_are_without_limits() {
    same(&[]);
}

#[test]
fn captures_are_what_they_are_under_a_limit_on_memory() {
    same(&[("VGPU_MEMORY_LIMIT", "4g")]);
}

#[test]
fn captures_are_what_they_are_under_a_ceiling_on_device_time() {
    same(&[("VGPU_SM_LIMIT", "40")]);
}

#[test]
fn captures_are_what_they_are_under_both() {
    same(&[("VGPU_MEMORY_LIMIT", "4g"), ("VGPU_SM_LIMIT", "40")]);
}

/// Bytes in use before the capture, after it, after the launch and at the end; and the launch's code.
fn charged(bytes: u64, mode: &str) -> (Vec<u64>, String) {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "2GiB");
    let program = compile("capture", Kind::Program, &[]);
    let said = run(lab.command(&program).arg(mode).arg(bytes.to_string()));
    let number = |line: &str| line.strip_prefix("charged ").and_then(|rest| rest.parse().ok());
    let launch = said.lines().find_map(|line| line.strip_prefix("charged cuGraphLaunch ")).expect("a launch");
    (said.lines().filter_map(number).collect(), launch.to_owned())
}

#[test]
fn what_a_captured_graph_allocates_is_charged_when_it_is_launched() {
    for mode in MODES {
        let (used, launch) = charged(600 * MIB, mode);
        assert_eq!(launch, "0");
        assert_eq!(used.len(), 4);
        assert_eq!(used[1], used[0], "recorded, and nothing is taken");
        assert!((600 * MIB..600 * MIB + 32 * MIB).contains(&(used[2] - used[0])), "{used:?}");
        assert_eq!(used[3], used[0], "freed and trimmed");
    }
}

#[test]
fn a_captured_graph_that_does_not_fit_is_refused_when_it_is_launched() {
    let (used, launch) = charged(2 * GIB, "0");
    assert_eq!(launch, "2");
    assert_eq!(used[3], used[0]);
}
