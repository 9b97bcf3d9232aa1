//! One short point of each kind through the whole tool, with loose bounds. The library limits the program, the device's
//! record judges it, and the written files can be read.

use std::process::Command;
use tempfile::TempDir;
use vgpu_tests::artefacts;

/// Output and files of a run.
struct ToolRun {
    out: TempDir,
    said: String,
    told: serde_json::Value,
}

impl ToolRun {
    /// Runs the tool with `arguments`, on the libraries that were built for tests.
    fn run_with(arguments: &[&str]) -> ToolRun {
        let out = tempfile::tempdir().expect("a temporary directory");
        let ran = Command::new(env!("CARGO_BIN_EXE_vgpu-shares"))
            .args(arguments)
            .args(["--json", "--out"])
            .arg(out.path())
            .env("VGPU_BUILD", artefacts::vgpud().parent().expect("a directory"))
            .env("VGPU_LIB_DIR", artefacts::libvgpu().parent().expect("a directory"))
            .env("VGPU_SIM_LIB_DIR", artefacts::sim_dir())
            .output()
            .expect("the tool can be started");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{}: {said}", ran.status);
        ToolRun { out, said, told: serde_json::from_slice(&ran.stdout).expect("JSON") }
    }

    fn told_number(&self, pointer: &str) -> f64 {
        self.told.pointer(pointer).and_then(|value| value.as_f64()).unwrap_or(f64::NAN)
    }

    fn written_file(&self, name: &str) -> String {
        std::fs::read_to_string(self.out.path().join(name)).unwrap_or_else(|why| panic!("{name}: {why}"))
    }
}

#[test]
fn a_point_is_measured_with_its_null_control_and_reported() {
    let name = "h200/async/5ms/30";
    let ran = ToolRun::run_with(&["--points", name, "--seconds", "2"]);
    let (told, said) = (&ran.told, &ran.said);
    assert_eq!(told.pointer("/points/0/point/name").and_then(|name| name.as_str()), Some(name), "{told:#}");
    // Two cores are shared with other tests, so the bounds only separate limited from unlimited.
    let (free, share) =
        (ran.told_number("/nulls/0/figures/share"), ran.told_number("/points/0/tenants/0/median/share"));
    assert!(free > 80.0, "without the library: {free} %; {said}");
    assert!((10.0..60.0).contains(&share), "under 30 %: {share} %; {said}");
    assert!(ran.told_number("/points/0/tenants/0/median/kernels") > 10.0, "{told:#}");
    assert!(ran.told_number("/points/0/tenants/0/median/meter").abs() < 50.0, "{told:#}");
    assert!(ran.written_file("report.md").contains(&format!("| {name} |")));
    assert!(
        ran.written_file("errors.svg").contains("<circle") && ran.written_file("over-time.svg").contains("<polyline")
    );
    assert!(ran.written_file("errors.csv").contains(name) && ran.written_file("over-time.csv").contains(name));
    assert!(!ran.out.path().join("shares.json").exists(), "all figures are printed, not kept");
}

#[test]
fn a_text_that_no_point_has_is_told() {
    let ran = Command::new(env!("CARGO_BIN_EXE_vgpu-shares")).args(["--points", "h300", "--list"]).output();
    let ran = ran.expect("the tool can be started");
    assert_eq!(ran.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("--points h300: no point's name holds this"));
}

#[test]
fn tenants_under_the_daemon_are_measured_and_what_is_missed_is_named() {
    let only = "shares/30-70/1ms,latency/500us-beside-1ms,changes/memory";
    let ran = ToolRun::run_with(&["tenants", "--only", only, "--seconds", "2", "--changes", "4"]);
    let (told, said) = (&ran.told, &ran.said);
    // Two cores are shared with other tests, so the bounds only show that there are leases, requests and changes.
    assert!((20.0..40.0).contains(&ran.told_number("/shares/0/figures/parts/0/of_work")), "{told:#}");
    assert!(ran.told_number("/shares/0/figures/busy") > 40.0, "{told:#}");
    assert!(
        ran.told_number("/latency/0/alone/p50") >= 0.5 && ran.told_number("/latency/0/with/count") > 20.0,
        "{told:#}"
    );
    // On a busy host a change may be seen too late. The report counts it as lost.
    let (seen, lost) = (ran.told_number("/changes/0/times/count"), ran.told_number("/changes/0/lost"));
    assert!(seen > 0.0 && (seen + lost - 20.0).abs() < 0.5, "{told:#}");
    assert!(
        ran.written_file("report.md").contains("the model's figures")
            && ran.written_file("over-time.svg").contains("<polyline")
    );
    assert!(!ran.out.path().join("decode.svg").exists(), "there is no picture of a part that was not measured");
    let named = ran.written_file("report.md").lines().filter(|line| line.starts_with("- missed: ")).count();
    assert_eq!(said.lines().filter(|line| line.starts_with("MISSED: ")).count(), named, "{said}");
}

#[test]
fn decode_steps_are_measured_alone_in_slices_and_under_leases() {
    let ran = ToolRun::run_with(&["tenants", "--only", "decode/9ms", "--seconds", "2"]);
    let number = |way: usize, figure: &str| ran.told_number(&format!("/decode/{way}/{figure}"));
    // Two cores are shared with other tests, so the bounds only show that steps have their length and that two services
    // do more than half of one.
    for way in 0..4 {
        assert!(number(way, "per_second") > 10.0 && number(way, "p50") >= 8.6, "{:#}", ran.told);
        assert!(number(way, "p99") >= number(way, "p50") && number(way, "percent_of_one") > 50.0, "{:#}", ran.told);
    }
    assert!(ran.told.pointer("/decode/4").is_none(), "one length of the host's work was selected: {:#}", ran.told);
    assert!(ran.written_file("report.md").contains("| 9 | two, leases of 10 ms |"));
    assert!(ran.written_file("decode.svg").contains("simulated") && ran.written_file("decode.csv").contains("leases"));
    assert!(!ran.out.path().join("over-time.svg").exists(), "there is no picture of a part that was not measured");
}
