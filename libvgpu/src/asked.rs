//! Whether limits are asked for in this process, before anything is initialised.
//!
//! Lookups and `dlopen` happen long before `cuInit`, also in programs that never touch a GPU. So without limits the
//! check allocates nothing and reads at most one file, once. `boot` reads the limits themselves.

use crate::environment::{self, variable};
use crate::mode::{self, Mode, mode};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use vgpu_core::limits::Mode as Asked;

/// Beginnings of all variables that ask for a limit.
const BEGINNINGS: [&[u8]; 6] = [
    b"VGPU_MEMORY_LIMIT",
    b"VGPU_SM_LIMIT",
    b"VGPU_SM_REQUEST",
    b"VGPU_SOCKET=",
    b"CUDA_DEVICE_MEMORY_LIMIT",
    b"CUDA_DEVICE_SM_LIMIT",
];
/// Bytes of an entry that must be compared with the beginnings.
const LONGEST: usize = 24;

/// Result for the initial environment: `UNSEEN` (not read yet), `NOTHING` or `SOMETHING`.
static AT_START: AtomicU8 = AtomicU8::new(UNSEEN);
const UNSEEN: u8 = 0;
const NOTHING: u8 = 1;
const SOMETHING: u8 = 2;

/// Whether limits apply here, or will once CUDA or NVML is initialised. False where use is only measured.
///
/// # Cost
/// One load after initialisation. Before it a walk over the environment; the first time one file is read as well.
pub fn for_limits() -> bool {
    match mode() {
        Mode::Off => false,
        Mode::On => !mode::observing(),
        Mode::Failed => true,
        Mode::Asleep => mentioned() && meant(),
    }
}

/// Whether a variable that may ask for limits is in the initial or the current environment.
fn mentioned() -> bool {
    match AT_START.load(Relaxed) {
        SOMETHING => return true,
        NOTHING => {}
        _ => {
            let there = at_start();
            AT_START.store(if there { SOMETHING } else { NOTHING }, Relaxed);
            if there {
                return true;
            }
        }
    }
    environment::now().any(begins)
}

/// Whether those variables limit anything. A value that is not understood counts: initialisation will fail.
#[cold]
fn meant() -> bool {
    environment::limits().map_or(true, |limits| {
        // Under a daemon the daemon sets the mode, and has not been asked yet.
        variable("VGPU_SOCKET").is_some() || limits.mode() == Asked::Enforce && limits.asked_for_anything()
    })
}

/// Whether this entry of an environment may ask for a limit.
pub fn begins(entry: &[u8]) -> bool {
    BEGINNINGS.iter().any(|beginning| entry.starts_with(beginning))
}

/// Searches the initial environment for such a variable, in pieces of 1 KiB.
#[cold]
fn at_start() -> bool {
    // SAFETY: this thread's errno, which a lookup must not change.
    let errno = unsafe { *libc::__errno_location() };
    let found = scan();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    found
}

fn scan() -> bool {
    // SAFETY: a C string.
    let file = unsafe { libc::open(c"/proc/self/environ".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return false;
    }
    let (mut piece, mut head, mut length, mut found) = ([0u8; 1024], [0u8; LONGEST], 0, false);
    while !found {
        // SAFETY: an open descriptor and a buffer of the given length.
        let read = unsafe { libc::read(file, piece.as_mut_ptr().cast(), piece.len()) };
        let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else { break };
        for &byte in piece.iter().take(read) {
            if byte == 0 {
                found |= begins(&head[..length]);
                length = 0;
            } else if let Some(place) = head.get_mut(length) {
                *place = byte;
                length += 1;
            }
        }
    }
    // SAFETY: opened above; no other code knows it.
    unsafe { libc::close(file) };
    found || begins(&head[..length])
}
