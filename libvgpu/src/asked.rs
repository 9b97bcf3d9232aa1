//! Whether limits are asked for in this process, told before anything is initialised.
//!
//! Lookups and `dlopen` come long before `cuInit`, in programs that never touch a GPU too: the answer allocates nothing
//! and reads one file at most, once, where nothing is asked for. What exactly is asked for is `boot`'s affair.

use crate::environment::{self, variable};
use crate::mode::{self, Mode, mode};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use vgpu_core::limits::Mode as Asked;

/// Every variable that asks for a limit begins like one of these.
const BEGINNINGS: [&[u8]; 6] = [
    b"VGPU_MEMORY_LIMIT",
    b"VGPU_SM_LIMIT",
    b"VGPU_SM_REQUEST",
    b"VGPU_SOCKET=",
    b"CUDA_DEVICE_MEMORY_LIMIT",
    b"CUDA_DEVICE_SM_LIMIT",
];
/// Bytes of an entry that tell whether it begins so.
const LONGEST: usize = 24;

/// What the environment at the start of the process says: not looked at, no such variable, at least one.
static AT_START: AtomicU8 = AtomicU8::new(UNSEEN);
const UNSEEN: u8 = 0;
const NOTHING: u8 = 1;
const SOMETHING: u8 = 2;

/// Whether limits hold here or will hold once CUDA or NVML is initialised. Where use is only measured none does.
///
/// # Cost
/// One load after initialisation; before it a walk over the environment, and the first time one file is read.
pub fn for_limits() -> bool {
    match mode() {
        Mode::Off => false,
        Mode::On => !mode::observing(),
        Mode::Failed => true,
        Mode::Asleep => mentioned() && meant(),
    }
}

/// Whether a variable that may ask for limits stands in the environment of the start or of now.
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

/// Whether what is written there limits anything; what is not understood will fail initialisation, and counts.
#[cold]
fn meant() -> bool {
    environment::limits().map_or(true, |limits| {
        // Beside a daemon the mode is the daemon's, who has not been asked yet.
        variable("VGPU_SOCKET").is_some() || limits.mode() == Asked::Enforce && limits.asked_for_anything()
    })
}

/// Whether this entry of an environment may ask for a limit.
pub fn begins(entry: &[u8]) -> bool {
    BEGINNINGS.iter().any(|beginning| entry.starts_with(beginning))
}

/// Looks for such a variable in the environment of the start, by pieces.
#[cold]
fn at_start() -> bool {
    // SAFETY: the thread's own errno, which a lookup must leave as it was.
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
    // SAFETY: opened above, known to nobody else.
    unsafe { libc::close(file) };
    found || begins(&head[..length])
}
