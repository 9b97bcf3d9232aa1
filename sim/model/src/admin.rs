//! Administration of the machine from outside, for `vgpu sim`: create, reset, list.

use crate::machine::MachineView;
use crate::profile::{BUILT_IN_PROFILES, DeviceProfile, parse_list};
use std::io::{Error, ErrorKind};
use std::path::Path;

/// The devices that the simulator can imitate without a measurement.
pub fn built_in_profiles() -> &'static [DeviceProfile] {
    &BUILT_IN_PROFILES
}

/// Removes the state in `dir`, and `dir` itself if it is empty then; the next process makes a new machine.
///
/// Processes that still use the old machine keep it until they end. Returns whether a machine existed.
///
/// # Errors
/// The file exists and cannot be removed.
pub fn reset(dir: &Path) -> Result<bool, Error> {
    let was_there = match std::fs::remove_file(dir.join("state")) {
        Ok(()) => true,
        Err(e) if e.kind() == ErrorKind::NotFound => false,
        Err(e) => return Err(e),
    };
    crate::share::remove_contents(dir);
    // A directory with other files in it, or a mount point, stays.
    let _ = std::fs::remove_dir(dir);
    Ok(was_there)
}

/// Makes a machine in `dir` with the devices of `profile`.
///
/// # Errors
/// A machine exists already, the profile is not understood, or the directory is not writable.
pub fn create_machine(dir: &Path, profile: &str) -> Result<(), Error> {
    parse_list(profile).map_err(|e| Error::new(ErrorKind::InvalidInput, e))?;
    if dir.join("state").exists() {
        return Err(Error::new(ErrorKind::AlreadyExists, format!("{}: a machine is there already", dir.display())));
    }
    MachineView::open_at(dir, Some(profile)).map(drop)
}
