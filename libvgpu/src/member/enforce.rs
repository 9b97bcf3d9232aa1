//! The check at the start of every hook: is anything enforced here, and on which device?

use crate::device::table::Device;
use crate::device::{self, current};
use crate::driver::own;

use crate::member::boot;
use crate::{driver, ledger, memory, process, time};

use crate::process::fork;
use crate::process::mode::{Denied, ProcessMode, process_mode};

use shim_sys::cuda::CUcontext;

/// Whether limits are enforced here. Every hook that could charge, release or show numbers calls this first.
///
/// # Errors
/// [`ProcessMode::Failed`] as `Err`: the call must be refused.
///
/// # Cost
/// One load when nothing was asked for, three otherwise.
#[inline(always)] // hot, and the crate is optimised for size
pub fn is_enforced() -> Result<bool, Denied> {
    // Two branches in sequence: a jump table costs more than two branches that the processor predicts.
    let mode = process_mode();
    if mode == ProcessMode::On {
        settle_child();
        return Ok(true);
    }
    if mode == ProcessMode::Off { Ok(false) } else { settle_or_refuse() }
}

/// As [`is_enforced`], as one function for all hooks that programs call rarely: NVML's, and those of contexts, modules
/// and shared memory. It keeps the library small.
///
/// # Errors
/// As [`is_enforced`].
#[inline(never)]
pub fn is_enforced_for_rare_call() -> Result<bool, Denied> {
    is_enforced()
}

#[cold]
#[inline(never)] // every hook contains the call
fn settle_or_refuse() -> Result<bool, Denied> {
    if process_mode() == ProcessMode::Failed { Err(Denied) } else { initialise_late() }
}

/// Handles a charging call before any `cuInit` passed a hook. If the driver is initialised, the program bypassed the
/// hook, and the limits must apply all the same. If not, the driver will refuse the call.
#[cold]
fn initialise_late() -> Result<bool, Denied> {
    let mut count = 0;
    // SAFETY: a pointer to a local.
    let initialised = own::cuDeviceGetCount().is_some_and(|ask| unsafe { ask(&raw mut count) }.ok());
    if !initialised {
        return Ok(false);
    }
    settle_child();
    boot::cuda_ready()?;
    Ok(process_mode() == ProcessMode::On)
}

/// Runs at a forked child's first call: gives up the parent's slot, socket and allocation records, and resets every
/// lock that a thread of the parent may have held.
#[inline(always)]
pub fn settle_child() {
    fork::reset_in_child(|| {
        process::reset_after_fork();
        driver::reset_after_fork();
        ledger::reset_after_fork();
        time::reset_after_fork();
        device::reset_after_fork();
        memory::reset_after_fork();
        boot::reset_after_fork();
        device::reconnect::rejoin_after_fork();
    });
}

/// The current context and its device if limits are enforced there; `None`: pass the call through.
///
/// # Errors
/// [`Denied`]: limits were asked for and cannot be kept.
#[inline]
pub fn on_current() -> Result<Option<(CUcontext, &'static Device)>, Denied> {
    Ok(if is_enforced()? { current::current() } else { None })
}
