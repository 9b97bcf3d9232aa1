//! `vgpu doctor` on a machine with library, driver and limit. A child process of the doctor proves its statements, and
//! nothing is left behind.
//!
//! Variables, paths and texts: scheduler-sidecar/cli/tests/doctor.rs; inside a container: `container.rs`.

use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vgpu_core::units::bytes::Bytes;
use vgpu_tests::artefacts::{vgpu, vgpud};
use vgpu_tests::program::{Kind, compile, compile_with};
use vgpu_tests::{GIB, LONG_TIMEOUT, Lab, MIB};

fn one_gib() -> Lab {
    Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB")
}

/// Runs the doctor. Returns the findings and the complete output, line by line; the exit code must agree.
fn visit(lab: &Lab) -> (Vec<String>, String) {
    let library = lab.path().join("libvgpu.so");
    let library = if library.exists() { library } else { lab.lib().to_owned() };
    let out = lab.command(vgpu()).args(["doctor", "--json"]).env("VGPU_LIBRARY", library).output().unwrap();
    let report: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", vgpu_tests::text(&out)));
    let lines = report["lines"].as_array().unwrap();
    let words = |line: &Value| format!("{}: {}", line["subject"].as_str().unwrap(), line["words"].as_str().unwrap());
    let findings: Vec<String> = lines.iter().filter(|line| line["ok"] == false).map(words).collect();
    assert_eq!(out.status.code(), Some(i32::from(!findings.is_empty())), "{findings:?}");
    (findings, lines.iter().map(words).collect::<Vec<_>>().join("\n"))
}

fn healthy(lab: &Lab, words: &[&str]) {
    let (findings, all) = visit(lab);
    assert_eq!(findings, Vec::<String>::new(), "{all}");
    words.iter().for_each(|word| assert!(all.contains(word), "{all} lacks {word:?}"));
}

fn ill(lab: &Lab, words: &[&str]) {
    let (findings, all) = visit(lab);
    words.iter().for_each(|word| assert!(findings.iter().any(|f| f.contains(word)), "no finding has {word:?}: {all}"));
}

#[test]
fn a_limit_that_holds_is_proved_and_nothing_is_left_behind() {
    let lab = one_gib();
    healthy(
        &lab,
        &[
            "libvgpu.so is mapped in programs started here",
            "none bypasses the hooks",
            "memory 1 GiB of ",
            "from VGPU_MEMORY_LIMIT",
            "2 MiB were granted, 1 GiB and 2 MiB more were refused: the limit holds",
        ],
    );
    let device = lab.device(0);
    assert_eq!(device.used, 0, "everything came back");
    let peak = device.finished.iter().map(|process| process.peak_bytes).max().unwrap();
    assert!(peak > 2 * MIB && peak <= GIB, "it did allocate, and never more than the limit: {peak}");
}

#[test]
fn each_device_has_its_own_limit_and_its_own_proof() {
    let lab = Lab::new("t4,h200")
        .with("VGPU_MEMORY_LIMIT_0", "25%")
        .with("VGPU_MEMORY_LIMIT_1", "2GiB")
        .with("VGPU_SM_LIMIT_1", "30");
    // CUDA lists the fastest device first, limits are numbered in bus order.
    let (_, all) = visit(&lab);
    let line = |begin: &str, word: &str| {
        let found = all.lines().find(|line| line.starts_with(begin) && line.contains(word));
        found.unwrap_or_else(|| panic!("no {begin:?} with {word:?}: {all}")).to_owned()
    };
    assert!(line("in force: device 0", "VGPU_MEMORY_LIMIT_1").contains("memory 2 GiB of"), "{all}");
    assert!(line("in force: device 0", "VGPU_SM_LIMIT_1").contains("device time 30 %"), "{all}");
    assert!(line("in force: device 1", "VGPU_MEMORY_LIMIT_0").contains("device time without a limit"), "{all}");
    line("control: device 0", "the limit holds");
    line("control: device 1", "the limit holds");
    healthy(&lab, &[]);
}

