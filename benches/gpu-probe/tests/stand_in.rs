//! The steps that need device code, on a stand-in for the driver that answers as if the code had been executed
//! (stand_in.c). The tests check that processes start together, that recordings return, and that each capture case is
//! set up as named. A real device's answers are measured on hardware only.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Builds the stand-in as libcuda.so.1 in a directory, and runs the probe on it.
fn probe(directory: &Path, steps: &str) -> Value {
    let library = directory.join("libcuda.so.1");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stand_in.c"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let output = Command::new(env!("CARGO_BIN_EXE_gpu-probe"))
        .env("LD_LIBRARY_PATH", directory)
        .env("STAND_IN_TURNS", directory.join("turns"))
        .env_remove("LD_PRELOAD")
        .args(["--quick", "--only", steps])
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn slices_and_switches_of_two_processes_are_measured_in_the_device_s_own_time() {
    let directory = tempfile::tempdir().unwrap();
    let document = probe(directory.path(), "slices");
    let step = &document["steps"]["slices"];
    let two = &step["data"]["two_light"];
    assert_eq!(two["slice_ns"]["median"], 1_900_000.0, "{step}");
    assert_eq!(two["switch_ns"]["median"], 100_000.0, "{step}");
    assert_eq!(two["overlaps"], 0);
    let busy = two["busy"].as_f64().unwrap();
    assert!((0.93..0.97).contains(&busy), "95 % of the time one of them had the device: {busy}");
    for share in two["shares"].as_array().unwrap() {
        assert!((0.4..0.55).contains(&share.as_f64().unwrap()), "{two}");
    }
    assert_eq!(document["profile"]["slice_ns"], 1_900_000);
    assert_eq!(document["profile"]["switch_ns"], 100_000);
    // Seven workers had turns before. The three of one round share two turns, so two of them overlap.
    assert!(step["data"]["three_light"]["overlaps"].as_u64().unwrap() > 0, "{step}");
}

#[test]
fn a_capture_case_says_what_the_call_did_to_the_capture() {
    let directory = tempfile::tempdir().unwrap();
    let document = probe(directory.path(), "capture");
    let rules = &document["steps"]["capture"]["data"]["rules"];
    let errors = &document["steps"]["capture"]["errors"];
    for (stream, thread) in [("blocking", "same_thread"), ("non_blocking", "other_thread")] {
        let entry = |mode: &str, wrap: &str, call: &str| rules[stream][mode][thread][wrap][call].clone();
        // First rule of the stand-in: under a global capture a query or an allocation fails and invalidates the
        // capture.
        assert_eq!(entry("global", "plain", "event_query"), "900/2/901", "{errors}");
        assert_eq!(entry("global", "plain", "mem_alloc"), "900/2/901");
        // Second rule: not if the calling thread exchanged its own mode. Other captures and calls are unaffected.
        assert_eq!(entry("global", "exchanged", "event_query"), "0/1/0");
        assert_eq!(entry("global", "exchanged", "mem_alloc"), "0/1/0");
        assert_eq!(entry("relaxed", "plain", "event_query"), "0/1/0");
        assert_eq!(entry("global", "plain", "event_create_destroy"), "0/1/0");
        // A call that this driver does not export is marked and has no effect.
        assert_eq!(entry("global", "plain", "copy_to_device"), "-1/1/0");
    }
    assert_eq!(rules.as_object().unwrap().len(), 2);
    for stream in ["blocking", "non_blocking"] {
        for mode in ["global", "thread_local", "relaxed"] {
            for thread in ["same_thread", "other_thread"] {
                for wrap in ["plain", "exchanged"] {
                    let calls = rules[stream][mode][thread][wrap].as_object().unwrap().len();
                    assert!(calls >= 30, "{stream} {mode} {thread} {wrap}: {calls} calls; {errors}");
                }
            }
        }
    }
}

#[test]
fn the_device_s_timer_and_the_fixed_work_are_measured() {
    let directory = tempfile::tempdir().unwrap();
    let document = probe(directory.path(), "timer,inflation");
    let timer = &document["steps"]["timer"];
    assert_eq!(timer["status"], "ok", "{timer}");
    assert_eq!(timer["data"]["step_ns"], 32);
    let inflation = &document["steps"]["inflation"];
    assert_eq!(inflation["status"], "ok", "{inflation}");
    // Each process of the stand-in has a device of its own, so a busy neighbour changes nothing.
    for case in ["work_10_ms", "spin_10_ms"] {
        let ratio = inflation["data"][case]["inflation"].as_f64().unwrap();
        assert!((0.8..1.25).contains(&ratio), "{case}: {ratio}");
    }
}
