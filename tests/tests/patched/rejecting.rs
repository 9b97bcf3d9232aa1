//! Another preloaded library that interposes `cuGetProcAddress_v2` and accepts only addresses in the driver.
//!
//! A hook is never traded for the driver's own address, because the other library could call that without a limit. So
//! its refusal is the program's answer, in both orders, and the doctor names the cause.

use serde_json::Value;
use std::path::{Path, PathBuf};
use vgpu_tests::artefacts::vgpu;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, MIB, run};

/// The lab with the rejecting library before or behind libvgpu.so.
fn beside(we_are_first: bool) -> (Lab, PathBuf) {
    let other = compile("interposer", Kind::Library, &["REJECTS"]);
    let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    let us = lab.lib().to_owned();
    lab.preload(&if we_are_first { [us.as_path(), &other] } else { [other.as_path(), &us] });
    (lab, other)
}

fn look_up(lab: &Lab, preload: &[&Path]) -> Vec<String> {
    let sizes = [MIB, 2 * GIB].map(|bytes| bytes.to_string());
    let mut program = lab.bare(compile("lookups", Kind::Linked, &[]));
    program.args(sizes).args(["cuMemAlloc", "cuLaunchKernel", "cuDriverGetVersion"]);
    program.env("LD_PRELOAD", std::env::join_paths(preload).unwrap());
    run(&mut program).lines().map(str::to_owned).collect()
}

#[test]
fn a_library_that_accepts_only_the_drivers_addresses_refuses_the_hooks_and_limits_hold_in_both_orders() {
    for we_are_first in [true, false] {
        let (lab, other) = beside(we_are_first);
        let order = if we_are_first { [lab.lib(), &other] } else { [other.as_path(), lab.lib()] };
        let expected =
            ["cuMemAlloc 801 null", "cuLaunchKernel 801 null", "cuDriverGetVersion 0 libcuda.so.1", "linked 0 2"];
        assert_eq!(look_up(&lab, &order), expected, "we are first: {we_are_first}");
        // Its control: alone it refuses nothing, and nobody limits the program.
        let alone = [
            "cuMemAlloc 0 libcuda.so.1",
            "cuLaunchKernel 0 libcuda.so.1",
            "cuDriverGetVersion 0 libcuda.so.1",
            "linked 0 0",
        ];
        assert_eq!(look_up(&lab, &[&other]), alone);
        let ours = [
            "cuMemAlloc 0 libvgpu.so",
            "cuLaunchKernel 0 libvgpu.so",
            "cuDriverGetVersion 0 libcuda.so.1",
            "linked 0 2",
        ];
        assert_eq!(look_up(&lab, &[lab.lib()]), ours);
    }
}

/// A program that asks the driver's handle, as CUDA's runtime does, does not meet that library.
#[test]
fn lookups_by_the_drivers_handle_do_not_meet_that_library() {
    for we_are_first in [true, false] {
        let (lab, _) = beside(we_are_first);
        let mut member = lab.member_by("get2");
        member.begin();
        member.alloc(MIB);
        assert_eq!(member.code(&format!("alloc {GIB}")), vgpu_tests::OUT_OF_MEMORY, "we are first: {we_are_first}");
    }
}

#[test]
fn the_doctor_finds_a_library_that_refuses_the_hooks() {
    let findings = |lab: &Lab| {
        let out = lab.command(vgpu()).args(["doctor", "--json"]).env("VGPU_LIBRARY", lab.lib()).output().unwrap();
        let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
        let lines = report["lines"].as_array().unwrap().iter().filter(|line| line["ok"] == false);
        lines.map(|line| line["words"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for we_are_first in [true, false] {
        let found = findings(&beside(we_are_first).0);
        let words = "another preloaded library refuses cuGetProcAddress for ";
        assert!(found.iter().any(|line| line.starts_with(words)), "we are first: {we_are_first}: {found:?}");
    }
    assert_eq!(findings(&Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB")), Vec::<String>::new());
}