/// A MIG instance has its device's number, and NVML lists it there.
#[test]
fn a_mig_instance_is_proved_with_the_limit_of_its_devices_number_and_of_its_own_memory() {
    for (name, value, part) in [("VGPU_MEMORY_LIMIT_1", "2GiB", None), ("VGPU_MEMORY_LIMIT", "50%", Some(2))] {
        let mut lab = Lab::new("t4,a100:mig=3g.40gb+3g.40gb").with(name, value);
        let instance = lab.device(2);
        lab.set("CUDA_VISIBLE_DEVICES", &instance.uuid);
        let limit = Bytes(part.map_or(2 * GIB, |part| instance.cuda_total / part));
        let total = Bytes(instance.cuda_total);
        healthy(&lab, &[&format!("memory {limit} of {total} from {name}"), "the limit holds"]);
    }
}

#[test]
fn the_mode_and_who_decided_it_are_told() {
    healthy(&one_gib(), &["mode: enforce (by default): limits are kept"]);
    healthy(
        &one_gib().with("VGPU_MODE", "observe"),
        &["mode: observe (VGPU_MODE=observe): ", "programs get what the device has; use is only measured"],
    );
    for (name, value) in [("VGPU_MODE", "off"), ("CUDA_DISABLE_CONTROL", "true")] {
        let lab = one_gib().with(name, value);
        healthy(&lab, &[&format!("mode: off ({name}={value}): "), "programs run WITHOUT the limits that are set"]);
        healthy(&lab, &[&format!("{name}={value} switches limits off: there is nothing to prove")]);
        assert!(lab.device(0).finished.iter().all(|process| process.peak_bytes == 0), "nothing was allocated");
    }
    let both = one_gib().with("VGPU_MODE", "enforce").with("CUDA_DISABLE_CONTROL", "true");
    healthy(&both, &["CUDA_DISABLE_CONTROL=true is set, too: VGPU_MODE wins", "the limit holds"]);
}

/// Measured usage is visible in both modes, observe and enforce.
#[test]
fn what_the_tenants_processes_hold_and_worked_is_told() {
    for mode in ["observe", "enforce"] {
        let lab =
            Lab::new("h200").with("VGPU_MEMORY_LIMIT", "8GiB").with("VGPU_SM_LIMIT", "90").with("VGPU_MODE", mode);
        let lab = lab.with("VGPU_TENANT", "team");
        let (mut one, mut two) = (lab.member(), lab.member());
        one.begin();
        two.begin();
        one.alloc(3 * GIB);
        two.alloc(GIB);
        one.ok("work 5000000 300 8 0");
        let (_, all) = visit(&lab);
        let line = all.lines().find(|line| line.starts_with("used: GPU-")).unwrap_or_else(|| panic!("{all}"));
        assert!(line.contains(": 2 processes hold 5") && line.contains(" overhead; busy for "), "{line}");
        let seconds = line.rsplit_once("busy for ").unwrap().1.trim_end_matches(" s").parse::<f64>().unwrap();
        let truth = lab.process(0, one.pid).busy_ns;
        #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
        let truth = truth as f64 / 1e9;
        assert!((seconds - truth).abs() <= truth / 10.0, "{seconds} s told, {truth} s worked");
        two.kill();
        let (_, all) = visit(&lab);
        assert!(all.contains(": 1 processes hold 3"), "whoever is gone holds nothing: {all}");
    }
}

#[test]
fn without_limits_there_is_nothing_to_prove_and_the_doors_are_told_all_the_same() {
    let lab = Lab::new("h200");
    healthy(
        &lab,
        &[
            "no limit is asked for: there is nothing to prove",
            "libcuda.so.1: ",
            "functions are hooked, none bypasses the hooks",
        ],
    );
    assert!(lab.device(0).finished.iter().all(|process| process.peak_bytes == 0), "nothing was allocated");
}

