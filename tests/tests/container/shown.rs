//! Runs the examples of examples/compose and examples/systemd as they are, except for the paths.

use crate::engine::{Engine, IMAGE, build, checkout, compose, text};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use vgpu_sim::{MachineView, truth};
use vgpu_tests::daemon::{Daemon, Plan};

/// A simulated device in `gpu`, and a daemon in `host` with the tenants `chat` (1 GiB) and `train` (3 GiB).
fn served(gpu: &Path, host: &Path) -> Daemon {
    drop(MachineView::open_at(gpu, Some("h200")).unwrap());
    let device = truth::read(gpu).unwrap().devices[0].uuid.clone();
    let tenants = [("chat", 1), ("train", 3)].map(|(name, gib)| (name.into(), format!("memory_limit = \"{gib}GiB\"")));
    Daemon::start(host, &Plan { device, time: String::new(), tenants: tenants.into() })
}

/// Client: Docker Compose
#[test]
fn each_service_of_the_compose_file_is_held_to_its_own_tenants_limit() {
    let (Some(engine), Some(compose)) = (Engine::get(), compose()) else { return };
    let (gpu, host) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let daemon = served(gpu.path(), host.path());
    let done = |words: &[&str]| {
        let mut command = Command::new(&compose);
        command.args(["--project-name", "vgpu-shown", "-f", "compose.yaml", "-f", "simulated.yaml"]).args(words);
        command.current_dir(checkout().join("examples/compose")).env("IMAGE", IMAGE).env("VGPU_DIR", build());
        command.env("VGPU_TENANTS", daemon.room("chat").parent().unwrap()).env("VGPU_SIM_DIR", gpu.path());
        let out = engine.around(&mut command).output().unwrap();
        assert!(out.status.success(), "{words:?}: {}", text(&out));
        text(&out)
    };
    let said = done(&["up", "--no-color"]);
    done(&["down"]);
    for (name, total) in [("chat", "total: 1073741824"), ("train", "total: 3221225472")] {
        assert!(said.lines().any(|line| line.starts_with(name) && line.ends_with(total)), "{name}: {said}");
    }
    assert_eq!(said.matches("one byte more: code 2").count(), 2, "{said}");
}

#[test]
fn the_service_of_the_systemd_example_is_held_to_its_tenants_limit() {
    let (gpu, host) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let daemon = served(gpu.path(), host.path());
    let unit = fs::read_to_string(checkout().join("examples/systemd/train.service")).unwrap();
    // Replaces the package's paths by those of this machine.
    let build = build().display().to_string();
    let unit = unit
        .replace("/run/vgpu/tenants/train", &daemon.room("train").display().to_string())
        .replace("/usr/lib/vgpu/", &format!("{build}/"))
        .replace("/usr/bin/vgpu ", &format!("{build}/vgpu "))
        .replace("/srv/train/train.py", &checkout().join("examples/05_ctypes.py").display().to_string());
    let values = |key: &str| -> Vec<String> {
        unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned)).collect()
    };
    let run = |key: &str| {
        let line = values(key).pop().unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env_clear();
        command.env("VGPU_SIM_DIR", gpu.path()).env("LD_LIBRARY_PATH", format!("{build}/sim"));
        // The ledger of a named tenant survives its programs. Here its directory belongs to the test and is removed
        // with it.
        command.env("VGPU_STATE_DIR", host.path());
        command.envs(values("Environment").iter().map(|set| set.split_once('=').unwrap()));
        let out = command.output().unwrap();
        assert!(out.status.success(), "{line}: {}", text(&out));
        text(&out)
    };
    assert!(run("ExecStartPre").contains("mapped"));
    let said = run("ExecStart");
    assert!(said.contains("total: 3221225472") && said.contains("one byte more: code 2"), "{said}");
}
