//! Event sets: they can be created, registered and waited on. The simulated device reports one type of event: fatal
//! faults, with the Xid. A wait without one ends with its timeout.

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code},
    machine::{self, NvmlGpu},
};
use core::ffi::c_void;
use parking_lot::Mutex;
use shim_sys::nvml::{nvmlEventData_t, nvmlEventData_v1_t, nvmlEventSet_t};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Supported event types: ECC, page retirement, performance state, fatal faults, clock, power source, MIG
/// configuration.
const SUPPORTED_EVENTS: u64 = 0x1df;
/// Event type of a fatal fault, with the Xid as its data.
const XID_CRITICAL_ERROR: u64 = 8;
/// Interval at which a wait looks for new Xids.
const EVENT_POLL: Duration = Duration::from_millis(1);

/// Devices of a set, and the Xids that it has seen.
#[derive(Default)]
struct EventSet {
    /// The registered devices, each with its event types.
    devices: Vec<(NvmlGpu, u64)>,
    /// Number of the next Xid of the machine.
    next: u64,
}

static EVENT_SETS: Mutex<(usize, BTreeMap<usize, EventSet>)> = Mutex::new((0, BTreeMap::new()));

fn lock_sets() -> parking_lot::MutexGuard<'static, (usize, BTreeMap<usize, EventSet>)> {
    EVENT_SETS.lock()
}

fn known_set(set: CallerPlace<c_void>) -> NvmlAnswer<usize> {
    let id = set.as_address().addr();
    if lock_sets().1.contains_key(&id) { Ok(id) } else { Err(code::ERROR_INVALID) }
}

pub fn nvmlEventSetCreate(set: CallerPlace<nvmlEventSet_t>) -> NvmlAnswer {
    if set.is_null() {
        return Err(code::ERROR_INVALID);
    }
    let next = machine::xid_count()?;
    let mut sets = lock_sets();
    sets.0 += 16;
    let id = sets.0;
    sets.1.insert(id, EventSet { next, ..EventSet::default() });
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
    let id = known_set(set)?;
    if types & !SUPPORTED_EVENTS != 0 {
        return Err(code::ERROR_UNSUPPORTED);
    }
    lock_sets().1.entry(id).or_default().devices.push((dev, types));
    Ok(())
}

pub fn nvmlDeviceGetSupportedEventTypes(dev: NvmlGpu, types: CallerPlace<u64>) -> NvmlAnswer {
    dev.current_view()?;
    types.put_value(SUPPORTED_EVENTS)
}

/// The next Xid of the devices in a set, which has then seen it.
fn next_event(id: usize) -> NvmlAnswer<Option<nvmlEventData_t>> {
    loop {
        let mut sets = lock_sets();
        let set = sets.1.get_mut(&id).ok_or(code::ERROR_INVALID)?;
        let Some(event) = machine::xid_event(set.next)? else { return Ok(None) };
        set.next += 1;
        let wanted = |(gpu, types): &&(NvmlGpu, u64)| types & XID_CRITICAL_ERROR != 0 && gpu.includes(event.device);
        if let Some((gpu, _)) = set.devices.iter().find(wanted) {
            return Ok(Some(nvmlEventData_t {
                device: gpu.device_handle(),
                eventType: XID_CRITICAL_ERROR,
                eventData: event.xid.into(),
                gpuInstanceId: u32::MAX,
                computeInstanceId: u32::MAX,
            }));
        }
    }
}

fn wait(set: CallerPlace<c_void>, timeout_ms: u32) -> NvmlAnswer<nvmlEventData_t> {
    let id = known_set(set)?;
    let end = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        if let Some(event) = next_event(id)? {
            return Ok(event);
        }
        let lost = lock_sets().1.get(&id).map(|set| set.devices.clone()).unwrap_or_default();
        lost.iter().try_for_each(|(gpu, _)| gpu.require_present())?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(code::TIMEOUT);
        }
        std::thread::sleep(left.min(EVENT_POLL));
    }
}

pub fn nvmlEventSetWait(
    set: CallerPlace<c_void>,
    data: CallerPlace<nvmlEventData_v1_t>,
    timeout_ms: u32,
) -> NvmlAnswer {
    if data.is_null() {
        return Err(code::ERROR_INVALID);
    }
    let event = wait(set, timeout_ms)?;
    data.put_value(nvmlEventData_v1_t { device: event.device, eventType: event.eventType, eventData: event.eventData })
}

pub fn nvmlEventSetWait_v2(
    set: CallerPlace<c_void>,
    data: CallerPlace<nvmlEventData_t>,
    timeout_ms: u32,
) -> NvmlAnswer {
    if data.is_null() {
        return Err(code::ERROR_INVALID);
    }
    data.put_value(wait(set, timeout_ms)?)
}
