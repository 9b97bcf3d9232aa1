//! What the process-level tests share. The tests themselves are in `tests/`, one file per subject; the C programs they
//! run are in `programs/`, the Python ones in `clients/`.
//!
//! - [`artefacts`]: where the library, the simulated driver and the daemon are, or how they get built
//! - [`program`]: C programs, compiled when first asked for
//! - [`lab`]: a machine, a tenant's state and an environment of its own for each test; the device's own truth
//! - [`member`]: a process on the device that does what it is told, line by line
//! - [`between`]: somebody between members and the daemon, who can keep answers back
//! - [`daemon`]: a daemon with a configuration file
//! - [`peer`]: members by the daemon's protocol alone, thousands in one process
//! - [`terminal`]: a program on a terminal: keys go in, the screen is read
//! - [`timed`]: programs that use device time, what the device did and what the tenant paid
//! - [`optional`]: parts that need not be there, and the words when they are not
//!
//! Tests that nothing can turn red are worthless: `tests/mutants` breaks the library on purpose, fault by fault, and checks
//! that the tests named for each fault fail.
//!
//! Accuracy is judged by [`lab::Lab::truth`] alone, never by what the library says of itself.

pub mod artefacts;
pub mod between;
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

/// 2^10.
pub const KIB: u64 = 1 << 10;
/// 2^20.
pub const MIB: u64 = 1 << 20;
/// 2^30.
pub const GIB: u64 = 1 << 30;

/// CUDA's out of memory.
pub const OUT_OF_MEMORY: i64 = 2;
/// CUDA's refusal of an initialisation whose limits cannot be kept.
pub const NOT_PERMITTED: i64 = 800;
/// NVML's.
pub const NO_PERMISSION: i64 = 4;

/// The most that a healthy answer can take on a busy machine; only a hang reaches it.
pub const LONG: std::time::Duration = std::time::Duration::from_secs(60);

/// Waits until something holds, looking every 5 ms; panics with `what` after [`LONG`].
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_seen(what, String::new, condition);
}

/// As [`eventually`]; the panic also shows what is `seen` then.
#[track_caller]
pub fn eventually_seen(what: &str, seen: impl Fn() -> String, mut condition: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LONG, "still not: {what} {}", seen());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Runs a command to its end and returns its output; panics with everything it printed unless it exits 0.
pub fn run(command: &mut std::process::Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}: {}", text(&out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Status and both outputs, for messages.
pub fn text(out: &std::process::Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    format!("{}\n--- stdout\n{stdout}--- stderr\n{stderr}", out.status)
}

/// Whether the test runs as root, which some promises about several users need.
pub fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}
