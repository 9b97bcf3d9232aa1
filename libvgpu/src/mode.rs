//! The library's mode in this process: one value that every hook reads.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

/// The library's mode in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// Initial: neither CUDA nor NVML was initialised.
    Asleep = 0,
    /// Nothing was asked for, or `VGPU_MODE=off`.
    Off = 1,
    /// Limits are enforced, or use is measured: [`observing`].
    On = 2,
    /// Limits were asked for and cannot be enforced: every call that allocates, launches or shows numbers is refused.
    Failed = 3,
}

static MODE: AtomicU8 = AtomicU8::new(Mode::Asleep as u8);

/// The library's mode in this process.
///
/// # Cost
/// One load.
#[inline(always)]
pub fn mode() -> Mode {
    match MODE.load(Acquire) {
        1 => Mode::Off,
        2 => Mode::On,
        3 => Mode::Failed,
        _ => Mode::Asleep,
    }
}

/// Initialisation failed: the program gets the permission error code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied;

/// Whether use is measured only.
static OBSERVING: AtomicBool = AtomicBool::new(false);

/// Whether use is measured only: by `VGPU_MODE=observe`, or by the daemon's latest terms. Then nothing is refused,
/// delayed or shown differently.
#[inline]
pub fn observing() -> bool {
    OBSERVING.load(Relaxed)
}

/// Sets whether use is measured only. The environment sets it once, the daemon at every change.
pub fn observe(only: bool) {
    if observing() != only {
        OBSERVING.store(only, Relaxed);
    }
}

/// Sets the state of the whole process: off, on or failed.
pub fn set(mode: Mode) {
    MODE.store(mode as u8, Release);
}
