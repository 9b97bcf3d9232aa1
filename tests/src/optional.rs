//! Optional parts of the test environment: the variables that `tests/setup/all` writes, and the message when a part is
//! missing.

use crate::artefacts::checkout;
use std::env;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// Reports that something was not tested. With `VGPU_REQUIRE_ALL=1` it fails the test instead.
pub fn skipped(what: &str) {
    // Writes to stderr directly, past the test runner's capture, so that a skipped test is visible.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what} (run tests/setup/all)");
    assert!(env::var_os("VGPU_REQUIRE_ALL").is_none_or(|v| v != "1"), "required and missing: {what}");
}

/// Path of an optional part, from the environment variable or from the file that tests/setup/all wrote.
pub fn part(variable: &str, what: &str) -> Option<PathBuf> {
    let written = fs::read_to_string(checkout().join(".cache/test.env")).unwrap_or_default();
    let from_file = || written.lines().find_map(|l| l.strip_prefix(variable)?.strip_prefix('=').map(PathBuf::from));
    let found = env::var_os(variable).map(PathBuf::from).or_else(from_file).filter(|p| p.exists());
    if found.is_none() {
        skipped(what);
    }
    found
}

/// Python with the packages of tests/setup/requirements.txt.
pub fn python() -> Option<PathBuf> {
    part("VGPU_PYTHON", "Python clients")
}

/// Debian's nvidia-smi.
pub fn nvidia_smi() -> Option<PathBuf> {
    part("VGPU_NVIDIA_SMI", "nvidia-smi")
}

/// Prometheus' rule checker.
pub fn promtool() -> Option<PathBuf> {
    part("VGPU_PROMTOOL", "promtool")
}

/// Slurm's controller; its other programs are in the same packages.
pub fn slurmctld() -> Option<PathBuf> {
    part("VGPU_SLURMCTLD", "Slurm")
}
