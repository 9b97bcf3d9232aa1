//! Paths of the built libraries, and for each run a private device and a private directory for ledgers.

use crate::points::{Point, Tenant, percent};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use vgpu_benches::build::Build;

/// The libraries, and scratch space for all runs of this process.
pub struct Place {
    build: Build,
    /// Number of runs so far, used as directory names.
    runs: AtomicU32,
}

impl Place {
    /// Finds the libraries.
    ///
    /// # Errors
    /// One is missing, or scratch space cannot be created.
    pub fn find() -> Result<Place, String> {
        Ok(Place { build: Build::find("vgpu-shares")?, runs: AtomicU32::new(0) })
    }

    /// Path of the daemon of the same build.
    ///
    /// # Errors
    /// The daemon is missing.
    pub fn daemon(&self) -> Result<&Path, String> {
        self.build.daemon()
    }

    /// Path of the measured library.
    pub fn library(&self) -> &Path {
        self.build.library()
    }

    /// Creates the directories of one run.
    ///
    /// # Errors
    /// They cannot be created.
    pub fn room(&self) -> Result<Room<'_>, String> {
        let dir = self.build.scratch().join(self.runs.fetch_add(1, Relaxed).to_string());
        for part in ["gpu", "state"] {
            std::fs::create_dir_all(dir.join(part)).map_err(|why| format!("{}: {why}", dir.display()))?;
        }
        Ok(Room { place: self, dir })
    }
}

/// A simulated machine and a state directory for one run. Dropping it removes them.
pub struct Room<'a> {
    place: &'a Place,
    dir: PathBuf,
}

impl Room<'_> {
    /// Directory of the simulated machine.
    pub fn machine(&self) -> PathBuf {
        self.dir.join("gpu")
    }

    /// Directory of the library's ledgers.
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// Name of tenant `index`, which is part of its ledger's file name.
    pub fn tenant(index: usize) -> String {
        format!("share{index}")
    }

    /// Directory of all files of the run.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Command for one process of a tenant, with the library if the tenant has a ceiling.
    pub fn workload(&self, point: &Point, index: usize, tenant: &Tenant) -> Command {
        let words = ["--work", tenant.load.pattern.name(), &tenant.load.kernel_ns.to_string()];
        let mut command = self.program(point.profile, &words);
        if let Some(ceiling) = tenant.ceiling {
            self.limited(&mut command).env("VGPU_TENANT", Room::tenant(index)).env("VGPU_SM_LIMIT", percent(ceiling));
        }
        command
    }

    /// Command that runs this program again on the simulated device, without the library.
    pub fn program(&self, profile: &str, words: &[&str]) -> Command {
        let mut command = self.place.build.again(&self.machine(), profile);
        command.args(words);
        command
    }

    /// Preloads the library; the caller sets the limits.
    pub fn limited<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        self.place.build.preload(command, &self.state())
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
