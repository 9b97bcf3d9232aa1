//! Tests of `vgpu doctor`, `vgpu status` and `vgpu sim`.

#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{Daemon, compile, texts, vgpu, with_library};
use tempfile::TempDir;

/// Finding for limits without a preloaded library.
const UNLOADED: &str = "loaded: limits are asked for, and libvgpu.so is not mapped";

/// The doctor in a healthy environment: a library, both drivers, a place for ledgers, no daemon.
struct Clinic {
    dir: TempDir,
    _library: TempDir,
    vars: Vec<(String, String)>,
}

impl Clinic {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let (library_dir, library) = with_library();
        for driver in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            let source = "const char *vgpu_mark = \"VGPU_SIM_DIR\";";
            compile(source, &dir.path().join(driver), &["-shared", "-fPIC", "-nostdlib"]);
        }
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let vars = vec![
            ("VGPU_LIBRARY".into(), text(&library)),
            ("LD_LIBRARY_PATH".into(), text(dir.path())),
            ("VGPU_RUNTIME_DIR".into(), text(&dir.path().join("runtime"))),
        ];
        Self { dir, _library: library_dir, vars }
    }

    fn with(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        self.vars.push((name.into(), value.as_ref().to_str().unwrap().into()));
        self
    }

    fn command(&self) -> Command {
        let mut command = vgpu();
        command.arg("doctor").envs(self.vars.clone());
        command
    }

    /// Returns the findings, and the whole report as text.
    fn visit(&self) -> (Vec<String>, String) {
        let output = self.command().arg("--json").output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let lines = report["lines"].as_array().unwrap();
        let words =
            |line: &Value| format!("{}: {}", line["subject"].as_str().unwrap(), line["words"].as_str().unwrap());
        let mut findings: Vec<String> = lines.iter().filter(|line| line["ok"] == false).map(words).collect();
        assert_eq!(report["findings"], findings.len());
        assert_eq!(output.status.code(), Some(i32::from(!findings.is_empty())), "{findings:?}");
        // The stand-in libraries enforce nothing, so the finding "limits without a library" is left out. It has its own
        // test.
        findings.retain(|finding| !finding.starts_with(UNLOADED));
        (findings, lines.iter().map(words).collect::<Vec<_>>().join("\n"))
    }

    /// Asserts that there is exactly one finding, with these words.
    fn finds(&self, words: &[&str]) {
        let (findings, _) = self.visit();
        assert_eq!(findings.len(), 1, "{findings:?}");
        for word in words {
            assert!(findings[0].contains(word), "{findings:?} lacks {word:?}");
        }
    }

    /// Asserts that there is no finding, and that the report contains these words.
    fn says(&self, words: &[&str]) {
        let (findings, all) = self.visit();
        assert_eq!(findings, Vec::<String>::new());
        for word in words {
            assert!(all.contains(word), "{all} lacks {word:?}");
        }
    }
}

#[test]
fn limits_that_a_scheduler_seems_to_set_and_nobody_keeps_are_found() {
    Clinic::new()
        .with("GPU_PORTION", "0.05")
        .finds(&["GPU_PORTION=0.05 and no memory limit", "CUDA_DEVICE_MEMORY_LIMIT"]);
    let limited = Clinic::new().with("GPU_PORTION", "0.05").with("CUDA_DEVICE_MEMORY_LIMIT", "7188m");
    limited.says(&["CUDA_DEVICE_MEMORY_LIMIT=7188m"]);
    let manager = Clinic::new().with("CUDA_MEM_LIMIT_0", "4096m").with("VGPU_POD_NAME", "train");
    manager.finds(&["CUDA_MEM_LIMIT_0: vgpu-manager's own library keeps it, and this one does not"]);
    Clinic::new()
        .with("VGPU_POD_NAME", "train")
        .says(&["VGPU_POD_NAME (vgpu-manager names the pod by it; this library does not read it)"]);
}

#[test]
fn a_healthy_place_has_no_findings_and_code_0() {
    let clinic = Clinic::new();
    clinic.says(&[
        "libvgpu.so",
        "libcuda.so.1: simulated",
        "libnvidia-ml.so.1: simulated",
        "none in the environment",
        "kept in",
    ]);
    let (out, _) = texts(&clinic.command().output().unwrap());
    assert!(out.ends_with("nothing found\n"), "{out}");
    assert!(!out.contains('\x1b'), "no colours into a pipe");
}

