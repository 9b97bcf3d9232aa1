//! Where the built libraries are, and a device and a place for ledgers of its own for each run.

use crate::points::{Point, Tenant, percent};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The libraries, and scratch space for all runs of this process; removed when dropped.
pub struct Place {
    own: PathBuf,
    library: PathBuf,
    simulated: PathBuf,
    daemon: PathBuf,
    scratch: PathBuf,
    runs: AtomicU32,
}

impl Place {
    /// Finds the libraries: `VGPU_LIB_DIR` and `VGPU_SIM_LIB_DIR`, else `VGPU_BUILD`, else beside this program.
    ///
    /// # Errors
    /// One is not there, or no scratch space can be made.
    pub fn find() -> Result<Place, String> {
        let own = std::env::current_exe().map_err(|why| format!("this program has no path: {why}"))?;
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let beside = || own.parent().unwrap_or(Path::new("/")).to_owned();
        let build = set("VGPU_BUILD").unwrap_or_else(beside);
        let library = set("VGPU_LIB_DIR").unwrap_or_else(|| build.clone()).join("libvgpu.so");
        let simulated = set("VGPU_SIM_LIB_DIR").unwrap_or_else(|| build.join("sim"));
        for (path, variable) in [(&library, "VGPU_LIB_DIR"), (&simulated.join("libcuda.so.1"), "VGPU_SIM_LIB_DIR")] {
            if !path.exists() {
                return Err(format!("{} is not there: run `make build`, or set {variable}", path.display()));
            }
        }
        let daemon = build.join("vgpud");
        let absolute = |path: PathBuf| std::path::absolute(&path).map_err(|why| format!("{}: {why}", path.display()));
        // The state of a simulated device is written all the time: in memory, where there is such a place.
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let scratch = base.join(format!("vgpu-shares-{}", std::process::id()));
        std::fs::create_dir(&scratch).map_err(|why| format!("{}: {why}", scratch.display()))?;
        Ok(Place {
            own,
            library: absolute(library)?,
            simulated: absolute(simulated)?,
            daemon: absolute(daemon)?,
            scratch,
            runs: AtomicU32::new(0),
        })
    }

    /// The daemon, of the same build.
    ///
    /// # Errors
    /// It is not there.
    pub fn daemon(&self) -> Result<&Path, String> {
        let words = || format!("{} is not there: run `make build`, or set VGPU_BUILD", self.daemon.display());
        if self.daemon.exists() { Ok(&self.daemon) } else { Err(words()) }
    }

    /// The library that is measured.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// A place for one run.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn room(&self) -> Result<Room<'_>, String> {
        let dir = self.scratch.join(self.runs.fetch_add(1, Relaxed).to_string());
        for part in ["gpu", "state"] {
            std::fs::create_dir_all(dir.join(part)).map_err(|why| format!("{}: {why}", dir.display()))?;
        }
        Ok(Room { place: self, dir })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

/// A simulated machine and a state directory for one run; removed when dropped.
pub struct Room<'a> {
    place: &'a Place,
    dir: PathBuf,
}

impl Room<'_> {
    /// The simulated machine.
    pub fn machine(&self) -> PathBuf {
        self.dir.join("gpu")
    }

    /// Where the library keeps ledgers.
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// The name of tenant `index`: what its ledger's file name holds.
    pub fn tenant(index: usize) -> String {
        format!("share{index}")
    }

    /// Everything of the run lies in here.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// One process of a tenant, with the library if it has a ceiling.
    pub fn workload(&self, point: &Point, index: usize, tenant: &Tenant) -> Command {
        let words = ["--work", tenant.load.pattern.name(), &tenant.load.kernel_ns.to_string()];
        let mut command = self.program(point.profile, &words);
        if let Some(ceiling) = tenant.ceiling {
            self.limited(&mut command).env("VGPU_TENANT", Room::tenant(index)).env("VGPU_SM_LIMIT", percent(ceiling));
        }
        command
    }

    /// This program again, by itself on the simulated device.
    pub fn program(&self, profile: &str, words: &[&str]) -> Command {
        let mut command = Command::new(&self.place.own);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["VGPU_", "CUDA_", "NVIDIA_", "LD_"].iter().any(|begin| text.starts_with(begin)) {
                command.env_remove(&name);
            }
        }
        command
            .args(words)
            .env("LD_LIBRARY_PATH", &self.place.simulated)
            .env("VGPU_SIM_DIR", self.machine())
            .env("VGPU_SIM_PROFILE", profile)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Puts the library before it; the limits are the caller's to say.
    pub fn limited<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("LD_PRELOAD", &self.place.library).env("VGPU_STATE_DIR", self.state())
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
