//! The question that every hook asks first: is anything enforced here, and on which device?

use crate::device::{self, Device};
use crate::driver::own;
use crate::mode::{Denied, Mode, mode};
use crate::{boot, context, credit, fork, holdings, order, overhead, pools, quiet, say};
use shim_sys::cuda::CUcontext;

/// Whether limits are enforced here; every hook that could charge, release or show asks this first.
///
/// # Errors
/// [`Mode::Failed`] as `Err`: the call must be refused.
///
/// # Cost
/// One load when nothing was asked for, three otherwise.
#[inline(always)] // hot, and the library is made for size
pub fn enforced() -> Result<bool, Denied> {
    // One after the other: a jump by a table costs more than two branches that are always the same.
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

/// A call that charges, before any `cuInit` came by: either the driver will refuse it, or it was initialised by a way
/// around us, and what was asked for must hold all the same.
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

/// In a forked child, at its first call: gives up its parent's slot, socket and holdings, and opens every lock that a
/// thread of the parent may have held.
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

/// Whether the call may go on with enforcement: the device of the current context, `None` to pass through.
///
/// # Errors
/// [`Denied`]: limits were asked for and cannot be kept.
#[inline]
pub fn on_current() -> Result<Option<(CUcontext, &'static Device)>, Denied> {
    Ok(if enforced()? { context::current() } else { None })
}
