//! A private container engine for the tests, without network and registry, and the image that all tests use.

use serde_json::Value;
use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, Weak};
use tempfile::TempDir;

/// Name of the container image that the tests build.
pub const IMAGE: &str = "vgpu-test";

/// Root of the source tree.
pub fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Directory of the built libraries: `VGPU_BUILD`, or the target directory that this test runs from.
pub fn build() -> PathBuf {
    let own = || env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    env::var_os("VGPU_BUILD").map_or_else(own, PathBuf::from)
}

/// A variable from the environment or from the file that tests/setup/all wrote.
fn setting(name: &str) -> Option<PathBuf> {
    let written = fs::read_to_string(checkout().join(".cache/test.env")).unwrap_or_default();
    let from_file = || written.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('=').map(PathBuf::from));
    env::var_os(name).map(PathBuf::from).or_else(from_file).filter(|p| p.exists())
}

fn root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// Reports a skipped test. With `VGPU_REQUIRE_ALL=1` it fails the test instead.
fn missing(what: &str) {
    assert!(env::var_os("VGPU_REQUIRE_ALL").is_none_or(|v| v != "1"), "required and missing: {what}");
    // Writes to stderr directly, past the test runner's capture, so that a skipped test is visible.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what} (run tests/setup/all)");
}

/// Status and both outputs of a command, for messages.
pub fn text(out: &Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    format!("{}\n--- stdout\n{stdout}--- stderr\n{stderr}", out.status)
}

/// A private engine. It is stopped and removed when the last test that uses it ends.
pub struct Engine {
    dir: TempDir,
    docker: PathBuf,
}

impl Engine {
    /// Returns `None` if the engine is not installed; with `VGPU_REQUIRE_ALL=1` that fails the test.
    pub fn get() -> Option<Arc<Engine>> {
        static RUNNING: Mutex<Weak<Engine>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(engine) = running.upgrade() {
            return Some(engine);
        }
        let engine = Arc::new(Engine::start(&[], &[])?);
        *running = Arc::downgrade(&engine);
        Some(engine)
    }

    /// An engine of one test, in a network namespace of its own, because a swarm adds network devices. `options` are
    /// those of dockerd. `None`: as for [`Engine::get`].
    pub fn start_alone(options: &[&str]) -> Option<Engine> {
        Engine::start(&["unshare", "--net"], options)
    }

    fn start(before: &[&str], options: &[&str]) -> Option<Engine> {
        let (docker, python) = (setting("VGPU_DOCKER"), setting("VGPU_PYTHON"));
        let (Some(docker), Some(python), true) = (docker, python, root()) else {
            missing("a container engine, nvidia-ml-py and root");
            return None;
        };
        let engine = Engine { dir: TempDir::new().unwrap(), docker };
        let setup = |before: &[&str], arguments: &[&str]| {
            let script = checkout().join("tests/setup/docker").display().to_string();
            let words = [before, &[script.as_str()], arguments].concat();
            let mut c = Command::new(words[0]);
            let out = c.args(&words[1..]).env("VGPU_PYTHON", &python).env_remove("LD_PRELOAD").output().unwrap();
            assert!(out.status.success(), "tests/setup/docker {arguments:?}: {}", text(&out));
        };
        setup(before, &[&["start", engine.state()], options].concat());
        setup(&[], &["image", engine.state(), IMAGE]);
        Some(engine)
    }

    fn state(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    /// Runs examples/docker's own script on the device in `gpu`, with `options` before the image name.
    pub fn run(&self, gpu: &Path, options: &[&str], command: &[&str]) -> Output {
        let clients = checkout().join("tests/clients");
        Command::new(checkout().join("examples/docker/run-simulated"))
            .arg("--gpu")
            .arg(gpu)
            .args(["-v", &format!("{}:/clients:ro", clients.display())])
            .args(options)
            .arg(IMAGE)
            .args(command)
            .env("VGPU_BUILD", build())
            .env("VGPU_DOCKER", &self.docker)
            .env("DOCKER_HOST", self.host())
            .env_remove("LD_PRELOAD")
            .output()
            .unwrap()
    }

    /// Sets the variables that a command outside the container needs to find the engine.
    pub fn around<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .env("VGPU_DOCKER", &self.docker)
            .env("DOCKER_HOST", self.host())
            .env("VGPU_LIBRARY", build().join("libvgpu.so"))
            .env("VGPU_RUNTIME_DIR", self.dir.path().join("run"))
            .env_remove("LD_PRELOAD")
    }

