//! NVML as a tenant sees it: its devices, its memory, its processes, and its share of the device's time.
//!
//! This file has the initialisation, and decides whether a device is limited. The subjects are in `memory`,
//! `processes`, `utilisation`, `accounting` and `devices`; functions with one answer for every tenant are in `refused`.
//! Where nothing is limited, every call returns the driver's answer unchanged.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

mod accounting;
mod devices;
mod memory;
mod processes;
mod refused;
mod utilisation;

pub use accounting::*;
pub use devices::*;
pub use memory::*;
pub use processes::*;
pub use refused::shut;
pub use utilisation::*;

use crate::device::table::{self, Device};
use crate::device::{list, usage};
use crate::member::{boot, enforce};
use crate::process::mode::{self, Denied, ProcessMode};
use shim_sys::nvml::*;
use shim_sys::table::nvml_fn;
use vgpu_core::memory::ledger::MemberView;

fn init(real: impl FnOnce() -> nvmlReturn_t) -> nvmlReturn_t {
    enforce::settle_child();
    if boot::configuration().is_err() || mode::process_mode() == ProcessMode::Failed {
        return nvmlReturn_t::NO_PERMISSION;
    }
    let result = real();
    if result.ok() && boot::nvml_ready().is_err() {
        // The program gets an error, as if NVML were not initialised, so this initialisation must be undone.
        crate::driver::calls::shut_nvml_down();
        return nvmlReturn_t::NO_PERMISSION;
    }
    if result.ok() {
        list::program_began();
        usage::begin_measuring();
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
    list::program_ends();
    unsafe { real() }
}

/// The device behind a handle, if limits are enforced on it. Where use is only measured, everything is shown
/// unchanged.
///
/// # Errors
/// [`Denied`]: nothing may be shown, or the device is not the tenant's. This includes a partitioned board (MIG) of
/// which the tenant has instances: the driver, too, reports on the board as a whole only to its administrator.
fn limited_device(dev: nvmlDevice_t) -> Result<Option<&'static Device>, Denied> {
    if !enforce::is_enforced_for_rare_call()? {
        return Ok(None);
    }
    let Some(uuid) = list::nvml_uuid(dev) else { return Ok(None) };
    if table::is_foreign(&uuid) {
        return Err(Denied);
    }
    Ok(table::by_uuid(&uuid).filter(|device| !device.is_observed()))
}

/// Whether limits are enforced on this process for any device.
fn is_tenant() -> Result<bool, Denied> {
    Ok(enforce::is_enforced_for_rare_call()? && table::all().any(|device| !device.is_observed()))
}

/// The tenant's processes that have memory or a context on the device.
fn visible_members(device: &Device) -> Vec<MemberView> {
    let all = device.ledger.membership().map_or_else(|_| Vec::new(), |joined| joined.living_members());
    let mut all: Vec<MemberView> = all.into_iter().filter(|member| member.used > 0).collect();
    // Uncharged memory cannot be attributed to a process. It is shown with the first, so that the processes add up to
    // the used memory.
    all.iter_mut().take(1).for_each(|first| first.used = first.used.saturating_add(device.uncharged_bytes()));
    all
}

/// Returns a list by NVML's protocol: `count` holds the capacity, afterwards the length. If the capacity is too
/// small, only the length is written.
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

/// Evaluates to the device behind the handle if it is limited; otherwise returns the driver's answer.
macro_rules! limited_or {
    ($dev:expr, $real:expr) => {
        match $crate::hooks::nvml::limited_device($dev) {
            Ok(Some(device)) => device,
            Ok(None) => return $real,
            Err($crate::process::mode::Denied) => return nvmlReturn_t::NO_PERMISSION,
        }
    };
}
use limited_or;
