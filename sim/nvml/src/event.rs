//! Event sets: they can be created, registered and waited on. The simulated device reports no faults, so every
//! wait ends with its timeout.

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code},
    machine::NvmlGpu,
};
use core::ffi::c_void;
use parking_lot::Mutex;
use shim_sys::nvml::{nvmlEventData_t, nvmlEventData_v1_t, nvmlEventSet_t};
use std::{collections::BTreeSet, time::Duration};

/// Supported event types: ECC, page retirement, performance state, fatal faults, clock, power source, MIG configuration.
const SUPPORTED_EVENTS: u64 = 0x1df;

static EVENT_SETS: Mutex<(usize, BTreeSet<usize>)> = Mutex::new((0, BTreeSet::new()));

fn lock_sets() -> parking_lot::MutexGuard<'static, (usize, BTreeSet<usize>)> {
    EVENT_SETS.lock()
}

fn known_set(set: CallerPlace<c_void>) -> NvmlAnswer<usize> {
    let id = set.as_address().addr();
    if lock_sets().1.contains(&id) { Ok(id) } else { Err(code::ERROR_INVALID) }
}

pub fn nvmlEventSetCreate(set: CallerPlace<nvmlEventSet_t>) -> NvmlAnswer {
    if set.is_null() {
        return Err(code::ERROR_INVALID);
    }
    let mut sets = lock_sets();
    sets.0 += 16;
    let id = sets.0;
    sets.1.insert(id);
    // An opaque identifier that is never dereferenced.
    set.put_value(core::ptr::without_provenance_mut(id))
}

pub fn nvmlEventSetFree(set: CallerPlace<c_void>) -> NvmlAnswer {
    let id = known_set(set)?;
    lock_sets().1.remove(&id);
    Ok(())
}

pub fn nvmlDeviceRegisterEvents(dev: NvmlGpu, types: u64, set: CallerPlace<c_void>) -> NvmlAnswer {
    dev.current_view()?;
    known_set(set)?;
    if types & !SUPPORTED_EVENTS != 0 { Err(code::ERROR_UNSUPPORTED) } else { Ok(()) }
}

pub fn nvmlDeviceGetSupportedEventTypes(dev: NvmlGpu, types: CallerPlace<u64>) -> NvmlAnswer {
    dev.current_view()?;
    types.put_value(SUPPORTED_EVENTS)
}

fn wait(set: CallerPlace<c_void>, timeout_ms: u32) -> NvmlAnswer {
    known_set(set)?;
    std::thread::sleep(Duration::from_millis(timeout_ms.into()));
    Err(code::TIMEOUT)
}

pub fn nvmlEventSetWait(
    set: CallerPlace<c_void>,
    data: CallerPlace<nvmlEventData_v1_t>,
    timeout_ms: u32,
) -> NvmlAnswer {
    if data.is_null() {
        return Err(code::ERROR_INVALID);
    }
    wait(set, timeout_ms)
}

pub fn nvmlEventSetWait_v2(
    set: CallerPlace<c_void>,
    data: CallerPlace<nvmlEventData_t>,
    timeout_ms: u32,
) -> NvmlAnswer {
    if data.is_null() {
        return Err(code::ERROR_INVALID);
    }
    wait(set, timeout_ms)
}
