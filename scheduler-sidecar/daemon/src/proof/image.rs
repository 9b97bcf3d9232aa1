//! Identifies the program that a process runs, so that an exec after the hello is detected.

use serde::{Deserialize, Serialize};
use vgpu_control::finding::ProcessId;

/// The program of a process. An exec replaces it, while process ID and start time stay.
///
/// The kernel picks new addresses at each exec, so the same program run again is another image. If a process turns
/// that off (no address space randomization) and runs the same program again, the image stays equal. The check
/// whether it has the library still applies then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Image {
    /// Process that runs the program.
    pub process: ProcessId,
    /// Device and inode of the program's file; zeros: it cannot be read.
    pub program: (u64, u64),
    /// Start address of the code in memory, new at each exec.
    pub code: u64,
    /// Start address of the stack in memory, new at each exec.
    pub stack: u64,
}
