//! Programs of the main build, which a test starts and which end with it.

use std::path::PathBuf;
use std::process::Child;

/// A process that is killed with the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Path of a program or library of the main build.
pub fn built(name: &str) -> PathBuf {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release");
    let build = std::env::var_os("VGPU_BUILD").map_or_else(|| PathBuf::from(default), PathBuf::from);
    let found = build.join(name);
    assert!(found.exists(), "{} is not there; build it first: make build", found.display());
    found
}