#[test]
fn a_driver_that_is_missing_or_half_simulated_is_a_finding() {
    let clinic = Clinic::new();
    fs::remove_file(clinic.dir.path().join("libcuda.so.1")).unwrap();
    let real = clinic.dir.path().join("libcuda.so.1");
    compile("int real;", &real, &["-shared", "-fPIC", "-nostdlib"]);
    clinic.finds(&["driver", "one of them is simulated and the other real"]);
    fs::remove_file(&real).unwrap();
    // The machine may have a real driver; then there is a mixture again.
    let (findings, _) = clinic.visit();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].contains("libcuda.so.1 is not found") || findings[0].contains("one of them"), "{findings:?}");
}

#[test]
fn a_library_that_is_missing_is_a_finding() {
    Clinic::new().with("VGPU_LIBRARY", "/nowhere/libvgpu.so").finds(&[
        "library",
        "VGPU_LIBRARY",
        "/nowhere/libvgpu.so",
    ]);
}

#[test]
fn a_library_of_the_same_name_by_somebody_else_is_a_finding() {
    let dir = TempDir::new().unwrap();
    let other = dir.path().join("libvgpu.so");
    compile("int hami;", &other, &["-shared", "-fPIC", "-nostdlib"]);
    Clinic::new().with("LD_PRELOAD", &other).finds(&["LD_PRELOAD", "another project's"]);
}

#[test]
fn a_preload_that_does_nothing_is_a_finding() {
    Clinic::new().with("LD_PRELOAD", "libvgpu.so").finds(&["LD_PRELOAD names libvgpu.so without a path", "absolute"]);
    Clinic::new().with("LD_PRELOAD", "/nowhere/libvgpu.so").finds(&["/nowhere/libvgpu.so", "does not exist"]);
    let (_one, library) = with_library();
    let (_two, other) = with_library();
    Clinic::new().with("LD_PRELOAD", &library).says(&[library.to_str().unwrap()]);
    let both = format!("{}:{}", library.display(), other.display());
    Clinic::new().with("LD_PRELOAD", both).finds(&["a second libvgpu.so"]);
}

#[test]
fn of_two_names_for_one_limit_the_lower_is_named() {
    let both =
        |ours: &str, hamis: &str| Clinic::new().with("VGPU_MEMORY_LIMIT", ours).with("CUDA_DEVICE_MEMORY_LIMIT", hamis);
    both("4GiB", "2048m").says(&["VGPU_MEMORY_LIMIT=4GiB is 4 GiB", "CUDA_DEVICE_MEMORY_LIMIT, the lower, wins"]);
    both("1GiB", "2048m").says(&["VGPU_MEMORY_LIMIT, the lower, wins"]);
    both("1GiB", "0").says(&["CUDA_DEVICE_MEMORY_LIMIT=0 is no limit", "VGPU_MEMORY_LIMIT, the lower, wins"]);
    both("unlimited", "0").says(&["neither limits anything"]);
    both("12.5%", "2048m").says(&["12.5000 % of the device", "depends on the device's size"]);
    Clinic::new()
        .with("VGPU_SM_LIMIT", "30")
        .with("CUDA_DEVICE_SM_LIMIT", "12")
        .says(&["CUDA_DEVICE_SM_LIMIT, the lower, wins"]);
    Clinic::new()
        .with("VGPU_SM_LIMIT", "30")
        .with("CUDA_DEVICE_SM_LIMIT", "100")
        .says(&["VGPU_SM_LIMIT, the lower, wins"]);
    Clinic::new().with("VGPU_MEMORY_LIMIT", "4GiB").with("CUDA_DEVICE_MEMORY_LIMIT_1", "1g").says(&[
        "memory of every device: VGPU_MEMORY_LIMIT=4GiB is 4 GiB",
        "memory of device 1: VGPU_MEMORY_LIMIT=4GiB is 4 GiB, CUDA_DEVICE_MEMORY_LIMIT_1=1g is 1 GiB",
        "CUDA_DEVICE_MEMORY_LIMIT_1, the lower, wins",
    ]);
}

