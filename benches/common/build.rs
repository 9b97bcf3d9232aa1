//! The build under test, and scratch space for its runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The libraries under test and the daemon, and a scratch directory that is removed when dropped.
pub struct Build {
    /// The running program.
    own: PathBuf,
    /// libvgpu.so.
    library: PathBuf,
    /// The directory of the simulated driver.
    simulated: PathBuf,
    /// vgpud, of the same build; it need not exist.
    daemon: PathBuf,
    /// Removed when dropped.
    scratch: PathBuf,
}

impl Build {
    /// Finds the libraries: `VGPU_LIB_DIR` and `VGPU_SIM_LIB_DIR`, else `VGPU_BUILD`, else beside this program. `tool`
    /// begins the name of the scratch directory.
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
        // The simulated device writes its state all the time: keep it in memory where the machine has /dev/shm.
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

    /// The running program.
    pub fn own(&self) -> &Path {
        &self.own
    }

    /// The library under test.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// The daemon of the same build.
    ///
    /// # Errors
    /// The build has no daemon.
    pub fn daemon(&self) -> Result<&Path, String> {
        let words = || format!("{} is not there: run `make build`, or set VGPU_BUILD", self.daemon.display());
        if self.daemon.exists() { Ok(&self.daemon) } else { Err(words()) }
    }

    /// The scratch directory.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// This program again, with pipes, on the simulated `machine` with devices of `profile`. It runs without the
    /// library and without the caller's own limits.
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

    /// Preloads the library, which keeps its ledgers in `state`. The caller sets the limits.
    pub fn preload<'c>(&self, command: &'c mut Command, state: &Path) -> &'c mut Command {
        command.env("LD_PRELOAD", &self.library).env("VGPU_STATE_DIR", state)
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}
