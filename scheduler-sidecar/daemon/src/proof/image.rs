//! Which program a process runs: an exec is told from the program that said hello.

use vgpu_control::finding::Process;

/// The program that a process runs. An exec replaces it, while number and start time of the process stay.
///
/// The kernel chooses the addresses anew at each exec, so that the same program run again is another image. A process that
/// switched that off and runs the same program again has the same image; it is judged by whether it has the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Image {
    /// The process.
    pub process: Process,
    /// Device and inode of the program's file; zeros: it cannot be read.
    pub program: (u64, u64),
    /// Address of the first code.
    pub code: u64,
    /// Address of the first stack frame.
    pub stack: u64,
}
