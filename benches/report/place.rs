//! Paths of the measuring tools and the built libraries, and scratch space. Nothing is measured here.

use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_benches::build::Build;

/// The tools, the libraries, and scratch space.
pub struct ReportPlace {
    build: Build,
}

impl ReportPlace {
    /// Finds the libraries as `vgpu-shares` does.
    ///
    /// # Errors
    /// One is missing, or scratch space cannot be created.
    pub fn find() -> Result<ReportPlace, String> {
        Ok(ReportPlace { build: Build::find("vgpu-bench-report")? })
    }

    /// Path of the scratch directory.
    pub fn scratch_path(&self) -> &Path {
        self.build.scratch()
    }

    /// Path of a measuring tool of the same build.
    ///
    /// # Errors
    /// The tool does not exist.
    pub fn tool_path(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.build.own().with_file_name(name);
        if path.exists() {
            return Ok(path);
        }
        Err(format!("{} is not there: run `cargo build --release -p vgpu-benches`", path.display()))
    }

    /// Runs this program again as a probe, on the simulated device in `room`, without the library.
    pub fn probe_command(&self, room: &Path) -> Command {
        let mut command = self.build.again(&room.join("gpu"), "h200:instant");
        command.arg(crate::probe::PROBE_WORD);
        command
    }

    /// Preloads the library for `tenant`; the caller sets the limits.
    pub fn with_library<'c>(&self, command: &'c mut Command, room: &Path, tenant: &str) -> &'c mut Command {
        self.build.preload(command, &room.join("state")).env("VGPU_TENANT", tenant)
    }
}
