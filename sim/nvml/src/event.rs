//! Event sets: they can be created, registered and waited on. The simulated device reports no faults, so every
//! wait ends with its timeout.

use crate::{
    door::{Answer, Out, code},
    machine::Gpu,
};
use core::ffi::c_void;
use parking_lot::Mutex;
use shim_sys::nvml::{nvmlEventData_t, nvmlEventData_v1_t, nvmlEventSet_t};
use std::{collections::BTreeSet, time::Duration};

/// Supported event types: ECC, page retirement, performance state, fatal faults, clock, power source, MIG configuration.
const SUPPORTED: u64 = 0x1df;

static SETS: Mutex<(usize, BTreeSet<usize>)> = Mutex::new((0, BTreeSet::new()));

fn sets() -> parking_lot::MutexGuard<'static, (usize, BTreeSet<usize>)> {
    SETS.lock()
}

fn known(set: Out<c_void>) -> Answer<usize> {
    let id = set.addr().addr();
    if sets().1.contains(&id) { Ok(id) } else { Err(code::INVALID) }
}

pub fn nvmlEventSetCreate(set: Out<nvmlEventSet_t>) -> Answer {
    if set.is_null() {
        return Err(code::INVALID);
    }
    let mut sets = sets();
    sets.0 += 16;
    let id = sets.0;
    sets.1.insert(id);
    // An opaque identifier that is never dereferenced.
    set.put(core::ptr::without_provenance_mut(id))
}

pub fn nvmlEventSetFree(set: Out<c_void>) -> Answer {
    let id = known(set)?;
    sets().1.remove(&id);
    Ok(())
}

pub fn nvmlDeviceRegisterEvents(dev: Gpu, types: u64, set: Out<c_void>) -> Answer {
    dev.view()?;
    known(set)?;
    if types & !SUPPORTED != 0 { Err(code::UNSUPPORTED) } else { Ok(()) }
}

pub fn nvmlDeviceGetSupportedEventTypes(dev: Gpu, types: Out<u64>) -> Answer {
    dev.view()?;
    types.put(SUPPORTED)
}

fn wait(set: Out<c_void>, timeout_ms: u32) -> Answer {
    known(set)?;
    std::thread::sleep(Duration::from_millis(timeout_ms.into()));
    Err(code::TIMEOUT)
}

pub fn nvmlEventSetWait(set: Out<c_void>, data: Out<nvmlEventData_v1_t>, timeout_ms: u32) -> Answer {
    if data.is_null() {
        return Err(code::INVALID);
    }
    wait(set, timeout_ms)
}

pub fn nvmlEventSetWait_v2(set: Out<c_void>, data: Out<nvmlEventData_t>, timeout_ms: u32) -> Answer {
    if data.is_null() {
        return Err(code::INVALID);
    }
    wait(set, timeout_ms)
}
