//! The probe and the hardware suite as programs, on the simulated driver of `make build` (directory in VGPU_BUILD,
//! default target/release). Steps that need executed device code are not here; they are checked on hardware only.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

const PROBE: &str = env!("CARGO_BIN_EXE_gpu-probe");

/// Directory of the products, if they exist. A missing product is an error when all parts are required.
fn products() -> Option<PathBuf> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release");
    let build = PathBuf::from(std::env::var_os("VGPU_BUILD").unwrap_or_else(|| default.into()));
    let wanted = ["sim/libcuda.so.1", "sim/libnvidia-ml.so.1", "libvgpu.so"];
    match wanted.iter().find(|name| !build.join(name).exists()) {
        None => Some(build),
        Some(missing) => {
            let what = format!("{} (make build makes it)", build.join(missing).display());
            assert!(std::env::var_os("VGPU_REQUIRE_ALL").is_none_or(|v| v != "1"), "missing: {what}");
            // Written without a macro, because the test harness would hide the line.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
            None
        }
    }
}

/// A command under the simulated driver with its own state.
fn simulated(program: &str, build: &std::path::Path, state: &std::path::Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_LIBRARY_PATH", build.join("sim"))
        .env("VGPU_SIM_DIR", state)
        .env("VGPU_SIM_PROFILE", "h200")
        .env_remove("LD_PRELOAD");
    command
}

fn words(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn the_probe_measures_the_simulated_device() {
    let Some(build) = products() else { return };
    let state = tempfile::tempdir().unwrap();
    let out = state.path().join("probe.json");
    let steps = "host,proc_address,device,first_calls,context_overhead,launch_cost,event_cost,alloc_cost,granularity";
    let output = simulated(PROBE, &build, &state.path().join("sim"))
        .args(["--quick", "--only", steps, "--out"])
        .arg(&out)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let document: Value = serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap();
    assert_eq!(document["schema"], "vgpu-gpu-probe");
    for step in steps.split(',') {
        assert_eq!(document["steps"][step]["status"], "ok", "{step}: {}", document["steps"][step]);
    }
    let numbers = &document["numbers"];
    assert_eq!(numbers["multiprocessors"], 132);
    assert_eq!(numbers["slab_bytes"], 2 << 20);
    assert!(numbers["context_overhead_bytes"].as_u64().unwrap() > 0);
    assert!(numbers["slice_ns"].is_null(), "the step was not run");
    // The device sees the work between half of the launch call and its end.
    let [lead, call] = ["idle_lead_ns", "idle_launch_ns"].map(|key| numbers[key].as_f64().unwrap());
    assert!((0.4..3.0).contains(&(lead / call)), "{lead} ns of a call of {call} ns");
    // Substitution by returned address is complete on this driver.
    let answers = &document["steps"]["proc_address"]["data"];
    assert_eq!(answers["not_exports_count"], 0);
    assert!(answers["found"].as_u64().unwrap() > 10_000);
}

#[test]
fn a_device_that_executes_no_code_is_said_to_be_one_and_gives_no_number() {
    let Some(build) = products() else { return };
    let state = tempfile::tempdir().unwrap();
    let output =
        simulated(PROBE, &build, &state.path().join("sim")).args(["--quick", "--only", "slices"]).output().unwrap();
    assert!(!output.status.success(), "what could not be measured is no success");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["steps"]["slices"]["status"], "failed");
    assert!(document["steps"]["slices"]["errors"][0].as_str().unwrap().contains("does not execute device code"));
    assert!(document["numbers"]["slice_ns"].is_null());
    assert!(document["profile"].get("slice_ns").is_none());
}

#[test]
fn the_simulated_device_s_profile_reads_the_document() {
    let Some(build) = products() else { return };
    let state = tempfile::tempdir().unwrap();
    let measured = state.path().join("probe.json");
    let probe = |profile: &str, dir: &str| -> Value {
        let output = simulated(PROBE, &build, &state.path().join(dir))
            .env("VGPU_SIM_PROFILE", profile)
            .args(["--quick", "--only", "device,context_overhead,granularity,launch_cost,event_cost"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", words(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let mut document = probe("h200", "first");
    // A value that another machine might have measured.
    document["profile"]["context_bytes"] = (300 << 20).into();
    std::fs::write(&measured, document.to_string()).unwrap();
    let again = probe(&format!("h200@{}", measured.display()), "second");
    assert_eq!(again["numbers"]["context_overhead_bytes"], 300 << 20);
    for same in ["slab_bytes", "memory_total_bytes", "nvml_total_bytes", "own_slab_from_bytes", "further_context_bytes"]
    {
        assert_eq!(again["numbers"][same], document["numbers"][same], "{same}");
    }
}

#[test]
fn the_suite_checks_the_memory_promises_on_the_simulated_driver() {
    let Some(build) = products() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let output = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../hardware/run"))
        .arg(&out)
        .args(["--only", "memory null,memory numbers,memory cuMem,memory last,memory two,memory bad"])
        .args(["--probe", PROBE, "--sim"])
        .arg(build.join("sim"))
        .arg("--library")
        .arg(build.join("libvgpu.so"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let results: Value = serde_json::from_slice(&std::fs::read(out.join("results.json")).unwrap()).unwrap();
    assert_eq!(results["counts"]["PASS"], 8, "{}", words(&output));
    assert_eq!(results["all_passed"], true);
}

#[test]
fn the_suite_fails_when_the_library_enforces_nothing() {
    let Some(build) = products() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    // A broken build: a library with the right name that is loaded and does nothing.
    let idle = scratch.path().join("libvgpu.so");
    std::fs::copy(build.join("sim/libnvidia-ml.so.1"), &idle).unwrap();
    let output = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../hardware/run"))
        .arg(&out)
        .args(["--only", "memory cuMemAlloc,memory bad", "--probe", PROBE, "--sim"])
        .arg(build.join("sim"))
        .arg("--library")
        .arg(&idle)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    let results: Value = serde_json::from_slice(&std::fs::read(out.join("results.json")).unwrap()).unwrap();
    assert_eq!(results["counts"]["PASS"], 0, "{}", words(&output));
}

#[test]
fn the_suite_s_own_tests_hold() {
    let output = Command::new("python3")
        .args(["-B", "-m", "unittest", "test_suite"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../hardware"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", words(&output));
}

#[test]
fn every_part_of_the_suite_works_on_the_simulated_device_and_finds_what_is_wrong() {
    let Some(build) = products() else { return };
    let output = Command::new("python3")
        .args(["-B", "-m", "unittest", "test_simulated"])
        .env("VGPU_BUILD", &build)
        .env("VGPU_PROBE", PROBE)
        .env_remove("VGPU_LIB_DIR")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../hardware"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", words(&output));
}
