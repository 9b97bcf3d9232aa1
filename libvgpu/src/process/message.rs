//! The one line that this library prints on its own: once per process. It reports a limit or measurement that cannot
//! be kept, a bypass, or a context or a restore refused for memory.
//!
//! `VGPU_LOG=off` silences it; `VGPU_LOG_FILE` sends it to a file. It is written by one `write`, so that lines of
//! several processes do not mix. A file that may not grow (`RLIMIT_FSIZE`) is not written: the program would get a
//! signal.

use crate::process::environment::decisive_variable;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use shim_sys::shared_file::may_write;
use std::os::unix::ffi::OsStrExt;

static HAS_WARNED: AtomicBool = AtomicBool::new(false);

/// Writes `vgpu: <text>` and a newline, the first time it is called.
pub fn warn_once(text: &str) {
    if HAS_WARNED.swap(true, Relaxed) || decisive_variable("VGPU_LOG").is_some_and(|value| value.as_bytes() == b"off") {
        return;
    }
    let line = format!("vgpu: {text}\n");
    match decisive_variable("VGPU_LOG_FILE").and_then(|path| std::ffi::CString::new(path.as_bytes()).ok()) {
        Some(path) => {
            let flags =
                libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
            // SAFETY: a C string, and a descriptor that is closed before other code can know it.
            unsafe {
                let file = libc::open(path.as_ptr(), flags, 0o644);
                if file >= 0 {
                    write(file, &line);
                    libc::close(file);
                }
            }
        }
        None => write(2, &line),
    }
}

/// Writes the line, unless that would raise a signal in the program.
fn write(descriptor: libc::c_int, line: &str) {
    if may_write(descriptor) {
        // SAFETY: writes a buffer, to stderr even if the program has redirected it.
        unsafe { libc::write(descriptor, line.as_ptr().cast(), line.len()) };
    }
}

/// Allows a forked child its own line.
pub fn reset_after_fork() {
    HAS_WARNED.store(false, Relaxed);
}
