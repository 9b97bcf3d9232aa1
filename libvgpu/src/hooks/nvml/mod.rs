//! NVML as a tenant sees it: its devices, its memory, its processes, its share of the device's time.
//!
//! Here: initialisation, and whose a device is. By subject: `memory`, `processes`, `utilisation`, `accounting`, `devices`;
//! what has one answer for every tenant is `shut`. Where nothing is limited every call is the driver's, byte for byte.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on as they came;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

mod accounting;
mod devices;
mod memory;
mod processes;
mod shut;
mod utilisation;

pub use accounting::*;
pub use devices::*;
pub use memory::*;
pub use processes::*;
pub use shut::judge_shut;
pub use utilisation::*;

use crate::device::{self, Device};
use crate::mode::{self, Denied, Mode};
use crate::{boot, enforce, inventory, usage};
use shim_sys::nvml::*;
use shim_sys::table::nvml_fn;
use vgpu_core::ledger::MemberView;

fn init(real: impl FnOnce() -> nvmlReturn_t) -> nvmlReturn_t {
    enforce::settle_child();
    if boot::ask().is_err() || mode::mode() == Mode::Failed {
        return nvmlReturn_t::NO_PERMISSION;
    }
    let result = real();
    if result.ok() && boot::nvml_ready().is_err() {
        // The program was told that NVML is not initialised: it must not stay so for us.
        if let Some(shutdown) = crate::driver::own::nvmlShutdown() {
            let _ = unsafe { shutdown() };
        }
        return nvmlReturn_t::NO_PERMISSION;
    }
    if result.ok() {
        inventory::program_began();
        usage::begin();
    }
    result
}

pub unsafe fn nvmlInit(real: nvml_fn::nvmlInit) -> nvmlReturn_t {
    init(|| unsafe { real() })
}

pub unsafe fn nvmlInit_v2(real: nvml_fn::nvmlInit_v2) -> nvmlReturn_t {
    init(|| unsafe { real() })
}

pub unsafe fn nvmlInitWithFlags(real: nvml_fn::nvmlInitWithFlags, flags: u32) -> nvmlReturn_t {
    init(|| unsafe { real(flags) })
}

pub unsafe fn nvmlShutdown(real: nvml_fn::nvmlShutdown) -> nvmlReturn_t {
    inventory::program_ends();
    unsafe { real() }
}

/// The device behind a handle, if it has limits that are kept: where use is only measured, all is shown as it is.
///
/// # Errors
/// [`Denied`]: nothing may be shown, or the device is not the tenant's. So it is with a partitioned board whose instances
/// are: the driver too tells of a board as a whole to its administrator alone.
fn limited(dev: nvmlDevice_t) -> Result<Option<&'static Device>, Denied> {
    if !enforce::enforced()? {
        return Ok(None);
    }
    let Some(uuid) = inventory::nvml_uuid(dev) else { return Ok(None) };
    if device::is_foreign(&uuid) {
        return Err(Denied);
    }
    Ok(device::by_uuid(&uuid).filter(|device| !device.observed()))
}

/// Whether this process is held to a limit on any device.
fn is_tenant() -> Result<bool, Denied> {
    Ok(enforce::enforced()? && device::all().any(|device| !device.observed()))
}

/// The tenant's processes that have memory or a context there.
fn members(device: &Device) -> Vec<MemberView> {
    let all = device.ledger.joined().map_or_else(|_| Vec::new(), |joined| joined.members());
    let mut all: Vec<MemberView> = all.into_iter().filter(|member| member.used > 0).collect();
    // Nobody tells whose it is: it is shown with the first, so that the processes add up to what is used.
    all.iter_mut().take(1).for_each(|first| first.used = first.used.saturating_add(device.uncharged()));
    all
}

/// Hands out a list by NVML's protocol: the room stands in `count`, the number afterwards; too little room writes the number
/// alone.
fn put_list<T: Copy>(count: &mut u32, at: *mut T, list: &[T]) -> nvmlReturn_t {
    let room = *count as usize;
    *count = u32::try_from(list.len()).unwrap_or(u32::MAX);
    if list.len() > room {
        return nvmlReturn_t::INSUFFICIENT_SIZE;
    }
    if at.is_null() && !list.is_empty() {
        return nvmlReturn_t::INVALID_ARGUMENT;
    }
    for (place, entry) in list.iter().enumerate() {
        unsafe { *at.add(place) = *entry };
    }
    nvmlReturn_t::SUCCESS
}

/// Calls on with the device behind the handle, if it is limited; else what the driver says.
macro_rules! limited_or {
    ($dev:expr, $real:expr) => {
        match $crate::hooks::nvml::limited($dev) {
            Ok(Some(device)) => device,
            Ok(None) => return $real,
            Err($crate::mode::Denied) => return nvmlReturn_t::NO_PERMISSION,
        }
    };
}
use limited_or;
