//! What this library does in this process: one word that every hook reads.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

/// What this library does in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// Nothing yet: neither CUDA nor NVML was initialised.
    Asleep = 0,
    /// Nothing was asked for, or `VGPU_MODE=off`.
    Off = 1,
    /// Limits are enforced, or use is measured: [`observing`].
    On = 2,
    /// Limits were asked for and cannot be enforced: everything that takes or shows is refused.
    Failed = 3,
}

static MODE: AtomicU8 = AtomicU8::new(Mode::Asleep as u8);

/// What this library does in this process.
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

/// The initialisation that fails: the program sees the permission code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied;

/// Whether use is measured only.
static OBSERVING: AtomicBool = AtomicBool::new(false);

/// Whether use is measured only (`VGPU_MODE=observe`, or the daemon's word as it was read last): nothing is refused, delayed
/// or shown differently.
#[inline]
pub fn observing() -> bool {
    OBSERVING.load(Relaxed)
}

/// Whether use is measured only from now on: said once by the environment, by a daemon whenever that changes.
pub fn observe(only: bool) {
    if observing() != only {
        OBSERVING.store(only, Relaxed);
    }
}

/// Changes what this library does.
pub fn set(mode: Mode) {
    MODE.store(mode as u8, Release);
}