#[test]
fn what_words_beside_the_limits_do_is_told() {
    Clinic::new().with("CUDA_TASK_PRIORITY", "0").says(&["CUDA_TASK_PRIORITY=0 has no effect: the tenant's class"]);
    let policy = || Clinic::new().with("GPU_CORE_UTILIZATION_POLICY", "disable").with("CUDA_DEVICE_SM_LIMIT", "30");
    policy().says(&["CUDA_DEVICE_SM_LIMIT is not kept", "device time of every device: no limit"]);
    policy().with("VGPU_SM_LIMIT", "40").says(&["device time of every device: VGPU_SM_LIMIT=40 is 40 %"]);
    Clinic::new().with("CUDA_OVERSUBSCRIBE", "true").with("LIBCUDA_LOG_LEVEL", "3").says(&[
        "set, without effect: CUDA_OVERSUBSCRIBE (device memory is not oversubscribed",
        "; LIBCUDA_LOG_LEVEL (there are no levels",
    ]);
    Clinic::new().with("VGPU_SM_REQUEST", "30").finds(&["asks for guaranteed time", "VGPU_SOCKET"]);
    Clinic::new()
        .with("VGPU_SM_REQUEST", "50")
        .with("VGPU_SM_LIMIT", "30")
        .finds(&["VGPU_SM_REQUEST=\"50\" is more than VGPU_SM_LIMIT=\"30\" allows"]);
    Clinic::new().with("VGPU_MODE", "watch").finds(&["VGPU_MODE=\"watch\"", "accepted: enforce, observe, off"]);
    let (findings, fine) = Clinic::new().with("VGPU_SOCKET", "/nowhere/a.sock").with("VGPU_MODE", "observe").visit();
    assert!(!findings.iter().any(|finding| finding.contains("VGPU_MODE")), "{findings:?}");
    let said = "VGPU_MODE=observe has no effect with VGPU_SOCKET, because a variable can only tighten";
    assert!(fine.contains(said), "{fine}");
}

/// The most important finding: limits that are silently not enforced. A loaded library is tested in
/// tests/tests/doctor.rs.
#[test]
fn limits_without_the_library_are_a_finding_whoever_asked_for_them() {
    for (name, value, asked) in [
        ("VGPU_MEMORY_LIMIT", "1GiB", true),
        ("CUDA_DEVICE_SM_LIMIT", "30", true),
        ("VGPU_MEMORY_LIMIT", "unlimited", false),
        ("CUDA_DEVICE_SM_LIMIT", "100", false),
    ] {
        let output = Clinic::new().with(name, value).command().output().unwrap();
        let (out, _) = texts(&output);
        assert_eq!(out.contains("run WITHOUT limits"), asked, "{name}={value}: {out}");
        assert_eq!(output.status.code(), Some(i32::from(asked)), "{name}={value}: {out}");
    }
}

#[test]
fn a_library_that_is_preloaded_here_is_said_to_be_mapped() {
    let (_dir, library) = with_library();
    Clinic::new()
        .with("LD_PRELOAD", &library)
        .says(&["is mapped in programs started here", "there is nothing to prove"]);
}

#[test]
fn what_the_library_would_not_understand_is_a_finding() {
    Clinic::new().with("VGPU_MEMORY_LIMIT", "abc").finds(&["VGPU_MEMORY_LIMIT=\"abc\"", "accepted:"]);
    Clinic::new().with("CUDA_DEVICE_SM_LIMIT", "x").finds(&["CUDA_DEVICE_SM_LIMIT=\"x\"", "accepted:"]);
    Clinic::new().with("VGPU_MEMORY_LIMIT_01", "1G").finds(&["VGPU_MEMORY_LIMIT_01"]);
    Clinic::new().with("VGPU_MEM_LIMIT", "1G").finds(&["VGPU_MEM_LIMIT is not a variable of vgpu"]);
    Clinic::new().with("VGPU_DEEPBIND", "yes").finds(&["VGPU_DEEPBIND=\"yes\"", "accepted: clear, keep"]);
    Clinic::new().with("VGPU_DEEPBIND", "keep").says(&["RTLD_DEEPBIND is kept"]);
    Clinic::new().with("VGPU_STRICT", "yes").finds(&["VGPU_STRICT=\"yes\"", "accepted: 0, 1"]);
    Clinic::new().with("VGPU_TENANT", "a/b").finds(&["VGPU_TENANT=\"a/b\"", "accepted:"]);
    Clinic::new().with("VGPU_ON_ERROR", "open").says(&["runs without it"]);
}

