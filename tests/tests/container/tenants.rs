//! Containers under one daemon on the host. Each container gets its tenant's directory and nothing else. The simulated
//! device's record judges each tenant's share of device time.
//!
//! Client: Docker

use crate::LOCKED_DOWN;
use crate::engine::{Engine, text};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vgpu_sim::{MachineView, truth};
use vgpu_tests::artefacts::vgpu;
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::timed::measured;

const WORKER: &str = "/clients/container_worker.py";

/// A busy container of a tenant. It ends when the file `enough` appears.
fn work<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    engine: &'scope Engine,
    gpu: &'scope Path,
    room: &Path,
    name: &'static str,
    options: &'static [&str],
) -> std::thread::ScopedJoinHandle<'scope, Output> {
    let mount = format!("{}:/run/vgpu:ro", room.display());
    let thread = scope.spawn(move || {
        let mut all = vec!["-v", &mount, "-e", "VGPU_SOCKET=/run/vgpu/vgpud.sock"];
        // The container's own variables cannot override the daemon.
        all.extend(["-e", "VGPU_MODE=off", "-e", "VGPU_ON_ERROR=open"]);
        all.extend(options);
        engine.run(gpu, &all, &["/usr/bin/python3", WORKER, name])
    });
    let begin = Instant::now();
    while !gpu.join(name).exists() && !thread.is_finished() {
        assert!(begin.elapsed() < Duration::from_secs(60), "container {name} does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    thread
}

/// Percent of the device's time that each of the two processes got during `moment`, the older process first.
#[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
fn shares(gpu: &Path, moment: Duration) -> [f64; 2] {
    let look = || {
        let truth = truth::read(gpu).unwrap();
        // Both are process 1 in their containers; the simulated machine's serial numbers distinguish them.
        let mut all: Vec<_> = truth.devices[0].processes.iter().map(|p| (p.serial, p.busy_ns)).collect();
        all.sort_unstable();
        (truth.at_ns, all)
    };
    let (begin, before) = look();
    std::thread::sleep(moment);
    let (end, after) = look();
    assert_eq!((before.len(), after.len()), (2, 2), "two processes on the device");
    [0, 1].map(|at| (after[at].1 - before[at].1) as f64 / (end - begin) as f64 * 100.0)
}

/// Ends the containers even if the test fails first.
struct Enough<'a>(&'a Path);

impl Drop for Enough<'_> {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("enough"), "");
    }
}

#[test]
fn vgpu_ps_tells_of_each_process_its_container_and_both_its_numbers() {
    let Some(engine) = Engine::get() else { return };
    let (gpu, host) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::set_permissions(host.path(), fs::Permissions::from_mode(0o755)).unwrap();
    drop(MachineView::open_at(gpu.path(), Some("h200")).unwrap());
    let device = truth::read(gpu.path()).unwrap().devices[0].uuid.clone();
    let tenants = vec![("a".into(), "memory_limit = \"2GiB\"".into())];
    let daemon = Daemon::start(host.path(), &Plan { device, time: String::new(), tenants });
    std::thread::scope(|scope| {
        let enough = Enough(gpu.path());
        let container = work(scope, &engine, gpu.path(), &daemon.room("a"), "a", &["--name", "vgpu-seen-by-ps"]);
        // The engine keeps its files in an unusual directory, so `vgpu ps` must ask the engine.
        let ps = |options: &[&str]| {
            let mut command = Command::new(vgpu());
            command.arg("ps").args(options).arg("--socket").arg(daemon.admin());
            vgpu_tests::run(command.env("DOCKER_HOST", engine.host()))
        };
        let all: Value = serde_json::from_str(&ps(&["--json"])).unwrap();
        let (process, place) = (&all[0], &all[0]["place"]);
        assert_eq!((&place["engine"], &place["name"]), (&"docker".into(), &"vgpu-seen-by-ps".into()), "{all}");
        let id = engine.docker(&["inspect", "--format", "{{.Id}} {{.State.Pid}}", "vgpu-seen-by-ps"]);
        let said = format!("{} {}\n", place["id"].as_str().unwrap(), process["pid"]);
        assert_eq!((String::from_utf8_lossy(&id.stdout), &process["pid_inside"]), (said.into(), &1.into()), "{all}");
        let text = ps(&[]);
        assert!(text.contains(&format!("a       vgpu-seen-by-ps  {}", process["pid"])), "{text}");
        // Without access to the engine the output shows the container's id.
        let silent = daemon.tell(&["ps"]);
        assert!(silent.contains(&place["id"].as_str().unwrap()[..12]), "{silent}");
        drop(enough);
        assert!(container.join().unwrap().status.success());
    });
}

#[test]
fn two_containers_share_thirty_to_seventy_and_the_host_changes_that_while_they_run() {
    let Some(engine) = Engine::get() else { return };
    measured(|| {
        let (gpu, host) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        fs::set_permissions(host.path(), fs::Permissions::from_mode(0o755)).unwrap();
        drop(MachineView::open_at(gpu.path(), Some("h200")).unwrap());
        // The containers' users are not the host's users.
        for file in fs::read_dir(gpu.path()).unwrap() {
            fs::set_permissions(file.unwrap().path(), fs::Permissions::from_mode(0o666)).unwrap();
        }
        let device = truth::read(gpu.path()).unwrap().devices[0].uuid.clone();
        let tenant = |name: &str, weight: u32| (name.into(), format!("memory_limit = \"2GiB\"\nweight = {weight}"));
        let tenants = vec![tenant("a", 3), tenant("b", 7)];
        let daemon = Daemon::start(host.path(), &Plan { device, time: String::new(), tenants });
        std::thread::scope(|scope| {
            let enough = Enough(gpu.path());
            let a = work(scope, &engine, gpu.path(), &daemon.room("a"), "a", &[]);
            let b = work(scope, &engine, gpu.path(), &daemon.room("b"), "b", LOCKED_DOWN);
            std::thread::sleep(Duration::from_millis(1500));
            let first = shares(gpu.path(), Duration::from_secs(3));
            daemon.tell(&["set", "b", "--sm-limit", "20"]);
            std::thread::sleep(Duration::from_millis(500));
            let second = shares(gpu.path(), Duration::from_secs(3));
            daemon.tell(&["set", "a", "--memory-limit", "1GiB"]);
            drop(enough);
            for out in [a.join().unwrap(), b.join().unwrap()] {
                assert_eq!(String::from_utf8_lossy(&out.stdout), "0\n", "{}", text(&out));
            }
            eprintln!("by weight 3 to 7: {first:.1?}; with a ceiling of 20 for the second: {second:.1?}");
            // Relative to the sum of both shares: a busy host leaves the device idle now and then, regardless of the
            // tenant.
            let part = first[0] / (first[0] + first[1]) * 100.0;
            assert!((part - 30.0).abs() < 6.0, "{part:.1} % of what both got");
            assert!((12.0..24.0).contains(&second[1]) && second[0] > first[0], "{second:?} after {first:?}");
        });
        assert_eq!(truth::read(gpu.path()).unwrap().devices[0].used, 0, "everything came back");
    });
}
