//! Where the measuring tools and the built libraries are, and scratch space. Nothing is measured here.

use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_benches::build::Build;

/// The tools, the libraries, and scratch space.
pub struct Place {
    build: Build,
}

impl Place {
    /// Finds the libraries as `vgpu-shares` does.
    ///
    /// # Errors
    /// One is missing, or no scratch space can be made.
    pub fn find() -> Result<Place, String> {
        Ok(Place { build: Build::find("vgpu-bench-report")? })
    }

    /// Scratch space.
    pub fn scratch(&self) -> &Path {
        self.build.scratch()
    }

    /// A measuring tool, built with this one.
    ///
    /// # Errors
    /// It is not there.
    pub fn tool(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.build.own().with_file_name(name);
        if path.exists() {
            return Ok(path);
        }
        Err(format!("{} is not there: run `cargo build --release -p vgpu-benches`", path.display()))
    }

    /// This program again, on the simulated device in `room`, with nothing of the library.
    pub fn probe(&self, room: &Path) -> Command {
        let mut command = self.build.again(&room.join("gpu"), "h200");
        command.arg(crate::probe::WORD);
        command
    }

    /// Puts the library before it, for `tenant`; limits are the caller's to say.
    pub fn with_library<'c>(&self, command: &'c mut Command, room: &Path, tenant: &str) -> &'c mut Command {
        self.build.preload(command, &room.join("state")).env("VGPU_TENANT", tenant)
    }
}
