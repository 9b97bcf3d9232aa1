//! The program's green contexts.

use crate::ffi::lock::Lock;
use shim_sys::cuda::CUdevice;

/// Live green contexts and their devices.
pub static GREEN_CONTEXTS: Lock<Vec<(usize, CUdevice)>> = Lock::new(Vec::new());

/// Clears the parent's green contexts in a forked child.
pub fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { GREEN_CONTEXTS.reset(Vec::new()) };
}
