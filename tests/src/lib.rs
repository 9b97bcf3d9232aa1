//! Helpers that the process-level tests share. The tests themselves are in `tests/`, one file per subject; the C
//! programs they run are in `programs/`, the Python ones in `clients/`.
//!
//! - [`artefacts`]: locates the library, the simulated driver and the daemon, or builds them
//! - [`program`]: C programs, compiled when first asked for
//! - [`lab`]: a machine, a tenant's state and an environment for each test; the simulated device's own record
//! - [`member`]: a process on the device that obeys commands, line by line
//! - [`between`]: a proxy between members and the daemon that can hold answers back
//! - [`daemon`]: a daemon with a configuration file
//! - [`peer`]: members that speak only the daemon's protocol, thousands in one process
//! - [`compatibility`]: clients that tests declare, and the page of their results
//! - [`terminal`]: a program on a terminal: the test sends keys and reads the screen
//! - [`timed`]: programs that use device time, the device's record and the tenant's payments
//! - [`optional`]: optional parts of the test environment, and the message when one is missing
//!
//! A test that no fault can fail is worthless. `tests/mutants` therefore breaks the library on purpose, fault by fault,
//! and checks that the tests named for each fault fail.
//!
//! Only [`lab::Lab::truth`] judges accuracy, never the library's own report.

pub mod artefacts;
pub mod between;
pub mod compatibility;
pub mod daemon;
pub mod lab;
pub mod member;
pub mod optional;
pub mod peer;
pub mod program;
pub mod terminal;
pub mod timed;

pub use lab::Lab;
pub use member::Member;

/// Bytes of a KiB.
pub const KIB: u64 = 1 << 10;
/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes of a GiB.
pub const GIB: u64 = 1 << 30;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: i64 = 2;
/// `CUDA_ERROR_NOT_PERMITTED`: initialisation is refused because the limits cannot be enforced.
pub const NOT_PERMITTED: i64 = 800;
/// `NVML_ERROR_NO_PERMISSION`.
pub const NO_PERMISSION: i64 = 4;

/// Longest time for a correct answer on a busy machine; only a hang reaches it.
pub const LONG_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Checks a condition every 5 ms until it holds; panics with `what` after [`LONG_TIMEOUT`].
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_seen(what, String::new, condition);
}

/// As [`eventually`]; the panic message also includes the text that `seen` returns at that time.
#[track_caller]
pub fn eventually_seen(what: &str, seen: impl Fn() -> String, mut condition: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LONG_TIMEOUT, "still not: {what} {}", seen());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Runs a command to its end and returns its output; panics with everything it printed unless it exits 0.
pub fn run(command: &mut std::process::Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}: {}", text(&out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Status and both outputs of a command, for messages.
pub fn text(out: &std::process::Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    format!("{}\n--- stdout\n{stdout}--- stderr\n{stderr}", out.status)
}

/// True if the test runs as root, as some promises about several users require.
pub fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}