/// NVIDIA's container toolkit and MPS have limits of their own. Both count here.
#[test]
fn limits_of_nvidias_own_are_told_with_what_they_do_here() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "2GiB").with("NVIDIA_GPU_MEMORY_LIMIT", "1024");
    let lab = lab.with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G");
    healthy(
        &lab,
        &[
            "VGPU_MEMORY_LIMIT=2GiB is 2 GiB, NVIDIA_GPU_MEMORY_LIMIT=1024 is 1 GiB; both are set: NVIDIA_GPU_MEMORY_LIMIT, the lower, wins",
            "memory 1 GiB of ",
            "from NVIDIA_GPU_MEMORY_LIMIT",
            "the limit holds",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G: memory of each device that it names, of all the tenant's processes",
        ],
    );
    let lab = lab.with("CUDA_DEVICE_MEMORY_LIMIT", "4g");
    healthy(&lab, &["; the lowest wins", "memory 1 GiB of "]);
    let lab = lab.with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=900M");
    healthy(&lab, &["memory 900 MiB of ", "from CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "the limit holds"]);
    let lab = Lab::new("h200").with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=900M");
    healthy(&lab, &["memory 900 MiB of ", "the limit holds"]);
    assert!(!visit(&lab).1.contains("no limit"), "{}", visit(&lab).1);
}

/// The list counts devices as CUDA does here, so `CUDA_VISIBLE_DEVICES` changes it. The library need not be loaded.
#[test]
fn a_list_of_mps_that_the_driver_drops_is_found_out() {
    const MPS_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    let mut lab = Lab::new("2xh200");
    for preloaded in [true, false] {
        if !preloaded {
            lab.preload(&[]);
        }
        // Without the library the limits that are asked for do not hold, which is a finding of its own.
        let findings = |lab: &Lab| {
            let (mut findings, all) = visit(lab);
            let found = findings.len();
            findings.retain(|finding| !finding.contains("libvgpu.so is not mapped in programs"));
            assert_eq!(findings.len() == found, preloaded, "{all}");
            findings
        };
        lab.set(MPS_LIMIT, "0=512M,1=1G");
        assert_eq!(findings(&lab), Vec::<String>::new());
        lab.set(MPS_LIMIT, "0=512M,2=1G");
        let told = |list: &str, entry: &str, shown: &str| {
            let begin = format!("limits: {MPS_LIMIT}={list:?}: {entry:?} names a device that is not visible here: ");
            format!("{begin}CUDA shows {shown}; MPS drops such a list and limits nothing; vgpu keeps the other entries")
        };
        assert_eq!(findings(&lab), [told("0=512M,2=1G", "2=1G", "devices 0 to 1")]);
        lab.set(MPS_LIMIT, "1=1G");
        lab.set("CUDA_VISIBLE_DEVICES", "1");
        assert_eq!(findings(&lab), [told("1=1G", "1=1G", "device 0 alone")]);
        lab.set(MPS_LIMIT, format!("{}=1G", lab.device(1).uuid));
        assert_eq!(findings(&lab), Vec::<String>::new());
        lab.set(MPS_LIMIT, format!("{}=1G", lab.device(0).uuid));
        assert_eq!(findings(&lab).len(), 1);
        lab.unset("CUDA_VISIBLE_DEVICES");
        assert_eq!(findings(&lab), Vec::<String>::new());
        lab.set(MPS_LIMIT, "512M");
        ill(&lab, &["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=\"512M\" is not a list of DEVICE=SIZE; accepted: "]);
    }
}

#[test]
fn a_limit_of_the_whole_device_is_said_to_be_the_devices_own() {
    healthy(&Lab::new("t4").with("VGPU_MEMORY_LIMIT", "100%"), &["the limit is all of the device"]);
}

/// Control of the doctor's own control: a library with our name that hooks nothing.
#[test]
fn a_limit_that_does_not_hold_is_found_out() {
    let mut lab = one_gib();
    let fake = lab.path().join("libvgpu.so");
    fs::copy(compile("empty", Kind::Library, &[]), &fake).unwrap();
    lab.preload(&[&fake]);
    ill(&lab, &["0 of ", "bypass the hooks", "instead of the limit of 1 GiB: it is NOT enforced"]);
    lab.preload(&[]);
    ill(&lab, &["they run WITHOUT limits"]);
}

#[test]
fn a_limit_that_cannot_be_kept_is_found_out() {
    let lab = one_gib().with("VGPU_STATE_DIR", "/proc");
    ill(&lab, &["cuInit answers 800 under the limits"]);
    let lab = one_gib().with("VGPU_STATE_DIR", "/proc").with("VGPU_ON_ERROR", "open");
    ill(&lab, &["it is NOT enforced"]);
}

#[test]
fn a_tenant_that_uses_all_of_its_limit_is_not_ill() {
    let lab = one_gib();
    let mut m = lab.member();
    m.begin();
    let free = m.info().0;
    m.alloc(free);
    healthy(&lab, &["a context is refused, the limit of 1 GiB is used up"]);
}

#[test]
fn open_doors_that_the_tenants_processes_met_are_told() {
    let host = compile_with("host", Kind::Program, &[], &["-rdynamic"]);
    let guest = compile("guest", Kind::LinkedLibrary, &[]);
    let lab = one_gib();
    let meet = |words: &[&str]| {
        let mut words = words.to_vec();
        words.extend([guest.to_str().unwrap(), "alloc", "1048576"]);
        vgpu_tests::run(lab.command(&host).args(&words))
    };
    meet(&["open"]);
    healthy(&lab, &["no process of this tenant found a bypass"]);
    // The bypass happens before a ledger exists, and is reported once there is one.
    meet(&["new", guest.to_str().unwrap(), "open"]);
    ill(&lab, &["found bypasses ", "the first: dlmopen of guest"]);
    let (findings, _) = visit(&lab);
    assert_eq!(findings.len(), 1, "{findings:?}");
}

/// Limits from a daemon. `vgpu status` shows the bypasses that the tenant used.
#[test]
fn limits_from_the_daemon_are_proved_and_its_tenants_doors_are_in_the_status() {
    let mut lab = Lab::new("h200");
    let (socket, admin) = (lab.path().join("a/vgpud.sock"), lab.path().join("admin.sock"));
    let mut daemon = Command::new(vgpud());
    daemon.args(["--tenant", "a", "--memory-limit", "1GiB", "--socket"]).arg(&socket).arg("--admin-socket").arg(&admin);
    let mut daemon = daemon.stderr(Stdio::null()).stdin(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + LONG_TIMEOUT;
    while !(socket.exists() && admin.exists()) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    lab.set("VGPU_SOCKET", &socket);
    let outcome = std::panic::catch_unwind(|| {
        healthy(&lab, &["from the daemon", "the limit holds"]);
        let status = |lab: &Lab| vgpu_tests::run(lab.command(vgpu()).args(["status", "--socket"]).arg(&admin));
        assert!(status(&lab).contains("  none      /"), "{}", status(&lab));
        let guest = compile("guest", Kind::LinkedLibrary, &[]);
        let guest = guest.to_str().unwrap();
        let host = compile_with("host", Kind::Program, &[], &["-rdynamic"]);
        vgpu_tests::run(lab.command(host).args(["new", guest, "open", guest, "alloc", "1048576"]));
        assert!(status(&lab).contains(", first: dlmopen of guest"), "{}", status(&lab));
    });
    let _ = daemon.kill();
    let _ = daemon.wait();
    outcome.unwrap();
}

#[test]
fn without_nvml_the_doctor_says_that_cuda_programs_see_the_devices_and_nvml_tools_do_not() {
    for (fails, words) in [(false, "libnvidia-ml.so.1 is not found: "), (true, "nvmlInit answers 9: ")] {
        let mut lab = one_gib();
        let driver = lab.driver_without(&[]);
        let nvml = driver.join("libnvidia-ml.so.1");
        fs::remove_file(&nvml).unwrap();
        if fails {
            fs::copy(compile("nvml_fails", Kind::Library, &[]), &nvml).unwrap();
        }
        lab.with_driver(&driver);
        let (findings, all) = visit(&lab);
        let finding =
            findings.iter().find(|line| line.contains(words)).unwrap_or_else(|| panic!("no {words:?}: {all}"));
        assert!(finding.contains("CUDA programs see the devices; nvidia-smi and other NVML tools do not"), "{finding}");
        assert!(finding.contains("NVIDIA_DRIVER_CAPABILITIES=compute,utility"), "{finding}");
        assert!(!all.contains("programs see no GPU"), "{all}");
        assert!(all.contains("the limit holds"), "CUDA works: {all}");
    }
}
