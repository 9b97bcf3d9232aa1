//! `vgpu validate` with a real daemon and real programs on the simulated device. Sharing has the expected cost, and
//! each program belongs to its tenant.

#[path = "leases/world.rs"]
#[allow(unused_imports, reason = "this program uses a part")]
mod world;

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use vgpu_tests::artefacts::vgpu;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{Lab, MIB};
use world::{World, alone, eventually, tenant};

#[test]
fn two_tenants_are_slowed_down_by_each_other_and_the_report_says_by_how_much() {
    let _alone = alone();
    let world = World::start(&(tenant("a", "weight = 50") + &tenant("b", "weight = 50\nmemory_limit = \"1GiB\"")));
    let program = compile("turns", Kind::Program, &[]);
    // Half a second of device time, in kernels of a millisecond.
    let script = format!("printf 'begin\\nbursts 1000000 500 0 1\\n' | exec {}", program.display());
    let out = world.lab.path().join("report");
    let mut command = world.lab.bare(vgpu());
    command.args(["validate", "--runs", "2", "--json", "--socket"]).arg(world.lab.path().join("run/admin.sock"));
    command.arg("--out").arg(&out);
    command.args(["a", "--", "sh", "-c", &script, "--and", "b", "--", "sh", "-c", &script]);
    let output = command.output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (program, limits) in [(0, "memory 2 GiB"), (1, "memory 1 GiB")] {
        let program = &report["programs"][program];
        assert!(program["limits"].as_str().unwrap().starts_with(limits), "{program:#}");
        let result = &program["result"];
        let alone = result["alone"]["median_seconds"].as_f64().unwrap();
        assert!(alone >= 0.5, "it is half a second of the device: {alone}");
        assert!(result["latency_change_percent"].is_number(), "{report:#}");
    }
    // Together they need one second of device time, so on any host the later one ends about one second after the common
    // start.
    let runs = |program: usize| report["programs"][program]["together_seconds"].as_array().unwrap().clone();
    for (a, b) in runs(0).iter().zip(&runs(1)) {
        assert!(a.as_f64().unwrap().max(b.as_f64().unwrap()) >= 0.95, "{report:#}");
    }
    let all = &report["together"];
    assert!((0.5..=1.001).contains(&all["fairness"].as_f64().unwrap()), "{report:#}");
    assert!(fs::read_to_string(out.join("report.html")).unwrap().contains("Isolation"));
    // The programs were members of the tenants.
    eventually("both tenants used the device", || {
        let state = world.lab.path().join("run/state");
        let usage =
            Command::new(vgpu()).args(["usage", "--format", "json", "--state-dir"]).arg(state).output().unwrap();
        let usage: Value = serde_json::from_slice(&usage.stdout).unwrap_or_default();
        usage["rows"]
            .as_array()
            .is_some_and(|rows| rows.iter().filter(|row| row["gpu_ns"].as_u64() > Some(0)).count() == 2)
    });

    let mut command = world.lab.bare(vgpu());
    command.args(["validate", "--socket"]).arg(world.lab.path().join("run/admin.sock"));
    let unknown = command.args(["a", "--", "true", "--and", "bb", "--", "true"]).output().unwrap();
    let err = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(unknown.status.code() == Some(1) && err.contains("no tenant \"bb\" (did you mean \"b\"?)"), "{err}");
}

/// Without a daemon the programs' ledgers are the command's own. Measured, interrupted and failed runs all remove them.
#[test]
fn no_ledger_is_left_by_a_validation_that_ends_is_interrupted_or_fails() {
    let member = compile("member", Kind::Program, &[]);
    let script =
        |rest: &str| format!("(printf 'init\\nretain 0\\nalloc 1048576\\n'; {rest}) | {} dlsym", member.display());
    let held = |lab: &Lab| fs::read_dir(lab.state()).unwrap().flatten().count();
    for (rest, code) in [("true", 0), ("sleep 600", 130), ("echo nonsense", 1)] {
        let lab = Lab::new("h200");
        let script = if code == 1 { format!("{}; exit 7", script("true")) } else { script(rest) };
        let mut command = lab.bare(vgpu());
        command.args(["validate", "--runs", "1", "--tenant", "a:memory=1GiB", "--tenant", "b:sm=50", "--library"]);
        command.arg(lab.lib()).env("VGPU_STATE_DIR", lab.state());
        command.args(["a", "--", "sh", "-c", &script, "--and", "b", "--", "sh", "-c", &script]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        if code == 130 {
            eventually("a program has a ledger", || held(&lab) > 0);
            assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        }
        assert_eq!(child.wait().unwrap().code(), Some(code), "{script}");
        assert_eq!(held(&lab), 0, "{script}");
        // Control: the programs do make ledgers.
        assert!(lab.device(0).finished.iter().any(|process| process.peak_bytes > MIB), "{script}");
    }
}
