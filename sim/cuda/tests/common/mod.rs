//! The library under test, built and loaded; child processes that use it, each on its own machine; optional
//! parts.
#![allow(dead_code)] // each test file uses its part

pub mod peer;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Path of the simulated `libcuda.so.1`, in a folder of its own under its proper name. Built now if it is out of
/// date.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        let profile = exe.parent().unwrap().parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "sim-cuda", "--target-dir"]).arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the library does not build");
        let folder = profile.join("sim-cuda-tests");
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["libcuda.so.1", "libcuda.so"] {
            let temporary = folder.join(format!("{name}.{}", std::process::id()));
            std::os::unix::fs::symlink(profile.join("libcuda.so"), &temporary).unwrap();
            std::fs::rename(&temporary, folder.join(name)).unwrap();
        }
        folder.join("libcuda.so.1")
    })
}

/// Directory of the simulated driver, for `LD_LIBRARY_PATH`.
pub fn folder() -> &'static Path {
    library().parent().unwrap()
}

/// Loads a library without adding its symbols to the global scope.
pub fn open(path: &Path) -> Library {
    // SAFETY: loading a driver library runs its initialisers, which touch nothing of ours.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.unwrap()
}

/// Calls a function of the table by its name, with its declared signature.
#[macro_export]
macro_rules! cu {
    ($library:expr, $name:ident ( $($arg:expr),* $(,)? )) => {
        // SAFETY: the signature is the table's; the test passes live pointers.
        unsafe { (*$library.get::<shim_sys::table::cuda_fn::$name>(stringify!($name).as_bytes()).unwrap())($($arg),*) }
    };
}

/// As `cu!`; asserts that the call succeeds.
#[macro_export]
macro_rules! ok {
    ($library:expr, $name:ident ( $($arg:expr),* $(,)? )) => {
        assert_eq!($crate::cu!($library, $name($($arg),*)).0, 0, stringify!($name))
    };
}

/// Silences panics of forked children, because printing takes locks that another thread may have held at the
/// fork. The parent reports them.
fn quiet_children() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let (me, usual) = (std::process::id(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            if std::process::id() == me {
                usual(info);
            }
        }));
    });
}

/// Sets a variable in a forked child. It bypasses the standard library, whose environment lock another thread may
/// have held at the fork.
pub fn set(name: &str, value: &str) {
    let [name, value] = [name, value].map(|t| std::ffi::CString::new(t).unwrap());
    // SAFETY: the child has one thread; the C library copies both.
    unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
}

/// Runs `f` in a child with `variables` in its environment and the library loaded; a panic there fails the test.
/// Returns the lines that `f` returned.
pub fn in_child(variables: &[(&str, &str)], f: impl FnOnce(&Library) -> Vec<String>) -> Vec<String> {
    let path = library();
    let file = tempfile::NamedTempFile::new().unwrap();
    quiet_children();
    // SAFETY: the child uses its own copies only and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let run = std::panic::AssertUnwindSafe(|| {
            for (name, value) in variables {
                set(name, value);
            }
            f(&open(path))
        });
        let (code, text) = match std::panic::catch_unwind(run) {
            Ok(lines) => (0, lines.join("\n")),
            Err(p) => {
                let words = p.downcast_ref::<String>().cloned();
                (1, words.or(p.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
            }
        };
        let _ = std::fs::write(file.path(), text);
        // SAFETY: ends the child without the harness's handlers.
        unsafe { libc::_exit(code) }
    }
    let mut status = 0;
    // SAFETY: our own child, a live integer.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert_eq!(status, 0, "{text}");
    text.lines().map(str::to_owned).collect()
}

/// Runs `f` in a child on a separate machine with the devices of `profile`; passes it the machine's directory.
pub fn on_machine(profile: &str, variables: &[(&str, &str)], f: impl FnOnce(&Library, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    let mut all = vec![("VGPU_SIM_DIR", dir.path().to_str().unwrap()), ("VGPU_SIM_PROFILE", profile)];
    all.extend(variables);
    in_child(&all, |library| {
        f(library, dir.path());
        Vec::new()
    });
}

/// Root directory of the source tree.
pub fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Path of an optional part, from the environment variable or from the file that tests/setup/all writes.
///
/// If it is missing, the test prints SKIPPED and returns; with `VGPU_REQUIRE_ALL=1` it fails.
pub fn part(variable: &str, what: &str) -> Option<PathBuf> {
    let written = std::fs::read_to_string(checkout().join(".cache/test.env")).unwrap_or_default();
    let from_file = || written.lines().find_map(|l| l.strip_prefix(variable)?.strip_prefix('=').map(PathBuf::from));
    let found = std::env::var_os(variable).map(PathBuf::from).or_else(from_file).filter(|p| p.exists());
    if found.is_none() {
        assert!(std::env::var_os("VGPU_REQUIRE_ALL").is_none_or(|v| v != "1"), "required and missing: {what}");
        // Bypasses the test runner's capture, so that a skipped test is seen.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {what} (run tests/setup/all)");
    }
    found
}