    /// Address of the engine, for `DOCKER_HOST`.
    pub fn host(&self) -> String {
        format!("unix://{}/sock", self.state())
    }

    /// Runs the engine's command-line client.
    pub fn docker(&self, arguments: &[&str]) -> Output {
        Command::new(&self.docker).args(arguments).env("DOCKER_HOST", self.host()).output().unwrap()
    }

    /// Runs the Python program of tests/clients with `options` and returns its report.
    pub fn client(&self, gpu: &Path, options: &[&str], fits: u64, too_much: u64) -> Value {
        let numbers = [fits.to_string(), too_much.to_string()];
        let command = ["/usr/bin/python3", "/clients/container_client.py", &numbers[0], &numbers[1]];
        let out = self.run(gpu, options, &command);
        assert!(out.status.success(), "{options:?}: {}", text(&out));
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&out)))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = Command::new(checkout().join("tests/setup/docker")).args(["stop", self.state()]).output();
    }
}

/// Path of `docker-compose`; `None` if it is missing, which fails the test with `VGPU_REQUIRE_ALL=1`.
pub fn compose() -> Option<PathBuf> {
    let compose = setting("VGPU_COMPOSE");
    if compose.is_none() {
        missing("docker-compose");
    }
    compose
}

/// Podman with a private data directory and the image. Podman has no daemon.
pub struct Podman {
    dir: TempDir,
    podman: PathBuf,
    // This engine built the image and holds it in the cache.
    _engine: Arc<Engine>,
}

impl Podman {
    /// Returns `None` if podman is missing; with `VGPU_REQUIRE_ALL=1` that fails the test.
    pub fn get() -> Option<Podman> {
        let engine = Engine::get()?;
        let Some(podman) = setting("VGPU_PODMAN") else {
            missing("podman");
            return None;
        };
        let podman = Podman { dir: TempDir::new().unwrap(), podman, _engine: engine };
        fs::create_dir(podman.specs()).unwrap();
        let tar = env::var_os("VGPU_CACHE").map_or_else(|| checkout().join(".cache"), PathBuf::from).join("image.tar");
        let out = podman.command("").arg("import").arg("--quiet").arg(tar).arg(IMAGE).output().unwrap();
        assert!(out.status.success(), "{}", text(&out));
        Some(podman)
    }

    /// Directory in which podman looks for CDI files.
    pub fn specs(&self) -> PathBuf {
        self.dir.path().join("cdi")
    }

    /// podman's command in a private mount namespace, after the mounts in `before`. Otherwise it would leave its locks
    /// in the machine's /dev/shm.
    fn command(&self, before: &str) -> Command {
        let mut command = Command::new("unshare");
        let script = format!("mount -t tmpfs tmpfs /dev/shm; {before} exec \"$@\"");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.arg(&self.podman).args([
            "--runtime",
            "runc",
            "--storage-driver",
            "vfs",
            "--cgroup-manager",
            "cgroupfs",
        ]);
        command.args(["--events-backend", "file"]);
        for (option, place) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            command.arg(option).arg(self.dir.path().join(place));
        }
        command.env_remove("LD_PRELOAD");
        command
    }

    /// Runs `podman run` on the simulated device in `gpu`. Only `options` adds anything of vgpu.
    pub fn run(&self, gpu: &Path, options: &[&str], words: &[&str]) -> Output {
        // podman looks in /etc/cdi and /run/cdi. This command sees a private directory as /run/cdi.
        let own = format!("mkdir -p /run/cdi; mount --bind '{}' /run/cdi;", self.specs().display());
        let clients = checkout().join("tests/clients");
        self.command(&own)
            .args(["run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"])
            .args(["-v", &format!("{}:/clients:ro", clients.display()), "-v", &format!("{}:/gpu", gpu.display())])
            .args(["-e", "LD_LIBRARY_PATH=/vgpu/sim", "-e", "VGPU_SIM_DIR=/gpu"])
            .args(options)
            .arg(IMAGE)
            .args(words)
            .output()
            .unwrap()
    }
}

impl Drop for Podman {
    /// Removes the mount point /run/cdi if it is empty.
    fn drop(&mut self) {
        let _ = fs::remove_dir("/run/cdi");
    }
}