#[test]
fn the_ledgers_place_is_the_one_the_library_takes() {
    let clinic = Clinic::new();
    let state = clinic.dir.path().to_owned();
    let clinic = clinic.with("VGPU_STATE_DIR", &state).with("VGPU_TENANT", "team-a");
    clinic.says(&[&format!("kept in {} (VGPU_STATE_DIR)", state.display()), "t-team-a (by VGPU_TENANT)"]);
    assert!(fs::read_dir(&state).unwrap().all(|entry| entry.unwrap().file_name().to_str().unwrap().starts_with("lib")));
    Clinic::new().with("VGPU_STATE_DIR", "/nowhere").finds(&["/nowhere cannot be written", "VGPU_STATE_DIR"]);
    Clinic::new().with("VGPU_STATE_DIR", "/proc").finds(&["/proc ", "VGPU_STATE_DIR"]);
    let cache = state.join("vgpu.cache");
    Clinic::new().with("CUDA_DEVICE_MEMORY_SHARED_CACHE", cache).says(&[&format!("kept in {}", state.display())]);
}

#[test]
fn a_daemon_that_answers_is_fine_and_one_that_does_not_is_a_finding() {
    let dir = TempDir::new().unwrap();
    let runtime = dir.path().join("runtime");
    fs::create_dir(&runtime).unwrap();
    let socket = dir.path().join("a/vgpud.sock");
    let daemon = Daemon::start(&socket, &["--admin-socket", runtime.join("admin.sock").to_str().unwrap()]);
    let clinic = || Clinic::new().with("VGPU_SOCKET", &socket);
    clinic().says(&["tenant a, memory 1 GiB, device time 30 %"]);
    Clinic::new().with("VGPU_RUNTIME_DIR", &runtime).says(&["1 tenants, 0 members"]);
    daemon.kill();
    clinic().finds(&["VGPU_SOCKET=", "vgpud.sock", "start vgpud"]);
    Clinic::new().with("VGPU_RUNTIME_DIR", &runtime).finds(&["admin.sock", "the daemon is gone"]);
}

#[test]
fn status_shows_tenants_limits_and_members() {
    let dir = TempDir::new().unwrap();
    let admin = dir.path().join("admin.sock");
    let daemon = Daemon::start(&dir.path().join("a/vgpud.sock"), &["--admin-socket", admin.to_str().unwrap()]);
    let mut member = daemon.connect();
    assert!(member.hello().contains("tenant"));
    let output = vgpu().args(["status", "--socket"]).arg(&admin).env("VGPU_STATE_DIR", dir.path()).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    let row: Vec<&str> =
        out.lines().nth(2).unwrap().split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect();
    assert_eq!(
        row[..5],
        ["a", "1 GiB", "30 %", &std::process::id().to_string(), "?"],
        "no account is there to tell of doors"
    );
    let output =
        vgpu().args(["status", "--json", "--socket"]).arg(&admin).env("VGPU_STATE_DIR", dir.path()).output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["pid"], daemon.child.id());
    assert_eq!(status["tenants"][0]["memory_limit"], 1 << 30);
    assert_eq!(status["tenants"][0].get("bypasses"), Some(&Value::Null));
    assert_eq!(status["tenants"][0]["members"][0]["pid"], std::process::id());
    let by_variable = vgpu().args(["status", "--json"]).env("VGPU_ADMIN_SOCKET", &admin).output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&by_variable.stdout).unwrap()["pid"], daemon.child.id());
}

#[test]
fn status_without_a_daemon_is_told_with_code_1() {
    let dir = TempDir::new().unwrap();
    let output = vgpu().arg("status").env("VGPU_RUNTIME_DIR", dir.path()).output().unwrap();
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("no daemon answers at") && err.contains(dir.path().to_str().unwrap()), "{err}");
}

