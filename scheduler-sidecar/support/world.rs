//! A daemon for tests that serves a configuration file in a directory of its own.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;
use vgpu_control as control;

use super::{Daemon, eventually, vgpud};

/// The directory and its daemon, which is killed on drop.
pub struct World {
    pub dir: TempDir,
    pub daemon: Daemon,
}

impl World {
    /// Starts a daemon with this file, without a log.
    pub fn start(file: &str) -> Self {
        Self::start_in(TempDir::new().unwrap(), file)
    }

    /// Starts a daemon with this file in an existing directory.
    pub fn start_in(dir: TempDir, file: &str) -> Self {
        fs::write(dir.path().join("vgpud.toml"), file).unwrap();
        Self::start_by(vgpud(), dir, "off", Stdio::inherit())
    }

    /// Starts it with this command and log level, for the file already in the directory.
    pub fn start_by(mut command: Command, dir: TempDir, log: &str, stderr: Stdio) -> Self {
        let child = command
            .arg("--config")
            .arg(dir.path().join("vgpud.toml"))
            .args(["--driver", "none", "--log", log, "--runtime-dir"])
            .arg(dir.path().join("run"))
            .stderr(stderr)
            .spawn()
            .unwrap();
        let daemon = Daemon { child, socket: dir.path().join("run/admin.sock") };
        let world = Self { dir, daemon };
        eventually("the daemon answers", || control::ask_status(&world.admin()).is_ok());
        world
    }

    pub fn admin(&self) -> PathBuf {
        self.dir.path().join("run/admin.sock")
    }

    pub fn socket(&self, tenant: &str) -> PathBuf {
        self.dir.path().join("run/tenants").join(tenant).join("vgpud.sock")
    }

    pub fn status(&self) -> control::DaemonStatus {
        control::ask_status(&self.admin()).unwrap()
    }

    /// Writes this file and makes the daemon read it.
    pub fn reload(&self, file: &str) {
        fs::write(self.dir.path().join("vgpud.toml"), file).unwrap();
        self.daemon.signal(Signal::HUP);
    }

    /// Returns the number of the daemon's open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.daemon.child.id())).unwrap().count()
    }
}
