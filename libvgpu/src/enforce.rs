//! The check at the start of every hook: is anything enforced here, and on which device?

use crate::device::{self, Device};
use crate::driver::own;
use crate::mode::{Denied, Mode, mode};
use crate::{boot, context, credit, fork, holdings, order, overhead, pools, quiet, say};
use shim_sys::cuda::CUcontext;

/// Whether limits are enforced here. Every hook that could charge, release or show numbers calls this first.
///
/// # Errors
/// [`Mode::Failed`] as `Err`: the call must be refused.
///
/// # Cost
/// One load when nothing was asked for, three otherwise.
#[inline(always)] // hot, and the crate is optimised for size
pub fn enforced() -> Result<bool, Denied> {
    // Two branches in sequence: a jump table costs more than two branches that the processor predicts.
    let mode = mode();
    if mode == Mode::On {
        settle_child();
        return Ok(true);
    }
    if mode == Mode::Off { Ok(false) } else { unsettled() }
}

#[cold]
fn unsettled() -> Result<bool, Denied> {
    if mode() == Mode::Failed { Err(Denied) } else { wake() }
}

/// Handles a charging call before any `cuInit` passed a hook. If the driver is initialised, the program bypassed the
/// hook, and the limits must apply all the same. If not, the driver will refuse the call.
#[cold]
fn wake() -> Result<bool, Denied> {
    let mut count = 0;
    // SAFETY: a pointer to a local.
    let initialised = own::cuDeviceGetCount().is_some_and(|ask| unsafe { ask(&raw mut count) }.ok());
    if !initialised {
        return Ok(false);
    }
    settle_child();
    boot::cuda_ready()?;
    Ok(mode() == Mode::On)
}

/// Runs at a forked child's first call: gives up the parent's slot, socket and allocation records, and resets every
/// lock that a thread of the parent may have held.
#[inline(always)]
pub fn settle_child() {
    fork::settle(|| {
        say::reborn();
        boot::reborn();
        credit::reborn();
        device::reborn();
        context::reborn();
        holdings::forget();
        overhead::forget();
        quiet::reborn();
        order::reborn();
        crate::watcher::reborn();
        crate::usage::reborn();
        pools::forget();
        crate::hooks::forget_primaries();
        crate::daemon::renew::reborn();
    });
}

/// The current context and its device if limits are enforced there; `None`: pass the call through.
///
/// # Errors
/// [`Denied`]: limits were asked for and cannot be kept.
#[inline]
pub fn on_current() -> Result<Option<(CUcontext, &'static Device)>, Denied> {
    Ok(if enforced()? { context::current() } else { None })
}
