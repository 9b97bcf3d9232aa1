//! Paths of the built libraries, and for each run a private device and a private directory for ledgers.

use crate::points::{MeasuredPoint, PointTenant, format_percent};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use vgpu_benches::build::Build;

/// The libraries, and scratch space for all runs of this process.
pub struct MeasuringPlace {
    build: Build,
    /// Number of runs so far, used as directory names.
    runs: AtomicU32,
}

impl MeasuringPlace {
    /// Finds the libraries.
    ///
    /// # Errors
    /// One is missing, or scratch space cannot be created.
    pub fn find() -> Result<MeasuringPlace, String> {
        Ok(MeasuringPlace { build: Build::find("vgpu-shares")?, runs: AtomicU32::new(0) })
    }

    /// Path of the daemon of the same build.
    ///
    /// # Errors
    /// The daemon is missing.
    pub fn daemon_path(&self) -> Result<&Path, String> {
        self.build.daemon()
    }

    /// Path of the measured library.
    pub fn library_path(&self) -> &Path {
        self.build.library()
    }

    /// Creates the directories of one run.
    ///
    /// # Errors
    /// They cannot be created.
    pub fn make_room(&self) -> Result<RunRoom<'_>, String> {
        let dir = self.build.scratch().join(self.runs.fetch_add(1, Relaxed).to_string());
        for part in ["gpu", "state"] {
            std::fs::create_dir_all(dir.join(part)).map_err(|why| format!("{}: {why}", dir.display()))?;
        }
        Ok(RunRoom { place: self, dir })
    }
}

/// A simulated machine and a state directory for one run. Dropping it removes them.
pub struct RunRoom<'a> {
    place: &'a MeasuringPlace,
    dir: PathBuf,
}

impl RunRoom<'_> {
    /// Directory of the simulated machine.
    pub fn machine_path(&self) -> PathBuf {
        self.dir.join("gpu")
    }

    /// Directory of the library's ledgers.
    pub fn state_path(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// Name of tenant `index`, which is part of its ledger's file name.
    pub fn tenant_name(index: usize) -> String {
        format!("share{index}")
    }

    /// Directory of all files of the run.
    pub fn room_path(&self) -> &Path {
        &self.dir
    }

    /// Command for one process of a tenant, with the library if the tenant has a ceiling.
    pub fn workload_command(&self, point: &MeasuredPoint, index: usize, tenant: &PointTenant) -> Command {
        let words = ["--work", tenant.load.pattern.name(), &tenant.load.kernel_ns.to_string()];
        let mut command = self.program_command(point.profile, &words);
        if let Some(ceiling) = tenant.ceiling {
            self.with_library(&mut command)
                .env("VGPU_TENANT", RunRoom::tenant_name(index))
                .env("VGPU_SM_LIMIT", format_percent(ceiling));
        }
        command
    }

    /// Command that runs this program again on the simulated device, without the library.
    pub fn program_command(&self, profile: &str, words: &[&str]) -> Command {
        let mut command = self.place.build.again(&self.machine_path(), profile);
        command.args(words);
        command
    }

    /// Preloads the library; the caller sets the limits.
    pub fn with_library<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        self.place.build.preload(command, &self.state_path())
    }
}

impl Drop for RunRoom<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
