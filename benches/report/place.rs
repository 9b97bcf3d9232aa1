//! Where the measuring tools and the built libraries are, and scratch space. Nothing is measured here.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The tools, the libraries, and a directory of our own that is removed when dropped.
pub struct Place {
    own: PathBuf,
    library: PathBuf,
    simulated: PathBuf,
    scratch: PathBuf,
}

impl Place {
    /// Finds the libraries as `vgpu-shares` does: `VGPU_LIB_DIR` and `VGPU_SIM_LIB_DIR`, else `VGPU_BUILD`, else beside this
    /// program.
    ///
    /// # Errors
    /// One is not there, or no scratch space can be made.
    pub fn find() -> Result<Place, String> {
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
        let absolute = |path: PathBuf| std::path::absolute(&path).map_err(|why| format!("{}: {why}", path.display()));
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let scratch = base.join(format!("vgpu-bench-report-{}", std::process::id()));
        std::fs::create_dir(&scratch).map_err(|why| format!("{}: {why}", scratch.display()))?;
        Ok(Place { own, library: absolute(library)?, simulated: absolute(simulated)?, scratch })
    }

    /// Scratch space.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// A measuring tool, built with this one.
    ///
    /// # Errors
    /// It is not there.
    pub fn tool(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.own.with_file_name(name);
        if path.exists() {
            return Ok(path);
        }
        Err(format!("{} is not there: run `cargo build --release -p vgpu-benches`", path.display()))
    }

    /// This program again, on the simulated device in `room`, with nothing of the library.
    pub fn probe(&self, room: &Path) -> Command {
        let mut command = Command::new(&self.own);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["VGPU_", "CUDA_", "NVIDIA_", "LD_"].iter().any(|begin| text.starts_with(begin)) {
                command.env_remove(&name);
            }
        }
        command
            .arg(crate::probe::WORD)
            .env("LD_LIBRARY_PATH", &self.simulated)
            .env("VGPU_SIM_DIR", room.join("gpu"))
            .env("VGPU_SIM_PROFILE", "h200")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Puts the library before it, for `tenant`; limits are the caller's to say.
    pub fn with_library<'c>(&self, command: &'c mut Command, room: &Path, tenant: &str) -> &'c mut Command {
        command.env("LD_PRELOAD", &self.library).env("VGPU_STATE_DIR", room.join("state")).env("VGPU_TENANT", tenant)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}
