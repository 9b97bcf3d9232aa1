//! Whether limits are asked for in this process, before anything is initialised.
//!
//! Lookups and `dlopen` happen long before `cuInit`, also in programs that never touch a GPU. So without limits the
//! check allocates nothing and reads at most one file, once. `member/boot` reads the limits themselves.

use super::environment::{self, decisive_variable, has_limit_prefix};
use crate::process::mode::{self, ProcessMode, process_mode};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use vgpu_core::limits::Mode as Asked;

/// Bytes of an entry that must be compared with the beginnings.
const LONGEST_PREFIX: usize = 33;

/// Result for the initial environment: `START_NOT_READ` (not read yet), `START_HAS_NONE` or `START_HAS_LIMIT`.
static START_ENVIRONMENT: AtomicU8 = AtomicU8::new(START_NOT_READ);
const START_NOT_READ: u8 = 0;
const START_HAS_NONE: u8 = 1;
const START_HAS_LIMIT: u8 = 2;

/// Whether limits apply here, or will once CUDA or NVML is initialised. False where use is only measured.
///
/// # Cost
/// One load after initialisation. Before it a walk over the environment; the first time one file is read as well.
pub fn for_limits() -> bool {
    match process_mode() {
        ProcessMode::Off => false,
        ProcessMode::On => !mode::is_observing(),
        ProcessMode::Failed => true,
        ProcessMode::Asleep => mentions_limit() && means_limit(),
    }
}

/// Whether a variable that may ask for limits is in the initial or the current environment.
fn mentions_limit() -> bool {
    match START_ENVIRONMENT.load(Relaxed) {
        START_HAS_LIMIT => return true,
        START_HAS_NONE => {}
        _ => {
            let there = at_start();
            START_ENVIRONMENT.store(if there { START_HAS_LIMIT } else { START_HAS_NONE }, Relaxed);
            if there {
                return true;
            }
        }
    }
    environment::now().any(has_limit_prefix)
}

/// Whether those variables limit anything. A value that is not understood counts: initialisation will fail.
#[cold]
fn means_limit() -> bool {
    environment::read_limits().map_or(true, |limits| {
        // Under a daemon the daemon sets the mode, and has not been asked yet.
        decisive_variable("VGPU_SOCKET").is_some()
            || limits.asked_mode() == Asked::Enforce && limits.asked_for_anything()
    })
}

/// Searches the initial environment for such a variable, in pieces of 1 KiB.
#[cold]
fn at_start() -> bool {
    // SAFETY: this thread's errno, which a lookup must not change.
    let errno = unsafe { *libc::__errno_location() };
    let found = scan_start_environment();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    found
}

fn scan_start_environment() -> bool {
    // SAFETY: a C string.
    let file = unsafe { libc::open(c"/proc/self/environ".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return false;
    }
    let (mut piece, mut head, mut length, mut found) = ([0u8; 1024], [0u8; LONGEST_PREFIX], 0, false);
    while !found {
        // SAFETY: an open descriptor and a buffer of the given length.
        let read = unsafe { libc::read(file, piece.as_mut_ptr().cast(), piece.len()) };
        let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else { break };
        for &byte in piece.iter().take(read) {
            if byte == 0 {
                found |= has_limit_prefix(&head[..length]);
                length = 0;
            } else if let Some(place) = head.get_mut(length) {
                *place = byte;
                length += 1;
            }
        }
    }
    // SAFETY: opened above; no other code knows it.
    unsafe { libc::close(file) };
    found || has_limit_prefix(&head[..length])
}
