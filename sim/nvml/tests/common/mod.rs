//! Shared by the tests here: the built library under the driver's name, a separate machine per test, a process on
//! it, and the optional client programs.
#![allow(dead_code)] // each test file uses its part

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Arc, OnceLock},
};
use tempfile::TempDir;
use vgpu_sim::{
    MachineView,
    engine::{DeviceEngine, WorkKind},
    memory::{RecordChange, signed_bytes},
    truth::{self, MachineTruth},
};

pub const GIB: u64 = 1 << 30;
pub const MIB: u64 = 1 << 20;

/// The library that cargo built for this test run.
pub fn library() -> PathBuf {
    // The test is target/<profile>/deps/<name>; cargo leaves the library next to it.
    let deps = env::current_exe().unwrap().parent().unwrap().to_owned();
    let found = [deps.join("libnvidia_ml.so"), deps.parent().unwrap().join("libnvidia_ml.so")];
    let age = |p: &Path| fs::metadata(p).and_then(|m| m.modified()).ok();
    found.iter().filter(|p| p.exists()).max_by_key(|p| age(p)).expect("libnvidia_ml.so beside the test").clone()
}

/// A directory with the library under the name the loader looks for, for LD_LIBRARY_PATH.
pub fn library_dir() -> &'static Path {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        std::os::unix::fs::symlink(library(), dir.path().join("libnvidia-ml.so.1")).unwrap();
        dir
    })
    .path()
}

/// A separate simulated machine, removed when dropped.
pub struct Lab {
    dir: TempDir,
    profile: String,
}

impl Lab {
    pub fn new(profile: &str) -> Lab {
        let dir = TempDir::new().unwrap();
        drop(MachineView::open_at(dir.path(), Some(profile)).unwrap());
        Lab { dir, profile: profile.to_owned() }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn truth(&self) -> MachineTruth {
        truth::read(self.dir()).unwrap()
    }

    /// `program` with the simulated driver and this machine in its environment, without LD_PRELOAD and tracing.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut c = Command::new(program);
        c.env("LD_LIBRARY_PATH", library_dir())
            .env("VGPU_SIM_DIR", self.dir())
            .env("VGPU_SIM_PROFILE", &self.profile)
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "dumb")
            .env("COLUMNS", "120")
            .env_remove("LD_PRELOAD")
            .env_remove("VGPU_SIM_TRACE");
        c
    }

    /// Makes this process a member of the machine, with a context and `bytes` of memory on `device`.
    pub fn process(&self, device: usize, bytes: u64) -> Load {
        Lab::process_at(self.dir(), device, bytes)
    }

    /// As [`Lab::process`], on the machine in `dir`.
    pub fn process_at(dir: &Path, device: usize, bytes: u64) -> Load {
        let machine = Arc::new(MachineView::open_at(dir, None).unwrap());
        let context = machine.profile_of(device).context_bytes;
        let change = RecordChange {
            contexts: 1,
            overhead: signed_bytes(context),
            allocations: 1,
            requested: signed_bytes(bytes),
            live: signed_bytes(bytes),
            large: signed_bytes(bytes),
            ..RecordChange::default()
        };
        machine.adjust_device(device, &change).unwrap();
        Load { machine, device }
    }
}

/// A machine for this whole process, named in its environment: for tests that load the library into themselves.
///
/// Each such test file has one, and its tests use different devices.
#[allow(clippy::disallowed_methods)] // only the library reads this process's own environment
pub fn lab_of_this_process(profile: &str) -> &'static Lab {
    static LAB: OnceLock<Lab> = OnceLock::new();
    LAB.get_or_init(|| {
        let lab = Lab::new(profile);
        // SAFETY: runs once, before any test of the file; no other thread reads the environment at the same time.
        unsafe {
            env::set_var("VGPU_SIM_DIR", lab.dir());
            env::set_var("VGPU_SIM_PROFILE", profile);
        }
        lab
    })
}

/// A simulated process; ends when dropped.
pub struct Load {
    machine: Arc<MachineView>,
    device: usize,
}

impl Load {
    /// Enqueues `ns` of device time.
    pub fn work(&self, ns: u64) {
        let engine = DeviceEngine::new(self.machine.clone(), self.device);
        let group = engine.open_group();
        let stream = engine.legacy_stream(group).unwrap();
        assert!(engine.enqueue_work(stream, ns, WorkKind::Kernel, None::<fn()>));
    }
}

/// Runs `command` to its end; fails with its output unless it exits with 0.
pub fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}: {}\n{}", out.status, text(&out));
    String::from_utf8(out.stdout).unwrap()
}

pub fn text(out: &Output) -> String {
    format!("--- stdout\n{}--- stderr\n{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Root directory of the source tree.
pub fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Path of an optional part, from the environment variable or from the file that tests/setup/all writes.
///
/// If it is missing, the test prints SKIPPED and returns; with VGPU_REQUIRE_ALL=1 it fails.
pub fn part(variable: &str, what: &str) -> Option<PathBuf> {
    let written = fs::read_to_string(checkout().join(".cache/test.env")).unwrap_or_default();
    let from_file = || written.lines().find_map(|l| l.strip_prefix(variable)?.strip_prefix('=').map(PathBuf::from));
    let found = env::var_os(variable).map(PathBuf::from).or_else(from_file).filter(|p| p.exists());
    if found.is_none() {
        assert!(env::var_os("VGPU_REQUIRE_ALL").is_none_or(|v| v != "1"), "required and missing: {what}");
        // Bypasses the test runner's capture, so that a skipped test is seen.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {what} (run tests/setup/all)");
    }
    found
}
