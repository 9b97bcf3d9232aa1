//! The library's mode in this process: one value that every hook reads.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

/// The library's mode in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ProcessMode {
    /// Initial: neither CUDA nor NVML was initialised.
    Asleep = 0,
    /// Nothing was asked for, or `VGPU_MODE=off`.
    Off = 1,
    /// Limits are enforced, or use is measured: [`is_observing`].
    On = 2,
    /// Limits were asked for and cannot be enforced: every call that allocates, launches or shows numbers is refused.
    Failed = 3,
}

static PROCESS_MODE: AtomicU8 = AtomicU8::new(ProcessMode::Asleep as u8);

/// The library's mode in this process.
///
/// # Cost
/// One load.
#[inline(always)]
pub fn process_mode() -> ProcessMode {
    match PROCESS_MODE.load(Acquire) {
        1 => ProcessMode::Off,
        2 => ProcessMode::On,
        3 => ProcessMode::Failed,
        _ => ProcessMode::Asleep,
    }
}

/// Initialisation failed: the program gets the permission error code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied;

/// Whether use is measured only.
static OBSERVE_ONLY: AtomicBool = AtomicBool::new(false);

/// Whether use is measured only: by `VGPU_MODE=observe`, or by the daemon's latest terms. Then nothing is refused,
/// delayed or shown differently.
#[inline]
pub fn is_observing() -> bool {
    OBSERVE_ONLY.load(Relaxed)
}

/// Sets whether use is measured only. The environment sets it once, the daemon at every change.
pub fn set_observing(only: bool) {
    if is_observing() != only {
        OBSERVE_ONLY.store(only, Relaxed);
    }
}

/// Sets the state of the whole process: off, on or failed.
pub fn set(mode: ProcessMode) {
    PROCESS_MODE.store(mode as u8, Release);
}
