//! The build under test, and scratch space for its runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The libraries under test, the daemon, and a scratch directory. Dropping it removes the scratch directory.
pub struct Build {
    /// Path of the running program.
    own: PathBuf,
    /// Path of the library under test, libvgpu.so.
    library: PathBuf,
    /// Directory of the simulated driver.
    simulated: PathBuf,
    /// Path of vgpud from the same build; the file may be missing.
    daemon: PathBuf,
    /// Scratch directory, removed on drop.
    scratch: PathBuf,
}

impl Build {
    /// Finds the libraries: `VGPU_LIB_DIR` and `VGPU_SIM_LIB_DIR`, else `VGPU_BUILD`, else next to this program. `tool`
    /// is the prefix of the scratch directory's name.
    ///
    /// # Errors
    /// A library is missing, or the scratch directory cannot be created.
    pub fn find(tool: &str) -> Result<Build, String> {
        let own = std::env::current_exe().map_err(|why| format!("this program has no path: {why}"))?;
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let build = set("VGPU_BUILD").unwrap_or_else(|| own.parent().unwrap_or(Path::new("/")).to_owned());
        let library = set("VGPU_LIB_DIR").unwrap_or_else(|| build.clone()).join("libvgpu.so");
        let simulated = set("VGPU_SIM_LIB_DIR").unwrap_or_else(|| build.join("sim"));
        for (path, variable) in [(&library, "VGPU_LIB_DIR"), (&simulated.join("libcuda.so.1"), "VGPU_SIM_LIB_DIR")] {
            if !path.exists() {
                return Err(format!("{} is not there: run `make build`, or set {variable}", path.display()));
            }
        }
        let daemon = build.join("vgpud");
        let absolute = |path: PathBuf| std::path::absolute(&path).map_err(|why| format!("{}: {why}", path.display()));
        // The simulated device writes its state all the time, so the scratch directory is in memory if /dev/shm exists.
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let scratch = base.join(format!("{tool}-{}", std::process::id()));
        std::fs::create_dir(&scratch).map_err(|why| format!("{}: {why}", scratch.display()))?;
        Ok(Build {
            own,
            library: absolute(library)?,
            simulated: absolute(simulated)?,
            daemon: absolute(daemon)?,
            scratch,
        })
    }

    /// Path of the running program.
    pub fn own(&self) -> &Path {
        &self.own
    }

    /// Path of the library under test.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Path of the daemon of the same build.
    ///
    /// # Errors
    /// The build has no daemon.
    pub fn daemon(&self) -> Result<&Path, String> {
        let words = || format!("{} is not there: run `make build`, or set VGPU_BUILD", self.daemon.display());
        if self.daemon.exists() { Ok(&self.daemon) } else { Err(words()) }
    }

    /// Path of the scratch directory.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Prepares to run this program again, with pipes, on the simulated `machine` with devices of `profile`. The new
    /// process has neither the library nor the caller's limits.
    pub fn again(&self, machine: &Path, profile: &str) -> Command {
        let mut command = Command::new(&self.own);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["VGPU_", "CUDA_", "NVIDIA_", "LD_"].iter().any(|begin| text.starts_with(begin)) {
                command.env_remove(&name);
            }
        }
        command
            .env("LD_LIBRARY_PATH", &self.simulated)
            .env("VGPU_SIM_DIR", machine)
            .env("VGPU_SIM_PROFILE", profile)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Preloads the library with its ledgers in `state`. The caller sets the limits.
    pub fn preload<'c>(&self, command: &'c mut Command, state: &Path) -> &'c mut Command {
        command.env("LD_PRELOAD", &self.library).env("VGPU_STATE_DIR", state)
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}