#[test]
fn a_simulated_machine_is_shown_and_removed() {
    let dir = TempDir::new().unwrap();
    let sim = |args: &[&str]| vgpu().arg("sim").args(args).env("VGPU_SIM_DIR", dir.path().join("m")).output().unwrap();
    let none = sim(&["stat"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(texts(&none).1.contains("there is no simulated machine"));
    assert!(!dir.path().join("m").exists(), "looking makes nothing");
    vgpu_sim::admin::create_machine(&dir.path().join("m"), "t4,h200").unwrap();
    let stat = sim(&["stat", "--json"]);
    let truth: Value = serde_json::from_slice(&stat.stdout).unwrap();
    assert_eq!(truth["devices"].as_array().unwrap().len(), 2);
    assert_eq!(truth["devices"][0]["used"], 0);
    assert!(truth.get("timelines").is_none());
    use vgpu_sim::engine::{DeviceEngine, WorkKind};
    let machine = std::sync::Arc::new(vgpu_sim::MachineView::open_at(&dir.path().join("m"), None).unwrap());
    let engine = DeviceEngine::new(machine, 1);
    let stream = engine.legacy_stream(engine.open_group()).unwrap();
    engine.enqueue_work(stream, 25_000_000, WorkKind::Kernel, None::<fn()>);
    engine.stream_wait(stream);
    std::thread::sleep(std::time::Duration::from_millis(15));
    let lately: Value = serde_json::from_slice(&sim(&["stat", "--timeline", "2", "--json"]).stdout).unwrap();
    let (pid, line) = (u64::from(std::process::id()), &lately["timelines"][1]);
    let mine = line["processes"].as_array().unwrap().iter().find(|p| p["pid"] == pid).unwrap();
    let busy: u64 = mine["busy_ns"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!((&line["bucket_ns"], busy), (&Value::from(10_000_000), 25_000_000));
    assert!(texts(&sim(&["stat", "--timeline", "1"])).0.contains("PERCENT OF EACH SECOND"));
    let (out, _) = texts(&sim(&["stat"]));
    assert!(out.contains("device 0: ") && out.contains("device 1: ") && out.contains("0.0 MiB used of"), "{out}");
    assert!(texts(&sim(&["reset"])).0.ends_with(": removed\n"));
    assert!(!dir.path().join("m").exists(), "nothing is left of it");
    assert!(texts(&sim(&["reset"])).0.ends_with(": there was no machine\n"));
    // A stranger's file stays, and so does the directory; a directory that no program has used is removed.
    std::fs::create_dir(dir.path().join("m")).unwrap();
    std::fs::write(dir.path().join("m/notes"), "mine").unwrap();
    assert!(texts(&sim(&["reset"])).0.ends_with(": there was no machine\n"));
    assert!(dir.path().join("m/notes").exists());
    std::fs::remove_file(dir.path().join("m/notes")).unwrap();
    assert!(texts(&sim(&["reset"])).0.ends_with(": there was no machine\n"));
    assert!(!dir.path().join("m").exists());
}

#[test]
fn every_profile_is_listed() {
    let (out, _) = texts(&vgpu().args(["sim", "profiles"]).output().unwrap());
    for profile in ["t4", "v100", "l4", "l40s", "a100", "h100", "h200", "rtxpro6000", "gb10"] {
        assert!(out.lines().any(|line| line.starts_with(&format!("{profile} "))), "{out} lacks {profile}");
    }
    let json = vgpu().args(["sim", "profiles", "--json"]).output().unwrap();
    let list: Value = serde_json::from_slice(&json.stdout).unwrap();
    let h200 = list.as_array().unwrap().iter().find(|row| row["profile"] == "h200").unwrap();
    assert_eq!(h200["sms"], 132);
}

#[test]
fn the_environment_of_the_simulator_can_be_evaluated_by_a_shell() {
    let dir = TempDir::new().unwrap();
    let program = dir.path().join("vgpu");
    support::copy(env!("CARGO_BIN_EXE_vgpu"), &program);
    let env = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["sim", "env"]).args(args).env_remove("LD_LIBRARY_PATH").env("VGPU_SIM_DIR", "/none");
        command.output().unwrap()
    };
    assert_eq!(env(&[]).status.code(), Some(125), "no driver beside it");
    let sim = dir.path().join("sim");
    fs::create_dir(&sim).unwrap();
    for driver in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        fs::write(sim.join(driver), "").unwrap();
    }
    assert_eq!(env(&["--profile", "gtx"]).status.code(), Some(2));
    let odd = dir.path().join("it's a machine");
    let (out, err) = texts(&env(&["--profile", "2xh200", "--dir", odd.to_str().unwrap()]));
    let shell = format!("{out}\nprintf '%s|' \"$LD_LIBRARY_PATH\" \"$VGPU_SIM_PROFILE\" \"$VGPU_SIM_DIR\"");
    // A library path set in the shell affects only its children.
    let shown = Command::new("sh").args(["-c", &shell]).output().unwrap();
    assert_eq!(texts(&shown).0, format!("{}|2xh200|{}|", sim.display(), odd.display()), "{out}{err}");
    let json: Value = serde_json::from_slice(&env(&["--json"]).stdout).unwrap();
    assert_eq!(json["LD_LIBRARY_PATH"].as_str(), sim.to_str());
}
