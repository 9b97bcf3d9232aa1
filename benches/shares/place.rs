//! Where the built libraries are, and a device and a place for ledgers of its own for each run.

use crate::points::{Point, Tenant, percent};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use vgpu_benches::build::Build;

/// The libraries, and scratch space for all runs of this process.
pub struct Place {
    build: Build,
    /// Runs so far: names of their directories.
    runs: AtomicU32,
}

impl Place {
    /// Finds the libraries.
    ///
    /// # Errors
    /// One is missing, or no scratch space can be made.
    pub fn find() -> Result<Place, String> {
        Ok(Place { build: Build::find("vgpu-shares")?, runs: AtomicU32::new(0) })
    }

    /// The daemon, of the same build.
    ///
    /// # Errors
    /// It is not there.
    pub fn daemon(&self) -> Result<&Path, String> {
        self.build.daemon()
    }

    /// The library that is measured.
    pub fn library(&self) -> &Path {
        self.build.library()
    }

    /// A place for one run.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn room(&self) -> Result<Room<'_>, String> {
        let dir = self.build.scratch().join(self.runs.fetch_add(1, Relaxed).to_string());
        for part in ["gpu", "state"] {
            std::fs::create_dir_all(dir.join(part)).map_err(|why| format!("{}: {why}", dir.display()))?;
        }
        Ok(Room { place: self, dir })
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
        let mut command = self.place.build.again(&self.machine(), profile);
        command.args(words);
        command
    }

    /// Puts the library before it; the limits are the caller's to say.
    pub fn limited<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        self.place.build.preload(command, &self.state())
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
